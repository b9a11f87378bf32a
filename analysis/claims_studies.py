"""The claims that closed forms and simulations on softmax bandits decide."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.claims import (
    ABSTRACT,
    INCONCLUSIVE,
    MIN_SEEDS,
    Finding,
    below,
    claim,
    found,
    negated,
    setting_names,
    span,
)
from analysis.load import final
from analysis.stats import Interval, bootstrap, paired
from analysis.studies import unfold
from analysis.style import name


def replicates(frame: pd.DataFrame) -> Finding | None:
    """The finding that there is nothing to judge, unless every run has enough replicates."""
    seeds = int(final(frame).groupby("cell")["seed"].nunique().min())
    return Finding(INCONCLUSIVE, f"{seeds} replicates, {MIN_SEEDS} needed", seeds=seeds) if seeds < MIN_SEEDS else None


def studied(frame: pd.DataFrame) -> dict[str, int]:
    return {"seeds": int(final(frame).groupby("cell")["seed"].nunique().min()), "steps": int(frame["steps"].max())}


@claim(
    "J1",
    "Bandit, λ = 0: the expected gated gradient is along ∇J, no update has a component across it, and a share p of the "
    "samples is bought",
    "Prop. 1",
    "gradient_geometry",
)
def gate_points_along(frame: pd.DataFrame) -> Finding:
    """Cosine 1 and variance 0 across ∇J to rounding, in closed form and in every simulated batch; the share, over p,
    within 2% of it."""
    if few := replicates(frame):
        return few
    columns = ["p", "share_simulated", "cosine", "cosine_skewed", "cosine_simulated", "perpendicular_simulated"]
    gate = unfold(frame[frame["method.name"] == "dgk"], columns)
    cosine = float(gate[["cosine", "cosine_skewed", "cosine_simulated"]].min().min())
    across = float(gate["perpendicular_simulated"].max())
    share = bootstrap((gate["share_simulated"] / gate["p"]).groupby(gate["seed"]).mean())
    dg = unfold(frame[frame["method.name"] == "dg"], columns)
    parts: dict[str, bool | None] = {
        f"the lowest cosine is 1 to rounding: {cosine:.7f}": cosine > 1 - 1e-6,
        f"no variance across ∇J: {across:.1g} of |E|²": across < 1e-9,
        f"the share bought is p: {span(share, '.4f')} times p": abs(share.mean - 1) < 0.02,
    }
    return found(
        parts,
        f"lowest cosine {cosine:.7f}; variance across ∇J at most {across:.1g} of |E|²; backward passes "
        f"{span(share, '.4f')} times p. Along ∇J whatever the wrong arms; DG only where these are equal (else down to "
        f"{dg['cosine_skewed'].min():.2f})",
        cosine,
        **studied(frame),
    )


@claim(
    "J2",
    "Bandit: PG needs of the order of 1/p² samples for a high cosine, the gate log(1/δ) backward passes",
    "Prop. 1",
    "gradient_geometry",
)
def gate_needs_few(frame: pd.DataFrame) -> Finding:
    """Slopes on log axes over p ≤ 0.02 of the simulated number of samples: PG's is −1.75 or steeper, with b = Σπ² and
    also with the expected reward b = p; that of the gate's backward passes is within 0.1 of 0."""
    if few := replicates(frame):
        return few
    few_arms = frame[frame["task.arms"] == frame["task.arms"].min()]
    rows = unfold(few_arms, ["p", "needed", "needed_simulated"])
    rows = rows[rows["p"] <= 0.02].assign(kept=rows["needed_simulated"] * rows["p"])

    def slope(method: str, baseline: str, column: str) -> Interval:
        chosen = rows[(rows["method.name"] == method) & (rows["task.baseline"] == baseline)].dropna(subset=[column])
        return bootstrap(
            [np.polyfit(np.log(group["p"]), np.log(group[column]), 1)[0] for _, group in chosen.groupby("seed")]
        )

    free, expected = slope("pg", "confidence", "needed_simulated"), slope("pg", "oracle", "needed_simulated")
    gate = slope("dgk", "confidence", "kept")
    kept = rows[(rows["method.name"] == "dgk")]["kept"].mean()
    parts = {
        f"PG's power of p is −1.75 or steeper with b = Σπ²: {span(free, '.2f')}": below(free, -1.75),
        f"… and with b = p: {span(expected, '.2f')}": below(expected, -1.75),
        f"that of the gate's backward passes is within 0.1 of 0: {span(gate, '.2f')}": abs(gate.mean) < 0.1,
    }
    return found(
        parts,
        f"PG's samples grow as p to the power of {span(free, '.2f')} with b = Σπ², but {span(expected, '.2f')} with "
        f"the expected reward b = p, where its failures weigh little too; the gate buys {kept:.2f} backward "
        f"passes (log 1/δ = {-math.log(frame['task.delta'].iloc[0]):.2f}) at every p, power {span(gate, '.2f')}",
        free,
        **studied(frame),
    )


