"""The few ways in which the figures draw; matplotlib is imported where it is needed, so that claims do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import live, style
from analysis.load import final
from analysis.stats import bootstrap, pareto_front
from analysis.style import label
from analysis.tables import SETTING, aggregate, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.", (0, (1, 3)))


def error(row: Mapping[Any, Any]) -> str:
    """An error with its interval, in words."""
    return f"{row['error']:.2%} ({row['error_low']:.2%} to {row['error_high']:.2%})"


def errors(table: pd.DataFrame) -> str:
    """The error of every setting, in words."""
    return ", ".join(f"{label(row)} {error(row)}" for row in table.to_dict("records"))


def lines(
    axes: Axes, table: pd.DataFrame, x: str, y: str = "error", by: Sequence[str] = SETTING, se: bool = False
) -> None:
    """A line with its band per setting, one colour per method, one dash per gate; named in a legend. se: a darker band
    of one standard error to either side, as papers have it."""
    seen: dict[str, int] = {}
    for _, group in table.groupby(list(by), dropna=False, sort=False):
        first = group.iloc[0].to_dict()
        method = first["method.name"]
        group = group.sort_values(x)
        dash = DASHES[seen.get(method, 0) % len(DASHES)]
        seen[method] = seen.get(method, 0) + 1
        bands = [(group[f"{y}_low"], group[f"{y}_high"], 0.15)]
        if se:
            low, high = group[y] - group[f"{y}_se"], group[y] + group[f"{y}_se"]
            bands.append((low.clip(lower=0), high, 0.3))
        for low, high, alpha in bands:
            band = axes.fill_between(group[x], low, high, color=style.colour(method), alpha=alpha, lw=0)
            live.tag(band, live.BAND, label(first))
        (line,) = axes.plot(group[x], group[y], color=style.colour(method), ls=dash, label=label(first))
        live.tag(line, live.CURVE, label(first), int(group["seeds"].max()) if "seeds" in group else None)


def overlay(axes: Axes, points: pd.DataFrame, x: str = "forward") -> None:
    """Published points as hollow markers, in the colours of their methods; circles at a rate, diamonds at a price."""
    for key, group in points.groupby(SETTING, dropna=False):
        marker = "D" if key[2] == key[2] else "o"
        (dots,) = axes.plot(group[x], group["value"], marker, ms=4, mfc="none", mew=0.9, color=style.colour(key[0]))
        live.tag(dots, live.PAPER, label(dict(zip(SETTING, key, strict=True))))


def log_words(axes: Axes, words: Callable[[float], str] = style.percent) -> None:
    """A log axis from left to right with few labels, where its range is too short for powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def floor(axes: Axes, values: pd.Series) -> None:
    """A log axis down to what was measured: the band of few seeds may reach to 0."""
    axes.set_yscale("log")
    axes.set_ylim(bottom=values.min() / 2)


def dots(axes: Axes, table: pd.DataFrame, names: Sequence[str], colours: Sequence[str]) -> None:
    """A row per entry: its error as a dot with its interval."""
    for place, (row, colour) in enumerate(zip(table.to_dict("records"), colours, strict=True)):
        spread = [[row["error"] - row["error_low"]], [row["error_high"] - row["error"]]]
        axes.errorbar(row["error"], place, xerr=spread, fmt="o", color=colour, capsize=2)
    axes.set_yticks(range(len(table)), list(names))
    axes.invert_yaxis()


def pareto_table(frame: pd.DataFrame, references: Sequence[str], costs: Sequence[str]) -> pd.DataFrame:
    """A point per setting at the end of training; and the learning curves of the references, a row per evaluation."""
    runs = frame.assign(seconds=seconds(frame))
    by = [*SETTING, "gate.priority"]
    points = aggregate(final(runs), by).assign(kind="point")
    for cost in costs:
        ends = final(runs)
        spread = [bootstrap(group[cost].dropna()) for _, group in ends.groupby(by, dropna=False)]
        points[f"{cost}_low"], points[f"{cost}_high"] = [s.low for s in spread], [s.high for s in spread]
        points[f"front_{cost}"] = False
        fair = (points["method.name"] != "ce") & points[cost].notna()  # the oracle sees the labels
        points.loc[fair, f"front_{cost}"] = pareto_front(points.loc[fair, cost], points.loc[fair, "error"])
    course = runs[runs["method.name"].isin(references) & (runs["step"] > 0)]
    curves = aggregate(course, [*by, "step"]).assign(kind="curve")
    return pd.concat([points, curves], ignore_index=True)


def pareto_panel(axes: Axes, table: pd.DataFrame, cost: str, references: Sequence[str], named: bool = True) -> None:
    """Error against one cost: families of gates, references on their way and at their end, and the front. The axes show
    what the points span; gates are labelled if named."""
    points = table[table["kind"] == "point"]
    gated = points[points["method.name"] == "dgk"]
    delight = gated[gated["gate.priority"] == "delight"]
    families = [
        (
            delight[delight["gate.rate"].notna()],
            "gate.rate",
            "o",
            True,
            "DG-K, fixed rate ρ",
            (0, -13),
            style.colour("dgk"),
        ),
        (
            delight[delight["gate.price"].notna()],
            "gate.price",
            "D",
            False,
            "DG-K, fixed price λ",
            (0, 7),
            style.colour("dgk"),
        ),
        (gated[gated["gate.priority"] == "uniform"], "gate.rate", "v", True, "ρ at random", (0, 7), "#b0b0b0"),
    ]
    for gates, order, marker, filled, name, offset, colour in families:
        if gates.empty:
            continue
        gates = gates.sort_values(order)
        axes.fill_between(gates[cost], gates["error_low"], gates["error_high"], color=colour, alpha=0.15, lw=0)
        face = colour if filled else "white"
        axes.plot(gates[cost], gates["error"], marker=marker, color=colour, mfc=face, lw=0.8, label=name)
        for gate in gates.to_dict("records") if named and marker != "v" else ():  # random gates are above their ρ
            text = style.gate_label(gate["gate.rate"], gate["gate.price"])
            at = gate[cost], gate["error"]
            axes.annotate(text, at, offset, textcoords="offset points", fontsize=6.5, ha="center", color=colour)
    for method in references:
        colour = style.colour(method)
        curve = table[(table["kind"] == "curve") & (table["method.name"] == method)].sort_values("step")
        axes.plot(curve[cost], curve["error"], color=colour, lw=1, alpha=0.7)
        for point in points[points["method.name"] == method].to_dict("records"):
            spread = [[point["error"] - point["error_low"]], [point["error_high"] - point["error"]]]
            at = point[cost], point["error"]
            axes.errorbar(*at, spread, fmt="s", ms=6, color=colour, capsize=3)
            axes.annotate(style.name(method), at, (8, -3), textcoords="offset points", color=colour, weight="bold")
    front = points[points[f"front_{cost}"] == True].sort_values(cost)  # noqa: E712  curves have none
    axes.step(front[cost], front["error"], where="post", color="black", ls=":", lw=1.2, label="Pareto front")
    axes.set(xscale="log", yscale="log", xlim=(points[cost].min() / 1.8, points[cost].max() * 2.2))
    axes.set_ylim(points["error"].min() / 1.4, min(1.0, points["error"].max() * 2))


def panels(rows: int, columns: int, **options: Any) -> tuple[Figure, Any]:
    """A grid of axes at the suite's size per panel."""
    from matplotlib import pyplot as plt

    size = (4.3 * columns if columns > 1 else 6.4, 3.3 * rows if rows > 1 else 3.9)
    return plt.subplots(rows, columns, figsize=size, **options)
