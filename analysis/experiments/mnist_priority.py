"""What the gate should rank by, on MNIST at ρ = 3%."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import JOY, Finding, below, by_setting, claim, found, points, possible, scope, unready
from analysis.load import final
from analysis.settings import MNIST, Columns, Settings, gate
from analysis.stats import paired
from analysis.tables import aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


MIXES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
"""α of the additive mixes that stand for every fixed one."""


def rival_priorities(frame: pd.DataFrame) -> Settings:
    """The priorities that delight is compared with: those the claim names, and whichever mixes were run."""
    simple = {each: _ranked(each) for each in ("advantage", "abs_advantage", "surprisal", "uniform")}
    run = frame.loc[frame["gate.priority"] == "additive", "gate.alpha"].astype(float).round(9)
    return simple | {f"α = {alpha:g}": _ranked("additive", float(alpha)) for alpha in sorted({*MIXES, *run})}


def _ranked(priority: str, alpha: float | None = None) -> Columns:
    mix = {} if alpha is None else {"gate.alpha": alpha}
    return gate(0.03, None, **{"gate.priority": priority, **mix})


@claim(
    "J7",
    "MNIST: delight is a better priority than advantage, |advantage|, surprisal, chance and every fixed additive mix",
    "delight lowest",
    "mnist_priority",
    version=JOY,
    where=MNIST,
)
def delight_ranks_best(frame: pd.DataFrame) -> Finding:
    """Better: the paired difference in final error is below zero at 95%, Bonferroni-corrected."""
    rivals = rival_priorities(frame)
    settings: Settings = {"delight": gate(0.03), **rivals}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gaps = {key: paired(errors["delight"], errors[key], 1 - 0.05 / len(rivals)) for key in rivals}
    closest = max(gaps, key=lambda key: gaps[key].mean)
    unbeaten = [f"{key} ({errors[key].mean():.1%})" for key in rivals if below(gaps[key], 0) is not True]
    return found(
        [(f"below {key}: {points(gap)}", below(gap, 0)) for key, gap in gaps.items()],
        f"delight {errors['delight'].mean():.2%}; beats {len(rivals) - len(unbeaten)} of {len(rivals)}; closest: "
        f"{closest} at {errors[closest].mean():.2%}, difference {points(gaps[closest])}"
        + (f"; not surely beaten: {', '.join(unbeaten)}" if unbeaten else ""),
        possible(gaps[closest]),
        **scope(frame, errors),
    )


WHY = {
    "J7": (
        "A mix that is nearly all advantage ranks as delight does where it matters: the best 3% are successes, and "
        "surprisal orders them in both. By advantage alone most seeds end near delight and a few far above, so that "
        "ten of them leave the difference open."
    ),
}
