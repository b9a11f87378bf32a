"""The actor: parameters, possibly old ones, and a task make a batch.

Randomness has no state, so that a batch is decided by its number and by the parameters it is sampled with, wherever
that is done: here, or in another process (kondo/lab/remote).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kondo.lab.frictions import Friction
from kondo.lab.policies.mlp import Parameters, Past, Policy, views
from kondo.lab.streams import Streams
from kondo.lab.tasks import Contexts, Task
from kondo.schema import ConfigError
from kondo.signals import taken

MISCOMPUTED = ("bf16", "int8", "junk")
"""Faults of an actor elsewhere that are in the numbers of its batches; others are in when these come."""


@dataclass(frozen=True)
class Batch:
    """What the actor hands to the learner."""

    contexts: Contexts
    actions: Tensor  # [S, B, …]
    earned: Tensor  # [S, B]: what the actions are worth to the task
    rewards: Tensor  # [S, B]: what the learner is told they were worth
    actor_log_prob: Tensor  # [S, B, …]: log μ(a|h) as the actor reports it
    log_policy: Tensor | None  # [S, B, …, K]: the sampler's own, while it is exactly the learner's at these actions;
    # with its graph where the actor sampled with the learner's leaves
    policy: Policy
    parameters: Parameters
    epoch: int = 0  # how often the learner has learned from it

    @property
    def rows(self) -> tuple[int]:
        """The shape of one number per sample, less the seed axis."""
        return (self.actions.shape[1],)

    @property
    def group(self) -> int:
        """G: how many samples, next to each other, share an input."""
        return self.actions.shape[1] // self.contexts.inputs.shape[1]

    def again(self) -> Batch:
        """The batch for another update: the learner has moved on, and must look up its probabilities anew."""
        return replace(self, log_policy=None, epoch=self.epoch + 1)

    def with_actions(self, where: Tensor, actions: Tensor, log_prob: float | None = None) -> Batch:
        """Other actions in some rows, [S, B] bool: the learner must look up its probabilities anew.

        log_prob: what the actor reports for each of their decisions; if not given, it looks up its own.
        """
        where = where.view(*where.shape, *[1] * (self.actions.dim() - 2))
        changed = torch.where(where, actions, self.actions)
        if log_prob is None:
            said = taken(self.policy.log_policy(self.parameters, self.contexts.inputs, changed), changed)
        else:
            said = torch.full_like(self.actor_log_prob, log_prob)
        reported = torch.where(where, said, self.actor_log_prob)
        return replace(self, actions=changed, actor_log_prob=reported, log_policy=None)


TRIALS = 5
"""Batches that tell what the learner would earn through frictions."""


Schedule = Sequence[tuple[int, int]]
"""For each learner step, the number of its batch and the version of the parameters that sampled it: the step before
which they were the learner's."""


def parse_schedule(text: str) -> list[tuple[int, int]]:
    """ "0:0 2:0 1:1" → [(0, 0), (2, 0), (1, 1)]"""
    try:
        found = [(int(number), int(version)) for number, version in (pair.split(":") for pair in text.split())]
    except ValueError:
        raise ConfigError("actor.schedule: expected number:version for each step, as in 0:0 2:0 1:1") from None
    if any(number < 0 or not 0 <= version <= step for step, (number, version) in enumerate(found)):
        raise ConfigError("actor.schedule: the batch of step t has a version from 0 to t")
    if len({number for number, _ in found}) < len(found):
        raise ConfigError("actor.schedule: a batch is there twice")
    return found


