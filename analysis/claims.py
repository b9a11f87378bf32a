"""The papers' claims as predicates over the logs, each with its interval, its verdict and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import final
from analysis.stats import Interval, bootstrap, paired
from analysis.studies import unfold
from analysis.style import gate_label, name
from analysis.tables import cost_to_reach

REPRODUCED, PARTLY, NOT, TOO_FEW = "reproduced", "partly", "not reproduced", "not enough runs"
MIN_SEEDS = 3


@dataclass(frozen=True)
class Finding:
    """What the logs say of a claim."""

    verdict: str
    detail: str
    """The numbers in words."""
    measured: float | None = None
    interval: tuple[float, float] | None = None
    seeds: int = 0
    steps: int = 0


Check = Callable[[pd.DataFrame], Finding]


@dataclass(frozen=True)
class Claim:
    id: str
    claim: str
    paper: str
    """What the paper reports."""
    figure: str
    """The figure whose runs decide."""
    check: Check

    def judge(self, frame: pd.DataFrame) -> dict[str, Any]:
        """A record for report/claims.json."""
        finding = self.check(frame) if len(frame) else Finding(TOO_FEW, "no runs")
        record = {key: value for key, value in asdict(self).items() if key != "check"}
        return record | {key: _finite(value) for key, value in asdict(finding).items()}


CLAIMS: dict[str, Claim] = {}


def claim(id: str, text: str, paper: str, figure: str) -> Callable[[Check], Check]:
    """Register a predicate as the check of a claim, decided on the runs of a figure."""

    def register(check: Check) -> Check:
        CLAIMS[id] = Claim(id, text, paper, figure, check)
        return check

    return register


# How the checks compare: final errors of runs as one column per setting, one row per seed, so that seeds are paired.

MARGIN = 0.005
"""Errors that differ by less than half a percentage point count as equal."""
NEAR = 0.75
"""A factor that the paper gives counts as reached from three quarters of it on."""


def by_setting(frame: pd.DataFrame, value: str, columns: Sequence[str]) -> pd.DataFrame:
    """Final values, [seed × setting]."""
    table = final(frame).pivot_table(index="seed", columns=list(columns), values=value, dropna=False)
    return table.dropna(axis=1, how="all")


def too_few(errors: pd.DataFrame, wanted: Sequence[Any]) -> Finding | None:
    """The finding that there is nothing to judge, unless every wanted setting has enough seeds."""
    missing = [setting for setting in wanted if setting not in errors]
    seeds = 0 if missing else int(errors[list(wanted)].count().min())
    if missing or seeds < MIN_SEEDS:
        why = (
            f"{len(missing)} of {len(wanted)} settings have no runs"
            if missing
            else f"{seeds} seeds, {MIN_SEEDS} needed"
        )
        return Finding(TOO_FEW, why, seeds=seeds)
    return None


def verdict(*parts: bool | None) -> str:
    """All parts of a claim held, some, or none; None is a part that more runs might decide either way."""
    if all(parts):
        return REPRODUCED
    if any(parts):
        return PARTLY
    return TOO_FEW if None in parts else NOT


def below(interval: Interval, bound: float) -> bool | None:
    """Whether a mean is below a bound, where its interval tells."""
    return True if interval.high < bound else False if interval.low > bound else None


def reaches(factor: Interval, paper: float) -> bool | None:
    """Whether a factor is near the paper's or beyond it, and surely above one."""
    if factor.mean >= NEAR * paper and factor.low > 1:
        return True
    return False if factor.high < NEAR * paper else None


def negated(interval: Interval) -> Interval:
    return Interval(-interval.mean, -interval.high, -interval.low)


def span(interval: Interval, form: str = ".2%") -> str:
    return f"{interval.mean:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def scope(frame: pd.DataFrame, errors: pd.DataFrame) -> dict[str, int]:
    return {"seeds": int(errors.count().min()), "steps": int(frame["steps"].max())}


ABSTRACT = "stated in the abstract"


