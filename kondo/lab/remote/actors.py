"""What stands in the actors' place in the learner's process: it hands out parameters and takes in batches."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from kondo.lab.actor import Actor, Batch, parse_schedule
from kondo.lab.config.cell import Cell
from kondo.lab.remote.workers import Exchange, Message, Worker
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import Contexts, Task

os.environ.setdefault("RAY_worker_niceness", "0")  # else a busy learner starves actors on its own machine
PATIENCE = 300.0
"""Seconds without any batch after which something must be wrong."""
POLL = 1.0


class ActorsLost(ConnectionError):
    """The actors, or the cluster they are on, cannot be reached."""


class Remote(Actor):
    """Actors on Ray. Without $RAY_ADDRESS a cluster of this machine alone, which ends with the run."""

    def __init__(self, cell: Cell, streams: Streams, flat: Tensor, data: str) -> None:
        assert isinstance(cell.task, Task)
        super().__init__(cell.task, cell.frictions, streams, flat, parse_schedule(cell.actor.schedule))
        self.exact, self.settings, self.steps = False, cell.actor, cell.steps
        self.workers: list[Any] = []
        self.own = not ray.is_initialized()
        self.about = cell.plain(), cell.foreign_files(), list(streams.seeds), data

    def open(self) -> None:
        """Start the actors, before the first step that needs them."""
        if not self.workers:
            self.start()

    def start(self) -> None:
        """Start a cluster, if there is none, and the actors on it."""
        if self.own:
            before = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, RayError) as error:
                what = f"no Ray cluster for the actors ({_first_line(error)})"
                raise ActorsLost(f"{what}; without RAY_ADDRESS a local one") from None
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray's would end the process before the run is saved
        remote = ray.remote(Worker).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        self.workers = [remote.remote(*self.about, place) for place in range(self.settings.count)]
        try:
            ray.get([worker.ready.remote() for worker in self.workers], timeout=PATIENCE)
        except RayError as error:
            raise ActorsLost(_what_to_do(error)) from None

    def got(self, message: Message) -> Batch:
        """A message as the learner knows batches."""
        tensors: dict[str, Any] = {name: torch.from_numpy(value.copy()) for name, value in message.tensors.items()}
        contexts = Contexts(tensors.pop("inputs"), tensors.pop("targets"))
        return Batch(contexts=contexts, **tensors, log_policy=None, policy=self.policy, parameters={})

    def close(self) -> None:
        for worker in self.workers:
            with suppress(RayError):
                ray.kill(worker)
        if self.workers and self.own:
            ray.shutdown()
        self.workers = []


class Lockstep(Remote):
    """Every batch is asked for as soon as its parameters exist, of the actors in turn."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.flying: dict[int, Any] = {}

    def act(self, step: int) -> Batch:
        if self.past is not None:
            self.past.record(step, self.flat)
        for ahead in range(step, min(self.steps, step + 2 * len(self.workers))):
            if ahead not in self.flying and ahead - min(self.ages(ahead)) <= step:
                self.flying[ahead] = self._ask(ahead)
        try:
            return self.got(ray.get(self.flying.pop(step), timeout=PATIENCE))
        except RayError as error:
            raise ActorsLost(_what_to_do(error)) from None

    def ages(self, step: int) -> list[int]:
        return super().ages(step) if self.past is not None else [0]

    def _ask(self, step: int) -> Any:
        """The batch of a step, on its way."""
        flat = torch.cat([value.reshape(-1) for value in self.parameters(step).values()])
        number = self.schedule[step][0] if self.schedule else step
        worker = self.workers[number % len(self.workers)]
        return worker.make.remote(number, step - max(self.ages(step)), flat.numpy())


class Asynchronous(Remote):
    """The learner takes the next batch that is there, whatever its age, and publishes its parameters. While it learns
    from one, the next is on its way: neither to publish nor to fetch makes it wait."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.expected = list(range(self.settings.count))
        """The number of the next batch of each actor that the learner has not had."""
        self.exchange: Any = None
        self.coming: Any = None
        """The next batch, asked for."""
        self.published: dict[int, float] = {}
        """When each version was published, of those that an actor may still hold."""
        self.held = dict.fromkeys(self.expected, 0)
        """The version of each actor's last batch: it goes on with that one, or with a newer one."""
        self.log: dict[str, list[Any]] = {"schedule": [], "age_s": []}
        self.total = dict.fromkeys(("learner_idle", "actor_busy", "actor_idle", "queued", "wall"), 0.0)
        self.restarts = self.before = 0
        """How often actors had to begin anew; and of these, before the run was resumed."""

    def start(self) -> None:
        super().start()
        self.exchange = ray.remote(Exchange).options(num_cpus=0).remote(self.settings.queue, list(self.expected))
        self.loops = [worker.run.remote(self.exchange) for worker in self.workers]
        self.coming = self.exchange.get.remote()
        self.begun = time.perf_counter()

    def act(self, step: int) -> Batch:
        try:
            self.exchange.publish.remote(step, [ray.put(self.flat.numpy())])
            self.published[step] = begun = time.perf_counter()
            message, queued, restarts = self._next()
        except RayError as error:
            raise ActorsLost(_what_to_do(error)) from None
        now = time.perf_counter()
        assert message.number == self.expected[message.actor], "batches of an actor come in their order"
        self.expected[message.actor] += self.settings.count
        self.log["schedule"].append([message.number, message.version])
        self.log["age_s"].append(round(now - self.published[message.version], 6))
        spent = {"learner_idle": now - begun, "actor_busy": message.busy, "actor_idle": message.idle, "queued": queued}
        for name, value in (spent | {"wall": now - self.begun}).items():
            self.total[name] += value
        self.restarts, self.begun = self.before + restarts, now
        self.held[message.actor] = message.version
        oldest = min(self.held.values())
        self.published = {version: when for version, when in self.published.items() if version >= oldest}
        return self.got(message)

    def _next(self) -> tuple[Message, int, int]:
        """The next batch; an actor that failed is an error, and so is none for long."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ready, _ = ray.wait([self.coming, *self.loops], timeout=POLL)
            if self.coming in ready:
                batch, self.coming = ray.get(self.coming), self.exchange.get.remote()
                return batch
            for loop in ready:
                ray.get(loop)  # raises what it failed with
        raise ActorsLost(_what_to_do(f"no batch for {PATIENCE:.0f} s"))

    def news(self) -> dict[str, Any]:
        """Since the last time: number and version of each batch, their ages in seconds. In all: seconds that learner
        and actors waited, that actors worked, that went by; batches that waited, summed; restarts."""
        news = {**self.log, **self.total, "restarts": self.restarts}
        self.log = {name: [] for name in self.log}
        return news

    def state(self, step: int) -> dict[str, Any]:
        counts = {"total": self.total, "restarts": self.restarts}
        return super().state(step) | {"expected": list(self.expected), "log": self.log, **counts}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.expected, self.log, self.total = list(state["expected"]), state["log"], state["total"]
        self.restarts = self.before = state["restarts"]

    def close(self) -> None:
        if self.exchange is not None:
            with suppress(RayError):
                ray.get(self.exchange.close.remote(), timeout=5)
                ray.kill(self.exchange)
            self.exchange = None
        super().close()


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _what_to_do(error: object) -> str:
    return (
        f"the actors cannot be reached ({_first_line(error)}); everything up to the last "
        "checkpoint is kept: the same command goes on from there, on $RAY_ADDRESS if it is set, else on this machine"
    )


KINDS: dict[str, type[Remote]] = {"lockstep": Lockstep, "async": Asynchronous}
