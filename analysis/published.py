"""Numbers that others have published, to be drawn and judged beside ours; analysis/reference/README.md says where each
is from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats import Interval, resampled
from analysis.tables import SETTING, matching

POINTS = Path(__file__).parent / "reference" / "points.csv"
JOY_PAPER, DG_PAPER, PACKAGE = "2603.20526v1", "2603.14608v1", "kondo-gate"


@functools.cache
def _all() -> pd.DataFrame:
    return pd.read_csv(POINTS)


def published(source: str, place: str, quantity: str) -> pd.DataFrame:
    """The numbers of a figure or table; what was printed with each, "b=half S=1", as columns b and S."""
    points = matching(_all(), {"source": source, "place": place, "quantity": quantity}).reset_index(drop=True)
    printed = [dict(word.split("=") for word in words.split()) for words in points["setting"].fillna("")]
    return pd.concat([points, pd.DataFrame(printed, index=points.index)], axis=1)


def of(points: pd.DataFrame, setting: Mapping[Any, Any]) -> pd.DataFrame:
    """The points of a setting: a method with its rate or its price."""
    return matching(points, {column: _none(setting.get(column)) for column in SETTING})


def _none(value: Any) -> Any:
    return None if value is None or value != value else value


def beside(frame: pd.DataFrame, theirs: pd.DataFrame, value: str) -> pd.DataFrame:
    """Ours at each point of a published curve, the mean over seeds, interpolated as `distance` does; a seed that
    diverged has an error of 1. Points beyond our last evaluation, and of methods that were not trained, are left
    out."""
    rows: list[dict[Any, Any]] = []
    for _, points in theirs.groupby(SETTING, dropna=False, sort=False):
        runs = of(frame, points.iloc[0].to_dict())
        means = runs.assign(**{value: runs[value].fillna(1.0)}).groupby("forward")[value].mean()
        means = means[(means > 0) & (means.index > 0)]
        for point in points.sort_values("forward").to_dict("records"):
            if len(means) and means.index[0] <= point["forward"] <= means.index[-1]:
                there = np.exp(np.interp(np.log(point["forward"]), np.log(means.index), np.log(means)))
                rows.append({**point, "ours": float(there)})
    return compared(pd.DataFrame(rows, columns=[*theirs.columns, "ours"]).rename(columns={"forward": "forward passes"}))


def compared(points: pd.DataFrame, axis: str = "forward passes") -> pd.DataFrame:
    """What a page shows of published points that have ours beside them: where on the axis each is, which setting it is
    of, what is measured, theirs and ours. Points that ours has nothing for are left out."""
    columns = [axis, *SETTING, "quantity", "value", "ours"]
    return points.dropna(subset="ours")[columns].reset_index(drop=True)


def distance(ours: pd.DataFrame, theirs: pd.DataFrame, value: str) -> float:
    """How far a curve is from published points, as a factor: exp of the root mean square of log(ours/theirs), ours
    interpolated at their forward passes, of those that ours has. NaN where there are none."""
    ours = ours[(ours[value] > 0) & (ours["forward"] > 0)].sort_values("forward")
    theirs = theirs[(theirs["value"] > 0) & theirs["forward"].between(ours["forward"].min(), ours["forward"].max())]
    if theirs.empty:
        return np.nan
    there = np.interp(np.log(theirs["forward"]), np.log(ours["forward"]), np.log(ours[value]))
    return float(np.exp(np.sqrt(np.mean((there - np.log(theirs["value"])) ** 2))))


def spread(runs: pd.DataFrame, theirs: pd.DataFrame, value: str) -> Interval:
    """The distance of the mean curve over the seeds of a setting, with its interval; a seed that diverged has an error
    of 1. Open where there is nothing to compare."""
    runs = runs.assign(**{value: runs[value].fillna(1.0)})[runs["forward"] > 0]
    table = runs.pivot(index="step", columns="seed", values=value).dropna(axis=1)
    table = table[table.mean(axis=1) > 0]
    forward = runs.groupby("step")["forward"].mean().reindex(table.index).to_numpy()
    theirs = theirs[(theirs["value"] > 0) & theirs["forward"].between(*(forward[[0, -1]] if len(forward) else (1, 0)))]
    if theirs.empty:
        return Interval(np.nan, -np.inf, np.inf)
    at = np.interp(np.log(theirs["forward"]), np.log(forward), np.arange(len(forward)))
    before, after = np.floor(at).astype(int), np.ceil(at).astype(int)
    curves = table.to_numpy(dtype=float)
    least = curves[curves > 0].min() / curves.shape[1]  # what one seed adds to a mean

    share, log = at - before, np.log(theirs["value"].to_numpy())

    def of(drawn: np.ndarray) -> np.ndarray:
        first, second = np.log(np.maximum(drawn.mean(axis=-1), least)).swapaxes(1, -1)  # points last
        return np.exp(np.sqrt(np.mean((first + share * (second - first) - log) ** 2, axis=-1)))

    found = resampled(np.stack([curves[before], curves[after]]), of)
    return Interval(found.mean, max(1.0, min(found.low, found.mean)), found.high)
