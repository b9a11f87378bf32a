"""How every figure looks: one colour per method everywhere, safe for colour-blind readers, files that never change
unless the data does. Claims take their words from here: matplotlib is imported by what draws."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import live

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "pg": "#7a7a7a",
    "is_pg": "#56b4e9",
    "is_pg_uncapped": "#882255",
    "is_pg_sequence": "#e69f00",
    "dg": "#0072b2",
    "dg_is": "#332288",
    "dgk": "#d55e00",
    "ppo": "#009e73",
    "pmpo": "#cc79a7",
    "pmpo_strict": "#aa4499",
    "ce": "#000000",
}
NAMES = {
    "pg": "PG",
    "is_pg": "IS-PG",
    "is_pg_uncapped": "IS-PG, no cap",
    "is_pg_sequence": "IS-PG by answer",
    "dg": "DG",
    "dg_is": "DG, capped by π/μ",
    "dgk": "DG-K",
    "ppo": "PPO",
    "pmpo": "PMPO",
    "pmpo_strict": "PMPO, U = 0 left alone",
    "ce": "CE (oracle)",
}
FORMATS = ("png", "pdf", "svg")

RC: Any = {
    "figure.figsize": (6.4, 4.2),
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.hashsalt": "kondo",
    "pdf.fonttype": 42,
}


def colour(method: Any) -> str:
    """A method's colour; one that is new here gets a purple of its own until it is given another."""
    return COLOURS.get(method, "#6a3d9a")


def name(method: str) -> str:
    return NAMES.get(method, method)


def percent(share: float) -> str:
    """0.03 → 3%"""
    return f"{100 * share:g}%"


def gate_label(rate: Any, price: Any) -> str:
    """ρ=3% or λ=0; nothing for a method without a gate"""
    if rate is not None and not pd.isna(rate):
        return f"ρ={percent(rate)}"
    return "" if price is None or pd.isna(price) else f"λ={price:g}"


def label(row: Mapping[Any, Any]) -> str:
    """A setting in a few characters: DG-K ρ=3%"""
    return f"{name(row['method.name'])} {gate_label(row.get('gate.rate'), row.get('gate.price'))}".strip()


def note(figure: Figure, points: pd.DataFrame, extra: str = "", bands: str = "bands: 95% bootstrap intervals") -> None:
    """The line under a figure that says what was measured: seeds, steps, what diverged (columns of the points)."""
    fewest, most = points["seeds"].min(), points["seeds"].max()
    lost = int(points["diverged"].sum())
    words = [
        f"n = {fewest if fewest == most else f'{fewest}–{most}'} seeds",
        f"{points['step'].max():,} steps = {points['forward'].max():,.0f} forward passes",
        *([bands] if bands else []),
        *([f"{lost} seeds diverged"] if lost else []),
        *([extra] if extra else []),
    ]
    text = textwrap.fill("; ".join(words), int(18 * figure.get_figwidth()))  # so many letters fit an inch
    figure.supxlabel(text, fontsize=7.5, color="#666666", x=0.01, ha="left")


def common_axes(figures: Sequence[Figure]) -> None:
    """The same range on the same axes of figures that have the same panels."""
    if len({len(figure.axes) for figure in figures}) != 1:
        return
    for same in zip(*(figure.axes for figure in figures), strict=True):
        for get, set_ in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
            ends = [end for axes in same for end in getattr(axes, get)()]
            first, last = getattr(same[0], get)()
            ends = [min(ends), max(ends)] if first < last else [max(ends), min(ends)]
            for axes in same:
                getattr(axes, set_)(*ends)


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """PNG, PDF and SVG without a date or a random id in them: the same figure is the same file."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    stem.parent.mkdir(parents=True, exist_ok=True)
    nothing: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "svg": {"Date": None, "Creator": None},
    }
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    with mpl.rc_context(RC):
        figure.draw_without_rendering()
    with mpl.rc_context({**RC, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # laid out once for all formats; any other engine draws each of them twice
        nothing["svg"]["Description"] = live.describe(figure)
        for kind, path in zip(formats, paths, strict=True):
            figure.savefig(path, format=kind, metadata=nothing[kind])
    plt.close(figure)
    return paths
