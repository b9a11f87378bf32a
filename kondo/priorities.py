"""Priorities: what the gate ranks by. Its price is a quantile of them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kondo.schema import register
from kondo.signals import delight as delight_of

Priority = Callable[[Tensor, Tensor, Callable[[], Tensor], float], Tensor]
PRIORITIES: dict[str, Priority] = {}


def priority(function: Priority) -> Priority:
    """Register a ranking `(advantage, surprisal, noise, alpha) → priority` under the function's name.

    `noise()` draws one uniform number per entry; `alpha` is the mixing weight from the gate's settings.
    """
    return register(PRIORITIES, function.__name__, function)


@priority
def delight(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """χ = U · ℓ"""
    return delight_of(-surprisal, advantage)


@priority
def advantage(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """U"""
    return advantage


@priority
def abs_advantage(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """|U|"""
    return advantage.abs()


@priority
def surprisal(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """ℓ"""
    return surprisal


@priority
def uniform(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """A random ranking: what the rate alone buys."""
    return noise()


@priority
def additive(advantage: Tensor, surprisal: Tensor, noise: Callable[[], Tensor], alpha: float) -> Tensor:
    """αU + (1 − α)ℓ"""
    return alpha * advantage + (1 - alpha) * surprisal
