"""From the log frame to what a figure plots: means over seeds, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats import bootstrap

SETTING = ["method.name", "gate.rate", "gate.price"]
"""What tells two lines of a figure apart."""
SHARES = ("error", "train_error", "test_error", "policy_error", "reward_error", "token_error", "answer_error")
"""Columns of errors."""
POSSIBLE = dict.fromkeys((*SHARES, "recall", "kept_right", "all_right", "zero_advantage"), (0.0, 1.0)) | dict.fromkeys(
    ("entropy", "kept_surprisal", "all_surprisal"), (0.0, np.inf)
)
"""Where a mean can be; the interval of a few seeds may reach beyond, and is cut there."""


class AmbiguousRows(ValueError):
    """Several rows where one was expected: a mean over them would mix settings."""


def check_unique(frame: pd.DataFrame, by: Sequence[str]) -> None:
    """Refuse a frame in which a seed has more than one row in a group, or rows of more than one cell along `step`."""
    frame = frame.set_axis(range(len(frame)))
    axes = [column for column in by if column != "step"]
    alone = frame[[*axes, "seed", "cell"]].drop_duplicates() if "step" in by else frame
    for rows, keys in ((alone, [*axes, "seed"]), (frame, [*by, "seed"])):
        again = rows.duplicated(keys, keep=False)
        if again.any():
            twice = frame.loc[rows.index[again]]
            first = twice.iloc[0]
            same = twice[[_equal(row, first, keys) for row in twice[keys].to_dict("records")]]
            place = ", ".join(f"{key}={first[key]}" for key in keys if not pd.isna(first[key]))
            raise AmbiguousRows(f"{place}: {len(same)} rows where one is expected; {_difference(same)}")


def _equal(row: Mapping[Any, Any], other: pd.Series, keys: Sequence[str]) -> bool:
    return all(row[key] == other[key] or (pd.isna(row[key]) and pd.isna(other[key])) for key in keys)


def _difference(rows: pd.DataFrame) -> str:
    """In which settings some rows differ, with their values."""
    settings = [column for column in rows if "." in str(column)] + ["steps", "evals"]
    for candidates in (settings, ["step"], ["cell"]):
        values = {str(column): list(dict.fromkeys(map(str, rows[column]))) for column in candidates if column in rows}
        words = [f"{column} ({', '.join(each)})" for column, each in values.items() if len(each) > 1]
        if words:
            return f"they differ in {' and '.join(words)}, for which there is no axis"
    return "they are of the same cell"


def matching(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have these values; None: none at all. A column that is not there matches nothing."""
    chosen = np.ones(len(frame), dtype=bool)
    for column, value in values.items():
        chosen &= _has(frame[column], value) if column in frame else value is None
    return frame[chosen]


def _has(column: pd.Series, value: Any) -> np.ndarray:
    if value is None:
        return column.isna().to_numpy()
    if isinstance(value, float) and pd.api.types.is_numeric_dtype(column):
        return np.isclose(column.to_numpy(dtype=float), value, rtol=1e-9, atol=1e-12)
    return (column == value).to_numpy()


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """With the friction and the intensity that each run was asked for, as `friction` and `intensity`; none is 0."""
    friction = frame["choice.friction"].fillna("none")
    intensity = frame["choice.intensity"].astype(float).mask(friction == "none", 0.0)
    return frame.assign(friction=friction, intensity=intensity)


def having(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """With columns that no run of the frame may have, empty where there is none."""
    return frame.assign(**{column: np.nan for column in columns if column not in frame})


def seconds(frame: pd.DataFrame) -> pd.Series:
    """All timed phases together; NaN where answers shared what they have in common, since a step then takes a time of
    its own."""
    together = frame.filter(like="seconds_").sum(axis=1)
    return together.where(~frame["shared"]) if "shared" in frame else together


def aggregate(frame: pd.DataFrame, by: Sequence[str], values: Sequence[str] = ("error",)) -> pd.DataFrame:
    """A row per group: each value's mean over seeds with its 95% interval and its standard error, mean costs, and how
    many seeds there are."""
    check_unique(frame, by)
    rows = []
    frame = frame.assign(seconds=seconds(frame))
    for key, group in frame.groupby(list(by), dropna=False):
        row: dict[str, Any] = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        for value in values:
            interval = bootstrap(group[value].dropna())
            low, high = np.clip([interval.low, interval.high], *POSSIBLE.get(value, (-np.inf, np.inf)))
            error = group[value].std() / np.sqrt(group[value].notna().sum())
            row |= {value: interval.mean, f"{value}_low": low, f"{value}_high": high, f"{value}_se": error}
        row |= {cost: group[cost].mean() for cost in ("forward", "screened", "backward", "seconds")}
        row |= {"step": int(group["step"].max()), "seeds": group["seed"].nunique()}
        rows.append(row | {"diverged": int(group["error"].isna().sum())})
    return pd.DataFrame(rows)


def cost_to_reach(frame: pd.DataFrame, target: float, by: Sequence[str] = SETTING) -> pd.DataFrame:
    """A row per (setting, seed): what had been spent when the error first fell to the target.

    Between two evaluations the logarithm of the error is taken to fall in proportion to the cost. A seed that never
    gets there, having diverged or not, has what it spent in all, and reached = False.
    """
    check_unique(frame, [*by, "step"])
    keys, costs = [*by, "seed"], ["step", "forward", "screened", "backward", "seconds"]
    frame = frame.assign(seconds=seconds(frame)).sort_values("step")
    errors, spent = frame["error"].to_numpy(dtype=float), frame[costs].to_numpy(dtype=float)
    settings = frame[keys].to_dict("records")
    group = frame.groupby(keys, dropna=False).ngroup().to_numpy()
    rows = []
    for number in range(group.max(initial=-1) + 1):
        own = np.flatnonzero(group == number)
        course = own[~np.isnan(errors[own])]
        at, reached = _crossing(errors[course], spent[course], target)
        about = {"reached": reached, "diverged": len(course) < len(own)}
        rows.append(settings[own[0]] | dict(zip(costs, at if reached else spent[own[-1]], strict=True)) | about)
    return pd.DataFrame(rows)


def _crossing(errors: np.ndarray, spent: np.ndarray, target: float) -> tuple[np.ndarray, bool]:
    """What was spent where a course first fell to the target, and whether it did."""
    below = np.flatnonzero(errors <= target)
    if len(below) == 0:
        return np.full(spent.shape[1], np.nan), False
    i = below[0]
    if i == 0:
        return spent[0], True
    share = np.log(errors[i - 1] / target) / np.log(errors[i - 1] / max(errors[i], 1e-12))
    return spent[i - 1] + share * (spent[i] - spent[i - 1]), True
