"""Which of the settings that Joy, Fig. 1 leaves open fits it: how far each error of each network is from its points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, published, style
from analysis.settings import THREE
from analysis.tables import SETTING, aggregate, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS = {
    "train_error": "sampled, training",
    "policy_error": "sampled, test",
    "test_error": "greedy, test",
}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """The distance of every variant's mean curve from the published points, by method."""
    theirs = published.published(published.JOY_PAPER, "Fig. 1", "error")
    rows = []
    for hidden, group in frame[frame["step"] > 0].groupby("task.hidden"):
        curves = aggregate(group, [*SETTING, "step"], tuple(ERRORS))
        for error in ERRORS:
            for setting in THREE.values():
                own = published.of(curves, setting)
                if len(own):
                    about = {"task.hidden": hidden, "error_shown": error, **{key: setting.get(key) for key in SETTING}}
                    away = published.distance(own, published.of(theirs, setting), error)
                    rows.append(
                        about | {"distance": away} | own.iloc[-1][["step", "forward", "seeds", "diverged"]].to_dict()
                    )
    return pd.DataFrame(rows)


def measured(table: pd.DataFrame) -> str:
    """The variants from near to far, in words."""
    known = table.dropna(subset="distance")
    if known.empty:
        return f"runs of {table['step'].max()} steps end before the first published point"
    mean = known.groupby(["task.hidden", "error_shown"])["distance"].mean().reset_index().sort_values("distance")
    return "distance from the published curves, as a factor, mean over methods: " + "; ".join(
        f"{ERRORS[row['error_shown']]}, hidden {row['task.hidden']}: {row['distance']:.2f}"
        for row in mean.to_dict("records")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plots.panels(1, 1)
    places = table[["error_shown", "task.hidden"]].drop_duplicates().reset_index(drop=True)
    for place, variant in enumerate(places.to_dict("records")):
        for row in matching(table, {str(key): value for key, value in variant.items()}).to_dict("records"):
            axes.plot(row["distance"], place, "o", color=style.colour(row["method.name"]), label=style.label(row))
    names = [f"{ERRORS[each['error_shown']]}, {each['task.hidden']}" for each in places.to_dict("records")]
    axes.set_yticks(range(len(places)), names)
    axes.axvline(1, color="#999999", lw=0.8)
    axes.invert_yaxis()
    axes.set(xlabel="distance from the paper's curve, as a factor (1: none)")
    axes.set_title("Joy, Fig. 1: which error, which network?")
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(labels, handles, strict=True))
    axes.legend(first.values(), first.keys(), fontsize=8)
    style.note(figure, table, bands="")
    return figure
