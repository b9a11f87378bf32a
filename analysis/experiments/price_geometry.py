"""What each backward pass buys as the price rises, over contexts from unsolved to solved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import ABSTRACT, JOY, Finding, above, by_setting, claim, found, some, span
from analysis.load import final
from analysis.settings import DG, FREE, PG, Settings, gate
from analysis.stats import paired
from analysis.studies import note, replicates, spread, studied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@claim(
    "J12-price",
    "One update, over prices: some gate has a higher batch cosine with ∇J than PG and DG, with at least a tenth fewer "
    "backward passes",
    ABSTRACT,
    "price_geometry",
    version=JOY,
    where={"task.name": "price_geometry"},
)
def price_buys(frame: pd.DataFrame) -> Finding:
    """Paired over replicates at 95%, Bonferroni-corrected for the prices; the batch has the same number of samples. A
    tenth: a price so low that it skips less than one sample in a hundred, the most surprising failures, has a slightly
    higher cosine than PG and saves nothing."""
    prices = sorted(frame["gate.price"].dropna().unique())
    gates: Settings = {f"price {price}": gate(None, float(price)) for price in prices}
    settings: Settings = {"pg": PG, "dg": DG, **(gates or {"gate": FREE})}
    if few := replicates(frame, list(settings.values())):
        return few
    cosine = by_setting(frame, "batch_cosine_simulated", settings)
    bought, per_pass = (by_setting(frame, column, settings).iloc[0] for column in ("share", "gain_backward"))
    saving = [key for key in gates if bought[key] <= 0.9]
    parts, words, closest = [], [], []
    for reference in ("pg", "dg"):
        gaps = {key: paired(cosine[key], cosine[reference], 1 - 0.05 / len(saving)) for key in saving}
        text = f"some gate's cosine is above {style.label(settings[reference])}'s"
        if gaps:
            best = max(gaps, key=lambda key: gaps[key].low)
            closest.append(gaps[best])
            text += f": {style.label(settings[best])}, difference {span(gaps[best], '+.3f')}"
            words.append(
                f"{style.label(settings[best])} against {style.label(settings[reference])}: cosine "
                f"{cosine[best].mean():.3f} against {cosine[reference].mean():.3f} with "
                f"{bought[best]:.0%} of the backward passes"
            )
        parts.append((text, some([above(gap, 0) for gap in gaps.values()])))
    if saving:
        most = max(saving, key=lambda key: per_pass[key])
        words.append(
            f"progress per backward pass is highest at {style.label(settings[most])}, "
            f"{per_pass[most] / per_pass['pg']:.1f} times PG's"
        )
    return found(
        parts,
        "; ".join(words) or "no gate saves a tenth of the backward passes",
        closest[0] if closest else None,
        **studied(frame),
    )


WHY = {
    "J12-price": (
        "A gate averages fewer samples, and the failures that it leaves out point along ∇J too, if weakly: of one "
        "batch its cosine cannot be above PG's where PG's own noise is small. What the gate wins is progress per "
        "backward pass."
    ),
}
