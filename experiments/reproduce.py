"""Figures → the runs they need → skip, resume or train → figures → claims.

    python -m experiments.reproduce --scale smoke bandit_pareto

Runs are trained side by side, one process per core. What is complete is skipped, what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from analysis import draw, report
from experiments.compose import CONF, Job, Launch, load_extensions, sweep, write_plan
from experiments.run import train_block
from kondo.cell import parse
from kondo.measurement import engine_of
from kondo.runs import FINISHED, Block, read_status
from kondo.schema import ConfigError, build, nearest

Todo = list[tuple[Job, Block]]
CALIBRATION_SECONDS = 15.0


def experiments() -> list[str]:
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def plan(figure: str, scale: str, overrides: list[str]) -> list[Job]:
    """The jobs of a figure, written down for the figures to read."""
    if figure not in experiments():
        raise ConfigError(f"{figure}: no such figure; {nearest(figure, experiments())}")
    jobs = sweep([f"experiment={figure}", f"scale={scale}", *overrides])
    write_plan(figure, jobs)
    return jobs


def estimate(todo: Todo, workers: int) -> float:
    """Seconds that training will take, from a few steps of as many of its cells as a short while allows."""
    torch.set_num_threads(1)
    timed: dict[str, float] = {}  # cell → seconds per seed, for all its steps
    begun = time.monotonic()
    stride = max(1, len(todo) // 20)
    for job, block in todo[::stride] + todo:
        key = job.cell.key()
        if key in timed or time.monotonic() - begun > CALIBRATION_SECONDS:
            continue
        engine = engine_of(block.cell, list(block.seeds), job.launch.device, job.launch.data)
        engine.advance()
        first = time.perf_counter()
        for _ in range(5):
            engine.advance()
        second = time.perf_counter()
        engine.evaluate()
        cost = (second - first) / 5 * block.cell.steps + (time.perf_counter() - second) * block.cell.evals
        timed[key] = cost / len(block.seeds)
    usual = sum(timed.values()) / len(timed)
    return sum(timed.get(job.cell.key(), usual) * len(block.seeds) for job, block in todo) / workers


def work(cell: dict[str, Any], launch: dict[str, Any], seeds: list[int]) -> str:
    """Train one block in a process of its own."""
    load_extensions()
    job = Job(parse(cell), build(Launch, launch))
    return train_block(job, Block(job.cell, tuple(seeds)), lambda step, rows: None)


def train_all(todo: Todo, workers: int) -> list[str]:
    """Train what is left; a run that fails is recorded and does not stop the others. Returns what went wrong."""
    trouble: list[str] = []
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(workers, len(todo)), mp_context=context) as pool,
        tqdm(total=sum(_size(block) for _, block in todo), unit=" seed-steps", unit_scale=True, disable=None) as bar,
    ):
        futures: dict[Future[str], tuple[Job, Block]] = {}
        for job, block in todo:
            arguments = job.cell.plain(), dataclasses.asdict(job.launch), list(block.seeds)
            futures[pool.submit(work, *arguments)] = job, block
        pending, done_size = set(futures), 0
        try:
            while pending:
                done, pending = wait(pending, timeout=1.0, return_when="FIRST_COMPLETED")
                for future in done:
                    job, block = futures[future]
                    done_size += _size(block)
                    error = future.exception()
                    if error is not None:
                        folder = block.folder(Path(job.launch.runs))
                        trouble.append(f"{folder}: {job.describe()}: {type(error).__name__}: {error}")
                    if bar.disable:
                        print(f"{len(futures) - len(pending)}/{len(todo)} {job.describe()}", flush=True)
                _show(
                    bar, [futures[future] for future in pending if future.running()], done_size, len(pending), len(todo)
                )
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return trouble


def _show(bar: Any, running: Todo, done_size: int, left: int, total: int) -> None:
    """Progress is what the run folders say."""
    reached, words = done_size, []
    for job, block in running:
        status = read_status(block.folder(Path(job.launch.runs)))
        if status.get("status") == "running" and "step" in status:
            reached += status["step"] * len(block.seeds)
            words.append(f"{job.describe()} error {status.get('error') or float('nan'):.3g}")
    bar.set_description(f"{total - left}/{total} runs", refresh=False)
    bar.set_postfix_str(" | ".join(words)[:100], refresh=False)
    bar.update(max(0, reached - bar.n))


def _size(block: Block) -> int:
    return block.cell.steps * len(block.seeds)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="experiments.reproduce", description="Train what the figures need, draw them and judge the claims."
    )
    names = ", ".join(experiments())
    parser.add_argument("words", nargs="*", help=f"figures (default all: {names}), and key=value overrides")
    parser.add_argument("--scale", default="laptop", choices=draw.SCALES)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    asked = parser.parse_args()
    overrides = [word for word in asked.words if "=" in word]
    figures = [word for word in asked.words if "=" not in word] or experiments()
    try:
        jobs = {job.cell.key(): job for figure in figures for job in plan(figure, asked.scale, overrides)}
        for job in jobs.values():
            job.cell.task.fetch(Path(job.launch.data))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    runs = Path(next(iter(jobs.values())).launch.runs)
    every = [(job, block) for job in jobs.values() for block in job.blocks()]
    todo = [(job, block) for job, block in every if read_status(block.folder(runs)).get("status") not in FINISHED]
    partial = sum((block.folder(runs) / "checkpoint.pt").exists() for _, block in todo)
    print(
        f"{len(figures)} figures at {asked.scale} scale need {len(every)} runs: {len(every) - len(todo)} complete, "
        f"{partial} to resume, {len(todo) - partial} to train",
        flush=True,
    )
    trouble = []
    if todo:
        if asked.scale != "smoke":
            seconds = estimate(todo, asked.jobs)
            print(f"about {_duration(seconds)} on {asked.jobs} cores; safe to interrupt at any time", flush=True)
        begun = time.monotonic()
        try:
            trouble = train_all(todo, asked.jobs)
        except KeyboardInterrupt:
            sys.exit("\ninterrupted; everything so far is kept, and the same command goes on from there")
        print(f"trained in {_duration(time.monotonic() - begun)}")
    for problem in trouble:
        print(problem, file=sys.stderr)
    where = ["--runs", str(runs), "--scale", asked.scale]
    undrawn = draw.main([*figures, *where])
    report.main([*where, "--figures", "figures"] if figures == experiments() and not undrawn else where)
    return 1 if trouble or undrawn else 0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(main())
