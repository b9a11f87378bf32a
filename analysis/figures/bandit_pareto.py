"""Quality against cost on the contextual bandit: final error against counted backward passes, over rates and prices."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.load import final, where
from analysis.stats import bootstrap, pareto_front

SETTING = ["method.name", "gate.rate", "gate.price"]
REFERENCES = ("pg", "dg")


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """A point per setting, its final error and backward passes with 95% intervals over seeds; and the learning curves
    of the references, a row per evaluation."""
    runs = where(frame, {"task.name": "bandit", "friction": "none", "gate.priority": "delight", "gate.mode": "hard"})
    points = pd.DataFrame([_row("point", key, group) for key, group in final(runs).groupby(SETTING, dropna=False)])
    points["front"] = pareto_front(points["backward"], points["error"])
    course = runs[runs["method.name"].isin(REFERENCES) & (runs["step"] > 0)]
    curves = [_row("curve", key, group) for key, group in course.groupby([*SETTING, "step"], dropna=False)]
    return pd.concat([points, pd.DataFrame(curves)], ignore_index=True)


def _row(kind: str, key: Any, group: pd.DataFrame) -> dict[str, object]:
    method, rate, price, *_ = key
    error, cost = bootstrap(group["error"].dropna()), bootstrap(group["backward"])
    return {
        "kind": kind,
        "method": method,
        "rate": rate,
        "price": price,
        "step": int(group["step"].iloc[0]),
        "forward": group["forward"].mean(),
        "backward": cost.mean,
        "backward_low": cost.low,
        "backward_high": cost.high,
        "error": error.mean,
        "error_low": error.low,
        "error_high": error.high,
        "seeds": group["seed"].nunique(),
        "diverged": int(group["error"].isna().sum()),
    }


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plt.subplots()
    points = table[table["kind"] == "point"]
    gated = points[points["method"] == "dgk"]
    _gates(axes, gated[gated["rate"].notna()].sort_values("rate"), "o", "DG-K, fixed rate ρ", (0, -13))
    _gates(axes, gated[gated["price"].notna()].sort_values("price"), "D", "DG-K, fixed price λ", (0, 7))
    for method in REFERENCES:
        colour = style.colour(method)
        curve = table[(table["kind"] == "curve") & (table["method"] == method)]
        axes.plot(curve["backward"], curve["error"], color=colour, lw=1, alpha=0.7)
        for point in points[points["method"] == method].to_dict("records"):
            spread = [[point["error"] - point["error_low"]], [point["error_high"] - point["error"]]]
            at = point["backward"], point["error"]
            axes.errorbar(*at, spread, fmt="s", ms=7, color=colour, capsize=3)
            axes.annotate(style.name(method), at, (9, -3), textcoords="offset points", color=colour, weight="bold")
    front = points[points["front"] == True].sort_values("backward")  # noqa: E712  object column: curves have none
    axes.step(front["backward"], front["error"], where="post", color="black", ls=":", lw=1.2, label="Pareto front")
    axes.set(xscale="log", yscale="log", xlabel="backward passes, counted, per seed", ylabel="error 1 − π(y*)")
    axes.set_title("Contextual bandit: what each backward pass buys")
    axes.margins(x=0.1)
    axes.legend(loc="lower left", fontsize=8)
    style.note(figure, points, "lines without points: PG and DG on their way")
    return figure


def _gates(axes: Axes, gates: pd.DataFrame, marker: str, label: str, offset: tuple[int, int]) -> None:
    """One family of gates: its line, its band and a label at each point."""
    colour = style.colour("dgk")
    axes.fill_between(gates["backward"], gates["error_low"], gates["error_high"], color=colour, alpha=0.15, lw=0)
    hollow = "white" if marker == "D" else colour
    axes.plot(gates["backward"], gates["error"], marker, ls="-", color=colour, mfc=hollow, lw=0.8, label=label)
    for gate in gates.to_dict("records"):
        axes.annotate(
            style.gate_label(gate["rate"], gate["price"]),
            (gate["backward"], gate["error"]),
            offset,
            textcoords="offset points",
            fontsize=7,
            ha="center",
            color=colour,
        )
