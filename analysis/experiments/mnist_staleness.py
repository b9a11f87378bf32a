"""An actor whose parameters are D steps old, on MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import (
    DIST,
    WITHDRAWN,
    Finding,
    below,
    by_setting,
    claim,
    found,
    points,
    possible,
    reaches,
    scope,
    span,
    times,
    unready,
)
from analysis.load import final
from analysis.settings import MNIST, Settings, method
from analysis.stats import bootstrap, factor, paired
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors by delay, and the learning curves at the longest."""
    column = "friction.staleness.delay"
    delay = frame[column].fillna(0) if column in frame else pd.Series(0.0, frame.index)
    frame = frame.assign(delay=delay)
    ends = aggregate(final(frame), [*SETTING, "delay"]).assign(kind="end")
    stalest = frame[(frame["delay"] == frame["delay"].max()) & (frame["step"] > 0)]
    return pd.concat([ends, aggregate(stalest, [*SETTING, "delay", "step"]).assign(kind="curve")], ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharey=True)
    curves, ends = table[table["kind"] == "curve"], table[table["kind"] == "end"]
    plots.lines(left, curves, "forward")
    left.set(xscale="log", yscale="log", xlabel="forward passes per seed", ylabel="test error of the greedy policy")
    left.set_title(f"MNIST: an actor D = {curves['delay'].max():g} steps behind")
    plots.lines(right, ends, "delay")
    right.set(yscale="log", xlabel="D: age of the actor's parameters, steps", title="… and the end, by D")
    right.set_xscale("symlog", linthresh=10)
    left.legend(fontsize=8)
    style.note(figure, table)
    return figure


def _stale(delay: float) -> Settings:
    return {key: method(key, **{"friction.staleness.delay": delay}) for key in ("pg", "is_pg", "dg")}


@claim(
    "D1",
    "MNIST, actor 1,000 steps behind: REINFORCE fails, importance sampling is in between, DG learns, with no behaviour "
    "probabilities",
    "IS-PG about 8%, DG about 2% after 10,000 steps",
    "mnist_staleness",
    version=DIST,
    where=MNIST,
)
def dg_survives_staleness(frame: pd.DataFrame) -> Finding:
    """DG's error is below IS-PG's and IS-PG's below PG's, at 95%; PG's is about five times DG's or more; DG's is below
    4%."""
    settings = _stale(1000)
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    ahead, between = paired(errors["dg"], errors["is_pg"]), paired(errors["is_pg"], errors["pg"])
    fails, learns = factor(errors["pg"], errors["dg"]), bootstrap(errors["dg"].dropna())
    parts = [
        (f"DG below IS-PG: {points(ahead)}", below(ahead, 0)),
        (f"IS-PG below PG: {points(between)}", below(between, 0)),
        (f"PG's error about 5 times DG's or more: {times(fails)}", reaches(fails, 5)),
        (f"DG below 4%: {span(learns)}", below(learns, 0.04)),
    ]
    return found(
        parts,
        "final errors: " + ", ".join(f"{style.name(key)} {errors[key].mean():.1%}" for key in settings),
        possible(ahead),
        **scope(frame, errors),
    )


LONG_DELAYS = (100.0, 1000.0)
"""Delays that D3-mnist cannot do without."""


@claim(
    "D3-mnist",
    "MNIST: exact importance sampling does not do what DG does under staleness",
    "Prop. 3; IS-PG about 8% against DG's 2% at D = 1000",
    "mnist_staleness",
    version=WITHDRAWN,
    where=MNIST,
)
def importance_sampling_is_no_substitute(frame: pd.DataFrame) -> Finding:
    """DG's error is below IS-PG's at every delay of 100 steps or more, at 95%, Bonferroni-corrected."""
    run = frame.get("friction.staleness.delay", pd.Series(dtype=float)).astype(float)
    delays = sorted({*LONG_DELAYS, *run[run >= min(LONG_DELAYS)]})
    settings = {f"{key} {delay}": _stale(delay)[key] for delay in delays for key in ("is_pg", "dg")}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gaps = {d: paired(errors[f"dg {d}"], errors[f"is_pg {d}"], 1 - 0.05 / len(delays)) for d in delays}
    return found(
        [(f"DG below IS-PG at D = {delay:g}: {points(gap)}", below(gap, 0)) for delay, gap in gaps.items()],
        "DG minus IS-PG: " + "; ".join(f"D = {delay:g}: {points(gap)}" for delay, gap in gaps.items()),
        possible(gaps[delays[-1]]),
        **scope(frame, errors),
    )
