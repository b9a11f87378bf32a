# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo"]
#
# [tool.uv.sources]
# kondo = { path = ".." }
# ///
"""A producer process samples with old weights, a consumer trains on what a filter keeps: a bandit of 50 arms, one pays.

python examples/async_filter.py --steps 200 --rate 0.1
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any

import torch

from kondo.filter import SampleFilter

ARMS, BEST = 50, 7


def produce(samples: Queue[Any], weights: Queue[Any]) -> None:
    """Pull arms with the latest weights there are, until told to stop."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    version, logits = weights.get()
    while True:
        while not weights.empty():
            version, logits = weights.get()
        if logits is None:
            break
        log_policy = torch.tensor(logits).log_softmax(-1)
        arm = int(torch.multinomial(log_policy.exp(), 1))
        baseline = log_policy.exp().square().sum().item()
        advantage = float(arm == BEST) - baseline
        samples.put({"arm": arm, "log_probs": log_policy[arm].item(), "advantage": advantage, "version": version})
    samples.cancel_join_thread()


def drawn(samples: Queue[Any]) -> Iterator[dict[str, Any]]:
    while True:
        yield samples.get(timeout=60)


def train(steps: int, rate: float, size: int = 16) -> tuple[float, dict[str, float]]:
    """The probability of the arm that pays, and what the filter counted."""
    context = get_context("spawn")
    samples, weights = context.Queue(maxsize=64), context.Queue()
    producer = context.Process(target=produce, args=(samples, weights), daemon=True)
    producer.start()
    logits = torch.zeros(ARMS, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    keep = SampleFilter(rate=rate, history=128, warmup=32, max_staleness=50)
    weights.put((0, logits.tolist()))
    for batch in keep.batches(drawn(samples), size):
        arms, advantages = (torch.tensor([each[name] for each in batch]) for name in ("arm", "advantage"))
        loss = -(advantages * logits.log_softmax(-1)[arms]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep.version += 1
        weights.put((keep.version, None if keep.version == steps else logits.tolist()))
        if keep.version == steps:
            break
    producer.join(timeout=60)
    producer.terminate()
    return logits.softmax(-1)[BEST].item(), keep.metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the samples to keep; 1 keeps all that teach")
    asked = parser.parse_args()
    best, counted = train(asked.steps, asked.rate)
    print(f"probability of the arm that pays: {best:.3f} (from {1 / ARMS:.3f}), {asked.steps} steps")
    print(", ".join(f"{name} {value:.3g}" for name, value in counted.items()))


if __name__ == "__main__":
    main()
