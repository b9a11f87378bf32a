"""Finished runs: a run counts if its record is sound, that is if config and log are what it ended with, the config is
that of its name, and every value of the log can be what it says that it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kondo.lab.records.archive import archive_of, opened, read_file
from kondo.lab.records.files import (
    CONFIG,
    LOG,
    STATUS,
    Damaged,
    Rows,
    is_count,
    is_number,
    key_of,
    parse_json,
)
from kondo.lab.records.folders import check_seeds, parse_config, parse_name, run_folders
from kondo.lab.records.plans import Plan, plan_text
from kondo.lab.records.status import FINISHED, UNFINISHED, read_status, unchanged

BESIDE = ("seeds", "error", "choices")
"""Keys of a saved config that are no part of what the run is."""
COSTS = ("forward", "screened", "backward")
"""Columns that every row of a trained run has."""
DIGITS = 1e-4
"""How far beyond 0 and 1 rounding may put a share."""


@dataclass(frozen=True)
class Run:
    """A finished run whose record is sound."""

    cell: str
    name: str
    """<cell>-s<first seed>-<last seed>"""
    config: Mapping[str, Any]
    status: Mapping[str, Any]
    rows: Rows

    @property
    def end(self) -> int:
        """The step that it was trained to."""
        return int(self.rows[-1]["step"])

    def about(self) -> dict[str, Any]:
        """The columns that all rows have in common: the config, with dotted names."""
        status, metric = self.status["status"], self.config["error"]
        shared = self.status.get("versions", {}).get("kernels") == "shared"
        common = {"cell": self.cell, "run": self.name, "status": status, "metric": metric, "shared": shared}
        return common | flatten(_identity(self.config))

    def columns(self) -> Iterator[dict[str, Any]]:
        """The rows of a frame; the error of its task is the column `error`, and `metric` tells which that is."""
        about, metric = self.about(), self.config["error"]
        for row in self.rows:
            yield about | row | ({} if metric is None else {"error": row[metric]})


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


# From folders


def read_runs(runs: Path, cells: Iterable[str] | None = None) -> tuple[list[Run], list[str]]:
    """Every sound run, or those of the given cells; and a sentence for each folder or archive that had to be left
    out."""
    sound, damaged = [], []
    for folder in run_folders(runs, cells):
        try:
            run = read_run(folder)
        except Damaged as problem:
            damaged.append(str(problem))
        else:
            sound += [] if run is None else [run]
    return sound, list(dict.fromkeys(damaged))


def read_run(folder: Path) -> Run | None:
    """A finished run, None where it is not finished (yet); Damaged where its record is not sound."""
    archive = archive_of(folder)
    if archive is not None:
        opened(archive)
    try:
        parse_name(folder.name)
        if archive is None and not folder.is_dir():
            raise Damaged("no folder, but a file in its place")
        status = read_status(folder)
        if status.get("status") in UNFINISHED or (archive is None and not (folder / STATUS).exists()):
            return None
        files = {name: read_file(folder / name) for name in (CONFIG, LOG)}
        return checked_run(folder.name, {name: held for name, held in files.items() if held is not None}, status)
    except Damaged as problem:
        raise Damaged(f"{folder}: {problem}") from None


def content_of(runs: Path, plan: Plan) -> Iterator[bytes]:
    """All that a figure can be drawn from: its plan, and the files of its runs by name."""
    yield plan_text(plan).encode()
    for folder in run_folders(runs, plan.cells):
        for name in (CONFIG, LOG, STATUS):
            yield str(folder / name).encode()
            yield read_file(folder / name) or b""


def read_log(folder: Path) -> Rows:
    """The rows of a run so far, up to a line that was torn by an interruption: the run will write it again."""
    rows = []
    for line in (read_file(folder / LOG) or b"").splitlines():
        try:
            rows.append(_row(line))
        except Damaged:
            break
    return rows


# From bytes, wherever they come from


def checked_run(name: str, files: Mapping[str, bytes], status: Mapping[str, Any]) -> Run:
    """The run of that name; Damaged where what its config, its log and its status say cannot be."""
    cell, first, last = parse_name(name)
    if status.get("status") not in FINISHED:
        raise Damaged(f"{STATUS} cannot be read")
    for file in (CONFIG, LOG):
        if file not in files:
            raise Damaged(f"{file} cannot be read")
        if not unchanged(status, file, files[file]):
            raise Damaged(f"{file} was changed after the run ended")
    config = parse_config(files[CONFIG])
    _check_config(config, cell)
    check_seeds(config, first, last)
    run = Run(cell, name, config, status, [_row(line) for line in files[LOG].splitlines()])
    taken = set(run.about())
    for row in run.rows:
        _check_row(row, config["error"], taken)
    _check_whole(run)
    return run


def _check_config(config: Mapping[str, Any], cell: str) -> None:
    """A config is that of a run, and of the run that its name says."""
    try:
        key = key_of(_identity(config))
    except (ValueError, TypeError, RecursionError):
        raise Damaged(f"{CONFIG} cannot be read") from None
    if key != cell:
        raise Damaged(f"{CONFIG} holds another config than the folder's name says")
    named = all(isinstance(config.get(part), dict) and "name" in config[part] for part in ("task", "method"))
    if not named or not isinstance(config.get("friction"), dict) or not is_count(config.get("steps")):
        raise Damaged(f"{CONFIG} is not the config of a run")
    if "schema" not in config or not isinstance(config.get("error", 0), (str, type(None))):
        raise Damaged(f"{CONFIG} was written by another version")


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the key of a cell is made of."""
    return {key: value for key, value in config.items() if key not in BESIDE}


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise Damaged(f"{LOG} has a line that is no row")
    return row


