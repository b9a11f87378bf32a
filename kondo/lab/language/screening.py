"""Screens of a language model: log π of sampled tokens as a cheaper model, or an older one, knows it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from kondo import packing
from kondo.integrations.transformers import Rollout, truncated
from kondo.lab.rounding import rounded
from kondo.lab.screens import SCREENS, ScreenSettings


class LanguageScreen:
    """What `screen.source` says of answers that the model itself has sampled.

    exact: what the sampler said; blind: every token equally surprising; int8: the weights rounded, a scale per row of a
    matrix; truncated_k: the first k layers and the head; snapshot: the weights of `age` steps ago.
    """

    def __init__(self, settings: ScreenSettings, model: nn.Module) -> None:
        self.settings, self.model = settings, model
        self.past: list[list[Tensor]] = []
        """Weights of the last steps, the oldest first."""
        layers = SCREENS[settings.source].layers
        self.passes = SCREENS[settings.source].passes
        self.own = truncated(model, layers) if layers else copy.deepcopy(model) if self.passes else model

    @torch.no_grad()
    def log_probs(self, batch: Rollout) -> Tensor:
        """log π of each token as the screen knows it. [B, T]"""
        assert batch.log_probs is not None
        if self.settings.source == "blind":
            return torch.full_like(batch.log_probs, -1.0)
        if not self.passes or (SCREENS[self.settings.source].aged and not self.past):
            return batch.log_probs
        self._refresh()
        inputs = batch.input_ids, batch.actions, batch.attention_mask
        return packing.log_probs(self.own, *inputs, None, batch.action_mask)

    def observe(self) -> None:
        """Called once a step, before the weights change."""
        if self.settings.age:
            self.past.append([weight.detach().clone() for weight in self.model.parameters()])
            del self.past[: -self.settings.age]

    def _refresh(self) -> None:
        """Bring the screen's own weights to where they should be; those of a truncated model are the model's."""
        if self.settings.source == "int8":
            weights = [rounded(each, "int8") if each.dim() > 1 else each for each in self.model.parameters()]
        elif self.past:
            weights = self.past[0]
        else:
            return
        for own, weight in zip(self.own.parameters(), weights, strict=True):
            own.copy_(weight)

    def state(self) -> dict[str, Any]:
        return {"past": self.past}

    def load(self, state: dict[str, Any]) -> None:
        self.past = list(state["past"])
