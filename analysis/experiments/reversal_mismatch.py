"""Frictions that are in none of the paper's figures, from weak to strong, on token reversal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.experiments import reversal_frictions, reversal_strengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "staleness_fixed": ("Staleness, age always D", "intensity: D over its longest"),
    "penalised_bugs": ("Actor bugs, junk loses 1", "share of junk answers q"),
    "mismatch": ("Mismatch: the actor rounds its weights", "bf16, int8, 4 bits"),
    "mismatch_logits": ("Mismatch: … its logits", "bf16, int8, 4 bits"),
}
"""{friction: title, what its strength is}"""
measured = reversal_strengths.measured


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return reversal_frictions.select(frame, PANELS)


def plot(table: pd.DataFrame) -> Figure:
    return reversal_frictions.plot(table, PANELS)
