"""Run folders → one frame: a row per (run, evaluation, seed), the config in columns with dotted names.

Reads files only: no torch, no Hydra, no W&B.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Plan:
    """The cells a figure asked for at some scale, as `reproduce` wrote them down before it trained any."""

    figure: str
    scale: str
    command: str
    cells: Mapping[str, str] = field(default_factory=dict)
    """{cell key: the cell in a few words}"""
    seeds: int = 0
    first_seed: int = 0
    schema: int | None = None
    """The version of the config that its runs must have."""
    search: Mapping[str, Any] | None = None
    """The axis that is climbed while it is solved: key, values, solved."""


OPTIONAL = ("gate.rate", "gate.price", "gate.mode", "gate.priority", "gate.alpha", "gate.unit", "diverged")
"""Columns that some runs do not have."""


def plan_path(runs: Path, scale: str, figure: str) -> Path:
    return runs / "plans" / scale / f"{figure}.json"


def read_plan(runs: Path, scale: str, figure: str) -> Plan | None:
    path = plan_path(runs, scale, figure)
    if not path.exists():
        return None
    try:
        return Plan(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        print(f"{path}: damaged; make reproduce FIGURES={figure} SCALE={scale} writes it anew", file=sys.stderr)
        return None


def load_figure(runs: Path, scale: str, figure: str) -> pd.DataFrame:
    """The finished runs of a figure's plan; empty where it was never planned at this scale."""
    plan = read_plan(runs, scale, figure)
    frame = pd.DataFrame() if plan is None else load(runs, plan.cells)
    if frame.empty or plan is None:
        return frame
    if plan.search is not None:
        frame = frame.assign(solved=plan.search["solved"], last=max(plan.search["values"]))
    frame = frame[frame["status"].isin(("done", "diverged"))]
    if plan.schema is not None:
        frame = frame[frame["schema"] == plan.schema]
    ends = {cell: _end(plan, set(seeds)) for cell, seeds in frame.groupby("cell")["seed"]}
    return frame[frame["seed"].ge(plan.first_seed) & frame["seed"].lt(frame["cell"].map(ends))]


def _end(plan: Plan, seeds: set[int]) -> int:
    """Where the seeds of a plan end: those it asked for, and what was trained beyond without a gap."""
    end = plan.first_seed + plan.seeds
    while end in seeds:
        end += 1
    return end


def run_folders(runs: Path, cells: Iterable[str] | None = None) -> list[Path]:
    """Every run folder, or those of the given cells."""
    if cells is None:
        return sorted(runs.glob(f"*/{'?' * 12}-s*-*"))
    return sorted(folder for cell in cells for folder in runs.glob(f"*/{cell}-s*-*"))


def load(runs: Path, cells: Iterable[str] | None = None) -> pd.DataFrame:
    """Every run below the folder, or those of the given cells. Columns of a seed that diverged are empty from there."""
    rows: list[dict[str, Any]] = []
    for folder in run_folders(runs, cells):
        cell = folder.name.partition("-s")[0]
        if (folder / "metrics.jsonl").exists() and (folder / "config.yaml").exists():
            config = yaml.load((folder / "config.yaml").read_text(), Loader=Loader)
            if not isinstance(config, dict):
                continue
            status = read_json(folder / "status.json").get("status", "running")
            about = {"cell": cell, "run": folder.name, "status": status, **flatten(config)}
            rows += [about | row for row in read_log(folder / "metrics.jsonl")]
    frame = pd.DataFrame(rows)
    for column in OPTIONAL:
        if column not in frame:
            frame[column] = np.nan
    return frame.drop_duplicates(["cell", "seed", "step"]) if len(frame) else frame


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that are whole."""
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # torn by an interruption; the run will write it again
            break
    return rows


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def spent(status: Mapping[str, Any]) -> float:
    """Seconds that a run was in training."""
    return float(status.get("seconds", max(0.0, status.get("ended", 0.0) - status.get("started", 0.0))))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{gate: {rate: 0.03}} → {gate.rate: 0.03}; the friction's name is its own column, lists become text."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if prefix == "" and key == "friction":
            flat["friction"] = "+".join(value) or "none"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif name != "seeds":
            flat[name] = str(value) if isinstance(value, list) else value
    return flat


def where(frame: pd.DataFrame, values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have these values; what a method has no setting for does not count against it."""
    for column, value in values.items():
        absent = column.startswith("gate.") & frame["gate.mode"].isna() if "gate.mode" in frame else True
        frame = frame[(frame[column] == value) | absent] if column in frame else frame
    return frame


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of each (cell, seed) that was trained to its end."""
    return frame[frame["step"] == frame["steps"]]
