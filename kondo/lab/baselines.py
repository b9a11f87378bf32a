"""Baselines b of the advantage U = R − b. None of them carries a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import overload

import torch
from torch import Tensor

from kondo.lab.capabilities import declare
from kondo.schema import register
from kondo.signals import expected_confidence_baseline, taken

Baseline = Callable[..., Tensor]
BASELINES: dict[str, Baseline] = {}


@overload
def baseline(function: Baseline) -> Baseline: ...
@overload
def baseline(*, needs: Iterable[str]) -> Callable[[Baseline], Baseline]: ...
def baseline(function: Baseline | None = None, *, needs: Iterable[str] = ()) -> object:
    """Register `(log_policy [S, B, K], rewards [S, B], targets [S, B], group) → b [S, B]` under the function's name.

    group: how many samples, next to each other, share a context. needs: capabilities of the cell.
    """
    if function is None:
        return lambda function: baseline(declare(function, needs))
    return register(BASELINES, function.__name__, function)


@baseline
def confidence(log_policy: Tensor, rewards: Tensor, targets: Tensor, group: int = 1) -> Tensor:
    """b = Σ_a π(a)²: the learner's expected confidence. It needs no label."""
    return expected_confidence_baseline(log_policy.detach().exp())


@baseline
def zero(log_policy: Tensor, rewards: Tensor, targets: Tensor, group: int = 1) -> Tensor:
    """b = 0"""
    return torch.zeros_like(rewards)


@baseline
def half(log_policy: Tensor, rewards: Tensor, targets: Tensor, group: int = 1) -> Tensor:
    """b = ½"""
    return torch.full_like(rewards, 0.5)


@baseline
def oracle(log_policy: Tensor, rewards: Tensor, targets: Tensor, group: int = 1) -> Tensor:
    """b = π(y*): the expected reward itself. It sees the label."""
    return taken(log_policy.detach(), targets).exp()


@baseline(needs=("group",))
def group(log_policy: Tensor, rewards: Tensor, targets: Tensor, group: int = 1) -> Tensor:
    """b = mean reward of the samples that share the context; where they are all equal, exactly their reward"""
    each = rewards.unflatten(1, (-1, group))
    mean = torch.where(each.amax(dim=-1) == each.amin(dim=-1), each[..., 0], each.mean(dim=-1))
    return mean.repeat_interleave(group, dim=1)