@claim("J12-bandit", "The gate's quality–cost front dominates PG and DG (contextual bandit)", ABSTRACT, "bandit_pareto")
@claim("J12-mnist", "The gate's quality–cost front dominates PG and DG (MNIST)", ABSTRACT, "mnist_pareto")
def gate_dominates(frame: pd.DataFrame) -> Finding:
    """A reference is dominated if some gate needs fewer backward passes and its final error is lower, the paired
    difference being below zero at 95% after a Bonferroni correction for having tried every gate."""
    frame = frame[frame["gate.priority"].isna() | (frame["gate.priority"] == "delight")]
    errors, costs = _labelled(frame, "error"), _labelled(frame, "backward")
    gates = [setting for setting in errors if setting not in ("PG", "DG", "CE (oracle)")]
    if few := too_few(errors, ["PG", "DG", *gates]) or (None if gates else Finding(TOO_FEW, "no gates")):
        return few
    results, dominated = [], []
    for reference in ("PG", "DG"):
        cheaper = [gate for gate in gates if costs[gate].mean() < costs[reference].mean()]
        tried = {gate: paired(errors[gate], errors[reference], level=1 - 0.05 / len(gates)) for gate in cheaper}
        if tried:
            best = min(tried, key=lambda gate: tried[gate].high)
            results.append((reference, best, tried[best], costs[best].mean() / costs[reference].mean()))
        held = [below(difference, 0) for difference in tried.values()]
        dominated.append(True if any(held) else None if None in held else False)
    detail = "; ".join(
        f"{gate} against {reference}: error {errors[gate].mean():.3g} against {errors[reference].mean():.3g}, "
        f"with {share:.0%} of the backward passes"
        for reference, gate, _, share in results
    )
    hardest = max((difference for _, _, difference, _ in results), key=lambda each: each.high, default=None)
    return Finding(
        verdict(*dominated),
        detail or "no gate needed fewer backward passes",
        None if hardest is None else hardest.mean,
        None if hardest is None else (hardest.low, hardest.high),
        **scope(frame, errors),
    )


@claim(
    "J5",
    "MNIST: DG-K at 3% matches DG per forward pass and needs about 100 times fewer backward passes",
    "about 3% error; about 100×",
    "mnist_forward_backward",
)
def gate_matches_dg(frame: pd.DataFrame) -> Finding:
    """Matches: the paired difference in final error is below half a point, at 95%. Fewer: backward passes until 5%
    error, those of PG over those of DG-K (a gate of 3% that matches DG per forward pass saves 33 times against DG)."""
    errors = _labelled(frame, "error")
    if few := too_few(errors, ["PG", "DG", "DG-K ρ=3%"]):
        return few
    gap = paired(errors["DG-K ρ=3%"], errors["DG"])
    costs = _costs(frame)
    ratios = {name: ratio(costs[name], costs["DG-K ρ=3%"]) for name in ("PG", "DG")}
    return Finding(
        verdict(below(gap, MARGIN), reaches(ratios["PG"], 100)),
        f"final error {errors['DG-K ρ=3%'].mean():.2%} against DG's {errors['DG'].mean():.2%}, difference {span(gap)}; "
        f"{span(ratios['DG'], '.3g')}× fewer backward passes to 5% than DG, {span(ratios['PG'], '.3g')}× than PG",
        ratios["PG"].mean,
        (ratios["PG"].low, ratios["PG"].high),
        **scope(frame, errors),
    )


