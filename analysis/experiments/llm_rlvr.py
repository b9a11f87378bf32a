"""A pretrained language model (SmolLM2, 135M) on verifiable rewards: what DG and the gate change and save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import aggregate, having

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = ("rollout", "screen", "backward", "optimizer")
SECONDS = tuple(f"seconds_{phase}" for phase in PHASES)
BY = ["method.name", "task.delight", "gate.rate", "gate.price", "gate.priority", "gate.reserve"]
VALUES = ("error", "train_error", "backward_tokens", "graph_mib", "zero_advantage", *SECONDS)
WORDS = {
    "token": "",
    "response": ", by answer",
    "token_scaled": ", scaled",
    "response_scaled": ", by answer, scaled",
}
COLOURS = {"delight": "#d55e00", "advantage": "#e69f00", "uniform": "#444444"}


def name(row: Mapping[Any, Any]) -> str:
    """A setting in a few words."""
    if row["method.name"] == "pg":
        return "PG"
    if row["method.name"] == "dg":
        return "DG" + WORDS.get(row["task.delight"], f", {row['task.delight']}")
    gate = style.gate_label(row["gate.rate"], row["gate.price"])
    if row["gate.rate"] == 1:
        return "PG without rows of no advantage"
    if row["gate.reserve"]:
        return f"DG-K {gate}, half of it at random, unbiased"
    how = {"delight": "", "advantage": " by advantage", "uniform": " at random"}[row["gate.priority"]]
    return f"DG-K {gate}{how}"


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors, tokens in a graph and seconds by phase along training; at the end, what a step cost."""
    frame = having(frame, BY)
    curves = aggregate(frame[frame["step"] > 0], [*BY, "step"], VALUES).assign(kind="curve")
    ends = aggregate(final(frame), BY, VALUES).assign(kind="end")
    table = pd.concat([curves, ends], ignore_index=True)
    return table.assign(name=[name(row) for row in table.to_dict("records")])


def measured(table: pd.DataFrame) -> str:
    """What a step of each costs, which share of it the backward pass is, and where it ends, in words."""
    ends = table[table["kind"] == "end"].sort_values("error")
    said = []
    for row in ends.to_dict("records"):
        spent = sum(row[phase] for phase in SECONDS)
        said.append(
            f"{row['name']}: {plots.error(row)}, {spent / row['step']:.2g} s a step of which the backward pass "
            f"{row['seconds_backward'] / spent:.0%}, {row['graph_mib']:.0f} MiB in a graph at most"
        )
    return f"1 − π(right answer), cost of a step: {'; '.join(said)}"


def plot(table: pd.DataFrame) -> Figure:
    figure, ((first, second), (third, fourth)) = plots.panels(2, 2)
    curves, ends = table[table["kind"] == "curve"], table[table["kind"] == "end"].sort_values("error")
    for axes, cost, words in (
        (first, "forward", "answers sampled"),
        (second, "backward_tokens", "tokens in a backward graph"),
        (third, "seconds", "seconds (one core, by its own clock)"),
    ):
        for row in ends.to_dict("records"):
            own = curves[curves["name"] == row["name"]].sort_values("step")
            colour, dash = look(row)
            axes.fill_between(own[cost], own["error_low"], own["error_high"], color=colour, alpha=0.08, lw=0)
            axes.plot(own[cost], own["error"], color=colour, ls=dash, lw=1.2, label=row["name"])
        axes.set(xlabel=words, ylabel="1 − π(right answer)")
    first.set_title("SmolLM2-135M, one-digit sums: per answer")
    second.set_title("… per token in a graph")
    third.set_title("… per second")
    second.set_xscale("log")
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=6.5)
    _bars(fourth, ends)
    style.note(figure, ends)
    return figure


def look(row: Mapping[Any, Any]) -> tuple[str, Any]:
    """Colour and dash of a setting."""
    if row["method.name"] == "dgk":
        if row["gate.reserve"] or row["gate.rate"] == 1:
            return "#009e73", ":" if row["gate.rate"] == 1 else "-"
        kind = ":" if pd.isna(row["gate.rate"]) else "-" if row["gate.rate"] < 0.2 else "--"
        return COLOURS[row["gate.priority"]], kind
    dash = plots.DASHES[list(WORDS).index(row["task.delight"])] if row["method.name"] == "dg" else "-"
    return style.colour(row["method.name"]), dash


def _bars(axes: Axes, ends: pd.DataFrame) -> None:
    """Seconds of a step by phase, and the most that a graph held."""
    left = pd.Series(0.0, index=ends.index)
    for phase, colour in zip(PHASES, ("#bbbbbb", "#56b4e9", "#d55e00", "#0072b2"), strict=True):
        width = ends[f"seconds_{phase}"] / ends["step"]
        axes.barh(range(len(ends)), width, left=left, color=colour, label=phase, height=0.7)
        left = left + width
    for place, (row, end) in enumerate(zip(ends.to_dict("records"), left, strict=True)):
        text = f" {row['graph_mib']:.0f} MiB"
        axes.annotate(text, (end, place), va="center", fontsize=6, annotation_clip=False)
    axes.set_yticks(range(len(ends)), list(ends["name"]), fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="seconds of a step; at most so much in a graph", title="What a step costs")
    axes.legend(fontsize=6)
