"""Records → one frame: a row per (run, evaluation, seed), the config in columns with dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kondo.lab.records import Plan, Run, is_results, planned, read_plan, read_runs

OPTIONAL = ("gate.rate", "gate.price", "gate.mode", "gate.priority", "gate.alpha", "gate.unit", "diverged", "error")
"""Columns that some runs do not have."""
CHOICES = ("task", "method", "friction", "intensity")
"""What a figure asks for by name, each a column choice.…"""
RUNS, RESULTS = Path("runs"), Path("results")
"""Where logs are: those trained here, and those that were published."""


def which_logs(runs: Path | None, scale: str | None) -> tuple[Path, str]:
    """Which logs to read, and whose plans: those asked for; else those in runs/, if any has plans of that scale; else
    the published ones."""
    if runs is not None:
        return runs, scale or ("paper" if is_results(runs) else "laptop")
    here, published = ({scale for scale, _ in planned(root)} for root in (RUNS, RESULTS))
    if (scale or "laptop") not in here and (scale or "paper") in published:
        return RESULTS, scale or "paper"
    return RUNS, scale or "laptop"


def load_figure(runs: Path, scale: str, figure: str) -> pd.DataFrame:
    """The finished runs of a figure's plan; empty where it was never planned at this scale."""
    return read_figure(runs, scale, figure)[0]


def read_figure(runs: Path, scale: str, figure: str) -> tuple[pd.DataFrame, list[str]]:
    """The finished runs of a figure's plan, and a sentence for each of its run folders that had to be left out."""
    plan = read_plan(runs, scale, figure)
    if plan is None:
        return pd.DataFrame(), []
    sound, damaged = read_runs(runs, plan.cells)
    frame = frame_of(run for run in sound if plan.schema in (None, run.config["schema"]))
    if frame.empty:
        return frame, damaged
    if plan.search is not None:
        frame = frame.assign(solved=plan.search["solved"], last=max(plan.search["values"]))
    frame = frame.assign(name=frame["cell"].map(plan.name))
    for choice in dict.fromkeys([*CHOICES, *(key for cell in plan.cells.values() for key in cell["choices"])]):
        values = {key: cell["choices"].get(choice) for key, cell in plan.cells.items()}
        frame[f"choice.{choice}"] = [_cell(values[key]) for key in frame["cell"]]
    ends = {cell: _end(plan, set(seeds)) for cell, seeds in frame.groupby("cell")["seed"]}
    return frame[frame["seed"].ge(plan.first_seed) & frame["seed"].lt(frame["cell"].map(ends))], damaged


def _cell(value: Any) -> Any:
    """A value that a column can hold."""
    return np.nan if value is None else value if isinstance(value, (str, int, float)) else str(value)


def _end(plan: Plan, seeds: set[int]) -> int:
    """Where the seeds of a plan end: those it asked for, and what was trained beyond without a gap."""
    end = plan.first_seed + plan.seeds
    while end in seeds:
        end += 1
    return end


def load(runs: Path, cells: Iterable[str] | None = None) -> pd.DataFrame:
    """Every sound run below the folder, or those of the given cells. Columns of a seed that diverged are empty from
    there."""
    return frame_of(read_runs(runs, cells)[0])


def frame_of(runs: Iterable[Run]) -> pd.DataFrame:
    """The rows of all runs; of seeds that two of them have, the first."""
    frame = pd.DataFrame([row for run in runs for row in run.columns()])
    if frame.empty:
        return frame
    for column in OPTIONAL:
        if column not in frame:
            frame[column] = np.nan
    for column in frame.columns[frame.isna().all()]:
        frame[column] = np.nan
    return frame.drop_duplicates(["cell", "seed", "step"])


def where(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have these values; what a method has no setting for does not count against it."""
    for column, value in values.items():
        absent = column.startswith("gate.") & frame["gate.mode"].isna() if "gate.mode" in frame else True
        frame = frame[(frame[column] == value) | absent] if column in frame else frame
    return frame


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of each (cell, seed) that was trained to its end; with `until` that is where it was solved."""
    end = frame["steps"]
    if "until" in frame:
        last = frame.groupby(["cell", "seed"])["step"].transform("max")
        end = end.where(frame["until"].isna(), last)
    return frame[frame["step"] == end]
