"""The spread of what a gate has seen, which puts its prices and temperatures on the scale of the model that it gates.

The surprisal of a tuned language model is a few hundredths on average, so that σ(χ) is ½ almost everywhere; advantages
of unit variance saturate it the other way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NOISE = 1e-6
"""A variance below this share of the mean square is rounding, and no spread."""


def moments(
    values: Tensor,
    counted: Tensor,
    before: Tensor | None,
    decay: float,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """m ← βm + (1 − β)·(mean of x, mean of x²) over what is counted; the first batch's own. [pools, n] → [pools, 2]

    before: m so far; NaN: nothing was counted yet. total: sums up what the processes of a group have counted.
    """
    x = torch.where(counted, values, 0.0).double()
    sums = torch.stack([counted.double().sum(-1), x.sum(-1), x.square().sum(-1)], dim=-1)
    sums = sums if total is None else total(sums)
    count, own = sums[..., :1], sums[..., 1:] / sums[..., :1]
    if before is None:
        return own
    if before.shape != own.shape:
        raise ValueError(f"the gate's moments are of {tuple(before.shape[:-1])} pools, not {tuple(own.shape[:-1])}.")
    before = before.to(own)
    return torch.where(count == 0, before, torch.where(before.isnan(), own, decay * before + (1 - decay) * own))


def root_mean_square(moments: Tensor) -> Tensor:
    """s = √m₂; 1 where that is zero or unknown. [pools, 2] → [pools, 1]"""
    square = moments[..., 1:]
    return torch.where(square > 0, square, 1.0).sqrt()


def deviation(moments: Tensor) -> Tensor:
    """s = √(m₂ − m₁²); 1 where that is zero or unknown. [pools, 2] → [pools, 1]"""
    first, second = moments[..., :1], moments[..., 1:]
    variance = second - first.square()
    return torch.where(variance > NOISE * second, variance, 1.0).sqrt()


def surprisal_moments(
    log_probs: Tensor,
    mask: Tensor | None,
    before: Tensor | None,
    decay: float,
    pools: int,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Of the surprisals ℓ = −log π that exist and are finite. [pools, …] → [pools, 2]"""
    known = log_probs.isfinite()
    known = known if mask is None else known & mask.bool().expand_as(known)
    flat = (*log_probs.shape[:pools], -1)
    return moments(-log_probs.reshape(flat), known.reshape(flat), before, decay, total)


def divided(values: Tensor, spread: Tensor, pools: int) -> Tensor:
    """Each pool's values by its own spread. [pools, …], [pools, 1] → [pools, …]"""
    return values / spread.to(values).reshape(*values.shape[:pools], *(1 for _ in values.shape[pools:]))
