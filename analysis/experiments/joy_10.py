"""Joy, Fig. 10: the longest prompt with a reward above 0.75, within a budget of forward or backward passes, beside the
published points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import lengths, plots, published, style
from analysis.judge import JOY, Finding, claim, found, scope, span, unready
from analysis.load import final
from analysis.settings import ALL, REVERSAL, answers
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return lengths.curves(frame)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(1, 2, sharey=True)
    theirs = published.published(published.JOY_PAPER, "Fig. 10", "longest_length")
    theirs = theirs.assign(backward=theirs["forward"] * theirs["gate.rate"].fillna(1.0))
    for axes, cost in zip(grid, ("forward", "backward"), strict=True):
        plots.lines(axes, table[table["cost"] == cost], "budget", "longest")
        shown = theirs[theirs["forward"] > 0]
        plots.overlay(axes, shown if cost == "forward" else shown[shown["gate.price"].isna()], cost)
        axes.set(xscale="log", xlabel=f"budget of {cost} passes per seed", ylim=(0, None))
    grid[0].set_ylabel("H*: longest H with reward > 0.75")
    grid[0].set_title("Reversal, prefix reward; hollow: the paper's")
    grid[1].set_title("… and by backward passes")
    grid[0].legend(fontsize=8)
    style.note(figure, table)
    return figure


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    theirs = published.published(published.JOY_PAPER, "Fig. 10", "longest_length")

    def ours(point: pd.Series) -> float:
        runs = published.of(frame, point.to_dict())
        reached = point["forward"] <= runs["forward"].max()
        return float(lengths.longest(runs, "forward", point["forward"]).mean()) if reached else np.nan

    both = theirs.assign(ours=theirs.apply(ours, axis=1))
    return published.compared(both.rename(columns={"forward": "forward passes"}))


@claim(
    "J10",
    "Reversal, M = 2: the longest H solved within a budget is DG-K ≥ DG ≫ PMPO > PPO > PG, by forward and by backward "
    "passes",
    "at 1M forward passes: DG-K 29.2 (3%) and 28.3 (λ = 0), DG 26.5, PMPO 18.3, PG 16.9, PPO 16.7",
    "joy_10",
    version=JOY,
    where=REVERSAL | {"task.vocab": 2, "task.credit": "to_first_error", "task.kappa": 1.0},
)
def gate_goes_farthest(frame: pd.DataFrame) -> Finding:
    """By forward passes each relation of the order is a part of the claim, PPO and PG counting as one, as they are on
    policy; by backward passes, compared at what DG-K spent in all, that DG-K is above DG or equal, and above each of
    the others."""
    settings = {"dgk": answers(0.03), **ALL}
    solved = lengths.lengths(frame, settings)
    if few := unready(solved, settings):
        return few
    budget = float(final(matching(frame, settings["dgk"]))["backward"].max())
    within = lengths.lengths(frame, settings, "backward", budget)
    grid = lengths.grid_of(frame)
    gap, spared = lengths.gap(solved, "dgk", "dg", grid), lengths.gap(within, "dgk", "dg", grid)
    parts = [
        (f"DG-K at least DG, by forward passes: {span(gap, '+.1f')}", lengths.at_least(gap)),
        *lengths.descending(solved, grid, ("dg", "pmpo", "pg"), suffix=", by forward passes"),
        (f"DG-K at least DG, by backward passes: {span(spared, '+.1f')}", lengths.at_least(spared)),
        *lengths.descending(
            within, grid, ("dgk", "pmpo"), ("dgk", "ppo"), ("dgk", "pg"), suffix=", by backward passes"
        ),
    ]
    return found(
        parts,
        f"{lengths.solved(frame)}: {lengths.means(solved)}; within {budget:,.0f} backward passes: "
        f"{lengths.means(within)} (lengths tried: {lengths.tried(frame)})",
        gap,
        **scope(frame, solved),
    )


WHY = {
    "J10": (
        "The gate goes farthest, as in the figure. DG does not keep up: from H = 16 on some of its seeds are sure "
        "of a wrong answer early and stay there, while the gate, which never lowers an answer, goes on exploring; "
        "with three seeds at a length, each another network, the difference is left open. PMPO gets nearly as far "
        "as the gate, where the figure's ends beside PG, for the reason of J9-pmpo. What does not get stuck is "
        "solved in a quarter to a third of the figure's passes; how its lengths were trained, each anew or one "
        "after the other, is not known."
    ),
}
