"""The engine behind the experiments: it trains one cell, task × method × gate × friction, for some seeds.

    from kondo import lab
    rows = lab.train({"task": {"name": "bandit"}, "method": {"name": "dgk"}, "steps": 100}, seeds=4)

Nothing is imported before it is used: what reads run folders needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kondo.lab.config.cell import Cell


def train(
    cell: Cell | Mapping[str, Any], seeds: int | Sequence[int] = 1, device: str = "cpu", data: Path | str = "data"
) -> list[dict[str, Any]]:
    """Train a cell, given as such or as plain data, and return the rows of its log; nothing is written.

    seeds: how many, from 0 on, or which. data: the folder of data sets.
    """
    from kondo.lab.process import run

    return run(cell, seeds, device, data)
