"""What the processes of a data-parallel run must agree on, by `torch.distributed`.

Every function here is a collective: each process of the group calls it, however little it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def gathered(parts: Sequence[Tensor], group: ProcessGroup) -> tuple[list[Tensor], slice]:
    """Tensors [..., n] of one shape, joined along the last axis in order of rank, and where one's own part is.

    The processes may have different n, 0 among them.
    """
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    own = torch.stack([part.double() for part in parts])  # [parts, ..., n]
    sizes = [torch.zeros(1, dtype=torch.long, device=own.device) for _ in range(world)]
    distributed.all_gather(sizes, torch.tensor([own.shape[-1]], device=own.device), group=group)
    counts = [int(size) for size in sizes]
    padded = own.new_zeros(*own.shape[:-1], max(counts))
    padded[..., : own.shape[-1]] = own
    everyone = [torch.empty_like(padded) for _ in range(world)]
    distributed.all_gather(everyone, padded, group=group)
    joined = torch.cat([part[..., :count] for part, count in zip(everyone, counts, strict=True)], dim=-1)
    start = sum(counts[:rank])
    whole = [tensor.to(part.dtype) for tensor, part in zip(joined, parts, strict=True)]
    return whole, slice(start, start + counts[rank])


def summed(value: Tensor, group: ProcessGroup | None) -> Tensor:
    """Σ over the group; alone, the value itself."""
    if group is not None:
        value = value.clone()
        distributed.all_reduce(value, group=group)
    return value


def sum_gradients(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Add up the gradients of the group, in place. A process without a gradient contributes none and receives the sum,
    so that one that kept nothing neither blocks the others nor falls behind them."""
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        return
    has = torch.tensor([p.grad is not None for p in trained], dtype=torch.float32, device=trained[0].device)
    distributed.all_reduce(has, group=group)
    moved = [p for p, count in zip(trained, has.tolist(), strict=True) if count]
    if not moved:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in moved])
    distributed.all_reduce(flat, group=group)
    for p, gradient in zip(moved, flat.split([p.numel() for p in moved]), strict=True):
        p.grad = gradient.view_as(p)
