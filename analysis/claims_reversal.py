"""The claims about token reversal."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from analysis.figures.reversal_scaling import longest
from analysis.judge import (
    DG,
    DIST,
    DIST_1,
    DIST_2,
    JOY,
    MARGIN,
    Finding,
    Part,
    Settings,
    above,
    below,
    by_setting,
    cheaper,
    claim,
    costs_until,
    found,
    gate,
    method,
    never,
    points,
    possible,
    reaches,
    scope,
    share,
    span,
    times,
    unready,
)
from analysis.load import final
from analysis.stats import Interval, bootstrap, factor, paired
from analysis.style import label, name
from analysis.tables import chosen, cost_to_reach, matching

REVERSAL = {"task.name": "reversal", "task.target": "reverse", "task.layers": 3, "task.width": 64}
"""Token reversal with the papers' transformer."""
OTHERS: Settings = {key: method(key) for key in ("pg", "ppo", "pmpo")}
ALL: Settings = {"dg": DG, **OTHERS}
LEVEL = 0.25
"""The intensity at which frictions are judged; the papers' own is not known."""
AGREEING = 6
"""So many seeds all agree by chance in less than 5% of cases: 2 · ½ⁿ."""


def answers(rate: float | None = None, price: float | None = None) -> dict[str, object]:
    """DG-K that keeps or skips whole answers."""
    return {**gate(rate, price), "gate.unit": "sequence"}


@claim(
    "J9",
    "Reversal, H = 10, M = 2: DG-K at 3% tracks DG per forward pass, needs far fewer backward passes, and PG, PPO and "
    "PMPO are far behind",
    "shown in Fig. 8",
    "reversal_forward_backward",
    version=JOY,
    where=REVERSAL | {"task.length": 10, "task.vocab": 2},
)
def gate_tracks_dg(frame: pd.DataFrame) -> Finding:
    """Tracks: the paired difference in final error is below half a point, at 95%. Far fewer: backward passes until 5%
    error are 33 times fewer than DG's, or near. Behind: final errors more than half a point above DG-K's, at 95%."""
    settings = {"gate": answers(0.03), **ALL}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    gap = paired(errors["gate"], errors["dg"])
    two = {key: settings[key] for key in ("gate", "dg")}
    spent = costs_until(frame, two)
    fewer = cheaper(spent, "gate", "dg")
    behind = {key: paired(errors["gate"], errors[key]) for key in OTHERS}
    parts = [
        (f"ends less than half a point above DG: {points(gap)}", below(gap, MARGIN)),
        (f"DG needs about 33 times as many backward passes: {times(fewer)}", reaches(fewer, 33)),
        *(
            (f"ends more than half a point below {name(key)}: {points(each)}", below(each, -MARGIN))
            for key, each in behind.items()
        ),
    ]
    return found(
        parts,
        f"final error {errors['gate'].mean():.2%} against DG's {errors['dg'].mean():.2%}, difference {points(gap)}; "
        f"backward passes to 5% error: DG {times(fewer)} as many; "
        + ", ".join(f"{name(key)} ends at {errors[key].mean():.1%}" for key in OTHERS)
        + never(spent, two),
        fewer,
        **scope(frame, errors),
    )


@claim(
    "J10",
    "Reversal, M = 2: the longest H solved within a budget is DG-K ≥ DG ≫ PMPO > PPO > PG, by forward and by backward "
    "passes",
    "shown in Fig. 10",
    "reversal_scaling",
    version=JOY,
    where=REVERSAL | {"task.vocab": 2},
)
def gate_goes_farthest(frame: pd.DataFrame) -> Finding:
    """By forward passes each relation of the order is a part of the claim; by backward passes, compared at what DG-K
    spent in all, that DG-K is above DG or equal, and above each of the others."""
    clean = _under(frame, "none", 0.0)
    settings = {"dgk": answers(0.03), **ALL}
    lengths = _longest(clean, settings)
    if few := unready(lengths, settings):
        return few
    budget = float(final(matching(clean, settings["dgk"]))["backward"].max())
    within = _longest(clean, settings, "backward", budget)
    grid = _grid(clean)
    gap, spared = _gap(lengths, "dgk", "dg", grid), _gap(within, "dgk", "dg", grid)
    parts = [
        (f"DG-K at least DG, by forward passes: {span(gap, '+.1f')}", _at_least(gap)),
        *_descending(lengths, grid, ("dg", "pmpo", "ppo", "pg"), suffix=", by forward passes"),
        (f"DG-K at least DG, by backward passes: {span(spared, '+.1f')}", _at_least(spared)),
        *_descending(within, grid, ("dgk", "pmpo"), ("dgk", "ppo"), ("dgk", "pg"), suffix=", by backward passes"),
    ]
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
    version=JOY,
    where=REVERSAL,
)
def price_adapts(frame: pd.DataFrame) -> Finding:
    """At the largest vocabulary: ρ = 3% ends above λ = 0, and λ = 0 less than half a point above DG, both at 95%."""
    largest = frame["task.vocab"].max()
    settings: Settings = {"dg": DG, "rate": answers(0.03), "price": answers(None, 0.0)}
    errors = by_setting(frame[frame["task.vocab"] == largest], "error", settings)
    if few := unready(errors, settings):
        return few
    rate, price = paired(errors["price"], errors["rate"]), paired(errors["price"], errors["dg"])
    parts = [
        (f"λ = 0 below ρ = 3%: {points(rate)}", below(rate, 0)),
        (f"λ = 0 less than half a point above DG: {points(price)}", below(price, MARGIN)),
    ]
    return found(
        parts,
        f"M = {largest}: "
        + ", ".join(f"{label(setting)} {errors[key].mean():.1%}" for key, setting in settings.items())
        + f"; λ = 0 less ρ = 3%: {points(rate)}; λ = 0 less DG: {points(price)}",
        possible(rate),
        **scope(frame, errors),
    )


