"""Probes: what is measured beside the error whenever a run is evaluated. They change nothing in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from kondo.lab.baselines import BASELINES
from kondo.lab.capabilities import declare
from kondo.lab.tasks.base import FiniteTask
from kondo.schema import knob, register
from kondo.signals import delight, taken

if TYPE_CHECKING:
    from kondo.lab.actor import Batch
    from kondo.lab.engine import Engine
    from kondo.pricing import KondoGateOutput

Columns = dict[str, list[Any]]
Probe = Callable[["Engine", "ProbeSettings"], Columns]
PROBES: dict[str, Probe] = {}


@overload
def probe(function: Probe) -> Probe: ...
@overload
def probe(*, needs: Iterable[str]) -> Callable[[Probe], Probe]: ...
def probe(function: Probe | None = None, *, needs: Iterable[str] = ()) -> object:
    """Register `(engine, settings) → {column: one value per seed}` under the function's name.

    needs: capabilities of the cell that it measures.
    """
    if function is None:
        return lambda function: probe(declare(function, needs))
    return register(PROBES, function.__name__, function)


@dataclass(frozen=True)
class ProbeSettings:
    name: str = knob("none", choices=PROBES)
    samples: int = knob(500, low=10)
    """How many contexts a probe measures."""
    contamination: float = knob(0.5, low=0, high=1)
    """alignment: share of the behaviour that is uniformly random, where it is contaminated."""
    rate: float = knob(0.03, above=0, high=1)
    """alignment: ρ of the gate whose expected update is compared."""


@probe
def none(engine: Engine, settings: ProbeSettings) -> Columns:
    return {}


@probe(needs=("contexts",))
@torch.enable_grad()
def alignment(engine: Engine, settings: ProbeSettings) -> Columns:
    """Cosines of each method's expected update with ∇J and with the supervised gradient, at the present parameters.

    Expected exactly over actions, Σ_a β(a) w(a) U(a) ∇log π(a), on one set of contexts; β is the policy itself (clean),
    or mixed with the uniform policy (mixed). For single decisions with R = 1{a = y*}.
    """
    learner, task = engine.learner, engine.task
    assert isinstance(task, FiniteTask)
    contexts = task.at(engine.streams.below(task.size, "probe", 0, (settings.samples,)))
    log_policy = learner.policy.log_policy(learner.leaves, contexts.inputs, contexts.targets)  # [S, N, K]
    exact = log_policy.detach()
    policy, arms = exact.exp(), exact.shape[-1]
    reward = torch.nn.functional.one_hot(contexts.targets, arms).float()
    right = taken(reward, contexts.targets)
    advantage = reward - BASELINES[learner.baseline](exact, right, contexts.targets).unsqueeze(-1)
    chi = delight(exact, advantage)  # [S, N, K]: every action's

    def direction(coefficient: Tensor) -> Tensor:
        """∇ mean Σ_a c(a) log π(a), c constant. [S, P]"""
        total = (coefficient * log_policy).sum(dim=-1).mean(dim=-1).sum()
        gradients = torch.autograd.grad(total, list(learner.leaves.values()), retain_graph=True)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    goal, supervised = direction(policy * reward), direction(reward)
    columns: Columns = {}
    mixed = (1 - settings.contamination) * policy + settings.contamination / arms
    for state, behaviour in (("clean", policy), ("mixed", mixed)):
        price = weighted_quantile(chi.flatten(1), behaviour.flatten(1), 1 - settings.rate)[:, None, None]
        weights = {
            "pg": torch.ones_like(chi),
            "is_pg": policy / behaviour,
            "dg": torch.sigmoid(chi),
            "dgk_price": (chi > 0).float(),
            "dgk_rate": (chi >= price).float(),
        }
        for name, weight in weights.items():
            update = direction(behaviour * weight * advantage)
            columns[f"cos_{name}_{state}"] = _cosine(update, goal)
            columns[f"cos_ce_{name}_{state}"] = _cosine(update, supervised)
    return columns


@probe(needs=("gate", "contexts"))
def anatomy(engine: Engine, settings: ProbeSettings) -> Columns:
    """What the gate keeps: advantage, surprisal, digit and decision of a batch of samples of the present policy."""
    learner, streams, task = engine.learner, engine.streams, engine.task
    assert isinstance(task, FiniteTask)
    contexts = task.at(streams.below(task.size, "probe", engine.step, (settings.samples,)))
    log_policy = learner.policy.log_policy(learner.leaves, contexts.inputs, contexts.targets)
    cumulative = log_policy.exp().cumsum(dim=-1)
    draw = streams.uniform("probe.action", engine.step, (settings.samples,)).unsqueeze(-1)
    actions = (cumulative < draw * cumulative[..., -1:]).sum(dim=-1)
    rewards = task.reward(contexts, actions)
    log_prob = taken(log_policy, actions)
    advantage = rewards - BASELINES[learner.baseline](log_policy, rewards, contexts.targets)
    assert learner.gate is not None
    decision, _ = learner.gate.decision(
        log_prob,
        advantage,
        pools=1,
        draw=lambda name, shape: streams.uniform(f"probe.{name}", engine.step, shape[1:]),
    )
    return {
        "anatomy_advantage": _rounded(advantage),
        "anatomy_surprisal": _rounded(-log_prob),
        "anatomy_keep": decision.keep.int().tolist(),
        "anatomy_digit": contexts.targets.tolist(),
        "anatomy_price": decision.price.tolist(),
    }


@probe(needs=("gate",))
def kept(engine: Engine, settings: ProbeSettings) -> Columns:
    """What the gate will keep of the next batch, decision by decision: how surprising they are, how often right and how
    often better than expected, beside all of the batch; and how many are neither better nor worse."""
    batch, log_prob, advantage = _next_batch(engine)
    weight = _decision(engine, log_prob, advantage).gate_weights
    weight = weight.unsqueeze(-1).expand_as(log_prob) if weight.dim() < log_prob.dim() else weight
    right = (batch.actions == batch.contexts.targets).float()
    columns: Columns = {}
    good = (advantage > 0).to(right)
    for name, values in (("surprisal", -log_prob), ("right", right), ("good", good)):
        columns[f"all_{name}"] = values.flatten(1).mean(dim=1).tolist()
        columns[f"kept_{name}"] = ((weight * values).flatten(1).sum(1) / weight.flatten(1).sum(1)).tolist()
    return columns | {"zero_advantage": (advantage == 0).flatten(1).double().mean(dim=1).tolist()}


@probe(needs=("gate",))
def agreement(engine: Engine, settings: ProbeSettings) -> Columns:
    """Of what the gate would keep of the next batch by exact delight, the share that it keeps by its screen's."""
    batch, log_prob, advantage = _next_batch(engine)
    seen = engine.learner.screen.delight(log_prob, advantage, batch.contexts.inputs, batch.actions, engine.step)
    worthy, chosen = (_decision(engine, log_prob, advantage, chi).keep.flatten(1) for chi in (None, seen))
    return {"recall": ((worthy & chosen).sum(dim=1) / worthy.sum(dim=1)).tolist()}


def _next_batch(engine: Engine) -> tuple[Batch, Tensor, Tensor]:
    """The next batch as the learner will see it: log π of its actions and their advantage, decision by decision."""
    batch = engine.actor.batch(engine.step)
    forward = engine.learner.forward(batch, graph=False)
    return batch, forward.log_prob, forward.advantage


def _decision(engine: Engine, log_prob: Tensor, advantage: Tensor, delight: Tensor | None = None) -> KondoGateOutput:
    """What the gate will decide on the next batch."""
    learner = engine.learner
    assert learner.gate is not None
    return learner.gate.decision(log_prob, advantage, delight, pools=1, draw=learner.draw(engine.step))[0]


def weighted_quantile(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """The smallest value such that at least `level` of the weight is below it or at it. [S, N], [S, N] → [S]"""
    ordered, order = values.sort(dim=1)
    share = weights.gather(1, order).cumsum(dim=1)
    first = (share < level * share[:, -1:]).sum(dim=1, keepdim=True).clamp(max=values.shape[1] - 1)
    return ordered.gather(1, first).squeeze(1)


def _cosine(a: Tensor, b: Tensor) -> list[float]:
    return torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=1).tolist()


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in values.tolist()]