@claim(
    "J6",
    "MNIST: compute to 5% error, forward + c·backward: DG is about 2 times cheaper than PG at every c, DG-K at 3% "
    "about 6 times at c = 4 and 10 times at c = 8",
    "2× (DG); 6× and 10× (DG-K)",
    "mnist_speedup",
)
def gate_is_cheaper(frame: pd.DataFrame) -> Finding:
    """Each factor counts as reached from three quarters of the paper's on."""
    errors = _labelled(frame, "error")
    if few := too_few(errors, ["PG", "DG", "DG-K ρ=3%"]):
        return few
    factors = {}
    for c in (1, 4, 8, 16):
        costs = _costs(frame, c)
        factors["DG", c] = ratio(costs["PG"], costs["DG"])
        factors["DG-K", c] = ratio(costs["PG"], costs["DG-K ρ=3%"])
    dg = min((factors["DG", c] for c in (1, 4, 8, 16)), key=lambda each: each.mean)
    late = int((~_reached(frame)["PG"]).sum())
    return Finding(
        verdict(reaches(dg, 2), reaches(factors["DG-K", 4], 6), reaches(factors["DG-K", 8], 10)),
        f"DG at least {span(dg, '.3g')}× at every c; DG-K {span(factors['DG-K', 4], '.3g')}× at c = 4, "
        f"{span(factors['DG-K', 8], '.3g')}× at c = 8"
        + (f"; lower bounds, as {late} seeds of PG never reached 5%" if late else ""),
        factors["DG-K", 4].mean,
        (factors["DG-K", 4].low, factors["DG-K", 4].high),
        **scope(frame, errors),
    )


@claim(
    "J7",
    "MNIST: delight is a better priority than advantage, |advantage|, surprisal, chance and every fixed additive mix",
    "delight lowest",
    "mnist_priority",
)
def delight_ranks_best(frame: pd.DataFrame) -> Finding:
    """Better: the paired difference in final error is below zero at 95%, Bonferroni-corrected."""
    frame = frame.assign(priority=frame["gate.priority"].where(
        frame["gate.priority"] != "additive", "additive " + frame["gate.alpha"].astype(str)))  # fmt: skip
    errors = by_setting(frame, "error", ["priority"])
    others = [str(name) for name in errors if name != "delight"]
    if few := too_few(errors, ["delight", "advantage", "surprisal", "uniform", *others]):
        return few
    gaps = {name: paired(errors["delight"], errors[name], 1 - 0.05 / len(others)) for name in others}
    closest = max(gaps, key=lambda name: gaps[name].high)
    beaten = [name for name in others if gaps[name].high < 0]
    return Finding(
        verdict(*(below(gap, 0) for gap in gaps.values())),
        f"delight {errors['delight'].mean():.2%}; beats {len(beaten)} of {len(others)}; closest: {closest} at "
        f"{errors[closest].mean():.2%}, difference {span(gaps[closest])}",
        gaps[closest].mean,
        (gaps[closest].low, gaps[closest].high),
        **scope(frame, errors),
    )


@claim(
    "J8",
    "MNIST: DG tolerates about 50% relative noise in delight; DG-K degrades earlier",
    "DG flat up to about 50%",
    "mnist_noise",
)
def noise_is_tolerated(frame: pd.DataFrame) -> Finding:
    """Tolerates: at 50% noise the error rises by less than half a point, at 95%. Earlier: at 50% noise DG-K's error
    rises by more than DG's, at 95%."""
    exact = frame[frame["screen.source"] == "exact"]
    errors = by_setting(exact, "error", ["method.name", "screen.noise"])
    if few := too_few(errors, [(method, noise) for method in ("dg", "dgk") for noise in (0.0, 0.5, 1.0)]):
        return few
    rises = {method: paired(errors[method, 0.5], errors[method, 0.0]) for method in ("dg", "dgk")}
    more = paired(errors["dgk", 0.5] - errors["dgk", 0.0], errors["dg", 0.5] - errors["dg", 0.0])
    return Finding(
        verdict(below(rises["dg"], MARGIN), below(negated(more), 0)),
        f"at 50% noise DG's error rises by {span(rises['dg'])}, DG-K's by {span(rises['dgk'])}",
        more.mean,
        (more.low, more.high),
        **scope(exact, errors),
    )


