"""Figures → the runs they need → skip, resume or train → figures → claims.

python -m experiments.reproduce --scale smoke bandit_pareto
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from pathlib import Path

from tqdm import tqdm

from analysis import draw, report
from analysis.load import Plan, plan_path
from experiments.compose import CONF, Job, sweep
from experiments.run import mean_error, train_block
from kondo.runs import FINISHED, Block, Rows, RunBusy, read_status, write_atomically
from kondo.schema import ConfigError, nearest


def experiments() -> list[str]:
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def plan(figure: str, scale: str, overrides: list[str]) -> list[Job]:
    """The jobs of a figure, written down for the figures to read."""
    words = [f"experiment={figure}", f"scale={scale}", *overrides]
    jobs = sweep(words)
    launch = jobs[0].launch
    written = Plan(
        figure=figure,
        scale=scale,
        command=f"make reproduce FIGURES={figure} SCALE={scale}",
        cells={job.cell.key(): job.describe() for job in jobs},
        seeds=launch.seeds,
    )
    path = plan_path(Path(launch.runs), scale, figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(written), indent=1, ensure_ascii=False))
    return jobs


def train_all(todo: list[tuple[Job, Block]]) -> list[str]:
    """Train what is left; a run that fails is recorded and does not stop the others. Returns what went wrong."""
    trouble = []
    total = sum(block.cell.steps * len(block.seeds) for _, block in todo)
    base = 0
    with tqdm(total=total, unit="seed-step", unit_scale=True, smoothing=0.05, disable=None) as bar:
        for done, (job, block) in enumerate(todo):
            bar.set_description(f"{done}/{len(todo)} runs · {job.describe()}")

            def watch(step: int, rows: Rows, base: int = base, block: Block = block) -> None:
                if rows:
                    bar.set_postfix(refresh=False, error=f"{mean_error(rows):.3g}")
                bar.update(base + step * len(block.seeds) - bar.n)

            try:
                train_block(job, block, watch)
            except RunBusy as busy:
                trouble.append(str(busy))
            except Exception:
                trouble.append(f"{block.folder(Path(job.launch.runs))}: failed\n{traceback.format_exc()}")
            base += block.cell.steps * len(block.seeds)
            bar.update(base - bar.n)
            if bar.disable:
                print(f"{done + 1}/{len(todo)} {job.describe()}")
    return trouble


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="experiments.reproduce", description="Train what the figures need, draw them and judge the claims."
    )
    parser.add_argument(
        "words", nargs="*", help=f"figures (default all: {', '.join(experiments())}), key=value overrides"
    )
    parser.add_argument("--scale", default="laptop", help="smoke, laptop or paper")
    asked = parser.parse_args()
    overrides = [word for word in asked.words if "=" in word]
    figures = [word for word in asked.words if "=" not in word] or experiments()
    try:
        for figure in figures:
            if figure not in experiments():
                raise ConfigError(f"{figure}: no such figure; {nearest(figure, experiments())}")
        jobs = {job.cell.key(): job for figure in figures for job in plan(figure, asked.scale, overrides)}
    except ConfigError as error:
        sys.exit(f"error: {error}")
    runs = Path(next(iter(jobs.values())).launch.runs)
    every = [(job, block) for job in jobs.values() for block in job.blocks()]
    todo = [(job, block) for job, block in every if read_status(block.folder(runs)).get("status") not in FINISHED]
    partial = sum((block.folder(runs) / "checkpoint.pt").exists() for _, block in todo)
    print(
        f"{len(figures)} figures at {asked.scale} scale need {len(every)} runs: {len(every) - len(todo)} complete, "
        f"{partial} to resume, {len(todo) - partial} to train"
    )
    begun = time.monotonic()
    trouble = []
    if todo:
        try:
            trouble = train_all(todo)
        except KeyboardInterrupt:
            sys.exit("\ninterrupted; everything so far is kept, and the same command goes on from there")
        print(f"trained in {time.monotonic() - begun:.0f} s")
    for problem in trouble:
        print(problem, file=sys.stderr)
    where = ["--runs", str(runs), "--scale", asked.scale]
    undrawn = draw.main([*figures, *where])
    report.main(where)
    return 1 if trouble or undrawn else 0


if __name__ == "__main__":
    sys.exit(main())
