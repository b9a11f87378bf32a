"""Speculative screening: a cheaper pass finds what is worth a backward pass of the transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN = ["screen.source", "screen.age", "screen.noise"]
WORDS = {
    "exact": "exact",
    "int8": "8-bit weights",
    "draft": "distilled draft, 1 layer",
    "blind": "no screen: by advantage",
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per screen: the final error, and the recall over all evaluations but the first, before any training."""
    recall = frame[frame["step"] > 0].groupby(["cell", "seed"])["recall"].mean()
    ends = final(frame).drop(columns="recall").join(recall, on=["cell", "seed"])
    table = aggregate(ends, [*SCREEN, "gate.rate"], ("error", "recall"))
    return table.assign(label=[label(row) for row in table.to_dict("records")]).sort_values("recall", ascending=False)


def label(row: Mapping[Any, Any]) -> str:
    if row["screen.noise"] > 0:
        return f"noise, σ = {row['screen.noise']:g}"
    if row["screen.source"] == "snapshot":
        return f"weights {row['screen.age']:g} steps old"
    kind, _, layers = row["screen.source"].partition("_")
    if kind == "truncated":
        return "first layer" if layers == "1" else f"first {layers} layers"
    return WORDS.get(kind, row["screen.source"])


def measured(table: pd.DataFrame) -> str:
    """How much of what exact delight keeps each screen finds, and the final error, in words."""
    return "recall and final error: " + "; ".join(
        f"{row['label']} {row['recall']:.0%}, {plots.error(row)}" for row in table.to_dict("records")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    places = range(len(table))
    for axes, value in ((left, "recall"), (right, "error")):
        spread = [table[value] - table[f"{value}_low"], table[f"{value}_high"] - table[value]]
        axes.errorbar(table[value], list(places), xerr=spread, fmt="o", color=style.colour("dgk"), capsize=2)
    left.set_yticks(list(places), list(table["label"]))
    left.invert_yaxis()
    rate = table["gate.rate"].iloc[0]
    left.axvline(rate, color="black", ls=":", lw=1.2)
    left.annotate("chance", (rate, 0.5), (4, 0), textcoords="offset points", fontsize=7.5)
    for found in table.loc[table["screen.source"] == "blind", "recall"]:
        left.axvline(found, color="black", ls="--", lw=1)
        text = {"textcoords": "offset points", "fontsize": 7.5, "ha": "right"}
        left.annotate("by advantage", (found, 0.5), (-4, 0), **text)
    left.set(xlim=(0, 1.03), xlabel="recall: share of what exact delight would keep", title="What the screen finds")
    wide = table["error_high"].max() > 10 * table["error_low"].min()
    right.set(xscale="log" if wide else "linear", xlabel="final error", title="… and what is learned from it")
    style.note(figure, table, f"DG-K ρ={style.percent(rate)}")
    return figure
