"""The claims that closed forms and simulations on softmax bandits decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.judge import (
    ABSTRACT,
    DG,
    DIST_2,
    INCONCLUSIVE,
    JOY,
    MIN_SEEDS,
    NOT_RUN,
    PG,
    WITHDRAWN,
    Columns,
    Finding,
    Part,
    Settings,
    above,
    below,
    by_setting,
    claim,
    describe,
    found,
    gate,
    method,
    share,
    some,
    span,
    within,
)
from analysis.load import final
from analysis.stats import Interval, bootstrap, paired
from analysis.studies import unfold
from analysis.style import label, name
from analysis.tables import check_unique, matching

FREE = gate(None, 0.0)
"""DG-K at λ = 0"""


def replicates(frame: pd.DataFrame, wanted: Sequence[Columns]) -> Finding | None:
    """The finding that there is nothing to judge, unless everything wanted was run with enough replicates."""
    ends = final(frame)
    rows = [matching(ends, setting) for setting in wanted]
    missing = [describe(setting) for setting, each in zip(wanted, rows, strict=True) if each.empty]
    if missing:
        return Finding(NOT_RUN, f"no runs of {'; '.join(missing)}")
    seeds = min(int(each.groupby("cell")["seed"].nunique().min()) for each in rows)
    if seeds < MIN_SEEDS:
        return Finding(INCONCLUSIVE, f"{seeds} replicates, {MIN_SEEDS} needed", seeds=seeds)
    return None


def studied(frame: pd.DataFrame) -> dict[str, int]:
    return {"seeds": int(final(frame).groupby("cell")["seed"].nunique().min()), "steps": int(frame["steps"].max())}


def on_grid(frame: pd.DataFrame, axes: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A row per (seed, point of the grid, setting on the axes); more than one is refused."""
    rows = unfold(frame, columns)
    check_unique(rows, axes)
    return rows


def by_seed(rows: pd.DataFrame, axes: Sequence[str], value: str) -> pd.DataFrame:
    """[seed × axes]"""
    return rows.pivot(index="seed", columns=list(axes), values=value)


def slope(rows: pd.DataFrame, x: str, y: str) -> Interval:
    """The power with which y goes with x: the slope on log axes, fitted for each seed."""
    known = rows.dropna(subset=[y])
    return bootstrap([np.polyfit(np.log(group[x]), np.log(group[y]), 1)[0] for _, group in known.groupby("seed")])


@claim(
    "J1",
    "Bandit, λ = 0: the expected gated gradient is along ∇J, no update has a component across it, and a share p of the "
    "samples is bought",
    "Prop. 1",
    "gradient_geometry",
    version=JOY,
    where={"task.name": "gradient_geometry"},
)
def gate_points_along(frame: pd.DataFrame) -> Finding:
    """Cosine 1 and variance 0 across ∇J to rounding, in closed form and in every simulated batch; the share, over p,
    within 2% of it."""
    if few := replicates(frame, [FREE, DG]):
        return few
    columns = ["p", "share_simulated", "cosine", "cosine_skewed", "cosine_simulated", "perpendicular_simulated"]
    axes = ["task.arms", "task.baseline", "p"]
    gated, dg = (on_grid(matching(frame, setting), axes, columns) for setting in (FREE, DG))
    cosine = float(gated[["cosine", "cosine_skewed", "cosine_simulated"]].min().min())
    across = float(gated["perpendicular_simulated"].max())
    bought = bootstrap((gated["share_simulated"] / gated["p"]).groupby(gated["seed"]).mean())
    parts = [
        (f"the lowest cosine is 1 to rounding: {cosine:.7f}", cosine > 1 - 1e-6),
        (f"no variance across ∇J: {across:.1g} of |E|²", across < 1e-9),
        (f"the share bought is p: {span(bought, '.4f')} times p", abs(bought.mean - 1) < 0.02),
    ]
    return found(
        parts,
        f"lowest cosine {cosine:.7f}; variance across ∇J at most {across:.1g} of |E|²; backward passes "
        f"{span(bought, '.4f')} times p. Along ∇J whatever the wrong arms; DG only where these are equal (else down to "
        f"{dg['cosine_skewed'].min():.2f})",
        cosine,
        **studied(frame),
    )


