"""Token reversal for all or nothing (κ = 0), with one update per batch and with four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import MARGIN, Finding, above, below, by_setting, claim, found, points, scope, share, unready
from analysis.settings import DG, PG, REVERSAL, Settings, answers, method
from analysis.stats import bootstrap, paired
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = (1, 4)
METHODS: Settings = {"pg": PG, "ppo": method("ppo"), "dg": DG, "dgk": answers(0.03)}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(frame[frame["step"] > 0], [*SETTING, "optimizer.epochs", "step"])


def plot(table: pd.DataFrame) -> Figure:
    figure, row = plots.panels(1, 2, sharey=True)
    for axes, epochs in zip(row, EPOCHS, strict=True):
        plots.lines(axes, table[table["optimizer.epochs"] == epochs], "forward")
        title = f"κ = 0, {epochs} update{'s' if epochs > 1 else ''} per batch"
        axes.set(xscale="log", yscale="log", xlabel="forward passes per seed", title=title)
    row[0].set_ylabel("share of wrong answers")
    row[0].legend(fontsize=8)
    style.note(figure, table)
    return figure


@claim(
    "T1",
    "Reversal, all or nothing: DG ends above PPO; and with four updates per batch DG ends far above itself with one",
    "four epochs: DG at 48%, against 2% with one; another optimiser and other sizes",
    "terminal_reward",
    version="2604.06159",
    where=REVERSAL | {"task.kappa": 0.0},
)
def dg_fails_on_terminal_rewards(frame: pd.DataFrame) -> Finding:
    """Above: the paired difference in final error is more than half a point, at 95%. Far above: DG with four updates
    ends above 10%, and with one below it."""
    settings: Settings = {
        f"{key} {epochs}": {**own, "optimizer.epochs": epochs} for key, own in METHODS.items() for epochs in EPOCHS
    }
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gaps = {epochs: paired(errors[f"dg {epochs}"], errors[f"ppo {epochs}"]) for epochs in EPOCHS}
    once, often = (bootstrap(errors[f"dg {epochs}"].dropna()) for epochs in EPOCHS)
    return found(
        [
            *((f"DG above PPO, {epochs} per batch: {points(gap)}", above(gap, MARGIN)) for epochs, gap in gaps.items()),
            (f"DG with one update below 10%: {share(once.mean)}", below(once, 0.1)),
            (f"DG with four above 10%: {share(often.mean)}", above(often, 0.1)),
        ],
        "; ".join(
            f"{epochs} per batch: "
            + ", ".join(f"{style.name(key)} {share(errors[f'{key} {epochs}'].mean())}" for key in METHODS)
            for epochs in EPOCHS
        ),
        gaps[1],
        **scope(frame, errors),
    )
