"""Quality against cost on the contextual bandit: final error against counted backward passes, over rates and prices."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style

REFERENCES = ("pg", "dg")


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return plots.pareto_table(frame, REFERENCES, ["backward"])


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plots.panels(1, 1)
    plots.pareto_panel(axes, table, "backward", REFERENCES)
    axes.set(xlabel="backward passes, counted, per seed", ylabel="error 1 − π(y*)")
    axes.set_title("Contextual bandit: what each backward pass buys")
    axes.legend(loc="lower left", fontsize=8)
    style.note(figure, table[table["kind"] == "point"], "lines: PG, DG on their way")
    return figure
