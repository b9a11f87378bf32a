"""How a run stands: running, failed, done or diverged, what it cost, and where it was trained."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kondo.lab.records.archive import read_file
from kondo.lab.records.files import (
    STATUS,
    digest,
    is_count,
    is_number,
    json_object,
    say_once,
    write_atomically,
)

FINISHED = ("done", "diverged")
UNFINISHED = ("running", "failed")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


FIELDS: dict[str, Callable[[Any], bool]] = {
    "status": _is_text,
    "reason": _is_text,
    "traceback": _is_text,
    "commit": lambda value: value is None or _is_text(value),
    "step": is_count,
    "seconds": is_number,
    "started": is_number,
    "ended": is_number,
    "error": is_number,
    "digests": _is_mapping,
    "diverged": _is_mapping,
    "versions": _is_mapping,
    "machine": _is_mapping,
}
"""What a status may say, and how that must look."""


def parse_status(content: bytes) -> dict[str, Any]:
    """What a status says that can be true."""
    return {key: value for key, value in json_object(content).items() if key in FIELDS and FIELDS[key](value)}


def read_status(folder: Path) -> dict[str, Any]:
    """What a run's status says that can be true; {} where there is none (yet)."""
    return parse_status(read_file(folder / STATUS) or b"")


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    write_atomically(folder / STATUS, json.dumps(status, indent=1))


def give_up(folder: Path, reason: str) -> None:
    """Write down that a run failed, for a worker that could not; where that cannot be written either, it is told."""
    news = {"status": "failed", "ended": time.time(), "reason": reason}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_status(folder, read_status(folder) | news)
    except OSError as error:
        say_once(f"{folder}: {error}")


def status_age(folder: Path) -> float:
    """Seconds since the status was written, infinite where there is none."""
    try:
        return time.time() - (folder / STATUS).stat().st_mtime
    except OSError:
        return math.inf


def spent(status: Mapping[str, Any]) -> float:
    """Seconds that a run was in training."""
    return float(status.get("seconds", max(0.0, status.get("ended", 0.0) - status.get("started", 0.0))))


def unchanged(status: Mapping[str, Any], name: str, content: bytes | None) -> bool:
    """Whether this is what a file held when the run ended."""
    return content is not None and status.get("digests", {}).get(name) == digest(content)
