"""Which of the settings that Joy, Fig. 8 leaves open fits it: how far each transformer is from its points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import plots, published, style
from analysis.tables import SETTING, aggregate, having

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = ["task.layers", "task.heads"]
OWN = ["method.alpha", "method.clip"]


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """The distance of every variant's mean curve from the published points, by method and its settings."""
    theirs = published.published(published.JOY_PAPER, "Fig. 8", "reward_error")
    frame = having(frame[frame["step"] > 0], OWN)
    curves = aggregate(frame, [*SIZE, *SETTING, *OWN, "step"])
    rows = []
    for key, group in curves.groupby([*SIZE, *SETTING, *OWN], dropna=False):
        about = dict(zip([*SIZE, *SETTING, *OWN], key, strict=True))
        last = group.sort_values("step").iloc[-1]
        away = published.distance(group, published.of(theirs, about), "error")
        rows.append(about | {"distance": away} | last[["error", "step", "forward", "seeds", "diverged"]].to_dict())
    return pd.DataFrame(rows)


def measured(table: pd.DataFrame) -> str:
    """The variants from near to far, in words."""
    known = table.dropna(subset="distance")
    if known.empty:
        return f"runs of {table['step'].max()} steps end before the first published point"
    words = [
        f"{row['task.layers']} layers × {row['task.heads']} heads: {row['distance']:.2f}"
        for row in known.groupby(SIZE)["distance"].mean().reset_index().sort_values("distance").to_dict("records")
    ]
    pmpo = known[known["method.name"] == "pmpo"].groupby("method.alpha")["distance"].mean().reset_index()
    words += [f"PMPO α = {row['method.alpha']:g}: {row['distance']:.2f}" for row in pmpo.to_dict("records")]
    return (
        f"distance from the published curves, as a factor, mean over methods: {'; '.join(words)}; "
        "PPO's ε is without effect: on-policy with one update per batch it is PG"
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plots.panels(1, 1)
    known = table.dropna(subset="distance").sort_values(["method.name", *SIZE]).reset_index(drop=True)
    for place, row in enumerate(known.to_dict("records")):
        axes.plot(row["distance"], place, "o", color=style.colour(row["method.name"]))
    axes.set_yticks(range(len(known)), [_name(row) for row in known.to_dict("records")], fontsize=7)
    axes.axvline(1, color="#999999", lw=0.8)
    axes.invert_yaxis()
    axes.set(xlabel="distance from the paper's curve, as a factor (1: none)")
    axes.set_title("Joy, Fig. 8: which transformer, which settings?")
    style.note(figure, table, bands="")
    return figure


def _name(row: Mapping[Any, Any]) -> str:
    own = {"pmpo": f" α={row['method.alpha']}", "ppo": f" ε={row['method.clip']}"}.get(str(row["method.name"]), "")
    return f"{style.label(row)}{own}, {row['task.layers']}×{row['task.heads']}"
