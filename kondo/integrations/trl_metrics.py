"""What the TRL trainer logs about the gate: sums that processes can add up, and seconds that are not overclaimed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kondo.gate import per_entry
from kondo.signals import delight

NEUTRAL = 0.05
"""A weight σ(delight) this close to ½ says nothing of its sample."""
SUMS = ("rows", "finite", "delight", "delight_squared", "off_neutral", "zero_advantage", "kept_positive",
        "kept_negative", "dropped_positive", "dropped_negative", "kept", "kept_length", "dropped_length", "nonfinite",
        "backward_tokens", "batch_tokens", "entropy", "entropy_tokens")  # fmt: skip


def response_delight(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """χ̄ = (1/T) Σ_t U·ℓ_t of each response, over the tokens under the mask. [B, T] → [B]"""
    chi = delight(log_probs, per_entry(advantages, log_probs))
    return torch.where(mask.bool(), chi, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def sums(log_probs: Tensor, advantages: Tensor, mask: Tensor, keep: Tensor, **others: float) -> Tensor:
    """One process's part of what `averages` reports of a micro-batch; `others`: sums that are known already. [SUMS]"""
    chi = response_delight(log_probs, advantages, mask)
    finite = (log_probs.isfinite() | ~mask.bool()).all(1) & chi.isfinite()
    sign = (per_entry(advantages, log_probs) * mask).sum(1).sign()
    length = mask.sum(1)
    known = chi[finite].double()
    values: dict[str, Tensor | float] = {
        "rows": len(chi),
        "finite": finite.sum(),
        "delight": known.sum(),
        "delight_squared": known.square().sum(),
        "off_neutral": ((known.sigmoid() - 0.5).abs() > NEUTRAL).sum(),
        "zero_advantage": (sign == 0).sum(),
        "kept_positive": (keep & (sign > 0)).sum(),
        "kept_negative": (keep & (sign < 0)).sum(),
        "dropped_positive": (~keep & (sign > 0)).sum(),
        "dropped_negative": (~keep & (sign < 0)).sum(),
        "kept": keep.sum(),
        "kept_length": length[keep].sum(),
        "dropped_length": length[~keep].sum(),
        "nonfinite": (~finite).sum(),
    }
    values.update(others)
    return torch.tensor([float(values.get(name, 0.0)) for name in SUMS], dtype=torch.double, device=chi.device)


def averages(total: Tensor, *, gated: bool) -> dict[str, float]:
    """What is logged, of sums over all processes; without a gate only what concerns delight."""
    of = dict(zip(SUMS, total.tolist(), strict=True))
    finite, rows = max(of["finite"], 1.0), max(of["rows"], 1.0)
    mean = of["delight"] / finite
    found = {
        "delight_mean": mean,
        "delight_std": math.sqrt(max(of["delight_squared"] / finite - mean**2, 0.0)),
        "off_neutral_share": of["off_neutral"] / finite,
        "zero_advantage_share": of["zero_advantage"] / rows,
    }
    if not gated:
        return found
    found |= {f"{name}_share": of[name] / rows for name in SUMS if name.endswith(("_positive", "_negative"))}
    found |= {"gate_rate": of["kept"] / rows, "backward_rows": of["kept"], "nonfinite_rows": of["nonfinite"]}
    found |= {"backward_tokens": of["backward_tokens"]}
    found["skipped_fraction"] = 1 - of["backward_tokens"] / max(of["batch_tokens"], 1.0)
    for name, count in (("kept", of["kept"]), ("dropped", of["rows"] - of["kept"])):
        if count:
            found[f"{name}_length"] = of[f"{name}_length"] / count
    return found


@dataclass
class Survivors:
    """How many of each group are kept, counted until every completion that was generated has been decided on."""

    size: int
    """Completions in a group."""
    kept: Tensor
    """[groups]"""
    seen: int = 0

    def add(self, kept: Tensor, rows: int) -> dict[str, float]:
        """Count a micro-batch of all processes; once the last is in, what is logged. [groups]"""
        self.kept = self.kept + kept
        self.seen += rows
        if self.seen < self.size * len(self.kept):
            return {}
        found = {
            "survivors_per_group": self.kept.mean().item(),
            "groups_without_survivors": (self.kept == 0).double().mean().item(),
        }
        self.kept, self.seen = torch.zeros_like(self.kept), 0
        return found


@dataclass
class PassTimes:
    """Seconds of an update as fixed + each·tokens, by least squares over all updates but the first."""

    count: int = -1  # the first update also pays for what is set up once
    tokens: float = 0.0  # mean
    seconds: float = 0.0  # mean
    tokens_squared: float = 0.0  # Σ(t − t̄)²
    seconds_squared: float = 0.0
    product: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """One more update."""
        self.count += 1
        if self.count < 1:
            return
        off_tokens, off_seconds = tokens - self.tokens, seconds - self.seconds
        self.tokens += off_tokens / self.count
        self.seconds += off_seconds / self.count
        self.tokens_squared += off_tokens * (tokens - self.tokens)
        self.seconds_squared += off_seconds * (seconds - self.seconds)
        self.product += off_tokens * (seconds - self.seconds)

    def predicted(self, tokens: float, fewest: int = 8, accuracy: float = 0.1) -> float | None:
        """What an update of so many tokens would take; None unless its standard error is below a share of itself."""
        if self.count < fewest or self.tokens_squared <= 0:
            return None
        each = self.product / self.tokens_squared
        found = self.seconds + each * (tokens - self.tokens)
        residual = max(self.seconds_squared - each * self.product, 0.0) / (self.count - 2)
        error = math.sqrt(residual * (1 / self.count + (tokens - self.tokens) ** 2 / self.tokens_squared))
        return found if found > 0 and error <= accuracy * found else None
