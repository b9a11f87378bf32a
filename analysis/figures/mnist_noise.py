"""How well delight must be known, on MNIST: noise on it, and screens that only approximate the policy."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(final(frame), [*SETTING, "screen.source", "screen.age", "screen.noise"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2)
    plots.lines(left, table[table["screen.source"] == "exact"], "screen.noise")
    left.set(yscale="log", xlabel="relative noise σ in delight: χ·(1 + σε)", ylabel="final test error")
    left.set_title("MNIST: noisy delight")
    left.legend(fontsize=8)
    screens = table[table["screen.noise"] == 0].sort_values(["screen.source", "screen.age", "method.name"])
    names = [
        f"{style.name(row['method.name'])}, {row['screen.source']}"
        + (f" {row['screen.age']:g} steps old" if row["screen.source"] == "snapshot" else "")
        for row in screens.to_dict("records")
    ]
    plots.dots(right, screens, names, [style.colour(method) for method in screens["method.name"]])
    right.tick_params(axis="y", labelsize=7.5)
    plots.log_percent(right)
    right.set(xlabel="final test error", title="… and approximate screens")
    style.note(figure, table)
    return figure
