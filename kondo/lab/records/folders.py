"""Run folders: their names, what each is about, and who trains it now."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from kondo.lab.records.archive import archived_runs, is_results, read_file
from kondo.lab.records.files import (
    CHECKPOINT,
    CONFIG,
    KEY,
    LOCK,
    LOG,
    STATUS,
    Damaged,
    digest,
    parse_yaml,
    read_bytes,
    say_once,
    write_atomically,
)
from kondo.lab.records.status import FINISHED, UNFINISHED, read_status, unchanged
from kondo.schema import ConfigError

NAME = re.compile(f"({KEY})-s([0-9]{{1,9}})-([0-9]{{1,9}})")


class RunBusy(RuntimeError):
    """Another process is training this run now."""


# Names


def run_path(runs: Path, task: str, cell: str, seeds: Sequence[int]) -> Path:
    """Where the run of a cell and of these seeds is."""
    return Path(runs) / task / f"{cell}-s{seeds[0]}-{seeds[-1]}"


def parse_name(name: str) -> tuple[str, int, int]:
    """The cell, the first and the last seed that a folder's name says."""
    named = NAME.fullmatch(name)
    if named is None or int(named[2]) > int(named[3]):
        raise Damaged("no name of a run, <cell>-s<first seed>-<last seed>")
    return named[1], int(named[2]), int(named[3])


def cell_of(folder: Path) -> str:
    """The key of the cell that a folder's name begins with."""
    return folder.name.partition("-s")[0]


def run_folders(runs: Path, cells: Iterable[str] | None = None) -> list[Path]:
    """Every run folder, or those of the given cells; of a results folder their paths in its archives."""
    if is_results(runs):
        try:
            return list(archived_runs(runs, cells).values())
        except Damaged as problem:
            say_once(str(problem))
            return []
    if cells is None:
        return sorted(runs.glob(f"*/{'?' * 12}-s*-*"))
    return sorted(folder for cell in cells for folder in runs.glob(f"*/{cell}-s*-*"))


def begun(runs: Path, task: str, cell: str) -> dict[int, int]:
    """{first seed: last seed} of a cell's runs so far; a folder that is none of them is told, and not counted."""
    found: dict[int, int] = {}
    for folder in sorted((runs / task).glob(f"{cell}-s*-*")):
        try:
            _, first, last = parse_name(folder.name)
            check_seeds(read_config(folder), first, last)
        except FileNotFoundError:  # nothing was begun there
            continue
        except Damaged as problem:
            say_once(f"{folder}: {problem}; not counted")
            continue
        found[first] = max(last, found.get(first, last))
    return found


# What a folder is about


def parse_config(content: bytes) -> dict[str, Any]:
    """What a saved config says; not to be changed."""
    try:
        config = parse_yaml(content)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise Damaged(f"{CONFIG} cannot be read")
    return config


def read_config(folder: Path) -> dict[str, Any]:
    """What a run folder says that it is about; FileNotFoundError where it says nothing."""
    content = read_bytes(folder / CONFIG)
    if content is None:
        raise Damaged(f"{CONFIG} cannot be read") if (folder / CONFIG).exists() else FileNotFoundError(folder / CONFIG)
    return parse_config(content)


def check_seeds(config: Mapping[str, Any], first: int, last: int) -> None:
    """A saved config has the seeds that its folder's name says."""
    seeds, wanted = config.get("seeds"), range(first, last + 1)
    if not isinstance(seeds, list) or len(seeds) != len(wanted) or seeds != list(wanted):
        raise Damaged(f"{CONFIG} has other seeds than the folder's name says")


def config_text(folder: Path) -> str:
    """The saved config as it stands, "" where there is none."""
    return (read_file(folder / CONFIG) or b"").decode(errors="replace")


def completed(folder: Path, config: Mapping[str, Any]) -> str | None:
    """done or diverged, where a run is complete: its config is this one, and config and log are what it ended with."""
    status = read_status(folder)
    files = {name: read_bytes(folder / name) for name in (CONFIG, LOG)}
    if status.get("status") not in FINISHED or not all(unchanged(status, *file) for file in files.items()):
        return None
    try:
        saved = parse_config(files[CONFIG] or b"")
    except Damaged:
        return None
    return status["status"] if _without_choices(saved) == _without_choices(config) else None


def _without_choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config less what was asked for: two figures may ask for the same run in different words."""
    return {key: value for key, value in config.items() if key != "choices"}


def claim(folder: Path, config: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Write down what the folder is about, or make sure that it is about the same; return the config's digest."""
    path, anew = folder / CONFIG, "move the folder away to train it anew"
    kept = path.exists()
    if not kept:
        write_atomically(path, yaml.safe_dump(dict(config), sort_keys=False))
    try:
        saved = read_config(folder)
    except Damaged as problem:
        raise ConfigError(f"{folder}: {problem}; {anew}") from None
    if saved.get("schema") != config["schema"]:
        raise ConfigError(
            f"{path}: schema={saved.get('schema')!r}, written by another version of the config; "
            f"this one is {config['schema']}; {anew}"
        )
    if _without_choices(saved) != _without_choices(config):
        raise ConfigError(f"{path}: holds another config than its name says; {anew}")
    ended = kept and status.get("status") in FINISHED and "digests" in status
    if ended and not unchanged(status, CONFIG, read_bytes(path)):
        raise ConfigError(f"{path}: changed after the run ended; {anew}")
    return digest(path.read_bytes())


# Before and while a run is trained


def make_folder(folder: Path) -> None:
    """The run's folder, where nothing else is in its place or in that of its files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder}: no folder, but a file in its place; move it away") from None
    for name in (CONFIG, LOG, STATUS, CHECKPOINT, LOCK):
        if (folder / name).exists() and not (folder / name).is_file():
            raise ConfigError(f"{folder / name}: no file; move it away")


def has_checkpoint(folder: Path) -> bool:
    """Whether an interrupted run left where it was."""
    return (folder / CHECKPOINT).exists()


def resumed_from(folder: Path, status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status that training goes on from; a log that it cannot go on with is set aside."""
    if status.get("status") in FINISHED:
        _set_aside(folder / LOG, "changed after the run ended")
        return {}
    if status.get("status") not in UNFINISHED and not has_checkpoint(folder):
        _set_aside(folder / LOG, "nothing says whether the run ended")
    return status


def _set_aside(path: Path, reason: str) -> None:
    """Rename a file that is not what it should be; nothing is deleted."""
    if path.exists():
        names = (path.with_name(f"{path.stem}.damaged-{number}{path.suffix}") for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        print(f"{path}: {reason}; kept as {aside.name}, and trained anew", file=sys.stderr)


def in_training(folder: Path) -> bool:
    """Whether some process trains this run now."""
    try:
        with locked(folder, "r"):
            return False
    except RunBusy:
        return True
    except OSError:  # no lock, so never in training
        return False


@contextlib.contextmanager
def locked(folder: Path, mode: str = "w") -> Iterator[None]:
    """One process at a time; the system drops the lock of a process that died."""
    if fcntl is None:
        raise ConfigError("run folders need POSIX file locks: use WSL")
    with (folder / LOCK).open(mode) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(f"{folder}: another process is training this run") from None
        yield
