"""Publishing: finished runs and plans → archives and a manifest that says what they are and what they cost."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kondo.lab.records.archive import (
    FILES,
    MANIFEST,
    SUFFIX,
    archived_runs,
    is_results,
    opened,
    packed,
    plan_name,
    read_file,
)
from kondo.lab.records.files import CONFIG, LOG, STATUS, Damaged, digest, json_object, replacing
from kondo.lab.records.folders import run_folders
from kondo.lab.records.plans import Plan, plan_text, planned, read_plan
from kondo.lab.records.runs import Run, checked_run, read_run
from kondo.lab.records.status import parse_status, spent

LARGEST = 30_000_000
"""Bytes that a results folder may have."""
MACHINE = ("platform", "device", "cpu", "cores", "threads")
"""What is published of the machine: nobody's name."""
PRIVATE = ("traceback", "reason")
"""What of a status may name folders of the machine."""
PHASE = "seconds_"


class Refused(ValueError):
    """A sentence that says what cannot be published, and why."""


@dataclass(frozen=True)
class Record:
    """A finished run and its files."""

    run: Run
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Experiment:
    """What is published of an experiment."""

    plan: Plan
    records: Mapping[str, Record]
    """{task/run: record} of all its cells"""


# From runs


def read_experiment(runs: Path, scale: str, name: str) -> Experiment:
    """An experiment's plan and its finished runs; Refused where there is no plan, Damaged where a run is not sound."""
    plan = read_plan(runs, scale, name)
    if plan is None:
        raise Refused(f"{name}: no plan at {scale} scale in {runs}; make reproduce FIGURES={name} SCALE={scale}")
    records = {}
    for folder in run_folders(runs, plan.cells):
        run = read_run(folder)
        if run is not None and run.config["schema"] == plan.schema:
            records[f"{folder.parent.name}/{folder.name}"] = read_record(folder)
    return Experiment(replace(plan, command=_anywhere(plan.command)), records)


def read_record(folder: Path) -> Record:
    """A finished run with its files, checked together."""
    files = {name: read_file(folder / name) or b"" for name in FILES}
    files[STATUS] = _public(files[STATUS])
    try:
        run = checked_run(folder.name, {name: files[name] for name in (CONFIG, LOG)}, parse_status(files[STATUS]))
    except Damaged as problem:
        raise Damaged(f"{folder}: {problem}") from None
    return Record(run, files)


def _public(status: bytes) -> bytes:
    """A status without what would tell whose machine it was; otherwise as it stands."""
    said = json_object(status)
    machine = said.get("machine")
    kept = {key: value for key, value in said.items() if key not in PRIVATE}
    if isinstance(machine, dict):
        kept["machine"] = {key: value for key, value in machine.items() if key in MACHINE}
    return status if kept == said else json.dumps(kept, indent=1).encode()


def _anywhere(command: str) -> str:
    """A command without the folder of this machine that the runs went to."""
    return re.sub(r""" RUNS=(?:'[^']*'|"[^"]*"|[^\s'"])*""", "", command)


def missing(experiment: Experiment) -> dict[str, int]:
    """{cell's name: how many of the planned seeds are finished} of the cells that lack some."""
    plan = experiment.plan
    seeds: defaultdict[str, set[int]] = defaultdict(set)
    for record in experiment.records.values():
        seeds[record.run.cell] |= set(record.run.config["seeds"])
    wanted = set(range(plan.first_seed, plan.first_seed + plan.seeds))
    return {plan.name(key): len(seeds[key] & wanted) for key in plan.cells if not wanted <= seeds[key]}


def check_whole(name: str, experiment: Experiment) -> None:
    """Every planned seed of every planned cell is finished, or Refused."""
    if lacking := missing(experiment):
        plan = experiment.plan
        words = ", ".join(f"{cell} ({seeds} of {plan.seeds} seeds)" for cell, seeds in lacking.items())
        raise Refused(f"{name}: {len(lacking)} of {len(plan.cells)} cells are not finished: {words}")


# To archives


def unfinished_path(results: Path, name: str) -> Path:
    """Where the finished runs of an experiment that is not whole are kept: unfinished.py."""
    return results / "unfinished" / f"{name}{SUFFIX}"


