"""A bad arm with a noisy reward: how often the gate opens for it, and what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import JOY, Finding, above, below, claim, found, span
from analysis.load import final
from analysis.settings import DG, FREE, PG, Settings
from analysis.stats import bootstrap, paired
from analysis.studies import by_seed, note, replicates, spread, studied, unfold
from analysis.tables import check_unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = ["opened", "stall", "mean_field"]
SIMULATED = ["opened_simulated", "learned"]
NOISES = {"bad": "Noise on the bad arm", "both": "The same noise on both arms"}
SHOWN = (0.3, 1.0, 3.0)
"""σ/Δ of the learning curves."""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, noise, σ, update)."""
    rows = frame.explode(["sigma", "opened", "opened_simulated", "stall", "updates", "mean_field", "learned"])
    rows = unfold(rows, ["updates", "mean_field", "learned"])
    numbers = ["sigma", "opened", "opened_simulated", "stall"]
    rows = rows.astype(dict.fromkeys(numbers, float))
    return spread(rows, ["method.name", "task.noise", "task.start", "sigma", "updates"], EXACT, SIMULATED)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 3)
    figure.set_size_inches(11.5, 6.6)
    last = table[table["updates"] == table["updates"].max()]
    for row, (noise, words) in zip(grid, NOISES.items(), strict=True):
        opening, curves, ends = row
        gate = last[(last["method.name"] == "dgk") & (last["task.noise"] == noise)].sort_values("sigma")
        colour = style.colour("dgk")
        opening.plot(gate["sigma"], gate["opened"], color=colour)
        mean, low, high = (gate[f"opened_simulated{end}"] for end in ("", "_low", "_high"))
        opening.errorbar(gate["sigma"], mean, [mean - low, high - mean], fmt="o", ms=4, color=colour, capsize=2)
        bound = np.exp(-((gate["task.start"] / gate["sigma"]) ** 2) / 2) / 2
        opening.plot(gate["sigma"], bound, color="black", lw=0.8, ls="--")
        opening.annotate("½ exp(−p²Δ²/2σ²)", (0.05, 0.62), xycoords="axes fraction", fontsize=8)
        opening.annotate("Φ(−pΔ/σ)", (0.5, 0.3), xycoords="axes fraction", fontsize=8, color=colour, weight="bold")
        opening.set(xscale="log", ylim=(-0.02, 0.55), ylabel="P(gate opens | bad arm), p = ½", title=f"{words}")
        for method, group in table[table["task.noise"] == noise].groupby("method.name"):
            colour = style.colour(str(method))
            for sigma, dash in zip(SHOWN, (":", "--", "-"), strict=True):
                course = group[group["sigma"] == sigma].sort_values("updates")
                curves.fill_between(
                    course["updates"], course["learned_low"], course["learned_high"], color=colour, alpha=0.2, lw=0
                )
                curves.plot(course["updates"], course["learned"], color=colour, ls=dash, lw=1.3)
            end = last[(last["task.noise"] == noise) & (last["method.name"] == method)].sort_values("sigma")
            ends.plot(end["sigma"], end["mean_field"], color=colour)
            mean, low, high = (end[f"learned{edge}"] for edge in ("", "_low", "_high"))
            ends.errorbar(end["sigma"], mean, [mean - low, high - mean], fmt="o", ms=4, color=colour, capsize=2)
        curves.set(xscale="log", yscale="log", ylabel="error 1 − p", title="Learning curves")
        if noise == "bad":
            stalled = gate[gate["stall"] > 1e-3]
            ends.plot(
                stalled["sigma"], stalled["stall"], color="black", lw=1, ls="--", label="DG-K stalls: 1−p = σψ(p/σ)"
            )
            ends.legend(fontsize=7.5, loc="lower right")
        ends.set(xscale="log", yscale="log", ylabel="error 1 − p", ylim=(3e-4, 1.5))
        ends.set_title(f"… after {last['updates'].max():,.0f} updates")
    for sigma, dash in zip(SHOWN, (":", "--", "-"), strict=True):
        grid[0, 1].plot([], [], color="black", ls=dash, lw=1.3, label=f"σ = {sigma:g}Δ")
    for method in ("pg", "dg", "dgk"):
        grid[0, 1].plot(
            [], [], color=style.colour(method), label=style.name(method) + (" λ=0" if method == "dgk" else "")
        )
    grid[0, 1].legend(fontsize=7, loc="lower left")
    for axes in grid[1]:
        axes.set_xlabel("noise σ/Δ")
    grid[1, 1].set_xlabel("update")
    note(figure, table, "right: lines follow the expected update")
    return figure


