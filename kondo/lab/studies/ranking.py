"""What a priority puts first: J3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, policies, same, study
from kondo.schema import knob


def critical_alpha(p: Tensor, arms: int) -> Tensor:
    """α* below which αU + (1−α)ℓ ranks a failure above a success of the same context; equal wrong arms.

    Success: U = 1 − b, ℓ = −log p. Failure: U = −b, ℓ = −log q, q = (1−p)/(K−1). The advantages differ by 1 whatever b,
    so the failure is ranked higher iff

        (1−α)(log p − log q) > α   ⟺   (1−α) L > α   ⟺   α < L/(1+L),   L = log(p(K−1)/(1−p)),

    where the last step needs L > −1. The paper's α* = L/(1+L) is the boundary for L > 0, that is p > 1/K. Below, a
    success is the more surprising of the two, and no α mis-ranks: L/(1+L) is negative for −1 < L < 0, and for L < −1 it
    is above 1 and must not be read as a boundary (dividing by 1 + L turned the inequality round). So α* = L⁺/(1+L⁺).

    What else it rests on: a reward gap of 1 (a gap g makes it L/(g+L)); one context (across two, the advantages differ
    by 1 + b_failure − b_success); equal wrong arms (a rarer one has its own, higher boundary, so that below it a part
    of the failures is ranked too high). Delight needs none of this: U > 0 of a success and U ≤ 0 of a failure, for any
    0 ≤ b < 1 in any context, and ℓ > 0 leaves the sign.
    """
    surplus = (p.log() + math.log(arms - 1) - torch.log1p(-p)).clamp(min=0)
    return surplus / (1 + surplus)


@study
@dataclass(frozen=True)
class PriorityRanking(Study):
    """How much of the failures the gate's priority ranks above the successes of the same context, over p."""

    arms: int = knob(10, low=3)
    """K"""
    probs: tuple[float, ...] = knob((0.1,), above=0, below=1)
    """p = π(y*)"""
    skew: float = knob(2.0, low=0)
    """Logits of the wrong arms are spread over ±skew where they are not equal."""

    needs: ClassVar[tuple[str, ...]] = ("gate",)

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        probs = torch.tensor(self.probs, dtype=torch.float64)
        columns: Columns = {
            "p": same(list(self.probs), streams),
            "critical": same(critical_alpha(probs, self.arms), streams),
        }
        ties = lambda: torch.zeros(len(probs), self.arms, dtype=torch.float64)  # noqa: E731  chance has no order
        for name, policy in (
            ("misranked", policies(probs, self.arms)),
            ("misranked_skewed", policies(probs, self.arms, self.skew)),
        ):
            advantage, surprisal = self.advantage(policy), -policy.log()
            rank = rule.rank(advantage, surprisal, ties)
            above = (rank > rank[:, :1])[:, 1:].double()
            columns[name] = same((above * policy[:, 1:]).sum(-1) / (1 - probs), streams)
            columns[f"{name}_simulated"] = self._simulate(rule, policy, advantage, streams, name)
        return columns

    def _simulate(self, rule: Rule, policy: Tensor, advantage: Tensor, streams: Streams, name: str) -> list[object]:
        """A batch from each policy: the share of its (success, failure) pairs that are in the wrong order."""
        shape = (len(self.probs), self.batch)
        cumulative = policy.cumsum(-1).expand(len(streams.seeds), -1, -1).contiguous()
        actions = torch.searchsorted(cumulative, streams.uniform(name, 0, shape).double(), right=True)  # [S, P, B]
        actions = actions.clamp(max=self.arms - 1)  # the sum of all may round below 1
        every = lambda x: x.expand(len(streams.seeds), *x.shape).gather(-1, actions)  # noqa: E731
        noise = lambda: streams.uniform(f"{name}.priority", 0, shape).double()  # noqa: E731
        rank = rule.rank(every(advantage), -every(policy.log()), noise)
        right = actions == 0
        order = torch.where(right, rank, torch.inf).sort(dim=-1).values  # successes, lowest first
        beaten = torch.searchsorted(order, rank.contiguous())  # how many successes each sample is strictly above
        wrong = torch.where(right, 0, beaten).sum(-1)
        return (wrong / (right.sum(-1) * (~right).sum(-1))).tolist()  # NaN without a pair
