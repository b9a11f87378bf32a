"""DG, Fig. 9: token reversal with the share reward, by length and by vocabulary: errors at the end, and on average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis import plots, style
from analysis.judge import DG_1, Finding, above, by_setting, claim, found, scope, share, times, unready
from analysis.load import final
from analysis.settings import DG, PG, REVERSAL, Columns, method
from analysis.stats import factor
from analysis.tables import SETTING, aggregate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = {"task.length": "H, at M = 2", "task.vocab": "M, at H = 10"}


def select(frame: pd.DataFrame) -> pd.DataFrame:
    """By size and setting, the error at the end and its mean over all steps."""
    course = frame.sort_values("step")
    mean = course.groupby(["cell", "seed"])[["step", "error"]].apply(
        lambda rows: float(np.trapezoid(rows["error"], rows["step"]) / rows["step"].max())
    )
    ends = final(frame)
    keys = pd.MultiIndex.from_frame(ends[["cell", "seed"]])
    ends = ends.assign(average=mean.reindex(keys).to_numpy())
    return aggregate(ends, ["task.length", "task.vocab", *SETTING], ("error", "average"))


def plot(table: pd.DataFrame) -> Figure:
    figure, grid = plots.panels(2, 2, sharey=True)
    for column, (size, words) in enumerate(SIZES.items()):
        shown = table[table["task.vocab"] == 2] if size == "task.length" else table[table["task.length"] == 10]
        for axes, value in zip(grid[:, column], ("error", "average"), strict=True):
            plots.lines(axes, shown, size, value)
            axes.set(xscale="log", yscale="log", xlabel=words)
            ticks = sorted(shown[size].unique())
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
    grid[0, 0].set(ylabel="final share of wrong tokens", title="Reversal, share reward")
    grid[1, 0].set(ylabel="… mean over all steps")
    grid[0, 0].legend(fontsize=8)
    style.note(figure, table)
    return figure


@claim(
    "G1-size",
    "Reversal, share reward: DG ends below PG and PMPO for long prompts and for large vocabularies",
    "H = 50: PG about 20%, DG about 1%; M = 50: PMPO 71%, PG 42%, DG 7%",
    "dg_9",
    version=DG_1,
    where=REVERSAL | {"task.credit": "share"},
)
def dg_leads_at_every_size(frame: pd.DataFrame) -> Finding:
    """Each rival's mean error over DG's, above one at 95%, at H = 50 and at M = 50."""
    places: dict[str, Columns] = {
        "H = 50": {"task.length": 50, "task.vocab": 2},
        "M = 50": {"task.length": 10, "task.vocab": 50},
    }
    methods = {"dg": DG, "pg": PG, "pmpo": method("pmpo")}
    settings = {f"{key} {place}": {**own, **size} for key, own in methods.items() for place, size in places.items()}
    errors = by_setting(frame, "error", settings)
    if few := unready(errors, settings):
        return few
    leads = {
        (key, place): factor(errors[f"{key} {place}"], errors[f"dg {place}"])
        for place in places
        for key in ("pg", "pmpo")
    }
    return found(
        [
            (f"{place}: {style.name(key)}'s error over DG's: {times(lead)}", above(lead, 1))
            for (key, place), lead in leads.items()
        ],
        "; ".join(
            f"{place}: " + ", ".join(f"{style.name(key)} {share(errors[f'{key} {place}'].mean())}" for key in methods)
            for place in places
        ),
        leads["pg", "H = 50"],
        **scope(frame, errors),
    )