def publish(results: Path, new: Mapping[str, Experiment]) -> Mapping[str, Any]:
    """Add experiments to a results folder, or replace them there; returns its manifest.

    What is there already stays; a run that several experiments have is in the archive of the first by name.
    """
    every = dict(sorted({**_published_already(results, new), **new}.items()))
    for name, experiment in every.items():
        check_whole(name, experiment)
    homes: dict[str, str] = {}
    for name, experiment in every.items():
        for run in experiment.records:
            homes.setdefault(run, f"{name}{SUFFIX}")
    archives = {f"{name}{SUFFIX}": _archive(results, name, every[name], homes) for name in every}
    entries = {name: _entry(name, every[name], homes, archives[f"{name}{SUFFIX}"]) for name in every}
    manifest = {"experiments": entries, "runs": len(homes), "version": 1}
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if (total := sum(map(len, archives.values())) + len(text.encode())) > LARGEST:
        raise Refused(f"{results}: would have {total:,} bytes; {LARGEST:,} is the most")
    results.mkdir(parents=True, exist_ok=True)
    for name, content in [*archives.items(), (MANIFEST, text.encode())]:
        if not (results / name).is_file() or (results / name).read_bytes() != content:
            with replacing(results / name) as file:
                file.write(content)
    for name in every:
        unfinished_path(results, name).unlink(missing_ok=True)
    return manifest


def _published_already(results: Path, new: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """What a results folder has beside the new experiments; of the cells that these have, the new runs."""
    if not is_results(results):
        return {}
    fresh = {run: record for each in new.values() for run, record in each.records.items()}
    replaced = {record.run.cell for record in fresh.values()}
    found = {}
    for scale, name in planned(results):
        if name in new:
            continue
        plan = read_plan(results, scale, name)
        if plan is None:
            raise Refused(f"{results / name}{SUFFIX}: cannot be read; publish {name} anew too")
        old = archived_runs(results, set(plan.cells) - replaced)
        for path in old.values():
            opened(path.parents[1])
        kept = {run: read_record(path) for run, path in old.items()}
        kept |= {run: record for run, record in fresh.items() if record.run.cell in plan.cells}
        found[name] = Experiment(plan, dict(sorted(kept.items())))
    return found


def _archive(results: Path, name: str, experiment: Experiment, homes: Mapping[str, str]) -> bytes:
    """An experiment's archive; the one that is there where it holds the same already."""
    path = results / f"{name}{SUFFIX}"
    files = {plan_name(experiment.plan.scale, name): plan_text(experiment.plan).encode()}
    for run, record in experiment.records.items():
        if homes[run] == path.name:
            files |= {f"{run}/{file}": content for file, content in record.files.items()}
    try:
        if is_results(results) and opened(path) == files:
            return path.read_bytes()
    except Damaged:
        pass
    return packed(files)


def _entry(name: str, experiment: Experiment, homes: Mapping[str, str], archive: bytes) -> dict[str, Any]:
    """What the manifest says of an experiment."""
    plan, records = experiment.plan, experiment.records
    statuses = [record.run.status for record in records.values()]
    return {
        "archive": f"{name}{SUFFIX}",
        "sha256": digest(archive),
        "bytes": len(archive),
        "scale": plan.scale,
        "command": plan.command,
        "seeds": plan.seeds,
        "first_seed": plan.first_seed,
        "steps": sorted({record.run.config["steps"] for record in records.values()}),
        "commits": sorted({str(status.get("commit")) for status in statuses}),
        "versions": _distinct(status.get("versions", {}) for status in statuses),
        "machines": _distinct(status.get("machine", {}) for status in statuses),
        "core_hours": round(sum(_core_seconds(status) for status in statuses) / 3600, 4),
        "cells": {key: _cell(plan.name(key), cell_records(records, key), homes) for key in plan.cells},
    }


def cell_records(records: Mapping[str, Record], cell: str) -> dict[str, Record]:
    """Those of one cell."""
    return {run: record for run, record in records.items() if record.run.cell == cell}


def _cell(name: str, records: Mapping[str, Record], homes: Mapping[str, str]) -> dict[str, Any]:
    """What the manifest says of a cell: its seeds, how they ended, where they are, and what they took."""
    runs = [record.run for record in records.values()]
    diverged = any(run.status["status"] == "diverged" for run in runs)
    seconds: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        seconds["total"] += spent(run.status)
        for row in run.rows:
            if row["step"] == run.end:
                for column, value in row.items():
                    if column.startswith(PHASE) and value is not None:
                        seconds[column.removeprefix(PHASE)] += value
    return {
        "name": name,
        "seeds": len({seed for run in runs for seed in run.config["seeds"]}),
        "status": "diverged" if diverged else "done",
        "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
        "runs": {run: homes[run] for run in records},
    }


def _core_seconds(status: Mapping[str, Any]) -> float:
    threads = status.get("machine", {}).get("threads")
    return spent(status) * (threads if isinstance(threads, int) else 1)


def _distinct(said: Iterable[Any]) -> list[Any]:
    return [json.loads(text) for text in sorted({json.dumps(each, sort_keys=True) for each in said})]
