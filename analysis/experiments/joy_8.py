"""Learning curves on token reversal, against forward and against backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    times,
    unready,
)
from analysis.settings import ALL, OTHERS, REVERSAL, answers
from analysis.stats import paired
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


@claim(
    "J9",
    "Reversal, H = 10, M = 2: DG-K at 3% tracks DG per forward pass, needs far fewer backward passes, and PG, PPO and "
    "PMPO are far behind",
    "shown in Fig. 8",
    "joy_8",
    version=JOY,
    where=REVERSAL | {"task.length": 10, "task.vocab": 2},
)
def gate_tracks_dg(frame: pd.DataFrame) -> Finding:
    """Tracks: the paired difference in final error is below half a point, at 95%. Far fewer: backward passes until 5%
    error are 33 times fewer than DG's, or near. Behind: final errors more than half a point above DG-K's, at 95%."""
    settings = {"gate": answers(0.03), **ALL}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gap = paired(errors["gate"], errors["dg"])
    two = {key: settings[key] for key in ("gate", "dg")}
    spent = costs_until(frame, two)
    fewer = cheaper(spent, "gate", "dg")
    behind = {key: paired(errors["gate"], errors[key]) for key in OTHERS}
    parts = [
        (f"ends less than half a point above DG: {points(gap)}", below(gap, MARGIN)),
        (f"DG needs about 33 times as many backward passes: {times(fewer)}", reaches(fewer, 33)),
        *(
            (f"ends more than half a point below {style.name(key)}: {points(each)}", below(each, -MARGIN))
            for key, each in behind.items()
        ),
    ]
    return found(
        parts,
        f"final error {errors['gate'].mean():.2%} against DG's {errors['dg'].mean():.2%}, difference {points(gap)}; "
        f"backward passes to 5% error: DG {times(fewer)} as many; "
        + ", ".join(f"{style.name(key)} ends at {errors[key].mean():.1%}" for key in OTHERS)
        + never(spent, two),
        fewer,
        **scope(frame, errors),
    )
