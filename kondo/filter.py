"""The gate for asynchronous trainers: each sample is decided on as it arrives, by a price from those before it.

A producer samples, a learner trains; between them stands the filter::

    keep = SampleFilter(rate=0.1, max_staleness=4)
    for batch in keep.batches(samples, size=64):      # 64 kept samples, however many have to be drawn
        train(batch)
        keep.version += 1                             # the learner's weights have moved

Nothing here knows a framework: a sample is whatever `read` finds log-probabilities, an advantage and a version in.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from kondo.gate import GateSettings, check
from kondo.priorities import PRIORITIES
from kondo.signals import delight

Sample = TypeVar("Sample")
Read = Callable[[Any], tuple[Any, Any, int | None]]


def read_mapping(sample: Any) -> tuple[Any, Any, int | None]:
    """The log-probs, the advantage and the version of a sample that is a mapping with these names."""
    return sample["log_probs"], sample["advantage"], sample.get("version")


class SampleFilter:
    """Keeps the samples that are worth a backward pass, one at a time.

    rate: ρ, the share to keep: the price is the (1 − ρ)-quantile of the last `history` samples, and ties at it are kept
    by lot; or price: λ, keep what is strictly above it. warmup: with a rate, keep everything until so many were seen
    or the history is full.
    priority, alpha: what is ranked by, as in `KondoGateConfig`; a sample of several tokens has their mean.
    temperature: η > 0 keeps with probability σ((χ − λ)/η).
    max_staleness: a sample older than so many versions of the learner (`version`) is dropped, whatever its delight.
    max_consecutive_drops: after so many drops in a row the next sample with anything to teach is kept; None: never.

    A zero advantage teaches nothing: such a sample is never kept, but its delight of 0 is part of the history. A sample
    with a log-probability or an advantage that is not finite is neither kept nor remembered, nor is a stale one.
    """

    def __init__(
        self,
        rate: float | None = None,
        price: float | None = None,
        *,
        history: int = 1024,
        warmup: int = 64,
        priority: str = "delight",
        alpha: float = 0.5,
        temperature: float = 0.0,
        max_staleness: int | None = None,
        max_consecutive_drops: int | None = None,
        seed: int = 0,
    ) -> None:
        spare = {} if rate is None else {"history": history, "warmup": warmup}
        coin = {"mode": "bernoulli", "temperature": temperature} if temperature else {}
        self.settings = GateSettings(
            rate=rate, price=price, priority=priority, alpha=alpha, max_consecutive_drops=max_consecutive_drops,
            **spare, **coin,  # type: ignore[arg-type]
        )  # fmt: skip
        check(self.settings, strict=True)
        if rate is not None and history < 1:
            raise ValueError("history must be >= 1: a rate has its price from past samples.")
        if max_staleness is not None and max_staleness < 0:
            raise ValueError("max_staleness must be >= 0.")
        self.max_staleness, self.version = max_staleness, 0
        self._past: deque[float] = deque()
        self._sorted: list[float] = []
        self._random = random.Random(seed)
        self._drops = 0
        self._counts: Counter[str] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._waiting: list[Any] = []  # kept, of a batch that is not full yet

    @property
    def price(self) -> float | None:
        """λ as the next sample will meet it; None while everything is kept."""
        if self.settings.rate is None:
            return self.settings.price
        if self.settings.rate == 1 or len(self._sorted) < max(1, min(self.settings.warmup, self.settings.history)):
            return None
        return self._sorted[-self._rank()]

    def keep(self, log_probs: Any, advantage: Any, version: int | None = None) -> bool:
        """Whether this sample is worth a backward pass; remembers it.

        log_probs: log π of its token or tokens; advantage: one number, or one per token; version: the learner's when it
        was sampled, None: not known, never stale.
        """
        self._counts["seen"] += 1
        if self.stale(version):
            self._counts["stale"] += 1
            return False
        if version is not None:
            self._sums["staleness"] += self.version - version
            self._counts["versioned"] += 1
        score, chi, teaches = self._score(log_probs, advantage)
        if not math.isfinite(score):
            self._counts["nonfinite"] += 1
            return False
        self._sums["delight"] += chi
        self._counts["zero_advantage"] += not teaches
        kept = teaches and self._worth(score)
        most = self.settings.max_consecutive_drops
        if teaches and not kept and most is not None and self._drops >= most:
            kept = True
        if teaches:
            self._drops = 0 if kept else self._drops + 1
        self._remember(score)
        self._counts["kept"] += kept
        return kept

    def stale(self, version: int | None) -> bool:
        """Whether a sample of this version is too old."""
        return version is not None and self.max_staleness is not None and self.version - version > self.max_staleness

    def batches(
        self, source: Iterable[Sample], size: int, *, read: Read = read_mapping, most: int | None = None
    ) -> Iterator[list[Sample]]:
        """Batches of exactly `size` kept samples of the source.

        What has become stale while its batch was filling is replaced. Samples left when the source ends wait for the
        next call. most: give up, with an error, when so many samples in a row did not fill a batch; None: never.
        """
        if size < 1:
            raise ValueError("size must be >= 1.")
        drawn = 0
        for sample in source:
            log_probs, advantage, version = read(sample)
            drawn += 1
            if self.keep(log_probs, advantage, version):
                self._waiting.append(sample)
            fresh = [each for each in self._waiting if not self.stale(read(each)[2])]
            self._counts["aged"] += len(self._waiting) - len(fresh)
            self._waiting = fresh
            if len(self._waiting) >= size:
                batch, self._waiting = self._waiting[:size], self._waiting[size:]
                self._counts["batches"] += 1
                drawn = 0
                yield batch
            elif most is not None and drawn >= most:
                raise RuntimeError(f"{drawn} samples in a row filled no batch of {size}: {self.metrics(reset=False)}")

    def metrics(self, *, reset: bool = True) -> dict[str, float]:
        """Counts and means since the last reset."""
        counts, sums = self._counts, self._sums
        judged = counts["seen"] - counts["stale"] - counts["nonfinite"]
        names = ("seen", "kept", "stale", "aged", "nonfinite", "zero_advantage", "batches")
        found: dict[str, float] = {name: counts[name] for name in names}
        found["kept_share"] = counts["kept"] / max(counts["seen"], 1)
        found["delight_mean"] = sums["delight"] / max(judged, 1)
        if counts["versioned"]:
            found["staleness_mean"] = sums["staleness"] / counts["versioned"]
        if (price := self.price) is not None:
            found["price"] = price
        if reset:
            self._counts, self._sums = Counter(), defaultdict(float)
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that decides what is kept next, in plain Python; not the samples of a batch that is not full."""
        version, internal, gauss = self._random.getstate()
        return {
            "past": list(self._past),
            "drops": self._drops,
            "version": self.version,
            "random": [version, list(internal), gauss],
            "counts": dict(self._counts),
            "sums": dict(self._sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._past = deque(state["past"][-max(self.settings.history, 1) :])
        self._sorted = sorted(self._past)
        self._drops, self.version = state["drops"], state["version"]
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
        self._counts, self._sums = Counter(state["counts"]), defaultdict(float, state["sums"])

    def _score(self, log_probs: Any, advantage: Any) -> tuple[float, float, bool]:
        """The sample's priority and its delight, means over its tokens, and whether any advantage is not zero."""
        logs = torch.as_tensor(log_probs, dtype=torch.double).detach().flatten()
        advantages = torch.as_tensor(advantage, dtype=torch.double).detach().flatten().expand_as(logs)
        if not len(logs) or not (logs + advantages).isfinite().all():
            return math.nan, math.nan, False
        chi = delight(logs, advantages)

        def noise() -> Tensor:
            return torch.tensor([self._random.random() for _ in range(len(logs))], dtype=torch.double)

        rank = PRIORITIES[self.settings.priority](advantages, -logs, noise, self.settings.alpha)
        return rank.mean().item(), chi.mean().item(), bool((advantages != 0).any())

    def _rank(self) -> int:
        """k: the price is the k-th highest of the past, k = max(1, ⌊ρm⌋)."""
        assert self.settings.rate is not None
        return max(1, int(self.settings.rate * len(self._sorted) + 1e-9))

    def _worth(self, score: float) -> bool:
        """1{χ > λ}, or a coin."""
        price = self.price
        if price is None:
            return True
        if self.settings.mode == "bernoulli":
            margin = (score - price) / self.settings.temperature
            return self._random.random() < 1 / (1 + math.exp(-max(min(margin, 700.0), -700.0)))
        if score != price or self.settings.rate is None:
            return score > price
        above = len(self._sorted) - bisect_right(self._sorted, price)
        ties = len(self._sorted) - above - bisect_left(self._sorted, price)
        return self._random.random() < (self._rank() - above) / ties  # so that of equals a share is kept, not all

    def _remember(self, score: float) -> None:
        if self.settings.rate is None:
            return
        self._past.append(score)
        insort(self._sorted, score)
        if len(self._past) > self.settings.history:
            del self._sorted[bisect_left(self._sorted, self._past.popleft())]


class _Queue(Protocol):
    def get(self, block: bool = ..., timeout: float | None = ...) -> Any: ...
    def qsize(self) -> int: ...


class FilteredQueue:
    """A queue whose `get` returns only what a filter keeps; everything else is the queue's own."""

    def __init__(self, queue: _Queue, keep: SampleFilter, read: Read = read_mapping) -> None:
        self._queue, self._keep, self._read = queue, keep, read

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample that is kept; `queue.Empty` when there is none in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            sample = self._queue.get(block, left) if left != 0 else self._queue.get(False)  # what is there is had
            if self._keep.keep(*self._read(sample)):
                return sample

    def get_nowait(self) -> Any:
        """The next sample that is kept of those that are there; `queue.Empty` when there is none."""
        return self.get(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
