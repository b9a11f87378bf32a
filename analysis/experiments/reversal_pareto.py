"""Quality against cost on token reversal: final error against counted backward tokens, and against seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.front import FRONT, gate_dominates
from analysis.judge import ABSTRACT, JOY, claim
from analysis.settings import REVERSAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCES = ("pg", "dg", "ce")


def select(frame: pd.DataFrame) -> pd.DataFrame:
    tokens = frame.assign(backward=frame["backward_tokens"])
    return plots.pareto_table(tokens, REFERENCES, ["backward", "seconds"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    plots.pareto_panel(left, table, "backward", REFERENCES)
    plots.pareto_panel(right, table, "seconds", REFERENCES, named=False)
    left.set(xlabel="tokens in a backward graph, counted, per seed", ylabel="error 1 − E[R]")
    right.set(xscale="linear", xlim=(0, None), xlabel="seconds per seed, this machine, single thread")
    left.set_title("Token reversal: what each backward pass buys")
    right.set_title("… and each second")
    left.legend(loc="lower left", fontsize=7)
    style.note(figure, table[table["kind"] == "point"], "CE sees the answers")
    return figure


claim(
    "J12-reversal",
    f"{FRONT} (token reversal)",
    ABSTRACT,
    "reversal_pareto",
    version=JOY,
    where=REVERSAL | {"task.length": 10, "task.vocab": 2},
)(gate_dominates)
