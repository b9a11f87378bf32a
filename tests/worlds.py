"""Made-up logs whose verdict is known: runs with exact means, exact costs and noise of a known size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import hadamard

from analysis import style
from analysis.experiments import claims
from analysis.load import OPTIONAL

CLAIMS = claims()

SEEDS = 8
PATTERNS = hadamard(SEEDS)[1:].astype(float)
"""Noise of mean 0 and size 1 over the seeds; any two are uncorrelated."""
FIRST = 0.01
"""Share of the budget at the first evaluation."""
OUTCOMES = {"h": "holds", "o": "open", "f": "fails"}


def runs(
    columns: dict[str, Any],
    end: Any,
    *,
    noise: float = 0.0,
    pattern: int = 0,
    target: float = 0.05,
    reach: float | None = None,
    drift: float = 0.0,
    steps: int = 10_000,
    forward: float = 1e6,
    backward: float = 1e6,
    screened: float = 0.0,
    column: str = "error",
    **others: Any,
) -> list[dict[str, Any]]:
    """The runs of a cell: errors that end at `end` ± `noise`, and fall to the target after the share `reach` of the
    budget, exactly between two evaluations; every cost is e^(± drift) times what it should be. Where another column has
    the errors, the error is among the others: columns that are the same at every evaluation."""
    ends = np.broadcast_to(np.asarray(end, dtype=float), SEEDS) + noise * PATTERNS[pattern]
    scale = np.exp(drift * PATTERNS[pattern])
    rows = []
    for seed in range(SEEDS):
        course = [(0.0, 0.5), (FIRST, 0.5), (1.0, ends[seed])]
        if reach is not None:
            course.insert(2, (2 * reach - FIRST, target**2 / 0.5))
        rows += [
            columns
            | {"cell": json.dumps(columns), "steps": steps, "seed": seed, "step": round(share * steps), column: error}
            | {"forward": share * forward * scale[seed], "backward": share * backward * scale[seed]}
            | {"screened": share * screened * scale[seed], "seconds_rollout": share}
            | others
            for share, error in course
        ]
    return rows


def traced(
    columns: dict[str, Any],
    points: pd.DataFrame,
    off: float,
    *,
    noise: float = 0.0,
    pattern: int = 0,
    column: str = "error",
    steps: int = 10_000,
) -> list[dict[str, Any]]:
    """The runs of a cell whose curve is published points times a factor, off · (1 ± noise)."""
    theirs = points[points["forward"] > 0].sort_values("forward")
    common = columns | {"cell": json.dumps(columns), "steps": steps, "screened": 0.0, "error": 0.5, column: 0.9}
    rows = []
    for seed in range(SEEDS):
        scale = off * (1 + noise * PATTERNS[pattern][seed])
        rows.append(common | {"seed": seed, "step": 0, "forward": 0.0, "backward": 0.0})
        for forward, value in zip(theirs["forward"], theirs["value"], strict=True):
            place = {"step": round(forward / theirs["forward"].max() * steps), "forward": forward, "backward": forward}
            rows.append(common | place | {"seed": seed, column: scale * value})
    return rows


def study(columns: dict[str, Any], **values: Any) -> list[dict[str, Any]]:
    """The run of a study: a value is a list over the grid, or a function of the seed's number that gives one."""
    common = columns | {"cell": json.dumps(columns), "steps": 1, "step": 1, "error": np.nan}
    return [
        common | {"seed": seed} | {name: value(seed) if callable(value) else value for name, value in values.items()}
        for seed in range(SEEDS)
    ]


def frame(*cells: list[dict[str, Any]]) -> pd.DataFrame:
    made = pd.DataFrame([row for cell in cells for row in cell])
    return made.assign(**{column: np.nan for column in OPTIONAL if column not in made})


def dgk(rate: float | None = None, price: float | None = None, **columns: Any) -> dict[str, Any]:
    """The columns of a hard gate by delight."""
    gate = {"gate.rate": rate, "gate.price": price, "gate.mode": "hard", "gate.priority": "delight", "gate.alpha": 0.5}
    return {"method.name": "dgk", **gate, "gate.unit": "auto", **columns}


@dataclass(frozen=True)
class World:
    claim: str
    name: str
    """true, false, noisy, or what else is special."""
    build: Callable[[], pd.DataFrame]
    verdict: str
    parts: str
    """The outcome of each part: holds, open, fails."""
    measured: float | None = None

    def __str__(self) -> str:
        return f"{self.claim} {self.name}"

    def check(self) -> None:
        record = CLAIMS[self.claim].judge(self.build())
        outcomes = list(record["parts"].values())
        assert (record["verdict"], outcomes) == (self.verdict, [OUTCOMES[part] for part in self.parts]), record["parts"]
        if self.measured is not None:
            assert record["measured"] == pytest.approx(self.measured, rel=1e-6)


def rename(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Another display name for every method."""
    monkeypatch.setattr(style, "NAMES", dict.fromkeys(style.NAMES, name))
