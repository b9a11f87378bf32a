"""How a claim is judged: a predicate over the logs whose parts hold, fail or are left open by an interval."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import final
from analysis.settings import Columns, Settings, describe
from analysis.stats import Interval, bootstrap
from analysis.style import label
from analysis.tables import SHARES, AmbiguousRows, check_unique, cost_to_reach, matching

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
INCONCLUSIVE = "inconclusive"
"""Runs are there, and they leave it open: too few seeds, or intervals that allow either."""
NOT_RUN = "not run"
"""No finished runs of what the claim is about, or not of every setting it compares."""
MIN_SEEDS = 3

JOY, DG_1 = "2603.20526v1", "2603.14608v1"
DIST_1, DIST_2, DIST = "2603.20521v1", "2603.20521v2", "2603.20521v1, v2"
WITHDRAWN = "2603.20521v1 (withdrawn in v2)"
ABSTRACT = "stated in the abstract"


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
    version: str
    """Where it stands: the arXiv number with its version."""
    where: Columns
    """What it is about: only runs that have these values are judged."""
    check: Check

    def judge(self, frame: pd.DataFrame) -> dict[str, Any]:
        """A record for the report."""
        record = {key: value for key, value in asdict(self).items() if key != "check"}
        return record | {key: _finite(value) for key, value in asdict(self._find(frame)).items()}

    def _find(self, frame: pd.DataFrame) -> Finding:
        if frame.empty:
            return Finding(NOT_RUN, "no runs")
        about = matching(frame, self.where)
        if about.empty:
            return Finding(NOT_RUN, f"runs are of {_instead(frame, self.where)}")
        try:
            return self.check(about)
        except AmbiguousRows as error:
            raise AmbiguousRows(f"{self.id}: {error}") from error


def _instead(frame: pd.DataFrame, where: Columns) -> str:
    """What the runs have in place of what a claim is about: task.dataset=digits"""
    wrong = [column for column, value in where.items() if matching(frame, {column: value}).empty] or list(where)
    values = {column: sorted(set(map(str, frame[column]))) if column in frame else ["(none)"] for column in wrong}
    return ", ".join(f"{column}={'|'.join(each)}" for column, each in values.items())


CLAIMS: dict[str, Claim] = {}
"""Those of the experiments that are loaded: analysis.experiments.claims() loads them all."""


def order(id: str) -> tuple[int, str, float, str]:
    """J, D, then the others by letter; each by number, what has none last."""
    letter, number = id[0], re.match(r"[A-Z](\d+)", id)
    return ("JD".find(letter) % 3, letter, int(number[1]) if number else math.inf, id)


def claim(id: str, text: str, paper: str, figure: str, *, version: str, where: Columns) -> Callable[[Check], Check]:
    """Register a predicate as the check of a claim, decided on the runs of a figure."""

    def register(check: Check) -> Check:
        if id in CLAIMS:
            raise ValueError(f"{id}: there is a claim of this name")
        CLAIMS[id] = Claim(id, text, paper, figure, version, where, check)
        return check

    return register


# Values: one column of a table per setting, one row per seed, so that seeds are paired.


def by_setting(frame: pd.DataFrame, value: str, settings: Settings) -> pd.DataFrame:
    """Final values, [seed × setting]; without settings that have no runs. A seed that diverged has an error of 1: who
    is left out of a mean improves it."""
    ends = final(frame)
    if value in SHARES:
        ends = ends.assign(**{value: ends[value].fillna(1.0)})
    columns = {}
    for key, setting in settings.items():
        rows = matching(ends, setting)
        check_unique(rows, [])
        if len(rows):
            columns[key] = rows.set_index("seed")[value]
    return pd.DataFrame(columns).sort_index()


def unready(table: pd.DataFrame, settings: Settings) -> Finding | None:
    """The finding that there is nothing to judge, unless every setting was run with enough seeds in common."""
    missing = [describe(setting) for key, setting in settings.items() if key not in table]
    if missing or not settings:
        return Finding(NOT_RUN, f"no runs of {'; '.join(missing) or 'any setting'}")
    seeds = len(table[list(settings)].dropna())
    if seeds < MIN_SEEDS:
        return Finding(INCONCLUSIVE, f"{seeds} seeds in common, {MIN_SEEDS} needed", seeds=seeds)
    return None


def scope(frame: pd.DataFrame, table: pd.DataFrame) -> dict[str, int]:
    """How many seeds and steps a finding rests on."""
    return {"seeds": len(table.dropna()), "steps": int(frame["steps"].max())}


# Parts: each holds, fails, or is open (None).

MARGIN = 0.005
"""Errors that differ by less than half a percentage point count as equal."""
NEAR = 0.75
"""A factor that the paper gives counts as reached from three quarters of it on."""

Part = tuple[str, bool | None]
"""A part of a claim, with its numbers, and whether it holds."""


def verdict(parts: Collection[bool | None]) -> str:
    """All parts of a claim held, some, or none; None is a part that more runs might decide either way."""
    if not parts:
        raise ValueError("a claim without parts has no verdict")
    if all(parts):
        return REPRODUCED
    if any(parts):
        return PARTLY
    return INCONCLUSIVE if None in parts else NOT


def found(parts: Sequence[Part], detail: str, measured: Interval | float | None, **size: int) -> Finding:
    """What the parts of a claim come to, with the number that says most."""
    spread = (measured.low, measured.high) if isinstance(measured, Interval) else None
    value = measured.mean if isinstance(measured, Interval) else measured
    outcomes: dict[str, str] = {}
    for text, held in parts:
        again = sum(known.rstrip("′") == text for known in outcomes)
        outcomes[text + "′" * again] = "open" if held is None else "holds" if held else "fails"
    return Finding(verdict([held for _, held in parts]), detail, value, spread, parts=outcomes, **size)


def below(interval: Interval, bound: float) -> bool | None:
    """Whether a mean is below a bound, where its interval tells."""
    return True if interval.high < bound else False if interval.low >= bound else None


def above(interval: Interval, bound: float) -> bool | None:
    """Whether a mean is above a bound, where its interval tells."""
    return True if interval.low > bound else False if interval.high <= bound else None


def lower(interval: Interval, other: Interval) -> bool | None:
    """Whether one mean is below another, where their intervals do not overlap."""
    return True if interval.high < other.low else False if interval.low > other.high else None


def within(interval: Interval, value: float, margin: float) -> bool | None:
    """Whether a mean is within a margin of a value, where its interval tells."""
    if value - margin < interval.low and interval.high < value + margin:
        return True
    return False if interval.high < value - margin or interval.low > value + margin else None


def reaches(measured: Interval, paper: float) -> bool | None:
    """Whether a factor is near the paper's or beyond it, and surely above one."""
    if measured.mean >= NEAR * paper and measured.low > 1:
        return True
    return False if measured.high < NEAR * paper else None


