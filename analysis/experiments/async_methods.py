"""What is learned from actors elsewhere, and from a simulation with ages drawn from theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.stats import paired
from analysis.tables import SETTING, aggregate, having, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY = ["choice.task", "twin", *SETTING]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors along training, by samples and by seconds, of each method with actors elsewhere and of its simulated twin;
    and, at the end, the difference between the two, seed by seed."""
    frame = having(frame, ["choice.twin", "gate.rate", "gate.price"])
    frame = frame.assign(twin=frame["choice.twin"].fillna(0).astype(int), clock=seconds(frame))
    curves = aggregate(frame[frame["step"] > 0], [*BY, "step"], ("error", "clock")).assign(kind="curve")
    ends = aggregate(final(frame), BY).assign(kind="end")
    gaps = []
    for key, group in final(frame).groupby(["choice.task", *SETTING], dropna=False):
        errors = group.set_index("seed")
        ours, twin = (errors.loc[errors["twin"] == kind, "error"] for kind in (0, 1))
        if len(ours) and len(twin):
            gap = paired(ours, twin)
            about = dict(zip(["choice.task", *SETTING], key, strict=True))
            gaps.append(about | {"kind": "gap", "gap": gap.mean, "gap_low": gap.low, "gap_high": gap.high})
    return pd.concat([curves, ends, pd.DataFrame(gaps)], ignore_index=True)


def measured(table: pd.DataFrame) -> str:
    """Final errors, and whether the simulation told the truth, in words."""
    ends, gaps = table[table["kind"] == "end"], table[table["kind"] == "gap"]
    said = []
    for row in gaps.to_dict("records"):
        own = ends[(ends["choice.task"] == row["choice.task"]) & (ends["method.name"] == row["method.name"])]
        real = own[own["twin"] == 0].iloc[0]
        fair = "apart" if row["gap_low"] > 0 or row["gap_high"] < 0 else "not told apart"
        said.append(
            f"{row['choice.task']}, {style.label(row)}: {plots.error(real)}, over its twin "
            f"{100 * row['gap']:+.2f} points ({100 * row['gap_low']:+.2f} to {100 * row['gap_high']:+.2f}: {fair})"
        )
    return f"final error with actors elsewhere, and its difference from the simulated twin's: {'; '.join(said)}"


def plot(table: pd.DataFrame) -> Figure:
    tasks = list(dict.fromkeys(table["choice.task"]))
    figure, grid = plots.panels(len(tasks), 2, squeeze=False)
    curves = table[table["kind"] == "curve"].astype({"seeds": int, "step": int, "diverged": int})
    for line, task in zip(grid, tasks, strict=True):
        for key, group in curves[curves["choice.task"] == task].groupby(["twin", *SETTING], dropna=False):
            row = dict(zip(["twin", *SETTING], key, strict=True))
            group, colour = group.sort_values("step"), style.colour(row["method.name"])
            dash, name = ("--", None) if row["twin"] else ("-", style.label(row))
            line[0].plot(group["forward"], group["error"], color=colour, ls=dash, lw=1.2, label=name)
            if not row["twin"]:
                line[0].fill_between(
                    group["forward"], group["error_low"], group["error_high"], color=colour, alpha=0.12, lw=0
                )
                line[1].plot(group["clock"], group["error"], color=colour, lw=1.2)
        line[0].set(
            yscale="log", xlabel="samples per seed", ylabel="error", title=f"{task}: —— elsewhere, – – simulated"
        )
        line[1].set(yscale="log", xlabel="seconds", title=f"{task}: by seconds, evaluations left out")
        line[0].locator_params(axis="x", nbins=5)
        line[0].legend(fontsize=6.5)
    style.note(figure, curves)
    return figure
