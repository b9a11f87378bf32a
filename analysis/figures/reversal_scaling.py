"""Token reversal: the longest prompt that is solved within a budget of forward or backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.stats import bootstrap
from analysis.tables import SETTING, cost_to_reach

SOLVED = 0.05
"""A length is solved once the error is at most this."""
BUDGETS = 25


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """By friction, setting and budget: the mean over seeds of the longest length solved."""
    frame = frame.assign(friction=frame["friction"].where(frame["friction"] == "none", "all"))
    rows: list[dict[str, Any]] = []
    for cost in ("forward", "backward"):
        grid = np.geomspace(frame.loc[frame["step"] > 0, cost].min(), frame[cost].max(), BUDGETS)
        for key, group in frame.groupby(["friction", *SETTING], dropna=False):
            common = dict(zip(["friction", *SETTING], key, strict=True))
            spent, reached = group[cost].max(), cost_to_reach(group, SOLVED, ["task.length"])
            for budget in [*grid[grid <= spent * (1 + 1e-9)], *([spent] if spent < grid[-1] else [])]:
                interval = bootstrap(longest_of(reached, cost, budget))
                rows.append(
                    common
                    | {"cost": cost, "budget": budget}
                    | {"longest": interval.mean, "longest_low": interval.low, "longest_high": interval.high}
                    | {"step": int(group["step"].max()), "forward": group["forward"].max()}
                    | {"seeds": group["seed"].nunique(), "diverged": 0}
                )
    return pd.DataFrame(rows)


def longest(frame: pd.DataFrame, cost: str = "forward", budget: float = np.inf) -> pd.Series:
    """By seed, the longest length that was solved within the budget, as all shorter ones were; 0 where none was."""
    return longest_of(cost_to_reach(frame, SOLVED, ["task.length"]), cost, budget)


def longest_of(spent: pd.DataFrame, cost: str, budget: float) -> pd.Series:
    """The same, from what each seed had spent when it solved each length."""
    spent = spent.assign(solved=spent["reached"] & (spent[cost] <= budget))
    table = spent.pivot(index="seed", columns="task.length", values="solved").sort_index(axis=1)
    unbroken = table.astype(float).fillna(0).cumprod(axis=1)
    return (unbroken * table.columns.to_numpy(dtype=float)).max(axis=1)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharey=True)
    for row, (name, words) in zip(grid, (("none", "clean"), ("all", "all frictions")), strict=True):
        for axes, cost in zip(row, ("forward", "backward"), strict=True):
            chosen = table[(table["friction"] == name) & (table["cost"] == cost)]
            plots.lines(axes, chosen, "budget", "longest")
            axes.set(xscale="log", title=f"Token reversal, {words}", xlabel=f"budget of {cost} passes per seed")
        row[0].set_ylabel(f"longest H with error ≤ {style.percent(SOLVED)}")
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure
