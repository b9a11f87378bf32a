"""Images as a contextual bandit: see a digit, name it, learn only whether that was right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from kondo.lab.baselines import BASELINES
from kondo.lab.policies.mlp import MLP, Parameters
from kondo.lab.streams import Streams
from kondo.lab.tasks import data
from kondo.lab.tasks.base import Contexts, FiniteTask, task
from kondo.schema import knob

CHUNK = 1000  # test images evaluated at a time


@task
@dataclass
class Mnist(FiniteTask):
    """R = 1{a = label}. Arms beyond the ten digits never pay."""

    dataset: str = knob("mnist", choices=data.DATASETS)
    arms: int = knob(10, low=10)
    """K"""
    hidden: tuple[int, ...] = knob((100, 100), low=1)
    """Widths of the hidden layers."""
    batch: int = knob(100, low=1)
    """B: images per step."""
    samples: int = knob(1, low=1)
    """S: guesses at each image."""
    baseline: str = knob("confidence", choices=BASELINES)
    """b"""

    error: ClassVar[str] = "test_error"

    def fetch(self, root: Path) -> None:
        data.ensure(self.dataset, root)

    def prepare(self, root: Path, device: torch.device | str) -> None:
        self.images = data.load(self.dataset, root).to(device)

    def policy(self) -> MLP:
        return MLP((self.images.train.shape[1], *self.hidden, self.arms), self.images.rows, self.samples)

    @property
    def group(self) -> int:
        return self.samples

    @property
    def size(self) -> int:
        """Number of training images."""
        return len(self.images.train)

    def draw(self, streams: Streams, step: int) -> Contexts:
        contexts = self.at(streams.below(self.size, "context", step, (self.batch,)))
        return Contexts(contexts.inputs, contexts.targets.repeat_interleave(self.samples, dim=1))

    def at(self, index: Tensor) -> Contexts:
        """Training images by number. [S, B] → contexts"""
        return Contexts(inputs=index, targets=self.images.train_labels.take(index))

    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        return (actions == contexts.targets).float()

    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """On the test images: error of the greedy policy, error of the policy as it samples, and its entropy."""
        policy, seeds, count = self.policy(), len(streams.seeds), len(self.images.test)
        totals = torch.zeros(3, seeds, device=streams.device)
        for first in range(0, count, CHUNK):
            chunk = torch.arange(first, min(first + CHUNK, count), device=streams.device)
            inputs, labels = (self.size + chunk).expand(seeds, -1), self.images.test_labels[chunk].expand(seeds, -1)
            log_policy = policy.log_policy(parameters, inputs)  # [S, CHUNK, K]
            right = log_policy.argmax(dim=-1) == labels
            wrong = log_policy.exp().scatter(-1, labels.unsqueeze(-1), 0.0)
            entropy = -(log_policy.exp() * log_policy).sum(dim=-1)
            totals += torch.stack([(~right).float().sum(dim=1), wrong.sum(dim=(1, 2)), entropy.sum(dim=1)])
        test_error, policy_error, entropy = totals / count
        return {"test_error": test_error, "policy_error": policy_error, "entropy": entropy}
