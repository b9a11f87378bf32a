"""What each backward pass buys as the price rises, over contexts from unsolved to solved."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.studies import note, spread

EXACT = ["share", "cosine", "gain", "gain_backward", "batch_cosine", "budget_cosine"]
SIMULATED = [f"{name}_simulated" for name in EXACT]
PANELS = {
    "share": "backward passes per sample",
    "batch_cosine": "cosine with ∇J, batch of B samples",
    "gain_backward": "progress along ∇J per backward pass",
    "budget_cosine": "cosine with ∇J, B backward passes",
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per method and price."""
    return spread(final(frame), ["method.name", "gate.price"], EXACT, SIMULATED)


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharex=True)
    gates = table[table["method.name"] == "dgk"].sort_values("gate.price")
    colour = style.colour("dgk")
    for axes, (y, words) in zip(grid.flat, PANELS.items(), strict=True):
        axes.plot(gates["gate.price"], gates[y], color=colour, label="DG-K at price λ")
        mean, low, high = (gates[f"{y}_simulated{end}"] for end in ("", "_low", "_high"))
        axes.errorbar(gates["gate.price"], mean, [mean - low, high - mean], fmt="o", ms=4, color=colour, capsize=2)
        for reference in table[table["method.name"] != "dgk"].to_dict("records"):
            method = reference["method.name"]
            axes.axhline(reference[y], color=style.colour(method), ls="--" if method == "dg" else "-", lw=1.2)
            name = {"pg": "PG (λ = −∞)", "dg": "DG"}[method]
            if y == "share":
                name = "PG (λ = −∞) and DG" if method == "pg" else ""
            axes.annotate(
                name,
                (0.0, reference[y]),
                (3, 3 if method == "pg" else -10),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=style.colour(method),
                fontsize=8,
                weight="bold",
            )
        axes.axvline(0, color="black", lw=0.6, ls=":")
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.6)
        axes.set(ylabel=words, ylim=(0, None))
    for axes in grid[1]:
        axes.set_xlabel("price λ")
    grid[0, 0].set_title("What a price costs and buys")
    grid[0, 0].legend(fontsize=8, loc="lower left")
    note(figure, table.assign(batch=100 * table["batch"]), f"B = {table['batch'].max():,}")
    return figure
