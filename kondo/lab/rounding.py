"""Numbers as a cheaper machine would hold them: what an actor or a screen computes with."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = {"int8": 127, "int4": 7}
"""Levels on either side of 0, symmetric about it."""
PRECISIONS = ("bf16", *LEVELS)


def rounded(value: Tensor, precision: str, axes: int = 1) -> Tensor:
    """The nearest numbers that the precision has; for integers with one scale for each place on the first axes, such
    that the largest is exact."""
    if precision == "bf16":
        return value.bfloat16().to(value.dtype)
    scale = value.abs().flatten(axes).amax(dim=-1).clamp(min=1e-12) / LEVELS[precision]
    scale = scale.view(*scale.shape, *[1] * (value.dim() - axes))
    return (value / scale).round() * scale


def log_softmax(logits: Tensor, precision: str | None = None) -> Tensor:
    """log π, of rounded logits where a precision is given: each distribution then has its own scale. [..., K]"""
    if precision is not None:
        logits = rounded(logits, precision, logits.dim() - 1)
    return logits - torch.logsumexp(logits, dim=-1, keepdim=True)
