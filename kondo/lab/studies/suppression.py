"""What becomes of surprising failures, and of surprising successes, when some samples are random: D2′ and D3′."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, generators, policies, same, study
from kondo.schema import knob


def sure(delta: float, contexts: int, unsolved: int, arms: int) -> Tensor:
    """Contexts whose policy has 1 − δ on one arm and q = δ/(K−1) on each other: the right one if solved. [C, K]"""
    policy = policies((1 - delta,), arms).repeat(contexts, 1)
    policy[:unsolved] = policy[:unsolved].roll(1, dims=-1)
    return policy


@study
@dataclass(frozen=True)
class Suppression(Study):
    """A share ρ of uniformly random samples, β = (1−ρ)π + ρ/K, as the policy grows sure: δ → 0. Rare: π(a) = q.

    D2′: `factor` is E_β[(wU)²|g⊥|²; rare failure] over the same with w = 1, which is PG's; g = e_a − π, and ⊥ is across
    ∇J of all contexts. The policies of the contexts are permutations of one another, so a baseline b that is a function
    of the policy is the same everywhere; a rare failure has U = −b and ℓ = −log q, so w is the same for all of them and
    comes out of the expectation: the factor is w², whatever g and the population.

        PG    w = 1
        DG    w = σ(−bℓ) = q^b/(1 + q^b):  the factor vanishes as q^2b, so as δ² for b = Σπ² → 1, as δ for b = ½
        DG-K  w = 0 at λ = 0
        IS    w = π/β = q/((1−ρ)q + ρ/K) → qK/ρ:  the factor vanishes as δ², no slower than DG's

    (μ = π in place of β, a report that knows nothing of the random samples, makes IS-PG PG: the factor is then 1.) With
    b = π(y*), which sees the label, the failures of unsolved contexts have U = −q: they add terms of order q² alone.

    D3′: `failure` and `success` are the mean weights of rare failures and of rare successes. A weight that is a
    function of π(a), or of β(a), which is one itself, has one value wherever π(a) = q, and cannot tell them apart:
    equality is an identity, and all there is to check is that the code's weights obey it. Delight sees the sign of U: a
    rare success has w = σ((1−b)ℓ) = 1/(1 + q^(1−b)), which tends to 1 for b < 1, and to ½ for b = Σπ², as its U = 1 − b
    vanishes with δ. (With b = π(y*) it is the rare failures of unsolved contexts whose U vanishes: their w tends to ½,
    and the mean over all rare failures to something between.)
    """

    baseline: str = knob("confidence", choices=("confidence", "half", "oracle"))
    """b"""
    arms: int = knob(10, low=3)
    """K"""
    contexts: int = knob(20, low=2)
    unsolved: int = knob(10, low=1)
    """How many of the contexts are sure of a wrong arm."""
    deltas: tuple[float, ...] = knob((0.1,), above=0, below=1)
    """δ"""
    share: float = knob(0.5, above=0, high=1)
    """ρ"""

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        rows = [self._at(rule, delta, i, streams) for i, delta in enumerate(self.deltas)]
        columns = {name: [list(entry) for entry in zip(*(row[name] for row in rows), strict=True)] for name in rows[0]}
        return {"delta": same(list(self.deltas), streams), **columns}

    def _at(self, rule: Rule, delta: float, place: int, streams: Streams) -> Columns:
        policy = sure(delta, self.contexts, self.unsolved, self.arms)
        behaviour = (1 - self.share) * policy + self.share / self.arms
        advantage = self.advantage(policy)
        across = self._across(policy)
        rare = torch.isclose(policy, torch.tensor(delta / (self.arms - 1), dtype=torch.float64), rtol=1e-9, atol=0)
        success = torch.zeros_like(rare)
        success[:, 0] = True
        failures, successes = rare & ~success, rare & success
        keep, coefficient = rule(policy.log(), advantage, behaviour.log())
        drawn = behaviour / self.contexts
        moment = (drawn * advantage.square() * across)[failures].sum()  # PG's
        weight = keep * coefficient / advantage
        exact = {
            "factor": (drawn * keep * coefficient.square() * across)[failures].sum() / moment,
            "failure": (drawn * weight)[failures].sum() / drawn[failures].sum(),
            "success": (drawn * weight)[successes].sum() / drawn[successes].sum(),
        }
        columns = {name: same(float(value), streams) for name, value in exact.items()}
        for generator in generators(streams, f"suppression {place}"):
            where = torch.from_numpy(generator.choice(drawn.numel(), self.batch, p=drawn.numpy().ravel()))
            sample = {"log_prob": policy.log(), "advantage": advantage, "actor_log_prob": behaviour.log()}
            keep, coefficient = rule(**{name: value.flatten()[where] for name, value in sample.items()})
            tossed = torch.from_numpy(generator.random(self.batch)) < keep
            gradient = self._gradients(policy, where) * (tossed * coefficient).unsqueeze(-1)
            square = self._perpendicular(policy, where, gradient) * failures.flatten()[where]
            weight = tossed * coefficient / sample["advantage"].flatten()[where]
            seen = {
                "factor": square.mean() / moment,
                "failure": weight[failures.flatten()[where]].mean(),
                "success": weight[successes.flatten()[where]].mean(),
            }
            for name, value in seen.items():
                columns.setdefault(f"{name}_simulated", []).append(float(value))
        return columns

    def _unit(self, policy: Tensor) -> Tensor:
        """The unit vector along ∇J. [C, K]"""
        goal = -policy[:, :1] * policy
        goal[:, 0] += policy[:, 0]
        return goal / goal.norm()

    def _across(self, policy: Tensor) -> Tensor:
        """|g⊥|² of every arm: |e_a − π|² = 1 − 2π_a + |π|², less the square along ∇J. [C, K]"""
        unit = self._unit(policy)
        along = unit - (policy * unit).sum(-1, keepdim=True)
        return 1 - 2 * policy + policy.square().sum(-1, keepdim=True) - along.square()

    def _gradients(self, policy: Tensor, where: Tensor) -> Tensor:
        """e_a − π of some samples, in the logits of their own context. [n, K]"""
        return torch.eye(self.arms, dtype=torch.float64)[where % self.arms] - policy[where // self.arms]

    def _perpendicular(self, policy: Tensor, where: Tensor, gradient: Tensor) -> Tensor:
        """The squared length of some gradients across ∇J. [n]"""
        along = (gradient * self._unit(policy)[where // self.arms]).sum(-1)
        return gradient.square().sum(-1) - along.square()
