"""Which way each method's expected update points along training, on MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import INCONCLUSIVE, MIN_SEEDS, NOT_RUN, WITHDRAWN, Finding, above, below, claim, found, span
from analysis.load import final
from analysis.settings import DG, MNIST, describe
from analysis.stats import paired
from analysis.tables import aggregate, check_unique, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@claim(
    "D2",
    "MNIST: as the policy improves under contamination, PG's expected update turns away from ∇J and DG's towards it",
    "shown for bandits and MNIST",
    "mnist_alignment",
    version=WITHDRAWN,
    where=MNIST,
)
def dg_aligns(frame: pd.DataFrame) -> Finding:
    """Along a DG run, from the first evaluation with less than half the samples wrong to the last."""
    course = matching(frame, DG)
    course = course[course["step"] > 0]
    if final(course).empty:
        return Finding(NOT_RUN, f"no runs of {describe(DG)}")
    check_unique(course, ["step"])
    starts = course[course["policy_error"] < 0.5].groupby("seed")["step"].min()
    if len(starts) < MIN_SEEDS:
        return Finding(INCONCLUSIVE, f"{len(starts)} seeds of DG got below half, {MIN_SEEDS} needed", seeds=len(starts))
    ends = final(course).set_index("seed")
    begun = course.set_index(["seed", "step"]).loc[list(starts.items())].reset_index("step")
    turns = {key: paired(ends[f"cos_{key}_mixed"], begun[f"cos_{key}_mixed"]) for key in ("pg", "dg")}
    parts = [
        (f"PG's cosine falls: {span(turns['pg'], '+.2f')}", below(turns["pg"], 0)),
        (f"DG's rises: {span(turns['dg'], '+.2f')}", above(turns["dg"], 0)),
    ]
    return found(
        parts,
        "; ".join(
            f"{style.name(key)}: from {begun[f'cos_{key}_mixed'].mean():.2f} to {ends[f'cos_{key}_mixed'].mean():.2f}, "
            f"change {span(turn, '.2f')}"
            for key, turn in turns.items()
        ),
        turns["dg"],
        seeds=len(starts),
        steps=int(frame["steps"].max()),
    )
