"""Which way an update points, how much it varies across ∇J, and what it costs: J1, J2 and the price of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, generators, policies, same, study
from kondo.schema import knob


def geometry(policy: Tensor, measure: Tensor, coefficient: Tensor) -> dict[str, Tensor]:
    """Mean and variance of one sample's contribution g = c_a (e_a − π), along ∇J and across it. [..., C, K] → [...]

    Contexts have logits of their own, so that the vectors are C·K long. `measure` is the probability of each (context,
    arm) to be drawn and kept; what is left of 1 contributes 0. ∇J = mean over contexts of p (e_0 − π). With n the unit
    vector along ∇J, n·(e_a − π) = n_a − n·π, and |e_a − π|² = 1 − 2π_a + |π|²: exact, in K numbers per context.
    """
    weighted = measure * coefficient
    mean = weighted - weighted.sum(-1, keepdim=True) * policy
    goal = -policy[..., :1] * policy / policy.shape[-2]
    goal[..., 0] += policy[..., 0] / policy.shape[-2]
    unit = goal / goal.flatten(-2).norm(dim=-1)[..., None, None]
    along = coefficient * (unit - (policy * unit).sum(-1, keepdim=True))
    length = 1 - 2 * policy + policy.square().sum(-1, keepdim=True)
    both = lambda x: x.sum(dim=(-2, -1))  # noqa: E731
    signal, square = both(mean * unit), both(mean.square())
    parallel = both(measure * along.square()) - signal.square()
    total = both(measure * coefficient.square() * length) - square
    return {
        "share": both(measure),
        "signal": signal,
        "cosine": signal / square.sqrt(),
        "parallel": parallel.clamp(min=0),
        "perpendicular": (total - parallel).clamp(min=0),
        "square": square,
    }


def batch_cosine(parts: dict[str, Tensor], samples: Tensor | float) -> Tensor:
    """⟨E ĝ, n⟩ / √E|ĝ|² for the mean ĝ of some samples: their root-mean-square cosine with ∇J."""
    variance = parts["parallel"] + parts["perpendicular"]
    return parts["signal"] / (parts["square"] + variance / samples).sqrt()


def success_rate(samples: int, p: float, arms: int, gain: float, loss: float, target: float) -> float:
    """P(cos(ĝ, ∇J) ≥ target) for the mean ĝ of some samples; equal wrong arms.

    A success adds c₊v, v = e_0 − π; a failure on arm a adds −c₋(e_a − π) = c₋ p/(1−p) v − c₋(e_a − u), u uniform over
    the wrong arms, orthogonal to v (`gain` c₊, `loss` c₋ ≥ 0). With N successes and M failures, M_a on arm a,

        |ĝ∥| ∝ (N c₊ + M c₋ p/(1−p)) |v|,   |ĝ⊥|² ∝ c₋² Σ (M_a − M/(K−1))² = c₋² M/(K−1) · X²,

    |v|² = (1−p)² K/(K−1), and X² is Pearson's statistic, for many samples χ² with K−2 degrees of freedom. So

        P = Σ_N Binomial(N; n, p) · F_χ²( (1/c² − 1) (N c₊ + M c₋ p/(1−p))² |v|² (K−1) / (c₋² M) ).

    c₋ = 0 (the gate at λ = 0): only no success at all fails, P = 1 − (1−p)ⁿ whatever the target.
    """
    mean, deviation = samples * p, math.sqrt(samples * p * (1 - p))
    low, high = max(0, math.floor(mean - 8 * deviation - 20)), math.ceil(mean + 8 * deviation + 20)
    successes = torch.arange(low, min(high, samples) + 1, dtype=torch.float64)
    n = torch.tensor(samples, dtype=torch.float64)
    failures = n - successes
    log_pmf = torch.lgamma(n + 1) - torch.lgamma(successes + 1) - torch.lgamma(failures + 1)
    pmf = (log_pmf + successes * math.log(p) + failures * math.log1p(-p)).exp()
    along = successes * gain + failures * loss * p / (1 - p)
    if loss == 0 or arms == 2:
        return float(pmf[along > 0].sum())
    bound = (1 / target**2 - 1) * along.square() * (1 - p) ** 2 * arms / (loss**2 * failures.clamp(min=1e-300))
    return float((pmf * torch.special.gammainc(torch.tensor((arms - 2) / 2, dtype=torch.float64), bound / 2)).sum())


def samples_needed(p: float, arms: int, gain: float, loss: float, target: float, delta: float) -> float:
    """The number of samples from which on P(cos ≥ target) ≥ 1 − δ.

    Where b is not small against p, this is (c₋/(c₊+c₋) /p)² · Q/(K(1−p)) · c²/(1−c²), Q the (1−δ)-quantile of χ² with
    K−2 degrees of freedom: Ω(1/p²). For c₋ = 0 it is log δ / log(1−p) ≈ log(1/δ)/p samples, log(1/δ) of them kept. In
    between, with b = p: c₋/p does not grow as p falls, and PG too needs only about log(1/δ)/p.
    """
    if gain <= 0:
        return math.inf
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = round(math.sqrt(max(low, 1) * high)) if high > 4 * max(low, 1) else (low + high) // 2
        reached = success_rate(middle, p, arms, gain, loss, target) >= 1 - delta
        low, high = (low, middle) if reached else (middle, high)
    return high


def simulated_need(
    generator: np.random.Generator,
    policy: np.ndarray,
    coefficient: np.ndarray,
    guess: float,
    target: float,
    delta: float,
    replicates: int,
) -> float:
    """The same by simulation: batches that grow around a guess, and the size from which 1 − δ of them reach the target.

    Where the share that does crosses 1 − δ more than once, by chance, the first and the last crossing are averaged.
    """
    sizes = np.unique(np.round(np.geomspace(max(1, guess / 8), max(guess * 8, 10), 16)).astype(np.int64))
    counts = generator.multinomial(np.diff(sizes, prepend=0)[:, None], policy, size=(len(sizes), replicates))
    weighted = counts.cumsum(axis=0) * coefficient  # [sizes, replicates, K]
    update = weighted - weighted.sum(-1, keepdims=True) * policy
    goal = -policy * policy[0]
    goal[0] += policy[0]
    length = np.linalg.norm(update, axis=-1)
    cosine = np.divide(update @ goal / np.linalg.norm(goal), length, out=np.zeros_like(length), where=length > 0)
    good = (cosine >= target).mean(axis=1) - (1 - delta)
    if (good >= 0).all() or (good < 0).all():
        return math.nan
    first, last = int(np.argmax(good >= 0)), len(good) - int(np.argmax(good[::-1] < 0))
    crossings = [
        np.interp(0, good[i - 1 : i + 1], np.log(sizes[i - 1 : i + 1])) for i in (first, last) if 0 < i < len(good)
    ]
    return math.exp(np.mean(crossings)) if crossings else math.nan


@study
@dataclass(frozen=True)
class GradientGeometry(Study):
    """One context, over p.

    J1. At λ = 0 the gate keeps a sample iff U > 0, that is a = 0 (0 ≤ b < 1): it contributes (1−b)(e_0 − π) with
    probability p and nothing otherwise. So the mean is p(1−b)(e_0 − π) ∝ ∇J, every update is along ∇J, and a share p is
    bought; whatever the wrong arms. PG's mean is ∇J for any b, and DG's is along it only if the wrong arms are equal.
    J2: see samples_needed.
    """

    arms: int = knob(10, low=3)
    """K"""
    probs: tuple[float, ...] = knob((0.1,), above=0, below=1)
    """p = π(y*)"""
    skew: float = knob(2.0, low=0)
    """Logits of the wrong arms are spread over ±skew where they are not equal."""
    target: float = knob(0.9, above=0, below=1)
    """The cosine to reach …"""
    delta: float = knob(0.1, above=0, below=1)
    """… with probability 1 − δ."""
    replicates: int = knob(100, low=1)
    """Simulated batches of each size."""

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        policy = policies(self.probs, self.arms)
        keep, coefficient = rule(policy.log(), self.advantage(policy))
        exact = _context(policy, policy, keep, coefficient)
        skewed = policies(self.probs, self.arms, self.skew)
        unequal = _context(skewed, skewed, *rule(skewed.log(), self.advantage(skewed)))
        weighted = (keep * coefficient).tolist()
        needed = [
            samples_needed(p, self.arms, row[0], -row[1], self.target, self.delta)
            for p, row in zip(self.probs, weighted, strict=True)
        ]
        columns: Columns = {"p": same(list(self.probs), streams), "needed": same(needed, streams)}
        columns |= {name: same(value, streams) for name, value in _relative(exact, exact["square"]).items()}
        columns["cosine_skewed"] = same(unequal["cosine"], streams)
        simulated: Columns = {"needed_simulated": []}
        for generator in generators(streams, "geometry"):
            drawn = torch.from_numpy(generator.multinomial(self.batch, policy.numpy()) / self.batch)
            seen = _context(policy, drawn, keep, coefficient)
            for name, value in _relative(seen, exact["square"]).items():
                simulated.setdefault(f"{name}_simulated", []).append(value.tolist())
            simulated["needed_simulated"].append(
                [
                    simulated_need(generator, *each, self.target, self.delta, self.replicates)
                    if math.isfinite(each[2])
                    else math.nan
                    for each in zip(policy.numpy(), np.array(weighted), needed, strict=True)
                ]
            )
        return columns | simulated


def _context(policy: Tensor, behaviour: Tensor, keep: Tensor, coefficient: Tensor) -> dict[str, Tensor]:
    """The geometry of one context. [P, K] → {…: [P]}"""
    return geometry(policy.unsqueeze(-2), (behaviour * keep).unsqueeze(-2), coefficient.unsqueeze(-2))


def _relative(parts: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    """Variances of one sample in units of the true mean squared: so many samples make noise and signal equal."""
    return {
        "share": parts["share"],
        "cosine": parts["cosine"],
        "parallel": parts["parallel"] / scale,
        "perpendicular": parts["perpendicular"] / scale,
    }


@study
@dataclass(frozen=True)
class PriceGeometry(Study):
    """Many contexts, from unsolved to solved, at one price: what a backward pass buys.

    PG is λ = −∞. Up to λ = 0 the price rids the batch of failures, the most surprising of the surest policy first;
    above 0 of the successes that were no surprise. `gain` is ⟨E g, n⟩, the first-order progress per sample and unit of
    step; `gain_backward` the same per backward pass; `budget_cosine` the batch cosine when B backward passes, rather
    than B samples, are paid for.
    """

    arms: int = knob(10, low=3)
    """K"""
    contexts: int = knob(50, low=1)
    """p is evenly spaced in its logit, from `low` to `high`."""
    low: float = knob(0.01, above=0, below=1)
    high: float = knob(0.99, above=0, below=1)

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        low, high = torch.tensor([self.low, self.high], dtype=torch.float64).logit()
        policy = policies(torch.linspace(low, high, self.contexts, dtype=torch.float64).sigmoid(), self.arms)  # [C, K]
        keep, coefficient = rule(policy.log(), self.advantage(policy))
        columns = {name: same(x, streams) for name, x in self._bought(policy, policy, keep, coefficient).items()}
        drawn: dict[str, list[float]] = {}
        for generator in generators(streams, "price"):
            everything = policy.numpy().ravel() / self.contexts
            counts = generator.multinomial(100 * self.batch, everything).reshape(policy.shape)
            kept = torch.from_numpy(generator.binomial(counts, keep.numpy()) / counts.clip(min=1))
            behaviour = torch.from_numpy(counts / (100 * self.batch)) * self.contexts
            for name, value in self._bought(policy, behaviour, kept, coefficient).items():
                drawn.setdefault(f"{name}_simulated", []).append(value)
        return columns | drawn

    def _bought(self, policy: Tensor, behaviour: Tensor, keep: Tensor, coefficient: Tensor) -> dict[str, float]:
        parts = geometry(policy, behaviour * keep / self.contexts, coefficient)
        share = parts["share"]
        return {
            "share": float(share),
            "cosine": float(parts["cosine"]),
            "gain": float(parts["signal"]),
            "gain_backward": float(parts["signal"] / share),
            "batch_cosine": float(batch_cosine(parts, self.batch)),
            "budget_cosine": float(batch_cosine(parts, self.batch / share)),
        }
