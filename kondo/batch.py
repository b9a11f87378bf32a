"""A batch of decisions, checked before anything is computed of it, and what the gate decides on it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from kondo.pricing import KondoGateOutput


@dataclass
class Batch:
    """What a model read and what it chose: the arguments of `KondoTrainer.step`."""

    input_ids: Tensor  # [B, T], or [B, …] for models with one decision per row
    actions: Tensor  # [B, T] or [B]
    advantages: Tensor  # [B] or [B, T]
    attention_mask: Tensor | None = None  # [B, T]
    action_mask: Tensor | None = None  # [B, T]
    log_probs: Tensor | None = None  # the shape of actions

    @property
    def decided(self) -> Tensor | None:
        """1 where the model decided; None: everywhere."""
        if self.actions.dim() == 1:
            return None
        return self.attention_mask if self.action_mask is None else self.action_mask

    def checked(self) -> Batch:
        """The same batch, or an error that says what was given and what is expected. An action where there is no
        decision may be any number below 0, such as −100, and is read as 0."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in given.items():
            if not isinstance(value, Tensor) and (value is not None or name in ("input_ids", "actions", "advantages")):
                raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}.")
        self._check_shapes()
        self._check_values()
        if self.actions.is_floating_point() or self.actions.dtype == torch.bool:
            raise TypeError(f"actions: expected whole numbers, tokens that were chosen; got {self.actions.dtype}.")
        decided = torch.ones_like(self.actions, dtype=torch.bool) if self.decided is None else self.decided.bool()
        negative = self.actions < 0
        if (negative & decided).any():
            raise ValueError(
                f"actions: {int(self.actions[negative & decided][0])} where the model decided; expected tokens >= 0. "
                "Where it did not, action_mask must be 0."
            )
        real = decided if self.attention_mask is None or self.actions.dim() == 1 else self.attention_mask.bool()
        if (decided & ~real).any():
            raise ValueError("action_mask: 1 where attention_mask is 0; a decision needs a token that it follows.")
        return replace(self, actions=self.actions.clamp(min=0).long(), advantages=self.advantages.detach())

    def has_holes(self) -> bool:
        """Whether there is padding between the tokens of a row."""
        mask = self.attention_mask
        if mask is None or mask.dim() != 2 or mask.shape[1] < 2:
            return False
        return bool(((mask[:, 1:] != mask[:, :-1]).sum(-1) + (mask[:, 0] != 0) + (mask[:, -1] != 0) > 2).any())

    def _check_values(self) -> None:
        """Masks are 0 or 1, tokens are whole numbers, and no probability is above one."""
        for name in ("attention_mask", "action_mask"):
            mask = getattr(self, name)
            if mask is not None and ((mask != 0) & (mask != 1)).any():
                raise ValueError(f"{name}: expected 0 or 1, got {mask[(mask != 0) & (mask != 1)][0].item():g}.")
        if self.actions.dim() == 2 and self.input_ids.dim() == 2 and self.input_ids.is_floating_point():
            raise TypeError(f"input_ids: expected whole numbers, tokens; got {self.input_ids.dtype}.")
        if self.log_probs is not None and (self.log_probs > 1e-3).any():
            raise ValueError(
                f"log_probs: {self.log_probs.max().item():g} is the logarithm of no probability; expected log π <= 0."
            )

    def _check_shapes(self) -> None:
        """Every tensor has the shape that the actions ask for."""
        shape = tuple(self.actions.shape)
        if len(shape) not in (1, 2):
            raise ValueError(f"actions {shape}: expected (B, T), or (B,) for one decision per row.")
        first = tuple(self.input_ids.shape[: len(shape)])
        if first != shape:
            raise ValueError(f"input_ids {tuple(self.input_ids.shape)}: expected {_said(shape)} as actions have.")
        for name, allowed in (
            ("advantages", {shape, shape[:1]}),
            ("attention_mask", {shape if len(shape) == 2 else tuple(self.input_ids.shape[:2])}),
            ("action_mask", {shape}),
            ("log_probs", {shape}),
        ):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) not in allowed:
                expected = " or ".join(map(str, sorted(allowed, key=len)))
                raise ValueError(f"{name} {tuple(value.shape)}: expected {expected}; actions are {shape}.")


@dataclass
class Decision:
    """A batch and what the gate decided on it."""

    batch: Batch
    output: KondoGateOutput
    weights: Tensor  # the shape of actions: 0 where nothing is trained
    size: int  # how many decisions the batch has, in all processes: what a loss is divided by
    kept: int  # how many of them are trained, in all processes
    nonfinite: int  # units of this process whose numbers are not finite, which are never kept

    @property
    def keep(self) -> Tensor:
        """The rows that are worth a backward pass. [B]"""
        return self.weights != 0 if self.weights.dim() == 1 else (self.weights != 0).any(-1)


def remarks(decision: Decision, alone: bool) -> list[str]:
    """What makes a batch teach other than it seems to. alone: no other process has a part of it."""
    said = []
    if not decision.size and alone:
        said.append(f"empty: a batch of {len(decision.weights)} rows without a decision teaches nothing.")
    if decision.nonfinite:
        of = "tokens" if decision.output.gate_weights.dim() > 1 else "rows"
        said.append(
            f"nonfinite: {decision.nonfinite} {of} have log-probabilities or advantages that are NaN or infinite, "
            "and are left out."
        )
    if decision.batch.has_holes():
        said.append(
            "attention_mask: padding between the tokens of a row, whose positions then count it; generation does "
            "not. Move rows together for the log-probabilities that generation had."
        )
    return said


def _said(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{'' if len(shape) == 2 else ', …'})"
