"""The softmax bandit: in each context one of K arms pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kondo.lab.baselines import BASELINES
from kondo.lab.policies.mlp import MLP, Parameters
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import Contexts, FiniteTask, task
from kondo.schema import knob


@task
@dataclass(frozen=True)
class Bandit(FiniteTask):
    """R = 1{a = y*}. In context c the right arm is c + 1 (mod K), so that arm 0, which a bug pulls, is seldom right."""

    arms: int = knob(10, low=2)
    """K"""
    contexts: int = knob(1, low=1)
    """How many contexts there are; each sample is in one of them at random."""
    hidden: tuple[int, ...] = knob((), low=1)
    """Widths of the hidden layers; none makes the policy a table of logits."""
    batch: int = knob(100, low=1)
    """B: samples per step."""
    baseline: str = knob("confidence", choices=BASELINES)
    """b"""

    error: ClassVar[str] = "policy_error"

    def policy(self) -> MLP:
        return MLP((self.contexts, *self.hidden, self.arms))

    @property
    def size(self) -> int:
        return self.contexts

    def draw(self, streams: Streams, step: int) -> Contexts:
        return self.at(streams.below(self.contexts, "context", step, (self.batch,)))

    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        return (actions == contexts.targets).float()

    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """Over all contexts, exactly: policy_error = 1 − π(y*); the same of the greedy policy; the entropy."""
        every = self.at(torch.arange(self.contexts, device=streams.device).expand(len(streams.seeds), -1))
        log_policy = self.policy().log_policy(parameters, every.inputs)  # [S, C, K]
        wrong = log_policy.exp().scatter(-1, every.targets.unsqueeze(-1), 0.0)  # summed, not 1 − π(y*): exact near 0
        greedy = log_policy.argmax(dim=-1) == every.targets
        return {
            "policy_error": wrong.sum(dim=-1).mean(dim=1),
            "greedy_error": 1 - greedy.float().mean(dim=1),
            "entropy": -(log_policy.exp() * log_policy).sum(dim=-1).mean(dim=1),
        }

    def at(self, index: Tensor) -> Contexts:
        return Contexts(inputs=one_hot(index, self.contexts).float(), targets=(index + 1) % self.arms)
