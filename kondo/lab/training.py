"""Training a block of seeds such that nothing computed is lost.

A run that is complete is never trained again; one that was interrupted goes on to the very log it would have had; one
whose log was changed afterwards is trained anew, and the changed log set aside.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from kondo import __version__
from kondo.lab import kernels
from kondo.lab.config.cell import Cell
from kondo.lab.engine import eval_steps
from kondo.lab.process import Process, start
from kondo.lab.records import (
    CHECKPOINT,
    CONFIG,
    LOG,
    Rows,
    begun,
    claim,
    completed,
    digest,
    locked,
    make_folder,
    read_status,
    replacing,
    resumed_from,
    run_path,
    write_status,
)
from kondo.schema import ConfigError

HEARTBEAT_SECONDS = 2.0
Watch = Callable[[int, Rows], None]


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
        return run_path(root, self.cell.plain()["task"]["name"], self.cell.key(), self.seeds)

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
    found = begun(root, cell.plain()["task"]["name"], cell.key())
    result, seed, end = [], first_seed, first_seed + seeds
    while seed < end:
        later = [first for first in found if first > seed]
        last = found.get(seed, min([end, seed + size, *later]) - 1)
        result.append(Block(cell, tuple(range(seed, last + 1)), choices or {}))
        seed = last + 1
    return result


def finished(block: Block, root: Path) -> str | None:
    """done or diverged, where a run is complete."""
    return completed(block.folder(root), block.config())


def train(
    block: Block,
    root: Path,
    device: str = "cpu",
    data: Path | str = "data",
    checkpoint_seconds: float = 30.0,
    watch: Watch = lambda step, rows: None,
) -> str:
    """Train a block to its end, from wherever an earlier attempt got; return its status.

    watch: called after every step with (step, the rows just logged, mostly none).
    checkpoint_seconds: how much work an interruption may cost; longer where saving itself takes long.
    An exception is recorded with its traceback and raised on; an interrupted run goes on from its last checkpoint,
    one that `watch` stopped from where it was. The log of a complete run that was changed since is set aside.
    """
    folder = block.folder(root)
    make_folder(folder)
    with locked(folder):
        if complete := finished(block, root):
            return complete
        before = read_status(folder)
        about = claim(folder, block.config(), before)
        if complete := finished(block, root):  # its config was lost, and is back
            return complete
        diary = Diary(folder, block.cell.error, resumed_from(folder, before), device)
        diary.write()

        def watched(step: int, rows: Rows) -> None:
            diary.note(step, rows)
            watch(step, rows)

        try:
            diverged, log = _train(folder, block, device, data, checkpoint_seconds, watched)
        except Exception as error:
            diary.write(status="failed", ended=time.time(), reason=str(error), traceback=traceback.format_exc())
            raise
        outcome = "diverged" if diverged else "done"
        news = {"diverged": diverged} if diverged else {}
        diary.write(status=outcome, ended=time.time(), digests={CONFIG: about, LOG: log}, **news)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        return outcome


class Diary:
    """The status of a run in training: now and then it tells how far it is."""

    def __init__(self, folder: Path, column: str | None, before: Mapping[str, Any], device: str) -> None:
        self.folder, self.column = folder, column
        started = _number(before.get("started"), time.time())
        self.status = {"status": "running", "started": started, **provenance(device)}
        self.begun, self.spent = time.monotonic(), _number(before.get("seconds"), 0.0)
        self.beat = self.begun - HEARTBEAT_SECONDS

    def note(self, step: int, rows: Rows) -> None:
        self.status["step"] = step
        if rows:
            errors = [row[self.column] for row in rows if self.column and row.get(self.column) is not None]
            self.status["error"] = sum(errors) / len(errors) if errors else None
        if time.monotonic() - self.beat > HEARTBEAT_SECONDS:
            self.beat = time.monotonic()
            self.write()

    def write(self, **news: Any) -> None:
        self.status["seconds"] = round(self.spent + time.monotonic() - self.begun, 3)  # whatever the wall clock does
        write_status(self.folder, self.status | news)


def _number(value: Any, default: float) -> float:
    """A time of an earlier status, if it is one."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else default


def _train(
    folder: Path,
    block: Block,
    device: str,
    data: Path | str,
    checkpoint_seconds: float,
    watch: Watch,
) -> tuple[dict[int, int], str]:
    """Train from the last checkpoint, if there is one; return {seed: step} of what diverged, and the log's digest."""
    cell = block.cell
    due = set(eval_steps(cell.steps, cell.evals))
    engine, logged = _restore(folder, cell.steps, lambda: start(cell, list(block.seeds), device, data))
    summed = hashlib.sha256(logged)
    with (folder / LOG).open("ab") as log:
        log.truncate(len(logged))
        log.seek(0, os.SEEK_END)

        last = [row for row in map(json.loads, logged.splitlines()) if row["step"] == engine.step]

        def report() -> None:
            nonlocal last
            rows = last = engine.evaluate() if engine.step in due else []
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            log.write(lines)
            log.flush()
            summed.update(lines)
            watch(engine.step, rows)

        stopped: Stop | None = None
        try:
            if engine.step == 0 and not logged:
                report()
            saved, pause = time.monotonic(), checkpoint_seconds
            while engine.step < cell.steps and not cell.solved(last):
                engine.advance()
                report()
                if time.monotonic() - saved >= pause:
                    begun = time.monotonic()
                    _save(folder, engine, log, summed.hexdigest())
                    saved = time.monotonic()
                    pause = max(checkpoint_seconds, 20 * (saved - begun))  # a large state less often: 5% at most
        except Stop as caught:
            stopped = caught
        finally:
            engine.close()
        if stopped is not None:
            _save(folder, engine, log, summed.hexdigest())
            raise stopped
        os.fsync(log.fileno())
    return engine.diverged(), summed.hexdigest()


def _save(folder: Path, engine: Process, log: IO[bytes], digest: str) -> None:
    """The engine's state, how much of the log belongs to it, and the digest of that."""
    os.fsync(log.fileno())
    with replacing(folder / CHECKPOINT) as file:
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
        if digest(log) != state["log_digest"]:
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
        "versions": {
            "kondo": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "numba": kernels.version(),
            "kernels": kernels.switch(),
            "python": platform.python_version(),
        },
        "machine": {
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def _cpu() -> str:
    """What decides how a CPU rounds: its model, and the instructions that torch uses."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:  # not Linux
        lines = []
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    model = [said[name] for name in ("model name", "cpu family", "model", "stepping") if name in said]
    return " ".join([*(model or [platform.processor()]), torch.backends.cpu.get_cpu_capability()])
