"""Samples of another policy among one's own: D2 and D3."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, generators, policies, same, study
from kondo.lab.studies.geometry import batch_cosine, geometry
from kondo.schema import knob


def population(delta: float, contexts: int, arms: int) -> Tensor:
    """A share δ of the contexts is undecided between the right arm and a wrong one; the others err with δ. [C, K]"""
    policy = policies((1 - delta,), arms).repeat(contexts, 1)
    undecided = round(delta * contexts)
    policy[:undecided] = delta / (arms - 2)
    policy[:undecided, :2] = (1 - delta) / 2
    return policy


def collapse(delta: Tensor, share: float, arms: int) -> Tensor:
    """cos(E PG, ∇J) to leading order in δ, for b = Σπ² and a share ρ of uniform samples: A √δ.

    Per decided context a failure, with probability ρ(K−1)/K, adds b p/(1−p) (e_0 − π): a push of length
    X = ρ√((K−1)/K), though ∇J has only δ√(K/(K−1)) there. Per undecided one, ∇J is g = ½(½, −½, 0 …), |g|² = ⅛, and
    PG's mean has ⟨m, g⟩ = β/4, β = (1−ρ)/2 + ρ/K. Undecided contexts are a share δ, so

        |∇J|² → δ/8,   |E PG|² → X²,   ⟨E PG, ∇J⟩ → δ(β/4 + ρ),   A = (β/4 + ρ) / (X√⅛).

    DG's weight on those failures is σ(−bℓ) ≈ δ/(K−1): its push is O(δ) like ∇J's, and 1 − cos = O(δ). The gate at
    λ = 0 has none. In one context with equal wrong arms every method's mean is along ∇J: it takes several to see this.
    """
    push = share * ((arms - 1) / arms) ** 0.5
    own = (1 - share) / 2 + share / arms
    return delta.sqrt() * (own / 4 + share) / (push * 0.125**0.5)


def best_blind(policy: Tensor, behaviour: Tensor, advantage: Tensor, samples: float) -> float:
    """The highest batch cosine of any weight w ≥ 0 that does not see the sign of U: w is a function of π(a).

    (β is a function of π here, so that w may be one of both.) Such a w has one value per distinct probability, and with
    m_k = ⟨E g_k, n⟩ and A_kl = ⟨E g_k, E g_l⟩(1 − 1/B) + 1{k=l} E|g_k|²/B for the samples of class k alone, the cosine
    is w·m/√(w·Aw): highest at w ∝ A⁻¹m over the classes with w > 0, of which there are few enough to try all.
    """
    contexts = len(policy)
    _, label = torch.unique((policy.log() * 1e6).round(), return_inverse=True)
    classes = int(label.max()) + 1
    goal = -policy[:, :1] * policy
    goal[:, 0] += policy[:, 0]
    unit = goal / goal.norm()
    means, squares = [], []
    for k in range(classes):
        weighted = behaviour / contexts * advantage * (label == k)
        means.append((weighted - weighted.sum(-1, keepdim=True) * policy).flatten())
        length = 1 - 2 * policy + policy.square().sum(-1, keepdim=True)
        squares.append((weighted * advantage * length).sum())
    mean = torch.stack(means)
    signal = mean @ unit.flatten()
    spread = mean @ mean.T * (1 - 1 / samples) + torch.diag(torch.stack(squares) / samples)
    best = -1.0
    for size in range(1, classes + 1):
        for chosen in map(list, itertools.combinations(range(classes), size)):
            weight = torch.linalg.lstsq(spread[chosen][:, chosen], signal[chosen, None], driver="gelsd").solution[:, 0]
            if (weight >= 0).all():
                power = (weight @ spread[chosen][:, chosen] @ weight).sqrt()
                best = max(best, float(weight @ signal[chosen] / power))
    return best


@study
@dataclass(frozen=True)
class Contamination(Study):
    """A share ρ of uniformly random samples among the policy's own, as the policy improves: δ → 0."""

    arms: int = knob(10, low=3)
    """K"""
    contexts: int = knob(1000, low=2)
    deltas: tuple[float, ...] = knob((0.1,), above=0, below=1)
    """δ: share of undecided contexts, and the error in the others"""
    share: float = knob(0.5, low=0, high=1)
    """ρ"""
    replicates: int = knob(10, low=1)
    """Simulated batches."""

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        rows = [self._at(rule, delta, i, streams) for i, delta in enumerate(self.deltas)]
        columns = {name: [list(entry) for entry in zip(*(row[name] for row in rows), strict=True)] for name in rows[0]}
        predicted = collapse(torch.tensor(self.deltas, dtype=torch.float64), self.share, self.arms)
        return {"delta": same(list(self.deltas), streams), "collapse": same(predicted, streams), **columns}

    def _at(self, rule: Rule, delta: float, place: int, streams: Streams) -> Columns:
        policy = population(delta, self.contexts, self.arms)
        behaviour = (1 - self.share) * policy + self.share / self.arms
        advantage = self.advantage(policy)
        keep, coefficient = rule(policy.log(), advantage, behaviour.log())
        parts = geometry(policy, behaviour * keep / self.contexts, coefficient)
        simulated = []
        for generator in generators(streams, f"contamination {place}"):
            every = generator.multinomial(self.batch, (behaviour / self.contexts).numpy().ravel(), self.replicates)
            kept = torch.from_numpy(generator.binomial(every, keep.numpy().ravel())).view(-1, *policy.shape)
            weighted = kept * coefficient / self.batch
            update = weighted - weighted.sum(-1, keepdim=True) * policy
            goal = -policy[:, :1] * policy
            goal[:, 0] += policy[:, 0]
            signal = (update * goal / goal.norm()).sum(dim=(-2, -1)).mean()
            simulated.append(float(signal / update.square().sum(dim=(-2, -1)).mean().sqrt()))
        return {
            "cosine": same(float(parts["cosine"]), streams),
            "batch_cosine": same(float(batch_cosine(parts, self.batch)), streams),
            "batch_cosine_simulated": simulated,
            "blind": same(best_blind(policy, behaviour, advantage, 1e9), streams),
            "batch_blind": same(best_blind(policy, behaviour, advantage, self.batch), streams),
        }
