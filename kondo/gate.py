"""The Kondo gate: which samples are worth their backward pass?

    G ~ Bernoulli(σ((χ − λ)/η)),    η → 0:  G = 1{χ > λ}

The price λ is either fixed, or set so that a fixed rate ρ of the units passes. A *unit* is what is bought or skipped as
a whole: a sample, a token, or a sequence (whose delight is the mean over its tokens).

What the gate decides at the edges:

- every delight is zero: there is nothing to learn, none is kept, at any rate or price;
- ρ = 1: every unit is kept (λ = −∞), exactly policy gradient;
- a rate keeps exactly k = max(1, ⌊ρn⌋) of n units; ties at the price go to the lowest index;
- a fixed price keeps what is strictly above it, so λ = 0 keeps exactly the positive delights;
- NaN rewards and infinite surprisal (log π = −∞): no finite gradient, so never kept and never part of a quantile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

from kondo import packing
from kondo.parallel import gathered
from kondo.schema import register
from kondo.signals import action_log_probs
from kondo.signals import delight as delight_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Draw = Callable[[str, tuple[int, ...]], Tensor]
Priority = Callable[[Tensor, Tensor, Callable[[], Tensor], float], Tensor]

PRIORITIES: dict[str, Priority] = {}
UNITS = ("auto", "sample", "token", "sequence")


def priority(function: Priority) -> Priority:
    """Register a ranking `(advantage, surprisal, noise, alpha) → priority` under the function's name.

    `noise()` draws one uniform number per entry; `alpha` is the mixing weight from the gate's configuration.
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


@dataclass
class KondoGateConfig:
    """Settings of the gate; `gate_rate` and `price` exclude each other.

    The mode is hard (the default), Bernoulli (`deterministic=False`) or soft (`hard=False`, which weights every unit by
    σ((χ − λ)/η) and skips none).
    """

    gate_rate: float | None = 0.3
    """ρ in (0, 1]: the share of units to keep; the price is then their (1 − ρ)-quantile."""
    price: float | None = None
    """λ: a fixed compute price."""
    temperature: float = 0.1
    """η > 0: softness of the Bernoulli and soft modes. The hard mode is its limit η → 0 and does not read it."""
    hard: bool = True
    """Decide 0 or 1 (True), or weight smoothly (False)."""
    deterministic: bool = True
    """Hard mode only: compare with the price (True), or toss a coin with probability σ((χ − λ)/η) (False)."""
    priority: str = "delight"
    """What the gate ranks by: a name in PRIORITIES."""
    alpha: float = 0.5
    """α in [0, 1]: weight of the advantage in the additive priority."""
    unit: str = "auto"
    """sample, token (every entry decides for itself), sequence (the last axis is averaged); auto means sequence where
    an attention mask says where sequences end, and every entry otherwise."""
    history: int = 0
    """How many past priorities the quantile looks back on, beside the batch itself; 0 prices each batch by itself."""
    warmup: int = 0
    """With a history: keep everything until this many priorities have been seen."""
    max_consecutive_drops: int | None = None
    """After this many batches in a row that had something to teach and kept nothing, the next such batch keeps its best
    unit, whatever the price; None: never."""


@dataclass
class KondoGateOutput:
    """What the gate decided, and on what grounds."""

    gate_weights: Tensor
    """G: the weight of each unit, 0 where it is skipped."""
    gate_probs: Tensor
    """σ((χ − λ)/η) of each unit."""
    delight: Tensor
    """χ of each unit."""
    price: Tensor
    """λ as used: for a rate, the lowest priority that was bought (−∞ when the gate stands open). One per pool."""
    actual_gate_rate: Tensor
    """The share of units kept (soft mode: the mean weight)."""
    gated_policy_loss: Tensor | None = None
    """Scalar, ready for `.backward()`; from `KondoGate.forward` only."""
    action_log_probs: Tensor | None = None
    """log π of the actions; from `KondoGate.forward` and `KondoGate.screen`."""

    @property
    def keep(self) -> Tensor:
        """The units that are worth a backward pass, as a boolean mask."""
        return self.gate_weights != 0


