"""Plans: the cells that a figure asked for at some scale."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kondo.lab.records.archive import PLANS, SUFFIX, is_results, opened, plan_name, read_file, read_manifest
from kondo.lab.records.files import KEY, Damaged, is_count, is_number, parse_json, say_once, write_atomically


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
    return runs / plan_name(scale, figure)


def composed_path(runs: Path, scale: str, figure: str) -> Path:
    """Where a figure's sweep is kept once it is composed."""
    return plan_path(runs, scale, figure).with_name(f".{figure}.composed.json")


def write_plan(runs: Path, plan: Plan) -> None:
    """Write a plan down, unless it is there as it is."""
    path = plan_path(runs, plan.scale, plan.figure)
    text = plan_text(plan)
    if not path.exists() or path.read_bytes() != text.encode():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def plan_text(plan: Plan) -> str:
    """A plan as it is written down."""
    return json.dumps(asdict(plan), indent=1, ensure_ascii=False)


def planned(runs: Path) -> list[tuple[str, str]]:
    """(scale, figure) of every plan in a folder of runs or of results."""
    if is_results(runs):
        try:
            return sorted((entry["scale"], name) for name, entry in read_manifest(runs).items())
        except Damaged as problem:
            say_once(str(problem))
            return []
    paths = [path for path in sorted((runs / PLANS).glob("*/*.json")) if not path.name.startswith(".")]
    return [(path.parent.name, path.stem) for path in paths]


def read_plans(runs: Path) -> list[Plan]:
    """Every plan that can be read, at any scale."""
    plans = [read_plan(runs, scale, figure) for scale, figure in planned(runs)]
    return [plan for plan in plans if plan is not None]


def read_plan(runs: Path, scale: str, figure: str) -> Plan | None:
    """The plan of a figure; None where there is none, or none that can be read, which is then told on stderr."""
    path = plan_path(runs, scale, figure)
    if is_results(runs):
        if (scale, figure) not in planned(runs):
            return None
        path = plan_path(runs / f"{figure}{SUFFIX}", scale, figure)
        try:
            opened(runs / f"{figure}{SUFFIX}")
        except Damaged as problem:
            say_once(str(problem))
            return None
    elif not path.exists():
        return None
    plan = _parsed(read_file(path) or b"")
    if plan is None:
        say_once(f"{path}: no plan that can be read; make reproduce FIGURES={figure} SCALE={scale} writes it anew")
    return plan


def _parsed(content: bytes) -> Plan | None:
    try:
        plan = Plan(**parse_json(content))
    except (ValueError, TypeError, RecursionError):
        return None
    return plan if _is_plan(plan) else None


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