@claim(
    "J12-price",
    "One update, over prices: some gate has a higher batch cosine with ∇J than PG and DG, with at least a tenth fewer "
    "backward passes",
    ABSTRACT,
    "price_geometry",
)
def price_buys(frame: pd.DataFrame) -> Finding:
    """Paired over replicates at 95%, Bonferroni-corrected for the prices; the batch has the same number of samples. A
    tenth: a price so low that it skips less than one sample in a hundred, the most surprising failures, has a slightly
    higher cosine than PG and saves nothing."""
    if few := replicates(frame):
        return few
    ends = final(frame)
    ends = ends.assign(setting=setting_names(ends))
    cosine = ends.pivot_table(index="seed", columns="setting", values="batch_cosine_simulated")
    per_pass = ends.groupby("setting")["gain_backward"].first()
    share = ends.groupby("setting")["share"].first()
    gates = [setting for setting in map(str, cosine) if setting not in ("PG", "DG") and share[setting] <= 0.9]
    gaps = {
        reference: {gate: paired(cosine[gate], cosine[reference], 1 - 0.05 / len(gates)) for gate in gates}
        for reference in ("PG", "DG")
    }
    best = {reference: max(tried, key=lambda gate: tried[gate].low) for reference, tried in gaps.items()}
    most = str(per_pass[gates].idxmax())
    best_gaps = {reference: gaps[reference][gate] for reference, gate in best.items()}
    return found(
        {
            f"some gate's cosine is above {reference}'s: {best[reference]}, difference {span(gap, '+.3f')}": below(
                negated(gap), 0
            )
            for reference, gap in best_gaps.items()
        },
        "; ".join(
            f"{best[reference]} against {reference}: cosine {cosine[best[reference]].mean():.3f} against "
            f"{cosine[reference].mean():.3f} with {share[best[reference]]:.0%} of the backward passes"
            for reference in ("PG", "DG")
        )
        + f"; progress per backward pass is highest at {most}, {per_pass[most] / per_pass['PG']:.1f} times PG's",
        best_gaps["PG"],
        **studied(frame),
    )


@claim(
    "J3",
    "Bandit: an additive mix ranks failures above successes for α below L/(1+L), L = log(p(K−1)/(1−p)); delight never",
    "Prop. 2",
    "priority_ranking",
)
def mixes_misrank(frame: pd.DataFrame) -> Finding:
    """Every simulated (p, K, α) with equal wrong arms is on the predicted side; no failure is above a success by
    delight, with equal or unequal wrong arms."""
    if few := replicates(frame):
        return few
    rows = unfold(frame, ["p", "critical", "misranked_simulated", "misranked_skewed_simulated"])
    mixes = rows[(rows["gate.priority"] == "additive") & rows["misranked_simulated"].notna()]
    predicted = (mixes["gate.alpha"] < mixes["critical"]).astype(float)
    agree = float((predicted == mixes["misranked_simulated"]).mean())
    surplus = np.log(mixes["p"] * (mixes["task.arms"] - 1) / (1 - mixes["p"]))
    literal = (mixes["gate.alpha"] < surplus / (1 + surplus)).astype(float)
    rare = surplus < -1
    wrong = float((literal != mixes["misranked_simulated"])[rare].mean()) if rare.any() else 0.0
    delight = rows[rows["gate.priority"] == "delight"]
    worst = float(delight[["misranked_simulated", "misranked_skewed_simulated"]].max().max())
    skewed = mixes.dropna(subset=["misranked_skewed_simulated"])
    beyond = skewed[skewed["gate.alpha"] > skewed["critical"]]["misranked_skewed_simulated"]
    return found(
        {
            f"every mix is on the predicted side of α*: {agree:.1%}": agree == 1.0,
            f"delight mis-ranks none: {worst:.0%}": worst == 0.0,
        },
        f"{agree:.1%} of the points are on the predicted side of α* = L⁺/(1+L⁺); delight mis-ranks {worst:.0%}. "
        f"The formula is for L > 0, p > 1/K: read literally for L < −1 it exceeds 1 and is wrong at {wrong:.0%} of the "
        f"points there. With unequal wrong arms up to {beyond.max():.0%} of the failures are mis-ranked above α*",
        agree,
        **studied(frame),
    )