@claim(
    "D1",
    "MNIST, actor 1,000 steps behind: REINFORCE fails, importance sampling is in between, DG learns, with no behaviour "
    "probabilities",
    "IS-PG about 8%, DG about 2% after 10,000 steps",
    "mnist_staleness",
)
def dg_survives_staleness(frame: pd.DataFrame) -> Finding:
    """DG's error is below PG's and IS-PG's at 95%; PG's is about five times DG's or more; DG's is below 4%."""
    stale = frame[frame["friction.staleness.delay"] == 1000]
    errors = by_setting(stale, "error", ["method.name"])
    if few := too_few(errors, ["pg", "is_pg", "dg"]):
        return few
    gaps = {name: paired(errors["dg"], errors[name]) for name in ("pg", "is_pg")}
    closest = max(gaps.values(), key=lambda each: each.high)
    means = errors.mean()
    return Finding(
        verdict(below(closest, 0), reaches(ratio(errors["pg"], errors["dg"]), 5), below(bootstrap(errors["dg"]), 0.04)),
        "final errors: " + ", ".join(f"{name(str(method))} {mean:.1%}" for method, mean in means.items()),
        closest.mean,
        (closest.low, closest.high),
        **scope(stale, errors),
    )


@claim(
    "D2",
    "MNIST: as the policy improves under contamination, PG's expected update turns away from ∇J and DG's towards it",
    "shown for bandits and MNIST",
    "mnist_alignment",
)
def dg_aligns(frame: pd.DataFrame) -> Finding:
    """Along a DG run, from the first evaluation with less than half the samples wrong to the last."""
    course = frame[(frame["method.name"] == "dg") & (frame["step"] > 0)]
    starts = course[course["policy_error"] < 0.5].groupby("seed")["step"].min()
    ends = final(course).set_index("seed")
    if len(starts) < MIN_SEEDS:
        return Finding(TOO_FEW, f"{len(starts)} seeds of DG got below half, {MIN_SEEDS} needed", seeds=len(starts))
    indexed = course.set_index(["seed", "step"])
    begun = indexed.loc[list(starts.items())].reset_index("step")
    changes = {method: paired(ends[f"cos_{method}_mixed"], begun[f"cos_{method}_mixed"]) for method in ("pg", "dg")}
    return Finding(
        verdict(below(changes["pg"], 0), below(negated(changes["dg"]), 0)),
        "; ".join(
            f"{name(method)}: from {begun[f'cos_{method}_mixed'].mean():.2f} to "
            f"{ends[f'cos_{method}_mixed'].mean():.2f}, change {span(change, '.2f')}"
            for method, change in changes.items()
        ),
        changes["dg"].mean,
        (changes["dg"].low, changes["dg"].high),
        seeds=len(starts),
        steps=int(frame["steps"].max()),
    )


@claim(
    "D3-mnist",
    "MNIST: exact importance sampling does not do what DG does under staleness",
    "Prop. 3; IS-PG about 8% against DG's 2% at D = 1000",
    "mnist_staleness",
)
def importance_sampling_is_no_substitute(frame: pd.DataFrame) -> Finding:
    """DG's error is below IS-PG's at every delay of 100 steps or more, at 95%, Bonferroni-corrected."""
    stale = frame[frame["friction.staleness.delay"] >= 100]
    errors = by_setting(stale, "error", ["method.name", "friction.staleness.delay"])
    delays = sorted(stale["friction.staleness.delay"].unique())
    if few := too_few(errors, [(method, delay) for method in ("is_pg", "dg") for delay in delays] or [("dg", 100)]):
        return few
    gaps = {d: paired(errors["dg", d], errors["is_pg", d], 1 - 0.05 / len(delays)) for d in delays}
    last = gaps[delays[-1]]
    return Finding(
        verdict(*(below(gap, 0) for gap in gaps.values())),
        "DG minus IS-PG: " + "; ".join(f"D = {delay:g}: {span(gap)}" for delay, gap in gaps.items()),
        last.mean,
        (last.low, last.high),
        **scope(stale, errors),
    )


