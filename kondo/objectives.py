"""Policy-gradient objectives as pure functions of tensors, each short enough to hold against its equation.

A function's positional arguments are the quantities it needs, by name; its keyword-only arguments are its settings:

    log_prob         log π(a|h) under the learner, with gradient
    target_log_prob  log π(y*|h) of the right answer, with gradient (the supervised oracle's)
    advantage        U = R − b
    delight          χ = U · ℓ, exact or as well as the screen knows it
    actor_log_prob   log μ(a|h) as the actor reported it
    weight           G, the gate's decision: naming it is what makes a method gated

It returns one loss per entry, whose mean over the *full* batch is minimised; entries that the gate skipped are never
passed in, except as padding that levels the seeds of a block: rows of weight 0, whose loss is dropped, so that a gated
method which averages over rows must do so by weight. Arguments without gradient are constants. The first axis is the
seed axis.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any, overload

import torch
from torch import Tensor

from kondo.schema import limits, register
from kondo.signals import action_log_probs, dg_weight
from kondo.signals import delight as delight_of

Objective = Callable[..., Tensor]
Positive = Annotated[float, limits(above=0)]
METHODS: dict[str, Objective] = {}
_WHOLE_BATCH: set[Objective] = set()
QUANTITIES = ("log_prob", "target_log_prob", "advantage", "delight", "actor_log_prob", "weight")


@overload
def method(function: Objective) -> Objective: ...
@overload
def method(*, whole_batch: bool) -> Callable[[Objective], Objective]: ...
def method(function: Objective | None = None, *, whole_batch: bool = False) -> Any:
    """Register an objective as a method of the suite, under the function's name.

    whole_batch: it compares samples with each other, so that the loss of one depends on all.
    """
    if function is None:
        return functools.partial(_method, whole_batch=whole_batch)
    return _method(function, whole_batch)


def _method(function: Objective, whole_batch: bool) -> Objective:
    unknown = [name for name in needs(function) if name not in QUANTITIES]
    if unknown:
        raise TypeError(f"{function.__name__} asks for {', '.join(unknown)}; a learner has {', '.join(QUANTITIES)}")
    if whole_batch:
        _WHOLE_BATCH.add(function)
    return register(METHODS, function.__name__, function)


def whole_batch(objective: Objective) -> bool:
    """Whether an objective compares samples with each other."""
    return objective in _WHOLE_BATCH


def needs(objective: Objective) -> list[str]:
    """The quantities an objective asks for."""
    return [p.name for p in inspect.signature(objective).parameters.values() if p.kind is not p.KEYWORD_ONLY]


def settings(objective: Objective) -> dict[str, Any]:
    """The settings of an objective, with their defaults. A range is Annotated[float, limits(…)]."""
    return {p.name: p.default for p in inspect.signature(objective).parameters.values() if p.kind is p.KEYWORD_ONLY}


@method
def pg(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """REINFORCE: Σ U ∇log π"""
    return -advantage * log_prob


@method
def is_pg(log_prob: Tensor, advantage: Tensor, actor_log_prob: Tensor, *, cap: Positive = 10.0) -> Tensor:
    """Importance sampling: Σ min(π/μ, cap) U ∇log π"""
    ratio = (log_prob.detach() - actor_log_prob).exp().clamp(max=cap)
    return -ratio * advantage * log_prob


@method
def is_pg_uncapped(log_prob: Tensor, advantage: Tensor, actor_log_prob: Tensor) -> Tensor:
    """Importance sampling without a cap: Σ (π/μ) U ∇log π, per token on sequences"""
    return is_pg(log_prob, advantage, actor_log_prob, cap=math.inf)


@method
def is_pg_sequence(
    log_prob: Tensor, advantage: Tensor, actor_log_prob: Tensor, *, cap: Annotated[float | None, limits(above=0)] = 10.0
) -> Tensor:
    """Importance sampling by whole answers: Σ min(Π π/μ, cap) U ∇log π, the product over an answer's tokens"""
    log_ratio = log_prob.detach() - actor_log_prob
    if log_ratio.dim() > 2:
        log_ratio = log_ratio.sum(dim=-1, keepdim=True)
    return -log_ratio.exp().clamp(max=cap if cap is not None else math.inf) * advantage * log_prob