@claim(
    "J2",
    "Bandit: PG needs of the order of 1/p² samples for a high cosine, the gate log(1/δ) backward passes",
    "Prop. 1",
    "gradient_geometry",
    version=JOY,
    where={"task.name": "gradient_geometry"},
)
def gate_needs_few(frame: pd.DataFrame) -> Finding:
    """Slopes on log axes over p ≤ 0.02 of the simulated number of samples: PG's is −1.75 or steeper, with b = Σπ² and
    also with the expected reward b = p; that of the gate's backward passes is within 0.1 of 0."""
    confidence, oracle = ({"task.baseline": baseline} for baseline in ("confidence", "oracle"))
    wanted = {"free": {**PG, **confidence}, "expected": {**PG, **oracle}, "gate": {**FREE, **confidence}}
    few_arms = frame[frame["task.arms"] == frame["task.arms"].min()]
    if few := replicates(few_arms, list(wanted.values())):
        return few
    rows = {}
    for key, setting in wanted.items():
        each = on_grid(matching(few_arms, setting), ["p"], ["p", "needed_simulated"])
        rows[key] = each[each["p"] <= 0.02].assign(kept=each["needed_simulated"] * each["p"])
    free, expected = (slope(rows[key], "p", "needed_simulated") for key in ("free", "expected"))
    gated, kept = slope(rows["gate"], "p", "kept"), rows["gate"]["kept"].mean()
    parts = [
        (f"PG's power of p is −1.75 or steeper with b = Σπ²: {span(free, '.2f')}", below(free, -1.75)),
        (f"… and with b = p: {span(expected, '.2f')}", below(expected, -1.75)),
        (f"that of the gate's backward passes is within 0.1 of 0: {span(gated, '.2f')}", abs(gated.mean) < 0.1),
    ]
    return found(
        parts,
        f"PG's samples grow as p to the power of {span(free, '.2f')} with b = Σπ², but {span(expected, '.2f')} with "
        f"the expected reward b = p, where its failures weigh little too; the gate buys {kept:.2f} backward "
        f"passes (log 1/δ = {-math.log(frame['task.delta'].iloc[0]):.2f}) at every p, power {span(gated, '.2f')}",
        free,
        **studied(frame),
    )


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
        text = f"some gate's cosine is above {label(settings[reference])}'s"
        if gaps:
            best = max(gaps, key=lambda key: gaps[key].low)
            closest.append(gaps[best])
            text += f": {label(settings[best])}, difference {span(gaps[best], '+.3f')}"
            words.append(
                f"{label(settings[best])} against {label(settings[reference])}: cosine {cosine[best].mean():.3f} "
                f"against {cosine[reference].mean():.3f} with {bought[best]:.0%} of the backward passes"
            )
        parts.append((text, some([above(gap, 0) for gap in gaps.values()])))
    if saving:
        most = max(saving, key=lambda key: per_pass[key])
        words.append(
            f"progress per backward pass is highest at {label(settings[most])}, "
            f"{per_pass[most] / per_pass['pg']:.1f} times PG's"
        )
    return found(
        parts,
        "; ".join(words) or "no gate saves a tenth of the backward passes",
        closest[0] if closest else None,
        **studied(frame),
    )


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


