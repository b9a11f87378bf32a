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
from analysis.tables import SETTING, aggregate, having

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LAWS = {"fixed": "always D", "uniform": "uniform on 0..D"}
"""How old the actor's parameters are; which of them the paper has is not known."""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors by law and delay, and the learning curves at the longest; a clean actor is every law's D = 0."""
    frame = having(frame, [f"friction.staleness.{key}" for key in ("delay", "delay_mode")])
    frame = frame.assign(delay=frame["friction.staleness.delay"].fillna(0), law=frame["friction.staleness.delay_mode"])
    clean = [frame[frame["delay"] == 0].assign(law=law) for law in LAWS]
    frame = pd.concat([frame[frame["delay"] > 0], *clean])
    ends = aggregate(final(frame), [*SETTING, "law", "delay"]).assign(kind="end")
    stalest = frame[(frame["delay"] == frame["delay"].max()) & (frame["step"] > 0)]
    curves = aggregate(stalest, [*SETTING, "law", "delay", "step"]).assign(kind="curve")
    return pd.concat([ends, curves], ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharey=True)
    for (left, right), (law, words) in zip(grid, LAWS.items(), strict=True):
        own = table[table["law"] == law]
        curves, ends = own[own["kind"] == "curve"], own[own["kind"] == "end"]
        plots.lines(left, curves, "forward")
        left.set(xscale="log", yscale="log", xlabel="forward passes per seed", ylabel="test error of the greedy policy")
        left.set_title(f"MNIST: actor's age {words}, D = {curves['delay'].max():g}")
        plots.lines(right, ends, "delay")
        right.set(yscale="log", xlabel="D, steps", title="… and the end, by D")
        right.set_xscale("symlog", linthresh=10)
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure


def _stale(delay: float, law: str) -> Settings:
    columns = {"friction.staleness.delay": delay, "friction.staleness.delay_mode": law}
    return {key: method(key, **columns) for key in ("pg", "is_pg", "dg")}


def judge_staleness(frame: pd.DataFrame, law: str) -> Finding:
    """DG's error is below IS-PG's and IS-PG's below PG's, at 95%; PG's is about five times DG's or more; DG's is below
    4%."""
    settings = _stale(1000, law)
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


CLAIM = "MNIST, actor {} 1,000 steps behind: REINFORCE fails, importance sampling is in between, DG learns, with no "
CLAIM += "behaviour probabilities"
PAPER = "IS-PG about 8%, DG about 2% after 10,000 steps"


@claim("D1", CLAIM.format("up to"), PAPER, "mnist_staleness", version=DIST, where=MNIST)
def dg_survives_staleness(frame: pd.DataFrame) -> Finding:
    """With ages uniform on 0..1000; the parts are those of `judge_staleness`."""
    return judge_staleness(frame, "uniform")


@claim("D1-fixed", CLAIM.format("always"), PAPER, "mnist_staleness", version=DIST, where=MNIST)
def dg_survives_fixed_staleness(frame: pd.DataFrame) -> Finding:
    """With an age of 1,000 in every step; the parts are those of `judge_staleness`."""
    return judge_staleness(frame, "fixed")


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
    """DG's error is below IS-PG's at every D of 100 steps or more, ages uniform on 0..D, at 95%,
    Bonferroni-corrected."""
    run = frame.get("friction.staleness.delay", pd.Series(dtype=float)).astype(float)
    delays = sorted({*LONG_DELAYS, *run[run >= min(LONG_DELAYS)]})
    settings = {f"{key} {delay}": _stale(delay, "uniform")[key] for delay in delays for key in ("is_pg", "dg")}
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
