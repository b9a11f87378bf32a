"""Frictions from weak to strong, on token reversal: how far does DG's advantage reach?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.experiments import reversal_frictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "staleness": reversal_frictions.PANELS["staleness"],
    "staleness_fixed": ("Staleness, age always D", "intensity: D over its longest"),
    "actor_bugs": reversal_frictions.PANELS["actor_bugs"],
    "penalised_bugs": ("Actor bugs, junk loses 1", "share of junk answers q"),
    "reward_corruption": reversal_frictions.PANELS["reward_corruption"],
    "rare_discovery": reversal_frictions.PANELS["rare_discovery"],
    "mismatch": ("Mismatch: the actor rounds its weights", "bf16, int8, 4 bits"),
    "mismatch_logits": ("Mismatch: … its logits", "bf16, int8, 4 bits"),
    "all": ("The four of the paper together", "intensity"),
}
"""{friction: title, what its strength is}"""


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return reversal_frictions.select(frame, PANELS)


def plot(table: pd.DataFrame) -> Figure:
    return reversal_frictions.plot(table, PANELS)


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
