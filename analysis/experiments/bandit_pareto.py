"""Quality against cost on the contextual bandit: final error against counted backward passes, over rates and prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.front import FRONT, gate_dominates
from analysis.judge import ABSTRACT, JOY, claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


claim(
    "J12-bandit",
    f"{FRONT} (contextual bandit)",
    ABSTRACT,
    "bandit_pareto",
    version=JOY,
    where={"task.name": "bandit"},
)(gate_dominates)


WHY = {
    "J12-bandit": (
        "Once the right arm is likely PG learns from its failures, which are few and strong. A gate keeps what was "
        "better than expected: at any rate it spends its budget on successes of which the policy is sure already, so "
        "that from 3% on chance, which meets failures too, does better at the same price."
    ),
}
