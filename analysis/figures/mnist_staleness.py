"""An actor whose parameters are D steps old, on MNIST."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate


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
