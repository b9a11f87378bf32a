"""The longest prompt that is solved within a budget.

Lengths are tried from the shortest on, as long as some seed solves them; solved means an error of at most `solved`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from analysis import style
from analysis.judge import Part, above, span
from analysis.settings import Settings
from analysis.stats import Interval, bootstrap, paired
from analysis.tables import SETTING, chosen, cost_to_reach, matching

AGREEING = 6
"""So many seeds all agree by chance in less than 5% of cases: 2 · ½ⁿ."""
BUDGETS = 25
BY = ["friction", "task.vocab", *SETTING]


def curves(frame: pd.DataFrame) -> pd.DataFrame:
    """By friction, vocabulary, setting and budget: the mean over seeds of the longest length solved. Curves over
    budgets are for the smallest vocabulary, and end where the budget of a run ends."""
    frame = chosen(frame)
    smallest = frame["task.vocab"].min()
    rows: list[dict[str, Any]] = []
    for key, group in frame.groupby(BY, dropna=False):
        common = dict(zip(BY, key, strict=True)) | {
            "tried": group["task.length"].max(),
            "step": int(group["step"].max()),
            "forward": group["forward"].max(),
            "seeds": len(longest(group)),
            "solved": group["solved"].iloc[0],
            "diverged": group.loc[group["diverged"].notna(), ["cell", "seed"]].drop_duplicates().shape[0],
        }
        costs = _costs(group)
        for cost in ("forward", "backward"):
            spent = group[cost].max()
            least = frame.loc[frame[cost] > 0, cost].min()  # the gate may buy nothing at first, or ever
            curved = common["task.vocab"] == smallest and spent > 0
            grid = np.geomspace(least, spent, BUDGETS) if curved else [spent]
            for budget in grid:
                interval = bootstrap(_longest(costs, cost, budget))
                values = {"longest": interval.mean, "longest_low": interval.low, "longest_high": interval.high}
                rows.append(common | {"cost": cost, "budget": budget} | values)
    return pd.DataFrame(rows)


def longest(frame: pd.DataFrame, cost: str = "forward", budget: float = np.inf) -> pd.Series:
    """By seed, the longest length that was solved within the budget, whatever became of shorter ones: at each length a
    seed is another network, with its own luck at birth. 0 where none was. Seeds that only another figure trained, at
    some of the lengths, are left out."""
    return _longest(_costs(frame), cost, budget)


def _costs(frame: pd.DataFrame) -> pd.DataFrame:
    """By length and seed: whether the length was solved, and what that took."""
    return cost_to_reach(frame, frame["solved"].iloc[0], ["task.length"])


def _longest(costs: pd.DataFrame, cost: str, budget: float) -> pd.Series:
    solved = costs.assign(solved=costs["reached"] & (costs[cost] <= budget * (1 + 1e-9)))
    table = solved.pivot(index="seed", columns="task.length", values="solved").dropna().astype(float)
    return (table * table.columns.to_numpy(dtype=float)).max(axis=1)


def lengths(frame: pd.DataFrame, settings: Settings, cost: str = "forward", budget: float = np.inf) -> pd.DataFrame:
    """[seed × setting]; without those whose search is not finished: whose longest length was solved, and a longer one
    is to be tried."""
    columns = {}
    for key, setting in settings.items():
        group = matching(frame, setting)
        top = group[group["task.length"] == group["task.length"].max()]
        solved = (top["error"] <= top["solved"]).any()
        if len(group) and not (solved and top["task.length"].iloc[0] < group["last"].iloc[0]):
            columns[key] = longest(group, cost, budget)
    return pd.DataFrame(columns)


def solved(frame: pd.DataFrame) -> str:
    return f"longest H with error ≤ {frame['solved'].iloc[0]:.0%}"


def descending(lengths: pd.DataFrame, grid: list[float], *orders: tuple[str, ...], suffix: str = "") -> list[Part]:
    """Whether each is above the next, at 95%."""
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    gaps = {(high, low): gap(lengths, high, low, grid) for high, low in pairs}
    return [
        (f"{style.name(high)} above {style.name(low)}{suffix}: {span(each, '+.1f')}", above(each, 0))
        for (high, low), each in gaps.items()
    ]


def grid_of(frame: pd.DataFrame) -> list[float]:
    return sorted(map(float, frame["task.length"].unique()))


def gap(lengths: pd.DataFrame, high: str, low: str, grid: list[float]) -> Interval:
    """How much longer the lengths of one are. Where a few seeds all agree their interval is a point, which says more
    than they can know (fewer than six agree by chance in more than 5% of cases): then it has room for what each would
    solve short of the next length that was tried."""
    difference = paired(lengths[high], lengths[low])
    if difference.low < difference.high or lengths[[high, low]].dropna().shape[0] >= AGREEING:
        return difference

    def beyond(solved: pd.Series) -> pd.Series:
        last = 2 * grid[-1] - grid[-2] if len(grid) > 1 else np.inf
        return solved.map(lambda length: next((each for each in grid if each > length), last))

    least, most = paired(lengths[high], beyond(lengths[low])), paired(beyond(lengths[high]), lengths[low])
    return Interval(difference.mean, least.low, most.high)


def at_least(gap: Interval) -> bool | None:
    """Whether a difference is not below zero, where its interval tells."""
    return True if gap.low >= 0 else False if gap.high < 0 else None


def means(lengths: pd.DataFrame) -> str:
    return ", ".join(f"{style.name(str(key))} {mean:.3g}" for key, mean in lengths.mean().items())


def tried(frame: pd.DataFrame) -> str:
    return ", ".join(f"{length:g}" for length in sorted(frame["task.length"].unique()))
