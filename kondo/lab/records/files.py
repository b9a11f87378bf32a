"""The files of a run: their names, how they are read, and how they are written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

CONFIG, LOG, STATUS, CHECKPOINT, LOCK = "config.yaml", "metrics.jsonl", "status.json", "checkpoint.pt", ".lock"
KEY = "[0-9a-f]{12}"
"""What the key of a cell looks like."""
DEEPEST = 20
"""How deeply YAML may be nested."""
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Rows = list[dict[str, Any]]


class Damaged(ValueError):
    """A sentence that names a file or folder that cannot be used, and why."""


def read_bytes(path: Path) -> bytes | None:
    """What is in a file, None where there is none that can be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} where there is none."""
    return json_object(read_bytes(path) or b"")


def json_object(content: bytes) -> dict[str, Any]:
    """The object that JSON says, {} where it says none."""
    try:
        parsed = parse_json(content)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def parse_json(content: bytes) -> Any:
    """JSON as its standard has it: no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(content, parse_constant=refuse)


@functools.lru_cache(maxsize=4096)
def parse_yaml(content: bytes) -> Any:
    """What YAML says, if it is not nested so deeply that the loader would crash."""
    depth = 0
    for event in yaml.parse(content, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError("nested too deeply")
    return yaml.load(content, Loader=Loader)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def key_of(identity: Mapping[str, Any]) -> str:
    """Twelve hex digits that name a cell, whatever the order of its settings."""
    return digest(json.dumps(identity, sort_keys=True).encode())[:12]


def is_number(value: Any) -> bool:
    """A finite number that a column of numbers can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place only when it is whole and on disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


@functools.cache
def say_once(sentence: str) -> None:
    """On stderr, once."""
    print(sentence, file=sys.stderr)
