"""The weight that each method puts on a sample's policy gradient, by advantage and by probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.studies import note, spread, unfold

PROB, ADVANTAGE = 0.1, 0.5
"""Where the cuts are made."""
DASHES = {(0.0, "hard", 0.1): "-", (0.5, "hard", 0.1): "--", (0.0, "bernoulli", 1.0): ":",
          (0.0, "bernoulli", 0.1): "-.", (0.5, "bernoulli", 0.1): (0, (4, 1, 1, 1, 1, 1))}  # fmt: skip


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, gate, U, π)."""
    for column in ("gate.mode", "gate.temperature"):
        frame = frame if column in frame else frame.assign(**{column: np.nan})
    rows = unfold(frame, ["advantage", "prob", "weight", "weight_simulated"])
    by = ["method.name", "gate.price", "gate.mode", "gate.temperature", "advantage", "prob"]
    return spread(rows, by, ["weight"], ["weight_simulated"])


def label(row: Mapping[Any, Any]) -> str:
    """DG-K λ=0.5, coin η=0.1"""
    if row["method.name"] != "dgk":
        return style.name(row["method.name"])
    coin = f", coin η={row['gate.temperature']:g}" if row["gate.mode"] == "bernoulli" else ""
    return f"DG-K λ={row['gate.price']:g}{coin}"


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(1, 3, sharey=True)
    figure.set_size_inches(11.5, 3.9)
    cuts = [
        ("advantage", table[np.isclose(table["prob"], PROB)], "advantage U", f"π(a) = {PROB:g}"),
        ("prob", table[np.isclose(table["advantage"], ADVANTAGE)], "probability π(a)", f"U = +{ADVANTAGE:g}"),
        ("prob", table[np.isclose(table["advantage"], -ADVANTAGE)], "probability π(a)", f"U = −{ADVANTAGE:g}"),
    ]
    for axes, (x, rows, words, title) in zip(grid, cuts, strict=True):
        for _, group in rows.groupby(["method.name", "gate.price", "gate.mode", "gate.temperature"], dropna=False):
            first = group.iloc[0].to_dict()
            colour = style.colour(first["method.name"])
            dash: Any = DASHES.get((first["gate.price"], first["gate.mode"], first["gate.temperature"]), "-")
            hard = first["gate.mode"] == "hard"
            group = group.sort_values(x)
            draw = "steps-mid" if hard else "default"
            axes.plot(group[x], group["weight"], color=colour, ls=dash, drawstyle=draw, label=label(first))
            if first["gate.mode"] == "bernoulli":
                mean, low, high = (group[f"weight_simulated{end}"] for end in ("", "_low", "_high"))
                axes.errorbar(group[x], mean, [mean - low, high - mean], fmt="o", color=colour, ms=2.5, lw=1)
        axes.set(xlabel=words, title=title, ylim=(-0.04, 1.08))
    grid[0].set_ylabel("expected weight w of w·U·∇log π")
    grid[1].set_xscale("log")
    grid[2].set_xscale("log")
    grid[2].legend(fontsize=7.5, loc="center left")
    note(figure, table)
    return figure
