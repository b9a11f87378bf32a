"""The screen: the pass that tells how delightful a sample is. It need not be exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kondo.policies import Past, Policy, views
from kondo.schema import knob
from kondo.signals import delight, taken
from kondo.streams import Streams


@dataclass(frozen=True)
class ScreenSettings:
    source: str = knob("exact", choices=("exact", "bf16", "int8", "snapshot"))
    """exact: the learner's policy; bf16: in bfloat16; int8: its weights rounded to 8 bits; snapshot: as it was."""
    age: int = knob(0, low=0)
    """How many steps old the snapshot is."""
    noise: float = knob(0.0, low=0)
    """σ: the screen sees χ·(1 + σε), ε standard normal."""


class Screen:
    """Delight as seen by a pass that may be cheaper than the learner's own."""

    def __init__(self, settings: ScreenSettings, policy: Policy, flat: Tensor, streams: Streams) -> None:
        self.settings, self.policy, self.flat, self.streams = settings, policy, flat, streams
        self.past = Past(flat, policy.shapes(), settings.age) if settings.source == "snapshot" else None

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
        shapes = self.policy.shapes()
        if self.past is not None:
            parameters = self.past.visit(step, self.flat)
        elif self.settings.source == "int8":
            parameters = {name: int8(value) for name, value in views(self.flat, shapes).items()}
        else:
            parameters = {name: value.bfloat16() for name, value in views(self.flat, shapes).items()}
            inputs = inputs.bfloat16() if inputs.is_floating_point() else inputs
        return self.policy.log_policy(parameters, inputs, actions).float()

    def state(self, step: int) -> dict[str, Any]:
        return {} if self.past is None else {"past": self.past.state(step)}

    def load(self, state: dict[str, Any]) -> None:
        if self.past is not None:
            self.past.load(state["past"])


def int8(value: Tensor) -> Tensor:
    """Rounded to 255 levels, symmetric about 0, with one scale per seed. [S, …]"""
    scale = value.abs().flatten(1).amax(dim=1).clamp(min=1e-12).view(-1, *[1] * (value.dim() - 1)) / 127
    return (value / scale).round() * scale
