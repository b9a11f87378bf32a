"""Numbers to log beside a gate's decision: whether it discriminates, and whom it leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

from kondo.gate import per_entry
from kondo.pricing import KondoGateOutput

NEUTRAL = 0.05
"""How far from ½ a gate is off neutral."""


@torch.no_grad()
def diagnostics(
    output: KondoGateOutput,
    log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    groups: Tensor | None = None,
) -> dict[str, float]:
    """What a decision on a batch (B,) or (B, T) looks like; NaN for a mean over nothing. Of this process's rows alone.

    gate_spread, off_neutral: the deviation of σ(χ) over the units, and the share of them with |σ(χ) − ½| > 0.05; a gate
    that has little of both ranks noise. zero_advantage: the share of units without any. {kept, dropped}_{positive,
    negative}: the share of the units whose (mean) advantage has that sign. {kept, dropped}_length: tokens in a row, one
    that is kept where any of its units is. groups: which group each row is of, (B,); then survivors_per_group is how
    many rows of a group are kept on average, and groups_without_survivors the share of groups with none.
    """
    exists = torch.ones_like(log_probs, dtype=torch.bool) if mask is None else mask.bool().expand_as(log_probs)
    signed = torch.where(exists, per_entry(advantages, log_probs), 0.0)
    rows, length = exists.view(len(exists), -1).any(-1), exists.view(len(exists), -1).sum(-1)
    kept_rows = (
        (output.keep & exists if output.keep.dim() == exists.dim() else output.keep).view(len(exists), -1).any(-1)
    )
    zero = (signed == 0) | ~exists
    if output.keep.dim() < exists.dim():  # sequences
        exists, signed, zero = exists.any(-1), signed.sum(-1), zero.all(-1)
    weight = torch.sigmoid(output.delight[exists & output.delight.isfinite()])
    found = {
        "gate_spread": weight.double().std(correction=0),
        "off_neutral": _mean(weight.sub(0.5).abs() > NEUTRAL),
        "zero_advantage": _mean(zero[exists]),
    }
    for name, those in (("positive", exists & (signed > 0)), ("negative", exists & (signed < 0))):
        found |= {f"kept_{name}": _mean(output.keep[those]), f"dropped_{name}": _mean(~output.keep[those])}
    found |= {"kept_length": _mean(length[rows & kept_rows]), "dropped_length": _mean(length[rows & ~kept_rows])}
    if groups is not None:
        which = groups.unique(return_inverse=True)[1]
        survivors = torch.zeros(int(which.max()) + 1 if len(which) else 0, device=which.device, dtype=torch.double)
        survivors.index_add_(0, which, kept_rows.double())
        found |= {"survivors_per_group": _mean(survivors), "groups_without_survivors": _mean(survivors == 0)}
    return {name: float(value) for name, value in found.items()}


def _mean(values: Tensor) -> Tensor:
    return values.double().mean()
