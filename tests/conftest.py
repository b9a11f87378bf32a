import os
from typing import Any

import pytest
import torch

from kondo.lab.config.cell import Cell, parse
from kondo.lab.engine import Engine

torch.set_num_threads(1)
os.environ["WANDB_SILENT"] = "true"

ADAM = {"name": "adam", "lr": 0.01}


def cell(method: str = "dgk", gate: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """A small contextual bandit with a hidden layer, unless changed."""
    task = {"name": "bandit", "arms": 5, "contexts": 4, "hidden": [8], "batch": 20, **changes.pop("task", {})}
    name, options = (method, {}) if isinstance(method, str) else method
    plain = {
        "task": task,
        "method": {"name": name, **options},
        "gate": gate,
        "optimizer": ADAM,
        "steps": 30,
        "evals": 5,
    }
    return parse(plain | changes)


def trained(cell: Cell, seeds: list[int], steps: int | None = None) -> Engine:
    engine = Engine(cell, seeds)
    for _ in range(cell.steps if steps is None else steps):
        engine.advance()
    return engine


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


SLOW = {
    *(
        "analysis",
        "config",
        "data",
        "drawings",
        "kernels",
        "launchers",
        "learner",
        "load",
        "mirror",
        "mnist",
        "parallel",
        "reversal",
        "rollout",
        "sharded",
        "runs",
    ),
    *("publish", "screens", "setup", "studies", "transformers", "trl"),
}
"""Modules that start processes, train transformers or compose many configs: `make test-fast` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in SLOW:
            item.add_marker("slow")
