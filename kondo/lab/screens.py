"""The screen: the pass that tells how delightful a sample is. It need not be exact.

A screen is a small class that says what log π it sees of the actions (`PolicyScreen`: of a policy that it has); it may
keep old parameters, or learn from the learner.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from kondo.lab.optimizer import Optimizer, OptimizerSettings
from kondo.lab.policies.mlp import Layered, Past, Policy, views
from kondo.lab.rounding import rounded
from kondo.lab.streams import Streams
from kondo.schema import knob, register
from kondo.signals import delight, taken

S = TypeVar("S", bound="type[Screen]")
SCREENS: dict[str, type[Screen]] = {}


def screen(cls: S) -> S:
    """Register a screen under its class name in lower case."""
    return register(SCREENS, cls.__name__.lower(), cls)


@dataclass(frozen=True)
class ScreenSettings:
    source: str = knob("exact", choices=SCREENS)
    """exact: the learner's policy; bf16: in bfloat16; int8: its weights rounded to 8 bits; snapshot: as it was;
    truncated_k: its first k layers and its head; draft: one layer of its own, distilled as the learner learns;
    blind: no pass, by advantage alone."""
    age: int = knob(0, low=0)
    """How many steps old the snapshot is."""
    noise: float = knob(0.0, low=0)
    """σ: the screen sees χ·(1 + σε), ε standard normal."""


class Screen(abc.ABC):
    """Delight as seen by a pass that may be cheaper than the learner's own."""

    passes: ClassVar[bool] = True
    """Whether it is a pass of its own, beside the learner's."""
    aged: ClassVar[bool] = False
    """Whether it has an age."""
    layers: ClassVar[int] = 0
    """How many layers of a deeper policy it has; 0: all of them."""

    def __init__(self, settings: ScreenSettings, policy: Policy, flat: Tensor, streams: Streams) -> None:
        self.settings, self.policy, self.flat, self.streams = settings, policy, flat, streams

    @torch.no_grad()
    def delight(self, log_prob: Tensor, advantage: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        """χ as the screen knows it; log_prob is the exact one. [S, B, …]"""
        chi = delight(self.seen(log_prob, inputs, actions, step), advantage)
        if self.settings.noise:
            chi = chi * (1 + self.settings.noise * self.streams.normal("screen.noise", step, tuple(chi.shape[1:])))
        return chi

    @abc.abstractmethod
    def seen(self, log_prob: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        """log π of the actions as the screen knows it; log_prob is the exact one. [S, B, …]"""

    def observe(self, log_policy: Tensor, inputs: Tensor, actions: Tensor, step: int) -> None:
        """Called once a step, before the learner's update, with what the learner says of its batch."""
        return None

    def state(self, step: int) -> dict[str, Any]:
        """What must be kept to go on after `step` steps."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        return None


class PolicyScreen(Screen):
    """A screen that is a pass of some policy."""

    def seen(self, log_prob: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        return taken(self.log_policy(inputs, actions, step), actions)

    @abc.abstractmethod
    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        """log π as the screen knows it. [S, B, …, K]"""


@screen
class Exact(Screen):
    """The learner's policy."""

    passes: ClassVar[bool] = False

    def seen(self, log_prob: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        return log_prob


@screen
class Blind(Screen):
    """No screen at all: every action counts as equally surprising, and delight ranks as the advantage does. What a
    screen must beat."""

    passes: ClassVar[bool] = False

    def seen(self, log_prob: Tensor, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        return torch.full_like(log_prob, -1.0)


@screen
class Bf16(PolicyScreen):
    """The learner's policy, computed in bfloat16."""

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        parameters = {name: value.bfloat16() for name, value in views(self.flat, self.policy.shapes()).items()}
        inputs = inputs.bfloat16() if inputs.is_floating_point() else inputs
        return self.policy.log_policy(parameters, inputs, actions).float()


@screen
class Int8(PolicyScreen):
    """The learner's policy, its weights rounded to 8 bits."""

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        parameters = {name: rounded(value, "int8") for name, value in views(self.flat, self.policy.shapes()).items()}
        return self.policy.log_policy(parameters, inputs, actions)


@screen
class Snapshot(PolicyScreen):
    """The learner's policy as it was some steps ago."""

    aged: ClassVar[bool] = True

    def __init__(self, settings: ScreenSettings, policy: Policy, flat: Tensor, streams: Streams) -> None:
        super().__init__(settings, policy, flat, streams)
        self.past = Past(flat, settings.age)

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        age = min(step, self.settings.age)
        flat = self.past.of(step - age) if age else self.flat
        return self.policy.log_policy(views(flat, self.policy.shapes()), inputs, actions)

    def observe(self, log_policy: Tensor, inputs: Tensor, actions: Tensor, step: int) -> None:
        self.past.record(step, self.flat)

    def state(self, step: int) -> dict[str, Any]:
        return {"past": self.past.state(step)}

    def load(self, state: dict[str, Any]) -> None:
        self.past.load(state["past"])


class Truncated(PolicyScreen):
    """The learner's first layers and its head."""

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        assert isinstance(self.policy, Layered)
        parameters = views(self.flat, self.policy.shapes())
        return self.policy.truncated(self.layers).log_policy(parameters, inputs, actions)


@screen
class Truncated_1(Truncated):
    """The learner's first layer and its head."""

    layers: ClassVar[int] = 1


@screen
class Truncated_2(Truncated):
    """The learner's first two layers and its head."""

    layers: ClassVar[int] = 2


@screen
class Truncated_15(Truncated):
    """The learner's first fifteen layers and its head: half of SmolLM2."""

    layers: ClassVar[int] = 15


@screen
class Draft(PolicyScreen):
    """A small policy q of its own that follows the learner's: each step goes down E_π[−log q], least where q = π."""

    layers: ClassVar[int] = 1

    def __init__(self, settings: ScreenSettings, policy: Policy, flat: Tensor, streams: Streams) -> None:
        super().__init__(settings, policy, flat, streams)
        assert isinstance(policy, Layered)
        self.draft = policy.truncated(self.layers)
        self.own = self.draft.init(streams)  # flat, as the learner's
        shapes = self.draft.shapes()
        self.leaves = {name: view.detach().requires_grad_() for name, view in views(self.own, shapes).items()}
        self.optimizer = Optimizer(OptimizerSettings("adam", 1e-3), self.own, shapes)
        self.all_seeds = torch.ones(len(streams.seeds), dtype=torch.bool, device=flat.device)

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        return self.draft.log_policy(self.leaves, inputs, actions).detach()

    @torch.enable_grad()
    def observe(self, log_policy: Tensor, inputs: Tensor, actions: Tensor, step: int) -> None:
        """One step down E_π[−log q], on a batch."""
        seen = self.draft.log_policy(self.leaves, inputs, actions)
        cross_entropy = -(log_policy.detach().exp() * seen).sum(dim=-1)  # [S, B, …]
        total = cross_entropy.flatten(1).mean(dim=1).sum()
        self.optimizer.step(torch.autograd.grad(total, list(self.leaves.values())), self.all_seeds)

    def state(self, step: int) -> dict[str, Any]:
        return {"draft": {"flat": self.own, "optimizer": self.optimizer.state()}}

    def load(self, state: dict[str, Any]) -> None:
        self.own.copy_(state["draft"]["flat"])
        self.optimizer.load(state["draft"]["optimizer"])
