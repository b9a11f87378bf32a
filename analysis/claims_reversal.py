"""The claims about token reversal."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from analysis.claims import (
    MARGIN,
    Finding,
    below,
    by_setting,
    claim,
    costs_until,
    labelled,
    negated,
    points,
    ratio,
    reaches,
    scope,
    share,
    times,
    too_few,
    verdict,
)
from analysis.figures.reversal_frictions import friction, intensity
from analysis.figures.reversal_scaling import longest
from analysis.load import final
from analysis.stats import Interval, bootstrap, factor, paired
from analysis.style import name

OTHERS = ("pg", "ppo", "pmpo")
LEVEL = 0.25
"""The intensity at which frictions are judged; the papers' own is not known."""


@claim(
    "J9",
    "Reversal, H = 10, M = 2: DG-K at 3% tracks DG per forward pass, needs far fewer backward passes, and PG, PPO and "
    "PMPO are far behind",
    "shown in Fig. 8",
    "reversal_forward_backward",
)
def gate_tracks_dg(frame: pd.DataFrame) -> Finding:
    """Tracks: the paired difference in final error is below half a point, at 95%. Far fewer: backward passes until 5%
    error are 33 times fewer than DG's, or near. Behind: final errors more than half a point above DG-K's, at 95%."""
    errors = labelled(frame, "error")
    ours, others = "DG-K ρ=3%", [name(method) for method in OTHERS]
    if few := too_few(errors, [ours, "DG", *others]):
        return few
    gap = paired(errors[ours], errors["DG"])
    spent = costs_until(frame)
    fewer = ratio(spent["DG"], spent[ours])
    behind = {other: paired(errors[ours], errors[other]) for other in others}
    return Finding(
        verdict(below(gap, MARGIN), reaches(fewer, 33), *(below(each, -MARGIN) for each in behind.values())),
        f"final error {errors[ours].mean():.2%} against DG's {errors['DG'].mean():.2%}, difference {points(gap)}; "
        f"backward passes to 5% error: DG {times(fewer)} as many; "
        + ", ".join(f"{other} ends at {errors[other].mean():.1%}" for other in others),
        fewer.mean,
        (fewer.low, fewer.high),
        **scope(frame, errors),
    )


@claim(
    "J10",
    "Reversal: the longest H solved within a budget is DG-K ≥ DG ≫ PMPO > PPO > PG, by forward and by backward passes",
    "shown in Fig. 10",
    "reversal_scaling",
)
def gate_goes_farthest(frame: pd.DataFrame) -> Finding:
    """The smallest vocabulary. Backward passes are compared at what DG-K spent in all. Each relation of the order is a
    part of the claim."""
    clean = _smallest(frame[frame["friction"] == "none"])
    lengths = _longest(clean)
    if few := too_few(lengths, ["dgk", "dg", *OTHERS]):
        return few
    budget = float(final(clean[clean["method.name"] == "dgk"])["backward"].max())
    within = _longest(clean, "backward", budget)
    parts = [
        _at_least(paired(lengths["dgk"], lengths["dg"])),
        *_descending(lengths, ("dg", "pmpo", "ppo", "pg")),
        _at_least(paired(within["dgk"], within["dg"])),
        *_descending(within, ("dgk", "pmpo"), ("dgk", "ppo"), ("dgk", "pg")),
    ]
    gap = paired(lengths["dgk"], lengths["dg"])
    return Finding(
        verdict(*parts),
        f"{_solved(clean)}: {_means(lengths)}; within {budget:,.0f} backward passes: {_means(within)} "
        f"(lengths tried: {_tried(clean)})",
        gap.mean,
        (gap.low, gap.high),
        **scope(clean, lengths),
    )


@claim(
    "J11",
    "Reversal: a fixed ρ is too aggressive for large M; λ = 0 adapts",
    "shown in a figure",
    "reversal_rate_vs_vocab",
)
def price_adapts(frame: pd.DataFrame) -> Finding:
    """At the largest vocabulary: ρ = 3% ends above λ = 0, and λ = 0 less than half a point above DG, both at 95%."""
    largest = frame["task.vocab"].max()
    errors = labelled(frame[frame["task.vocab"] == largest], "error")
    if few := too_few(errors, ["DG-K ρ=3%", "DG-K λ=0", "DG"]):
        return few
    rate, price = paired(errors["DG-K λ=0"], errors["DG-K ρ=3%"]), paired(errors["DG-K λ=0"], errors["DG"])
    return Finding(
        verdict(below(rate, 0), below(price, MARGIN)),
        f"M = {largest}: "
        + ", ".join(f"{each} {errors[each].mean():.1%}" for each in errors)
        + f"; λ = 0 less ρ = 3%: {points(rate)}; λ = 0 less DG: {points(price)}",
        rate.mean,
        (rate.low, rate.high),
        **scope(frame, errors),
    )


