"""The weight that each method puts on a sample's policy gradient, by advantage and by probability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import JOY, Finding, claim, found
from analysis.settings import DG, FREE, Settings
from analysis.studies import note, on_grid, replicates, spread, studied, unfold
from analysis.tables import matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROB, ADVANTAGE = 0.1, 0.5
"""Where the cuts are made."""
DASHES = {(0.0, "hard", 0.1): "-", (0.5, "hard", 0.1): "--", (0.0, "bernoulli", 1.0): ":",
          (0.0, "bernoulli", 0.1): "-.", (0.5, "bernoulli", 0.1): (0, (4, 1, 1, 1, 1, 1))}  # fmt: skip


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (method, gate, U, π)."""
    for column in ("gate.mode", "gate.temperature"):
        frame = frame if column in frame else frame.assign(**{column: np.nan})
    rows = unfold(frame, ["advantage", "prob", "weight", "weight_simulated"])
    by = ["method.name", "gate.price", "gate.mode", "gate.temperature", "advantage", "prob"]
    return spread(rows, by, ["weight"], ["weight_simulated"])


def label(row: Mapping[Any, Any]) -> str:
    """DG-K λ=0.5, coin η=0.1"""
    if row["method.name"] != "dgk":
        return style.name(row["method.name"])
    coin = f", coin η={row['gate.temperature']:g}" if row["gate.mode"] == "bernoulli" else ""
    return f"DG-K λ={row['gate.price']:g}{coin}"


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(1, 3, sharey=True)
    figure.set_size_inches(11.5, 3.9)
    cuts = [
        ("advantage", table[np.isclose(table["prob"], PROB)], "advantage U", f"π(a) = {PROB:g}"),
        ("prob", table[np.isclose(table["advantage"], ADVANTAGE)], "probability π(a)", f"U = +{ADVANTAGE:g}"),
        ("prob", table[np.isclose(table["advantage"], -ADVANTAGE)], "probability π(a)", f"U = −{ADVANTAGE:g}"),
    ]
    for axes, (x, rows, words, title) in zip(grid, cuts, strict=True):
        for _, group in rows.groupby(["method.name", "gate.price", "gate.mode", "gate.temperature"], dropna=False):
            first = group.iloc[0].to_dict()
            colour = style.colour(first["method.name"])
            dash: Any = DASHES.get((first["gate.price"], first["gate.mode"], first["gate.temperature"]), "-")
            hard = first["gate.mode"] == "hard"
            group = group.sort_values(x)
            draw = "steps-mid" if hard else "default"
            axes.plot(group[x], group["weight"], color=colour, ls=dash, drawstyle=draw, label=label(first))
            if first["gate.mode"] == "bernoulli":
                mean, low, high = (group[f"weight_simulated{end}"] for end in ("", "_low", "_high"))
                axes.errorbar(group[x], mean, [mean - low, high - mean], fmt="o", color=colour, ms=2.5, lw=1)
        axes.set(xlabel=words, title=title, ylim=(-0.04, 1.08))
    grid[0].set_ylabel("expected weight w of w·U·∇log π")
    grid[1].set_xscale("log")
    grid[2].set_xscale("log")
    grid[2].legend(fontsize=7.5, loc="center left")
    note(figure, table)
    return figure


@claim(
    "DG-gate",
    "In expectation DG is the gate with a coin at price 0 and temperature 1, and the hard gate its limit η → 0",
    "definition",
    "gate_coefficient",
    version=JOY,
    where={"task.name": "gate_coefficient"},
)
def dg_is_a_soft_gate(frame: pd.DataFrame) -> Finding:
    """The simulated coin's weights differ from DG's by no more than five standard errors, over all U and π; at η = 0.1
    they are within 1% of the hard gate's wherever |χ| > 1."""
    coin = {**FREE, "gate.mode": "bernoulli"}
    warm, cold = ({**coin, "gate.temperature": eta} for eta in (1.0, 0.1))
    settings: Settings = {"warm": warm, "cold": cold, "dg": DG, "hard": FREE}
    if few := replicates(frame, list(settings.values())):
        return few
    place = ["advantage", "prob"]
    columns = [*place, "weight", "weight_simulated"]
    rows = {key: on_grid(matching(frame, setting), place, columns) for key, setting in settings.items()}
    coins, colder = (rows[key].groupby(place)["weight_simulated"].mean() for key in ("warm", "cold"))
    dg, hard = (rows[key].groupby(place)["weight"].first() for key in ("dg", "hard"))
    tosses = rows["warm"]["task.batch"].iloc[0] * rows["warm"]["seed"].nunique()
    off = float(((coins - dg) / np.sqrt(dg * (1 - dg) / tosses)).abs().max())
    chi = pd.Series({key: -key[0] * math.log(key[1]) for key in hard.index})
    far = float((colder - hard)[chi.abs() > 1].abs().max())
    return found(
        [
            (f"DG's weight within five standard errors: {off:.1f}", off < 5),
            (f"the hard gate's within 1% at η = 0.1: {far:.1g}", far < 0.01),
        ],
        f"largest deviation from DG's weight {off:.1f} standard errors over {len(dg)} samples (U, π); from the hard "
        f"gate's at η = 0.1, where |χ| > 1, {far:.1g}",
        off,
        **studied(frame),
    )
