"""What the gate should rank by, on MNIST at ρ = 3%."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import plots, style
from analysis.load import final
from analysis.tables import aggregate

NAMES = {
    "delight": "delight U·ℓ",
    "advantage": "advantage U",
    "abs_advantage": "|advantage| |U|",
    "surprisal": "surprisal ℓ",
    "uniform": "uniform",
    "additive": "additive",
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    table = aggregate(final(frame), ["gate.priority", "gate.alpha", "gate.rate"])
    return table.sort_values("error", ignore_index=True)


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, sharex=False)
    mixed = table["gate.priority"] == "additive"
    pure = table[~mixed]
    colours = [style.colour("dgk") if name == "delight" else "#7a7a7a" for name in pure["gate.priority"]]
    plots.dots(left, pure, [NAMES.get(name, name) for name in pure["gate.priority"]], colours)
    left.set(xscale="log", xlabel="final test error", title="MNIST, DG-K ρ=3%: what to rank by")
    mixes = table[mixed].sort_values("gate.alpha")
    right.fill_between(mixes["gate.alpha"], mixes["error_low"], mixes["error_high"], color="#7a7a7a", alpha=0.2, lw=0)
    right.plot(mixes["gate.alpha"], mixes["error"], "o-", color="#7a7a7a", label="αU + (1 − α)ℓ")
    for row in table[table["gate.priority"] == "delight"].to_dict("records"):
        right.axhspan(row["error_low"], row["error_high"], color=style.colour("dgk"), alpha=0.2, lw=0)
        right.axhline(row["error"], color=style.colour("dgk"), label="delight U·ℓ")
    right.set(yscale="log", xlabel="α", ylabel="final test error", title="… against every fixed mix")
    right.legend(fontsize=8)
    style.note(figure, table)
    return figure
