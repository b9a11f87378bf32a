"""Token sequences as a tree: sequences that begin alike share a node for every token they have in common.

What a causal transformer computes for a token depends on the tokens before it alone, so that a prefix needs computing
once, however many sequences begin with it: all answers to a prompt share its nodes, and answers share theirs until they
differ. Letters in shapes: S seeds, B sequences, k places that are added at a time, n nodes there, L places in all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Tree:
    """Grows by some tokens of every sequence at a time; `tokens`, `path`, `depth`, `at` and `sizes` are of the last.

    Nodes are numbered place by place, alike for all seeds: a seed with fewer nodes at a place than another has some
    there that belong to no sequence.
    """

    tokens: Tensor  # [S, n]
    path: Tensor  # [S, n, L]: the nodes from the first place to this one; what follows is unused
    depth: Tensor  # [n]: how many nodes of its path a node has, itself included
    at: Tensor  # [S, B, k]: each sequence's node, counted within its place
    sizes: list[int]  # nodes at each of the k places

    def __init__(self, vocab: int, length: int, apart: int | None = None) -> None:
        """length: L; apart: the place from which on every sequence has nodes of its own."""
        self.vocab, self.length = vocab, length
        self.apart = length if apart is None else apart
        self.first, self.nodes, self.places = 0, 0, 0
        """The first node of the last growth; all nodes; all places."""

    def grow(self, tokens: Tensor) -> None:
        """Add the tokens of every sequence at the next k places. [S, B, k]"""
        seeds, rows, k = tokens.shape
        parents = self.path[:, -self.sizes[-1] :] if self.places else tokens.new_zeros(seeds, 1, self.length)
        parent = self.at[..., -1] if self.places else tokens.new_zeros(seeds, rows)
        arrays = (x.contiguous().numpy() for x in (tokens, parent, parents))
        grown = compiled()(*arrays, self.vocab, self.nodes, self.places, self.apart)
        self.at, sizes, self.tokens, self.path = map(torch.from_numpy, grown)
        self.depth = torch.arange(self.places + 1, self.places + k + 1).repeat_interleave(sizes)
        self.sizes = sizes.tolist()
        self.first, self.nodes, self.places = self.nodes, self.nodes + sum(self.sizes), self.places + k

    def repeat(self, times: int) -> None:
        """Have every sequence so many times, next to each other."""
        self.at = self.at.repeat_interleave(times, dim=1)


@functools.cache
def compiled() -> Callable[..., Any]:
    """What `Tree.grow` computes, compiled for this machine: at, sizes, tokens, path."""
    from numba import int64, njit

    @njit((int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], *[int64] * 4))
    def grow(tokens, parent, parents, vocab, nodes, places, apart):  # type: ignore[no-untyped-def]
        seeds, rows, k = tokens.shape
        at = np.empty_like(tokens)
        sizes = np.zeros(k, np.int64)
        fresh = np.zeros(tokens.shape, np.bool_)  # the sequence is the first at its node
        table = np.empty(max(rows, parents.shape[1]) * vocab, np.int64)  # (parent, token) → node
        for s in range(seeds):
            for place in range(k):
                for code in range(len(table)):
                    table[code] = -1
                size = 0
                for b in range(rows):
                    if tokens[s, b, place] < 0 or tokens[s, b, place] >= vocab:
                        raise IndexError("a token that is not in the vocabulary")
                    code = (at[s, b, place - 1] if place else parent[s, b]) * vocab + tokens[s, b, place]
                    if table[code] < 0 or places + place >= apart:
                        table[code] = size
                        fresh[s, b, place] = True
                        size += 1
                    at[s, b, place] = table[code]
                sizes[place] = max(sizes[place], size)
        first = np.zeros(k + 1, np.int64)
        for place in range(k):
            first[place + 1] = first[place] + sizes[place]
        token = np.zeros((seeds, first[k]), np.int64)
        path = np.zeros((seeds, first[k], parents.shape[2]), np.int64)
        for s in range(seeds):
            for b in range(rows):
                for place in range(k):
                    if fresh[s, b, place]:
                        node = first[place] + at[s, b, place]
                        token[s, node] = tokens[s, b, place]
                        for i in range(places):
                            path[s, node, i] = parents[s, parent[s, b], i]
                        for i in range(place + 1):
                            path[s, node, places + i] = nodes + first[i] + at[s, b, i]
        return at, sizes, token, path

    return grow