def gated_sum(log_probs: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    """−Σ G · U · log π, where a skipped entry adds nothing even if its advantage is NaN or its log π is −∞."""
    kept = weights != 0
    coefficients = torch.where(kept, weights * advantages, 0.0).detach()
    return -(coefficients * torch.where(kept, log_probs, 0.0)).sum()


class KondoGate(nn.Module):
    """Selects the samples that are worth a backward pass.

    Screen without gradients, then train on the survivors alone::

        gate = KondoGate(KondoGateConfig(gate_rate=0.03))
        keep = gate.compute_gate(log_probs, advantages).keep          # no graph needed
        loss = -(advantages[keep] * log_prob(model, inputs[keep])).sum() / keep.numel()

    Calling the gate on logits gives the masked loss of the same gradient, which costs every backward pass.

    group: the processes (of `torch.distributed`) whose batches are parts of one. They then agree on everything: the
    price is that of all their units together, ties go to the lowest rank, histories are the same. Each process must
    call the gate for each batch, and gets the decision on its own units.
    """

    history: Tensor | None

    def __init__(self, config: KondoGateConfig | None = None, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        self.config = c = config or KondoGateConfig()
        if c.gate_rate is not None and c.price is not None:
            raise ValueError("Specify either gate_rate or price, not both.")
        if c.gate_rate is None and c.price is None:
            raise ValueError("Specify either gate_rate or price: both are None.")
        if c.gate_rate is not None and not 0.0 < c.gate_rate <= 1.0:
            raise ValueError("gate_rate must be in (0, 1].")
        if c.price is not None and c.price != c.price:
            raise ValueError("price must be a number, not NaN.")
        if not c.temperature > 0:
            raise ValueError("temperature must be > 0.")
        if c.priority not in PRIORITIES:
            raise ValueError(f"priority must be one of {', '.join(sorted(PRIORITIES))}; got {c.priority!r}.")
        if not 0.0 <= c.alpha <= 1.0:
            raise ValueError("alpha must be in [0, 1].")
        if c.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}; got {c.unit!r}.")
        if c.history < 0 or c.warmup < 0:
            raise ValueError("history and warmup must be >= 0.")
        if c.history and c.gate_rate is None:
            raise ValueError("history sets the price of a gate_rate; a fixed price does not use it.")
        if c.warmup and not c.history:
            raise ValueError("warmup counts what is in the history; set history too.")
        if c.max_consecutive_drops is not None and c.max_consecutive_drops < 0:
            raise ValueError("max_consecutive_drops must be >= 0, or None.")
        self.register_buffer("history", None, persistent=False)  # [pools, ≤ history]; NaN where nothing was seen
        self.drops: Tensor | int = 0  # [pools, 1]: batches in a row that kept nothing

    def compute_delight(self, log_probs: Tensor, advantages: Tensor) -> Tensor:
        """χ = U · ℓ, entry by entry."""
        return delight_of(log_probs, advantages)

    @torch.no_grad()
    def compute_gate(
        self,
        log_probs: Tensor,
        advantages: Tensor,
        delight: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        pools: int = 0,
        draw: Draw | None = None,
    ) -> KondoGateOutput:
        """Decide what to keep.

        log_probs: log π of the actions, any shape; advantages: the same shape.
        delight: χ computed elsewhere (noisy, approximate, of another model), in place of U · ℓ.
        mask: which entries exist. pools: how many leading axes hold separate pools, each priced by itself
        (0: the whole tensor is one pool). draw: `(name, shape) → uniform numbers`, the source of all randomness.

        Everything returned has one entry per unit: the shape of log_probs, less the last axis for unit="sequence".
        """
        c = self.config
        if advantages.shape != log_probs.shape:
            raise ValueError(
                f"advantages {tuple(advantages.shape)} must have the shape of log_probs {tuple(log_probs.shape)}."
            )
        draw = draw or (lambda name, shape: torch.rand(shape, device=log_probs.device))
        advantages = advantages.detach()
        chi = delight_of(log_probs, advantages) if delight is None else delight.detach()
        if c.priority == "delight":
            ranks = chi
        else:
            noise = lambda: draw("priority", tuple(log_probs.shape))  # noqa: E731
            ranks = PRIORITIES[c.priority](advantages, -log_probs.detach(), noise, c.alpha)
        exists = None if mask is None else mask.bool().expand_as(chi)
        finite = (log_probs.detach() + chi + ranks).isfinite()
        if c.unit == "sequence" or (c.unit == "auto" and exists is not None):
            if chi.dim() < pools + 2:
                raise ValueError(f'unit="sequence" needs a token axis after the batch; got shape {tuple(chi.shape)}.')
            chi, ranks = _mean(chi, exists), _mean(ranks, exists)
            finite = (finite if exists is None else finite | ~exists).all(-1)
            exists = None if exists is None else exists.any(-1)

        units = chi.shape
        chi, ranks, valid = (x.reshape(*units[:pools], -1) for x in (chi, ranks, finite))  # [pools, n]
        exists = exists if exists is None else exists.reshape(chi.shape)
        own = slice(None)
        if self.group is not None:  # from here on n counts the units of all processes
            exists = torch.ones_like(valid) if exists is None else exists
            (chi, ranks, valid, exists), own = gathered([chi, ranks, valid, exists], self.group)
        count: Tensor | int = chi.shape[-1]
        if exists is not None:
            valid, count = valid & exists, exists.sum(-1, keepdim=True)  # [pools, 1]
        able = valid & (valid & (chi != 0)).any(-1, keepdim=True)  # zero delight throughout: nothing to teach

        price, quota = self._price(ranks, count, valid)  # [pools, 1] each
        probs = torch.where(able, torch.sigmoid((ranks - price) / c.temperature), 0.0)
        if not c.hard:
            weights = probs
        elif c.deterministic:
            above = able & (ranks > price)
            ties = able & (ranks == price)
            room = quota - above.sum(-1, keepdim=True)
            weights = (above | (ties & (ties.cumsum(-1) <= room))).to(probs.dtype)
        else:
            coin = draw("coin", tuple(probs[..., own].shape))
            if self.group is not None:
                (coin,), _ = gathered([coin], self.group)
            weights = (coin < probs).to(probs.dtype)
        if c.max_consecutive_drops is not None:
            weights = self._feed(weights, ranks, able, c.max_consecutive_drops)

        rate = weights.sum(-1) / (max(1, count) if isinstance(count, int) else count.squeeze(-1).clamp(min=1))
        return KondoGateOutput(
            gate_weights=weights[..., own].reshape(units),
            gate_probs=probs[..., own].reshape(units),
            delight=chi[..., own].reshape(units),
            price=price.squeeze(-1),
            actual_gate_rate=rate,
        )

    def _price(self, ranks: Tensor, count: Tensor | int, valid: Tensor) -> tuple[Tensor, Tensor | int]:
        """The price of each pool, and how many of its `count` units may pass when some tie at that price."""
        c = self.config
        fixed = torch.full((*ranks.shape[:-1], 1), -torch.inf if c.price is None else c.price).to(ranks)  # [pools, 1]
        if c.gate_rate is None:
            return fixed, 0
        quota = _share(c.gate_rate, count)
        if c.history:
            window = self._remember(torch.where(valid, ranks, torch.nan))
            seen = window.isfinite().sum(-1, keepdim=True)
            bought: Tensor | int = _share(c.gate_rate, seen)
        else:
            window, bought = torch.where(valid, ranks, -torch.inf), quota
        if c.gate_rate == 1 or window.shape[-1] == 0:
            return fixed, quota
        if isinstance(bought, int):
            return window.topk(bought, dim=-1).values[..., -1:], quota
        price = window.nan_to_num(nan=-torch.inf).sort(dim=-1, descending=True).values.gather(-1, bought - 1)
        return (torch.where(seen < c.warmup, fixed, price) if c.history else price), quota

    def _remember(self, ranks: Tensor) -> Tensor:
        """Append the batch to the history of its pool; return both together."""
        if self.history is None:
            window = ranks
        elif self.history.shape[:-1] != ranks.shape[:-1]:
            raise ValueError(
                f"the gate's history holds {tuple(self.history.shape[:-1])} pools, the batch {tuple(ranks.shape[:-1])}."
            )
        else:
            window = torch.cat([self.history, ranks], dim=-1)
        self.history = window[..., -self.config.history :].clone()
        return window

    def _feed(self, weights: Tensor, ranks: Tensor, able: Tensor, most: int) -> Tensor:
        """Where a pool has kept nothing for too long, its best unit gets weight 1. [pools, n]"""
        teaches, empty = able.any(-1, keepdim=True), ~weights.any(-1, keepdim=True)
        self.drops = torch.where(teaches, (self.drops + 1) * empty, self.drops)
        starved = teaches & (self.drops > most)
        best = torch.where(able, ranks, -torch.inf).argmax(-1, keepdim=True)
        fed = torch.where(starved, torch.zeros_like(weights).scatter(-1, best, 1.0), weights)
        self.drops = torch.where(starved, 0, self.drops)
        return fed

    def screen(
        self,
        model: nn.Module,
        input_ids: Tensor,
        actions: Tensor,
        advantages: Tensor,
        attention_mask: Tensor | None = None,
        *,
        action_mask: Tensor | None = None,
        micro_tokens: int | None = None,
    ) -> KondoGateOutput:
        """Decide on a batch by a pass of the model without a graph, padding left out: see `KondoTrainer.step`.

        The model may be a cheaper one than is trained: quantised, of fewer layers, distilled, or old.
        """
        log_probs = packing.log_probs(model, input_ids, actions, attention_mask, micro_tokens)
        output, _ = self.decide(log_probs, advantages, attention_mask if action_mask is None else action_mask)
        output.action_log_probs = log_probs
        return output

    def forward(
        self,
        logits: Tensor,
        actions: Tensor,
        advantages: Tensor,
        attention_mask: Tensor | None = None,
    ) -> KondoGateOutput:
        """Gate a batch of logits (B, V) or (B, T, V) and return the gated loss −mean(G · U · log π).

        The loss is normalised by the whole batch (with a mask: by its tokens), never by what was kept. Advantages are
        (B,) or (B, T). Every row is in the graph here; `KondoTrainer.step` is the way that skips.
        """
        if logits.dim() not in (2, 3):
            raise ValueError(f"Expected logits of dim 2 or 3, got {logits.dim()}")
        log_probs = action_log_probs(logits, actions)
        output, weights = self.decide(log_probs, advantages, attention_mask)
        output.gated_policy_loss = gated_sum(log_probs, per_entry(advantages, log_probs), weights) / batch_size(
            log_probs, attention_mask
        )
        output.action_log_probs = log_probs
        return output

    def decide(
        self, log_probs: Tensor, advantages: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[KondoGateOutput, Tensor]:
        """The gate's decision on a batch (B,) or (B, T), and its weights entry by entry (0 where the mask is)."""
        if log_probs.dim() == 1:
            attention_mask = None
        output = self.compute_gate(log_probs, per_entry(advantages, log_probs), mask=attention_mask)
        weights = output.gate_weights
        if weights.dim() < log_probs.dim():
            weights = weights.unsqueeze(-1).expand_as(log_probs)
        return output, weights if attention_mask is None else weights * attention_mask


def batch_size(log_probs: Tensor, attention_mask: Tensor | None) -> Tensor | int:
    """What a gated loss is divided by: every entry of the batch, or every entry under the mask; kept or not."""
    if attention_mask is None or log_probs.dim() == 1:
        return max(1, log_probs.numel())
    return attention_mask.sum().clamp(min=1)


def per_entry(advantages: Tensor, log_probs: Tensor) -> Tensor:
    """Advantages given per row, (B,), count for each of the row's tokens, (B, T)."""
    return advantages.unsqueeze(-1).expand_as(log_probs) if advantages.dim() < log_probs.dim() else advantages


def _mean(values: Tensor, exists: Tensor | None) -> Tensor:
    """Mean over the entries of the last axis that exist. [..., T] → [...]"""
    if exists is None:
        return values.mean(-1)
    return torch.where(exists, values, 0.0).sum(-1) / exists.sum(-1).clamp(min=1)


@overload
def _share(rate: float, count: int) -> int: ...
@overload
def _share(rate: float, count: Tensor) -> Tensor: ...
def _share(rate: float, count: Tensor | int) -> Tensor | int:
    """k = max(1, ⌊ρn⌋), proof against ρn being a rounding error below a whole number."""
    if isinstance(count, int):
        return max(1, int(rate * count + 1e-9))
    return (rate * count.double() + 1e-9).floor().clamp(min=1).long()
