"""The papers' claims as predicates over the logs, each with its interval, its verdict and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import final
from analysis.stats import Interval, bootstrap, factor, paired
from analysis.style import gate_label, name
from analysis.tables import cost_to_reach

REPRODUCED, PARTLY, NOT, INCONCLUSIVE, NOT_RUN = "reproduced", "partly", "not reproduced", "inconclusive", "not run"
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
    parts: Mapping[str, str] = field(default_factory=dict)
    """{part of the claim, with its numbers: holds / open / fails}"""


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
        finding = self.check(frame) if len(frame) else Finding(INCONCLUSIVE, "no runs")
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
    """Final values, [seed × setting]. A seed that diverged has an error of 1: who is left out of a mean improves it."""
    ends = final(frame)
    if value == "error":
        ends = ends.assign(error=ends["error"].fillna(1.0))
    table = ends.pivot_table(index="seed", columns=list(columns), values=value, dropna=False)
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
        return Finding(INCONCLUSIVE, why, seeds=seeds)
    return None


def verdict(parts: Collection[bool | None]) -> str:
    """All parts of a claim held, some, or none; None is a part that more runs might decide either way."""
    if all(parts):
        return REPRODUCED
    if any(parts):
        return PARTLY
    return INCONCLUSIVE if None in parts else NOT


def found(parts: Mapping[str, bool | None], detail: str, measured: Interval | float | None, **size: int) -> Finding:
    """What the parts of a claim come to, with the number that says most."""
    spread = (measured.low, measured.high) if isinstance(measured, Interval) else None
    value = measured.mean if isinstance(measured, Interval) else measured
    outcomes = {text: "open" if held is None else "holds" if held else "fails" for text, held in parts.items()}
    return Finding(verdict(parts.values()), detail, value, spread, parts=outcomes, **size)


def possible(interval: Interval) -> Interval:
    """A difference of two shares is never more than one."""
    return Interval(*(min(max(each, -1.0), 1.0) for each in astuple(interval)))


def below(interval: Interval, bound: float) -> bool | None:
    """Whether a mean is below a bound, where its interval tells."""
    return True if interval.high < bound else False if interval.low > bound else None


def reaches(measured: Interval, paper: float) -> bool | None:
    """Whether a factor is near the paper's or beyond it, and surely above one."""
    if measured.mean >= NEAR * paper and measured.low > 1:
        return True
    return False if measured.high < NEAR * paper else None


def negated(interval: Interval) -> Interval:
    return Interval(-interval.mean, -interval.high, -interval.low)


def span(interval: Interval, form: str = ".2%") -> str:
    return f"{interval.mean:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def points(interval: Interval) -> str:
    """A difference of two shares."""
    mean, low, high = (100 * each for each in astuple(possible(interval)))
    return f"{mean:.2f} points ({low:.2f} to {high:.2f})"


def times(measured: Interval) -> str:
    """A factor with its interval, in three digits; far from one the digits would say nothing more."""
    mean, low, high = (
        "over a million" if each > 1e6 else "under a thousandth" if 0 < each < 1e-3 else f"{float(f'{each:.3g}'):,.10g}"
        for each in astuple(measured)
    )
    return f"{mean} times ({low} to {high})"


def share(value: float) -> str:
    """A share in percent, in three digits, however small."""
    return f"{100 * value:.3g}%"


def scope(frame: pd.DataFrame, errors: pd.DataFrame) -> dict[str, int]:
    return {"seeds": int(errors.count().min()), "steps": int(frame["steps"].max())}


ABSTRACT = "stated in the abstract"


@claim("J12-bandit", "The gate's quality–cost front dominates PG and DG (contextual bandit)", ABSTRACT, "bandit_pareto")
@claim("J12-mnist", "The gate's quality–cost front dominates PG and DG (MNIST)", ABSTRACT, "mnist_pareto")
@claim(
    "J12-reversal", "The gate's quality–cost front dominates PG and DG (token reversal)", ABSTRACT, "reversal_pareto"
)
def gate_dominates(frame: pd.DataFrame) -> Finding:
    """A reference is dominated if some gate needs fewer backward passes and its final error is lower, the paired
    difference being below zero at 95% after a Bonferroni correction for having tried every gate."""
    frame = frame[frame["gate.priority"].isna() | (frame["gate.priority"] == "delight")]
    errors, costs = labelled(frame, "error"), labelled(frame, "backward")
    gates = [setting for setting in errors if setting not in ("PG", "DG", "CE (oracle)")]
    if few := too_few(errors, ["PG", "DG", *gates]) or (None if gates else Finding(INCONCLUSIVE, "no gates")):
        return few
    results, parts = [], dict[str, bool | None]()
    for reference in ("PG", "DG"):
        less = [gate for gate in gates if costs[gate].mean() < costs[reference].mean()]
        tried = {gate: paired(errors[gate], errors[reference], level=1 - 0.05 / len(gates)) for gate in less}
        if tried:
            best = min(tried, key=lambda gate: tried[gate].high)
            results.append((reference, best, tried[best], costs[best].mean() / costs[reference].mean()))
        held = [below(difference, 0) for difference in tried.values()]
        closest = f": {best}, difference {points(tried[best])}" if tried else ""
        parts[f"some gate that buys less ends below {reference}{closest}"] = (
            True if any(held) else None if None in held else False
        )
    detail = "; ".join(
        f"{gate} against {reference}: error {share(errors[gate].mean())} against "
        f"{share(errors[reference].mean())}, with {part:.0%} of the backward passes"
        for reference, gate, _, part in results
    )
    hardest = max((difference for _, _, difference, _ in results), key=lambda each: each.high, default=None)
    measured = None if hardest is None else possible(hardest)
    return found(parts, detail or "no gate needed fewer backward passes", measured, **scope(frame, errors))


