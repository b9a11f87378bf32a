"""The papers' claims as predicates over the logs, each with its interval, its verdict and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from analysis.load import final
from analysis.stats import Interval, paired
from analysis.style import gate_label, name

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
    """Register a predicate as the check of a claim."""

    def register(check: Check) -> Check:
        CLAIMS[id] = Claim(id, text, paper, figure, check)
        return check

    return register


@claim(
    "J12-bandit",
    "Over prices and rates the gate traces a quality–cost front that dominates PG and DG (contextual bandit)",
    "stated in the abstract, for MNIST and token reversal",
    "bandit_pareto",
)
def gate_dominates(frame: pd.DataFrame) -> Finding:
    """A reference is dominated if some gate needs fewer backward passes and its final error is lower, the paired
    difference being below zero at 95% after a Bonferroni correction for having tried every gate."""
    runs = final(frame)
    errors, costs = (
        runs.pivot_table(index="seed", columns=["method.name", "gate.rate", "gate.price"], values=value, dropna=False)
        for value in ("error", "backward")
    )
    errors, costs = errors.dropna(axis=1, how="all"), costs.dropna(axis=1, how="all")
    gates = [column for column in errors if column[0] == "dgk"]
    seeds = int(errors.count().min()) if len(errors.columns) else 0
    references = [column for column in errors if column[0] in ("pg", "dg")]
    if seeds < MIN_SEEDS or len(references) < 2 or not gates:
        return Finding(TOO_FEW, f"{seeds} seeds, {len(gates)} gates, {len(references)} of 2 references", seeds=seeds)
    results = []
    for reference in references:
        cheaper = [gate for gate in gates if costs[gate].mean() < costs[reference].mean()]
        best: tuple[Interval, Any] | None = None
        for gate in cheaper:
            difference = paired(errors[gate], errors[reference], level=1 - 0.05 / len(gates))
            if best is None or difference.high < best[0].high:
                best = difference, gate
        if best is not None:
            results.append((reference, *best, costs[best[1]].mean() / costs[reference].mean()))
    won = [result for result in results if result[1].high < 0]
    detail = "; ".join(
        f"{gate_label(gate[1], gate[2])} against {name(reference[0])}: error {errors[gate].mean():.3g} against "
        f"{errors[reference].mean():.3g}, with {share:.0%} of the backward passes"
        for reference, _, gate, share in results
    )
    hardest = max((result[1] for result in results), key=lambda difference: difference.high, default=None)
    return Finding(
        verdict={2: REPRODUCED, 1: PARTLY}.get(len(won), NOT),
        detail=detail or "no gate needed fewer backward passes",
        measured=None if hardest is None else hardest.mean,
        interval=None if hardest is None else (hardest.low, hardest.high),
        seeds=seeds,
        steps=int(runs["steps"].max()),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
