"""The engine trains one cell for a block of seeds at once and tells how each is doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kondo.gate import KondoGate
from kondo.lab.actor import Actor, parse_schedule
from kondo.lab.config.cell import Cell
from kondo.lab.learner import Learner
from kondo.lab.ledger import Ledger
from kondo.lab.optimizer import Optimizer
from kondo.lab.probes import PROBES
from kondo.lab.remote import available
from kondo.lab.screens import SCREENS
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import Task
from kondo.objectives import METHODS


def eval_steps(steps: int, evals: int) -> list[int]:
    """Steps after which to evaluate: 0, then about `evals` of them, evenly spaced on a log axis, up to the last."""
    ratio = steps ** (1 / evals)
    return sorted({0, steps} | {round(ratio**i) for i in range(1, evals)})


def actor_of(cell: Cell, streams: Streams, flat: Tensor, data: Path | str) -> Actor:
    """The actor of a cell: here, or a stand-in for those elsewhere."""
    if cell.actor.mode == "inline":
        assert isinstance(cell.task, Task)
        schedule = parse_schedule(cell.actor.schedule)
        return Actor(cell.task, cell.frictions, streams, flat, schedule, cell.actor.pace)
    available(cell.actor.mode)
    from kondo.lab.remote.actors import KINDS  # needs Ray

    return KINDS[cell.actor.mode](cell, streams, flat, str(Path(data).absolute()))


class Mean:
    """The mean of what was added since it was cleared, by seed; NaN where nothing was."""

    def __init__(self, seeds: int, device: torch.device | str) -> None:
        self.total = torch.zeros(seeds, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, values: Tensor) -> None:
        self.total += values
        self.count += 1

    def clear(self) -> None:
        self.total.zero_()
        self.count = 0

    def value(self) -> Tensor:
        """[S]"""
        return self.total / self.count if self.count else torch.full_like(self.total, torch.nan)

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        self.total.copy_(state["total"])
        self.count = state["count"]


class Engine:
    """State of a run between two steps. Every tensor has a leading seed axis; no seed feels which others are there."""

    def __init__(
        self, cell: Cell, seeds: list[int], device: torch.device | str = "cpu", data: Path | str = "data"
    ) -> None:
        self.cell, self.seeds, self.step = cell, list(seeds), 0
        self.streams = Streams(self.seeds, device)
        assert isinstance(cell.task, Task)
        self.task = cell.task
        self.due = frozenset(eval_steps(cell.steps, cell.evals))
        self.training = Mean(len(self.seeds), device)
        self.task.prepare(Path(data), device)
        policy = self.task.policy()
        flat = policy.init(self.streams)
        self.ledger = Ledger(len(self.seeds), device)
        self.actor = actor_of(cell, self.streams, flat, data)
        self.learner = Learner(
            flat=flat,
            policy=policy,
            objective=METHODS[cell.method],
            options=cell.options,
            baseline=self.task.baseline,
            optimizer=Optimizer(cell.optimizer, flat, policy.shapes()),
            gate=None if cell.gate is None else KondoGate(cell.gate),
            screen=SCREENS[cell.screen.source](cell.screen, policy, flat, self.streams),
            streams=self.streams,
            ledger=self.ledger,
        )
        if cell.gate is None and self.actor.exact and policy.graph:
            self.actor.leaves = self.learner.leaves

    def advance(self) -> None:
        """One step: the actor samples a batch, the learner learns from it, once or in several epochs."""
        if self.step in self.due:
            self.training.clear()
        self.actor.open()
        with self.ledger.phase("rollout"):
            batch = self.actor.act(self.step)
        self.training.add(1 - batch.earned.mean(dim=1))
        self.ledger.add(forward=self.task.batch)
        for _ in range(self.cell.optimizer.epochs):
            self.learner.update(batch, self.step)
            batch = batch.again()
        self.step += 1

    @torch.no_grad()
    def evaluate(self) -> list[dict[str, Any]]:
        """One row per seed, ready for the log. A seed that diverged has no metrics but its costs."""
        metrics = self.task.evaluate(self.learner.leaves, self.streams, self.step)
        metrics["train_error"] = self.training.value()
        if self.cell.frictions:
            metrics["friction_error"] = 1 - self.actor.trial(self.step)
        if self.cell.gate is not None:
            metrics["price"] = self.learner.price
        columns = {name: column.tolist() for name, column in metrics.items()}
        columns |= PROBES[self.cell.probe.name](self, self.cell.probe)
        news = {name: number(value) for name, value in self.actor.news().items()}
        costs = {name: column.tolist() for name, column in self.ledger.totals().items()}
        rows = []
        for i, (seed, diverged) in enumerate(zip(self.seeds, self.learner.diverged.tolist(), strict=True)):
            row: dict[str, Any] = {"step": self.step, "seed": seed}
            row |= {name: number(column[i]) if diverged < 0 else None for name, column in columns.items()}
            row |= {name: number(column[i]) for name, column in costs.items()} | news
            rows.append(row | ({"diverged": diverged} if diverged >= 0 else {}))
        return rows

    def diverged(self) -> dict[int, int]:
        """{seed: step at which it diverged}"""
        return {seed: step for seed, step in zip(self.seeds, self.learner.diverged.tolist(), strict=True) if step >= 0}

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here, bit for bit. Randomness has no state."""
        return {
            "step": self.step,
            "actor": self.actor.state(self.step),
            "learner": self.learner.state(self.step),
            "ledger": self.ledger.state(),
            "training": self.training.state(),
        }

    def close(self) -> None:
        self.actor.close()

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.actor.load(state["actor"])
        self.learner.load(state["learner"])
        self.ledger.load(state["ledger"])
        self.training.load(state["training"])


def number(value: Any) -> Any:
    """Nine digits, which tell any two 32-bit floats apart; JSON has no infinity and no NaN. Lists are left alone."""
    if isinstance(value, list):
        return value
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return int(value) if value == int(value) else float(f"{value:.9g}")
