"""A process: what a run does from its first step to its last, be it training or a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kondo.lab.config.cell import Cell, parse
from kondo.lab.engine import Engine, eval_steps
from kondo.lab.streams import Streams
from kondo.lab.studies.base import Study
from kondo.lab.studies.measurement import Measurement
from kondo.lab.tasks.language import Language


class Process(Protocol):
    """What a run folder asks of what it records."""

    step: int
    streams: Streams

    def advance(self) -> None:
        """One step."""
        ...

    def evaluate(self) -> list[dict[str, Any]]:
        """Rows for the log, one per seed."""
        ...

    def diverged(self) -> dict[int, int]:
        """{seed: step at which it diverged}"""
        ...

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        ...

    def load(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """End what it started, such as other processes."""
        ...


def start(cell: Cell, seeds: list[int], device: str = "cpu", data: Path | str = "data") -> Process:
    """The process of a cell at its first step: a task is trained, a language model too, a study measured."""
    if isinstance(cell.task, Language):
        from kondo.lab.language.training import LanguageTraining  # needs transformers

        return LanguageTraining(cell, seeds, device)
    if isinstance(cell.task, Study):
        return Measurement(cell, cell.task, seeds, device)
    return Engine(cell, seeds, device, data)


def run(
    cell: Cell | Mapping[str, Any], seeds: int | Sequence[int], device: str = "cpu", data: Path | str = "data"
) -> list[dict[str, Any]]:
    """A cell from its first step to its last: the rows of its log."""
    cell = cell if isinstance(cell, Cell) else parse(cell)
    cell.task.fetch(Path(data))
    process = start(cell, list(range(seeds)) if isinstance(seeds, int) else list(seeds), device, data)
    due = set(eval_steps(cell.steps, cell.evals))
    try:
        rows = last = process.evaluate()
        while process.step < cell.steps and not cell.solved(last):
            process.advance()
            last = process.evaluate() if process.step in due else []
            rows += last
    finally:
        process.close()
    return rows
