"""The weight a method puts on a sample's policy gradient, by advantage and probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kondo.lab.streams import Streams
from kondo.lab.studies.base import Columns, Rule, Study, generators, same, study
from kondo.schema import knob


@study
@dataclass(frozen=True)
class GateCoefficient(Study):
    """w in Σ w U ∇log π, expected over the gate's coin: 1 for PG, σ(χ/η) for DG, 1{χ > λ} for the hard gate, and
    σ((χ − λ)/η) for the Bernoulli gate, whose expected update at λ = 0 and η = 1 is therefore DG's."""

    advantages: tuple[float, ...] = knob((0.5,), low=-1, high=1)
    """U"""
    probs: tuple[float, ...] = knob((0.1,), above=0, below=1)
    """π(a)"""

    def measure(self, rule: Rule, streams: Streams) -> Columns:
        advantage, prob = (
            x.flatten()
            for x in torch.meshgrid(
                torch.tensor(self.advantages, dtype=torch.float64),
                torch.tensor(self.probs, dtype=torch.float64),
                indexing="ij",
            )
        )
        keep, coefficient = (x.squeeze(-1) for x in rule(prob.log().unsqueeze(-1), advantage.unsqueeze(-1)))
        weight = coefficient / advantage
        tossed = [generator.binomial(self.batch, keep.numpy()) for generator in generators(streams, "coin")]
        return {
            "advantage": same(advantage, streams),
            "prob": same(prob, streams),
            "weight": same(keep * weight, streams),
            "weight_simulated": [(torch.from_numpy(heads) / self.batch * weight).tolist() for heads in tossed],
        }
