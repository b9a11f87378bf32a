"""Token reversal under all frictions: the longest prompt that is solved, within a budget and by vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import lengths, plots, style
from analysis.judge import DIST, Finding, claim, found, scope, unready
from analysis.settings import LEVEL, REVERSAL, ROUGH, under

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return lengths.curves(frame)


def plot(table: pd.DataFrame) -> Figure:
    figure, row = plots.panels(1, 3, sharey=True)
    smallest = table["task.vocab"].min()
    for axes, cost in zip(row, ("forward", "backward"), strict=False):
        small = table[(table["cost"] == cost) & (table["task.vocab"] == smallest)]
        plots.lines(axes, small, "budget", "longest")
        axes.set(xscale="log", title=f"All frictions, M = {smallest}", xlabel=f"budget of {cost} passes per seed")
    ends = table[table["cost"] == "forward"].sort_values("budget").groupby(lengths.BY, dropna=False).tail(1)
    plots.lines(row[2], ends, "task.vocab", "longest")
    row[2].set_xscale("log", base=2)
    vocabularies = sorted(table["task.vocab"].unique())
    row[2].set_xticks(vocabularies, [f"{vocab:g}" for vocab in vocabularies])
    row[2].set(title="Whole budget", xlabel="vocabulary M")
    row[0].set_ylabel(f"longest H with error ≤ {style.percent(table['solved'].iloc[0])}")
    row[0].set_ylim(bottom=0)
    row[0].legend(fontsize=8)
    style.note(figure, table)
    return figure


@claim(
    "D6",
    "Reversal with all four frictions, M = 2: DG solves longer prompts than PMPO, PMPO than PPO, PPO than PG",
    "after 10,000 steps PG about 3.5, PPO about 5, PMPO about 8, DG about 13",
    "reversal_scaling",
    version=DIST,
    where=REVERSAL,
)
def dg_goes_farthest_under_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.3. Each relation of the order is a part of the claim."""
    every = under(frame, "all", LEVEL)
    rough = every[every["task.vocab"] == 2]
    solved = lengths.lengths(rough, ROUGH)
    if few := unready(solved, ROUGH):
        return few
    grid = lengths.grid_of(rough)
    return found(
        lengths.descending(solved, grid, ("dg", "pmpo", "ppo", "pg")),
        f"{lengths.solved(rough)}: {lengths.means(solved)} (lengths tried: {lengths.tried(rough)})"
        + "".join(
            f"; M = {vocab:g}: {lengths.means(lengths.lengths(group, ROUGH))}"
            for vocab, group in every.groupby("task.vocab")
            if vocab != 2
        ),
        lengths.gap(solved, "dg", "pmpo", grid),
        **scope(rough, solved),
    )
