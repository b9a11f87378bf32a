"""A pretrained language model (SmolLM2, 135M) on verifiable rewards: what DG and the gate change and save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.judge import Finding, below, by_setting, claim, found, points, scope, share, times, unready, within
from analysis.load import final
from analysis.settings import FREE, PG, Columns, Settings, gate, method
from analysis.stats import factor, paired
from analysis.tables import aggregate, having, seconds

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


SUMS = {"task.name": "language", "task.model": "smollm2", "task.problem": "chain_sum"}
HERE = "measured here; the papers leave language models open"
EQUAL = 0.02
"""Errors of a language model that differ by less than two points count as equal."""


def kept(rate: float, priority: str = "delight") -> Columns:
    return {**gate(rate), "gate.priority": priority, "gate.reserve": 0.0}


@claim(
    "L1",
    "SmolLM2, one-digit sums: DG is nearly neutral: by token or by answer, scaled or not, it ends where PG does",
    "reported by others who tried DG on language models",
    "llm_rlvr",
    version=HERE,
    where=SUMS,
)
def neutral(frame: pd.DataFrame) -> Finding:
    """Each way of DG ends within two points of PG, at 95%."""
    ways: Settings = {name: method("dg", **{"task.delight": name}) for name in WORDS}
    errors = by_setting(frame, "error", {"pg": PG, **ways})
    if few := unready(errors, {"pg": PG, **ways}):
        return few
    gaps = {way: paired(errors[way], errors["pg"]) for way in ways}
    parts = [(f"DG{WORDS[way]} within two points: {points(gap)}", within(gap, 0, EQUAL)) for way, gap in gaps.items()]
    ends = ", ".join(f"DG{WORDS[way]} {share(errors[way].mean())}" for way in ways)
    return found(parts, f"PG ends at {share(errors['pg'].mean())}, {ends}", gaps["token"], **scope(frame, errors))


@claim(
    "L2",
    "SmolLM2, one-digit sums: at the same rate a gate by delight ends below one by advantage alone and one by chance",
    "–",
    "llm_rlvr",
    version=HERE,
    where=SUMS,
)
def delight_chooses(frame: pd.DataFrame) -> Finding:
    """At ρ = 10% and 30%, the paired difference in final error is below 0, at 95%."""
    rates, others = (0.1, 0.3), {"advantage": "advantage alone", "uniform": "chance"}
    settings = {f"{rate:.0%} {by}": kept(rate, by) for rate in rates for by in ("delight", *others)}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gaps = {
        (rate, by): paired(errors[f"{rate:.0%} delight"], errors[f"{rate:.0%} {by}"]) for rate in rates for by in others
    }
    parts = [
        (f"{rate:.0%}: delight below {others[by]}: {points(gap)}", below(gap, 0)) for (rate, by), gap in gaps.items()
    ]
    ends = "; ".join(
        f"{rate:.0%}: delight {share(errors[f'{rate:.0%} delight'].mean())}, "
        + ", ".join(f"{words} {share(errors[f'{rate:.0%} {by}'].mean())}" for by, words in others.items())
        for rate in rates
    )
    return found(parts, ends, gaps[0.1, "advantage"], **scope(frame, errors))


@claim(
    "L3",
    "SmolLM2, one-digit sums: the gate at 10% halves the seconds of a step, and ends where PG does",
    "–",
    "llm_rlvr",
    version=HERE,
    where=SUMS,
)
def gate_saves_seconds(frame: pd.DataFrame) -> Finding:
    """Seconds of all phases, those of PG over those of DG-K, are at least twice as many, at 95%; and the final error is
    less than two points above PG's."""
    settings: Settings = {"pg": PG, "gate": kept(0.1)}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    frame = frame.assign(spent=seconds(frame))
    spent = by_setting(frame, "spent", settings)
    saved, gap = factor(spent["gate"], spent["pg"]), paired(errors["gate"], errors["pg"])
    return found(
        [
            (f"a step takes less than half of PG's seconds: {times(saved)}", below(saved, 0.5)),
            (f"ends less than two points above PG: {points(gap)}", below(gap, EQUAL)),
        ],
        f"final error {share(errors['gate'].mean())} against PG's {share(errors['pg'].mean())}; {step_costs(frame)}",
        saved,
        **scope(frame, errors),
    )


def step_costs(frame: pd.DataFrame) -> str:
    """What a step costs without a gate and with one, and how much of it is the backward pass, in words."""
    settings = {"PG": PG, "DG-K 30%": kept(0.3), "DG-K 10%": kept(0.1), "DG-K λ=0": {**FREE, "gate.reserve": 0.0}}
    steps = int(frame["steps"].max())
    spent, back, held = (
        by_setting(frame, column, settings).mean() for column in ("spent", "seconds_backward", "graph_mib")
    )
    return "; ".join(
        f"{name}: {spent[name] / steps:.2g} s a step, of which the backward pass {back[name] / spent[name]:.0%}, "
        f"{held[name]:,.0f} MiB in a graph at most"
        for name in settings
        if name in spent
    )


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
