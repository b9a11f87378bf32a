"""Figures → the runs they need → skip, resume or train → figures → claims.

    python -m experiments.reproduce --scale smoke bandit_pareto
    python -m experiments.reproduce hydra/launcher=ray hydra.launcher.address=auto

Runs are trained side by side, by default one process per core. What is complete is skipped, what was interrupted goes
on, what another process trains is waited for. When all is trained the figures are asked again what they need, until
they need nothing more.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from analysis import draw, report
from experiments.compose import single
from experiments.jobs import Job
from experiments.launchers import Launcher, cores, launcher
from experiments.plans import compose_all, experiments, needed_now, plan
from experiments.train import BUSY, Todo, train_all
from kondo.lab import remote
from kondo.lab.interrupts import interruptible
from kondo.lab.process import start
from kondo.lab.records import has_checkpoint
from kondo.lab.training import Block, finished
from kondo.schema import ConfigError, Unavailable

CALIBRATION_SECONDS, CELL_SECONDS = 15.0, 0.2
"""How long to measure what steps cost: all cells together, and each."""
WAIT_SECONDS = 2.0
"""How long to wait before asking again for runs that another process trains."""


def refuse(overrides: Sequence[str]) -> None:
    """What has a place of its own on the command line would make a figure of other runs than its name says."""
    for word in overrides:
        key = word.partition("=")[0].lstrip("+~")
        if key in ("experiment", "scale"):
            instead = "name the figures, FIGURES=…" if key == "experiment" else "--scale …, with make SCALE=…"
            raise ConfigError(f"{word}: not an override here; {instead}")


def unfinished(jobs: Iterable[Job]) -> tuple[int, Todo]:
    """How many runs jobs are, and which of them are not complete; of jobs that share a cell the one with most seeds."""
    cells = {job.cell.key(): job for job in sorted(jobs, key=lambda job: job.launch.seeds)}
    every = [(job, block) for job in cells.values() for block in job.blocks()]
    return len(every), [(job, block) for job, block in every if not finished(block, Path(job.launch.runs))]


def folder(job: Job, block: Block) -> Path:
    return block.folder(Path(job.launch.runs))


def summary(name: str, runs: int, todo: Todo) -> str:
    partial = sum(has_checkpoint(folder(*pair)) for pair in todo)
    return f"{name} {runs} runs: {runs - len(todo)} complete, {partial} to resume, {len(todo) - partial} to train"


def estimate(todo: Todo) -> list[float]:
    """Core-seconds that each run will take, from a few steps of one cell of each kind (task and method), and of as many
    others as a short while allows, those with most to do first; a decision of another cell is taken to cost what those
    of its kind do on average. Processor time is measured, so that what else the machine does hardly matters."""
    torch.set_num_threads(1)
    timed: dict[str, float] = {}  # cell → seconds per step and seed, evaluations included
    alike: defaultdict[tuple[str, str], list[float]] = defaultdict(list)  # … per decision
    begun = time.process_time()
    order = sorted(todo, key=lambda pair: -pair[1].cell.steps * len(pair[1].seeds) * decisions(pair[0]))
    firsts = {kind(job): (job, block) for job, block in reversed(order)}
    for job, block in [*firsts.values(), *order]:
        late = kind(job) in alike and time.process_time() - begun > CALIBRATION_SECONDS
        if late or job.cell.key() in timed:
            continue
        timed[job.cell.key()] = cost = per_seed_step(job, block)
        alike[kind(job)].append(cost / decisions(job))
    usual = {key: sum(costs) / len(costs) for key, costs in alike.items()}
    return [
        timed.get(job.cell.key(), usual[kind(job)] * decisions(job)) * block.cell.steps * len(block.seeds)
        for job, block in todo
    ]


def kind(job: Job) -> tuple[str, str]:
    """What cells must have in common for a decision to cost about the same: the task and the method."""
    return type(job.cell.task).__name__, job.cell.method


def decisions(job: Job) -> int:
    """Actions in a batch: samples, times the tokens of each."""
    return job.cell.task.batch * job.cell.task.tokens


def per_seed_step(job: Job, block: Block) -> float:
    """Processor seconds of a step per seed: the best of a few, and its share of the evaluations. Actors elsewhere are
    taken to cost what they would here."""
    cell = replace(block.cell, actor=replace(block.cell.actor, mode="inline"))
    process = start(cell, list(block.seeds), job.launch.device, job.launch.data)
    process.advance()
    marks = [time.process_time()]
    while len(marks) < 4 or (len(marks) < 20 and marks[-1] - marks[0] < CELL_SECONDS):
        process.advance()
        marks.append(time.process_time())
    process.evaluate()
    evaluation = time.process_time() - marks[-1]
    step = min(later - earlier for earlier, later in itertools.pairwise(marks))
    return (step + evaluation * block.cell.evals / block.cell.steps) / len(block.seeds)


def in_order(todo: Todo, costs: Sequence[float]) -> Todo:
    """The longest first, so that none is left for the end, and all tasks at once: runs of the same task side by side
    want the same of the machine."""
    total: defaultdict[str, float] = defaultdict(float)
    position = []
    for cost, pair in sorted(zip(costs, todo, strict=True), key=lambda each: -each[0]):
        task = type(pair[0].cell.task).__name__
        position.append((total[task], task, pair))
        total[task] += cost
    position.sort(key=lambda each: each[0] / total[each[1]])
    return [pair for _, _, pair in position]


def possible(figures: Sequence[str], scale: str, overrides: Sequence[str]) -> list[str]:
    """The figures whose tasks have what they need installed; of the others it is said what that is."""
    left = []
    for figure in figures:
        try:
            jobs = needed_now(figure, scale, overrides)
            for task in {repr(job.cell.task): job.cell.task for job in jobs}.values():
                task.available()
            for mode in {job.cell.actor.mode for job in jobs}:
                remote.available(mode)
            left.append(figure)
        except Unavailable as missing:
            print(f"{figure}: left out; {missing}", flush=True)
    return left


def train_needed(
    figures: Sequence[str], scale: str, overrides: Sequence[str], where: Launcher, only_plan: bool = False
) -> dict[Path, str]:
    """Plan, train, and plan again, until nothing new is needed. Returns what went wrong, by run folder.

    only_plan: say what is needed and how long it would take, and train nothing.
    """
    trouble: dict[Path, str] = {}
    jobs: dict[str, list[Job]] = {}
    for again in itertools.count():
        for figure in figures:
            more = any(job.launch.search.key or job.launch.twin for job in jobs.get(figure, ()))
            if not again or more:  # else nothing changes what it needs
                jobs[figure] = plan(figure, scale, overrides)
        runs, todo = unfinished(job for each in jobs.values() for job in each)
        todo = [pair for pair in todo if folder(*pair) not in trouble]
        if again and not todo:
            return trouble
        print(summary(f"{len(figures)} figures at {scale} scale need", runs, todo), flush=True)
        if not todo:
            return trouble
        for job, _ in todo:
            job.cell.task.fetch(Path(job.launch.data))
        if not again:
            todo = announced(jobs, todo, scale, getattr(where, "n_jobs", 1) or cores())
        if only_plan:
            return trouble
        begun = time.monotonic()
        outcomes = train_all(todo, where)
        print(f"trained in {_duration(time.monotonic() - begun)}", flush=True)
        trouble |= {folder(*todo[index]): word for index, word in outcomes.items() if word != BUSY}
        if len(outcomes) == len(todo):  # only what other processes train is left
            time.sleep(WAIT_SECONDS)
    raise AssertionError


def announced(jobs: Mapping[str, Sequence[Job]], todo: Todo, scale: str, workers: int) -> Todo:
    """What is to be trained, in the order in which it will be; says what each figure needs and how long it takes. What
    two figures share is trained once, and counted for both."""
    costs = [] if scale == "smoke" else estimate(todo)
    each = dict(zip((folder(*pair) for pair in todo), costs, strict=False))
    for figure, own in jobs.items():
        runs, missing = unfinished(own)
        if missing:
            hours = sum(each.get(folder(*pair), 0.0) for pair in missing) / 3600
            print(summary(f"  {figure}", runs, missing) + (f", {hours:.2g} core-hours" if costs else ""), flush=True)
    if not costs:
        print(f"{workers} at a time; each takes seconds; safe to interrupt", flush=True)
        return todo
    more = any(job.launch.search.key for job, _ in todo)
    print(
        f"about {_duration(sum(costs) / workers)} with {workers} at a time"
        + ("; what a search needs after its first value comes on top" if more else "")
        + "; safe to interrupt",
        flush=True,
    )
    return in_order(todo, costs)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="experiments.reproduce", description="Train what the figures need, draw them and judge the claims."
    )
    names = ", ".join(experiments())
    parser.add_argument("words", nargs="*", help=f"figures (default all: {names}), and key=value overrides")
    parser.add_argument("--scale", default="laptop", choices=draw.SCALES)
    parser.add_argument("--plan", action="store_true", help="only say what would be trained, and for how long")
    asked = parser.parse_args()
    overrides = [word for word in asked.words if "=" in word]
    figures = [word for word in asked.words if "=" not in word] or experiments()
    try:
        with interruptible():
            return _reproduce(figures, asked.scale, overrides, asked.plan)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoints")
    except OSError as error:
        sys.exit(f"error: {error}; everything so far is kept, and the same command goes on from there")


def _reproduce(figures: Sequence[str], scale: str, overrides: Sequence[str], only_plan: bool) -> int:
    """Train, draw and judge; 1 if anything went wrong on the way."""
    refuse(overrides)
    runs = single([word for word in overrides if word.startswith("runs=")]).launch.runs
    compose_all(figures, scale, overrides)
    every = list(figures) == experiments()
    figures = possible(figures, scale, overrides) if every else figures
    trouble = train_needed(figures, scale, overrides, launcher(overrides), only_plan)
    if only_plan:
        return 0
    for path, problem in trouble.items():
        print(f"{path}: {problem}", file=sys.stderr)
    logs = ["--runs", runs, "--scale", scale]
    looked_at = ["--formats", "png", "svg"] if scale == "smoke" else []  # nobody prints those
    undrawn = draw.main([*figures, *logs, "--changed", *looked_at])
    drawn = ["--figures", f"figures/{scale}"] if every and not undrawn else []
    unjudged = report.main([*logs, *drawn])
    return 1 if trouble or undrawn or unjudged else 0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(main())