@claim(
    "D4",
    "Reversal under each friction: DG's error is about 10 times lower than that of PG, PPO and PMPO",
    "about 10×",
    "reversal_frictions",
)
def dg_survives_each_friction(frame: pd.DataFrame) -> Finding:
    """Each friction at intensity 0.25; the smallest of the three factors between mean errors counts."""
    frame = _frictions(frame)
    names = ["staleness", "actor_bugs", "reward_corruption", "rare_discovery"]
    errors = by_setting(frame, "error", ["kind", "method.name"])
    if few := too_few(errors, [(kind, method) for kind in names for method in ("dg", *OTHERS)]):
        return few
    factors = {}
    for kind in names:
        each = {method: factor(errors[kind, method], errors[kind, "dg"]) for method in OTHERS}
        closest = min(each, key=lambda method: each[method].mean)
        factors[kind] = closest, each[closest]
    least = min((each for _, each in factors.values()), key=lambda each: each.mean)
    return Finding(
        verdict(*(reaches(each, 10) for _, each in factors.values())),
        "the closest to DG, and its error over DG's: "
        + "; ".join(
            f"{kind.replace('_', ' ')}: {name(closest)} {share(errors[kind, closest].mean())} against DG's "
            f"{share(errors[kind, 'dg'].mean())}, {times(each)}"
            for kind, (closest, each) in factors.items()
        ),
        least.mean,
        (least.low, least.high),
        **scope(frame, errors),
    )


@claim(
    "D5",
    "Reversal with all four frictions: DG far below PPO and PMPO, and those below PG",
    "after 10,000 steps PG about 60%, PMPO about 15%, PPO about 10%, DG about 0.3%",
    "reversal_frictions",
)
def dg_survives_all_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25: DG's error is below 1%, and a tenth of PPO's and of PMPO's, or near; theirs are below
    PG's, at 95%."""
    frame = _frictions(frame)
    frame = frame[frame["kind"] == "all"]
    errors = by_setting(frame, "error", ["method.name"])
    if few := too_few(errors, ["dg", *OTHERS]):
        return few
    factors = {method: factor(errors[method], errors["dg"]) for method in ("ppo", "pmpo")}
    least = min(factors.values(), key=lambda each: each.mean)
    return Finding(
        verdict(
            below(bootstrap(errors["dg"]), 0.01),
            *(reaches(each, 10) for each in factors.values()),
            *(below(paired(errors[method], errors["pg"]), 0) for method in factors),
        ),
        "final errors: " + ", ".join(f"{name(str(method))} {mean:.1%}" for method, mean in errors.mean().items()),
        least.mean,
        (least.low, least.high),
        **scope(frame, errors),
    )


@claim(
    "D6",
    "Reversal with all four frictions: DG solves longer prompts than PMPO, PMPO than PPO, PPO than PG",
    "after 10,000 steps PG about 3.5, PPO about 5, PMPO about 8, DG about 13",
    "reversal_scaling",
)
def dg_goes_farthest_under_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25, the smallest vocabulary. Each relation of the order is a part of the claim."""
    frame = frame[frame["friction"] != "none"]
    rough = _smallest(frame)
    lengths = _longest(rough)
    if few := too_few(lengths, ["dg", *OTHERS]):
        return few
    gap = paired(lengths["dg"], lengths["pmpo"])
    return Finding(
        verdict(*_descending(lengths, ("dg", "pmpo", "ppo", "pg"))),
        f"{_solved(rough)}: {_means(lengths)} (lengths tried: {_tried(rough)})"
        + "".join(
            f"; M = {vocab:g}: {_means(_longest(group))}"
            for vocab, group in frame.groupby("task.vocab")
            if vocab > rough["task.vocab"].min()
        ),
        gap.mean,
        (gap.low, gap.high),
        **scope(rough, lengths),
    )


def _longest(frame: pd.DataFrame, cost: str = "forward", budget: float = np.inf) -> pd.DataFrame:
    """[seed × method]; without methods whose search is not finished: whose longest length was solved, and a longer one
    is to be tried."""
    columns = {}
    for method, group in frame.groupby("method.name"):
        tried = group["task.length"].max()
        top = group[group["task.length"] == tried]
        if tried == group["last"].iloc[0] or not (top["error"] <= top["solved"]).any():
            columns[method] = longest(group, cost, budget)
    return pd.DataFrame(columns)


def _smallest(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["task.vocab"] == frame["task.vocab"].min()]


def _solved(frame: pd.DataFrame) -> str:
    return f"longest H with error ≤ {frame['solved'].iloc[0]:.0%}"


def _descending(lengths: pd.DataFrame, *orders: tuple[str, ...]) -> list[bool | None]:
    """Whether each is above the next, at 95%."""
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    return [below(negated(paired(lengths[high], lengths[low])), 0) for high, low in pairs]


def _at_least(gap: Interval) -> bool | None:
    """Whether a difference is not below zero, where its interval tells."""
    return True if gap.low >= 0 else False if gap.high < 0 else None


def _means(lengths: pd.DataFrame) -> str:
    return ", ".join(f"{name(str(method))} {mean:.3g}" for method, mean in lengths.mean().items())


def _tried(frame: pd.DataFrame) -> str:
    return ", ".join(f"{length:g}" for length in sorted(frame["task.length"].unique()))


def _frictions(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs at the intensity that is judged, by kind of friction."""
    return frame.assign(kind=friction(frame))[intensity(frame) == LEVEL]
