"""Run folders → one frame: a row per (run, evaluation, seed), the config in columns with dotted names.

Reads files only: no torch, no Hydra, no W&B. A run counts if it is finished and its record is sound: config and log are
what the run ended with, and the config is that of the folder's name. Whatever else is there is left out, with a
sentence that names it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 20
FINISHED, UNFINISHED = ("done", "diverged"), ("running", "failed")
FOLDER = re.compile("([0-9a-f]{12})-s([0-9]{1,9})-([0-9]{1,9})")
BESIDE = ("seeds", "error", "choices")
"""Keys of a saved config that are no part of what the run is."""
OPTIONAL = ("gate.rate", "gate.price", "gate.mode", "gate.priority", "gate.alpha", "gate.unit", "diverged", "error")
"""Columns that some runs do not have."""
COSTS = ("forward", "screened", "backward")
"""Columns that every row of a trained run has."""
CHOICES = ("task", "method", "friction", "intensity")
"""What a figure asks for by name, each a column choice.…"""
DIGITS = 1e-4
"""How far beyond 0 and 1 rounding may put a share."""


class Damaged(ValueError):
    """A sentence that names a file or folder that cannot be used, and why."""


@dataclass(frozen=True)
class Plan:
    """The cells a figure asked for at some scale, as `reproduce` wrote them down before it trained any."""

    figure: str
    scale: str
    command: str
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """{cell key: {name: the cell in a few words, choices: {task: …, method: …, friction: …, intensity: …}}}"""
    seeds: int = 0
    first_seed: int = 0
    schema: int | None = None
    """The version of the config that its runs must have."""
    search: Mapping[str, Any] | None = None
    """The axis that is climbed while it is solved: key, values, solved."""

    def name(self, cell: str) -> str:
        """The cell in a few words."""
        return str(self.cells[cell]["name"])


@dataclass(frozen=True)
class Run:
    """A finished run whose record is sound."""

    cell: str
    folder: Path
    config: Mapping[str, Any]
    status: Mapping[str, Any]
    rows: list[dict[str, Any]]

    def columns(self) -> Iterator[dict[str, Any]]:
        """The rows of a frame; the error of its task is the column `error`, and `metric` tells which that is."""
        about, metric = _about(self.cell, self.folder, self.status["status"], self.config), self.config["error"]
        for row in self.rows:
            yield about | row | ({} if metric is None else {"error": row[metric]})


def _about(cell: str, folder: Path, status: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What all rows of a run have in common."""
    identity = {key: value for key, value in config.items() if key not in BESIDE}
    return {"cell": cell, "run": folder.name, "status": status, "metric": config["error"], **flatten(identity)}


# Plans


def plan_path(runs: Path, scale: str, figure: str) -> Path:
    return runs / "plans" / scale / f"{figure}.json"


def read_plan(runs: Path, scale: str, figure: str) -> Plan | None:
    """The plan of a figure; None where there is none, or none that can be read, which is then told on stderr."""
    path = plan_path(runs, scale, figure)
    if not path.exists():
        return None
    try:
        plan = Plan(**_json(_read(path) or b""))
    except (ValueError, TypeError, RecursionError):
        plan = None
    if plan is None or not _is_plan(plan):
        _say(f"{path}: no plan that can be read; make reproduce FIGURES={figure} SCALE={scale} writes it anew")
        return None
    return plan


def _is_plan(plan: Plan) -> bool:
    """Whether every part of a plan is what it should be."""
    return (
        all(isinstance(text, str) for text in (plan.figure, plan.scale, plan.command))
        and all(_is_count(count) for count in (plan.seeds, plan.first_seed))
        and (plan.schema is None or _is_count(plan.schema))
        and isinstance(plan.cells, dict)
        and all(re.fullmatch("[0-9a-f]{12}", key) and _is_planned(cell) for key, cell in plan.cells.items())
        and (plan.search is None or _is_search(plan.search))
    )


def _is_planned(cell: Any) -> bool:
    return isinstance(cell, dict) and isinstance(cell.get("name"), str) and isinstance(cell.get("choices"), dict)


def _is_search(search: Any) -> bool:
    values = search.get("values") if isinstance(search, dict) else None
    return isinstance(values, list) and values != [] and all(map(_is_number, [*values, search.get("solved")]))


@functools.cache
def _say(sentence: str) -> None:
    """On stderr, once."""
    print(sentence, file=sys.stderr)


# Frames


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


# Run folders


def run_folders(runs: Path, cells: Iterable[str] | None = None) -> list[Path]:
    """Every run folder, or those of the given cells."""
    if cells is None:
        return sorted(runs.glob(f"*/{'?' * 12}-s*-*"))
    return sorted(folder for cell in cells for folder in runs.glob(f"*/{cell}-s*-*"))


def read_runs(runs: Path, cells: Iterable[str] | None = None) -> tuple[list[Run], list[str]]:
    """Every sound run, or those of the given cells; and a sentence for each folder that had to be left out."""
    sound, damaged = [], []
    for folder in run_folders(runs, cells):
        try:
            run = read_run(folder)
        except Damaged as problem:
            damaged.append(str(problem))
        else:
            sound += [] if run is None else [run]
    return sound, damaged


