"""Run folders: what was asked, what was measured, and how it stands, such that nothing computed is lost.

    runs/<task>/<cell>-s<first>-<last>/
        config.yaml     the cell and the seeds
        metrics.jsonl   append-only, one object per (evaluation, seed): the source of truth
        status.json     running / done / diverged / failed; written whole or not at all
        checkpoint.pt   only while there is something left to do

A run that is complete is never trained again; one that was interrupted goes on to the very log it would have had.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from kondo import __version__
from kondo.cell import SCHEMA, Cell
from kondo.engine import Engine, eval_steps
from kondo.measurement import engine_of
from kondo.schema import ConfigError

FINISHED = ("done", "diverged")
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

    def __post_init__(self) -> None:
        if list(self.seeds) != list(range(self.seeds[0], self.seeds[0] + len(self.seeds))) or self.seeds[0] < 0:
            raise ConfigError(f"seeds={self.seeds}: expected consecutive numbers from 0 on")

    def folder(self, root: Path) -> Path:
        cell = self.cell.plain()
        return Path(root) / cell["task"]["name"] / f"{self.cell.key()}-s{self.seeds[0]}-{self.seeds[-1]}"

    def plain(self) -> dict[str, Any]:
        return {**self.cell.plain(), "seeds": list(self.seeds)}


def blocks(cell: Cell, seeds: int, size: int, root: Path, first_seed: int = 0) -> list[Block]:
    """The blocks that give a cell so many seeds from the first on: those that exist, as they are, and new ones for the
    rest."""
    found: dict[int, int] = {}  # first seed → last seed
    for folder in Block(cell, (0,)).folder(root).parent.glob(f"{cell.key()}-s*-*"):
        with contextlib.suppress(ValueError):
            first, last = map(int, folder.name.rsplit("-s", 1)[1].split("-"))
            found[first] = max(last, found.get(first, last))
    result, seed, end = [], first_seed, first_seed + seeds
    while seed < end:
        later = [first for first in found if first > seed]
        last = found.get(seed, min([end, seed + size, *later]) - 1)
        result.append(Block(cell, tuple(range(seed, last + 1))))
        seed = last + 1
    return result


def read_status(folder: Path) -> dict[str, Any]:
    """The run's status, {} where there is none (yet)."""
    try:
        status = json.loads((folder / "status.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def finished(block: Block, root: Path) -> str | None:
    """done or diverged, where a run is complete: its log goes to the end, and this version of the config wrote it."""
    folder = block.folder(root)
    status = read_status(folder).get("status")
    if status not in FINISHED:
        return None
    try:
        about = (folder / "config.yaml").read_text().splitlines()
        last = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()[-len(block.seeds) :]]
        ends = {row["seed"]: row["step"] for row in last}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return status if f"schema: {SCHEMA}" in about and ends == dict.fromkeys(block.seeds, block.cell.steps) else None


def give_up(folder: Path, reason: str) -> None:
    """Write down that a run failed, for a worker that could not."""
    folder.mkdir(parents=True, exist_ok=True)
    news = {"status": "failed", "ended": time.time(), "reason": reason}
    write_atomically(folder / "status.json", json.dumps(read_status(folder) | news, indent=1))


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
    one that `watch` stopped from where it was.
    """
    folder = block.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        before = read_status(folder)
        if complete := finished(block, root):
            return complete
        _claim(folder, block)
        status = {"status": "running", "started": before.get("started", time.time()), **provenance(device)}
        begun, spent = time.monotonic(), before.get("seconds", 0.0)

        def write(**news: Any) -> None:
            status["seconds"] = round(spent + time.monotonic() - begun, 3)  # whatever the clock on the wall does
            write_atomically(folder / "status.json", json.dumps(status | news, indent=1))

        beat = begun - HEARTBEAT_SECONDS

        def heartbeat(step: int, rows: Rows) -> None:
            """What is being trained tells now and then how far it is."""
            nonlocal beat
            status["step"] = step
            if rows:
                errors = [row["error"] for row in rows if row.get("error") is not None]
                status["error"] = sum(errors) / len(errors) if errors else None
            if time.monotonic() - beat > HEARTBEAT_SECONDS:
                beat = time.monotonic()
                write()
            watch(step, rows)

        write()
        try:
            diverged = _train(folder, block, device, data, checkpoint_seconds, heartbeat)
        except Exception as error:
            write(status="failed", ended=time.time(), reason=str(error), traceback=traceback.format_exc())
            raise
        outcome = "diverged" if diverged else "done"
        write(status=outcome, ended=time.time(), **({"diverged": diverged} if diverged else {}))
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        return outcome


def _train(
    folder: Path,
    block: Block,
    device: str,
    data: Path | str,
    checkpoint_seconds: float,
    watch: Callable[[int, Rows], None],
) -> dict[int, int]:
    """Train from the last checkpoint, if there is one, and return {seed: step} of what diverged."""
    cell = block.cell
    due = set(eval_steps(cell.steps, cell.evals))
    engine, logged = _restore(folder, lambda: engine_of(cell, list(block.seeds), device, data))
    with (folder / "metrics.jsonl").open("ab") as log:
        log.truncate(logged)
        log.seek(0, os.SEEK_END)

        def report() -> None:
            rows = engine.evaluate() if engine.step in due else []
            log.write("".join(json.dumps(row) + "\n" for row in rows).encode())
            log.flush()
            watch(engine.step, rows)

        try:
            if engine.step == 0:
                report()
            saved, pause = time.monotonic(), checkpoint_seconds
            while engine.step < cell.steps:
                engine.advance()
                report()
                if time.monotonic() - saved >= pause:
                    begun = time.monotonic()
                    _save(folder, engine, log)
                    saved = time.monotonic()
                    pause = max(checkpoint_seconds, 20 * (saved - begun))  # a large state less often: 5% at most
        except Stop:
            _save(folder, engine, log)
            raise
        os.fsync(log.fileno())
    return engine.diverged()


def _save(folder: Path, engine: Engine, log: IO[bytes]) -> None:
    """The engine's state and how much of the log belongs to it."""
    os.fsync(log.fileno())
    trouble: list[OSError] = []

    class File:
        """torch says of a full disk only that something failed."""

        def write(self, part: bytes) -> int:
            try:
                return file.write(part)
            except OSError as error:
                trouble.append(error)
                raise

        def flush(self) -> None:
            file.flush()

    with _replacing(folder / "checkpoint.pt") as file:
        guarded: Any = File()
        try:
            torch.save({"engine": engine.state(), "log_bytes": log.tell()}, guarded)
        except RuntimeError:
            if trouble:
                raise trouble[0] from None
            raise


def _restore(folder: Path, make: Callable[[], Engine]) -> tuple[Engine, int]:
    """An engine at its last checkpoint, or a new one, and how many bytes of the log are from before that.

    Whatever was logged later is dropped: training on will write the same again. So is a checkpoint that cannot be used.
    """
    engine = make()
    try:
        state = torch.load(folder / "checkpoint.pt", map_location=engine.streams.device, weights_only=True)
        log = (folder / "metrics.jsonl").read_bytes()[: state["log_bytes"]]
        if len(log) == state["log_bytes"]:
            for line in log.splitlines():
                json.loads(line)
            engine.load(state["engine"])
            return engine, len(log)
    except FileNotFoundError:
        return engine, 0
    except Exception as error:  # torch raises many kinds at a damaged file
        print(f"{folder}: checkpoint or log unusable ({error}); starting over", file=sys.stderr)
    return make(), 0


def _claim(folder: Path, block: Block) -> None:
    """Write down what the folder is about, or make sure that it is about the same."""
    path = folder / "config.yaml"
    if not path.exists():
        write_atomically(path, yaml.safe_dump(block.plain(), sort_keys=False))
        return
    saved = yaml.safe_load(path.read_text())
    if isinstance(saved, dict) and saved.get("schema") != SCHEMA:
        raise ConfigError(
            f"{path}: schema={saved.get('schema')!r}, written by another version of the config; this one is {SCHEMA}; "
            "move the folder away to train it anew"
        )
    if saved != block.plain():
        raise ConfigError(f"{path}: holds another config than its name says; move the folder away to train it anew")


def in_training(folder: Path) -> bool:
    """Whether some process trains this run now."""
    try:
        with _locked(folder, "r"):
            return False
    except RunBusy:
        return True
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(folder: Path, mode: str = "w") -> Iterator[None]:
    """One process at a time; the system drops the lock of a process that died."""
    with (folder / ".lock").open(mode) as file:
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
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
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
