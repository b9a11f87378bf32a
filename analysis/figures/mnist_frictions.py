"""Frictions by intensity, on MNIST: actor bugs, reward corruption, rare discovery, and all of them with staleness."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate

PANELS = {
    "actor_bugs": ("Actor bugs", "share of junk actions q"),
    "reward_corruption": ("Reward corruption", "share of coin-flip rewards q"),
    "rare_discovery": ("Rare discovery", "share of arms that never pay, beyond the ten digits"),
    "all": ("All, with staleness D = 1000·intensity", "intensity"),
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    single = frame["friction"].isin(PANELS)
    frame = frame.assign(friction=frame["friction"].where(single, "all"), intensity=intensity(frame))
    return aggregate(final(frame), ["friction", *SETTING, "intensity"])


def intensity(frame: pd.DataFrame) -> pd.Series:
    """The one number behind a run's frictions, from whichever it has."""
    probs = [frame[f"friction.{name}.prob"] for name in ("actor_bugs", "reward_corruption")]
    arms = 1 - 10 / frame["friction.rare_discovery.arms"]
    return probs[0].fillna(probs[1]).fillna(arms).round(1)


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
