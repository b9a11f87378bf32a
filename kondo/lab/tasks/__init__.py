"""Tasks: where contexts come from, what an answer is worth, and how good a policy really is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from kondo.lab.policies.mlp import Parameters, Policy
from kondo.lab.streams import Streams
from kondo.schema import register

T = TypeVar("T")
TASKS: dict[str, type[Any]] = {}


def task(cls: type[T]) -> type[T]:
    """Register a task, a dataclass of its settings, under its class name in lower case."""
    register(TASKS, cls.__name__.lower(), cls)
    return cls


@dataclass
class Contexts:
    """What the actor is asked, and the right answers (for rewards and the oracle; no method looks at them)."""

    inputs: Tensor  # [S, B, …], or one for each group of samples that share it, [S, B/G, …]
    targets: Tensor  # [S, B, …], the shape of the actions


class Task(Protocol):
    """What the engine asks of a task. Its dataclass fields are its settings in the config."""

    error: ClassVar[str | None]
    """Which of its metrics is *the* error, the one that figures and claims compare; a study has none."""
    baseline: str

    @property
    def batch(self) -> int:
        """B: samples per step."""
        ...

    @property
    def tokens(self) -> int:
        """Decisions per sample."""
        ...

    def fetch(self, root: Path) -> None:
        """Get what must be downloaded, before any work starts."""
        ...

    def prepare(self, root: Path, device: torch.device | str) -> None:
        """Load what drawing and evaluating need."""
        ...

    def policy(self) -> Policy: ...

    def draw(self, streams: Streams, step: int) -> Contexts: ...

    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        """[S, B]"""
        ...

    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """Friction-free metrics of the learner's own policy, the error among them. {name: [S]}"""
        ...


from kondo.lab import studies  # noqa: E402, F401  registers its own
from kondo.lab.tasks import bandit, mnist, reversal  # noqa: E402, F401  register themselves
