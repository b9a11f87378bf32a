"""What was spent, three ways that are never mixed up: nominal, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

COUNTS = {
    "forward": "samples drawn by the actor: one forward pass each",
    "screened": "samples that needed a further pass without gradient to be screened (none where the sampler's serves)",
    "nominal": "backward passes the gate's rate asks for (ρ·B; with a price, the share of units above it)",
    "backward": "samples that were in a backward graph",
    "backward_tokens": "decisions in those samples",
    "updates": "optimizer steps",
}
PHASES = ("rollout", "screen", "backward", "optimizer")
TIMED = (*(f"seconds_{phase}" for phase in PHASES), "padding")
"""Columns that depend on the machine and on the block, not on the seed alone."""


class Ledger:
    """Running totals: counts by seed, [S]; seconds and padding by block, logged as each seed's equal share."""

    def __init__(self, seeds: int, device: torch.device | str = "cpu") -> None:
        self.seeds = seeds
        self.device = torch.device(device)
        self.counts = {name: torch.zeros(seeds, dtype=torch.float64, device=device) for name in COUNTS}
        self.timed = dict.fromkeys(TIMED, 0.0)

    def add(self, **counts: Tensor | float) -> None:
        for name, count in counts.items():
            self.counts[name] += count

    def pad(self, samples: int) -> None:
        """Samples of weight zero that only level the seeds of a block: computed, but no seed's own cost."""
        self.timed["padding"] += samples

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; what was queued on an accelerator belongs to the phase that queued it."""
        begun = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.timed[f"seconds_{name}"] += time.perf_counter() - begun

    def totals(self) -> dict[str, Tensor]:
        """{column: [S]}"""
        share = {name: torch.full((self.seeds,), total / self.seeds) for name, total in self.timed.items()}
        return self.counts | share

    def state(self) -> dict[str, object]:
        return {"counts": self.counts, "timed": self.timed}

    def load(self, state: dict[str, dict[str, object]]) -> None:
        self.counts = {name: value.to(self.device) for name, value in state["counts"].items()}  # type: ignore[attr-defined]
        self.timed = dict(state["timed"])  # type: ignore[arg-type]
