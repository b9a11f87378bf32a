"""Joy, Fig. 3: how much cheaper than PG each method reaches 5% test error on MNIST, forward + c·backward over c, beside
the published points; and in measured seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import plots, published, style
from analysis.judge import (
    JOY,
    Finding,
    by_setting,
    cheaper,
    claim,
    costs_until,
    found,
    never,
    reaches,
    scope,
    times,
    unready,
)
from analysis.settings import MNIST, THREE
from analysis.stats import bootstrap
from analysis.tables import SETTING, cost_to_reach

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGET = 0.05
RATIOS = (0, 1, 2, 4, 8)


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """Speed-up over PG by setting: for each c, and in seconds (c empty). Seeds are paired; those of PG that never got
    there count with all they spent, which makes the speed-up a lower bound; those of others are left out, and named."""
    costs = cost_to_reach(frame, TARGET)
    reference = costs[costs["method.name"] == "pg"].set_index("seed")
    rows: list[dict[str, Any]] = []
    for key, group in costs.groupby(SETTING, dropna=False):
        own = group.set_index("seed")
        setting = dict(zip(SETTING, key, strict=True))
        steps, forward = int(frame["step"].max()), frame["forward"].max()
        common = {"step": steps, "forward": forward, "seeds": len(own), "diverged": int(group["diverged"].sum())}
        common |= {"reached": int(own["reached"].sum()), "pg_reached": int(reference["reached"].sum())}
        for ratio in (*RATIOS, np.nan):
            ours, theirs = (
                side["seconds"] if np.isnan(ratio) else side["forward"] + side["screened"] + ratio * side["backward"]
                for side in (own, reference)
            )
            logs = bootstrap(np.log((theirs.reindex(own.index) / ours)[own["reached"]].dropna()))
            low, high = np.exp([logs.low, logs.high])
            rows.append(
                setting | {"c": ratio, "speedup": np.exp(logs.mean), "speedup_low": low, "speedup_high": high} | common
            )
    return pd.DataFrame(rows)


def beside(frame: pd.DataFrame) -> pd.DataFrame:
    theirs = published.published(published.JOY_PAPER, "Fig. 3", "speedup_to_5%")
    ours = select(frame).rename(columns={"speedup": "ours"})
    return published.compared(theirs.astype({"c": float}).merge(ours, on=["c", *SETTING], how="left"), "c")


def timed_once(table: pd.DataFrame) -> pd.DataFrame:
    """A row per setting."""
    return table[table["c"].isna()]


def late(table: pd.DataFrame) -> str:
    """Which seeds never got there, in words."""
    rows = timed_once(table)
    words = []
    for row in rows[rows["reached"] < rows["seeds"]].to_dict("records"):
        then = "lower bounds" if row["method.name"] == "pg" else "left out"
        words.append(f"never there: {row['seeds'] - row['reached']:g} of {style.label(row)} ({then})")
    return "; ".join(words)


def plot(table: pd.DataFrame) -> Figure:
    figure, (left, right) = plots.panels(1, 2, width_ratios=[1.5, 1])
    counted = table[table["c"].notna() & table["speedup"].notna()]
    if counted.empty:
        left.text(0.5, 0.5, f"no setting reached {style.percent(TARGET)} error", ha="center", transform=left.transAxes)
    else:
        plots.lines(left, counted, "c", "speedup")
        theirs = published.published(published.JOY_PAPER, "Fig. 3", "speedup_to_5%")
        plots.overlay(left, theirs.assign(c=theirs["c"].astype(float)), "c")
        left.set(yscale="log")
        left.set_xticks(RATIOS, [str(c) for c in RATIOS])
        left.legend(fontsize=8)
    left.set(xlabel="c: cost of a backward pass in forward passes", ylabel="speed-up over PG")
    left.set_title(f"MNIST: compute to {style.percent(TARGET)} test error; hollow: the paper's")
    timed = table[table["c"].isna() & table["speedup"].notna()].reset_index(drop=True)
    for place, row in enumerate(timed.to_dict("records")):
        spread = [[row["speedup"] - row["speedup_low"]], [row["speedup_high"] - row["speedup"]]]
        right.errorbar(row["speedup"], place, xerr=spread, fmt="o", color=style.colour(row["method.name"]), capsize=2)
    right.set_yticks(range(len(timed)), [style.label(row) for row in timed.to_dict("records")])
    right.invert_yaxis()
    right.axvline(1, color="#999999", lw=0.8)
    right.set(xlabel="speed-up over PG", title="… and in seconds, as logged")
    style.note(figure, timed_once(table), late(table))
    return figure


@claim(
    "J6",
    "MNIST: compute to 5% error, forward + c·backward: DG is about 2 times cheaper than PG at every c, DG-K at 3% "
    "about 6 times at c = 4 and 10 times at c = 8",
    "2× (DG); 6× and 10× (DG-K)",
    "joy_3",
    version=JOY,
    where=MNIST,
)
def gate_is_cheaper(frame: pd.DataFrame) -> Finding:
    """Each factor counts as reached from three quarters of the paper's on."""
    errors = by_setting(frame, "error", THREE)
    if few := unready(errors, THREE):
        return few
    costs = {c: costs_until(frame, THREE, c) for c in RATIOS}
    dg = min((cheaper(each, "dg", "pg") for each in costs.values()), key=lambda factor: factor.mean)
    four, eight = (cheaper(costs[c], "gate", "pg") for c in (4, 8))
    parts = [
        (f"DG about 2 times cheaper at every c: {times(dg)}", reaches(dg, 2)),
        (f"DG-K about 6 times at c = 4: {times(four)}", reaches(four, 6)),
        (f"DG-K about 10 times at c = 8: {times(eight)}", reaches(eight, 10)),
    ]
    return found(
        parts,
        f"cheaper than PG: DG at least {times(dg)} at every c; DG-K {times(four)} at c = 4, {times(eight)} at c = 8"
        + never(costs[1], THREE),
        four,
        **scope(frame, errors),
    )
