"""What runs elsewhere: actors that sample batches, and the exchange of parameters and batches."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from kondo.lab.actor import Actor, Batch
from kondo.lab.config.cell import Cell, parse
from kondo.lab.frictions import ActorBugs, Friction, Mismatch
from kondo.lab.policies.mlp import views
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import Task

SLOW = 4.0
"""How many times as long as another a slow actor takes."""
FAULTY_FROM = 3
"""In which of its batches an actor is killed, and after which it is cut off."""
WRONG: dict[str, Friction] = {
    "bf16": Mismatch("bf16"),
    "int8": Mismatch("int8"),
    "junk": ActorBugs(prob=1.0),
}
"""Faults of an actor that are frictions of its batches."""


@dataclass(frozen=True)
class Message:
    """A batch on its way to the learner."""

    number: int
    version: int
    """The learner step before which its parameters were the learner's."""
    tensors: dict[str, Any]
    actor: int = 0
    busy: float = 0.0
    """Seconds that the actor took for it."""
    idle: float = 0.0
    """Seconds that the actor waited before it: for room in the queue, and for parameters."""


def packed(batch: Batch) -> dict[str, Any]:
    """What the learner needs of a batch."""
    names = ("actions", "earned", "rewards", "actor_log_prob")
    contexts = {"inputs": batch.contexts.inputs, "targets": batch.contexts.targets}
    return {name: value.numpy() for name, value in (contexts | {name: getattr(batch, name) for name in names}).items()}


def import_file(name: str, path: str) -> None:
    """Import a file under a module's name, for what it registers."""
    spec = importlib.util.spec_from_file_location(name, path)
    if name not in sys.modules and spec is not None and spec.loader is not None:
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class Worker:
    """An actor: samples the batch of a number with given parameters."""

    def __init__(self, plain: dict[str, Any], foreign: dict[str, str], seeds: list[int], data: str, place: int) -> None:
        torch.set_num_threads(1)
        for name, path in foreign.items():
            import_file(name, path)
        cell: Cell = parse(plain)
        assert isinstance(cell.task, Task)
        cell.task.prepare(Path(data), "cpu")
        self.settings, self.place, self.streams = cell.actor, place, Streams(seeds)
        frictions = [friction for friction in cell.frictions if not friction.longest_delay()]
        self.fault = self.settings.fault if place == 0 else "none"
        frictions += [WRONG[self.fault]] if self.fault in WRONG else []
        self.actor = Actor(cell.task, frictions, self.streams, torch.empty(0))

    def ready(self) -> bool:
        """Asked for before the first batch, so that all begin together, and none with what only a first batch takes."""
        self.make(0, 0, self.actor.policy.init(self.streams).numpy())
        return True

    def make(self, number: int, version: int, flat: np.ndarray) -> Message:
        """The batch of that number."""
        begun = time.perf_counter()
        parameters = views(torch.from_numpy(flat.copy()), self.actor.policy.shapes())
        batch = self.actor.made(number, parameters)
        return Message(number, version, packed(batch), self.place, time.perf_counter() - begun)

    def run(self, exchange: Any) -> int:
        """Batch after batch, with the newest parameters there are, until the exchange closes. How many were made."""
        number, made, held = ray.get(exchange.join.remote(self.place)), 0, None
        pace = self.settings.pace * (SLOW if self.fault == "slow" else 1.0)
        while True:
            begun = time.perf_counter()
            if held is None or not (self.fault == "cut_off" and made >= FAULTY_FROM):
                version, (reference,) = ray.get(exchange.latest.remote())
                held = version, ray.get(reference)
            waited = time.perf_counter() - begun
            message = self.make(number, *held)
            if self.fault == "killed" and made + 1 == FAULTY_FROM:
                os._exit(1)
            time.sleep((pace - 1) * message.busy)
            message = replace(message, busy=pace * message.busy, idle=waited)
            number = ray.get(exchange.put.remote(message))
            made += 1
            if number is None:
                return made


class Exchange:
    """Where actors take parameters and leave batches, which the learner takes in their order; full, it lets actors
    wait. Each actor has the numbers place, place + count, … and none of them is taken twice, whatever dies."""

    def __init__(self, room: int, expected: list[int]) -> None:
        self.room, self.expected = room, expected
        """expected: the next number of each actor."""
        self.batches: deque[tuple[Message, float]] = deque()
        self.changed = asyncio.Condition()
        self.newest: tuple[int, list[Any]] | None = None
        self.open, self.lives = True, [0 for _ in expected]

    async def publish(self, version: int, reference: list[Any]) -> None:
        async with self.changed:
            self.newest = version, reference
            self.changed.notify_all()

    async def latest(self) -> tuple[int, list[Any]]:
        """The newest parameters: their version and where they are."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.newest is not None)
            assert self.newest is not None
            return self.newest

    async def join(self, place: int) -> int:
        """An actor begins, or begins anew: the number of its next batch."""
        self.lives[place] += 1
        return self.expected[place]

    async def put(self, message: Message) -> int | None:
        """Leave a batch as soon as there is room; the number of the next, or None where there will be none."""
        begun = time.perf_counter()
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.batches) < self.room or not self.open)
            if not self.open:
                return None
            if message.number == self.expected[message.actor]:  # else it came twice, of an actor that was restarted
                self.batches.append((message, time.perf_counter() - begun))
                self.expected[message.actor] += len(self.expected)
            self.changed.notify_all()
            return self.expected[message.actor]

    async def get(self) -> tuple[Message, int, int]:
        """The next batch, how many wait behind it, and how often actors had to begin anew."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.batches) > 0)
            message, waited = self.batches.popleft()
            self.changed.notify_all()
            restarts = sum(self.lives) - len(self.lives)
            return replace(message, idle=message.idle + waited), len(self.batches), max(0, restarts)

    async def close(self) -> None:
        async with self.changed:
            self.open = False
            self.changed.notify_all()
