"""Which way each method's expected update points along training, on MNIST."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.tables import aggregate

METHODS = {"pg": "pg", "is_pg": "is_pg", "dg": "dg", "dgk_price": "dgk", "dgk_rate": "dgk"}
LABELS = {"pg": "PG", "is_pg": "IS-PG (exact)", "dg": "DG", "dgk_price": "DG-K λ=0", "dgk_rate": "DG-K ρ=3%"}
GOALS = {"": "∇J", "ce_": "∇log π(y*)"}
STATES = {"clean": "own samples", "mixed": "contaminated"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (trajectory, step): the cosines with their intervals."""
    columns = [f"cos_{goal}{name}_{state}" for goal in GOALS for name in METHODS for state in STATES]
    return aggregate(frame, ["method.name", "step"], ["error", *columns])


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharex=True, sharey=True)
    course = table[(table["method.name"] == "dg") & (table["step"] > 0)]
    for row, (goal, goal_name) in zip(grid, GOALS.items(), strict=True):
        for axes, (state, state_name) in zip(row, STATES.items(), strict=True):
            for name, method in METHODS.items():
                y = f"cos_{goal}{name}_{state}"
                dash = ":" if name == "dgk_price" else "-"
                colour = style.colour(method)
                axes.fill_between(
                    course["step"], course[f"{y}_low"], course[f"{y}_high"], color=colour, alpha=0.15, lw=0
                )
                axes.plot(course["step"], course[y], color=colour, ls=dash, label=LABELS[name])
            axes.set(xscale="log", title=f"cosine with {goal_name}, {state_name}")
    for axes in grid[1]:
        axes.set_xlabel("step of a DG run")
    grid[0, 0].legend(fontsize=7.5)
    style.note(figure, table, "half of the contaminated samples are uniformly random")
    return figure
