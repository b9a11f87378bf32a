# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo", "scikit-learn"]
#
# [tool.uv.sources]
# kondo = { path = ".." }
# ///
"""PG, DG and the Kondo gate (DG-K) on MNIST as a bandit: see a digit, name it, learn only whether that was right.

    python examples/mnist_kondo.py --methods pg dg dgk --steps 10000        # downloads MNIST
    python examples/mnist_kondo.py --dataset digits --steps 1000            # smaller images, no download

One seed, a plain network, nothing of the experiment suite but the images. What the gate skips is not in the graph.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from kondo.lab.tasks import data


# --8<-- [start:method]
def update(
    policy: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, actions: Tensor, method: str, rate: float
) -> int:
    """One step on a batch of guesses; returns how many samples were in the backward pass."""
    with torch.no_grad():  # screen: what the forward pass already says
        log_policy = policy(x).log_softmax(dim=-1)  # [B, K]
        log_prob = log_policy.gather(1, actions[:, None])[:, 0]  # [B]
        reward = (actions == y).float()
        advantage = reward - log_policy.exp().square().sum(dim=-1)  # U = R − Σπ²
        delight = advantage * -log_prob  # χ = U · ℓ
        keep = torch.arange(len(x))
        weight = torch.ones_like(advantage)
        if method == "dg":
            weight = delight.sigmoid()
        if method == "dgk":  # the most delightful ρ of the batch
            keep = delight.topk(max(1, int(rate * len(x) + 1e-9))).indices

    kept = policy(x[keep]).log_softmax(dim=-1).gather(1, actions[keep][:, None])[:, 0]  # a graph of the survivors
    loss = -(weight[keep] * advantage[keep] * kept).sum() / len(x)  # divided by the whole batch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return len(keep)


# --8<-- [end:method]


def network(pixels: int) -> nn.Sequential:
    """The paper's network."""
    return nn.Sequential(nn.Linear(pixels, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


@torch.no_grad()
def test_error(policy: nn.Module, images: data.Images) -> float:
    """Of the greedy policy."""
    guesses = policy(images.test * images.scale).argmax(dim=-1)
    return (guesses != images.test_labels).float().mean().item()


def train(images: data.Images, method: str, steps: int, rate: float = 0.03, batch: int = 100, seed: int = 0) -> float:
    """Train from nothing, tell how it goes, and return the final test error."""
    torch.manual_seed(seed)
    policy = network(images.train.shape[1])
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    backward = 0
    for step in range(1, steps + 1):
        index = torch.randint(len(images.train), (batch,))
        x, y = images.train[index] * images.scale, images.train_labels[index]
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=policy(x)).sample()
        backward += update(policy, optimizer, x, y, actions, method, rate)
        if step % max(1, steps // 5) == 0:
            error = test_error(policy, images)
            print(
                f"{method:<4} {step * batch:>9,} forward {backward:>9,} backward   test error {error:.2%}", flush=True
            )
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description="PG, DG and DG-K on MNIST in one file.")
    parser.add_argument("--methods", nargs="+", default=["pg", "dg", "dgk"], choices=["pg", "dg", "dgk"])
    parser.add_argument("--dataset", default="mnist", choices=data.DATASETS)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.03, help="ρ: the share of samples that DG-K keeps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # so small a network is faster on one
    data.ensure(asked.dataset, asked.data)
    images = data.load(asked.dataset, asked.data)
    for method in asked.methods:
        train(images, method, asked.steps, asked.rate, seed=asked.seed)


if __name__ == "__main__":
    main()