def some(parts: Collection[bool | None]) -> bool | None:
    """Whether any of several holds."""
    return True if any(parts) else None if None in parts else False


# Costs


def costs_until(frame: pd.DataFrame, settings: Settings, c: float | None = None, target: float = 0.05) -> pd.DataFrame:
    """What was spent until the error was 5%, as total, and whether it was reached, [seed × (…, setting)]: backward
    passes, or forward + screened + c·backward."""
    tables = []
    for key, setting in settings.items():
        spent = cost_to_reach(matching(frame, setting), target, [])
        total = spent["backward"] if c is None else spent["forward"] + spent["screened"] + c * spent["backward"]
        tables.append(spent.assign(total=total, setting=key))
    return pd.concat(tables).pivot(index="seed", columns="setting", values=["total", "reached"])


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


def never(costs: pd.DataFrame, settings: Settings) -> str:
    """Which seeds of these never got there, in words."""
    late = {key: int((costs["reached", key] == False).sum()) for key in settings}  # noqa: E712  NaN: no run
    words = [f"{count} of {label(settings[key])}" for key, count in late.items() if count]
    return f"; seeds that never reached 5%: {', '.join(words)}" if words else ""


# Numbers in words


def possible(interval: Interval) -> Interval:
    """A difference of two shares is never more than one."""
    return Interval(*(min(max(each, -1.0), 1.0) for each in astuple(interval)))


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


def _finite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