@claim(
    "J5",
    "MNIST: DG-K at 3% matches DG per forward pass and needs about 100 times fewer backward passes",
    "about 3% error; about 100×",
    "mnist_forward_backward",
)
def gate_matches_dg(frame: pd.DataFrame) -> Finding:
    """Matches: the paired difference in final error is below half a point, at 95%. Fewer: backward passes until 5%
    error, those of PG over those of DG-K (a gate of 3% that matches DG per forward pass saves 33 times against DG)."""
    errors = labelled(frame, "error")
    if few := too_few(errors, ["PG", "DG", "DG-K ρ=3%"]):
        return few
    gap = paired(errors["DG-K ρ=3%"], errors["DG"])
    costs = costs_until(frame)
    ratios = {name: cheaper(costs, "DG-K ρ=3%", name) for name in ("PG", "DG")}
    parts = {
        f"ends less than half a point above DG: {points(gap)}": below(gap, MARGIN),
        f"PG needs about 100 times as many backward passes: {times(ratios['PG'])}": reaches(ratios["PG"], 100),
    }
    return found(
        parts,
        f"final error {errors['DG-K ρ=3%'].mean():.2%} against DG's {errors['DG'].mean():.2%}, difference "
        f"{points(gap)}; backward passes to 5% error: DG {times(ratios['DG'])} as many, PG {times(ratios['PG'])}"
        + never(costs, "DG-K ρ=3%", "DG", "PG"),
        ratios["PG"],
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
    errors = labelled(frame, "error")
    if few := too_few(errors, ["PG", "DG", "DG-K ρ=3%"]):
        return few
    factors = {}
    for c in (1, 4, 8, 16):
        costs = costs_until(frame, c)
        factors["DG", c] = cheaper(costs, "DG", "PG")
        factors["DG-K", c] = cheaper(costs, "DG-K ρ=3%", "PG")
    dg = min((factors["DG", c] for c in (1, 4, 8, 16)), key=lambda each: each.mean)
    parts = {f"DG about 2 times cheaper at every c: {times(dg)}": reaches(dg, 2)}
    for c, paper in ((4, 6), (8, 10)):
        parts[f"DG-K about {paper} times at c = {c}: {times(factors['DG-K', c])}"] = reaches(factors["DG-K", c], paper)
    return found(
        parts,
        f"cheaper than PG: DG at least {times(dg)} at every c; DG-K {times(factors['DG-K', 4])} at c = 4, "
        f"{times(factors['DG-K', 8])} at c = 8" + never(costs, "DG-K ρ=3%", "DG", "PG"),
        factors["DG-K", 4],
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
    frame = frame.assign(priority=frame["gate.priority"].replace("abs_advantage", "|advantage|").where(
        frame["gate.priority"] != "additive", "additive " + frame["gate.alpha"].astype(str)))  # fmt: skip
    errors = by_setting(frame, "error", ["priority"])
    others = [str(name) for name in errors if name != "delight"]
    if few := too_few(errors, ["delight", "advantage", "surprisal", "uniform", *others]):
        return few
    gaps = {name: paired(errors["delight"], errors[name], 1 - 0.05 / len(others)) for name in others}
    closest = max(gaps, key=lambda name: gaps[name].mean)
    unbeaten = [f"{name} ({errors[name].mean():.1%})" for name in others if gaps[name].high >= 0]
    return found(
        {f"below {name}: {points(gap)}": below(gap, 0) for name, gap in gaps.items()},
        f"delight {errors['delight'].mean():.2%}; beats {len(others) - len(unbeaten)} of {len(others)}; closest: "
        f"{closest} at {errors[closest].mean():.2%}, difference {points(gaps[closest])}"
        + (f"; not surely beaten, for their scatter: {', '.join(unbeaten)}" if unbeaten else ""),
        possible(gaps[closest]),
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
    parts = {
        f"DG rises by less than half a point: {points(rises['dg'])}": below(rises["dg"], MARGIN),
        f"DG-K rises by more than DG: {points(more)}": below(negated(more), 0),
    }
    return found(
        parts,
        f"at 50% noise DG's error rises by {points(rises['dg'])}, DG-K's by {points(rises['dgk'])}",
        possible(more),
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
    """DG's error is below IS-PG's and IS-PG's below PG's, at 95%; PG's is about five times DG's or more; DG's is below
    4%."""
    stale = frame[frame["friction.staleness.delay"] == 1000]
    errors = by_setting(stale, "error", ["method.name"])
    if few := too_few(errors, ["pg", "is_pg", "dg"]):
        return few
    ahead, between = paired(errors["dg"], errors["is_pg"]), paired(errors["is_pg"], errors["pg"])
    fails, learns = factor(errors["pg"], errors["dg"]), bootstrap(errors["dg"])
    means = errors.mean()
    parts = {
        f"DG below IS-PG: {points(ahead)}": below(ahead, 0),
        f"IS-PG below PG: {points(between)}": below(between, 0),
        f"PG's error about 5 times DG's or more: {times(fails)}": reaches(fails, 5),
        f"DG below 4%: {span(learns)}": below(learns, 0.04),
    }
    return found(
        parts,
        "final errors: " + ", ".join(f"{name(str(method))} {mean:.1%}" for method, mean in means.items()),
        possible(ahead),
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
        return Finding(INCONCLUSIVE, f"{len(starts)} seeds of DG got below half, {MIN_SEEDS} needed", seeds=len(starts))
    indexed = course.set_index(["seed", "step"])
    begun = indexed.loc[list(starts.items())].reset_index("step")
    changes = {method: paired(ends[f"cos_{method}_mixed"], begun[f"cos_{method}_mixed"]) for method in ("pg", "dg")}
    parts = {
        f"PG's cosine falls: {span(changes['pg'], '+.2f')}": below(changes["pg"], 0),
        f"DG's rises: {span(changes['dg'], '+.2f')}": below(negated(changes["dg"]), 0),
    }
    return found(
        parts,
        "; ".join(
            f"{name(method)}: from {begun[f'cos_{method}_mixed'].mean():.2f} to "
            f"{ends[f'cos_{method}_mixed'].mean():.2f}, change {span(change, '.2f')}"
            for method, change in changes.items()
        ),
        changes["dg"],
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
    return found(
        {f"DG below IS-PG at D = {delay:g}: {points(gap)}": below(gap, 0) for delay, gap in gaps.items()},
        "DG minus IS-PG: " + "; ".join(f"D = {delay:g}: {points(gap)}" for delay, gap in gaps.items()),
        possible(gaps[delays[-1]]),
        **scope(stale, errors),
    )


def cheaper(costs: pd.DataFrame, ours: str, theirs: str) -> Interval:
    """By what factor one setting reaches 5% error at less cost than another, in the geometric mean over seeds that both
    have. A seed of theirs that never gets there counts with all it spent, a bound against the claim; so does none of
    ours at all: the factor is then 0, and open unless every seed failed."""
    both = costs[[("total", theirs), ("total", ours), ("reached", ours)]].dropna()
    there = both["reached", ours].astype(bool)
    if not there.all():
        return Interval(0.0, 0.0, np.inf if there.any() else 0.0)
    logs = bootstrap(np.log(both["total", theirs].astype(float) / both["total", ours].astype(float)))
    return Interval(*np.exp([logs.mean, logs.low, logs.high]))


def never(costs: pd.DataFrame, *settings: str) -> str:
    """Which seeds of these never got there, in words."""
    late = {setting: int((costs["reached", setting] == False).sum()) for setting in settings}  # noqa: E712  NaN: no run
    words = [f"{count} of {setting}" for setting, count in late.items() if count]
    return f"; seeds that never reached 5%: {', '.join(words)}" if words else ""


def labelled(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Final values, [seed × setting], settings by the name a figure gives them."""
    return by_setting(frame.assign(setting=setting_names(frame)), value, ["setting"])


def setting_names(frame: pd.DataFrame) -> list[str]:
    settings = zip(frame["method.name"], frame["gate.rate"], frame["gate.price"], strict=True)
    return [f"{name(method)} {gate_label(rate, price)}".strip() for method, rate, price in settings]


def costs_until(frame: pd.DataFrame, c: float | None = None, target: float = 0.05) -> pd.DataFrame:
    """What was spent until the error was 5%, as total, and whether it was reached, [seed × (…, setting)]: backward
    passes, or forward + screened + c·backward."""
    spent = cost_to_reach(frame.assign(setting=setting_names(frame)), target, ["setting"])
    total = spent["backward"] if c is None else spent["forward"] + spent["screened"] + c * spent["backward"]
    return spent.assign(total=total).pivot(index="seed", columns="setting", values=["total", "reached"])


def _finite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


from analysis import claims_reversal, claims_studies  # noqa: E402, F401  their claims register themselves
