"""Frictions by intensity, on MNIST: actor bugs, reward corruption, rare discovery, and all of them with staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate, chosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "actor_bugs": ("Actor bugs", "share of junk actions q"),
    "reward_corruption": ("Reward corruption", "share of coin-flip rewards q"),
    "rare_discovery": ("Rare discovery", "share of arms that never pay, beyond the ten digits"),
    "all": ("All, with staleness D = 1000·intensity", "intensity"),
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors by friction and intensity, as they were asked for."""
    return aggregate(final(chosen(frame)), ["friction", *SETTING, "intensity"])


def measured(table: pd.DataFrame) -> str:
    """Final errors at the lowest intensity, in words."""
    mildest = table[table["intensity"] == table["intensity"].min()]
    return f"final test errors at intensity {mildest['intensity'].iloc[0]:g}: " + "; ".join(
        f"{PANELS[friction][0].partition(',')[0].lower()}: {plots.errors(group)}"
        for friction, group in mildest.groupby("friction")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharey=True)
    for axes, (name, (title, xlabel)) in zip(grid.flat, PANELS.items(), strict=True):
        plots.lines(axes, table[table["friction"] == name], "intensity")
        axes.set(yscale="log", xlabel=xlabel, title=title)
    for axes in grid[:, 0]:
        axes.set_ylabel("final test error, clean")
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure
