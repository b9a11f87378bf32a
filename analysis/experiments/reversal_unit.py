"""Token reversal: what becomes of a gate that keeps whole answers, and of one that keeps single tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import aggregate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GATE = ["gate.unit", "gate.rate", "gate.price"]
COLOURS = {"sequence": style.colour("dgk"), "token": "#7b3294"}
SHOWN = 0.03  # ρ whose course is drawn, beside λ = 0
VALUES = ("error", "entropy", "kept_surprisal", "all_surprisal", "kept_right", "all_right", "zero_advantage")
CREDITS = {"to_first_error": "prefix reward", "share": "share reward"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """The end of every gate, and the course of some."""
    ends = aggregate(final(frame), ["task.credit", *GATE], VALUES).assign(kind="end")
    shown = frame[(frame["gate.rate"] == SHOWN) | frame["gate.price"].notna()]
    course = aggregate(shown[shown["step"] > 0], ["task.credit", *GATE, "step"], VALUES).assign(kind="course")
    table = pd.concat([ends, course], ignore_index=True)
    return table.assign(share=table["backward"] / table["forward"])


def measured(table: pd.DataFrame) -> str:
    """Final errors, and the entropy of the policy, in words."""
    ends = table[table["kind"] == "end"]
    return "final error and entropy per token: " + "; ".join(
        f"{CREDITS[credit]}, by {unit}: "
        + ", ".join(
            f"{style.gate_label(row['gate.rate'], row['gate.price'])} {plots.error(row)}, entropy {row['entropy']:.2f}"
            for row in group.to_dict("records")
        )
        for credit in CREDITS
        for unit, group in ends[ends["task.credit"] == credit].groupby("gate.unit")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(4, 3)
    for place, (credit, words) in enumerate(CREDITS.items()):
        own = table[table["task.credit"] == credit]
        if own.empty:
            continue
        _panels(grid[2 * place : 2 * place + 2], own[own["kind"] == "end"], own[own["kind"] == "course"], words)
    style.note(figure, table[table["kind"] == "end"])
    return figure


def _panels(grid: Any, ends: pd.DataFrame, course: pd.DataFrame, words: str) -> None:
    """Two rows of panels for one reward."""
    (first, second, third), (fourth, fifth, sixth) = grid
    _by_rate(first, ends, "error")
    plots.floor(first, ends["error"])
    first.set(ylabel="final error 1 − E[R]", title=f"Reversal, {words}: answers or tokens?")
    first.legend(fontsize=7.5)
    _course(second, course, "error")
    plots.floor(second, course["error"])
    second.set(ylabel="error", title="… on the way")
    second.legend(fontsize=7.5)
    _course(third, course, "entropy")
    third.set(ylabel="entropy per token", title="How undecided the policy stays")
    _by_rate(fourth, ends, "share", band=False)
    fourth.set(yscale="log", ylabel="share of answers in the graph", title="What each gate pays for")
    _course(fifth, course, "zero_advantage")
    fifth.set(ylabel="share without advantage", ylim=(0, 1), title="Answers of groups that are all alike")
    _course(sixth, course, "kept_right")
    for _, group in course.groupby(GATE, dropna=False):
        colour = COLOURS[group["gate.unit"].iloc[0]]
        sixth.plot(group["step"], group["all_right"], ".", ms=3, color=colour, alpha=0.5)
    sixth.set(ylabel="share right", title="Kept (lines) and all (dots) tokens: right")


def _by_rate(axes: Axes, ends: pd.DataFrame, value: str, band: bool = True) -> None:
    for unit, group in ends[ends["gate.rate"].notna()].groupby("gate.unit"):
        group = group.sort_values("gate.rate")
        if band:
            low, high = group[f"{value}_low"], group[f"{value}_high"]
            axes.fill_between(group["gate.rate"], low, high, color=COLOURS[str(unit)], alpha=0.15, lw=0)
        axes.plot(group["gate.rate"], group[value], "o-", color=COLOURS[str(unit)], label=f"by {unit}, ρ")
    for row in ends[ends["gate.price"].notna()].to_dict("records"):
        unit = row["gate.unit"]
        axes.axhline(row[value], color=COLOURS[unit], ls=":", lw=1.2, label=f"by {unit}, λ=0")
    plots.log_words(axes)
    axes.set_xlabel("ρ")


def _course(axes: Axes, course: pd.DataFrame, value: str) -> None:
    for _, group in course.groupby(GATE, dropna=False):
        group = group.sort_values("step")
        unit, rate, price = group[GATE].iloc[0]
        low, high = group[f"{value}_low"], group[f"{value}_high"]
        axes.fill_between(group["step"], low, high, color=COLOURS[unit], alpha=0.15, lw=0)
        dash = "-" if price != price else ":"
        name = f"by {unit}, {style.gate_label(rate, price)}"
        axes.plot(group["step"], group[value], color=COLOURS[unit], ls=dash, label=name)
    axes.set(xscale="log", xlabel="steps")
