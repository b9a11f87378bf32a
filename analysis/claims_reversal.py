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
    cheaper,
    claim,
    costs_until,
    found,
    labelled,
    negated,
    never,
    points,
    possible,
    reaches,
    scope,
    share,
    span,
    times,
    too_few,
)
from analysis.figures.reversal_frictions import friction, intensity
from analysis.figures.reversal_scaling import longest
from analysis.load import final
from analysis.stats import Interval, bootstrap, factor, paired
from analysis.style import name

OTHERS = ("pg", "ppo", "pmpo")
LEVEL = 0.25
"""The intensity at which frictions are judged; the papers' own is not known."""
AGREEING = 6
"""So many seeds all agree by chance in less than 5% of cases: 2 · ½ⁿ."""


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
    fewer = cheaper(spent, ours, "DG")
    behind = {other: paired(errors[ours], errors[other]) for other in others}
    parts = {
        f"ends less than half a point above DG: {points(gap)}": below(gap, MARGIN),
        f"DG needs about 33 times as many backward passes: {times(fewer)}": reaches(fewer, 33),
    }
    for other, each in behind.items():
        parts[f"ends more than half a point below {other}: {points(each)}"] = below(each, -MARGIN)
    return found(
        parts,
        f"final error {errors[ours].mean():.2%} against DG's {errors['DG'].mean():.2%}, difference {points(gap)}; "
        f"backward passes to 5% error: DG {times(fewer)} as many; "
        + ", ".join(f"{other} ends at {errors[other].mean():.1%}" for other in others)
        + never(spent, ours, "DG"),
        fewer,
        **scope(frame, errors),
    )


@claim(
    "J10",
    "Reversal: the longest H solved within a budget is DG-K ≥ DG ≫ PMPO > PPO > PG, by forward and by backward passes",
    "shown in Fig. 10",
    "reversal_scaling",
)
def gate_goes_farthest(frame: pd.DataFrame) -> Finding:
    """The smallest vocabulary. By forward passes each relation of the order is a part of the claim; by backward passes,
    compared at what DG-K spent in all, that DG-K is above DG or equal, and above each of the others."""
    clean = _smallest(frame[frame["friction"] == "none"])
    lengths = _longest(clean)
    if few := too_few(lengths, ["dgk", "dg", *OTHERS]):
        return few
    budget = float(final(clean[clean["method.name"] == "dgk"])["backward"].max())
    within = _longest(clean, "backward", budget)
    grid = _grid(clean)
    gap, spared = _gap(lengths, "dgk", "dg", grid), _gap(within, "dgk", "dg", grid)
    parts = {
        f"DG-K at least DG, by forward passes: {span(gap, '+.1f')}": _at_least(gap),
        **_descending(lengths, grid, ("dg", "pmpo", "ppo", "pg"), suffix=", by forward passes"),
        f"DG-K at least DG, by backward passes: {span(spared, '+.1f')}": _at_least(spared),
        **_descending(within, grid, ("dgk", "pmpo"), ("dgk", "ppo"), ("dgk", "pg"), suffix=", by backward passes"),
    }
    return found(
        parts,
        f"{_solved(clean)}: {_means(lengths)}; within {budget:,.0f} backward passes: {_means(within)} "
        f"(lengths tried: {_tried(clean)})",
        gap,
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
    parts = {
        f"λ = 0 below ρ = 3%: {points(rate)}": below(rate, 0),
        f"λ = 0 less than half a point above DG: {points(price)}": below(price, MARGIN),
    }
    return found(
        parts,
        f"M = {largest}: "
        + ", ".join(f"{each} {errors[each].mean():.1%}" for each in errors)
        + f"; λ = 0 less ρ = 3%: {points(rate)}; λ = 0 less DG: {points(price)}",
        possible(rate),
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
    return found(
        {
            f"{kind.replace('_', ' ')}: {name(closest)}'s error about 10 times DG's: {times(each)}": reaches(each, 10)
            for kind, (closest, each) in factors.items()
        },
        "the closest to DG, and its error over DG's: "
        + "; ".join(
            f"{kind.replace('_', ' ')}: {name(closest)} {share(errors[kind, closest].mean())} against DG's "
            f"{share(errors[kind, 'dg'].mean())}, {times(each)}"
            for kind, (closest, each) in factors.items()
        ),
        least,
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
    learns = bootstrap(errors["dg"])
    parts = {f"DG below 1%: {errors['dg'].mean():.1%}, at most {min(1.0, learns.high):.1%}": below(learns, 0.01)}
    for method, each in factors.items():
        parts[f"{name(method)}'s error about 10 times DG's: {times(each)}"] = reaches(each, 10)
        gap = paired(errors[method], errors["pg"])
        parts[f"{name(method)} below PG: {points(gap)}"] = below(gap, 0)
    return found(
        parts,
        "final errors: " + ", ".join(f"{name(str(method))} {mean:.1%}" for method, mean in errors.mean().items()),
        least,
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
    grid = _grid(rough)
    return found(
        _descending(lengths, grid, ("dg", "pmpo", "ppo", "pg")),
        f"{_solved(rough)}: {_means(lengths)} (lengths tried: {_tried(rough)})"
        + "".join(
            f"; M = {vocab:g}: {_means(_longest(group))}"
            for vocab, group in frame.groupby("task.vocab")
            if vocab > rough["task.vocab"].min()
        ),
        _gap(lengths, "dg", "pmpo", grid),
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


def _descending(
    lengths: pd.DataFrame, grid: list[float], *orders: tuple[str, ...], suffix: str = ""
) -> dict[str, bool | None]:
    """Whether each is above the next, at 95%."""
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    gaps = {(high, low): _gap(lengths, high, low, grid) for high, low in pairs}
    return {
        f"{name(high)} above {name(low)}{suffix}: {span(gap, '+.1f')}": below(negated(gap), 0)
        for (high, low), gap in gaps.items()
    }


def _grid(frame: pd.DataFrame) -> list[float]:
    return sorted(map(float, frame["task.length"].unique()))


def _gap(lengths: pd.DataFrame, high: str, low: str, grid: list[float]) -> Interval:
    """How much longer the lengths of one are. Where a few seeds all agree their interval is a point, which says more
    than they can know (fewer than six agree by chance in more than 5% of cases): then it has room for what each would
    solve short of the next length that was tried."""
    gap = paired(lengths[high], lengths[low])
    if gap.low < gap.high or lengths[[high, low]].dropna().shape[0] >= AGREEING:
        return gap

    def beyond(solved: pd.Series) -> pd.Series:
        last = 2 * grid[-1] - grid[-2] if len(grid) > 1 else np.inf
        return solved.map(lambda length: next((each for each in grid if each > length), last))

    least, most = paired(lengths[high], beyond(lengths[low])), paired(beyond(lengths[high]), lengths[low])
    return Interval(gap.mean, least.low, most.high)


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