@claim(
    "J4",
    "Bandit: a bad arm with noisy reward opens the gate, exponentially seldom for σ ≪ Δ and often for σ ≫ Δ; noise on "
    "all arms alike does not single DG out",
    "Prop. 3",
    "gambling",
)
def gate_gambles(frame: pd.DataFrame) -> Finding:
    """Simulated openings are below ½ exp(−p²Δ²/2σ²), at 95%, for σ ≤ 0.3Δ, and above ¼ for σ ≥ 3Δ. With noise 3Δ on
    the bad arm DG and DG-K end with a higher error than PG by more than 0.05, with the same noise on both arms not."""
    if few := replicates(frame):
        return few
    grid = ["sigma", "opened_simulated", "learned"]
    rows = final(frame).explode(grid, ignore_index=True)
    rows = rows.assign(end=[curve[-1] for curve in rows["learned"]]).astype({"sigma": float, "opened_simulated": float})
    gate = rows[rows["method.name"] == "dgk"]
    quiet, loud = gate[gate["sigma"] <= 0.3], gate[gate["sigma"] >= 3]
    above = quiet["opened_simulated"] - 0.5 * np.exp(-((quiet["task.start"] / quiet["sigma"]) ** 2) / 2)
    excess = bootstrap(above.groupby(quiet["seed"]).mean())  # values of σ are no replicates
    opened = bootstrap(loud.groupby("seed")["opened_simulated"].mean())
    errors = rows[rows["sigma"] == 3].pivot_table(index="seed", columns=["method.name", "task.noise"], values="end")
    gaps = {
        (method, noise): paired(errors[method, noise], errors["pg", noise])
        for method in ("dg", "dgk")
        for noise in ("bad", "both")
    }
    parts = {
        f"opens less than ½ exp(−p²Δ²/2σ²) for σ ≤ 0.3Δ: {span(excess, '+.2%')}": below(excess, 0),
        f"opens for more than a quarter at σ ≥ 3Δ: {span(opened, '.1%')}": below(negated(opened), -0.25),
    }
    for method in ("dg", "dgk"):
        bad, both = gaps[method, "bad"], gaps[method, "both"]
        parts[f"bad arm noisy: {name(method)} ends above PG by more than 0.05: {span(bad, '.3f')}"] = below(
            negated(bad), -0.05
        )
        parts[f"both noisy: {name(method)} does not: {span(both, '.3f')}"] = below(both, 0.05)
    return found(
        parts,
        f"it opens for {quiet['opened_simulated'].mean():.1%} of bad samples at σ ≤ 0.3Δ, {span(opened, '.1%')} at "
        "σ ≥ 3Δ; error above PG's at σ = 3Δ: "
        + "; ".join(
            f"{name(method)}, {'bad arm' if noise == 'bad' else 'both arms'} noisy: {span(gap, '.3f')}"
            for (method, noise), gap in gaps.items()
        ),
        gaps["dgk", "bad"],
        **studied(frame),
    )


