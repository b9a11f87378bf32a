"""One update on a softmax bandit, over p = π(y*): where it points, how it varies, what it costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import JOY, Finding, below, claim, found, span
from analysis.settings import DG, FREE, PG
from analysis.stats import bootstrap
from analysis.studies import note, on_grid, replicates, slope, spread, studied, unfold
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT = ["share", "cosine", "cosine_skewed", "parallel", "perpendicular", "needed"]
SIMULATED = [f"{name}_simulated" for name in EXACT if name != "cosine_skewed"]
SETTING = ["method.name", "task.arms", "task.baseline"]
BASELINES = {"confidence": "b = Σπ²", "oracle": "b = p"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, K, baseline, p)."""
    rows = unfold(frame, ["p", *EXACT, *SIMULATED])
    return spread(rows, [*SETTING, "p", "task.delta"], EXACT, SIMULATED)


def curve(axes: Axes, table: pd.DataFrame, y: str, dash: str = "-", marker: str = "o", x: str = "p") -> None:
    """A closed form and its simulation, per method."""
    for method, group in table.groupby("method.name"):
        colour = style.colour(str(method))
        axes.plot(group[x], group[y], color=colour, ls=dash)
        if f"{y}_simulated" in group:
            mean, low, high = (group[f"{y}_simulated{end}"] for end in ("", "_low", "_high"))
            axes.errorbar(group[x], mean, [mean - low, high - mean], fmt=marker, ms=4, color=colour, capsize=2, lw=1)


def tag(axes: Axes, text: str, at: tuple[float, float], method: str, offset: tuple[float, float] = (0, 4)) -> None:
    axes.annotate(
        text, at, offset, textcoords="offset points", color=style.colour(method), fontsize=8, weight="bold", ha="left"
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 3)
    figure.set_size_inches(12, 6.8)
    direction, noise, share = grid[0]
    main = table[(table["task.arms"] == table["task.arms"].min()) & (table["task.baseline"] == "confidence")]
    own = {str(method): group.set_index("p") for method, group in main.groupby("method.name")}
    low = main["p"].min()

    curve(direction, main, "cosine")
    curve(direction, main, "cosine_skewed", "--")
    if "dg" in own:
        tag(direction, "DG, unequal wrong arms", (low, own["dg"].loc[low, "cosine_skewed"]), "dg", (14, 0))
    tag(direction, "DG-K λ=0, PG: along ∇J, whatever the arms", (low, 1), "dgk", (0, 6))
    direction.set(xscale="log", ylabel="cosine with ∇J", ylim=(None, 1.08), title="Direction of the expected update")

    for method, group in own.items():
        colour = style.colour(method)
        for y, marker, face in (("parallel", "o", colour), ("perpendicular", "s", "white")):
            shown = group[group[y] > 1e-9]
            noise.plot(shown.index, shown[y], color=colour, ls="-" if y == "parallel" else "--")
            noise.plot(shown.index, shown[f"{y}_simulated"], marker, color=colour, mfc=face, ms=4)
    noise.plot([], [], "o-", color="black", ms=4, label="along ∇J")
    noise.plot([], [], "s--", color="black", mfc="white", ms=4, label="across ∇J (DG-K: 0)")
    for method in ("pg", "dg"):
        if method in own:
            tag(noise, style.name(method), (low, own[method].loc[low, "perpendicular"]), method, (-2, 5))
    noise.set(xscale="log", yscale="log", ylabel="variance / |E[update]|²", title="Noise of one sample")
    noise.legend(fontsize=8)

    curve(share, main, "share")
    tag(share, "DG-K λ=0: p", (low, low), "dgk", (34, 4))
    tag(share, "PG, DG: all", (low, 1), "pg", (0, -12))
    share.set(xscale="log", yscale="log", ylabel="backward passes per sample", title="Share of backward passes")

    delta = float(table["task.delta"].iloc[0])
    arms = sorted(table["task.arms"].unique())
    for axes, (size, baseline) in zip(
        grid[1], [(arms[0], "confidence"), (arms[-1], "confidence"), (arms[0], "oracle")], strict=True
    ):
        chosen = table[(table["task.arms"] == size) & (table["task.baseline"] == baseline)].sort_values("p")
        curve(axes, chosen, "needed")
        p = np.sort(chosen["p"].unique())
        axes.plot(p, np.log(delta) / np.log1p(-p), color="black", lw=0.9, ls="--", label="log δ / log(1−p)")
        start = chosen[(chosen["method.name"] == "pg")]["needed"]
        if len(start) and axes is grid[1, 0]:
            axes.plot(p, start.iloc[0] * (p[0] / p) ** 2, color="black", lw=0.9, ls=":", label="∝ 1/p²")
        for method in ("pg", "dg", "dgk"):
            axes.plot([], [], "o-", ms=4, color=style.colour(method), label=style.name(method))
        axes.set(xscale="log", yscale="log", xlabel="p = π(y*)", ylim=(0.8, table["needed"].max() * 2))
        axes.set_title(f"Samples until cos ≥ 0.9: K = {size}, {BASELINES[baseline]}")
    grid[1, 0].set_ylabel(f"samples, probability {1 - delta:g}")
    grid[1, 0].legend(fontsize=7.5, loc="upper right")
    note(figure, table, f"above: K = {arms[0]}, b = Σπ²; points of the direction: a mean of so many samples")
    return figure