FRICTIONS = ("staleness", "actor_bugs", "reward_corruption", "rare_discovery")


@claim(
    "D4",
    "Reversal under each friction: DG's error is about 10 times lower than that of PG, PPO and PMPO",
    "v1: roughly 10×; v2: often nearly an order of magnitude",
    "reversal_frictions",
    version=DIST,
    where=REVERSAL,
)
def dg_survives_each_friction(frame: pd.DataFrame) -> Finding:
    """Each friction at intensity 0.25; the smallest of the three factors between mean errors counts."""
    rough = chosen(frame)
    settings = {
        f"{kind} {key}": {**setting, "friction": kind, "intensity": LEVEL}
        for kind in FRICTIONS
        for key, setting in ALL.items()
    }
    errors = by_setting(rough, "error", settings)
    if few := unready(errors, settings):
        return few
    closest = {}
    for kind in FRICTIONS:
        each = {key: factor(errors[f"{kind} {key}"], errors[f"{kind} dg"]) for key in OTHERS}
        rival = min(each, key=lambda key: each[key].mean)
        closest[kind] = rival, each[rival]
    least = min((each for _, each in closest.values()), key=lambda each: each.mean)
    return found(
        [
            (f"{kind.replace('_', ' ')}: {name(key)}'s error about 10 times DG's: {times(each)}", reaches(each, 10))
            for kind, (key, each) in closest.items()
        ],
        "the closest to DG, and its error over DG's: "
        + "; ".join(
            f"{kind.replace('_', ' ')}: {name(key)} {share(errors[f'{kind} {key}'].mean())} against DG's "
            f"{share(errors[f'{kind} dg'].mean())}, {times(each)}"
            for kind, (key, each) in closest.items()
        ),
        least,
        **scope(frame, errors),
    )


