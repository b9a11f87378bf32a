"""The first layer of an MLP on images without its zero pixels, four fifths of MNIST's. Reference: lab/policies/rows.py.

Letters in shapes: S seeds, B inputs, N rows of the table, D columns, H outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SPARSE = 0.35  # the share of non-zero entries above which a dense matmul is as fast


class SparseTable:
    """The non-zero entries of a table of bytes; row r has the entries first[r] … first[r + 1] − 1."""

    def __init__(self, table: Tensor, scale: float) -> None:
        array = table.numpy()
        row, column = np.nonzero(array)
        self.first = np.searchsorted(row, np.arange(len(array) + 1))  # [N + 1] int64
        self.column = column.astype(np.uint16)
        self.value = array[row, column]  # uint8
        self.scale = np.float32(scale)

    def linear(self, index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """value · scale · weight + bias of rows by number. [S, B], [S, D, H], [S, 1, H] → [S, B, H]"""
        return _Linear.apply(self, index.contiguous(), weight.contiguous(), bias.contiguous())

    def run(self, kernel: Callable[..., None], index: Tensor, *tensors: Tensor) -> None:
        arrays = (tensor.detach().numpy() for tensor in tensors)
        kernel(self.first, self.column, self.value, self.scale, index.numpy(), *arrays)


def sparse(table: Tensor, scale: float) -> SparseTable | None:
    """The table without its zeros; None where a dense matmul is as fast."""
    few = table.count_nonzero() < SPARSE * table.numel() and table.shape[1] <= 1 << 16
    return SparseTable(table, scale) if few else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: SparseTable, index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.table, ctx.index, ctx.shape = table, index, weight.shape
        out = weight.new_empty(*index.shape, weight.shape[-1])
        table.run(compiled()[0], index, weight, bias, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor, Tensor]:
        gradient = gradients[0].contiguous()
        weight = gradient.new_zeros(ctx.shape)
        ctx.table.run(compiled()[1], ctx.index, gradient, weight)
        return None, None, weight, gradient.sum(dim=1, keepdim=True)


@functools.cache
def compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """The layer and the gradient of its weights, compiled for this machine.

    Four entries at a time, added one after the other, so that a row of outputs is read and written a quarter as often.
    """
    from numba import njit, types

    table = types.int64[::1], types.uint16[::1], types.uint8[::1], types.float32
    index, array = types.int64[:, ::1], types.float32[:, :, ::1]

    @njit(types.void(*table, index, array, array, array), fastmath={"contract"}, error_model="numpy")
    def forward(first, column, value, scale, index, weight, bias, out):  # type: ignore[no-untyped-def]
        width = range(out.shape[2])
        for s in range(index.shape[0]):
            w = weight[s]
            for b in range(index.shape[1]):
                row = out[s, b]
                for h in width:
                    row[h] = bias[s, 0, h]
                j, end = first[index[s, b]], first[index[s, b] + 1]
                while j + 4 <= end:
                    v0, w0 = np.float32(value[j]) * scale, w[column[j]]
                    v1, w1 = np.float32(value[j + 1]) * scale, w[column[j + 1]]
                    v2, w2 = np.float32(value[j + 2]) * scale, w[column[j + 2]]
                    v3, w3 = np.float32(value[j + 3]) * scale, w[column[j + 3]]
                    for h in width:
                        row[h] = (((row[h] + v0 * w0[h]) + v1 * w1[h]) + v2 * w2[h]) + v3 * w3[h]
                    j += 4
                while j < end:
                    v0, w0 = np.float32(value[j]) * scale, w[column[j]]
                    for h in width:
                        row[h] += v0 * w0[h]
                    j += 1

    @njit(types.void(*table, index, array, array), fastmath={"contract"}, error_model="numpy")
    def backward(first, column, value, scale, index, gradient, weight):  # type: ignore[no-untyped-def]
        for s in range(index.shape[0]):
            for b in range(index.shape[1]):
                row = gradient[s, b]
                for j in range(first[index[s, b]], first[index[s, b] + 1]):
                    v, w = np.float32(value[j]) * scale, weight[s, column[j]]
                    for h in range(row.shape[0]):
                        w[h] += v * row[h]

    return forward, backward
