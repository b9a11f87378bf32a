"""What a study is: a dataclass of settings whose `measure` gives columns, an entry per seed, a list where a setting has
several values. It measures the cell's method through the method's own objective and gate; the seeds are the replicates
of its simulation, and the closed forms are the same for all of them.

Everywhere arm 0 is the right one, R = 1{a = 0}, and the parameters are the logits, so that ∇log π(a) = e_a − π.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from kondo.gate import PRIORITIES, GateSettings, KondoGate
from kondo.lab.baselines import BASELINES
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import TASKS, Problem
from kondo.objectives import METHODS, QUANTITIES, needs
from kondo.schema import knob, register

S = TypeVar("S", bound="type[Study]")
Columns = dict[str, list[Any]]


def study(cls: S) -> S:
    """Register a study, which a config names as its task, under its class name in snake case."""
    return register(TASKS, re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(), cls)


@dataclass(frozen=True)
class Rule:
    """A method as what it does with one sample: Σ G c ∇log π, with probability `keep` that G = 1."""

    method: str
    options: Mapping[str, Any]
    gate: GateSettings | None

    @torch.no_grad()
    def __call__(
        self, log_prob: Tensor, advantage: Tensor, actor_log_prob: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """keep and c of each sample: c = −∂loss/∂log π. [..., n] each, priced by itself"""
        keep, weight = torch.ones_like(log_prob), torch.ones_like(log_prob)
        if self.gate is not None:
            decision = KondoGate(self.gate).compute_gate(log_prob, advantage, pools=log_prob.dim() - 1)
            if self.gate.mode == "soft":
                weight = decision.gate_weights
            else:
                keep = decision.gate_weights if self.gate.mode == "hard" else decision.gate_probs
        quantities = {
            "advantage": advantage,
            "delight": -advantage * log_prob,
            "actor_log_prob": log_prob if actor_log_prob is None else actor_log_prob,
            "weight": weight,
        }
        with torch.enable_grad():
            quantities["log_prob"] = leaf = log_prob.clone().requires_grad_()
            objective = METHODS[self.method]
            loss = objective(*(quantities[name] for name in needs(objective)), **self.options)
            (slope,) = torch.autograd.grad(loss.sum(), leaf)
        return keep, -slope

    def rank(self, advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor]) -> Tensor:
        """The gate's priority."""
        assert self.gate is not None
        return PRIORITIES[self.gate.priority](advantage, surprisal, noise, self.gate.alpha)


@dataclass(frozen=True)
class Study(Problem):
    """What every study has. It asks what a method does with one sample of one policy."""

    batch: int = knob(100, low=1)
    """B: samples of a simulation."""
    baseline: str = knob("confidence", choices=BASELINES)
    """b"""

    default_gate: ClassVar[Mapping[str, Any]] = {"price": 0.0}
    batched: ClassVar[bool] = False
    quantities: ClassVar[tuple[str, ...]] = tuple(name for name in QUANTITIES if name != "target_log_prob")

    @abc.abstractmethod
    def measure(self, rule: Rule, streams: Streams) -> Columns:
        """{column: one value per seed}"""

    def advantage(self, policy: Tensor) -> Tensor:
        """U = R − b of every arm. [..., K] → [..., K]"""
        reward = torch.zeros_like(policy)
        reward[..., 0] = 1
        right = torch.zeros(policy.shape[:-1], dtype=torch.long)
        return reward - BASELINES[self.baseline](policy.log(), reward[..., 0], right).unsqueeze(-1)


def policies(probs: tuple[float, ...] | Tensor, arms: int, skew: float = 0.0) -> Tensor:
    """π(0) = p, and the wrong arms equal; skewed, their logits are evenly spaced over ±skew. [P, K]"""
    right = torch.as_tensor(probs, dtype=torch.float64).unsqueeze(-1)
    wrong = torch.softmax(torch.linspace(skew, -skew, arms - 1, dtype=torch.float64), dim=0)
    return torch.cat([right, (1 - right) * wrong], dim=-1)


def generators(streams: Streams, name: str) -> list[np.random.Generator]:
    """A generator per seed, for what is not drawn number by number: it depends on (seed, name) alone."""
    return [np.random.default_rng(int(bits) & (1 << 63) - 1) for bits in streams.bits(name, 0, 1, 1)[0, :, 0]]


def same(value: Any, streams: Streams) -> list[Any]:
    """A closed form: one value for all seeds."""
    plain = value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value
    return [plain] * len(streams.seeds)
