"""Train one cell, or sweep many.

    python -m experiments.run task=bandit method=dgk gate.price=0 friction=staleness
    python -m experiments.run -m method=pg,dg,dgk gate.rate=0.01,0.03,0.1 friction=none,staleness
    python -m experiments.run -m experiment=bandit_pareto scale=smoke hydra/launcher=ray

What is complete is skipped, what was interrupted goes on. `--help` shows every key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from analysis.interrupts import interruptible
from experiments.compose import Job, foreign_axes, job, load_extensions, single, sweep, write_plan
from experiments.launchers import Launcher, launcher
from experiments.train import BUSY, Todo, line, train_all, train_block
from kondo.runs import Rows, RunBusy, finished
from kondo.schema import ConfigError


def mean_error(rows: Rows, column: str | None) -> float:
    """Over the seeds that have one; NaN where none has."""
    errors = [row[column] for row in rows if column and row.get(column) is not None]
    return fmean(errors) if errors else float("nan")


def left(jobs: Sequence[Job]) -> Todo:
    """The blocks that are not complete; those that are get a line."""
    todo = []
    for each in jobs:
        for block in each.blocks():
            if finished(block, Path(each.launch.runs)):
                print(line(each, block, "complete, skipped"))
            else:
                todo.append((each, block))
    return todo


def run(one: Job) -> None:
    """Every block of a job in this process, with a progress bar and a line at its end."""
    for todo, block in left([one]):
        with tqdm(total=block.cell.steps, desc=todo.name, unit="step", leave=False, disable=None) as bar:

            def watch(step: int, rows: Rows, bar: tqdm = bar, error: str | None = todo.cell.error) -> None:
                bar.update(step - bar.n)
                if rows:
                    bar.set_postfix(refresh=False, error=f"{mean_error(rows, error):.3g}")

            try:
                status = train_block(todo, block, watch)
            except RunBusy:
                status = BUSY
        print(line(todo, block, status))


def run_sweep(jobs: Sequence[Job], where: Launcher) -> int:
    """Every block of many jobs on a launcher; 1 if any of them failed."""
    todo = left(jobs)
    trouble = train_all(todo, where) if todo else {}
    return 1 if set(trouble.values()) - {BUSY} else 0


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def _main(config: DictConfig) -> None:
    try:
        hydra = HydraConfig.get()
        run(job(config, hydra.runtime.choices, sweeping=hydra.mode is RunMode.MULTIRUN))
    except ConfigError as error:  # Hydra would print a traceback
        sys.exit(f"error: {error}")


def main() -> int:
    words = sys.argv[1:]
    flags = [word for word in words if word.startswith("-")]
    overrides = [word for word in words if word not in flags]
    try:
        with interruptible():
            return _run(flags, overrides)
    except (ConfigError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoint")


def _run(flags: Sequence[str], overrides: Sequence[str]) -> int:
    """What the command line asks for; 1 if a run of a sweep failed."""
    if set(flags) - {"-m", "--multirun"}:  # --help, --cfg, …: Hydra's own, one run after the other
        load_extensions()
        sys.argv.append("hydra/launcher=basic")
        _main()
        return 0
    jobs = sweep(overrides) if flags else [single(overrides)]
    where = launcher(overrides)
    for todo in jobs:
        todo.cell.task.fetch(Path(todo.launch.data))
    if not flags:
        run(jobs[0])
        return 0
    figure = next((word.partition("=")[2] for word in overrides if word.startswith("experiment=")), None)
    if figure and (foreign := foreign_axes(overrides)):
        print(f"{figure} has no axis for {', '.join(foreign)}: its plan stays as it is")
        figure = None
    failed, tried = 0, set[str]()
    while new := [todo for todo in jobs if todo.cell.key() not in tried]:
        if figure:
            write_plan(figure, jobs, overrides)
        failed |= run_sweep(new, where)
        tried |= {todo.cell.key() for todo in new}
        if jobs[0].launch.search.key is not None:  # what it needs next depends on what came out
            jobs = sweep(overrides)
    return failed


if __name__ == "__main__":
    sys.exit(main())
