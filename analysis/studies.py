"""From the rows of a study, lists over its grid, to what its figure plots and its claims compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.judge import INCONCLUSIVE, MIN_SEEDS, NOT_RUN, Finding
from analysis.load import final
from analysis.settings import Columns, describe
from analysis.stats import Interval, bootstrap
from analysis.tables import check_unique, matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


# For claims


def replicates(frame: pd.DataFrame, wanted: Sequence[Columns]) -> Finding | None:
    """The finding that there is nothing to judge, unless everything wanted was run with enough replicates."""
    ends = final(frame)
    rows = [matching(ends, setting) for setting in wanted]
    missing = [describe(setting) for setting, each in zip(wanted, rows, strict=True) if each.empty]
    if missing:
        return Finding(NOT_RUN, f"no runs of {'; '.join(missing)}")
    seeds = min(int(each.groupby("cell")["seed"].nunique().min()) for each in rows)
    if seeds < MIN_SEEDS:
        return Finding(INCONCLUSIVE, f"{seeds} replicates, {MIN_SEEDS} needed", seeds=seeds)
    return None


def studied(frame: pd.DataFrame) -> dict[str, int]:
    """How many replicates a finding rests on."""
    return {"seeds": int(final(frame).groupby("cell")["seed"].nunique().min()), "steps": int(frame["steps"].max())}


def on_grid(frame: pd.DataFrame, axes: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A row per (seed, point of the grid, setting on the axes); more than one is refused."""
    rows = unfold(frame, columns)
    check_unique(rows, axes)
    return rows


def by_seed(rows: pd.DataFrame, axes: Sequence[str], value: str) -> pd.DataFrame:
    """[seed × axes]"""
    return rows.pivot(index="seed", columns=list(axes), values=value)


def slope(rows: pd.DataFrame, x: str, y: str) -> Interval:
    """The power with which y goes with x: the slope on log axes, fitted for each seed."""
    known = rows.dropna(subset=[y])
    return bootstrap([np.polyfit(np.log(group[x]), np.log(group[y]), 1)[0] for _, group in known.groupby("seed")])
