"""Train one cell, or sweep many.

    python -m experiments.run task=bandit method=dgk gate.price=0 friction=staleness
    python -m experiments.run -m method=pg,dg,dgk gate.rate=0.01,0.03,0.1 friction=none,staleness
    python -m experiments.run -m experiment=bandit_pareto scale=smoke

What is complete is skipped, what was interrupted goes on. `--help` shows every key.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from experiments.compose import Job, job, load_extensions, single, sweep, write_plan
from experiments.mirror import Mirror
from kondo.runs import FINISHED, Block, Rows, RunBusy, read_status, train
from kondo.schema import ConfigError


def train_block(todo: Job, block: Block, watch: Callable[[int, Rows], None]) -> str:
    """Train a block, mirrored to W&B, unless it is complete; return its status."""
    runs = Path(todo.launch.runs)
    status = str(read_status(block.folder(runs)).get("status"))
    if status in FINISHED:
        return status
    torch.set_num_threads(todo.launch.threads)
    with Mirror(todo, block) as mirror:

        def both(step: int, rows: Rows) -> None:
            mirror.log(rows)
            watch(step, rows)

        return train(block, runs, todo.launch.device, todo.launch.data, todo.launch.checkpoint_seconds, both)


def mean_error(rows: Rows) -> float:
    """Over the seeds that have one; NaN where none has."""
    errors = [row["error"] for row in rows if row.get("error") is not None]
    return fmean(errors) if errors else float("nan")


def run(todo: Job) -> None:
    """Every block of a job, with a progress bar and a line at its end."""
    for block in todo.blocks():
        folder = block.folder(Path(todo.launch.runs))
        name = f"{todo.describe()}, seeds {block.seeds[0]}–{block.seeds[-1]}"
        if read_status(folder).get("status") in FINISHED:
            print(f"{name}: complete, skipped  {folder}")
            continue
        begun, last = time.monotonic(), float("nan")
        with tqdm(total=block.cell.steps, desc=name, unit="step", leave=False, disable=None) as bar:

            def watch(step: int, rows: Rows, bar: tqdm = bar) -> None:
                nonlocal last
                bar.update(step - bar.n)
                if rows:
                    last = mean_error(rows)
                    bar.set_postfix(refresh=False, error=f"{last:.3g}")

            try:
                status = train_block(todo, block, watch)
            except RunBusy as busy:
                status, last = f"busy ({busy})", float("nan")
        print(f"{name}: {status}, error {last:.4g}, {time.monotonic() - begun:.1f} s  {folder}")


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def _main(config: DictConfig) -> None:
    try:
        run(job(config, sweeping=HydraConfig.get().mode is RunMode.MULTIRUN))
    except ConfigError as error:  # Hydra would print a traceback
        sys.exit(f"error: {error}")


def main() -> None:
    words = sys.argv[1:]
    flags = [word for word in words if word.startswith("-")]
    try:
        if not set(flags) - {"-m", "--multirun"}:
            overrides = [word for word in words if word not in flags]
            jobs = sweep(overrides) if flags else [single(overrides)]
            for todo in jobs:
                todo.cell.task.fetch(Path(todo.launch.data))
            figure = next((word.partition("=")[2] for word in overrides if word.startswith("experiment=")), None)
            if flags and figure:
                write_plan(figure, jobs)
            sys.argv[1:] = flags + overrides  # -m may stand anywhere
        load_extensions()
        _main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoint")


if __name__ == "__main__":
    main()