@claim(
    "D2-bandit",
    "Bandit: under contamination cos(PG, ∇J) collapses and DG's grows as the policy improves",
    "Cor. 1",
    "contamination",
)
def dg_aligns_on_bandits(frame: pd.DataFrame) -> Finding:
    """Batch cosine at the smallest δ against that at the largest."""
    if few := replicates(frame):
        return few
    rows = unfold(frame, ["delta", "cosine", "collapse", "batch_cosine_simulated"])
    table = rows.pivot_table(index="seed", columns=["method.name", "delta"], values="batch_cosine_simulated")
    first, last = float(rows["delta"].max()), float(rows["delta"].min())
    changes = {method: paired(table[method, last], table[method, first]) for method in ("pg", "dg", "dgk")}
    exact = {method: rows[rows["method.name"] == method].groupby("delta").first() for method in changes}
    parts = {
        f"PG's batch cosine falls: {span(changes['pg'], '+.3f')}": below(changes["pg"], 0),
        f"DG's rises: {span(changes['dg'], '+.3f')}": below(negated(changes["dg"]), 0),
    }
    return found(
        parts,
        f"from δ = {first:g} to {last:g}, of a batch: "
        + "; ".join(f"{name(method)} {span(change, '+.3f')}" for method, change in changes.items())
        + "; of the expected update: "
        + "; ".join(
            f"{name(method)} {each['cosine'][first]:.3f} to {each['cosine'][last]:.3f}, at least "
            f"{each['cosine'].min():.3f}"
            for method, each in exact.items()
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
)
def sign_matters(frame: pd.DataFrame) -> Finding:
    """At the smallest δ, DG's cosine is above that of the best weight that does not see the sign of U: of the expected
    update, and of a batch, both in closed form, beside simulated batches."""
    if few := replicates(frame):
        return few
    rows = unfold(frame, ["delta", "cosine", "blind", "batch_cosine", "batch_blind", "batch_cosine_simulated"])
    exact = rows.groupby(["method.name", "delta"]).first()
    dg, sampling = exact.loc["dg"], exact.loc["is_pg"]
    above = int((dg["batch_cosine"] > dg["batch_blind"]).sum())
    last = rows[rows["delta"] == rows["delta"].min()].set_index("seed")
    simulated = {method: last[last["method.name"] == method]["batch_cosine_simulated"] for method in ("dg", "is_pg")}
    gap = paired(simulated["dg"], simulated["is_pg"])
    end, other = dg.iloc[0], sampling.iloc[0]
    parts: dict[str, bool | None] = {
        f"DG's expected update above the best sign-blind: {end['cosine']:.4f} against {end['blind']:.4f}": bool(
            end["cosine"] > end["blind"]
        ),
        f"… of a batch: {end['batch_cosine']:.4f} against {end['batch_blind']:.4f}": bool(
            end["batch_cosine"] > end["batch_blind"]
        ),
    }
    return found(
        parts,
        f"at δ = {dg.index[0]:g}, expected update: best sign-blind {end['blind']:.4f}, exact IS {other['cosine']:.4f} "
        f"(its mean is ∇J whatever the behaviour), DG {end['cosine']:.4f}; of a batch: best sign-blind "
        f"{end['batch_blind']:.4f}, exact IS {other['batch_cosine']:.4f}, DG {end['batch_cosine']:.4f}, which is above "
        f"the best sign-blind at {above} of {len(dg)} δ; simulated, DG minus exact IS {span(gap, '+.4f')}. But these "
        "must know the behaviour or the population, and DG neither",
        gap,
        **studied(frame),
    )


@claim(
    "DG-gate",
    "In expectation DG is the gate with a coin at price 0 and temperature 1, and the hard gate its limit η → 0",
    "definition",
    "gate_coefficient",
)
def dg_is_a_soft_gate(frame: pd.DataFrame) -> Finding:
    """The simulated coin's weights differ from DG's by no more than five standard errors, over all U and π; at η = 0.1
    they are within 1% of the hard gate's wherever |χ| > 1."""
    if few := replicates(frame):
        return few
    rows = unfold(frame, ["advantage", "prob", "weight", "weight_simulated"])
    coins = rows[(rows["gate.mode"] == "bernoulli") & (rows["gate.price"] == 0)]
    place = ["advantage", "prob"]
    means = coins.groupby(["gate.temperature", *place])["weight_simulated"].mean()
    dg = rows[rows["method.name"] == "dg"].groupby(place)["weight"].first()
    hard = rows[(rows["gate.mode"] == "hard") & (rows["gate.price"] == 0)].groupby(place)["weight"].first()
    tosses = rows["task.batch"].iloc[0] * rows["seed"].nunique()
    off = ((means.loc[1.0] - dg) / np.sqrt(dg * (1 - dg) / tosses)).abs().max()
    chi = pd.Series({key: -key[0] * math.log(key[1]) for key in hard.index})
    far = (means.loc[0.1] - hard)[chi.abs() > 1].abs().max()
    return found(
        {
            f"DG's weight within five standard errors: {off:.1f}": bool(off < 5),
            f"the hard gate's within 1% at η = 0.1: {far:.1g}": bool(far < 0.01),
        },
        f"largest deviation from DG's weight {off:.1f} standard errors over {len(dg)} samples (U, π); from the hard "
        f"gate's at η = 0.1, where |χ| > 1, {far:.1g}",
        float(off),
        **studied(frame),
    )