@method
def dg(log_prob: Tensor, advantage: Tensor, delight: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """Delightful policy gradient: Σ σ(χ/η) U ∇log π"""
    return -dg_weight(delight, temperature) * advantage * log_prob


@method
def dg_is(
    log_prob: Tensor,
    advantage: Tensor,
    delight: Tensor,
    actor_log_prob: Tensor,
    *,
    temperature: Positive = 1.0,
    cap: Positive = 1.0,
) -> Tensor:
    """DG that trusts a sample no more than the learner's own policy does: Σ min(π/μ, cap) σ(χ/η) U ∇log π"""
    return (log_prob.detach() - actor_log_prob).exp().clamp(max=cap) * dg(
        log_prob, advantage, delight, temperature=temperature
    )


@method
def dgk(log_prob: Tensor, advantage: Tensor, weight: Tensor) -> Tensor:
    """Kondo gate: Σ G U ∇log π, over the samples with G > 0 alone"""
    return -weight * advantage * log_prob


@method
def ppo(log_prob: Tensor, advantage: Tensor, actor_log_prob: Tensor, *, clip: Positive = 0.2) -> Tensor:
    """Clipped surrogate: Σ ∇min(rU, clip(r, 1−ε, 1+ε) U), r = π/μ"""
    ratio = (log_prob - actor_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


@method(whole_batch=True)
def pmpo(
    log_prob: Tensor,
    advantage: Tensor,
    actor_log_prob: Tensor,
    *,
    alpha: Annotated[float, limits(low=0, high=1)] = 0.5,
    gamma: Positive = 1e-9,
    beta: Annotated[float, limits(low=0)] = 0.1,
) -> Tensor:
    """α·mean_{U>0}(−log π) + (1−α)·mean_{U≤0}(log(γ + π)) + β·KL(μ‖π), the KL estimated on the actor's samples

    A mean over no sample is 0. On sequences the means are over tokens, each with the advantage of its answer.
    """
    good, share_good = _part(advantage > 0, log_prob)
    bad = 1 - good, 1 - share_good
    return _preference(log_prob, actor_log_prob, (good, share_good), bad, alpha, gamma, beta)


@method(whole_batch=True)
def pmpo_strict(
    log_prob: Tensor,
    advantage: Tensor,
    actor_log_prob: Tensor,
    *,
    alpha: Annotated[float, limits(low=0, high=1)] = 0.5,
    gamma: Positive = 1e-9,
    beta: Annotated[float, limits(low=0)] = 0.1,
) -> Tensor:
    """PMPO that leaves U = 0 alone: α·mean_{U>0}(−log π) + (1−α)·mean_{U<0}(log(γ + π)) + β·KL(μ‖π)"""
    good, bad = _part(advantage > 0, log_prob), _part(advantage < 0, log_prob)
    return _preference(log_prob, actor_log_prob, good, bad, alpha, gamma, beta)


Part = tuple[Tensor, Tensor]
"""Which samples, as numbers, and their share of each seed's batch."""


def _part(samples: Tensor, like: Tensor) -> Part:
    part = samples.to(like.dtype)
    return part, part.mean(dim=tuple(range(1, part.dim())), keepdim=True)


def _preference(
    log_prob: Tensor, actor_log_prob: Tensor, good: Part, bad: Part, alpha: float, gamma: float, beta: float
) -> Tensor:
    """Up with the good, down with the bad, each a mean over its own samples, and not far from the actor."""
    raise_good = good[0] / good[1].clamp(min=1e-9) * -log_prob
    floor = torch.full_like(log_prob, math.log(gamma))
    lower_bad = bad[0] / bad[1].clamp(min=1e-9) * torch.logaddexp(floor, log_prob)
    return alpha * raise_good + (1 - alpha) * lower_bad + beta * (actor_log_prob - log_prob)


@method
def ce(target_log_prob: Tensor) -> Tensor:
    """Supervised oracle: Σ ∇log π(y*). It sees the label: an upper bound, not a contestant."""
    return -target_log_prob


def pg_loss(logits: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """−mean(U log π): REINFORCE on a batch of logits (..., V)."""
    return pg(action_log_probs(logits, actions), advantages.detach()).mean()


def dg_loss(
    logits: Tensor, actions: Tensor, advantages: Tensor, eta: float = 1.0, *, unit_gain: bool = False
) -> tuple[Tensor, Tensor]:
    """−mean(w U log π): DG on a batch of logits (..., V), with its weights w = σ(χ/η), or 2σ(χ/η) with unit gain."""
    log_probs = action_log_probs(logits, actions)
    weights = dg_weight(delight_of(log_probs, advantages), eta, unit_gain=unit_gain)
    return pg(log_probs, weights * advantages.detach()).mean(), weights
