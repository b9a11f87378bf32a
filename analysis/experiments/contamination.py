"""Cosine with ∇J when a share of the samples is uniformly random, as the policy improves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.judge import WITHDRAWN, Finding, Part, above, below, claim, found, span
from analysis.settings import DG, FREE, PG, Settings, method
from analysis.stats import paired
from analysis.studies import by_seed, note, on_grid, replicates, spread, studied, unfold
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        for name, group in table.groupby("method.name"):
            colour = style.colour(str(name))
            label = {"dgk": "DG-K λ=0", "is_pg": "exact IS"}.get(str(name), style.name(str(name)))
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


@claim(
    "D2-bandit",
    "Bandit: under contamination cos(PG, ∇J) collapses and DG's grows as the policy improves",
    "Cor. 1",
    "contamination",
    version=WITHDRAWN,
    where={"task.name": "contamination"},
)
def dg_aligns_on_bandits(frame: pd.DataFrame) -> Finding:
    """Batch cosine at the smallest δ against that at the largest."""
    methods: Settings = {"pg": PG, "dg": DG, "dgk": FREE}
    if few := replicates(frame, list(methods.values())):
        return few
    columns = ["delta", "cosine", "collapse", "batch_cosine_simulated"]
    rows = {key: on_grid(matching(frame, setting), ["delta"], columns) for key, setting in methods.items()}
    first, last = float(rows["pg"]["delta"].max()), float(rows["pg"]["delta"].min())
    tables = {key: by_seed(each, ["delta"], "batch_cosine_simulated") for key, each in rows.items()}
    changes = {key: paired(table[last], table[first]) for key, table in tables.items()}
    exact = {key: each.groupby("delta").first() for key, each in rows.items()}
    parts = [
        (f"PG's batch cosine falls: {span(changes['pg'], '+.3f')}", below(changes["pg"], 0)),
        (f"DG's rises: {span(changes['dg'], '+.3f')}", above(changes["dg"], 0)),
    ]
    return found(
        parts,
        f"from δ = {first:g} to {last:g}, of a batch: "
        + "; ".join(f"{style.name(key)} {span(change, '+.3f')}" for key, change in changes.items())
        + "; of the expected update: "
        + "; ".join(
            f"{style.name(key)} {each['cosine'][first]:.3f} to {each['cosine'][last]:.3f}, at least "
            f"{each['cosine'].min():.3f}"
            for key, each in exact.items()
        )
        + f" (predicted for PG at the end: A√δ = {exact['pg']['collapse'][last]:.3f})",
        changes["dg"],
        **studied(frame),
    )


@claim(
    "D3",
    "Bandit: no sign-blind weight, exact importance sampling included, has DG's cosine with ∇J under contamination",
    "Prop. 3",
    "contamination",
    version=WITHDRAWN,
    where={"task.name": "contamination"},
)
def sign_matters(frame: pd.DataFrame) -> Finding:
    """At the smallest δ, DG's cosine is above that of the best weight that does not see the sign of U: of the expected
    update, and of a batch, both in closed form, beside simulated batches."""
    methods: Settings = {"dg": DG, "is_pg": method("is_pg")}
    if few := replicates(frame, list(methods.values())):
        return few
    columns = ["delta", "cosine", "blind", "batch_cosine", "batch_blind", "batch_cosine_simulated"]
    rows = {key: on_grid(matching(frame, setting), ["delta"], columns) for key, setting in methods.items()}
    dg, sampling = (rows[key].groupby("delta").first() for key in ("dg", "is_pg"))
    over = int((dg["batch_cosine"] > dg["batch_blind"]).sum())
    last = {key: by_seed(each, ["delta"], "batch_cosine_simulated")[dg.index[0]] for key, each in rows.items()}
    gap = paired(last["dg"], last["is_pg"])
    end, other = dg.iloc[0], sampling.iloc[0]
    parts: list[Part] = [
        (
            f"DG's expected update above the best sign-blind: {end['cosine']:.4f} against {end['blind']:.4f}",
            bool(end["cosine"] > end["blind"]),
        ),
        (
            f"… of a batch: {end['batch_cosine']:.4f} against {end['batch_blind']:.4f}",
            bool(end["batch_cosine"] > end["batch_blind"]),
        ),
    ]
    return found(
        parts,
        f"at δ = {dg.index[0]:g}, expected update: best sign-blind {end['blind']:.4f}, exact IS {other['cosine']:.4f} "
        f"(its mean is ∇J whatever the behaviour), DG {end['cosine']:.4f}; of a batch: best sign-blind "
        f"{end['batch_blind']:.4f}, exact IS {other['batch_cosine']:.4f}, DG {end['batch_cosine']:.4f}, which is above "
        f"the best sign-blind at {over} of {len(dg)} δ; simulated, DG minus exact IS {span(gap, '+.4f')}. But these "
        "must know the behaviour or the population, and DG neither",
        gap,
        **studied(frame),
    )


WHY = {
    "D3": (
        "Importance sampling with exact probabilities is unbiased: its expected update is ∇J, and no weight has a "
        "larger cosine than one. The second version of the paper does not claim it any more."
    ),
}
