"""A bad arm with a noisy reward: how often the gate opens for it, and what is learned."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.studies import note, spread, unfold

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
