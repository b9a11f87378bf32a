"""Cosine with ∇J when a share of the samples is uniformly random, as the policy improves."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.studies import note, spread, unfold

EXACT = ["cosine", "batch_cosine", "collapse", "blind", "batch_blind"]
SIMULATED = ["batch_cosine_simulated"]
PANELS = {
    "cosine": ("blind", "the expected update"),
    "batch_cosine": ("batch_blind", "a batch"),
}
BLIND = "#b8860b"


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, δ)."""
    rows = unfold(frame, ["delta", *EXACT, *SIMULATED])
    return spread(rows, ["method.name", "task.share", "delta"], EXACT, SIMULATED)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(1, 2, sharey=True)
    figure.set_size_inches(9.6, 4.2)
    for axes, (y, (blind, words)) in zip(grid, PANELS.items(), strict=True):
        for method, group in table.groupby("method.name"):
            colour = style.colour(str(method))
            label = {"dgk": "DG-K λ=0", "is_pg": "exact IS"}.get(str(method), style.name(str(method)))
            axes.plot(group["delta"], group[y], color=colour, label=label)
            if f"{y}_simulated" in group:
                mean, low, high = (group[f"{y}_simulated{end}"] for end in ("", "_low", "_high"))
                axes.errorbar(group["delta"], mean, [mean - low, high - mean], fmt="o", ms=4, color=colour, capsize=2)
        best = table.drop_duplicates("delta").sort_values("delta")
        axes.plot(best["delta"], best[blind], color=BLIND, ls="--", label="best sign-blind weight")
        axes.set(xscale="log", xlabel="δ (the policy improves to the left)", title=f"Cosine of {words} with ∇J")
        axes.set_ylim(0, 1.04)
    best = table.drop_duplicates("delta").sort_values("delta")
    close = best[best["delta"] <= 0.05]
    grid[0].plot(close["delta"], close["collapse"], color="black", lw=0.9, ls=":", label="predicted for PG: A√δ")
    grid[0].set_ylabel("cosine with ∇J")
    handles, labels = grid[0].get_legend_handles_labels()
    grid[0].legend(handles, labels, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.35))
    share = float(table["task.share"].iloc[0])
    note(figure, table, f"{style.percent(share)} of the samples uniformly random, 1,000 contexts, K = 10")
    return figure
