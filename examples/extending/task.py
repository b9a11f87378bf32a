# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo"]
#
# [tool.uv.sources]
# kondo = { path = "../.." }
# ///
"""Adds a task: XOR as a contextual bandit of two arms, with labels that are wrong now and then.

python examples/extending/task.py
KONDO_EXTENSIONS=examples/extending python -m experiments.run -m task=noisyxor method=pg,dg,dgk scale=smoke
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kondo import lab
from kondo.lab.baselines import BASELINES
from kondo.lab.policies.mlp import MLP, Parameters
from kondo.lab.streams import Streams
from kondo.lab.tasks import Contexts, FiniteTask, task
from kondo.schema import knob


@task
@dataclass(frozen=True)
class NoisyXor(FiniteTask):
    """R = 1{a = x₁ xor x₂}, but 1{a ≠ x₁ xor x₂} where the label is wrong; no linear policy can learn it."""

    noise: float = knob(0.1, low=0, below=0.5)
    """How often a label is wrong."""
    hidden: tuple[int, ...] = knob((16,), low=1)
    """Widths of the hidden layers."""
    batch: int = knob(100, low=1)
    """B: samples per step."""
    baseline: str = knob("confidence", choices=BASELINES)
    """b"""

    error: ClassVar[str] = "policy_error"

    @property
    def size(self) -> int:
        return 4

    def policy(self) -> MLP:
        return MLP((2, *self.hidden, 2))

    def at(self, index: Tensor) -> Contexts:
        bits = torch.stack([index // 2, index % 2], dim=-1)  # [S, B, 2]
        return Contexts(inputs=bits.float() * 2 - 1, targets=bits.sum(dim=-1) % 2)

    def draw(self, streams: Streams, step: int) -> Contexts:
        clean = self.at(streams.below(self.size, "context", step, (self.batch,)))
        wrong = streams.uniform("label", step, (self.batch,)) < self.noise
        return replace(clean, targets=torch.where(wrong, 1 - clean.targets, clean.targets))

    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        return (actions == contexts.targets).float()

    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """1 − π(y*) over the four contexts, exactly, with the right labels."""
        every = self.at(torch.arange(self.size, device=streams.device).expand(len(streams.seeds), -1))
        log_policy = self.policy().log_policy(parameters, every.inputs)  # [S, 4, 2]
        wrong = log_policy.exp().scatter(-1, every.targets.unsqueeze(-1), 0.0)
        return {"policy_error": wrong.sum(dim=-1).mean(dim=1)}


def main() -> None:
    for noise in (0.0, 0.3):
        for method in ("pg", "dg", "dgk"):
            chosen = {"name": "noisyxor", "noise": noise}
            rows = lab.train(
                {"task": chosen, "method": {"name": method}, "optimizer": {"lr": 0.01}, "steps": 300}, seeds=4
            )
            errors = [row["policy_error"] for row in rows if row["step"] == 300]
            print(f"noise {noise}, {method}: error {sum(errors) / len(errors):.3f}")


if __name__ == "__main__":
    main()
