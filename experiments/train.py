"""Train many runs on any launcher, with a progress display; what is lost on the way is handed out again."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.extend import load_extensions
from experiments.jobs import Job, Launch
from experiments.launchers import Handle, Launcher, told_to_stop
from experiments.mirror import Mirror
from kondo.lab.config.cell import parse
from kondo.lab.records import FINISHED, Rows, RunBusy, give_up, read_status, status_age
from kondo.lab.training import Block, Stop, finished, train
from kondo.schema import build

Todo = list[tuple[Job, Block]]
BUSY = "busy"
LIVES = 3
"""How many workers a run may lose before it is given up."""
POLL_SECONDS = 0.05
SHOW_SECONDS = 1.0
FRESH_SECONDS = 10.0
"""A status older than this is not of a run in training."""


def train_block(todo: Job, block: Block, watch: Callable[[int, Rows], None]) -> str:
    """Train a block, mirrored to W&B, unless it is complete; return its status."""
    runs = Path(todo.launch.runs)
    if complete := finished(block, runs):
        return complete
    torch.set_num_threads(todo.launch.threads)
    with Mirror(todo, block) as mirror:

        def both(step: int, rows: Rows) -> None:
            mirror.log(rows)
            watch(step, rows)

        return train(block, runs, todo.launch.device, todo.launch.data, todo.launch.checkpoint_seconds, both)


def work(
    cell: dict[str, Any], launch: dict[str, Any], seeds: list[int], asked: tuple[dict[str, Any], str], extensions: str
) -> str:
    """Train one block wherever this is called: its status, "busy", or why it failed. Only a lost worker raises; one
    that is told to stop ends, once the run is saved."""
    os.environ["KONDO_EXTENSIONS"] = extensions

    def watch(step: int, rows: Rows) -> None:
        if told_to_stop():
            raise Stop

    try:
        load_extensions()
        job = Job(parse(cell), build(Launch, launch), *asked)
        return train_block(job, Block(job.cell, tuple(seeds), job.choices), watch)
    except RunBusy:
        return BUSY
    except Stop:
        os._exit(1)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"


def call(job: Job, block: Block) -> tuple[Any, ...]:
    """The arguments of `work`, plain, and the same in any folder."""
    here = dataclasses.replace(
        job.launch,
        runs=os.path.abspath(job.launch.runs),
        data=os.path.abspath(job.launch.data),
        wandb=dataclasses.replace(job.launch.wandb, dir=os.path.abspath(job.launch.wandb.dir)),
    )
    extensions = os.environ.get("KONDO_EXTENSIONS", "")
    return job.cell.plain(), dataclasses.asdict(here), list(block.seeds), (dict(job.choices), job.name), extensions


def outcomes(todo: Todo, where: Launcher) -> Iterator[tuple[int, str] | None]:
    """What `work` returned for each block, with its index, as it ends; None now and then meanwhile.

    A run whose worker is lost is handed to another, which goes on from its checkpoint.
    """
    waiting, running, lost = deque(range(len(todo))), dict[int, Handle](), Counter[int]()
    folder = Path(todo[0][0].launch.runs).absolute()
    with where.open(folder) as (submit, size):
        while waiting or running:
            while waiting and len(running) < size:
                index = waiting.popleft()
                running[index] = submit(work, *call(*todo[index]))
            ended = [index for index, handle in running.items() if handle.done()]
            for index in ended:
                try:
                    yield index, running.pop(index).result()
                except Exception as error:
                    lost[index] += 1
                    if lost[index] < LIVES:
                        waiting.append(index)
                    else:
                        reason = f"lost {LIVES} workers: {type(error).__name__}: {error}"
                        give_up(todo[index][1].folder(folder), reason)
                        yield index, f"failed: {reason}"
            if not ended:
                time.sleep(POLL_SECONDS)
                yield None


def train_all(todo: Todo, where: Launcher) -> dict[int, str]:
    """Train blocks with a progress display; {index: outcome} of those that did not end well."""
    trouble: dict[int, str] = {}
    open_, ended_size, shown = set(range(len(todo))), 0, 0.0
    with tqdm(total=sum(_size(block) for _, block in todo), unit=" seed-steps", unit_scale=True, disable=None) as bar:
        for ended in outcomes(todo, where):
            if ended is not None:
                index, outcome = ended
                open_.remove(index)
                ended_size += _size(todo[index][1])
                if outcome not in FINISHED:
                    trouble[index] = outcome
                bar.write(f"{len(todo) - len(open_)}/{len(todo)} {line(*todo[index], outcome)}", file=sys.stdout)
            if not bar.disable and time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                bar.set_description(f"{len(todo) - len(open_)}/{len(todo)} runs", refresh=False)
                reached, words = _running([todo[index] for index in open_])
                bar.set_postfix_str(" | ".join(words)[:100], refresh=False)
                bar.update(max(0, ended_size + reached - bar.n))
    return trouble


def line(job: Job, block: Block, outcome: str) -> str:
    """What came of a block."""
    folder = block.folder(Path(job.launch.runs))
    error = read_status(folder).get("error")
    reached = f", error {error:.4g}" if error is not None and outcome in FINISHED else ""
    return f"{job.name}, seeds {block.seeds[0]}–{block.seeds[-1]}: {outcome}{reached}  {folder}"


def _running(todo: Todo) -> tuple[int, list[str]]:
    """What is in training now, and how far it is, as the run folders say."""
    reached, words = 0, []
    for job, block in todo:
        folder = block.folder(Path(job.launch.runs))
        status = read_status(folder)
        if status.get("status") == "running" and "step" in status and status_age(folder) < FRESH_SECONDS:
            reached += status["step"] * len(block.seeds)
            words.append(f"{job.name} error {status.get('error') or float('nan'):.3g}")
    return reached, words


def _size(block: Block) -> int:
    return block.cell.steps * len(block.seeds)