def ratio(theirs: pd.Series, ours: pd.Series) -> Interval:
    """Geometric mean of theirs over ours, seed by seed."""
    logs = bootstrap(np.log((theirs / ours).dropna()))
    return Interval(*np.exp([logs.mean, logs.low, logs.high]))


def _labelled(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Final values, [seed × setting], settings by the name a figure gives them."""
    return by_setting(frame.assign(setting=_names(frame)), value, ["setting"])


def _names(frame: pd.DataFrame) -> list[str]:
    settings = zip(frame["method.name"], frame["gate.rate"], frame["gate.price"], strict=True)
    return [f"{name(method)} {gate_label(rate, price)}".strip() for method, rate, price in settings]


def _costs(frame: pd.DataFrame, c: float | None = None, target: float = 0.05) -> pd.DataFrame:
    """What was spent until the error was 5%, [seed × setting]: backward passes, or forward + screened + c·backward."""
    spent = cost_to_reach(frame.assign(setting=_names(frame)), target, ["setting"])
    total = spent["backward"] if c is None else spent["forward"] + spent["screened"] + c * spent["backward"]
    return spent.assign(total=total).pivot_table(index="seed", columns="setting", values="total")


def _reached(frame: pd.DataFrame, target: float = 0.05) -> pd.DataFrame:
    spent = cost_to_reach(frame.assign(setting=_names(frame)), target, ["setting"])
    return spent.pivot(index="seed", columns="setting", values="reached")


def _finite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Studies: closed forms and simulations on softmax bandits. Seeds are replicates of the simulation.


def replicates(frame: pd.DataFrame) -> Finding | None:
    """The finding that there is nothing to judge, unless every run has enough replicates."""
    seeds = int(final(frame).groupby("cell")["seed"].nunique().min())
    return Finding(TOO_FEW, f"{seeds} replicates, {MIN_SEEDS} needed", seeds=seeds) if seeds < MIN_SEEDS else None


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
    return Finding(
        verdict(cosine > 1 - 1e-6, across < 1e-9, abs(share.mean - 1) < 0.02),
        f"lowest cosine {cosine:.7f}; variance across ∇J at most {across:.1g} of |E|²; backward passes "
        f"{span(share, '.4f')} times p. Along ∇J whatever the wrong arms; DG only where these are equal (else down to "
        f"{dg['cosine_skewed'].min():.2f})",
        cosine,
        None,
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
    return Finding(
        verdict(below(free, -1.75), below(expected, -1.75), abs(gate.mean) < 0.1),
        f"PG's samples grow as p to the power of {span(free, '.2f')} with b = Σπ², but {span(expected, '.2f')} with "
        f"the expected reward b = p, where its failures weigh little too; the gate buys {kept:.2f} backward "
        f"passes (log 1/δ = {-math.log(frame['task.delta'].iloc[0]):.2f}) at every p, power {span(gate, '.2f')}",
        free.mean,
        (free.low, free.high),
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
    ends = ends.assign(setting=_names(ends))
    cosine = ends.pivot_table(index="seed", columns="setting", values="batch_cosine_simulated")
    per_pass = ends.groupby("setting")["gain_backward"].first()
    share = ends.groupby("setting")["share"].first()
    gates = [setting for setting in cosine if setting not in ("PG", "DG") and share[setting] <= 0.9]
    gaps = {
        reference: {gate: paired(cosine[gate], cosine[reference], 1 - 0.05 / len(gates)) for gate in gates}
        for reference in ("PG", "DG")
    }
    best = {reference: max(tried, key=lambda gate: tried[gate].low) for reference, tried in gaps.items()}
    most = str(per_pass[gates].idxmax())
    return Finding(
        verdict(*(below(negated(gaps[reference][best[reference]]), 0) for reference in ("PG", "DG"))),
        "; ".join(
            f"{best[reference]} against {reference}: cosine {cosine[best[reference]].mean():.3f} against "
            f"{cosine[reference].mean():.3f} with {share[best[reference]]:.0%} of the backward passes"
            for reference in ("PG", "DG")
        )
        + f"; progress per backward pass is highest at {most}, {per_pass[most] / per_pass['PG']:.1f} times PG's",
        gaps["PG"][best["PG"]].mean,
        (gaps["PG"][best["PG"]].low, gaps["PG"][best["PG"]].high),
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
    return Finding(
        verdict(agree == 1.0, worst == 0.0),
        f"{agree:.1%} of the points are on the predicted side of α* = L⁺/(1+L⁺); delight mis-ranks {worst:.0%}. "
        f"The formula is for L > 0, p > 1/K: read literally for L < −1 it exceeds 1 and is wrong at {wrong:.0%} of the "
        f"points there. With unequal wrong arms up to {beyond.max():.0%} of the failures are mis-ranked above α*",
        agree,
        None,
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
    excess = bootstrap(quiet["opened_simulated"] - 0.5 * np.exp(-((quiet["task.start"] / quiet["sigma"]) ** 2) / 2))
    opened = bootstrap(loud["opened_simulated"])
    errors = rows[rows["sigma"] == 3].pivot_table(index="seed", columns=["method.name", "task.noise"], values="end")
    gaps = {
        (method, noise): paired(errors[method, noise], errors["pg", noise])
        for method in ("dg", "dgk")
        for noise in ("bad", "both")
    }
    return Finding(
        verdict(
            below(excess, 0),
            below(negated(opened), -0.25),
            *(below(negated(gaps[method, "bad"]), -0.05) for method in ("dg", "dgk")),
            *(below(gaps[method, "both"], 0.05) for method in ("dg", "dgk")),
        ),
        f"it opens for {quiet['opened_simulated'].mean():.1%} of bad samples at σ ≤ 0.3Δ, {span(opened, '.1%')} at "
        "σ ≥ 3Δ; error above PG's at σ = 3Δ: "
        + "; ".join(
            f"{name(method)}, {'bad arm' if noise == 'bad' else 'both arms'} noisy: {span(gap, '.3f')}"
            for (method, noise), gap in gaps.items()
        ),
        gaps["dgk", "bad"].mean,
        (gaps["dgk", "bad"].low, gaps["dgk", "bad"].high),
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
    return Finding(
        verdict(below(changes["pg"], 0), below(negated(changes["dg"]), 0)),
        f"from δ = {first:g} to {last:g}, of a batch: "
        + "; ".join(f"{name(method)} {span(change, '+.3f')}" for method, change in changes.items())
        + "; of the expected update: "
        + "; ".join(
            f"{name(method)} {each['cosine'][first]:.3f} to {each['cosine'][last]:.3f}, at least "
            f"{each['cosine'].min():.3f}"
            for method, each in exact.items()
        )
        + f" (predicted for PG at the end: A√δ = {exact['pg']['collapse'][last]:.3f})",
        changes["dg"].mean,
        (changes["dg"].low, changes["dg"].high),
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
    return Finding(
        verdict(bool(end["cosine"] > end["blind"]), bool(end["batch_cosine"] > end["batch_blind"])),
        f"at δ = {dg.index[0]:g}, expected update: best sign-blind {end['blind']:.4f}, exact IS {other['cosine']:.4f} "
        f"(its mean is ∇J whatever the behaviour), DG {end['cosine']:.4f}; of a batch: best sign-blind "
        f"{end['batch_blind']:.4f}, exact IS {other['batch_cosine']:.4f}, DG {end['batch_cosine']:.4f}, which is above "
        f"the best sign-blind at {above} of {len(dg)} δ; simulated, DG minus exact IS {span(gap, '+.4f')}. But these "
        "must know the behaviour or the population, and DG neither",
        gap.mean,
        (gap.low, gap.high),
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
    return Finding(
        verdict(bool(off < 5), bool(far < 0.01)),
        f"largest deviation from DG's weight {off:.1f} standard errors over {len(dg)} samples (U, π); from the hard "
        f"gate's at η = 0.1, where |χ| > 1, {far:.1g}",
        float(off),
        None,
        **studied(frame),
    )
