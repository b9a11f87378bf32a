"""Inputs that are rows of a table of bytes, such as images: an input is the number of its row."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kondo.lab import kernels
from kondo.lab.kernels.first_layer import SparseTable, sparse


class Rows:
    """A table of inputs: byte · scale."""

    def __init__(self, table: Tensor, scale: float) -> None:
        self.table, self.scale = table, scale  # [N, D] uint8

    def dense(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows themselves. [S, B] → [S, B, D]"""
        return (self.table.index_select(0, index.flatten()) * self.scale).to(dtype).unflatten(0, index.shape)

    def linear(self, index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x · weight + bias. [S, B], [S, D, H], [S, 1, H] → [S, B, H]"""
        if kernels.enabled(weight) and self.sparse is not None:
            return self.sparse.linear(index, weight, bias)
        return torch.baddbmm(bias, self.dense(index, weight.dtype), weight)

    @functools.cached_property
    def sparse(self) -> SparseTable | None:
        """The table without its zeros, where most entries are zero."""
        return sparse(self.table, self.scale)
