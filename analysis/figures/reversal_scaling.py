"""Token reversal: the longest prompt that is solved, within a budget of forward or backward passes, and by vocabulary.

Lengths are tried from the shortest on, as long as some seed solves them; solved means an error of at most `solved`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.stats import bootstrap
from analysis.tables import SETTING, chosen, cost_to_reach

BUDGETS = 25
BY = ["friction", "task.vocab", *SETTING]


def select(frame: pd.DataFrame) -> pd.DataFrame:
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
            least = frame.loc[frame["step"] > 0, cost].min()
            grid = np.geomspace(least, spent, BUDGETS) if common["task.vocab"] == smallest else [spent]
            for budget in grid:
                interval = bootstrap(_longest(costs, cost, budget))
                values = {"longest": interval.mean, "longest_low": interval.low, "longest_high": interval.high}
                rows.append(common | {"cost": cost, "budget": budget} | values)
    return pd.DataFrame(rows)


def longest(frame: pd.DataFrame, cost: str = "forward", budget: float = np.inf) -> pd.Series:
    """By seed, the longest length that was solved within the budget, as all shorter ones were; 0 where none was. Seeds
    that only another figure trained, at some of the lengths, are left out."""
    return _longest(_costs(frame), cost, budget)


def _costs(frame: pd.DataFrame) -> pd.DataFrame:
    """By length and seed: whether the length was solved, and what that took."""
    return cost_to_reach(frame, frame["solved"].iloc[0], ["task.length"])


def _longest(costs: pd.DataFrame, cost: str, budget: float) -> pd.Series:
    solved = costs.assign(solved=costs["reached"] & (costs[cost] <= budget * (1 + 1e-9)))
    table = solved.pivot(index="seed", columns="task.length", values="solved").sort_index(axis=1)
    unbroken = table.dropna().astype(float).cumprod(axis=1)
    return (unbroken * table.columns.to_numpy(dtype=float)).max(axis=1)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 3, sharey="row")
    level = style.percent(table["solved"].iloc[0])
    smallest = table["task.vocab"].min()
    for row, (name, words) in zip(grid, (("none", "clean"), ("all", "all frictions")), strict=True):
        chosen = table[table["friction"] == name]
        for axes, cost in zip(row, ("forward", "backward"), strict=False):
            small = chosen[(chosen["cost"] == cost) & (chosen["task.vocab"] == smallest)]
            plots.lines(axes, small, "budget", "longest")
            axes.set(xscale="log", title=f"{words}, M = {smallest}", xlabel=f"budget of {cost} passes per seed")
        ends = chosen[chosen["cost"] == "forward"].sort_values("budget").groupby(BY, dropna=False).tail(1)
        plots.lines(row[2], ends, "task.vocab", "longest")
        row[2].set_xscale("log", base=2)
        vocabularies = sorted(table["task.vocab"].unique())
        row[2].set_xticks(vocabularies, [f"{vocab:g}" for vocab in vocabularies])
        row[2].set(title=f"{words}, whole budget", xlabel="vocabulary M")
        row[0].set_ylabel(f"longest H with error ≤ {level}")
        row[0].set_ylim(bottom=0)
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure
