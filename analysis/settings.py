"""What claims compare: rows of the frame by their columns, never by the name that a figure gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.style import label
from analysis.tables import chosen, matching

Columns = Mapping[str, Any]
"""{column: value}: which rows are meant; None where a column is to be empty."""
Settings = Mapping[str, Columns]
"""What a claim compares, by a key of its own."""


def method(name: str, **columns: Any) -> Columns:
    return {"method.name": name, **columns}


def gate(rate: float | None = None, price: float | None = None, **columns: Any) -> Columns:
    """DG-K at a rate or a price: the hard gate by delight."""
    hard = {"gate.mode": "hard", "gate.priority": "delight", "gate.rate": rate, "gate.price": price}
    return {"method.name": "dgk", **hard, **columns}


def describe(setting: Columns) -> str:
    """A setting in words: DG-K ρ=3%, task.vocab=32"""
    named = ("method.name", "gate.rate", "gate.price", "gate.mode", "gate.priority", "gate.unit")
    others = [f"{column}={value}" for column, value in setting.items() if column not in named]
    if setting.get("gate.priority", "delight") != "delight":
        others.insert(0, str(setting["gate.priority"]))
    return ", ".join([*([label(setting)] if "method.name" in setting else []), *others])


PG, DG = method("pg"), method("dg")
FREE = gate(None, 0.0)
"""DG-K at λ = 0"""

# MNIST

MNIST = {"task.name": "mnist", "task.dataset": "mnist"}
THREE: Settings = {"pg": PG, "dg": DG, "gate": gate(0.03)}

# Token reversal

REVERSAL = {"task.name": "reversal", "task.target": "reverse", "task.layers": 3, "task.width": 64}
"""Token reversal with the papers' transformer."""
OTHERS: Settings = {key: method(key) for key in ("pg", "ppo", "pmpo")}
ALL: Settings = {"dg": DG, **OTHERS}
ROUGH_OTHERS: Settings = {**OTHERS, "pg": method("is_pg_uncapped")}
"""Under frictions the author's PG has importance weights, per token and without a cap."""
ROUGH: Settings = {"dg": DG, **ROUGH_OTHERS}
LEVEL = 0.3
"""The intensity at which frictions are judged; the papers' own is not known."""


def answers(rate: float | None = None, price: float | None = None) -> Columns:
    """DG-K that keeps or skips whole answers."""
    return {**gate(rate, price), "gate.unit": "sequence"}


def under(frame: pd.DataFrame, friction: str, intensity: float) -> pd.DataFrame:
    """The runs that were asked for with this friction at this intensity."""
    return matching(chosen(frame), {"friction": friction, "intensity": intensity})
