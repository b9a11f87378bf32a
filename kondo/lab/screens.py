"""The screen: the pass that tells how delightful a sample is. It need not be exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kondo.lab.optimizer import Optimizer, OptimizerSettings
from kondo.lab.policies.mlp import Past, Policy, views
from kondo.lab.streams import Streams
from kondo.schema import knob
from kondo.signals import delight, taken


@dataclass(frozen=True)
class ScreenSettings:
    source: str = knob("exact", choices=("exact", "bf16", "int8", "snapshot", "truncated_1", "truncated_2", "draft"))
    """exact: the learner's policy; bf16: in bfloat16; int8: its weights rounded to 8 bits; snapshot: as it was;
    truncated_k: its first k layers and its head; draft: one layer of its own, distilled as the learner learns."""
    age: int = knob(0, low=0)
    """How many steps old the snapshot is."""
    noise: float = knob(0.0, low=0)
    """σ: the screen sees χ·(1 + σε), ε standard normal."""

    @property
    def layers(self) -> int:
        """How many layers of a deeper policy the screen has; 0: all of them."""
        return {"truncated_1": 1, "truncated_2": 2, "draft": 1}.get(self.source, 0)


class Screen:
    """Delight as seen by a pass that may be cheaper than the learner's own."""

    def __init__(self, settings: ScreenSettings, policy: Policy, flat: Tensor, streams: Streams) -> None:
        self.settings, self.policy, self.flat, self.streams = settings, policy, flat, streams
        self.past = Past(flat, policy.shapes(), settings.age) if settings.source == "snapshot" else None
        self.cheaper: Any = replace(policy, layers=settings.layers) if settings.layers else policy  # type: ignore[type-var]
        self.draft = Draft(self.cheaper, streams) if settings.source == "draft" else None

    @property
    def exact(self) -> bool:
        return self.settings.source == "exact"

    @torch.no_grad()
    def delight(self, log_prob: Tensor, advantage: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        """χ as the screen knows it; log_prob is the exact one. [S, B, …]"""
        if not self.exact:
            log_prob = taken(self.log_policy(inputs, actions, step), actions)
        chi = delight(log_prob, advantage)
        if self.settings.noise:
            chi = chi * (1 + self.settings.noise * self.streams.normal("screen.noise", step, tuple(chi.shape[1:])))
        return chi

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        """log π as the screen knows it. [S, B, …, K]"""
        shapes = self.policy.shapes()
        if self.draft is not None:
            return self.draft.log_policy(inputs, actions).detach()
        if self.past is not None:
            age = min(step, self.settings.age)
            parameters = views(self.past.ring[(step - age) % len(self.past.ring)] if age else self.flat, shapes)
        elif self.settings.layers:
            parameters = views(self.flat, shapes)
        elif self.settings.source == "int8":
            parameters = {name: int8(value) for name, value in views(self.flat, shapes).items()}
        else:
            parameters = {name: value.bfloat16() for name, value in views(self.flat, shapes).items()}
            inputs = inputs.bfloat16() if inputs.is_floating_point() else inputs
        return self.cheaper.log_policy(parameters, inputs, actions).float()

    def remember(self, step: int) -> None:
        """A snapshot keeps the parameters of a step until they are old enough; other screens have no memory."""
        if self.past is not None:
            self.past.visit(step, self.flat)

    def learn(self, log_policy: Tensor, inputs: Tensor, actions: Tensor) -> None:
        """A draft takes one step towards what the learner says of a batch; other screens have nothing to learn."""
        if self.draft is not None:
            self.draft.distil(log_policy.detach(), inputs, actions)

    def state(self, step: int) -> dict[str, Any]:
        past = {} if self.past is None else {"past": self.past.state(step)}
        return past if self.draft is None else past | {"draft": self.draft.state()}

    def load(self, state: dict[str, Any]) -> None:
        if self.past is not None:
            self.past.load(state["past"])
        if self.draft is not None:
            self.draft.load(state["draft"])


class Draft:
    """A small policy q that follows the learner's: each step goes down E_π[−log q], which is least where q = π."""

    def __init__(self, policy: Policy, streams: Streams) -> None:
        self.policy, self.flat = policy, policy.init(streams)
        self.leaves = {name: view.detach().requires_grad_() for name, view in views(self.flat, policy.shapes()).items()}
        self.optimizer = Optimizer(OptimizerSettings("adam", 1e-3), self.flat, policy.shapes())
        self.all_seeds = torch.ones(len(streams.seeds), dtype=torch.bool, device=self.flat.device)

    def log_policy(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return self.policy.log_policy(self.leaves, inputs, actions)

    @torch.enable_grad()
    def distil(self, log_policy: Tensor, inputs: Tensor, actions: Tensor) -> None:
        """One step down E_π[−log q], on a batch."""
        cross_entropy = -(log_policy.exp() * self.log_policy(inputs, actions)).sum(dim=-1)  # [S, B, …]
        total = cross_entropy.flatten(1).mean(dim=1).sum()
        self.optimizer.step(torch.autograd.grad(total, list(self.leaves.values())), self.all_seeds)

    def state(self) -> dict[str, Any]:
        return {"flat": self.flat, "optimizer": self.optimizer.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.flat.copy_(state["flat"])
        self.optimizer.load(state["optimizer"])


def int8(value: Tensor) -> Tensor:
    """Rounded to 255 levels, symmetric about 0, with one scale per seed. [S, …]"""
    scale = value.abs().flatten(1).amax(dim=1).clamp(min=1e-12).view(-1, *[1] * (value.dim() - 1)) / 127
    return (value / scale).round() * scale