@claim(
    "J4",
    "Bandit: a bad arm with noisy reward opens the gate, exponentially seldom for σ ≪ Δ and often for σ ≫ Δ; noise on "
    "all arms alike does not single DG out",
    "Prop. 3",
    "gambling",
    version=JOY,
    where={"task.name": "gambling"},
)
def gate_gambles(frame: pd.DataFrame) -> Finding:
    """Simulated openings are below ½ exp(−p²Δ²/2σ²), at 95%, for σ ≤ 0.3Δ, and above ¼ for σ ≥ 3Δ. With noise 3Δ on
    the bad arm DG and DG-K end with a higher error than PG by more than 0.05, with the same noise on both arms not."""
    methods: Settings = {"pg": PG, "dg": DG, "dgk": FREE}
    wanted = [{**each, "task.noise": noise} for each in methods.values() for noise in ("bad", "both")]
    if few := replicates(frame, wanted):
        return few
    rows = final(frame).explode(["sigma", "opened_simulated", "learned"], ignore_index=True)
    rows = rows.assign(end=[curve[-1] for curve in rows["learned"]]).astype({"sigma": float, "opened_simulated": float})
    axes = ["method.name", "task.noise"]
    check_unique(rows, [*axes, "sigma"])
    gated = rows[rows["method.name"] == "dgk"]
    quiet, loud = gated[gated["sigma"] <= 0.3], gated[gated["sigma"] >= 3]
    over = quiet["opened_simulated"] - 0.5 * np.exp(-((quiet["task.start"] / quiet["sigma"]) ** 2) / 2)
    excess = bootstrap(over.groupby(quiet["seed"]).mean())  # values of σ are no replicates
    opened = bootstrap(loud.groupby("seed")["opened_simulated"].mean())
    errors = by_seed(rows[rows["sigma"] == 3], axes, "end")
    gaps = {
        (key, noise): paired(errors[key, noise], errors["pg", noise])
        for key in ("dg", "dgk")
        for noise in ("bad", "both")
    }
    parts = [
        (f"opens less than ½ exp(−p²Δ²/2σ²) for σ ≤ 0.3Δ: {span(excess, '+.2%')}", below(excess, 0)),
        (f"opens for more than a quarter at σ ≥ 3Δ: {span(opened, '.1%')}", above(opened, 0.25)),
    ]
    for key in ("dg", "dgk"):
        bad, both = gaps[key, "bad"], gaps[key, "both"]
        text = f"bad arm noisy: {name(key)} ends above PG by more than 0.05: {span(bad, '.3f')}"
        parts.append((text, above(bad, 0.05)))
        parts.append((f"both noisy: {name(key)} does not: {span(both, '.3f')}", below(both, 0.05)))
    return found(
        parts,
        f"it opens for {quiet['opened_simulated'].mean():.1%} of bad samples at σ ≤ 0.3Δ, {span(opened, '.1%')} at "
        "σ ≥ 3Δ; error above PG's at σ = 3Δ: "
        + "; ".join(
            f"{name(key)}, {'bad arm' if noise == 'bad' else 'both arms'} noisy: {span(gap, '.3f')}"
            for (key, noise), gap in gaps.items()
        ),
        gaps["dgk", "bad"],
        **studied(frame),
    )


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
        + "; ".join(f"{name(key)} {span(change, '+.3f')}" for key, change in changes.items())
        + "; of the expected update: "
        + "; ".join(
            f"{name(key)} {each['cosine'][first]:.3f} to {each['cosine'][last]:.3f}, at least "
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


BASELINES = {"confidence": "b = Σπ²", "half": "b = ½"}
BY_PROBABILITY: Settings = {"exact IS": method("is_pg")} | {
    f"{words} by surprisal": method("dgk", **{"gate.priority": "surprisal", "gate.mode": mode})
    for words, mode in (("gate", "hard"), ("weight", "soft"), ("coin", "bernoulli"))
}
"""Weights that see nothing but the learner's probability of the action."""


def _suppressed(frame: pd.DataFrame, settings: Settings) -> dict[tuple[str, str], pd.DataFrame]:
    """The rows of each setting and baseline, a row per seed and δ."""
    exact = ["factor", "failure", "success"]
    columns = ["delta", *exact, *(f"{column}_simulated" for column in exact)]
    return {
        (key, baseline): on_grid(matching(frame, {**setting, "task.baseline": baseline}), ["delta"], columns)
        for key, setting in settings.items()
        for baseline in BASELINES
    }


@claim(
    "D2′",
    "Bandit, some samples random: DG suppresses the second moment, across ∇J, of surprising failures by a factor that "
    "vanishes as the policy grows sure; PG and importance sampling do not",
    ABSTRACT,
    "suppression",
    version=DIST_2,
    where={"task.name": "suppression"},
)
def failures_are_suppressed(frame: pd.DataFrame) -> Finding:
    """Vanishes: the slope of the simulated factor in δ, on log axes over δ ≤ 0.01, is above ½ at 95%, and the factor in
    closed form is below 1% at the smallest δ. Does not: the slope is within 0.05 of 0."""
    settings: Settings = {"pg": PG, "is_pg": method("is_pg"), "dg": DG}
    if few := replicates(frame, [{**each, "task.baseline": b} for each in settings.values() for b in BASELINES]):
        return few
    rows = _suppressed(frame, settings)
    slopes = {key: slope(each[each["delta"] <= 0.01], "delta", "factor_simulated") for key, each in rows.items()}
    ends = {key: each.sort_values("delta").iloc[0] for key, each in rows.items()}
    parts: list[Part] = []
    for baseline, words in BASELINES.items():
        power, end = slopes["dg", baseline], float(ends["dg", baseline]["factor"])
        text = f"DG's factor vanishes, {words}: as δ to the power of {span(power, '.2f')}, to {end:.1g}"
        parts.append((text, above(power, 0.5) if end < 0.01 else False))
    for key in ("pg", "is_pg"):
        power = slopes[key, "confidence"]
        parts.append((f"{name(key)}'s does not: power {span(power, '.2f')}", within(power, 0, 0.05)))
    smallest = ends["pg", "confidence"]["delta"]
    return found(
        parts,
        f"at δ = {smallest:g}, relative to PG: "
        + "; ".join(f"DG, {words}, {ends['dg', b]['factor']:.2g}" for b, words in BASELINES.items())
        + f"; exact IS {ends['is_pg', 'confidence']['factor']:.2g}. PG's factor is 1 by definition. Exact importance "
        "weights π/β vanish with π, as β does not, on failures and successes alike; they are 1, as PG's, only if the "
        "reported probabilities know nothing of the random samples",
        slopes["dg", "confidence"],
        **studied(frame),
    )


@claim(
    "D3′",
    "Bandit, some samples random: a weight by the learner's probability alone that suppresses surprising failures "
    "suppresses surprising successes as much; delight does not",
    ABSTRACT,
    "suppression",
    version=DIST_2,
    where={"task.name": "suppression"},
)
def probability_is_not_enough(frame: pd.DataFrame) -> Finding:
    """Equal: the mean weights of rare failures and of rare successes differ by less than 1e-9 in closed form, and by
    less than five standard errors where simulated, in the mean over δ. Suppressed: below 1% at the smallest δ. Delight:
    there below 5% for failures, and half or more for successes."""
    settings: Settings = {**BY_PROBABILITY, "dg": DG, "dgk": FREE}
    if few := replicates(frame, [{**each, "task.baseline": b} for each in settings.values() for b in BASELINES]):
        return few
    rows = _suppressed(frame, settings)
    ends = {key: each.sort_values("delta").iloc[0] for key, each in rows.items()}
    parts: list[Part] = []
    for key in BY_PROBABILITY:
        both = pd.concat([rows[key, baseline] for baseline in BASELINES])
        exact = float((both["failure"] - both["success"]).abs().max())
        gap = (both["failure_simulated"] - both["success_simulated"]).groupby(both["seed"]).mean()
        deviations = float(abs(gap.mean()) / max(gap.std() / math.sqrt(len(gap)), 1e-12))
        text = f"{key}: equal, to {exact:.1g} in closed form, {deviations:.1f} standard errors where simulated"
        parts.append((text, exact < 1e-9 and deviations < 5))
    sampling = ends["exact IS", "confidence"]
    text = f"exact IS suppresses both: {share(sampling['failure'])} and {share(sampling['success'])}"
    parts.append((text, bool(max(sampling["failure"], sampling["success"]) < 0.01)))
    for key in ("dg", "dgk"):
        for baseline, words in BASELINES.items():
            end = ends[key, baseline]
            text = f"{label(settings[key])} tells them apart, {words}: {share(end['failure'])}, {share(end['success'])}"
            parts.append((text, bool(end["failure"] < 0.05 and end["success"] >= 0.5)))
    return found(
        parts,
        f"mean weights of rare failures and rare successes at δ = {sampling['delta']:g}: "
        + "; ".join(
            f"{label(settings[key]) if key in ('dg', 'dgk') else key}{words}: "
            f"{share(ends[key, baseline]['failure'])} and {share(ends[key, baseline]['success'])}"
            for key in settings
            for baseline, words in (BASELINES.items() if key == "dg" else (("confidence", ""),))
            for words in (f", {words}" if words else "",)
        )
        + ". An identity: such a weight has one value wherever π(a) has",
        float(ends["dg", "confidence"]["success"] - ends["dg", "confidence"]["failure"]),
        **studied(frame),
    )


@claim(
    "DG-gate",
    "In expectation DG is the gate with a coin at price 0 and temperature 1, and the hard gate its limit η → 0",
    "definition",
    "gate_coefficient",
    version=JOY,
    where={"task.name": "gate_coefficient"},
)
def dg_is_a_soft_gate(frame: pd.DataFrame) -> Finding:
    """The simulated coin's weights differ from DG's by no more than five standard errors, over all U and π; at η = 0.1
    they are within 1% of the hard gate's wherever |χ| > 1."""
    coin = {**FREE, "gate.mode": "bernoulli"}
    warm, cold = ({**coin, "gate.temperature": eta} for eta in (1.0, 0.1))
    settings: Settings = {"warm": warm, "cold": cold, "dg": DG, "hard": FREE}
    if few := replicates(frame, list(settings.values())):
        return few
    place = ["advantage", "prob"]
    columns = [*place, "weight", "weight_simulated"]
    rows = {key: on_grid(matching(frame, setting), place, columns) for key, setting in settings.items()}
    coins, colder = (rows[key].groupby(place)["weight_simulated"].mean() for key in ("warm", "cold"))
    dg, hard = (rows[key].groupby(place)["weight"].first() for key in ("dg", "hard"))
    tosses = rows["warm"]["task.batch"].iloc[0] * rows["warm"]["seed"].nunique()
    off = float(((coins - dg) / np.sqrt(dg * (1 - dg) / tosses)).abs().max())
    chi = pd.Series({key: -key[0] * math.log(key[1]) for key in hard.index})
    far = float((colder - hard)[chi.abs() > 1].abs().max())
    return found(
        [
            (f"DG's weight within five standard errors: {off:.1f}", off < 5),
            (f"the hard gate's within 1% at η = 0.1: {far:.1g}", far < 0.01),
        ],
        f"largest deviation from DG's weight {off:.1f} standard errors over {len(dg)} samples (U, π); from the hard "
        f"gate's at η = 0.1, where |χ| > 1, {far:.1g}",
        off,
        **studied(frame),
    )
