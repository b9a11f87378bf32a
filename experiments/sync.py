"""Finished records to Weights & Biases, after the fact: what `wandb.mode=online` would have logged along the way."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.mirror import AXES, summary
from kondo.lab.records import Plan, Run, digest, planned, read_plan, read_runs, write_atomically

PROJECT = "kondo"


def plans_of(runs: Path) -> Iterator[Plan]:
    """The plans of a folder of runs or of published results."""
    for scale, figure in planned(runs):
        plan = read_plan(runs, scale, figure)
        if plan is not None:
            yield plan


def fingerprint(run: Run) -> str:
    """Changes if the record does."""
    return digest(json.dumps([run.name, run.rows], sort_keys=True).encode())


class Synced:
    """What was mirrored already, by mode: a file beside W&B's own."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.path, self.mode = folder / "wandb" / "synced.json", mode
        self.known: dict[str, dict[str, str]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def has(self, run: Run) -> bool:
        return self.known.get(self.mode, {}).get(run.name) == fingerprint(run)

    def add(self, run: Run) -> None:
        self.known.setdefault(self.mode, {})[run.name] = fingerprint(run)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.known, indent=1, sort_keys=True))


def start(mode: str, folder: Path, **about: Any) -> Any:
    """A run of W&B; its files, if offline, are in <folder>/wandb."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(console="off", x_disable_stats=True)
    return wandb.init(mode=mode, dir=str(folder), settings=settings, **about)  # type: ignore[arg-type]


def mirror(run: Run, mode: str, project: str, folder: Path, plan: Plan | None) -> None:
    """One finished run, an evaluation at a time."""
    choices = run.config.get("choices") or {}
    name = run.name if plan is None else plan.name(run.cell)
    words = [choices.get("task"), choices.get("friction"), plan.scale if plan else None]
    logged = start(
        mode,
        folder,
        project=project,
        group=plan.figure if plan else "ad hoc",
        job_type=choices.get("method", run.config["method"]["name"]),
        tags=[str(word) for word in words if word],
        id=run.name,
        name=name,
        config=dict(run.config),
        resume="allow" if mode == "online" else None,
    )
    for axis in AXES:
        logged.define_metric(axis, hidden=True)
    logged.define_metric("*", step_metric="step")
    for _, rows in itertools.groupby(run.rows, key=lambda row: row["step"]):
        logged.log(summary(list(rows), run.config["error"]))
    logged.finish(exit_code=0)


def sync(runs: Path, mode: str, project: str, folder: Path) -> int:
    """Mirror every finished run that was not mirrored in this mode; tells which, and returns how many failed."""
    homes = {cell: plan for plan in plans_of(runs) for cell in plan.cells}
    found, damaged = read_runs(runs)
    known, failed = Synced(folder, mode), 0
    fresh = [run for run in found if not known.has(run)]
    for run in fresh:
        try:
            mirror(run, mode, project, folder, homes.get(run.cell))
        except Exception as error:
            failed += 1
            print(f"{run.name}: {type(error).__name__}: {error}")
        else:
            known.add(run)
            print(f"{run.name}: mirrored, {mode}")
    print(*(f"left out: {sentence}" for sentence in damaged), sep="\n", end="\n" if damaged else "")
    print(f"{len(fresh) - failed} runs mirrored, {len(found) - len(fresh)} were already, {failed} failed")
    return failed
