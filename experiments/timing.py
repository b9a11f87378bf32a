"""Seconds, floating-point operations and memory of a call."""

from __future__ import annotations

import resource
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

REPEATS = 7
Step = Callable[[], object]


def best(steps: dict[str, Step], count: int = 30, warmup: int = 10, repeats: int = REPEATS) -> dict[str, float]:
    """Seconds per call of each, the best of the repeats."""
    for step in steps.values():
        for _ in range(warmup):
            step()
    times = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, step in steps.items():
            begun = time.perf_counter()
            for _ in range(count):
                step()
            times[name] = min(times[name], (time.perf_counter() - begun) / count)
    return times


def peak_memory() -> int:
    """The most bytes of memory that this process ever held; the system counts them in KiB, but on macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def count(step: Step, device: torch.device) -> tuple[int, int]:
    """The most bytes that a call holds beyond what was there before it, and its floating-point operations.

    Bytes on a CPU: of all tensors that operators return; what an operator uses inside itself is not seen. On a GPU: of
    torch's allocator. Operations: by torch's counter, those of matrix products and attention.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with FlopCounterMode(display=False) as operations, Tensors() as tensors:
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        tensors.peak = torch.cuda.max_memory_allocated(device) - before
    return tensors.peak, operations.get_total_flops()


class Tensors(TorchDispatchMode):
    """Counts the bytes of storages made since it was entered, as long as anything refers to them."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()
        self.held = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        output = func(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if id(storage) not in self.known and id(storage) not in given:  # a view holds what it is given
                    self.known.add(id(storage))
                    self.held += storage.nbytes()
                    weakref.finalize(storage, self._free, id(storage), storage.nbytes())
        self.peak = max(self.peak, self.held)
        return output

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.held -= size
