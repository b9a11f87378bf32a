"""Which failures an additive priority ranks above successes, over p, K and α; delight ranks none so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots
from analysis.judge import JOY, Finding, claim, found
from analysis.settings import method
from analysis.studies import on_grid, replicates, spread, studied, unfold
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@claim(
    "J3",
    "Bandit: an additive mix ranks failures above successes for α below L/(1+L), L = log(p(K−1)/(1−p)); delight never",
    "Prop. 2",
    "priority_ranking",
    version=JOY,
    where={"task.name": "priority_ranking"},
)
def mixes_misrank(frame: pd.DataFrame) -> Finding:
    """Every simulated (p, K, α) with equal wrong arms is on the predicted side; no failure is above a success by
    delight, with equal or unequal wrong arms."""
    wanted = [method("dgk", **{"gate.priority": priority}) for priority in ("additive", "delight")]
    if few := replicates(frame, wanted):
        return few
    columns = ["p", "critical", "misranked_simulated", "misranked_skewed_simulated"]
    axes = ["gate.alpha", "task.arms", "p"]
    mixes, delight = (on_grid(matching(frame, setting), axes, columns) for setting in wanted)
    mixes = mixes[mixes["misranked_simulated"].notna()]
    predicted = (mixes["gate.alpha"] < mixes["critical"]).astype(float)
    agree = float((predicted == mixes["misranked_simulated"]).mean())
    surplus = np.log(mixes["p"] * (mixes["task.arms"] - 1) / (1 - mixes["p"]))
    literal = (mixes["gate.alpha"] < surplus / (1 + surplus)).astype(float)
    rare = surplus < -1
    wrong = float((literal != mixes["misranked_simulated"])[rare].mean()) if rare.any() else 0.0
    worst = float(delight[["misranked_simulated", "misranked_skewed_simulated"]].max().max())
    skewed = mixes.dropna(subset=["misranked_skewed_simulated"])
    beyond = skewed[skewed["gate.alpha"] > skewed["critical"]]["misranked_skewed_simulated"]
    return found(
        [
            (f"every mix is on the predicted side of α*: {agree:.1%}", agree == 1.0),
            (f"delight mis-ranks none: {worst:.0%}", worst == 0.0),
        ],
        f"{agree:.1%} of the points are on the predicted side of α* = L⁺/(1+L⁺); delight mis-ranks {worst:.0%}. "
        f"The formula is for L > 0, p > 1/K: read literally for L < −1 it exceeds 1 and is wrong at {wrong:.0%} of the "
        f"points there. With unequal wrong arms up to {beyond.max():.0%} of the failures are mis-ranked above α*",
        agree,
        **studied(frame),
    )
