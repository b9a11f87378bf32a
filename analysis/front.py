"""Whether the gate's quality–cost front dominates PG and DG: one rule, for every task that is trained."""

from __future__ import annotations

import pandas as pd

from analysis.judge import Finding, below, by_setting, found, points, possible, scope, share, some, unready
from analysis.settings import DG, PG, Settings, gate, method
from analysis.stats import paired
from analysis.style import label

FRONT = "The gate's quality–cost front dominates PG and DG"


def gates(frame: pd.DataFrame) -> Settings:
    """Every gate by delight that was run, by rate and by price."""
    rows = frame[(frame["method.name"] == "dgk") & (frame["gate.priority"] == "delight")]
    rates, prices = (sorted(rows[column].dropna().unique()) for column in ("gate.rate", "gate.price"))
    return {f"rate {rate}": gate(float(rate)) for rate in rates} | {
        f"price {price}": gate(None, float(price)) for price in prices
    }


def gate_dominates(frame: pd.DataFrame) -> Finding:
    """A reference is dominated if some gate needs fewer backward passes and its final error is lower, the paired
    difference being below zero at 95% after a Bonferroni correction for having tried every gate."""
    tried = gates(frame)
    settings: Settings = {"pg": PG, "dg": DG, **(tried or {"gate": method("dgk")})}
    errors, costs = by_setting(frame, "error", settings), by_setting(frame, "backward", settings)
    if few := unready(errors, settings):
        return few
    parts, words, closest = [], [], []
    for reference in ("pg", "dg"):
        less = [key for key in tried if costs[key].mean() < costs[reference].mean()]
        gaps = {key: paired(errors[key], errors[reference], level=1 - 0.05 / len(tried)) for key in less}
        text = f"some gate that buys less ends below {label(settings[reference])}"
        if gaps:
            best = min(gaps, key=lambda key: gaps[key].high)
            closest.append(gaps[best])
            text += f": {label(settings[best])}, difference {points(gaps[best])}"
            words.append(
                f"{label(settings[best])} against {label(settings[reference])}: error {share(errors[best].mean())} "
                f"against {share(errors[reference].mean())}, with {costs[best].mean() / costs[reference].mean():.0%} "
                "of the backward passes"
            )
        parts.append((text, some([below(gap, 0) for gap in gaps.values()])))
    hardest = max(closest, key=lambda gap: gap.high, default=None)
    measured = None if hardest is None else possible(hardest)
    return found(parts, "; ".join(words) or "no gate needed fewer backward passes", measured, **scope(frame, errors))
