"""Arithmetic on short rows of a known length, spelled out in vectors for LLVM.

Left to itself LLVM loops over the 16 numbers of an attention head, and attention takes two to six times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def parts(context: Any, builder: Any, kind: Any, array: Any, size: int) -> list[Any]:
    """Pointers to the `size` numbers of a contiguous array, in vectors of 16, 8, 4, 2 and 1."""
    from llvmlite import ir

    word = ir.IntType(64)
    start = builder.ptrtoint(context.make_array(kind)(context, builder, array).data, word)
    pointers, offset = [], 0
    for lanes in (16, 8, 4, 2, 1):
        while size - offset >= lanes:
            vector = ir.VectorType(ir.FloatType(), lanes)
            pointers.append(builder.inttoptr(builder.add(start, ir.Constant(word, 4 * offset)), vector.as_pointer()))
            offset += lanes
    return pointers


@functools.cache
def product(size: int) -> Callable[..., Any]:
    """A function for compiled code, x, y → Σ_c x[c] · y[c], on arrays of `size` 32-bit floats."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def product(typing, x, y):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            total = ir.Constant(ir.FloatType(), 0.0)
            rows = (parts(context, builder, *each, size) for each in zip(signature.args, args, strict=True))
            for left, right in zip(*rows, strict=True):
                both = builder.fmul(builder.load(left, align=4), builder.load(right, align=4))
                kind = ir.FunctionType(total.type, [total.type, both.type])
                name = f"llvm.vector.reduce.fadd.v{both.type.count}f32"
                reduce = cgutils.get_or_insert_function(builder.module, kind, name)
                total = builder.call(reduce, [total, both], fastmath=["reassoc"])
            return total

        return types.float32(x, y), emit

    return product


@functools.cache
def accumulate(size: int) -> Callable[..., Any]:
    """A function for compiled code, a, x, y: y[c] += a · x[c], on arrays of `size` 32-bit floats."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def accumulate(typing, a, x, y):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
            rows = (parts(context, builder, *each, size) for each in zip(signature.args[1:], args[1:], strict=True))
            for source, target in zip(*rows, strict=True):
                left, right = builder.load(source, align=4), builder.load(target, align=4)
                undefined = ir.Constant(left.type, ir.Undefined)
                lanes = ir.Constant(ir.VectorType(ir.IntType(32), left.type.count), [0] * left.type.count)
                spread = builder.insert_element(undefined, args[0], ir.Constant(ir.IntType(32), 0))
                spread = builder.shuffle_vector(spread, undefined, lanes)  # a, a, …
                sums = builder.fadd(builder.fmul(spread, left, flags=["contract"]), right, flags=["contract"])
                builder.store(sums, target, align=4)
            return context.get_dummy_value()

        return types.void(a, x, y), emit

    return accumulate
