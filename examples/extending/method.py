# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo"]
#
# [tool.uv.sources]
# kondo = { path = "../.." }
# ///
"""Adds a method: DG with a tempered advantage, Σ σ(χ/η) sign(U)|U|^κ ∇log π, which hears small advantages as well.

python examples/extending/method.py
KONDO_EXTENSIONS=examples/extending python -m experiments.run -m task=bandit method=dg,dg_tempered scale=smoke
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from kondo import lab
from kondo.objectives import dg, method
from kondo.schema import limits


@method
def dg_tempered(
    log_prob: Tensor,
    advantage: Tensor,
    delight: Tensor,
    *,
    temperature: Annotated[float, limits(above=0)] = 1.0,
    power: Annotated[float, limits(above=0, high=1)] = 0.5,
) -> Tensor:
    """Σ σ(χ/η) sign(U)|U|^κ ∇log π: κ = 1 is DG"""
    tempered = torch.sign(advantage) * advantage.abs() ** power
    return dg(log_prob, tempered, delight, temperature=temperature)


def main() -> None:
    for chosen in ({"name": "pg"}, {"name": "dg"}, {"name": "dg_tempered"}, {"name": "dg_tempered", "power": 0.25}):
        cell = {"task": {"name": "bandit", "contexts": 20}, "method": chosen, "optimizer": {"lr": 0.03}, "steps": 200}
        rows = lab.train(cell, seeds=4)
        errors = [row["policy_error"] for row in rows if row["step"] == 200]
        print(f"{chosen}: error {sum(errors) / len(errors):.3f}")


if __name__ == "__main__":
    main()
