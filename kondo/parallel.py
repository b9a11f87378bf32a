"""What the processes of a data-parallel run must agree on, by `torch.distributed`.

Every function here that takes a group is a collective: each process of the group calls it, however little it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

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


def highest(count: int, group: ProcessGroup | None, device: torch.device) -> int:
    """The highest count of the group; alone, the count itself."""
    if group is None:
        return count
    value = torch.tensor(count, device=device)
    distributed.all_reduce(value, distributed.ReduceOp.MAX, group=group)
    return int(value)


def sum_gradients(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Add up the gradients of the group, in place. A process without a gradient contributes none and receives the sum,
    so that one that kept nothing neither blocks the others nor falls behind them. Sharded parameters are left alone:
    their gradients come out of the backward pass reduced."""
    trained = [p for p in parameters if p.requires_grad and not is_sharded(p)]
    if not trained:
        return
    has = torch.tensor([p.grad is not None for p in trained], dtype=torch.float32, device=trained[0].device)
    distributed.all_reduce(has, group=group)
    moved = [p for p, count in zip(trained, has.tolist(), strict=True) if count]
    for _, alike in groupby(sorted(moved, key=_kind), key=_kind):  # one flat tensor has one type
        some = list(alike)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in some])
        distributed.all_reduce(flat, group=group)
        for p, gradient in zip(some, flat.split([p.numel() for p in some]), strict=True):
            p.grad = gradient.view_as(p)


def check_equal(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Refuse processes that do not begin with the same weights: equal steps would keep them apart."""
    own = [p.detach() for p in parameters if not is_sharded(p)]
    if not own:
        return
    seen = torch.zeros(3, 1, dtype=torch.float64, device=own[0].device)  # how many, their sums, their sizes
    for i, p in enumerate(own, start=1):
        size = torch.linalg.vector_norm(p, 1, dtype=torch.float64)
        seen[:, 0] += torch.stack([torch.ones_like(size), i * p.sum(dtype=torch.float64), i * size]).to(seen.device)
    (everyone,), _ = gathered([seen], group)
    if not torch.allclose(everyone, everyone[:, :1].expand_as(everyone), rtol=1e-9, atol=0, equal_nan=True):
        raise ValueError(
            "group: its processes do not begin with the same weights, and equal steps would keep them apart; "
            "load one checkpoint in all of them, or seed them alike before the model is made."
        )


def clip(parameters: Sequence[nn.Parameter], most: float) -> float:
    """Scale the gradients down to a norm of at most this, over all parameters and shards; the norm that they had."""
    total = 0.0
    for part in ([p for p in parameters if is_sharded(p)], [p for p in parameters if not is_sharded(p)]):
        norm: Any = nn.utils.clip_grad_norm_(part, torch.inf)
        total += (norm.full_tensor() if is_sharded(norm) else norm).item() ** 2
    norm = total**0.5
    for p in parameters:
        if p.grad is not None and norm > most:
            p.grad.mul_(most / norm)
    return norm


def unwrapped(model: nn.Module, group: ProcessGroup | None) -> nn.Module:
    """The model that a wrapper holds; refuses what would let processes drift apart, or wait for each other."""
    distributed_already = isinstance(model, DistributedDataParallel) or sharded(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError("model: FullyShardedDataParallel is not supported; use torch.distributed.fsdp.fully_shard.")
    if distributed_already and group is None:
        raise ValueError(
            f"group: {type(model).__name__} belongs to several processes, which must agree on what to keep and add up "
            "their gradients; give group=torch.distributed.group.WORLD."
        )
    if any(is_sharded(p) for p in model.parameters()) and not sharded(model) and group is not None:
        raise ValueError("model: its parameters are DTensors, but not of fully_shard, which alone is supported.")
    return model.module if isinstance(model, DistributedDataParallel) else model


def sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` has split the model, so that each pass of it is a pass of all processes."""
    return any(kind.__name__ == "FSDPModule" for module in model.modules() for kind in type(module).__mro__)


def is_sharded(x: Tensor) -> bool:
    """Whether a tensor is one process's part of a larger one (DTensor)."""
    return hasattr(x, "full_tensor")


def _kind(parameter: nn.Parameter) -> Any:
    return str(parameter.dtype), str(parameter.device)
