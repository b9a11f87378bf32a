"""A process: what a run does from its first step to its last, be it training or a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kondo.lab.config.cell import Cell
from kondo.lab.engine import Engine
from kondo.lab.streams import Streams
from kondo.lab.studies.base import Study
from kondo.lab.studies.measurement import Measurement


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


def start(cell: Cell, seeds: list[int], device: str = "cpu", data: Path | str = "data") -> Process:
    """The process of a cell at its first step: a task is trained, a study measured."""
    if isinstance(cell.task, Study):
        return Measurement(cell, cell.task, seeds, device)
    return Engine(cell, seeds, device, data)
