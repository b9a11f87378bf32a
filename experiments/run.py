"""Train one cell, or sweep many.

    python -m experiments.run task=bandit method=dgk gate.price=0 friction=staleness
    python -m experiments.run -m method=pg,dg,dgk gate.rate=0.01,0.03,0.1 friction=none,staleness
    python -m experiments.run -m experiment=bandit_pareto scale=smoke hydra/launcher=ray

A Hydra app: --help, --cfg job, --multirun, hydra/launcher=… and hydra/sweeper=… are Hydra's own. What is complete is
skipped, what was interrupted goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from experiments.compose import check_words, climb, split, unique, usual
from experiments.extend import load_extensions
from experiments.jobs import Job, final_error, job, needed
from experiments.launchers import Launcher
from experiments.plans import plan_of
from experiments.suggest import check_effect, foreign_axes
from experiments.train import BUSY, Todo, line, train_all, train_block
from kondo.lab.interrupts import interruptible
from kondo.lab.records import Rows, RunBusy, write_plan
from kondo.lab.training import finished
from kondo.schema import ConfigError


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


def train_here(one: Job) -> None:
    """Every block of a job in this process, with a progress bar and a line at its end."""
    one.cell.task.fetch(Path(one.launch.data))
    for todo, block in left([one]):
        with tqdm(total=block.cell.steps, desc=todo.name, unit="step", leave=False, disable=None) as bar:

            def watch(step: int, rows: Rows, bar: tqdm = bar, error: str = todo.cell.error or "") -> None:
                bar.update(step - bar.n)
                seen = [row[error] for row in rows if row.get(error) is not None]
                if seen:
                    bar.set_postfix(refresh=False, error=f"{sum(seen) / len(seen):.3g}")

            try:
                status = train_block(todo, block, watch)
            except RunBusy:
                status = BUSY
        print(line(todo, block, status))


def train_batch(
    config: DictConfig, loader: ConfigLoader, where: Launcher, batch: Sequence[Sequence[str]]
) -> list[JobReturn]:
    """What a sweeper asks for: all of it is checked, then each cell trained once. The final error is what is returned
    for each; a search trains on from value to value, and returns that of the last."""

    def made(words: Sequence[str]) -> Job:
        ours, theirs = split(loader.load_sweep_config(config, list(words)))
        return job(ours, theirs["runtime"]["choices"], usual, sweeping=True)

    try:
        every = [climb(made(words)) for words in batch]
        asked = OverridesParser.create(config_loader=loader).parse_overrides(list(config.hydra.overrides.task))
        check_effect(asked, [each for one in every for each in one])
        wanted = unique(every)
        for each in needed(wanted):
            each.cell.task.fetch(Path(each.launch.data))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    figure = config.hydra.runtime.choices.get("experiment")
    if figure and (foreign := foreign_axes(asked, list(config.hydra.sweeper.get("params") or {}))):
        print(f"{figure} has no axis for {', '.join(foreign)}: its plan stays as it is")
        figure = None
    Path(config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)  # where sweepers leave their results
    trouble: dict[str, str] = {}
    tried: set[str] = set()
    while new := [each for each in needed(wanted) if each.cell.key() not in tried]:
        if figure:
            jobs = needed(wanted)
            write_plan(Path(jobs[0].launch.runs), plan_of(figure, jobs, list(config.hydra.overrides.task)))
        todo = left(new)
        outcomes = train_all(todo, where) if todo else {}
        trouble |= {todo[i][0].cell.key(): word for i, word in outcomes.items() if word != BUSY}
        tried |= {each.cell.key() for each in new}
    return [_returned(words, needed([each])[-1], trouble) for words, each in zip(batch, every, strict=True)]


def _returned(words: Sequence[str], job: Job, trouble: dict[str, str]) -> JobReturn:
    failed = trouble.get(job.cell.key())
    answer = JobReturn(overrides=list(words), status=JobStatus.FAILED if failed else JobStatus.COMPLETED)
    answer.return_value = RuntimeError(f"{job.name}: {failed}") if failed else final_error(job)
    return answer


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def app(config: DictConfig) -> float:
    """Train the cell of a config; its final error is what a sweeper may minimise."""
    chosen = HydraConfig.get()
    try:
        one = job(config, chosen.runtime.choices, usual, sweeping=chosen.mode is RunMode.MULTIRUN)
        train_here(one)
    except (ConfigError, OSError) as error:  # Hydra would print a traceback
        sys.exit(f"error: {error}")
    return final_error(one)


def main() -> None:
    try:
        with interruptible():
            load_extensions()
            check_words([word for word in sys.argv[1:] if "=" in word and not word.startswith("-")])
            app()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoint")


if __name__ == "__main__":
    main()
