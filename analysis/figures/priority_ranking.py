"""Which failures an additive priority ranks above successes, over p, K and α; delight ranks none so."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots
from analysis.studies import spread, unfold

EXACT = ["critical", "misranked", "misranked_skewed"]
SIMULATED = ["misranked_simulated", "misranked_skewed_simulated"]
KINDS = {"misranked": "equal wrong arms", "misranked_skewed": "unequal wrong arms"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (priority, α, K, p)."""
    rows = unfold(frame, ["p", *EXACT, *SIMULATED])
    return spread(rows, ["gate.priority", "gate.alpha", "task.arms", "p"], EXACT, SIMULATED)


def edges(centres: np.ndarray) -> np.ndarray:
    """Borders of cells around these centres, within 0 and 1."""
    middles = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[0.0], middles, [1.0]])


def plot(table: pd.DataFrame) -> Figure:
    sizes = sorted(table["task.arms"].unique())
    figure, grid = plots.panels(len(KINDS), len(sizes), sharex=True, sharey=True, squeeze=False)
    mixes = table[table["gate.priority"] == "additive"]
    image = None
    for row, (kind, words) in zip(grid, KINDS.items(), strict=True):
        for axes, arms in zip(row, sizes, strict=True):
            chosen = mixes[mixes["task.arms"] == arms]
            shares = chosen.pivot(index="gate.alpha", columns="p", values=f"{kind}_simulated")
            p, alpha = shares.columns.to_numpy(), shares.index.to_numpy()
            axes.grid(visible=False)
            image = axes.pcolormesh(edges(p), edges(alpha), shares, cmap="Purples", vmin=0, vmax=1.15, rasterized=True)
            line = chosen.drop_duplicates("p").sort_values("p")
            axes.plot(line["p"], line["critical"], color="black", lw=1.6)
            axes.axvline(1 / arms, color="black", lw=0.7, ls=":")
            axes.text(1 / arms, 0.98, " p = 1/K", fontsize=7.5, va="top", rotation=90 if arms > 50 else 0)
            delight = table[(table["gate.priority"] == "delight") & (table["task.arms"] == arms)]
            worst = delight[[f"{kind}_simulated", kind]].max().max()
            axes.text(
                0.98,
                0.05,
                f"delight, all p: {worst:.0%}",
                transform=axes.transAxes,
                ha="right",
                fontsize=8,
                color="white",
            )
            axes.set_title(f"K = {arms}, {words}")
            axes.set(xlim=(0, 1), ylim=(0, 1))
    grid[0, 0].annotate("α* = L/(1+L)", (0.3, 0.58), (-10, 24), textcoords="offset points", ha="left", fontsize=8.5)
    for axes in grid[-1]:
        axes.set_xlabel("p = π(y*)")
    for axes in grid[:, 0]:
        axes.set_ylabel("α of αU + (1−α)ℓ")
    if image is not None:
        bar = figure.colorbar(image, ax=grid, shrink=0.6, boundaries=np.linspace(0, 1, 101), ticks=[0, 0.5, 1])
        bar.set_label("failures ranked above a success")
    fewest = table["replicates"].min()
    text = (
        f"colour: simulation, n = {fewest} replicates of {table['batch'].max():,} samples; black: predicted boundary, "
        "L = log(p(K−1)/(1−p)), which assumes equal wrong arms and p > 1/K"
    )
    figure.supxlabel(text, fontsize=7.5, color="#666666", x=0.01, ha="left")
    return figure
