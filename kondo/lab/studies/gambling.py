"""A bad arm whose reward is noisy: J4."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, same, study
from kondo.schema import knob

NODES = 401
"""Points that stand for the normal distribution where an expectation over the noise is taken."""


def false_positive(std: Tensor, baseline: float, threshold: float = 0.0) -> Tensor:
    """P(G = 1 | bad arm) of the hard gate: R = σz, so P(R − b > λ/ℓ) = Φ(−(b + λ/ℓ)/σ).

    With b = pΔ and λ = 0 this is Φ(−pΔ/σ) ≤ ½ exp(−p²Δ²/2σ²): exponentially small for σ ≪ Δ, and ½ for σ ≫ Δ.
    """
    return 0.5 * torch.erfc((baseline + threshold) / std / math.sqrt(2))


def stall(std: float) -> float:
    """The error 1 − p at which the gate at λ = 0 stops learning, noise on the bad arm alone, Δ = 1 and b = p.

    The logits' difference drifts by p(1−p) (E[GU | good] − E[GU | bad]). The good arm gives 1 − p; the bad one
    E(σz − p)⁺ = σψ(p/σ), ψ(x) = φ(x) − xΦ(−x). Near p = 1 the first vanishes and the second does not: the drift is zero
    at 1 − p = σψ(p/σ), which is ½ or more, and nothing is learned from an even start, once σψ(1/2σ) ≥ ½: σ ≥ 1.81.
    With the same noise on both arms E((1−p)+σz)⁺ > E(−p+σz)⁺ at every p: no stall.
    """
    low, high = 0.0, 1.0  # of p; the drift is positive at 0
    for _ in range(60):
        p = (low + high) / 2
        x = p / std
        gamble = std * (math.exp(-x * x / 2) / math.sqrt(2 * math.pi) - x * 0.5 * math.erfc(x / math.sqrt(2)))
        low, high = (p, high) if 1 - p > gamble else (low, p)
    return 1 - low


@study
@dataclass(frozen=True)
class Gambling(Study):
    """Two arms, the good one pays 1 and the bad one 0 on average (Δ = 1); Gaussian noise on the bad one, or on both.

    Learning is gradient ascent on the logits, every σ and seed side by side; `mean_field` follows the expected update
    in place of samples.
    """

    baseline: str = knob("oracle", choices=("oracle",))
    """b = p, the expected reward"""
    stds: tuple[float, ...] = knob((1.0,), above=0)
    """σ/Δ"""
    noise: str = knob("bad", choices=("bad", "both"))
    """The arms whose reward is noisy."""
    start: float = knob(0.5, above=0, below=1)
    """p at the beginning."""
    lr: float = knob(0.5, above=0)
    updates: int = knob(1000, low=1)
    """Gradient steps of B samples."""

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        std = torch.tensor(self.stds, dtype=torch.float64)
        moments = np.unique(np.round(np.geomspace(1, self.updates, 30)).astype(int)).tolist()
        expected, drawn = self._mean_field(rule, std, moments), self._learn(rule, std, moments, streams)
        return {
            "sigma": same(list(self.stds), streams),
            "opened": same(self._opened(rule, std), streams),
            "opened_simulated": self._open(rule, std, streams),
            "stall": same([stall(each) for each in self.stds], streams),
            "updates": same([moments] * len(self.stds), streams),
            "mean_field": same(expected.T, streams),
            "learned": drawn.permute(1, 2, 0).tolist(),
        }

    def _opened(self, rule: Rule, std: Tensor) -> Tensor:
        """P(G = 1 | bad) at the start; a method without a hard gate lets everything in."""
        if rule.gate is None or rule.gate.mode != "hard":
            return torch.ones_like(std)
        return false_positive(std, self.start, (rule.gate.price or 0.0) / -math.log1p(-self.start))

    def _open(self, rule: Rule, std: Tensor, streams: Streams) -> list[object]:
        noise = streams.normal("opening", 0, (len(std), self.batch)).double() * std[:, None]
        keep, _ = rule(torch.full_like(noise, math.log1p(-self.start)), noise - self.start)
        return keep.mean(-1).tolist()

    def _spread(self, noise: Tensor, std: Tensor, good: Tensor) -> Tensor:
        """The noise on each reward."""
        return noise * std * (torch.ones_like(good) if self.noise == "both" else ~good).double()

    def _learn(self, rule: Rule, std: Tensor, moments: list[int], streams: Streams) -> Tensor:
        """1 − p after some updates. [moments, S, σ]"""
        gap = torch.full((len(streams.seeds), len(std)), math.log(self.start / (1 - self.start)), dtype=torch.float64)
        errors, shape = [], (len(std), self.batch)
        for step in range(self.updates):
            p = gap.sigmoid().unsqueeze(-1)
            good = streams.uniform("arm", step, shape) < p
            noise = self._spread(streams.normal("noise", step, shape).double(), std[:, None], good)
            log_prob = torch.where(good, gap.unsqueeze(-1), -gap.unsqueeze(-1)).sigmoid().log()
            keep, coefficient = rule(log_prob, good.double() + noise - p)
            kept = (streams.uniform("coin", step, shape) < keep) * coefficient
            gap = gap + 2 * self.lr * (kept * (good.double() - p)).mean(-1)  # both logits change
            if step + 1 in moments:
                errors.append((-gap).sigmoid())
        return torch.stack(errors)

    def _mean_field(self, rule: Rule, std: Tensor, moments: list[int]) -> Tensor:
        """The same under the expected update. [moments, σ]"""
        middles = (torch.arange(NODES, dtype=torch.float64) + 0.5) / NODES
        good = torch.tensor([True, False])[:, None]
        noise = self._spread(torch.special.ndtri(middles), std[:, None, None], good)  # [σ, arm, nodes]
        gap, errors = torch.full_like(std, math.log(self.start / (1 - self.start))), []
        for step in range(self.updates):
            p = gap.sigmoid()[:, None, None]
            log_prob = torch.cat([p, 1 - p], dim=1).log().expand_as(noise).contiguous()
            keep, coefficient = rule(log_prob, good.double() + noise - p)
            arms = (keep * coefficient).mean(-1)  # [σ, arm]
            p = p[:, 0, 0]
            gap = gap + 2 * self.lr * p * (1 - p) * (arms[:, 0] - arms[:, 1])
            if step + 1 in moments:
                errors.append((-gap).sigmoid())
        return torch.stack(errors)
