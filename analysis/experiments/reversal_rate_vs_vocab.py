"""Token reversal: a fixed rate against λ = 0 as the vocabulary grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import JOY, MARGIN, Finding, below, by_setting, claim, found, points, possible, scope, unready
from analysis.load import final
from analysis.settings import DG, REVERSAL, Settings, answers
from analysis.stats import paired
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    table = aggregate(final(frame), [*SETTING, "task.vocab"])
    return table.assign(share=table["backward"] / table["forward"])


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2)
    plots.lines(left, table, "task.vocab")
    plots.floor(left, table["error"])
    left.set(ylabel="final error 1 − E[R]", title="Token reversal: rates and a price")
    left.legend(fontsize=8)
    shares = table.assign(share_low=table["share"], share_high=table["share"])
    plots.lines(right, shares, "task.vocab", "share")
    right.set(yscale="log", ylabel="share of answers in the graph", title="… and what they keep")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(table["task.vocab"].unique()), [str(m) for m in sorted(table["task.vocab"].unique())])
        axes.set_xlabel("M: size of the vocabulary")
    style.note(figure, table)
    return figure


@claim(
    "J11",
    "Reversal: a fixed ρ is too aggressive for large M; λ = 0 adapts",
    "shown in a figure",
    "reversal_rate_vs_vocab",
    version=JOY,
    where=REVERSAL,
)
def price_adapts(frame: pd.DataFrame) -> Finding:
    """At the largest vocabulary: ρ = 3% ends above λ = 0, and λ = 0 less than half a point above DG, both at 95%."""
    largest = frame["task.vocab"].max()
    settings: Settings = {"dg": DG, "rate": answers(0.03), "price": answers(None, 0.0)}
    errors = by_setting(frame[frame["task.vocab"] == largest], "error", settings)
    if few := unready(errors, settings):
        return few
    rate, price = paired(errors["price"], errors["rate"]), paired(errors["price"], errors["dg"])
    parts = [
        (f"λ = 0 below ρ = 3%: {points(rate)}", below(rate, 0)),
        (f"λ = 0 less than half a point above DG: {points(price)}", below(price, MARGIN)),
    ]
    return found(
        parts,
        f"M = {largest}: "
        + ", ".join(f"{style.label(setting)} {errors[key].mean():.1%}" for key, setting in settings.items())
        + f"; λ = 0 less ρ = 3%: {points(rate)}; λ = 0 less DG: {points(price)}",
        possible(rate),
        **scope(frame, errors),
    )
