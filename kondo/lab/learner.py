"""The learner: screen → gate → gather → backward → step. What the gate skips is never in the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kondo.gate import Draw, KondoGate, per_entry
from kondo.lab.actor import Batch
from kondo.lab.baselines import BASELINES
from kondo.lab.ledger import Ledger
from kondo.lab.optimizer import Optimizer
from kondo.lab.policies.mlp import Policy, views
from kondo.lab.screens import Screen
from kondo.lab.streams import Streams
from kondo.objectives import Objective, needs
from kondo.pricing import GateState, KondoGateOutput
from kondo.signals import taken


@dataclass(frozen=True)
class Selection:
    """The samples that are worth a backward pass, gathered to the front. k is the most that any seed kept."""

    index: Tensor  # [S, k]: their places in the batch; seeds that kept fewer are padded with samples they skipped
    weight: Tensor  # [S, k, …]: the gate's weight, 0 on padding

    def of(self, x: Tensor, group: int = 1) -> Tensor:
        """[S, B, …] → [S, k, …]; or from one entry for each group of samples, [S, B/G, …]"""
        return gather(x, self.index if group == 1 else self.index // group)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Each seed's own samples. [S, B, …], [S, k] → [S, k, …]"""
    if x.dim() == 2:
        return x.gather(1, index)
    return x[torch.arange(len(x), device=x.device).unsqueeze(-1), index]


def select(weight: Tensor) -> tuple[Selection, Tensor]:
    """Gather what has weight, a sample if any of its decisions has. [S, B, …] → the selection, how many samples [S]"""
    keep = weight.flatten(2).any(-1) if weight.dim() > 2 else weight != 0  # [S, B]
    kept = keep.sum(dim=1)  # [S]
    most = int(kept.max())
    index = keep.nonzero()[:, 1]
    if len(index) == most * len(keep):
        index = index.view(len(keep), most)
    else:
        index = keep.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]
    return Selection(index, gather(weight, index)), kept


@dataclass(frozen=True)
class Forward:
    """What the learner's forward pass says of a batch."""

    log_policy: Tensor  # [S, B, …, K]
    log_prob: Tensor  # [S, B, …]: of the actions taken
    advantage: Tensor  # [S, B, …]


@dataclass(frozen=True)
class Screening:
    """What the gate makes of a batch, before any gradient."""

    forward: Forward
    delight: Tensor  # [S, B, …]: as the screen sees it
    decision: KondoGateOutput
    state: GateState
    """What the gate is to remember."""
    chosen: Selection
    kept: Tensor  # [S]: how many samples


@dataclass(frozen=True)
class Gradient:
    """The gradient of every seed's loss."""

    tensors: Sequence[Tensor]  # one per parameter, [S, …]; none where no sample is in the graph
    active: Tensor  # [S] bool: seeds that have something to learn from
    finite: Tensor  # [S] bool: seeds that met no non-finite number


