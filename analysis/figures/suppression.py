"""The weights of surprising failures and successes when some samples are random, as the policy grows sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.studies import note, spread, unfold

EXACT = ["factor", "failure", "success"]
SIMULATED = [f"{name}_simulated" for name in EXACT]
RULE = ["method.name", "gate.priority", "gate.mode"]
BASELINES = {"confidence": ("-", "b = Σπ²"), "half": ("--", "b = ½")}
SURPRISAL = {"hard": ("gate by surprisal", "#b8860b"), "soft": ("weight by surprisal", "#7b3294"),
             "bernoulli": ("coin by surprisal", "#117733")}  # fmt: skip


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, gate, baseline, δ)."""
    rows = unfold(frame, ["delta", *EXACT, *SIMULATED])
    return spread(rows, [*RULE, "gate.price", "task.baseline", "task.share", "task.arms", "delta"], EXACT, SIMULATED)


def look(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Name and colour of a rule."""
    if row["gate.priority"] == "surprisal":
        return SURPRISAL[row["gate.mode"]]
    words = {"dgk": "DG-K λ=0", "is_pg": "exact IS"}.get(row["method.name"], style.name(row["method.name"]))
    return words, style.colour(row["method.name"])


def curve(axes: Axes, group: pd.DataFrame, y: str, dash: str, label: str, colour: str, filled: bool = True) -> None:
    """A closed form and its simulation."""
    group = group.sort_values("delta")
    steps = "steps-mid" if group["gate.mode"].iloc[0] == "hard" else "default"
    axes.plot(group["delta"], group[y], color=colour, ls=dash, drawstyle=steps, label=label)
    mean, low, high = (group[f"{y}_simulated{end}"] for end in ("", "_low", "_high"))
    mark: dict[str, Any] = {"ms": 3.5, "mfc": colour} if filled else {"ms": 7, "mfc": "white"}  # a dot within a ring
    axes.errorbar(group["delta"], mean, [mean - low, high - mean], fmt="o", color=colour, capsize=2, **mark)


def plot(table: pd.DataFrame) -> Figure:
    figure, (moment, alike, apart) = plots.panels(1, 3)
    figure.set_size_inches(12.5, 4.2)
    delight = table[table["gate.priority"] != "surprisal"]
    for (_, baseline), group in delight.groupby(["method.name", "task.baseline"]):
        first = group.iloc[0].to_dict()
        (words, colour), (dash, sign) = look(first), BASELINES[str(baseline)]
        if first["method.name"] == "dgk" or (baseline != "confidence" and first["method.name"] != "dg"):
            continue  # the gate's factor is 0; PG and IS do not depend on b
        curve(moment, group, "factor", dash, f"{words}, {sign}" if first["method.name"] == "dg" else words, colour)
    moment.set(xscale="log", yscale="log", ylabel="second moment across ∇J, relative to PG")
    moment.set_title("Surprising failures (DG-K λ=0: none)")

    blind = table[(table["gate.priority"] == "surprisal") | (table["method.name"] == "is_pg")]
    for _, group in blind[blind["task.baseline"] == "confidence"].groupby(RULE, dropna=False):
        words, colour = look(group.iloc[0].to_dict())
        curve(alike, group, "success", "-", "", colour, filled=False)
        curve(alike, group, "failure", "-", words, colour)
    alike.set_title("By probability alone: one weight for both")
    for (method, baseline), group in delight[delight["method.name"].isin(["dg", "dgk"])].groupby(
        ["method.name", "task.baseline"]
    ):
        if method == "dgk" and baseline != "confidence":
            continue  # the same
        (words, colour), (dash, sign) = look(group.iloc[0].to_dict()), BASELINES[str(baseline)]
        name = f"{words}, {sign}" if method == "dg" else words
        curve(apart, group, "success", dash, "", colour, filled=False)
        curve(apart, group, "failure", dash, name, colour)
    apart.set_title("By delight: failures 0, successes not")
    for axes in (alike, apart):
        axes.plot([], [], "o", color="black", ms=3.5, label="rare failures")
        axes.plot([], [], "o", color="black", mfc="white", ms=7, label="rare successes")
        axes.set(xscale="log", ylim=(-0.04, 1.08), ylabel="mean weight")
    for axes in (moment, alike, apart):
        axes.set_xlabel("δ (the policy grows sure to the left)")
        axes.legend(fontsize=7.5)
    apart.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(0, 0.3))
    share, arms = float(table["task.share"].iloc[0]), int(table["task.arms"].iloc[0])
    note(figure, table, f"{style.percent(share)} of the samples uniformly random, K = {arms}; rare: π(a) = δ/(K−1)")
    return figure