@claim(
    "J1",
    "Bandit, λ = 0: the expected gated gradient is along ∇J, no update has a component across it, and a share p of the "
    "samples is bought",
    "Prop. 1",
    "gradient_geometry",
    version=JOY,
    where={"task.name": "gradient_geometry"},
)
def gate_points_along(frame: pd.DataFrame) -> Finding:
    """Cosine 1 and variance 0 across ∇J to rounding, in closed form and in every simulated batch; the share, over p,
    within 2% of it."""
    if few := replicates(frame, [FREE, DG]):
        return few
    columns = ["p", "share_simulated", "cosine", "cosine_skewed", "cosine_simulated", "perpendicular_simulated"]
    axes = ["task.arms", "task.baseline", "p"]
    gated, dg = (on_grid(matching(frame, setting), axes, columns) for setting in (FREE, DG))
    cosine = float(gated[["cosine", "cosine_skewed", "cosine_simulated"]].min().min())
    across = float(gated["perpendicular_simulated"].max())
    bought = bootstrap((gated["share_simulated"] / gated["p"]).groupby(gated["seed"]).mean())
    parts = [
        (f"the lowest cosine is 1 to rounding: {cosine:.7f}", cosine > 1 - 1e-6),
        (f"no variance across ∇J: {across:.1g} of |E|²", across < 1e-9),
        (f"the share bought is p: {span(bought, '.4f')} times p", abs(bought.mean - 1) < 0.02),
    ]
    return found(
        parts,
        f"lowest cosine {cosine:.7f}; variance across ∇J at most {across:.1g} of |E|²; backward passes "
        f"{span(bought, '.4f')} times p. Along ∇J whatever the wrong arms; DG only where these are equal (else down to "
        f"{dg['cosine_skewed'].min():.2f})",
        cosine,
        **studied(frame),
    )


@claim(
    "J2",
    "Bandit: PG needs of the order of 1/p² samples for a high cosine, the gate log(1/δ) backward passes",
    "Prop. 1",
    "gradient_geometry",
    version=JOY,
    where={"task.name": "gradient_geometry"},
)
def gate_needs_few(frame: pd.DataFrame) -> Finding:
    """Slopes on log axes over p ≤ 0.02 of the simulated number of samples: PG's is −1.75 or steeper, with b = Σπ² and
    also with the expected reward b = p; that of the gate's backward passes is within 0.1 of 0."""
    confidence, oracle = ({"task.baseline": baseline} for baseline in ("confidence", "oracle"))
    wanted = {"free": {**PG, **confidence}, "expected": {**PG, **oracle}, "gate": {**FREE, **confidence}}
    few_arms = frame[frame["task.arms"] == frame["task.arms"].min()]
    if few := replicates(few_arms, list(wanted.values())):
        return few
    rows = {}
    for key, setting in wanted.items():
        each = on_grid(matching(few_arms, setting), ["p"], ["p", "needed_simulated"])
        rows[key] = each[each["p"] <= 0.02].assign(kept=each["needed_simulated"] * each["p"])
    free, expected = (slope(rows[key], "p", "needed_simulated") for key in ("free", "expected"))
    gated, kept = slope(rows["gate"], "p", "kept"), rows["gate"]["kept"].mean()
    parts = [
        (f"PG's power of p is −1.75 or steeper with b = Σπ²: {span(free, '.2f')}", below(free, -1.75)),
        (f"… and with b = p: {span(expected, '.2f')}", below(expected, -1.75)),
        (f"that of the gate's backward passes is within 0.1 of 0: {span(gated, '.2f')}", abs(gated.mean) < 0.1),
    ]
    return found(
        parts,
        f"PG's samples grow as p to the power of {span(free, '.2f')} with b = Σπ², but {span(expected, '.2f')} with "
        f"the expected reward b = p, where its failures weigh little too; the gate buys {kept:.2f} backward "
        f"passes (log 1/δ = {-math.log(frame['task.delta'].iloc[0]):.2f}) at every p, power {span(gated, '.2f')}",
        free,
        **studied(frame),
    )


WHY = {
    "J2": (
        "PG's noise is that of its failures. With b = Σπ², which does not vanish with p, they weigh the same however "
        "rare a success is, while the signal falls as p: that takes 1/p² samples. With b = p a failure weighs p "
        "itself, what is left is the noise of the successes, and 1/p samples are enough. The proposition does not say "
        "which baseline it is about."
    ),
}
