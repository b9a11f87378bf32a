"""The paper's frictions from weak to strong, on token reversal: how far does DG's advantage reach?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.experiments import reversal_frictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return reversal_frictions.select(frame)


def plot(table: pd.DataFrame) -> Figure:
    return reversal_frictions.plot(table)


def measured(table: pd.DataFrame) -> str:
    """Of each friction, at which strengths DG's interval is below those of all others without a gate, in words."""
    means = table[table["kind"] == "mean"]
    said = []
    for name, group in means.groupby("friction", sort=False):
        ahead: list[str] = []
        behind: list[str] = []
        for strength, each in group.groupby("intensity"):
            dg, others = each[each["method.name"] == "dg"], each[~each["method.name"].isin(["dg", "dgk"])]
            below = len(dg) and len(others) and dg["error_high"].iloc[0] < others["error_low"].min()
            (ahead if below else behind).append(f"{strength:g}")
        words = f"at {', '.join(ahead)}" if ahead else "nowhere"
        said.append(f"{name} {words}" + (f", not at {', '.join(behind)}" if ahead and behind else ""))
    return f"DG surely below all others (95% intervals apart), by friction and strength: {'; '.join(said)}"
