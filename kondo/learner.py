"""The learner: screen → gate → gather → backward → step. What the gate skips is never in the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kondo.actors import Batch
from kondo.baselines import BASELINES
from kondo.gate import KondoGate, per_entry
from kondo.ledger import Ledger
from kondo.objectives import Objective, needs
from kondo.optim import Optimizer, OptimizerSettings
from kondo.policies import Policy, views
from kondo.screens import Screen
from kondo.signals import taken
from kondo.streams import Streams


@dataclass
class Selection:
    """The rows that are worth a backward pass, gathered to the front. k is the most that any seed kept."""

    index: Tensor  # [S, k]: row numbers; seeds that kept fewer are padded with rows they skipped
    weight: Tensor  # [S, k, …]: the gate's weight, 0 on padding

    def rows(self, x: Tensor, group: int = 1) -> Tensor:
        """[S, B, …] → [S, k, …]; or from one entry for each group of rows, [S, B/G, …]"""
        index = self.index if group == 1 else self.index // group
        if x.dim() == 2:
            return x.gather(1, index)
        return x[torch.arange(len(x), device=x.device).unsqueeze(-1), index]


def select(weight: Tensor) -> tuple[Selection, Tensor]:
    """Gather what has weight; a row is kept if any of its decisions is. [S, B, …] → the selection, kept rows [S]"""
    keep = weight.flatten(2).any(-1) if weight.dim() > 2 else weight != 0  # [S, B]
    kept = keep.sum(dim=1)  # [S]
    most = int(kept.max())
    index = keep.nonzero()[:, 1]
    if len(index) == most * len(keep):
        index = index.view(len(keep), most)
    else:
        index = keep.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]
    selection = Selection(index, weight)
    selection.weight = selection.rows(weight)
    return selection, kept


@dataclass
class Learner:
    """S learners side by side, one per seed, each moved by its own samples alone."""

    flat: Tensor  # [S·P], changed in place
    policy: Policy
    objective: Objective
    options: Mapping[str, Any]
    """The objective's settings."""
    baseline: str
    optimizer: OptimizerSettings
    gate: KondoGate | None
    screen: Screen
    streams: Streams
    ledger: Ledger
    diverged: Tensor = field(init=False)
    """The step at which a seed met a number that is none, or −1; it is frozen from then on. [S]"""
    price: Tensor = field(init=False)
    """λ of the last step. [S]"""

    def __post_init__(self) -> None:
        shapes, seeds = self.policy.shapes(), len(self.streams.seeds)
        self.leaves = {name: view.detach().requires_grad_() for name, view in views(self.flat, shapes).items()}
        self.gradients: Sequence[Tensor] = []
        self.moves = Optimizer(self.optimizer, self.flat, shapes)
        self.diverged = torch.full((seeds,), -1, dtype=torch.long, device=self.flat.device)
        self.price = torch.full((seeds,), torch.nan, device=self.flat.device)
        self.wants = needs(self.objective)
        self.well = True  # no seed diverged yet

    def update(self, batch: Batch, step: int) -> None:
        """One update of every seed that has something to learn from."""
        active, healthy = self.gated(batch, step) if self.gate else self.ungated(batch, step)
        if not self.well or not healthy.all():
            self.diverged[~healthy & (self.diverged < 0)] = step
            active = active & (self.diverged < 0)
            self.well = False
        if active.any():
            with self.ledger.phase("optimiser"):
                self.moves.step(self.gradients, active)
            self.ledger.add(updates=active)

    def ungated(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Every row is in the graph: one forward pass serves the baseline and the gradient, on-policy the sampler's."""
        with self.ledger.phase("backward"):
            log_policy = batch.log_policy
            if log_policy is None or not log_policy.requires_grad:
                log_policy = self.policy.log_policy(self.leaves, batch.contexts.inputs, batch.actions)
            log_prob = taken(log_policy, batch.actions)  # [S, B, …]
            advantage = per_entry(self.advantage(batch, log_policy), log_prob)
            loss = self.losses(
                log_prob=lambda: log_prob,
                target_log_prob=lambda: taken(log_policy, batch.contexts.targets),
                advantage=lambda: advantage,
                delight=lambda: self.delight(batch, log_policy, advantage, step),
                actor_log_prob=lambda: batch.actor_log_prob,
            )
            total = loss.flatten(1).mean(dim=1)  # [S]
            self.backward(total)
        rows = batch.actions.shape[1]
        self.ledger.add(nominal=rows, backward=rows, backward_tokens=batch.actions[0].numel())
        return torch.ones_like(self.diverged, dtype=torch.bool), total.detach().isfinite()

    def gated(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Only the survivors are in the graph."""
        assert self.gate is not None
        rows, decisions = batch.actions.shape[1], batch.actions[0].numel()
        with self.ledger.phase("screen"), torch.no_grad():
            log_policy = batch.log_policy
            if log_policy is None:
                log_policy = self.policy.log_policy(self.leaves, batch.contexts.inputs, batch.actions)
                self.ledger.add(screened=rows)
            log_prob = taken(log_policy, batch.actions)
            advantage = per_entry(self.advantage(batch, log_policy), log_prob)
            delight = self.delight(batch, log_policy, advantage, step)
            decision = self.gate.compute_gate(
                log_prob,
                advantage,
                delight,
                pools=1,
                draw=lambda name, shape: self.streams.uniform(f"gate.{name}", step, shape[1:]),
            )
            self.price = decision.price
            weight = decision.gate_weights
            weight = weight.unsqueeze(-1).expand_as(log_prob) if weight.dim() < log_prob.dim() else weight
            chosen, kept = select(weight)
            healthy = ~log_prob.flatten(1).isnan().any(dim=1)
        rate = self.gate.config.gate_rate
        self.ledger.add(
            nominal=rows * (decision.gate_weights.flatten(1).double().mean(dim=1) if rate is None else rate),
            backward=kept,
            backward_tokens=kept * (decisions // rows),
        )
        self.ledger.pad(chosen.index.numel() - int(kept.sum()))
        if chosen.index.shape[1] == 0:
            return kept > 0, healthy
        with self.ledger.phase("backward"):
            actions = chosen.rows(batch.actions)
            inputs = chosen.rows(batch.contexts.inputs, batch.group)
            survivors = self.policy.log_policy(self.leaves, inputs, actions)
            kept_entries = chosen.weight != 0
            loss = self.losses(
                log_prob=lambda: taken(survivors, actions),
                target_log_prob=lambda: taken(survivors, chosen.rows(batch.contexts.targets)),
                advantage=lambda: torch.where(kept_entries, chosen.rows(advantage), 0.0),  # NaN · 0 would be NaN
                delight=lambda: chosen.rows(delight),
                actor_log_prob=lambda: chosen.rows(batch.actor_log_prob),
                weight=lambda: chosen.weight,
            )
            total = torch.where(kept_entries, loss, 0.0).flatten(1).sum(dim=1) / decisions  # by the FULL batch
            self.backward(total)
        return kept > 0, healthy & total.detach().isfinite()

    def advantage(self, batch: Batch, log_policy: Tensor) -> Tensor:
        """U = R − b. [S, B]"""
        return batch.rewards - BASELINES[self.baseline](log_policy, batch.rewards, batch.contexts.targets, batch.group)

    def delight(self, batch: Batch, log_policy: Tensor, advantage: Tensor, step: int) -> Tensor:
        """χ as the screen sees it, before it learns from the batch. [S, B, …]"""
        inputs, actions = batch.contexts.inputs, batch.actions
        if not self.screen.exact:
            self.ledger.add(screened=actions.shape[1])
        chi = self.screen.delight(taken(log_policy, actions), advantage, inputs, actions, step)
        self.screen.learn(log_policy, inputs, actions)
        return chi

    def losses(self, **quantities: Callable[[], Tensor]) -> Tensor:
        """The objective, on the quantities it asks for."""
        return self.objective(*(quantities[name]() for name in self.wants), **self.options)

    def backward(self, total: Tensor) -> None:
        """Gradients of every seed's own loss, [S]: seeds share no parameter."""
        self.gradients = torch.autograd.grad(total.sum(), list(self.leaves.values()))

    def state(self, step: int) -> dict[str, Any]:
        return {
            "screen": self.screen.state(step),
            "flat": self.flat,
            "optimizer": self.moves.state(),
            "diverged": self.diverged,
            "price": self.price,
            "history": None if self.gate is None else self.gate.history,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.flat.copy_(state["flat"])
        self.moves.load(state["optimizer"])
        self.diverged, self.price = state["diverged"], state["price"]
        self.well = bool((self.diverged < 0).all())
        self.screen.load(state["screen"])
        if self.gate is not None:
            self.gate.history = state["history"]