@claim(
    "D5",
    "Reversal with all four frictions: to the error that PG, PPO and PMPO end with, DG needs about 10 times fewer "
    "samples",
    "an order of magnitude in sample efficiency",
    "reversal_frictions",
    version=DIST_2,
    where=REVERSAL,
)
def dg_needs_fewer_samples(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25: the samples of each rival over those DG needs to the rival's mean final error, in the
    geometric mean over seeds. What DG reaches before its first evaluation counts as reached there."""
    rough = _under(frame, "all", LEVEL)
    errors = by_setting(rough, "error", ALL)
    if few := unready(errors, ALL):
        return few
    course = matching(rough[rough["step"] > 0], DG)
    samples = by_setting(rough, "forward", OTHERS)
    factors = {}
    for key in OTHERS:
        ours = cost_to_reach(course, float(errors[key].mean()), []).set_index("seed")
        columns = {("total", "dg"): ours["forward"], ("reached", "dg"): ours["reached"], ("total", key): samples[key]}
        factors[key] = cheaper(pd.DataFrame(columns), "dg", key)
    least = min(factors.values(), key=lambda each: each.mean)
    return found(
        [
            (f"{name(key)} needs about 10 times DG's samples: {times(each)}", reaches(each, 10))
            for key, each in factors.items()
        ],
        "samples of a rival over those DG needs to the rival's final error: "
        + "; ".join(f"{name(key)} ({share(errors[key].mean())}) {times(each)}" for key, each in factors.items())
        + f"; DG ends at {share(errors['dg'].mean())}",
        least,
        **scope(rough, errors),
    )


@claim(
    "D5-errors",
    "Reversal with all four frictions: DG far below PPO and PMPO, and those below PG",
    "after 10,000 steps PG about 60%, PMPO about 15%, PPO about 10%, DG about 0.3%",
    "reversal_frictions",
    version=DIST_1,
    where=REVERSAL,
)
def dg_survives_all_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25: DG's error is below 1%, and a tenth of PPO's and of PMPO's, or near; theirs are below
    PG's, at 95%."""
    rough = _under(frame, "all", LEVEL)
    errors = by_setting(rough, "error", ALL)
    if few := unready(errors, ALL):
        return few
    factors = {key: factor(errors[key], errors["dg"]) for key in ("ppo", "pmpo")}
    gaps = {key: paired(errors[key], errors["pg"]) for key in ("ppo", "pmpo")}
    least = min(factors.values(), key=lambda each: each.mean)
    learns = bootstrap(errors["dg"].dropna())
    parts = [(f"DG below 1%: {errors['dg'].mean():.1%}, at most {min(1.0, learns.high):.1%}", below(learns, 0.01))]
    for key, each in factors.items():
        parts.append((f"{name(key)}'s error about 10 times DG's: {times(each)}", reaches(each, 10)))
        parts.append((f"{name(key)} below PG: {points(gaps[key])}", below(gaps[key], 0)))
    return found(
        parts,
        "final errors: " + ", ".join(f"{name(key)} {errors[key].mean():.1%}" for key in ALL),
        least,
        **scope(rough, errors),
    )


@claim(
    "D6",
    "Reversal with all four frictions, M = 2: DG solves longer prompts than PMPO, PMPO than PPO, PPO than PG",
    "after 10,000 steps PG about 3.5, PPO about 5, PMPO about 8, DG about 13",
    "reversal_scaling",
    version=DIST,
    where=REVERSAL,
)
def dg_goes_farthest_under_frictions(frame: pd.DataFrame) -> Finding:
    """All at intensity 0.25. Each relation of the order is a part of the claim."""
    every = _under(frame, "all", LEVEL)
    rough = every[every["task.vocab"] == 2]
    lengths = _longest(rough, ALL)
    if few := unready(lengths, ALL):
        return few
    grid = _grid(rough)
    return found(
        _descending(lengths, grid, ("dg", "pmpo", "ppo", "pg")),
        f"{_solved(rough)}: {_means(lengths)} (lengths tried: {_tried(rough)})"
        + "".join(
            f"; M = {vocab:g}: {_means(_longest(group, ALL))}"
            for vocab, group in every.groupby("task.vocab")
            if vocab != 2
        ),
        _gap(lengths, "dg", "pmpo", grid),
        **scope(rough, lengths),
    )


def _under(frame: pd.DataFrame, friction: str, intensity: float) -> pd.DataFrame:
    """The runs that were asked for with this friction at this intensity."""
    return matching(chosen(frame), {"friction": friction, "intensity": intensity})


def _longest(frame: pd.DataFrame, settings: Settings, cost: str = "forward", budget: float = np.inf) -> pd.DataFrame:
    """[seed × setting]; without those whose search is not finished: whose longest length was solved, and a longer one
    is to be tried."""
    columns = {}
    for key, setting in settings.items():
        group = matching(frame, setting)
        top = group[group["task.length"] == group["task.length"].max()]
        solved = (top["error"] <= top["solved"]).any()
        if len(group) and not (solved and top["task.length"].iloc[0] < group["last"].iloc[0]):
            columns[key] = longest(group, cost, budget)
    return pd.DataFrame(columns)


def _solved(frame: pd.DataFrame) -> str:
    return f"longest H with error ≤ {frame['solved'].iloc[0]:.0%}"


def _descending(lengths: pd.DataFrame, grid: list[float], *orders: tuple[str, ...], suffix: str = "") -> list[Part]:
    """Whether each is above the next, at 95%."""
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    gaps = {(high, low): _gap(lengths, high, low, grid) for high, low in pairs}
    return [
        (f"{name(high)} above {name(low)}{suffix}: {span(gap, '+.1f')}", above(gap, 0))
        for (high, low), gap in gaps.items()
    ]


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
    return ", ".join(f"{name(str(key))} {mean:.3g}" for key, mean in lengths.mean().items())


def _tried(frame: pd.DataFrame) -> str:
    return ", ".join(f"{length:g}" for length in sorted(frame["task.length"].unique()))
