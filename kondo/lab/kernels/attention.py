"""Attention of the nodes of a tree to those on their paths. Reference: torch's, with a row per sequence.

Letters in shapes: S seeds, N nodes, n of them that ask, L places, h heads of e numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kondo.lab.kernels.vectors import accumulate, product

LANES = 16  # 32-bit floats in the widest vector register; torch's softmax is slow on rows that do not fill theirs


def attend(qkv: Tensor, first: int, path: Tensor, depth: Tensor) -> Tensor:
    """What n nodes, from number `first` on, find on their paths. [S, N, 3, h, e], [S, n, L], [n] → [S, n, h, e]

    Queries are already scaled; of its path a node sees the first `depth` nodes, of which it is the last.
    """
    return _Attend.apply(qkv, first, path, depth)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, first: int, path: Tensor, depth: Tensor) -> Tensor:
        (seeds, nodes, _), (heads, size) = path.shape, qkv.shape[3:]
        scores, mix = forward_kernels(size)
        arrays = qkv.detach().numpy(), first, path.numpy(), depth.numpy()
        room = math.ceil(int(depth[-1]) / LANES) * LANES
        share = qkv.new_full((seeds, nodes, heads, room), -torch.inf)
        scores(share.numpy(), *arrays)
        share = share.softmax(dim=-1)
        found = qkv.new_zeros(seeds, nodes, heads, size)
        mix(share.numpy(), found.numpy(), *arrays)
        ctx.save_for_backward(qkv, share, path, depth)
        ctx.first = first
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, share, path, depth = ctx.saved_tensors
        to_qkv = torch.zeros_like(qkv)
        arrays = (x.detach().numpy() for x in (share, gradients[0].contiguous(), to_qkv, qkv))
        backward_kernel(qkv.shape[-1])(*arrays, ctx.first, path.numpy(), depth.numpy())
        return to_qkv, None, None, None


def signature(*arrays: int) -> Any:
    """Of a kernel: contiguous 32-bit arrays with so many axes, then first, path and depth."""
    from numba import types

    floats = [types.Array(types.float32, axes, "C") for axes in arrays]
    return types.void(*floats, types.int64, types.int64[:, :, ::1], types.int64[::1])


@functools.cache
def forward_kernels(size: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Scores, and what is found with shares made of them, for heads of `size` numbers, compiled for this machine."""
    from numba import njit

    dot, add = product(size), accumulate(size)

    @njit(signature(4, 5), error_model="numpy")
    def scores(score, qkv, first, path, depth):  # type: ignore[no-untyped-def]
        """score[s, i, h, j] = query[s, first + i, h] · key[s, path[s, i, j], h]"""
        for s in range(path.shape[0]):
            for i in range(path.shape[1]):
                query = qkv[s, first + i, 0]
                for j in range(depth[i]):
                    key = qkv[s, path[s, i, j], 1]
                    for h in range(score.shape[2]):
                        score[s, i, h, j] = dot(query[h], key[h])

    @njit(signature(4, 4, 5), error_model="numpy")
    def mix(share, found, qkv, first, path, depth):  # type: ignore[no-untyped-def]
        """found[s, i, h] += Σ_j share[s, i, h, j] · value[s, path[s, i, j], h]"""
        for s in range(path.shape[0]):
            for i in range(path.shape[1]):
                for j in range(depth[i]):
                    value = qkv[s, path[s, i, j], 2]
                    for h in range(share.shape[2]):
                        add(share[s, i, h, j], value[h], found[s, i, h])

    return scores, mix


@functools.cache
def backward_kernel(size: int) -> Callable[..., None]:
    """Adds to to_qkv the gradient with respect to qkv, given that with respect to what was found."""
    from numba import njit

    dot, add = product(size), accumulate(size)

    @njit(signature(4, 4, 5, 5), error_model="numpy")
    def backward(share, gradient, to_qkv, qkv, first, path, depth):  # type: ignore[no-untyped-def]
        heads = share.shape[2]
        score = np.empty((heads, share.shape[3]), np.float32)
        for s in range(path.shape[0]):
            for i in range(path.shape[1]):
                up = gradient[s, i]
                for j in range(depth[i]):  # ∂share = up · value
                    value = qkv[s, path[s, i, j], 2]
                    for h in range(heads):
                        score[h, j] = dot(up[h], value[h])
                for h in range(heads):  # ∂score = share · (∂share − Σ share · ∂share)
                    mean = np.float32(0)
                    for j in range(depth[i]):
                        mean += share[s, i, h, j] * score[h, j]
                    for j in range(depth[i]):
                        score[h, j] = share[s, i, h, j] * (score[h, j] - mean)
                query, to_query = qkv[s, first + i, 0], to_qkv[s, first + i, 0]
                for j in range(depth[i]):
                    node = path[s, i, j]
                    key, to_key, to_value = qkv[s, node, 1], to_qkv[s, node, 1], to_qkv[s, node, 2]
                    for h in range(heads):
                        add(score[h, j], key[h], to_query[h])
                        add(score[h, j], query[h], to_key[h])
                        add(share[s, i, h, j], up[h], to_value[h])

    return backward
