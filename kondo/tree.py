"""Token sequences as a tree: sequences that begin alike share what they have in common, computed once.

What a causal transformer makes of a token depends on the tokens before it and on nothing else, so that a beginning is
one node, however many sequences begin with it. A group of answers shares its prompt's nodes, and what a policy has made
up its mind about is one branch, not ten. Letters in shapes: S seeds, B sequences, N nodes, L places, d the width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kondo.rows import vectors

LANES = 16  # 32-bit numbers in the widest vector register; torch's softmax is slow on rows that do not fill theirs


class Tree:
    """Grows by some tokens of every sequence at a time; what it tells of nodes is of those that grew last.

    Nodes are numbered place by place, alike for all seeds: a seed with fewer nodes at a place than another has some
    there that no sequence goes through. Without numba, sequences are kept apart: each has nodes of its own.
    """

    tokens: Tensor  # [S, n]
    path: Tensor  # [S, n, L]: the nodes from the first place to this one, then nothing of meaning
    seen: Tensor  # [n]: how many places of its path a node has come
    at: Tensor  # [S, B, k]: where among the nodes of each place every sequence is
    sizes: list[int]  # nodes at each of these k places

    def __init__(self, vocab: int, length: int, apart: int | None = None) -> None:
        """length: L, how many tokens a sequence will have; apart: the place from which on each has nodes of its own."""
        self.vocab, self.length = vocab, length
        self.apart = length if apart is None else apart
        self.first, self.nodes, self.places = 0, 0, 0
        """Nodes before those that grew last; all nodes; all places."""

    def grow(self, tokens: Tensor) -> None:
        """Tokens of every sequence at the next k places. [S, B, k]"""
        seeds, rows, k = tokens.shape
        ends = self.path[:, -self.sizes[-1] :] if self.places else tokens.new_zeros(seeds, 1, self.length)
        end = self.at[..., -1] if self.places else tokens.new_zeros(seeds, rows)
        shared = branch() if tokens.device.type == "cpu" else None
        if shared is not None:
            arrays = (x.contiguous().numpy() for x in (tokens, end, ends))
            grown = map(torch.from_numpy, shared(*arrays, self.vocab, self.nodes, self.places, self.apart))
            self.at, sizes, self.tokens, self.path = grown
            self.sizes = sizes.tolist()
        else:
            self.at = torch.arange(rows, device=tokens.device).view(1, -1, 1).expand_as(tokens)
            self.sizes = [rows] * k
            self.tokens = tokens.transpose(1, 2).flatten(1)
            self.path = ends.gather(1, end.unsqueeze(-1).expand(-1, -1, self.length)).repeat(1, k, 1)
            new = torch.arange(self.nodes, self.nodes + rows * k, device=tokens.device).view(k, rows)
            self.path[:, :, self.places : self.places + k] = new.T.repeat(k, 1)
        self.first, self.nodes = self.nodes, self.nodes + sum(self.sizes)
        places = (torch.full((size,), self.places + i + 1) for i, size in enumerate(self.sizes))
        self.seen = torch.cat(list(places)).to(tokens.device)
        self.places += k

    def repeat(self, times: int) -> None:
        """Every sequence so often, next to each other."""
        self.at = self.at.repeat_interleave(times, dim=1)


@functools.cache
def branch() -> Callable[..., Any] | None:
    """What `grow` does, compiled for this machine; none without numba."""
    try:
        from numba import int64, njit
    except ImportError:
        return None

    @njit((int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], *[int64] * 4))
    def grow(tokens, end, old_path, vocab, nodes, places, apart):  # type: ignore[no-untyped-def]
        seeds, rows, k = tokens.shape
        at = np.empty_like(tokens)
        sizes = np.zeros(k, np.int64)
        fresh = np.zeros(tokens.shape, np.bool_)  # the sequence is the first at its node
        table = np.empty(max(rows, old_path.shape[1]) * vocab, np.int64)
        for s in range(seeds):
            for place in range(k):
                table[:] = -1
                size = 0
                for b in range(rows):
                    if tokens[s, b, place] < 0 or tokens[s, b, place] >= vocab:
                        raise IndexError("a token that is not in the vocabulary")
                    code = (at[s, b, place - 1] if place else end[s, b]) * vocab + tokens[s, b, place]
                    if table[code] < 0 or places + place >= apart:
                        table[code] = size
                        fresh[s, b, place] = True
                        size += 1
                    at[s, b, place] = table[code]
                sizes[place] = max(sizes[place], size)
        first = np.cumsum(sizes) - sizes
        token = np.zeros((seeds, sizes.sum()), np.int64)
        path = np.zeros((seeds, sizes.sum(), old_path.shape[2]), np.int64)
        for s in range(seeds):
            for b in range(rows):
                for place in range(k):
                    if fresh[s, b, place]:
                        node = first[place] + at[s, b, place]
                        token[s, node] = tokens[s, b, place]
                        for i in range(places):
                            path[s, node, i] = old_path[s, end[s, b], i]
                        for i in range(place + 1):
                            path[s, node, places + i] = nodes + first[i] + at[s, b, i]
        return at, sizes, token, path

    return grow


def attend(qkv: Tensor, heads: int, first: int, path: Tensor, seen: Tensor) -> Tensor:
    """What n nodes, numbered from `first`, find on their paths. [S, N, 3·d], [S, n, L], [n] → [S, n, d]

    seen: how many places of its path a node has come; queries are already scaled."""
    kernels = compiled(qkv.shape[-1] // (3 * heads)) if qkv.device.type == "cpu" and qkv.dtype == torch.float32 else ()
    if kernels:
        return _Attend.apply(qkv, heads, first, path, seen)
    (seeds, nodes, length), width = path.shape, qkv.shape[-1] // 3
    query, key, value = qkv.split(width, dim=-1)
    seed = torch.arange(seeds, device=path.device).view(-1, 1, 1)
    query = query[:, first : first + nodes].view(seeds, nodes, 1, heads, -1)
    key, value = (x[seed, path].view(seeds, nodes, length, heads, -1) for x in (key, value))
    ahead = torch.arange(length, device=path.device) >= seen.unsqueeze(-1)  # [n, L]
    score = (query * key).sum(-1).masked_fill(ahead.unsqueeze(-1), -torch.inf)  # [S, n, L, h]
    return (score.softmax(dim=2).unsqueeze(-1) * value).sum(2).flatten(2)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, first: int, path: Tensor, seen: Tensor) -> Tensor:
        dot, mix, _ = compiled(qkv.shape[-1] // (3 * heads))
        (seeds, nodes, _), width = path.shape, qkv.shape[-1] // 3
        memory, ways = qkv.detach().numpy(), (first, path.numpy(), seen.numpy())
        room = math.ceil(int(seen[-1]) / LANES) * LANES
        share = qkv.new_full((seeds, nodes, heads, room), -torch.inf)
        dot(share.numpy(), memory, *ways)
        share = share.softmax(dim=-1)
        found = qkv.new_zeros(seeds, nodes, width)
        mix(share.numpy(), found.numpy(), memory, *ways)
        ctx.save_for_backward(qkv, share, path, seen)
        ctx.first = first
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        qkv, share, path, seen = ctx.saved_tensors
        _, _, back = compiled(qkv.shape[-1] // (3 * share.shape[2]))
        moved, gradient = torch.zeros_like(qkv), gradients[0].contiguous()
        arrays = (x.detach().numpy() for x in (share, gradient, moved, qkv))
        back(*arrays, ctx.first, path.numpy(), seen.numpy())
        return moved, None, None, None, None


@functools.cache
def compiled(size: int) -> tuple[Callable[..., None], ...]:
    """Sums over paths, with heads of `size` numbers, compiled for this machine; none without numba.

    What is done to one head of one node is spelled out for LLVM, which else takes ten times as long.
    """
    try:
        from llvmlite import ir
        from numba import njit, types
        from numba.core import cgutils
        from numba.extending import intrinsic
    except ImportError:
        return ()

    parts, add = vectors(size)

    @intrinsic
    def product(typing, x, y):  # type: ignore[no-untyped-def]
        """Σ_c x[c] · y[c]"""

        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            total = ir.Constant(ir.FloatType(), 0.0)
            for left, right in zip(*(parts(builder, row) for row in args), strict=True):
                both = builder.fmul(builder.load(left, align=4), builder.load(right, align=4))
                kind = ir.FunctionType(total.type, [total.type, both.type])
                name = f"llvm.vector.reduce.fadd.v{both.type.count}f32"
                reduce = cgutils.get_or_insert_function(builder.module, kind, name)
                total = builder.call(reduce, [total, both], fastmath=["reassoc"])
            return total

        return types.float32(x, y), emit

    @intrinsic
    def accumulate(typing, number, x, y):  # type: ignore[no-untyped-def]
        """y += number · x"""

        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            number, x, y = args
            for source, target in zip(parts(builder, x), parts(builder, y), strict=True):
                moved = add(builder, number, builder.load(source, align=4), builder.load(target, align=4))
                builder.store(moved, target, align=4)
            return context.get_dummy_value()

        return types.void(number, x, y), emit

    @njit
    def place(x, s, node, column):  # type: ignore[no-untyped-def]
        """The address of a row of x, [S, …, …], from a column on."""
        return x.ctypes.data + 4 * ((s * x.shape[1] + node) * x.shape[2] + column)

    rows, shares = types.float32[:, :, ::1], types.float32[:, :, :, ::1]
    ways = types.int64, types.int64[:, :, ::1], types.int64[::1]
    step = 4 * size

    @njit(types.void(shares, rows, *ways))  # compiled now, not while something is timed
    def dot(score, qkv, first, path, seen):  # type: ignore[no-untyped-def]
        """score[s, i, h, j] = query[s, first + i, h] · key[s, path[s, i, j], h]"""
        width = qkv.shape[2] // 3
        for s in range(len(path)):
            for i in range(path.shape[1]):
                query = place(qkv, s, first + i, 0)
                for j in range(seen[i]):
                    key = place(qkv, s, path[s, i, j], width)
                    for h in range(score.shape[2]):
                        score[s, i, h, j] = product(query + step * h, key + step * h)

    @njit(types.void(shares, rows, rows, *ways))
    def mix(share, found, qkv, first, path, seen):  # type: ignore[no-untyped-def]
        """found[s, i, h] += Σ_j share[s, i, h, j] · value[s, path[s, i, j], h]"""
        width = qkv.shape[2] // 3
        for s in range(len(path)):
            for i in range(path.shape[1]):
                own = place(found, s, i, 0)
                for j in range(seen[i]):
                    value = place(qkv, s, path[s, i, j], 2 * width)
                    for h in range(share.shape[2]):
                        accumulate(share[s, i, h, j], value + step * h, own + step * h)

    @njit(types.void(shares, rows, rows, rows, *ways))
    def back(share, gradient, moved, qkv, first, path, seen):  # type: ignore[no-untyped-def]
        """Adds to moved the gradient with respect to qkv, given that with respect to what was found."""
        width, heads = qkv.shape[2] // 3, share.shape[2]
        score = np.empty((heads, share.shape[3]), np.float32)
        for s in range(len(path)):
            for i in range(path.shape[1]):
                up = place(gradient, s, i, 0)
                for j in range(seen[i]):
                    value = place(qkv, s, path[s, i, j], 2 * width)
                    for h in range(heads):
                        score[h, j] = product(up + step * h, value + step * h)
                for h in range(heads):
                    mean = np.float32(0)
                    for j in range(seen[i]):
                        mean += share[s, i, h, j] * score[h, j]
                    for j in range(seen[i]):
                        score[h, j] = share[s, i, h, j] * (score[h, j] - mean)
                query, to_query = place(qkv, s, first + i, 0), place(moved, s, first + i, 0)
                for j in range(seen[i]):
                    key, to_key = place(qkv, s, path[s, i, j], width), place(moved, s, path[s, i, j], width)
                    for h in range(heads):
                        accumulate(score[h, j], key + step * h, to_query + step * h)
                        accumulate(score[h, j], query + step * h, to_key + step * h)
                        accumulate(share[s, i, h, j], up + step * h, to_key + 4 * width + step * h)

    return dot, mix, back