def logged_schedule(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The schedule that an asynchronous run logged: that of its first seed, which is that of all."""
    return [(number, version) for row in rows if row["seed"] == rows[0]["seed"] for number, version in row["schedule"]]


def schedule_text(schedule: Schedule) -> str:
    """[(0, 0), (2, 0), (1, 1)] → 0:0 2:0 1:1"""
    return " ".join(f"{number}:{version}" for number, version in schedule)


class Actor:
    """Samples a batch per step with the learner's parameters as they are, or were.

    schedule: which batch each step learns from and how old its parameters are, in the place of frictions' ages.
    pace: how many times as long as it computes it takes for a batch.
    """

    def __init__(
        self,
        task: Task,
        frictions: Sequence[Friction],
        streams: Streams,
        flat: Tensor,
        schedule: Schedule = (),
        pace: float = 1.0,
    ) -> None:
        self.task, self.frictions, self.streams, self.flat = task, frictions, streams, flat
        self.policy, self.schedule, self.pace = task.policy(), schedule, pace
        delay = sum(friction.longest_delay() for friction in frictions)
        if schedule:
            delay = max(1, max(step - version for step, (_, version) in enumerate(schedule)))
        self.past = Past(flat, delay) if delay else None
        self.exact = self.past is None and not any(friction.rounds for friction in frictions)
        """Whether it samples from the learner's present policy."""
        self.leaves: Parameters | None = None
        """The learner's, if its update can go through the sampler's own forward pass: on-policy, and with no gate."""

    def act(self, step: int) -> Batch:
        """Sample the batch of a step, and remember the present parameters where that may be needed later."""
        begun = time.perf_counter()
        if self.past is not None:
            self.past.record(step, self.flat)
        batch = self.batch(step)
        if self.pace > 1:
            time.sleep((self.pace - 1) * (time.perf_counter() - begun))
        return batch

    @torch.no_grad()
    def batch(self, step: int) -> Batch:
        """What the present parameters, or older ones, make of a step."""
        if self.leaves is not None:
            with torch.enable_grad():
                return self.finished(self.sampled(self.policy, self.leaves, step), step)
        return self.made(self.schedule[step][0] if self.schedule else step, self.parameters(step))

    @torch.no_grad()
    def made(self, number: int, parameters: Parameters) -> Batch:
        """The batch of that number, sampled with these parameters."""
        return self.finished(self.sampled(*self.computes(parameters), number), number)

    def finished(self, batch: Batch, number: int) -> Batch:
        """The batch with its rewards as the learner is told them."""
        batch = self.rewarded(batch, number)
        for friction in self.frictions:
            batch = friction.on_rewards(batch, self.streams, number)
        return batch

    @torch.no_grad()
    def trial(self, step: int) -> Tensor:
        """What the learner's present parameters would earn in this step and the next few through frictions. [S]"""
        policy, parameters = self.computes(views(self.flat, self.policy.shapes()))
        batches = [self.rewarded(self.sampled(policy, parameters, at), at) for at in range(step, step + TRIALS)]
        return torch.stack([batch.earned.mean(dim=1) for batch in batches]).mean(dim=0)

    def sampled(self, policy: Policy, parameters: Parameters, step: int) -> Batch:
        """The batch of a step, before any friction and any reward."""
        contexts = self.task.draw(self.streams, step)
        actions, log_policy = policy.sample(parameters, contexts.inputs, self.streams, step)
        with torch.no_grad():
            actor_log_prob = taken(log_policy, actions)
        return Batch(
            contexts=contexts,
            actions=actions,
            earned=torch.empty(0),
            rewards=torch.empty(0),
            actor_log_prob=actor_log_prob,
            log_policy=log_policy if self.exact else None,
            policy=policy,
            parameters=parameters,
        )

    def rewarded(self, batch: Batch, step: int) -> Batch:
        """The batch with the actions that frictions leave of its own, and what those are worth."""
        for friction in self.frictions:
            batch = friction.on_actions(batch, self.streams, step)
        earned = self.task.reward(batch.contexts, batch.actions)
        return replace(batch, earned=earned, rewards=earned)

    def computes(self, parameters: Parameters) -> tuple[Policy, Parameters]:
        """What the actor samples with, as precisely as it computes."""
        policy = self.policy
        for friction in self.frictions:
            policy, parameters = friction.on_policy(policy, parameters)
        return policy, parameters

    def parameters(self, step: int) -> Parameters:
        """The parameters to act with: the present ones, or each seed's of some steps ago."""
        shapes = self.policy.shapes()
        if self.past is None:
            return views(self.flat, shapes)
        ages = self.ages(step)
        each = {age: views(self.past.of(step - age) if age else self.flat, shapes) for age in set(ages)}
        if len(each) == 1:
            return each[ages[0]]
        return {name: torch.stack([each[age][name][seed] for seed, age in enumerate(ages)]) for name in shapes}

    def ages(self, step: int) -> list[int]:
        """How old the parameters of a step's batch are, by seed."""
        if self.schedule:
            return [step - self.schedule[step][1]] * len(self.streams.seeds)
        drawn = torch.stack([friction.age(self.streams, step) for friction in self.frictions]).sum(0)
        return drawn.clamp(max=step).tolist()

    def news(self) -> dict[str, Any]:
        """What there is to log of how batches came about, the same for every seed."""
        return {}

    def open(self) -> None:
        """Start what it needs, if it has not."""

    def close(self) -> None:
        """End what it started."""

    def state(self, step: int) -> dict[str, Any]:
        """What must be kept to go on after `step` steps."""
        return {} if self.past is None else {"past": self.past.state(step)}

    def load(self, state: dict[str, Any]) -> None:
        if self.past is not None:
            self.past.load(state["past"])