def _check_row(row: Mapping[str, Any], metric: str | None, taken: set[str]) -> None:
    """Every value can be what it says that it is, and none has the name of a column of the config."""
    if not (is_count(row.get("step")) and is_count(row.get("seed"))):
        raise Damaged(f"{LOG} has a row without step or seed")
    at = f"{LOG}, step {row['step']}, seed {row['seed']}"
    if clash := sorted(taken & set(row)):
        raise Damaged(f"{at}: {clash[0]} is a column of the config")
    for name, value in row.items():
        if not _is_value(value, texts=metric is None):
            raise Damaged(f"{at}: {name} = {str(value)[:50]}")
    if metric is None:
        return
    for name in COSTS:
        if not (is_number(row.get(name)) and row[name] >= 0):
            raise Damaged(f"{at}: {name} = {row.get(name)}, expected a cost")
    if metric != "error" and "error" in row:
        raise Damaged(f"{at}: error is a column of the config")
    error = row.get(metric, math.nan)
    if error is not None and not (is_number(error) and -DIGITS <= error <= 1 + DIGITS):
        raise Damaged(f"{at}: {metric} = {error}, expected a share")


def _is_value(value: Any, texts: bool, depth: int = 3) -> bool:
    """Nothing, a number, or a list of them, of few dimensions; in the log of a study also a text."""
    if isinstance(value, list):
        return depth > 0 and all(_is_value(item, texts, depth - 1) for item in value)
    return value is None or is_number(value) or (texts and isinstance(value, (str, bool)))


def _check_whole(run: Run) -> None:
    """Every seed has a row at each evaluation, and all go to the end, or until none has an error that is too large."""
    by_step: dict[int, list[int]] = {}
    for row in run.rows:
        by_step.setdefault(row["step"], []).append(row["seed"])
    seeds, steps = run.config["seeds"], run.config["steps"]
    end = max(by_step, default=0)
    if not (end == steps or _solved(run, end)) or any(each != seeds for each in by_step.values()):
        raise Damaged(f"{LOG} is not the whole log of its seeds")


def _solved(run: Run, end: int) -> bool:
    """Whether training ended as the config's `until` says."""
    until, metric = run.config.get("until"), run.config["error"]
    errors = [row.get(metric) for row in run.rows if row["step"] == end]
    return is_number(until) and all(error is not None and error <= until for error in errors)
