# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo", "scikit-learn"]
#
# [tool.uv.sources]
# kondo = { path = "../.." }
# ///
"""Adds a screen: the learner's policy with the smaller half of each weight matrix set to zero.

python examples/extending/screen.py
KONDO_EXTENSIONS=examples/extending python -m experiments.run -m task=digits screen.source=exact,pruned scale=smoke
"""

from __future__ import annotations

import torch
from torch import Tensor

from kondo import lab
from kondo.lab.policies.mlp import views
from kondo.lab.screens import PolicyScreen, screen


@screen
class Pruned(PolicyScreen):
    """log π with weights below their median size left out."""

    def log_policy(self, inputs: Tensor, actions: Tensor, step: int) -> Tensor:
        parameters = views(self.flat, self.policy.shapes())
        return self.policy.log_policy({name: pruned(value) for name, value in parameters.items()}, inputs, actions)


def pruned(weights: Tensor) -> Tensor:
    """[S, …] → [S, …]"""
    size = weights.abs()
    median = size.flatten(1).median(dim=1).values.view(-1, *[1] * (weights.dim() - 1))
    return torch.where(size >= median, weights, 0.0)


def main() -> None:
    task = {"name": "mnist", "dataset": "digits", "hidden": [50]}
    for source in ("exact", "int8", "pruned"):
        cell = {"task": task, "method": {"name": "dgk"}, "gate": {"rate": 0.1}, "screen": {"source": source}}
        rows = lab.train(cell | {"optimizer": {"lr": 0.01}, "probe": {"name": "agreement"}, "steps": 200}, seeds=4)
        ends = [row for row in rows if row["step"] == 200]
        found, error = (sum(row[name] for row in ends) / len(ends) for name in ("recall", "test_error"))
        print(f"{source}: finds {found:.0%} of what exact delight would keep, error {error:.3f}")


if __name__ == "__main__":
    main()
