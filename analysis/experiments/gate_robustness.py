"""What repairs the gate where rewards are corrupted, at the same budget of backward passes (MNIST)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import aggregate, having

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATE = ["gate.mode", "gate.temperature", "gate.reserve", "gate.reserve_mode", "gate.history", "gate.priority"]
BY = ["method.name", *GATE]
CORRUPTED = "friction.reward_corruption.prob"
LOOKS = {
    "PG": ("#7a7a7a", "-"),
    "DG": ("#0072b2", "-"),
    "gate alone": ("#d55e00", "-"),
    "coin, η = 0.1": ("#cc79a7", "-"),
    "coin, η = 1": ("#cc79a7", "--"),
    "half at random": ("#009e73", "-"),
    "half at random, unbiased": ("#009e73", "--"),
    "half of failures, unbiased": ("#009e73", ":"),
    "price from history": ("#56b4e9", "-"),
    "all at random": ("#444444", ":"),
}


def repair(row: Any) -> str:
    """What a setting does, in a few words."""
    if row["method.name"] != "dgk":
        return style.name(row["method.name"])
    if row["gate.mode"] == "bernoulli":
        return f"coin, η = {row['gate.temperature']:g}"
    if row["gate.reserve"]:
        kind = {"plain": "half at random", "unbiased": "half at random, unbiased"}
        return kind.get(row["gate.reserve_mode"], "half of failures, unbiased")
    if row["gate.history"]:
        return "price from history"
    return "all at random" if row["gate.priority"] == "uniform" else "gate alone"


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors and what was paid for, by repair and share of corrupted rewards."""
    ends = having(final(frame), [*BY, CORRUPTED])
    corrupted = ends[CORRUPTED].fillna(0.0)
    ends = ends.assign(intensity=corrupted, paid=ends["backward"] / ends["forward"])
    table = aggregate(ends, [*BY, "intensity"], ("error", "paid"))
    return table.assign(repair=[repair(row) for row in table.to_dict("records")])


def measured(table: pd.DataFrame) -> str:
    """Errors by share of corrupted rewards, in words."""
    shares = sorted(table["intensity"].unique())
    return f"final test error with {', '.join(f'{each:.0%}' for each in shares)} of rewards corrupted: " + "; ".join(
        f"{name}: {', '.join(f'{error:.1%}' for error in group.sort_values('intensity')['error'])}"
        for name, group in table.groupby("repair", sort=False)
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2)
    for name, group in table.groupby("repair", sort=False):
        group = group.sort_values("intensity")
        colour, dash = LOOKS.get(str(name), ("#6a3d9a", "-"))
        left.fill_between(group["intensity"], group["error_low"], group["error_high"], color=colour, alpha=0.1, lw=0)
        left.plot(group["intensity"], group["error"], marker="o", ms=3, color=colour, ls=dash, label=name)
        right.plot(group["intensity"], group["paid"], marker="o", ms=3, color=colour, ls=dash)
    for axes in (left, right):
        axes.set(yscale="log", xlabel="share of rewards that are coin flips")
    left.set(ylabel="final test error", title="MNIST: what repairs the gate?")
    right.set(ylabel="backward passes per forward pass", title="… and what each pays for")
    right.legend(*left.get_legend_handles_labels(), fontsize=6.5, loc="center")
    style.note(figure, table, "DG-K at ρ = 3%")
    return figure
