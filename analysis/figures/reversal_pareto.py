"""Quality against cost on token reversal: final error against counted backward tokens, and against seconds."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style

REFERENCES = ("pg", "dg", "ce")


def select(frame: pd.DataFrame) -> pd.DataFrame:
    tokens = frame.assign(backward=frame["backward_tokens"])
    return plots.pareto_table(tokens, REFERENCES, ["backward", "seconds"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    plots.pareto_panel(left, table, "backward", REFERENCES)
    plots.pareto_panel(right, table, "seconds", REFERENCES, named=False)
    left.set(xlabel="tokens in a backward graph, counted, per seed", ylabel="error: share of wrong tokens")
    right.set(xscale="linear", xlim=(0, None), xlabel="seconds per seed, this machine, single thread")
    left.set_title("Token reversal: what each backward pass buys")
    right.set_title("… and each second")
    left.legend(loc="lower left", fontsize=7)
    style.note(figure, table[table["kind"] == "point"], "CE sees the answers")
    return figure
