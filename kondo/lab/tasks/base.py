"""What a task is: where contexts come from, what an answer is worth, and how good a policy really is."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from kondo.lab.policies.mlp import Parameters, Policy
from kondo.lab.streams import Streams
from kondo.objectives import QUANTITIES
from kondo.schema import register

T = TypeVar("T", bound="type[Task]")
TASKS: dict[str, type[Any]] = {}
"""What a config's `task` may name: tasks, and studies."""


def task(cls: T) -> T:
    """Register a task, a dataclass of its settings, under its class name in lower case."""
    return register(TASKS, cls.__name__.lower(), cls)


@dataclass
class Contexts:
    """What the actor is asked, and the right answers (for rewards and the oracle; no method looks at them)."""

    inputs: Tensor  # [S, B, …], or one for each group of samples that share it, [S, B/G, …]
    targets: Tensor  # [S, B, …], the shape of the actions


class Problem(abc.ABC):
    """What a method is tried on: a task is trained, a study measured. Its dataclass fields are its settings."""

    error: ClassVar[str | None] = None
    """Which of its metrics is *the* error, the one that figures and claims compare; a study has none."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The capabilities it needs of the cell; kondo/lab/capabilities.py names them."""
    default_gate: ClassVar[Mapping[str, Any]] = {"rate": 0.03}
    """The rate or the price of a gate that is given neither."""
    quantities: ClassVar[tuple[str, ...]] = QUANTITIES
    """What a method can ask about a sample."""
    screens: ClassVar[tuple[str, ...]] = ()
    """By which screens it can be screened, where these are not the engine's."""
    batched: ClassVar[bool] = True
    """Whether it has batches, in which samples can be compared."""
    baseline: str

    @property
    @abc.abstractmethod
    def batch(self) -> int:
        """B: samples per step."""

    @property
    def tokens(self) -> int:
        """Decisions per sample."""
        return 1

    @property
    def group(self) -> int:
        """G: samples that share a context."""
        return 1

    @property
    def layers(self) -> int:
        """Layers of its policy, of which a screen may take the first few; 1 where it cannot be cut short."""
        return 1

    def available(self) -> None:
        """Refuse, as Unavailable, a task whose packages are not installed."""
        return None

    def fetch(self, root: Path) -> None:
        """Get what must be downloaded, before any work starts."""
        return None


class Task(Problem):
    """What the engine asks of a task."""

    def prepare(self, root: Path, device: torch.device | str) -> None:
        """Load what drawing and evaluating need."""
        return None

    @abc.abstractmethod
    def policy(self) -> Policy: ...

    @abc.abstractmethod
    def draw(self, streams: Streams, step: int) -> Contexts: ...

    @abc.abstractmethod
    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        """[S, B]"""

    @abc.abstractmethod
    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """Friction-free metrics of the learner's own policy, the error among them. {name: [S]}"""


class FiniteTask(Task):
    """A task whose contexts are a finite set, each with a number, and whose answer is a single decision."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many contexts there are."""

    @abc.abstractmethod
    def at(self, index: Tensor) -> Contexts:
        """The contexts of some numbers. [S, B] → contexts"""
