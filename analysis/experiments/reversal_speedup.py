"""How much cheaper than PG each method reaches 5% error on token reversal, for prompts of growing difficulty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.experiments import joy_3
from analysis.experiments.joy_3 import RATIOS, TARGET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = ["task.length", "task.vocab"]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    tables = []
    for _, group in frame.groupby(SIZE):
        table = joy_3.select(group)
        table[SIZE] = group[SIZE].iloc[0].tolist()
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def measured(table: pd.DataFrame) -> str:
    """Speed-ups where a backward pass costs two forward passes, and how many seeds got there, in words."""
    words = []
    for (length, vocab), group in table[(table["c"] == 2) & (table["method.name"] != "pg")].groupby(SIZE):
        words.append(f"H = {length}, M = {vocab}: " + ", ".join(map(_speedup, group.to_dict("records"))))
    return f"compute to {style.percent(TARGET)} error at c = 2, PG's over theirs: " + "; ".join(words)


def _speedup(row: Mapping[Any, Any]) -> str:
    if row["reached"] == 0:
        return f"{style.label(row)} not there"
    spread = f"{row['speedup_low']:.2g} to {row['speedup_high']:.2g}" if row["reached"] > 1 else "one seed"
    return f"{style.label(row)} {row['speedup']:.2g} ({spread})"


def plot(table: pd.DataFrame) -> Figure:
    sizes = list(table.groupby(SIZE))
    rows = (len(sizes) + 1) // 2
    figure, grid = plots.panels(rows, 2, sharex=True, sharey=True, squeeze=False)
    for axes, ((length, vocab), group) in zip(grid.flat, sizes, strict=False):
        counted = group[group["c"].notna() & group["speedup"].notna()]
        if counted.empty:
            words = f"no setting reached {style.percent(TARGET)} error"
            axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)
        else:
            plots.lines(axes, counted, "c", "speedup")
            axes.set(yscale="log")
            axes.set_xticks(RATIOS, [str(c) for c in RATIOS])
        late = int(group["seeds"].max() - group["pg_reached"].min())
        axes.set_title(f"H = {length}, M = {vocab}" + (f" (PG: {late} seeds did not get there)" if late else ""))
    for axes in grid[:, 0]:
        axes.set_ylabel("speed-up over PG")
    for axes in grid[-1]:
        axes.set_xlabel("c: cost of a backward pass in forward passes")
    handles, names = max((axes.get_legend_handles_labels() for axes in grid.flat), key=lambda each: len(each[1]))
    grid[0, 0].legend(handles, names, fontsize=8)
    style.note(
        figure,
        joy_3.timed_once(table),
        f"compute to {style.percent(TARGET)} error; late seeds of PG make lower bounds",
    )
    return figure
