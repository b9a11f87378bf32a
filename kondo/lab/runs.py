"""Run folders: what was asked, what was measured, and how it stands, such that nothing computed is lost.

    runs/<task>/<cell>-s<first>-<last>/
        config.yaml     the cell and the seeds; and, no part of the identity, the error's column and what was asked for
        metrics.jsonl   append-only, one object per (evaluation, seed): the source of truth
        status.json     running / done / diverged / failed; written whole or not at all; at the end with digests of both
        checkpoint.pt   only while there is something left to do

A run that is complete is never trained again; one that was interrupted goes on to the very log it would have had; one
whose log was changed afterwards is trained anew, and the changed log set aside.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
import yaml

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from kondo import __version__
from kondo.lab.config.cell import SCHEMA, Cell
from kondo.lab.engine import eval_steps
from kondo.lab.process import Process, start
from kondo.schema import ConfigError

CONFIG, LOG, STATUS, CHECKPOINT, LOCK = "config.yaml", "metrics.jsonl", "status.json", "checkpoint.pt", ".lock"
FINISHED = ("done", "diverged")
UNFINISHED = ("running", "failed")
FOLDER = re.compile("[0-9a-f]{12}-s([0-9]{1,9})-([0-9]{1,9})")
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 20
HEARTBEAT_SECONDS = 2.0
Rows = list[dict[str, Any]]


class RunBusy(RuntimeError):
    """Another process is training this run now."""


class Stop(KeyboardInterrupt):
    """Raised by what watches a run: save where it is, and end."""


@dataclass(frozen=True)
class Block:
    """A cell and the seeds that are trained side by side: what a run folder is about."""

    cell: Cell
    seeds: tuple[int, ...]
    choices: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What was asked for, {task: digits, friction: all, intensity: 0.25}; no part of what the run is."""

    def __post_init__(self) -> None:
        if list(self.seeds) != list(range(self.seeds[0], self.seeds[0] + len(self.seeds))) or self.seeds[0] < 0:
            raise ConfigError(f"seeds={self.seeds}: expected consecutive numbers from 0 on")

    def folder(self, root: Path) -> Path:
        cell = self.cell.plain()
        return Path(root) / cell["task"]["name"] / f"{self.cell.key()}-s{self.seeds[0]}-{self.seeds[-1]}"

    def plain(self) -> dict[str, Any]:
        """What the run is: the cell and the seeds."""
        return {**self.cell.plain(), "seeds": list(self.seeds)}

    def config(self) -> dict[str, Any]:
        """What is saved: also which column of the log is the error, and what was asked for."""
        return {**self.plain(), "error": self.cell.error, "choices": dict(self.choices)}


def blocks(
    cell: Cell, seeds: int, size: int, root: Path, first_seed: int = 0, choices: Mapping[str, Any] | None = None
) -> list[Block]:
    """The blocks that give a cell so many seeds from the first on: those that exist, as they are, and new ones for the
    rest."""
    found: dict[int, int] = {}  # first seed → last seed
    for folder in sorted(Block(cell, (0,)).folder(root).parent.glob(f"{cell.key()}-s*-*")):
        try:
            first, last = _seeds(folder)
        except FileNotFoundError:  # nothing was begun there
            continue
        except ConfigError as error:
            _say(f"{error}; not counted")
            continue
        found[first] = max(last, found.get(first, last))
    result, seed, end = [], first_seed, first_seed + seeds
    while seed < end:
        later = [first for first in found if first > seed]
        last = found.get(seed, min([end, seed + size, *later]) - 1)
        result.append(Block(cell, tuple(range(seed, last + 1)), choices or {}))
        seed = last + 1
    return result


def _seeds(folder: Path) -> tuple[int, int]:
    """The first and the last seed of a run folder, where its name and its config agree."""
    named = FOLDER.fullmatch(folder.name)
    if named is None:
        raise ConfigError(f"{folder}: no name of a run, <cell>-s<first seed>-<last seed>")
    first, last = int(named[1]), int(named[2])
    seeds = _read_config(folder).get("seeds")
    if not isinstance(seeds, list) or not seeds or seeds != list(range(first, first + len(seeds))) or seeds[-1] != last:
        raise ConfigError(f"{folder}: {CONFIG} has other seeds than its name says")
    return first, last


@functools.cache
def _say(sentence: str) -> None:
    """On stderr, once."""
    print(sentence, file=sys.stderr)


def read_status(folder: Path) -> dict[str, Any]:
    """The run's status, {} where there is none (yet) or none that can be read."""
    try:
        status = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return status if isinstance(status, dict) else {}


def finished(block: Block, root: Path) -> str | None:
    """done or diverged, where a run is complete: its config is the block's, and config and log are what it ended
    with."""
    folder = block.folder(root)
    status = read_status(folder)
    if status.get("status") not in FINISHED or not all(_unchanged(folder, name, status) for name in (CONFIG, LOG)):
        return None
    try:
        saved = _read_config(folder)
    except (FileNotFoundError, ConfigError):
        return None
    return status["status"] if _what(saved) == _what(block.config()) else None


