"""Learning curves on token reversal, against forward and against backward passes."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.tables import SETTING, aggregate


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(frame[frame["step"] > 0], [*SETTING, "step"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    for axes, cost in ((left, "forward"), (right, "backward")):
        plots.lines(axes, table, cost)
        plots.floor(axes, table["error"])
        axes.set(xscale="log", xlabel=f"{cost} passes (answers) per seed")
    left.set(ylabel="error: share of wrong tokens", title="Token reversal: per forward pass")
    right.set(title="… and per backward pass")
    left.legend(fontsize=7.5)
    style.note(figure, table, "CE sees the answers")
    return figure
