"""A first layer that skips the zeros: its inputs are rows of a table of bytes, most of which are zero in images.

Four fifths of MNIST's pixels are. With numba on a CPU the layer reads the other fifth alone, row by row and in the
same order for every block of seeds; anywhere else, and where most entries are not zero, it is a dense matmul.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SPARSE = 0.35  # the share of entries that are not zero, above which a dense matmul is as fast


class Rows:
    """A table of inputs: byte · scale. An input is the number of its row."""

    def __init__(self, table: Tensor, scale: float) -> None:
        self.table, self.scale = table, scale  # [N, D] uint8
        self.entries: list[np.ndarray] = []
        """first, column, value: row r has the entries first[r] … first[r + 1] − 1. Empty where a matmul is better."""
        if table.device.type == "cpu" and table.count_nonzero() < SPARSE * table.numel() and kernels(1):
            array = table.numpy()
            row, column = np.nonzero(array)
            first = np.searchsorted(row, np.arange(len(array) + 1))
            self.entries = [first, column.astype(np.uint16), array[row, column]]
            self.common = first, self.entries[1].ctypes.data, self.entries[2].ctypes.data, np.float32(scale)

    def dense(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows themselves. [S, B] → [S, B, D]"""
        return (self.table.index_select(0, index.flatten()) * self.scale).to(dtype).view(*index.shape, -1)

    def linear(self, index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x · weight + bias. [S, B], [S, D, H], [S, 1, H] → [S, B, H]"""
        if not self.entries or weight.dtype != torch.float32 or not weight.is_contiguous():
            return torch.baddbmm(bias, self.dense(index, weight.dtype), weight)
        return _Linear.apply(self, index.contiguous(), weight, bias)

    def run(self, kernel: Callable[..., None], index: Tensor, *tensors: Tensor) -> None:
        """Call a kernel, which knows tensors by their addresses: they must be contiguous."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        kernel(*self.common, index.numpy(), *index.shape, self.table.shape[1], *addresses)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Rows, index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.rows, ctx.index, ctx.shape = rows, index, weight.shape
        out = weight.new_empty(*index.shape, weight.shape[-1])
        rows.run(kernels(weight.shape[-1])[0], index, weight, bias.contiguous(), out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor, Tensor]:
        gradient = gradients[0].contiguous()
        weight = gradient.new_zeros(ctx.shape)
        ctx.rows.run(kernels(ctx.shape[-1])[1], ctx.index, gradient, weight)
        return None, None, weight, gradient.sum(dim=1, keepdim=True)


def vectors(width: int) -> tuple[Callable[..., list[Any]], Callable[..., Any]]:
    """For code in LLVM's own language: rows of `width` numbers as vectors of at most 16, and their sums."""
    from llvmlite import ir

    real, whole = ir.FloatType(), ir.IntType(64)
    pieces, offset = [], 0
    for size in (16, 8, 4, 2, 1):
        while width - offset >= size:
            pieces.append((offset, ir.VectorType(real, size)))
            offset += size

    def parts(builder: Any, row: Any) -> list[Any]:
        """Pointers to the pieces of the row that starts at the address."""
        return [
            builder.inttoptr(builder.add(row, ir.Constant(whole, 4 * at)), vector.as_pointer()) for at, vector in pieces
        ]

    def add(builder: Any, number: Any, x: Any, y: Any) -> Any:
        """number · x + y, piece by piece"""
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), x.type.count), [0] * x.type.count)
        undefined = ir.Constant(x.type, ir.Undefined)
        spread = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
        spread = builder.shuffle_vector(spread, undefined, zeros)
        return builder.fadd(builder.fmul(spread, x, flags=["contract"]), y, flags=["contract"])

    return parts, add