def _unchanged(folder: Path, name: str, status: Mapping[str, Any]) -> bool:
    """Whether a file is the one that a finished run left."""
    digests = status.get("digests")
    try:
        return isinstance(digests, dict) and digests.get(name) == _digest((folder / name).read_bytes())
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _what(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config less what was asked for: two figures may ask for the same run in different words."""
    return {key: value for key, value in config.items() if key != "choices"}


def _read_config(folder: Path) -> dict[str, Any]:
    """What a run folder says that it is about; FileNotFoundError where it says nothing."""
    path = folder / CONFIG
    try:
        config = _parsed(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: cannot be read; move {folder} away to train it anew")
    return config


@functools.lru_cache(maxsize=4096)
def _parsed(content: bytes) -> Any:
    """What YAML says, if it is not nested so deeply that the loader would crash."""
    depth = 0
    for event in yaml.parse(content, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError("nested too deeply")
    return yaml.load(content, Loader=Loader)


def give_up(folder: Path, reason: str) -> None:
    """Write down that a run failed, for a worker that could not; where that cannot be written either, it is told."""
    news = {"status": "failed", "ended": time.time(), "reason": reason}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / STATUS, json.dumps(read_status(folder) | news, indent=1))
    except OSError as error:
        _say(f"{folder}: {error}")


def train(
    block: Block,
    root: Path,
    device: str = "cpu",
    data: Path | str = "data",
    checkpoint_seconds: float = 30.0,
    watch: Callable[[int, Rows], None] = lambda step, rows: None,
) -> str:
    """Train a block to its end, from wherever an earlier attempt got; return its status.

    watch: called after every step with (step, the rows just logged, mostly none).
    checkpoint_seconds: how much work an interruption may cost; longer where saving itself takes long.
    An exception is recorded with its traceback and raised on; an interrupted run goes on from its last checkpoint,
    one that `watch` stopped from where it was. The log of a complete run that was changed since is set aside.
    """
    folder, column = block.folder(root), block.cell.error
    _make(folder)
    with _locked(folder):
        before = read_status(folder)
        if complete := finished(block, root):
            return complete
        about = _claim(folder, block, before)
        if complete := finished(block, root):  # its config was lost, and is back
            return complete
        if before.get("status") in FINISHED:
            _set_aside(folder / LOG, "changed after the run ended")
            before = {}
        elif before.get("status") not in UNFINISHED and not (folder / CHECKPOINT).exists():
            _set_aside(folder / LOG, "nothing says whether the run ended")
        status = {"status": "running", "started": _number(before.get("started"), time.time()), **provenance(device)}
        begun, spent = time.monotonic(), _number(before.get("seconds"), 0.0)

        def write(**news: Any) -> None:
            status["seconds"] = round(spent + time.monotonic() - begun, 3)  # whatever the clock on the wall does
            write_atomically(folder / STATUS, json.dumps(status | news, indent=1))

        beat = begun - HEARTBEAT_SECONDS

        def heartbeat(step: int, rows: Rows) -> None:
            """What is being trained tells now and then how far it is."""
            nonlocal beat
            status["step"] = step
            if rows:
                errors = [row[column] for row in rows if column is not None and row.get(column) is not None]
                status["error"] = sum(errors) / len(errors) if errors else None
            if time.monotonic() - beat > HEARTBEAT_SECONDS:
                beat = time.monotonic()
                write()
            watch(step, rows)

        write()
        try:
            diverged, log = _train(folder, block, device, data, checkpoint_seconds, heartbeat)
        except Exception as error:
            write(status="failed", ended=time.time(), reason=str(error), traceback=traceback.format_exc())
            raise
        outcome = "diverged" if diverged else "done"
        news = {"diverged": diverged} if diverged else {}
        write(status=outcome, ended=time.time(), digests={CONFIG: about, LOG: log}, **news)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        return outcome


def _train(
    folder: Path,
    block: Block,
    device: str,
    data: Path | str,
    checkpoint_seconds: float,
    watch: Callable[[int, Rows], None],
) -> tuple[dict[int, int], str]:
    """Train from the last checkpoint, if there is one; return {seed: step} of what diverged, and the log's digest."""
    cell = block.cell
    due = set(eval_steps(cell.steps, cell.evals))
    engine, logged = _restore(folder, cell.steps, lambda: start(cell, list(block.seeds), device, data))
    digest = hashlib.sha256(logged)
    with (folder / LOG).open("ab") as log:
        log.truncate(len(logged))
        log.seek(0, os.SEEK_END)

        def report() -> None:
            rows = engine.evaluate() if engine.step in due else []
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            log.write(lines)
            log.flush()
            digest.update(lines)
            watch(engine.step, rows)

        stopped: Stop | None = None
        try:
            if engine.step == 0 and not logged:
                report()
            saved, pause = time.monotonic(), checkpoint_seconds
            while engine.step < cell.steps:
                engine.advance()
                report()
                if time.monotonic() - saved >= pause:
                    begun = time.monotonic()
                    _save(folder, engine, log, digest.hexdigest())
                    saved = time.monotonic()
                    pause = max(checkpoint_seconds, 20 * (saved - begun))  # a large state less often: 5% at most
        except Stop as caught:
            stopped = caught
        if stopped is not None:
            _save(folder, engine, log, digest.hexdigest())
            raise stopped
        os.fsync(log.fileno())
    return engine.diverged(), digest.hexdigest()


def _save(folder: Path, engine: Process, log: IO[bytes], digest: str) -> None:
    """The engine's state, how much of the log belongs to it, and the digest of that."""
    os.fsync(log.fileno())
    with _replacing(folder / CHECKPOINT) as file:
        try:
            torch.save({"engine": engine.state(), "log_bytes": log.tell(), "log_digest": digest}, file)
        except RuntimeError as error:  # torch says of a full disk or of Ctrl-C only that something failed
            raise _origin(error) from None


def _origin(error: RuntimeError) -> BaseException:
    """What went wrong outside of torch, if anything did, before torch failed."""
    each: BaseException | None = error
    while each is not None and not isinstance(each, (OSError, KeyboardInterrupt)):
        each = each.__context__
    return each or error


def _restore(folder: Path, steps: int, make: Callable[[], Process]) -> tuple[Process, bytes]:
    """An engine at its last checkpoint, or a new one, and the part of the log that is from before that.

    Whatever was logged later is dropped: training on will write the same again. So is a checkpoint that cannot be used,
    or whose part of the log was changed.
    """
    engine = make()
    try:
        state = torch.load(folder / CHECKPOINT, map_location=engine.streams.device, weights_only=True)
        log = (folder / LOG).read_bytes()[: state["log_bytes"]]
        if _digest(log) != state["log_digest"]:
            raise ValueError("the log is not the one that the checkpoint knows")
        engine.load(state["engine"])
        if not 0 <= engine.step <= steps:
            raise ValueError(f"step {engine.step} of {steps}")
        return engine, log
    except FileNotFoundError:
        return engine, b""
    except Exception as error:  # torch raises many kinds at a damaged file
        print(f"{folder}: checkpoint or log unusable ({error}); starting over", file=sys.stderr)
    return make(), b""


def _make(folder: Path) -> None:
    """The run's folder, where nothing else is in its place or in that of its files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder}: no folder, but a file in its place; move it away") from None
    for name in (CONFIG, LOG, STATUS, CHECKPOINT, LOCK):
        if (folder / name).exists() and not (folder / name).is_file():
            raise ConfigError(f"{folder / name}: no file; move it away")


def _claim(folder: Path, block: Block, status: Mapping[str, Any]) -> str:
    """Write down what the folder is about, or make sure that it is about the same; return the config's digest."""
    path = folder / CONFIG
    kept = path.exists()
    if not kept:
        write_atomically(path, yaml.safe_dump(block.config(), sort_keys=False))
    saved = _read_config(folder)
    if saved.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path}: schema={saved.get('schema')!r}, written by another version of the config; this one is {SCHEMA}; "
            "move the folder away to train it anew"
        )
    if _what(saved) != _what(block.config()):
        raise ConfigError(f"{path}: holds another config than its name says; move the folder away to train it anew")
    if kept and status.get("status") in FINISHED and "digests" in status and not _unchanged(folder, CONFIG, status):
        raise ConfigError(f"{path}: changed after the run ended; move the folder away to train it anew")
    return _digest(path.read_bytes())


def _set_aside(path: Path, reason: str) -> None:
    """Rename a file that is not what it should be; nothing is deleted."""
    if path.exists():
        names = (path.with_name(f"{path.stem}.damaged-{number}{path.suffix}") for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        print(f"{path}: {reason}; kept as {aside.name}, and trained anew", file=sys.stderr)


def _number(value: Any, default: float) -> float:
    """A time of an earlier status, if it is one."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else default


def in_training(folder: Path) -> bool:
    """Whether some process trains this run now."""
    try:
        with _locked(folder, "r"):
            return False
    except RunBusy:
        return True
    except OSError:  # no lock, so never in training
        return False


@contextlib.contextmanager
def _locked(folder: Path, mode: str = "w") -> Iterator[None]:
    """One process at a time; the system drops the lock of a process that died."""
    if fcntl is None:
        raise ConfigError("run folders need POSIX file locks: use WSL")
    with (folder / LOCK).open(mode) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(f"{folder}: another process is training this run") from None
        yield


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
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
    with _replacing(path) as file:
        file.write(text.encode())


@functools.cache
def provenance(device: str) -> dict[str, Any]:
    """Where and with what a run was trained."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        commit = ""
    return {
        "commit": commit or None,
        "versions": {"kondo": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }
