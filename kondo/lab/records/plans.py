"""Plans: the cells that a figure asked for at some scale."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kondo.lab.records.files import KEY, is_count, is_number, parse_json, read_bytes, say_once, write_atomically

PLANS = "plans"


@dataclass(frozen=True)
class Plan:
    """The cells a figure asked for at some scale, as `reproduce` wrote them down before it trained any."""

    figure: str
    scale: str
    command: str
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """{cell key: {name: the cell in a few words, choices: {task: …, method: …, friction: …, intensity: …}}}"""
    seeds: int = 0
    first_seed: int = 0
    schema: int | None = None
    """The version of the config that its runs must have."""
    search: Mapping[str, Any] | None = None
    """The axis that is climbed while it is solved: key, values, solved."""

    def name(self, cell: str) -> str:
        """The cell in a few words."""
        return str(self.cells[cell]["name"])


def plan_path(runs: Path, scale: str, figure: str) -> Path:
    return runs / PLANS / scale / f"{figure}.json"


def composed_path(runs: Path, scale: str, figure: str) -> Path:
    """Where a figure's sweep is kept once it is composed."""
    return plan_path(runs, scale, figure).with_name(f".{figure}.composed.json")


def write_plan(runs: Path, plan: Plan) -> None:
    """Write a plan down, unless it is there as it is."""
    path = plan_path(runs, plan.scale, plan.figure)
    text = json.dumps(asdict(plan), indent=1, ensure_ascii=False)
    if not path.exists() or path.read_bytes() != text.encode():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def read_plans(runs: Path) -> list[Plan]:
    """Every plan that can be read, at any scale."""
    paths = [path for path in sorted((runs / PLANS).glob("*/*.json")) if not path.name.startswith(".")]
    plans = [read_plan(runs, path.parent.name, path.stem) for path in paths]
    return [plan for plan in plans if plan is not None]


def read_plan(runs: Path, scale: str, figure: str) -> Plan | None:
    """The plan of a figure; None where there is none, or none that can be read, which is then told on stderr."""
    path = plan_path(runs, scale, figure)
    if not path.exists():
        return None
    try:
        plan = Plan(**parse_json(read_bytes(path) or b""))
    except (ValueError, TypeError, RecursionError):
        plan = None
    if plan is None or not _is_plan(plan):
        say_once(f"{path}: no plan that can be read; make reproduce FIGURES={figure} SCALE={scale} writes it anew")
        return None
    return plan


def _is_plan(plan: Plan) -> bool:
    """Whether every part of a plan is what it should be."""
    return (
        all(isinstance(text, str) for text in (plan.figure, plan.scale, plan.command))
        and all(is_count(count) for count in (plan.seeds, plan.first_seed))
        and (plan.schema is None or is_count(plan.schema))
        and isinstance(plan.cells, dict)
        and all(re.fullmatch(KEY, key) and _is_planned(cell) for key, cell in plan.cells.items())
        and (plan.search is None or _is_search(plan.search))
    )


def _is_planned(cell: Any) -> bool:
    return isinstance(cell, dict) and isinstance(cell.get("name"), str) and isinstance(cell.get("choices"), dict)


def _is_search(search: Any) -> bool:
    values = search.get("values") if isinstance(search, dict) else None
    return isinstance(values, list) and values != [] and all(map(is_number, [*values, search.get("solved")]))
