"""Frictions: what stands between a clean simulator and a distributed learner.

A friction is a small dataclass of its settings that overrides some of four moments, each a no-op by default. Several
may act at once, in the order in which they are registered here. What a friction changes about the task itself is
applied to the task before a cell is named and saved (`replaces`), so that a record shows the task that was trained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from kondo.lab.policies.mlp import Parameters, Policy
from kondo.lab.rounding import PRECISIONS, rounded
from kondo.lab.streams import Streams
from kondo.schema import ConfigError, knob, register

if TYPE_CHECKING:
    from kondo.lab.actor import Batch

F = TypeVar("F", bound="type[Friction]")
P = TypeVar("P", bound="Policy")
FRICTIONS: dict[str, type[Friction]] = {}


def friction(cls: F) -> F:
    """Register a friction under its class name in snake case."""
    register(FRICTIONS, re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(), cls)
    return cls


@dataclass(frozen=True)
class Friction:
    """No friction: what every friction does unless it says otherwise."""

    replaces: ClassVar[tuple[str, ...]] = ()
    """Settings that take the place of the task's own of the same name; None leaves the task as it is."""

    def idle(self) -> bool:
        """Whether it does nothing with these settings; then it is no part of a cell."""
        return False

    rounds: ClassVar[bool] = False
    """Whether the actor's policy is another than the learner's at the same parameters."""

    def longest_delay(self) -> int:
        """How many learner steps old the actor's parameters may be."""
        return 0

    def on_policy(self, policy: P, parameters: Parameters) -> tuple[P, Parameters]:
        """What the actor computes with."""
        return policy, parameters

    def age(self, streams: Streams, step: int) -> Tensor:
        """How old they are in this step, by seed. [S]"""
        return torch.zeros(len(streams.seeds), dtype=torch.long, device=streams.device)

    def on_actions(self, batch: Batch, streams: Streams, step: int) -> Batch:
        """The batch with other actions, before they are rewarded."""
        return batch

    def on_rewards(self, batch: Batch, streams: Streams, step: int) -> Batch:
        """The batch with other rewards."""
        return batch


@friction
@dataclass(frozen=True)
class RareDiscovery(Friction):
    """Reward is found almost never by chance: many arms of which one pays; on sequences, all or nothing."""

    arms: int | None = knob(None, low=2)
    """Number of arms, for tasks that have arms."""
    kappa: float | None = knob(None, low=0, high=1)
    """κ: share of the reward that partly right answers earn, for tasks that have it."""
    prob: float = knob(0.0, low=0, high=1)
    """q: how often the actor stumbles on the right answer. It reports its own policy's probability for it."""

    replaces: ClassVar[tuple[str, ...]] = ("arms", "kappa")

    def idle(self) -> bool:
        return self.prob == 0

    def on_actions(self, batch: Batch, streams: Streams, step: int) -> Batch:
        lucky = streams.uniform("stumble", step, batch.rows) < self.prob
        return batch.with_actions(lucky, batch.contexts.targets)


@friction
@dataclass(frozen=True)
class Staleness(Friction):
    """The actor samples with parameters of D learner steps ago."""

    delay: int = knob(100, low=0)
    """D"""
    delay_mode: str = knob("fixed", choices=("fixed", "uniform"))
    """fixed: always D old; uniform: an age drawn from 0..D in each step."""

    def idle(self) -> bool:
        return self.delay == 0

    def longest_delay(self) -> int:
        return self.delay

    def age(self, streams: Streams, step: int) -> Tensor:
        if self.delay_mode == "uniform":
            return streams.below(self.delay + 1, "age", step)
        return super().age(streams, step) + self.delay


@friction
@dataclass(frozen=True)
class Mismatch(Friction):
    """The actor computes in a lower precision than the learner, and reports the probabilities that it computed."""

    precision: str | None = knob("int8", choices=PRECISIONS)
    """bf16; int8, int4: that many bits, with a scale per parameter, or per distribution of logits; None: exact."""
    of: str = knob("weights", choices=("weights", "logits"))
    """What is rounded."""

    rounds: ClassVar[bool] = True

    def idle(self) -> bool:
        return self.precision is None

    def on_policy(self, policy: P, parameters: Parameters) -> tuple[P, Parameters]:
        if self.precision is None:
            return policy, parameters
        if self.of == "logits":
            return replace(policy, precision=self.precision), parameters  # type: ignore[type-var]
        return policy, {name: rounded(value, self.precision) for name, value in parameters.items()}


@friction
@dataclass(frozen=True)
class ActorBugs(Friction):
    """An actor's bug replaces the actions by junk (action 0, every token), and the actor is sure of it: it reports
    probability 1 for each."""

    prob: float = knob(0.1, low=0, high=1)
    """q: how often."""
    penalty: float = knob(0.0, low=0)
    """Taken off the reward of junk, which otherwise earns whatever it happens to deserve."""

    def idle(self) -> bool:
        return self.prob == 0

    def on_actions(self, batch: Batch, streams: Streams, step: int) -> Batch:
        junk = self._junk(batch, streams, step)
        return batch.with_actions(junk, torch.zeros_like(batch.actions), log_prob=0.0)

    def on_rewards(self, batch: Batch, streams: Streams, step: int) -> Batch:
        return replace(batch, rewards=batch.rewards - self.penalty * self._junk(batch, streams, step).float())

    def _junk(self, batch: Batch, streams: Streams, step: int) -> Tensor:
        return streams.uniform("bug", step, batch.rows) < self.prob


@friction
@dataclass(frozen=True)
class RewardCorruption(Friction):
    """The learner sees another reward than the one that was earned."""

    mode: str = knob("coin", choices=("coin", "gaussian"))
    """coin: a fair coin in {0, 1} instead of the reward; gaussian: noise on top of it."""
    prob: float = knob(0.1, low=0, high=1)
    """q: how often."""
    std: float = knob(1.0, low=0)
    """σ of the Gaussian noise."""

    def __post_init__(self) -> None:
        if self.mode == "coin" and self.std != 1.0:
            raise ConfigError(f"friction.reward_corruption.std={self.std}: a coin has none; mode=gaussian")

    def idle(self) -> bool:
        return self.prob == 0 or (self.mode == "gaussian" and self.std == 0)

    def on_rewards(self, batch: Batch, streams: Streams, step: int) -> Batch:
        corrupt = streams.uniform("corrupt", step, batch.rows) < self.prob
        if self.mode == "coin":
            seen = (streams.uniform("coin", step, batch.rows) < 0.5).float()
        else:
            seen = batch.rewards + self.std * streams.normal("noise", step, batch.rows)
        return replace(batch, rewards=torch.where(corrupt, seen, batch.rewards))
