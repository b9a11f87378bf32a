"""Capabilities: what a part of a cell may need of the others. Each part declares it; config/requirements.py checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])
CAPABILITIES = {
    "training": "a task that is trained",
    "screen": "a task that can be screened",
    "batch": "a batch to compare with",
    "gate": "a gate",
    "delight": "a method that uses delight",
    "contexts": "a finite set of contexts",
    "group": "several samples per context",
}
_NEEDS: dict[Callable[..., Any], tuple[str, ...]] = {}


def declare(code: C, needs: Iterable[str]) -> C:
    """Write down what a function needs of the cell that it becomes a part of."""
    needs = tuple(needs)
    if unknown := [name for name in needs if name not in CAPABILITIES]:
        what = ", ".join(unknown)
        raise TypeError(f"{code.__name__} needs {what}, which no cell has; capabilities: {', '.join(CAPABILITIES)}")
    _NEEDS[code] = needs
    return code


def declared(code: Callable[..., Any]) -> tuple[str, ...]:
    """What a function said that it needs."""
    return _NEEDS.get(code, ())