@claim(
    "J4",
    "Bandit: a bad arm with noisy reward opens the gate, exponentially seldom for σ ≪ Δ and often for σ ≫ Δ; noise on "
    "all arms alike does not single DG out",
    "Prop. 3",
    "gambling",
    version=JOY,
    where={"task.name": "gambling"},
)
def gate_gambles(frame: pd.DataFrame) -> Finding:
    """Simulated openings are below ½ exp(−p²Δ²/2σ²), at 95%, for σ ≤ 0.3Δ, and above ¼ for σ ≥ 3Δ. With noise 3Δ on
    the bad arm DG and DG-K end with a higher error than PG by more than 0.05, with the same noise on both arms not."""
    methods: Settings = {"pg": PG, "dg": DG, "dgk": FREE}
    wanted = [{**each, "task.noise": noise} for each in methods.values() for noise in ("bad", "both")]
    if few := replicates(frame, wanted):
        return few
    rows = final(frame).explode(["sigma", "opened_simulated", "learned"], ignore_index=True)
    rows = rows.assign(end=[curve[-1] for curve in rows["learned"]]).astype({"sigma": float, "opened_simulated": float})
    axes = ["method.name", "task.noise"]
    check_unique(rows, [*axes, "sigma"])
    gated = rows[rows["method.name"] == "dgk"]
    quiet, loud = gated[gated["sigma"] <= 0.3], gated[gated["sigma"] >= 3]
    over = quiet["opened_simulated"] - 0.5 * np.exp(-((quiet["task.start"] / quiet["sigma"]) ** 2) / 2)
    excess = bootstrap(over.groupby(quiet["seed"]).mean())  # values of σ are no replicates
    opened = bootstrap(loud.groupby("seed")["opened_simulated"].mean())
    errors = by_seed(rows[rows["sigma"] == 3], axes, "end")
    gaps = {
        (key, noise): paired(errors[key, noise], errors["pg", noise])
        for key in ("dg", "dgk")
        for noise in ("bad", "both")
    }
    parts = [
        (f"opens less than ½ exp(−p²Δ²/2σ²) for σ ≤ 0.3Δ: {span(excess, '+.2%')}", below(excess, 0)),
        (f"opens for more than a quarter at σ ≥ 3Δ: {span(opened, '.1%')}", above(opened, 0.25)),
    ]
    for key in ("dg", "dgk"):
        bad, both = gaps[key, "bad"], gaps[key, "both"]
        text = f"bad arm noisy: {style.name(key)} ends above PG by more than 0.05: {span(bad, '.3f')}"
        parts.append((text, above(bad, 0.05)))
        parts.append((f"both noisy: {style.name(key)} does not: {span(both, '.3f')}", below(both, 0.05)))
    return found(
        parts,
        f"it opens for {quiet['opened_simulated'].mean():.1%} of bad samples at σ ≤ 0.3Δ, {span(opened, '.1%')} at "
        "σ ≥ 3Δ; error above PG's at σ = 3Δ: "
        + "; ".join(
            f"{style.name(key)}, {'bad arm' if noise == 'bad' else 'both arms'} noisy: {span(gap, '.3f')}"
            for (key, noise), gap in gaps.items()
        ),
        gaps["dgk", "bad"],
        **studied(frame),
    )


WHY = {
    "J4": (
        "DG weighs by σ(U·ℓ), and ℓ is larger on the arm that is played less: noise that is alike on both arms is not "
        "weighed alike. The gate at λ = 0 looks at the sign of U alone, where ℓ does not matter."
    ),
}
