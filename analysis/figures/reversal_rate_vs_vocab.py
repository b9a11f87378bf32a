"""Token reversal: a fixed rate against λ = 0 as the vocabulary grows."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate


def select(frame: pd.DataFrame) -> pd.DataFrame:
    table = aggregate(final(frame), [*SETTING, "task.vocab"])
    return table.assign(share=table["backward"] / table["forward"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2)
    plots.lines(left, table, "task.vocab")
    plots.floor(left, table["error"])
    left.set(ylabel="final error: share of wrong tokens", title="Token reversal: rates and a price")
    left.legend(fontsize=8)
    shares = table.assign(share_low=table["share"], share_high=table["share"])
    plots.lines(right, shares, "task.vocab", "share")
    right.set(yscale="log", ylabel="share of answers in the graph", title="… and what they keep")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(table["task.vocab"].unique()), [str(m) for m in sorted(table["task.vocab"].unique())])
        axes.set_xlabel("M: size of the vocabulary")
    style.note(figure, table)
    return figure
