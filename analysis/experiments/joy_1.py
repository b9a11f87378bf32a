"""Learning curves on MNIST, against forward and against backward passes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import (
    JOY,
    MARGIN,
    Finding,
    below,
    by_setting,
    cheaper,
    claim,
    costs_until,
    found,
    never,
    points,
    reaches,
    scope,
    span,
    times,
    unready,
    within,
)
from analysis.settings import DG, MNIST, PG, THREE, Settings, gate
from analysis.stats import bootstrap, paired
from analysis.tables import SETTING, aggregate, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(frame[frame["step"] > 0], [*SETTING, "step"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    for axes, cost in ((left, "forward"), (right, "backward")):
        plots.lines(axes, table, cost)
        axes.set(xscale="log", yscale="log", xlabel=f"{cost} passes per seed")
    left.set(ylabel="test error of the greedy policy", title="MNIST: per forward pass")
    right.set(title="… and per backward pass")
    left.legend(fontsize=8)
    style.note(figure, table)
    return figure


@claim(
    "J5",
    "MNIST: DG-K at 3% matches DG per forward pass and needs about 100 times fewer backward passes",
    "about 3% error; about 100×",
    "joy_1",
    version=JOY,
    where=MNIST,
)
def gate_matches_dg(frame: pd.DataFrame) -> Finding:
    """Matches: the paired difference in final error is below half a point, at 95%. Fewer: backward passes until 5%
    error, those of PG over those of DG-K (a gate of 3% that matches DG per forward pass saves 33 times against DG)."""
    errors = by_setting(frame, "error", THREE)
    if few := unready(errors, THREE):
        return few
    gap = paired(errors["gate"], errors["dg"])
    costs = costs_until(frame, THREE)
    ratios = {key: cheaper(costs, "gate", key) for key in ("pg", "dg")}
    parts = [
        (f"ends less than half a point above DG: {points(gap)}", below(gap, MARGIN)),
        (f"PG needs about 100 times as many backward passes: {times(ratios['pg'])}", reaches(ratios["pg"], 100)),
    ]
    return found(
        parts,
        f"final error {errors['gate'].mean():.2%} against DG's {errors['dg'].mean():.2%}, difference {points(gap)}; "
        f"backward passes to 5% error: DG {times(ratios['dg'])} as many, PG {times(ratios['pg'])}"
        + never(costs, THREE),
        ratios["pg"],
        **scope(frame, errors),
    )


REFERENCE = Path(__file__).parents[1] / "reference" / "points.csv"


@functools.cache
def reference() -> pd.DataFrame:
    """Numbers that others have published: analysis/reference/README.md says where each is from."""
    return pd.read_csv(REFERENCE)


@claim(
    "R1",
    "MNIST: final greedy test errors after 10,000 steps are those of the kondo-gate package's own table",
    "PG 3.44%, DG 2.67%, DG-K 3.28% (10%), 2.99% (3%), 3.40% (1%)",
    "joy_1",
    version="kondo-gate's repository, 5 seeds",
    where=MNIST | {"steps": 10_000, "task.batch": 100, "task.baseline": "confidence", "optimizer.lr": 0.001},
)
def others_measured_the_same(frame: pd.DataFrame) -> Finding:
    """Each mean error is within half a point of theirs, at 95%; theirs are taken as exact, having no interval."""
    settings: Settings = {"pg": PG, "dg": DG, "10%": gate(0.1), "3%": gate(0.03), "1%": gate(0.01)}
    table = matching(reference(), {"source": "kondo-gate", "quantity": "test_error"})
    columns = ("method.name", "gate.rate", "gate.price")
    theirs = {
        key: float(matching(table, {column: setting.get(column) for column in columns})["value"].item())
        for key, setting in settings.items()
    }
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    ours = {key: bootstrap(errors[key].dropna()) for key in settings}
    both = {key: f"{style.label(settings[key])} {span(ours[key])}, theirs {theirs[key]:.2%}" for key in settings}
    farthest = max(settings, key=lambda key: abs(ours[key].mean - theirs[key]))
    return found(
        [(f"within half a point: {both[key]}", within(ours[key], theirs[key], MARGIN)) for key in settings],
        "; ".join(both.values()),
        float(np.abs(ours[farthest].mean - theirs[farthest])),
        **scope(frame, errors),
    )
