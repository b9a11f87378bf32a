"""What runs a study: the same life in a run folder as training, in one step that is all evaluation."""

from __future__ import annotations

import math
from typing import Any

import torch

from kondo.lab.config.cell import Cell
from kondo.lab.streams import Streams
from kondo.lab.studies.base import Rule, Study


class Measurement:
    """A study between its beginning and its end: there is nothing to keep but whether it is done."""

    def __init__(self, cell: Cell, study: Study, seeds: list[int], device: torch.device | str = "cpu") -> None:
        self.cell, self.study, self.seeds, self.step = cell, study, list(seeds), 0
        self.streams = Streams(self.seeds, device)

    def advance(self) -> None:
        self.step += 1

    @torch.no_grad()
    def evaluate(self) -> list[dict[str, Any]]:
        """One row per seed at the end, none before."""
        if self.step < self.cell.steps:
            return []
        rule = Rule(self.cell.method, self.cell.options, self.cell.gate)
        columns = self.study.measure(rule, self.streams)
        return [
            {"step": self.step, "seed": seed, **{name: _plain(column[i]) for name, column in columns.items()}}
            for i, seed in enumerate(self.seeds)
        ]

    def diverged(self) -> dict[int, int]:
        return {}

    def close(self) -> None:
        return None

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def _plain(value: Any) -> Any:
    """Nine digits, to any depth of lists; JSON has no infinity and no NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