def read_run(folder: Path) -> Run | None:
    """A finished run, None where it is not finished (yet); Damaged where its record is not sound."""
    named = FOLDER.fullmatch(folder.name)
    if named is None or int(named[2]) > int(named[3]):
        raise Damaged(f"{folder}: no name of a run, <cell>-s<first seed>-<last seed>")
    if not folder.is_dir():
        raise Damaged(f"{folder}: no folder, but a file in its place")
    status = read_status(folder)
    if status.get("status") not in FINISHED:
        if status.get("status") in UNFINISHED or not (folder / "status.json").exists():
            return None
        raise Damaged(f"{folder}: status.json cannot be read")
    contents = {}
    for name in ("config.yaml", "metrics.jsonl"):
        content = _read(folder / name)
        if content is None:
            raise Damaged(f"{folder}: {name} cannot be read")
        contents[name] = content
        if hashlib.sha256(contents[name]).hexdigest() != status.get("digests", {}).get(name):
            raise Damaged(f"{folder}: {name} was changed after the run ended")
    try:
        config = _config(contents["config.yaml"], *named.groups())
        rows = [_row(line) for line in contents["metrics.jsonl"].splitlines()]
        _check(rows, config, set(_about(named[1], folder, status["status"], config)))
    except Damaged as problem:
        raise Damaged(f"{folder}: {problem}") from None
    return Run(named[1], folder, config, status, rows)


def _config(content: bytes, cell: str, first: str, last: str) -> dict[str, Any]:
    """What a run is, if it is what its name says."""
    try:
        config = _yaml(content)
        identity = {key: value for key, value in config.items() if key not in BESIDE}
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError):
        raise Damaged("config.yaml cannot be read") from None
    if key != cell:
        raise Damaged("config.yaml holds another config than the folder's name says")
    seeds = config.get("seeds")
    wanted = range(int(first), int(last) + 1)
    if not isinstance(seeds, list) or len(seeds) != len(wanted) or seeds != list(wanted):
        raise Damaged("config.yaml has other seeds than the folder's name says")
    named = all(isinstance(config.get(part), dict) and "name" in config[part] for part in ("task", "method"))
    if not named or not isinstance(config.get("friction"), dict) or not _is_count(config.get("steps")):
        raise Damaged("config.yaml is not the config of a run")
    if "schema" not in config or not isinstance(config.get("error", 0), (str, type(None))):
        raise Damaged("config.yaml was written by another version")
    return config


def _yaml(content: bytes) -> Any:
    """What YAML says, if it is not nested so deeply that the loader would crash."""
    depth = 0
    for event in yaml.parse(content, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError("nested too deeply")
    return yaml.load(content, Loader=Loader)


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = _json(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise Damaged("metrics.jsonl has a line that is no row")
    return row


def _check(rows: list[dict[str, Any]], config: Mapping[str, Any], taken: set[str]) -> None:
    """A log is sound if every seed has a row at each evaluation and all go to the end, and every value can be what it
    says that it is."""
    metric = config["error"]
    for row in rows:
        if not (_is_count(row.get("step")) and _is_count(row.get("seed"))):
            raise Damaged("metrics.jsonl has a row without step or seed")
        at = f"metrics.jsonl, step {row['step']}, seed {row['seed']}"
        if clash := sorted(taken & set(row)):
            raise Damaged(f"{at}: {clash[0]} is a column of the config")
        for name, value in row.items():
            if not _is_value(value, texts=metric is None):
                raise Damaged(f"{at}: {name} = {str(value)[:50]}")
        if metric is not None:
            for name in COSTS:
                if not (_is_number(row.get(name)) and row[name] >= 0):
                    raise Damaged(f"{at}: {name} = {row.get(name)}, expected a cost")
            if metric != "error" and "error" in row:
                raise Damaged(f"{at}: error is a column of the config")
            error = row.get(metric, math.nan)
            if error is not None and not (_is_number(error) and -DIGITS <= error <= 1 + DIGITS):
                raise Damaged(f"{at}: {metric} = {error}, expected a share")
    by_step: dict[int, list[int]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row["seed"])
    if max(by_step, default=0) != config["steps"] or any(seeds != config["seeds"] for seeds in by_step.values()):
        raise Damaged("metrics.jsonl is not the whole log of its seeds")


def _is_number(value: Any) -> bool:
    """A finite number that a column of numbers can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_value(value: Any, texts: bool, depth: int = 3) -> bool:
    """Nothing, a number, or a list of them, of few dimensions; in the log of a study also a text."""
    if isinstance(value, list):
        return depth > 0 and all(_is_value(item, texts, depth - 1) for item in value)
    return value is None or _is_number(value) or (texts and isinstance(value, (str, bool)))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log up to the first line that is none: torn by an interruption, the run will write it again."""
    rows = []
    for line in (_read(path) or b"").splitlines():
        try:
            rows.append(_row(line))
        except Damaged:
            break
    return rows


STATUS: dict[str, Any] = {
    "status": lambda value: isinstance(value, str),
    "reason": lambda value: isinstance(value, str),
    "traceback": lambda value: isinstance(value, str),
    "commit": lambda value: isinstance(value, str),
    "step": _is_count,
    "seconds": _is_number,
    "started": _is_number,
    "ended": _is_number,
    "error": _is_number,
    "digests": lambda value: isinstance(value, dict),
    "diverged": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict),
    "machine": lambda value: isinstance(value, dict),
}
"""What a status may say, and how that must look."""


def read_status(folder: Path) -> dict[str, Any]:
    """What a run's status says that can be true; {} where there is none."""
    status = read_json(folder / "status.json")
    return {key: value for key, value in status.items() if key in STATUS and STATUS[key](value)}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} where there is none."""
    try:
        content = _json(_read(path) or b"")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> bytes | None:
    """What is in a file, None where there is none that can be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _json(content: bytes) -> Any:
    """JSON as its standard has it: no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(content, parse_constant=refuse)


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
        else:
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