@dataclass
class Learner:
    """S learners side by side, one per seed, each updated from its own samples alone."""

    flat: Tensor  # [S·P], changed in place
    policy: Policy
    objective: Objective
    options: Mapping[str, Any]
    """The objective's settings."""
    baseline: str
    optimizer: Optimizer
    gate: KondoGate | None
    screen: Screen
    streams: Streams
    ledger: Ledger
    diverged: Tensor = field(init=False)
    """The step at which a seed met a non-finite number, or −1; it is frozen from then on. [S]"""
    price: Tensor = field(init=False)
    """λ of the last step. [S]"""

    def __post_init__(self) -> None:
        shapes, seeds = self.policy.shapes(), len(self.streams.seeds)
        self.leaves = {name: view.detach().requires_grad_() for name, view in views(self.flat, shapes).items()}
        self.diverged = torch.full((seeds,), -1, dtype=torch.long, device=self.flat.device)
        self.price = torch.full((seeds,), torch.nan, device=self.flat.device)
        self.wants = needs(self.objective)
        self.all_finite = True  # no seed diverged yet

    # What a step does

    def update(self, batch: Batch, step: int) -> None:
        """One update of every seed that has something to learn from."""
        gradient = self._learn_from_all(batch, step) if self.gate is None else self._learn_from_survivors(batch, step)
        gradient = self._as_idle(gradient)
        active = gradient.active
        if not self.all_finite or not gradient.finite.all():
            self.diverged[~gradient.finite & (self.diverged < 0)] = step
            active = active & (self.diverged < 0)
            self.all_finite = False
        if active.any():
            with self.ledger.phase("optimizer"):
                self.optimizer.step(gradient.tensors, active)
            self.ledger.add(updates=active)

    def _as_idle(self, gradient: Gradient) -> Gradient:
        """With what `optimizer.idle` says of seeds that have no gradient, where it says anything."""
        if self.optimizer.settings.idle == "step":
            tensors = gradient.tensors or [torch.zeros_like(leaf) for leaf in self.leaves.values()]
            return replace(gradient, tensors=tensors, active=torch.ones_like(gradient.active))
        if self.optimizer.settings.idle == "skip":
            moving = torch.stack([each.flatten(1).any(dim=1) for each in gradient.tensors]).any(dim=0)
            return replace(gradient, active=gradient.active & moving)
        return gradient

    def _learn_from_all(self, batch: Batch, step: int) -> Gradient:
        with self.ledger.phase("backward"):
            forward = self.forward(batch, graph=True)
            gradient = self.gradient(batch, forward, step)
        with self.ledger.phase("screen"):
            self._teach_screen(batch, forward, step)
        samples, decisions = batch.actions.shape[1], batch.actions[0].numel()
        screened = samples if "delight" in self.wants and self.screen.passes else 0
        self.ledger.add(screened=screened, nominal=samples, backward=samples, backward_tokens=decisions)
        return gradient

    def _learn_from_survivors(self, batch: Batch, step: int) -> Gradient:
        assert self.gate is not None
        with self.ledger.phase("screen"):
            screening = self.screening(batch, step)
            self.gate.remember(screening.state)
            self._teach_screen(batch, screening.forward, step)
        self.price = screening.decision.price
        with self.ledger.phase("backward"):
            gradient = self.gated_gradient(batch, screening)
        samples, tokens = batch.actions.shape[1], batch.actions[0, 0].numel()
        kept, rate, weights = screening.kept, self.gate.settings.rate, screening.decision.gate_weights
        self.ledger.add(
            screened=samples * ((batch.log_policy is None) + self.screen.passes),
            nominal=samples * (weights.flatten(1).double().mean(dim=1) if rate is None else rate),
            backward=kept,
            backward_tokens=kept * tokens,
        )
        self.ledger.pad(screening.chosen.index.numel() - int(kept.sum()))
        return gradient

    def _teach_screen(self, batch: Batch, forward: Forward, step: int) -> None:
        self.screen.observe(forward.log_policy, batch.contexts.inputs, batch.actions, step)

    # What it is made of: nothing here changes anything

    def forward(self, batch: Batch, *, graph: bool) -> Forward:
        """The sampler's own pass where it serves, on-policy; else one of the learner's."""
        log_policy = batch.log_policy
        if log_policy is None or (graph and not log_policy.requires_grad):
            log_policy = self.policy.log_policy(self.leaves, batch.contexts.inputs, batch.actions)
        log_prob = taken(log_policy, batch.actions)
        return Forward(log_policy, log_prob, per_entry(self.advantage(batch, log_policy), log_prob))

    def advantage(self, batch: Batch, log_policy: Tensor) -> Tensor:
        """U = R − b. [S, B]"""
        return batch.rewards - BASELINES[self.baseline](log_policy, batch.rewards, batch.contexts.targets, batch.group)

    def delight(self, batch: Batch, forward: Forward, step: int) -> Tensor:
        """χ as the screen sees it. [S, B, …]"""
        inputs, actions = batch.contexts.inputs, batch.actions
        return self.screen.delight(forward.log_prob, forward.advantage, inputs, actions, step)

    def draw(self, step: int, epoch: int = 0) -> Draw:
        """The gate's random numbers in a step, others in each epoch."""
        again = f".{epoch}" if epoch else ""
        return lambda name, shape: self.streams.uniform(f"gate.{name}{again}", step, shape[1:])

    @torch.no_grad()
    def screening(self, batch: Batch, step: int) -> Screening:
        """What the gate keeps of a batch."""
        assert self.gate is not None
        forward = self.forward(batch, graph=False)
        delight = self.delight(batch, forward, step)
        log_prob = forward.log_prob
        draw = self.draw(step, batch.epoch)
        decision, state = self.gate.decision(log_prob, forward.advantage, delight, pools=1, draw=draw)
        weight = decision.gate_weights
        weight = weight.unsqueeze(-1).expand_as(log_prob) if weight.dim() < log_prob.dim() else weight
        return Screening(forward, delight, decision, state, *select(weight))

    def gradient(self, batch: Batch, forward: Forward, step: int) -> Gradient:
        """∇ of the mean loss over all samples, through the forward pass that was made."""
        loss = self.losses(
            log_prob=lambda: forward.log_prob,
            target_log_prob=lambda: taken(forward.log_policy, batch.contexts.targets),
            advantage=lambda: forward.advantage,
            delight=lambda: self.delight(batch, forward, step),
            actor_log_prob=lambda: batch.actor_log_prob,
        )
        total = loss.flatten(1).mean(dim=1)  # [S]
        everyone = torch.ones_like(self.diverged, dtype=torch.bool)
        return Gradient(self.backward(total), everyone, total.detach().isfinite())

    def gated_gradient(self, batch: Batch, screening: Screening) -> Gradient:
        """∇ of the survivors' loss, divided by the size of the whole batch: only they are in the graph."""
        chosen, active = screening.chosen, screening.kept > 0
        finite = ~screening.forward.log_prob.flatten(1).isnan().any(dim=1)
        if chosen.index.shape[1] == 0:
            return Gradient([], active, finite)
        actions = chosen.of(batch.actions)
        log_policy = self.policy.log_policy(self.leaves, chosen.of(batch.contexts.inputs, batch.group), actions)
        kept = chosen.weight != 0
        loss = self.losses(
            log_prob=lambda: taken(log_policy, actions),
            target_log_prob=lambda: taken(log_policy, chosen.of(batch.contexts.targets)),
            advantage=lambda: torch.where(kept, chosen.of(screening.forward.advantage), 0.0),  # NaN · 0 would be NaN
            delight=lambda: chosen.of(screening.delight),
            actor_log_prob=lambda: chosen.of(batch.actor_log_prob),
            weight=lambda: chosen.weight,
        )
        total = torch.where(kept, loss, 0.0).flatten(1).sum(dim=1) / batch.actions[0].numel()  # [S]
        return Gradient(self.backward(total), active, finite & total.detach().isfinite())

    def losses(self, **quantities: Callable[[], Tensor]) -> Tensor:
        """The objective, on the quantities it asks for."""
        return self.objective(*(quantities[name]() for name in self.wants), **self.options)

    def backward(self, total: Tensor) -> Sequence[Tensor]:
        """Gradients of every seed's own loss, [S]: seeds share no parameter."""
        return torch.autograd.grad(total.sum(), list(self.leaves.values()))

    # What is saved

    def state(self, step: int) -> dict[str, Any]:
        return {
            "screen": self.screen.state(step),
            "flat": self.flat,
            "optimizer": self.optimizer.state(),
            "diverged": self.diverged,
            "price": self.price,
            "gate": None if self.gate is None else dict(self.gate.state_dict()),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.flat.copy_(state["flat"])
        self.optimizer.load(state["optimizer"])
        self.diverged, self.price = state["diverged"].clone(), state["price"].clone()
        self.all_finite = bool((self.diverged < 0).all())
        self.screen.load(state["screen"])
        if self.gate is not None:
            self.gate.load_state_dict(state["gate"])
