"""Why DG fails under actor bugs, on token reversal: with the actor's probabilities as a second weight, and with a
baseline that junk cannot lower.

Junk that happens to earn more than its group is as surprising as can be: DG gives it full weight, min(π/μ, 1) next to
none. And a group's mean is lower for the junk in it, so that whatever the policy itself wrote looks good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY = ["task.baseline", *SETTING]
BASELINES = {"group": "b: the group's mean reward", "half": "b = ½"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Final errors, their means and every seed."""
    ends = final(frame)
    means = aggregate(ends, BY).assign(kind="mean", intensity=ends["choice.intensity"].iloc[0])
    return pd.concat([means, ends[[*BY, "seed", "error"]].assign(kind="seed")], ignore_index=True)


def measured(table: pd.DataFrame) -> str:
    """The error of every method with every baseline, in words."""
    means = table[table["kind"] == "mean"]
    return "; ".join(
        f"{BASELINES[str(baseline)]}: {plots.errors(group)}" for baseline, group in means.groupby("task.baseline")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, row = plots.panels(1, 2, sharex=True)
    means = table[table["kind"] == "mean"].astype({"seeds": int, "step": int})
    for axes, (baseline, title) in zip(row, BASELINES.items(), strict=True):
        own = table[table["task.baseline"] == baseline].sort_values("method.name")
        mean, seeds = own[own["kind"] == "mean"], own[own["kind"] == "seed"]
        rows = mean.to_dict("records")
        plots.dots(
            axes, mean, [style.label(each) for each in rows], [style.colour(each["method.name"]) for each in rows]
        )
        places = {method: place for place, method in enumerate(mean["method.name"])}
        axes.plot(
            seeds["error"], [places[method] + 0.15 for method in seeds["method.name"]], "o", ms=2.5, color="#999999"
        )
        axes.set(xscale="log", xlabel="final error 1 − E[R], clean", title=title)
    share = means["intensity"].iloc[0]
    style.note(figure, means, f"{share:.0%} of answers junk; small: seeds; bars: 95% bootstrap intervals", "")
    return figure
