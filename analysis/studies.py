"""From the rows of a study, lists over its grid, to what its figure plots: closed forms beside simulations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t as student

from analysis.load import final
from analysis.tables import check_unique


def unfold(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """A row per (run, seed, point of the grid); the columns hold lists of one length."""
    rows = final(frame).explode(list(columns), ignore_index=True)
    return rows.astype(dict.fromkeys(columns, float))


def spread(rows: pd.DataFrame, by: Sequence[str], exact: Sequence[str], simulated: Sequence[str]) -> pd.DataFrame:
    """A row per group: closed forms as they are, simulations as mean over replicates with its 95% interval."""
    check_unique(rows, by)
    groups = rows.groupby(list(by), dropna=False)
    table = groups[list(exact)].first()
    for column in simulated:
        count = groups[column].count()
        half = groups[column].std() / np.sqrt(count) * student.ppf(0.975, (count - 1).clip(lower=1))
        mean = groups[column].mean()
        table = table.assign(**{column: mean, f"{column}_low": mean - half, f"{column}_high": mean + half})
    return table.assign(replicates=groups["seed"].nunique(), batch=groups["task.batch"].first()).reset_index()


def note(figure: Figure, table: pd.DataFrame, extra: str = "") -> None:
    """The line under a figure that says what is exact and what was simulated, and how often."""
    fewest, most = table["replicates"].min(), table["replicates"].max()
    words = [
        "lines: closed form; points: simulation with 95% intervals",
        f"n = {fewest if fewest == most else f'{fewest}–{most}'} replicates of {table['batch'].max():,} samples",
        *([extra] if extra else []),
    ]
    figure.supxlabel("; ".join(words), fontsize=7.5, color="#666666", x=0.01, ha="left")
