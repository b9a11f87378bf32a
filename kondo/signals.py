"""What a forward pass already knows about a sample: its surprisal and its delight.

Nothing here ever carries a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def surprisal(log_probs: Tensor) -> Tensor:
    """ℓ = −log π(a|h) under the learner's current policy."""
    return -log_probs.detach()


def delight(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """χ = U · ℓ, the advantage times the surprisal.

    A sample with zero advantage has zero delight, however surprising (0 · ∞ = 0): there is nothing to learn from it.
    """
    advantages = advantages.detach()
    return torch.where(advantages == 0, 0.0, advantages * surprisal(log_probs))


def dg_weight(delight: Tensor, temperature: float = 1.0, *, unit_gain: bool = False) -> Tensor:
    """w = σ(χ/η), which is ½ for a neutral sample; with unit gain 2σ(χ/η), which is 1: where all delight is small, DG
    is then policy gradient and not half of it."""
    weight = torch.sigmoid(delight / temperature)
    return 2 * weight if unit_gain else weight


def expected_confidence_baseline(probs: Tensor) -> Tensor:
    """b = Σ_a π(a)²: the reward the policy would expect if it were right as often as it is sure. [..., K] → [...]

    It needs no label, only the policy's own probabilities.
    """
    return probs.detach().square().sum(dim=-1)


def action_log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    """log π(a|h) of the actions taken. [..., K], [...] → [...]"""
    return taken(logits.log_softmax(dim=-1), actions)


def taken(log_policy: Tensor, actions: Tensor) -> Tensor:
    """The entries of log π(·|h) at the actions. [..., K], [...] → [...]"""
    return log_policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
