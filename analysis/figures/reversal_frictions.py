"""Frictions by intensity, on token reversal: each alone, actor bugs with junk punished as well, and all together."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate, chosen, matching

PANELS = {
    "staleness": ("Staleness, age uniform on 0..D", "intensity: D over its longest"),
    "actor_bugs": ("Actor bugs", "share of junk answers q"),
    "penalised_bugs": ("Actor bugs, junk loses 1", "share of junk answers q"),
    "reward_corruption": ("Reward corruption", "share of coin-flip rewards q"),
    "rare_discovery": ("Rare discovery", "1 − κ"),
    "all": ("All four", "intensity"),
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors by friction and intensity, their means and every seed; the clean runs are every friction's
    intensity 0."""
    ends = final(chosen(frame))
    clean = [ends[ends["friction"] == "none"].assign(friction=name) for name in PANELS]
    every = pd.concat([ends[ends["friction"] != "none"], *clean])
    by = ["friction", *SETTING, "intensity"]
    means = aggregate(every, by).assign(kind="mean", length=int(every["task.length"].max()))
    return pd.concat([means, every[[*by, "seed", "error"]].assign(kind="seed")], ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 3, sharey=True)
    means, seeds = table[table["kind"] == "mean"], table[table["kind"] == "seed"]
    means = means.astype({"seeds": int, "step": int, "length": int})  # the rows of seeds have none
    for axes, (name, (title, xlabel)) in zip(grid.flat, PANELS.items(), strict=True):
        groups = means[means["friction"] == name].groupby(SETTING, dropna=False)
        for place, (_, group) in enumerate(groups):
            setting = {str(key): None if pd.isna(value) else value for key, value in group[SETTING].iloc[0].items()}
            shift = 0.008 * (place - (len(groups) - 1) / 2)  # side by side
            each = matching(seeds, {**setting, "friction": name})
            look = {"color": style.colour(str(setting["method.name"])), "label": style.label(setting)}
            axes.plot(group["intensity"] + shift, group["error"], **look)
            axes.plot(each["intensity"] + shift, each["error"], "o", ms=2.5, alpha=0.5, color=look["color"])
        axes.set(yscale="log", xlabel=xlabel, title=title)
    for axes in grid[:, 0]:
        axes.set_ylabel("final error, clean: share of wrong tokens")
    grid[0, 2].legend(fontsize=7)
    length = means["length"].iloc[0]
    style.note(
        figure, means, f"H = {length}; lines: means; dots: seeds; IS-PG without a cap: per token; by answer: cap 10", ""
    )
    return figure
