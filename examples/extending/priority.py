# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo"]
#
# [tool.uv.sources]
# kondo = { path = "../.." }
# ///
"""Adds a priority: U·(1 − π(a)), advantage times the size of the sample's own logit gradient; bounded, unlike delight.

python examples/extending/priority.py
KONDO_EXTENSIONS=examples/extending python -m experiments.run -m gate.priority=delight,gradient_size scale=smoke
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kondo import lab
from kondo.gate import priority


@priority
def gradient_size(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """U·(1 − π(a)), where π(a) = e^−ℓ"""
    return advantage * -torch.expm1(-surprisal)


def main() -> None:
    for chosen in ("uniform", "delight", "gradient_size"):
        gate = {"rate": 0.1, "priority": chosen}
        cell = {"task": {"name": "bandit", "contexts": 20}, "method": {"name": "dgk"}, "gate": gate}
        rows = lab.train(cell | {"optimizer": {"lr": 0.03}, "steps": 200}, seeds=4)
        errors = [row["policy_error"] for row in rows if row["step"] == 200]
        print(f"{chosen}: error {sum(errors) / len(errors):.3f} after {rows[-1]['backward']} backward passes a seed")


if __name__ == "__main__":
    main()
