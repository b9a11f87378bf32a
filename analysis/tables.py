"""From the log frame to what a figure plots: means over seeds, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats import bootstrap

SETTING = ["method.name", "gate.rate", "gate.price"]
"""What tells two lines of a figure apart."""
POSSIBLE = dict.fromkeys(("error", "recall", "kept_right", "all_right"), (0.0, 1.0)) | dict.fromkeys(
    ("entropy", "kept_surprisal", "all_surprisal"), (0.0, np.inf)
)
"""Where a mean can be; the interval of a few seeds may reach beyond, and is cut there."""


def seconds(frame: pd.DataFrame) -> pd.Series:
    """All timed phases together."""
    return frame.filter(like="seconds_").sum(axis=1)


def aggregate(frame: pd.DataFrame, by: Sequence[str], values: Sequence[str] = ("error",)) -> pd.DataFrame:
    """A row per group: each value's mean over seeds with its 95% interval, mean costs, and how many seeds there are."""
    rows = []
    frame = frame.assign(seconds=seconds(frame))
    for key, group in frame.groupby(list(by), dropna=False):
        row: dict[str, Any] = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        for value in values:
            interval = bootstrap(group[value].dropna())
            low, high = np.clip([interval.low, interval.high], *POSSIBLE.get(value, (-np.inf, np.inf)))
            row |= {value: interval.mean, f"{value}_low": low, f"{value}_high": high}
        row |= {cost: group[cost].mean() for cost in ("forward", "screened", "backward", "seconds")}
        row |= {"step": int(group["step"].max()), "seeds": group["seed"].nunique()}
        rows.append(row | {"diverged": int(group["error"].isna().sum())})
    return pd.DataFrame(rows)


def cost_to_reach(frame: pd.DataFrame, target: float, by: Sequence[str] = SETTING) -> pd.DataFrame:
    """A row per (setting, seed): what had been spent when the error first fell to the target.

    Between two evaluations the error is taken to fall as a straight line on log axes. A seed that never gets there,
    having diverged or not, has what it spent in all, and reached = False.
    """
    rows = []
    frame = frame.assign(seconds=seconds(frame))
    costs = ["step", "forward", "screened", "backward", "seconds"]
    for key, group in frame.groupby([*by, "seed"], dropna=False):
        course = group[group["error"].notna()].sort_values("step")
        errors, spent = course["error"].to_numpy(), course[costs].to_numpy(dtype=float)
        below = np.flatnonzero(errors <= target)
        if len(below) == 0:
            at = group.sort_values("step")[costs].to_numpy(dtype=float)[-1]
        elif below[0] == 0:
            at = spent[0]
        else:
            i = below[0]
            share = np.log(errors[i - 1] / target) / np.log(errors[i - 1] / max(errors[i], 1e-12))
            at = spent[i - 1] + share * (spent[i] - spent[i - 1])
        rows.append(
            dict(zip([*by, "seed"], key, strict=True))
            | dict(zip(costs, at, strict=True))
            | {"reached": len(below) > 0, "diverged": len(course) < len(group)}
        )
    return pd.DataFrame(rows)
