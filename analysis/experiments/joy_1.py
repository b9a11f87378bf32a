"""Joy, Fig. 1: learning curves on MNIST, against forward and against backward passes, beside the published points.

Which error the figure shows is not said: the error of the sampled guesses at training images is the one whose curve is
nearest (experiment variants_mnist measures it). Claims read that one against the figure, and the greedy test error
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, published, style
from analysis.judge import (
    JOY,
    MARGIN,
    Finding,
    Part,
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
    share,
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

ERRORS = {
    "train_error": "error of sampled guesses, training images",
    "test_error": "error of the greedy policy, test images",
}
FIGURE = 0.03
"""ρ of the figure."""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(frame[frame["step"] > 0], [*SETTING, "step"], ("error", *ERRORS, "policy_error"))


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharey="row")
    theirs = published.published(published.JOY_PAPER, "Fig. 1", "error")
    theirs = theirs.assign(backward=theirs["forward"] * theirs["gate.rate"].fillna(1.0))
    shown = table[table["gate.rate"].isna() | (table["gate.rate"] == FIGURE)]
    for row, error in zip(grid, ERRORS, strict=True):
        for axes, cost in zip(row, ("forward", "backward"), strict=True):
            plots.lines(axes, shown if error == "train_error" else table, cost, error, se=True)
            axes.set(yscale="log", xlabel=f"{cost} passes per seed")
            if error == "train_error":
                plots.overlay(axes, theirs, cost)
        row[0].set(xscale="linear", ylabel=ERRORS[error])
        row[1].set(xscale="log")
    grid[0, 0].set(title="MNIST: per forward pass; hollow: the paper's")
    grid[0, 1].set(title="… and per backward pass")
    for axes in grid[:, 0]:
        axes.legend(fontsize=8)
    style.note(figure, table, bands="bands: one standard error (dark), 95% bootstrap intervals (light)")
    return figure


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    return published.beside(frame, published.published(published.JOY_PAPER, "Fig. 1", "error"), "train_error")


@claim(
    "J5",
    "MNIST: DG-K at 3% matches DG per forward pass and needs about 100 times fewer backward passes",
    "about 3% error; about 100×",
    "joy_1",
    version=JOY,
    where=MNIST,
)
def gate_matches_dg(frame: pd.DataFrame) -> Finding:
    """Matches: the paired difference in the final error of sampled guesses, which the figure shows, is below half a
    point, at 95%. Fewer: backward passes until 5% test error, those of PG over those of DG-K (a gate of 3% that matches
    DG per forward pass saves 33 times against DG)."""
    errors = by_setting(frame, "train_error", THREE)
    if few := unready(errors, THREE):
        return few
    tests = by_setting(frame, "error", THREE)
    gap, test_gap = (paired(each["gate"], each["dg"]) for each in (errors, tests))
    costs = costs_until(frame, THREE)
    ratios = {key: cheaper(costs, "gate", key) for key in ("pg", "dg")}
    parts = [
        (f"ends less than half a point above DG: {points(gap)}", below(gap, MARGIN)),
        (f"PG needs about 100 times as many backward passes: {times(ratios['pg'])}", reaches(ratios["pg"], 100)),
    ]
    return found(
        parts,
        f"final error {errors['gate'].mean():.2%} against DG's {errors['dg'].mean():.2%}, difference {points(gap)}, "
        f"of the greedy policy on test images {points(test_gap)}; "
        f"backward passes to 5% test error: DG {times(ratios['dg'])} as many, PG {times(ratios['pg'])}"
        + never(costs, THREE),
        ratios["pg"],
        **scope(frame, errors),
    )


CLOSE = 1.25
"""Two curves agree where they are less than a quarter apart, on average: points are read off a figure to 4%, and seeds
are others."""


@claim(
    "J5-curve",
    "MNIST: the learning curves of PG, DG and DG-K at 3% are those of Fig. 1",
    "at 1M forward passes: PG 3.6%, DG-K 2.35%, DG 1.6%",
    "joy_1",
    version=JOY,
    where=MNIST | {"steps": 10_000, "task.batch": 100, "task.baseline": "confidence"},
)
def curves_are_the_paper_s(frame: pd.DataFrame) -> Finding:
    """The distance of our mean curve from the published points, as a factor (1 is none), at 95%, of every method."""
    errors = by_setting(frame, "train_error", THREE)
    if few := unready(errors, THREE):
        return few
    theirs = published.published(published.JOY_PAPER, "Fig. 1", "error")
    parts: list[Part] = []
    words, factors = [], []
    for key, setting in THREE.items():
        away = published.spread(matching(frame, setting), published.of(theirs, setting), "train_error")
        last = float(published.of(theirs, setting).sort_values("forward")["value"].iloc[-1])
        name = style.label(setting)
        parts.append((f"{name} within a factor of {CLOSE}: {span(away, '.2f')}", below(away, CLOSE)))
        words.append(f"{name} ends at {share(errors[key].mean())}, theirs {share(last)}")
        factors.append(away)
    return found(parts, "; ".join(words), max(factors, key=lambda each: each.mean), **scope(frame, errors))


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
    table = published.published(published.PACKAGE, "table", "test_error")
    theirs = {key: float(published.of(table, setting)["value"].item()) for key, setting in settings.items()}
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


WHY = {
    "J5": (
        "In the figure itself the two curves end 0.7 points apart, as ours do: the sentence claims more than its "
        "figure. Of the factor of 100 a gate at 3% gives 33 by itself; PG would have to need three times as many steps "
        "as DG-K, and in the paper's own Fig. 3, at c = 0, it needs 1.4 times as many."
    ),
    "J5-curve": (
        "PG is ahead of the figure's from 0.3M to 0.9M passes, and level with it at both ends. Its mean is made by "
        "the seeds that leave one digit's plateau late, and how many do is a matter of initialisation, which the "
        "paper does not give."
    ),
    "R1": (
        "At ρ = 10% a single one of our 30 seeds never learns one digit, which widens the interval beyond half a "
        "point; the table has five seeds and no interval."
    ),
}
