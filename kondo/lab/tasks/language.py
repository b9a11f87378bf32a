"""A pretrained language model that learns, by policy gradient, to answer problems whose answers can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kondo.lab.language.model import LAYERS, available
from kondo.lab.language.problems import PROBLEMS, problems
from kondo.lab.tasks.base import TASKS, Problem
from kondo.schema import knob, register


@dataclass(frozen=True)
class Language(Problem):
    """R = 1{the answer is right}, U = R − mean R of the prompt's answers."""

    model: str = knob("smollm2")
    """smollm2 (135M parameters, from a wheel), tiny (random, for tests), or a directory or hub name."""
    problem: str = knob("chain_sum", choices=PROBLEMS)
    """What is asked."""
    prompts: int = knob(8, low=1)
    """Prompts per step."""
    samples: int = knob(4, low=2)
    """Answers to each: the group; B = prompts · samples."""
    length: int = knob(4, low=1)
    """Tokens of an answer at most, its end included."""
    delight: str = knob("token", choices=("token", "response", "token_scaled", "response_scaled"))
    """What DG weights by: σ of each token's delight, or of the mean over the answer; scaled: surprisal divided by its
    running root mean square, so that a model that is seldom surprised is weighed on the scale of one that is."""
    evaluated: int = knob(64, low=1)
    """Problems that an evaluation looks at."""
    baseline: str = knob("group", choices=("group",))
    """b: the mean reward of the prompt's answers."""

    error: ClassVar[str] = "answer_error"
    default_gate: ClassVar[Mapping[str, Any]] = {"rate": 0.1}
    screens: ClassVar[tuple[str, ...]] = (
        *("exact", "blind", "int8", "snapshot"),
        *("truncated_1", "truncated_2", "truncated_15"),
    )
    quantities: ClassVar[tuple[str, ...]] = ("log_prob", "advantage", "delight", "actor_log_prob", "weight")

    @property
    def batch(self) -> int:
        return self.prompts * self.samples

    @property
    def group(self) -> int:
        return self.samples

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def layers(self) -> int:
        return LAYERS.get(self.model, 1000)  # of another model it is known when it is loaded

    def available(self) -> None:
        available(self.model)
        problems(self.problem, 0, [0])

    def fetch(self, root: Path) -> None:
        self.available()


register(TASKS, "language", Language)
