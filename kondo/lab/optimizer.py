"""Optimizers over seed-stacked parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kondo.lab.policies.mlp import Shapes, views
from kondo.schema import knob


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam, or plain gradient descent."""

    name: str = knob("adam", choices=("adam", "sgd"))
    lr: float = knob(1e-3, above=0)
    epochs: int = knob(1, low=1)
    """Updates per batch, each on all of it."""
    idle: str | None = knob(None, choices=("skip", "step"), later=True)
    """What a seed does with a batch that gives it no gradient. skip: nothing; step: an update with a gradient of zero,
    as code does that masks instead of skipping: Adam's moments decay. None: with a gate skip, else step."""


class Optimizer:
    """Updates the seeds that are active, and leaves the others as they are: parameters, moments and step count."""

    def __init__(self, settings: OptimizerSettings, flat: Tensor, shapes: Shapes) -> None:
        self.settings = settings
        self.parameters = list(views(flat, shapes).values())
        self.moments = [torch.zeros_like(flat) for _ in range(2 if settings.name == "adam" else 0)]
        self.moment_views = [list(views(moment, shapes).values()) for moment in self.moments]
        self.steps = torch.zeros(len(self.parameters[0]), device=flat.device)
        """Updates made, by seed. [S]"""
        self.lockstep = True
        """Every seed has made the same number of updates: all of them can be updated at once."""

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Tensor) -> None:
        """Down the gradients, each [S, …]; active: [S] bool."""
        self.lockstep = self.lockstep and bool(active.all())
        if self.lockstep:
            self.steps += 1
            self._descend(self.parameters, gradients, self.moment_views, self.steps[0])
        else:
            self.steps += active
            for seed in active.nonzero().flatten().tolist():
                moments = [[view[seed] for view in moment] for moment in self.moment_views]
                own = [parameter[seed] for parameter in self.parameters]
                self._descend(own, [gradient[seed] for gradient in gradients], moments, self.steps[seed])

    def _descend(
        self, parameters: list[Tensor], gradients: Sequence[Tensor], moments: list[list[Tensor]], count: Tensor
    ) -> None:
        """One update by torch's fused kernels; `count` is its number."""
        if self.settings.name == "sgd":
            torch._foreach_add_(parameters, list(gradients), alpha=-self.settings.lr)
            return
        mean, square = moments
        torch._fused_adam_(
            parameters, list(gradients), mean, square, [], [count] * len(parameters), amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.settings.lr, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"moments": self.moments, "steps": self.steps, "lockstep": self.lockstep}

    def load(self, state: dict[str, Any]) -> None:
        for moment, saved in zip(self.moments, state["moments"], strict=True):
            moment.copy_(saved)
        self.steps.copy_(state["steps"])
        self.lockstep = state["lockstep"]