@functools.cache
def kernels(width: int) -> tuple[Callable[..., None], ...]:
    """The layer with `width` outputs and its gradient, compiled for this machine; none without numba.

    LLVM does not by itself keep a row of outputs in registers while it goes through the entries, which is worth a
    factor of two or more; so the innermost loop is spelled out, on vectors of at most 16 numbers that make up a row.
    """
    try:
        from llvmlite import ir
        from numba import njit, types
        from numba.core import cgutils
        from numba.extending import intrinsic
    except ImportError:
        return ()

    parts, add = vectors(width)
    real, whole = ir.FloatType(), ir.IntType(64)

    def entries(builder: Any, carried: list[Any], body: Callable[..., list[Any]], args: tuple[Any, ...]) -> list[Any]:
        """The loop over the entries of one row of the table: body(value, address of its weights, carried) → carried"""
        column, value, count, scale, weight = args
        column = builder.inttoptr(column, ir.IntType(16).as_pointer())
        value = builder.inttoptr(value, ir.IntType(8).as_pointer())
        before = builder.block
        check, inside, after = (builder.append_basic_block(name) for name in ("check", "inside", "after"))
        builder.branch(check)
        builder.position_at_end(check)
        j = builder.phi(whole)
        state = [builder.phi(one.type) for one in carried]
        builder.cbranch(builder.icmp_signed("<", j, count), inside, after)
        builder.position_at_end(inside)
        number = builder.fmul(builder.uitofp(builder.load(builder.gep(value, [j])), real), scale)
        row = builder.zext(builder.load(builder.gep(column, [j])), whole)
        moved = body(number, builder.add(weight, builder.mul(row, ir.Constant(whole, 4 * width))), state)
        j.add_incoming(ir.Constant(whole, 0), before)
        j.add_incoming(builder.add(j, ir.Constant(whole, 1)), builder.block)
        for phi, old, new in zip(state, carried, moved, strict=True):
            phi.add_incoming(old, before)
            phi.add_incoming(new, builder.block)
        builder.branch(check)
        builder.position_at_end(after)
        return state

    @intrinsic
    def gather(typing, column, value, count, scale, weight, start, out):  # type: ignore[no-untyped-def]
        """out = start + Σ_j value[j] · weight[column[j]]"""

        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            *common, start, out = args

            def body(number: Any, row: Any, state: list[Any]) -> list[Any]:
                loaded = (builder.load(part, align=4) for part in parts(builder, row))
                return [add(builder, number, x, y) for x, y in zip(loaded, state, strict=True)]

            begin = [builder.load(part, align=4) for part in parts(builder, start)]
            for result, part in zip(entries(builder, begin, body, common), parts(builder, out), strict=True):
                builder.store(result, part, align=4)
            return context.get_dummy_value()

        return types.void(column, value, count, scale, weight, start, out), emit

    @intrinsic
    def scatter(typing, column, value, count, scale, weight, gradient):  # type: ignore[no-untyped-def]
        """weight[column[j]] += value[j] · gradient, for every j"""

        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            *common, gradient = args
            row_gradient = [builder.load(part, align=4) for part in parts(builder, gradient)]

            def body(number: Any, row: Any, state: list[Any]) -> list[Any]:
                for part, x in zip(parts(builder, row), row_gradient, strict=True):
                    builder.store(add(builder, number, x, builder.load(part, align=4)), part, align=4)
                return []

            entries(builder, [], body, common)
            return context.get_dummy_value()

        return types.void(column, value, count, scale, weight, gradient), emit

    @intrinsic
    def prefetch(typing, address):  # type: ignore[no-untyped-def]
        """Ask for the cache line at an address ahead of its use."""

        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [pointer, *(ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1))])
            return context.get_dummy_value()

        return types.void(address), emit

    @njit
    def soon(first, column, value, row):  # type: ignore[no-untyped-def]
        """The entries of a row, which are anywhere in memory, are on their way while another row is worked on."""
        for at in range(first[row], first[row + 1], 32):
            prefetch(column + 2 * at)
        for at in range(first[row], first[row + 1], 64):
            prefetch(value + at)

    common = (types.int64[::1], types.int64, types.int64, types.float32, types.int64[:, ::1], *[types.int64] * 3)

    @njit(types.void(*common, *[types.int64] * 3))  # compiled now, not while something is timed
    def ahead(first, column, value, scale, index, seeds, batch, inputs, weight, bias, out):  # type: ignore[no-untyped-def]
        for s in range(seeds):
            for b in range(batch):
                if b + 1 < batch:
                    soon(first, column, value, index[s, b + 1])
                at = first[index[s, b]]
                gather(
                    column + 2 * at, value + at, first[index[s, b] + 1] - at, scale,
                    weight + 4 * width * inputs * s, bias + 4 * width * s, out + 4 * width * (s * batch + b),
                )  # fmt: skip

    @njit(types.void(*common, *[types.int64] * 2))
    def back(first, column, value, scale, index, seeds, batch, inputs, gradient, weight):  # type: ignore[no-untyped-def]
        for s in range(seeds):
            for b in range(batch):
                at = first[index[s, b]]
                scatter(
                    column + 2 * at, value + at, first[index[s, b] + 1] - at, scale,
                    weight + 4 * width * inputs * s, gradient + 4 * width * (s * batch + b),
                )  # fmt: skip

    return ahead, back
