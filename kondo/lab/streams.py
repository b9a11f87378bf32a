"""Randomness without state: a number depends on (seed, stream name, step, position) and on nothing else.

So a seed draws the same numbers whichever seeds share its block, in whatever order streams are read, and after any
resume: there is no generator to save. The generator is SplitMix64 used as a counter-based hash, in plain tensor
arithmetic, the same on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_CHUNK = 1 << 16  # numbers drawn in advance at a time, so that the cost per step is a slice


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's output function on int64 with wrap-around."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


class Streams:
    """Random numbers for a block of seeds; every draw has a leading seed axis."""

    def __init__(self, seeds: list[int], device: torch.device | str = "cpu") -> None:
        self.seeds = list(seeds)
        self.device = torch.device(device)
        self._root = _mix(torch.tensor(self.seeds, dtype=torch.int64, device=self.device) + _GOLDEN)  # [S]
        self._ahead: dict[tuple[object, ...], tuple[int, Tensor]] = {}

    def _draw(
        self, kind: Callable[[Tensor], Tensor], key: object, name: str, step: int, shape: tuple[int, ...]
    ) -> Tensor:
        """Numbers made of 64 random bits for each seed and position; `key` tells kinds apart. [S, *shape]"""
        count = math.prod(shape)
        first, drawn = self._ahead.get((key, name, count), (0, None))
        if drawn is None or not first <= step < first + len(drawn):
            span = max(1, _CHUNK // (count * len(self.seeds) or 1))
            first, drawn = step, kind(self.bits(name, step, span, count))
            self._ahead[key, name, count] = first, drawn
        return drawn[step - first].reshape(len(self.seeds), *shape)

    def bits(self, name: str, step: int, span: int, count: int) -> Tensor:
        """64 random bits for each of `span` steps, seed and position. [span, S, count]"""
        label = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
        steps = torch.arange(step + 1, step + span + 1, device=self.device)
        places = torch.arange(1, count + 1, device=self.device)
        key = _mix(_mix(self._root ^ label) + steps[:, None] * _GOLDEN)  # [span, S]
        return _mix(key[..., None] + places * _GOLDEN)

    def uniform(self, name: str, step: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform on [0, 1), 24 bits. [S, *shape]"""
        return self._draw(lambda bits: _shift(bits, 40).float() * 2.0**-24, "uniform", name, step, shape)

    def normal(self, name: str, step: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Standard normal. [S, *shape]"""

        def normal(bits: Tensor) -> Tensor:
            return torch.special.ndtri((_shift(bits, 40).double() + 0.5) * 2.0**-24).float()  # never of 0 or 1

        return self._draw(normal, "normal", name, step, shape)

    def below(self, limit: int, name: str, step: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform integers in [0, limit). [S, *shape]"""
        return self._draw(lambda bits: (_shift(bits, 33) * limit) >> 31, limit, name, step, shape)


def sample_index(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index from unnormalised probabilities by inverting their cumulative sum. [..., K], [...] → [...]

    An index of probability 0 is never drawn.
    """
    cumulative = probs.cumsum(dim=-1)
    target = uniform.clamp(max=1 - 2.0**-23).unsqueeze(-1) * cumulative[..., -1:]  # below the total, rounding included
    return (cumulative <= target).sum(dim=-1)
