"""What the reward is compared with, on MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis import plots, style
from analysis.load import final
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"confidence": "Σπ²", "half": "½", "zero": "0", "oracle": "π(y*) (oracle)"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    return aggregate(final(frame), ["task.baseline", *SETTING])


def measured(table: pd.DataFrame) -> str:
    """Final errors, in words."""
    return "final test errors: " + "; ".join(
        f"b = {NAMES.get(str(baseline))}: {plots.errors(group)}" for baseline, group in table.groupby("task.baseline")
    )


def plot(table: pd.DataFrame) -> Figure:
    figure, axes = plots.panels(1, 1)
    table = table.sort_values(["task.baseline", "method.name"])
    names = [f"b = {NAMES.get(row['task.baseline'])}   {style.label(row)}" for row in table.to_dict("records")]
    plots.dots(axes, table, names, [style.colour(method) for method in table["method.name"]])
    plots.log_percent(axes)
    axes.set(xlabel="final test error", title="MNIST: the baseline b of the advantage")
    style.note(figure, table)
    return figure
