"""Entries → units → price → weights: what the gate computes, as functions of tensors that change nothing.

Units are priced pool by pool: a tensor of units is [pools, n], one of prices [pools, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from kondo import scaling
from kondo.priorities import PRIORITIES
from kondo.signals import delight as delight_of

if TYPE_CHECKING:
    from kondo.settings import GateSettings


@dataclass(frozen=True)
class GateState:
    """What a gate remembers from batch to batch; None: nothing yet."""

    history: Tensor | None = None
    """Past priorities, the latest last; −∞ for what could not be bought. [pools, ≤ history]"""
    drops: Tensor | None = None
    """Batches in a row that had something to teach and kept nothing. [pools, 1]"""
    moments: Tensor | None = None
    """Running means of x and x², x being the surprisal or the delight that `scale` names. [pools, 2]"""


@dataclass
class KondoGateOutput:
    """What the gate decided, and on what grounds."""

    gate_weights: Tensor
    """G: the weight of each unit, 0 where it is skipped."""
    gate_probs: Tensor
    """σ((χ − λ)/η) of each unit; in the Bernoulli mode at least the floor."""
    delight: Tensor
    """χ of each unit; with scale="surprisal", of scaled surprisal, as the price is."""
    price: Tensor
    """λ as used: for a rate, the lowest priority that was bought (−∞ when the gate stands open). One per pool."""
    actual_gate_rate: Tensor
    """The share of units kept (soft mode: the mean weight)."""
    gated_policy_loss: Tensor | None = None
    """Scalar, ready for `.backward()`; from `KondoGate.forward` only."""
    action_log_probs: Tensor | None = None
    """log π of the actions; from `KondoGate.forward` and `KondoGate.screen`."""
    zero_advantage: Tensor | None = None
    """How many units have no advantage, and are not kept therefore; from `KondoGate.decide`. One per pool."""

    @property
    def keep(self) -> Tensor:
        """The units that are worth a backward pass, as a boolean mask."""
        return self.gate_weights != 0


@dataclass(frozen=True)
class Units:
    """What is bought or skipped as a whole: samples, tokens or sequences."""

    delight: Tensor
    """χ"""
    priority: Tensor
    """What the units are ranked by."""
    finite: Tensor
    """Whether a unit's gradient would be finite."""
    exists: Tensor | None = None
    """Which of them are there at all; None: every one."""
    zero: Tensor | None = None
    """Which of them have no advantage, and are never kept; None: that is not asked."""

    def pooled(self, pools: int) -> Units:
        """The same units with all axes after the pools made one. → [pools, n]"""
        own = {name: x.reshape(*x.shape[:pools], -1) for name, x in vars(self).items() if x is not None}
        return Units(**own)

    def valid(self) -> Tensor:
        """The units that exist and have a finite gradient: the others are never bought, nor part of a quantile."""
        return self.finite if self.exists is None else self.finite & self.exists

    def able(self) -> Tensor:
        """The valid units of pools in which any delight is not zero: in the others there is nothing to learn."""
        valid = self.valid()
        return valid & (valid & (self.delight != 0)).any(-1, keepdim=True)

    def count(self) -> Tensor | int:
        """n: how many units exist, as one number, or where that depends on the pool, [pools, 1]."""
        return self.finite.shape[-1] if self.exists is None else self.exists.sum(-1, keepdim=True)


def entries(
    settings: GateSettings,
    log_probs: Tensor,
    advantages: Tensor,
    delight: Tensor | None = None,
    mask: Tensor | None = None,
    noise: Callable[[], Tensor] | None = None,
) -> Units:
    """Every decision as a unit by itself: χ = U · ℓ unless it is given, and the priority that is asked for."""
    for name, value in (("log_probs", log_probs), ("advantages", advantages)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}.")
    log_probs, advantages = log_probs.detach(), advantages.detach()
    if advantages.shape != log_probs.shape:
        raise ValueError(
            f"advantages {tuple(advantages.shape)} must have the shape of log_probs {tuple(log_probs.shape)}."
        )
    chi = delight_of(log_probs, advantages) if delight is None else delight.detach()
    rank = chi
    if settings.priority != "delight":
        draw = noise or (lambda: torch.rand_like(log_probs))
        rank = PRIORITIES[settings.priority](advantages, -log_probs, draw, settings.alpha)
    return Units(chi, rank, (log_probs + chi + rank).isfinite(), None if mask is None else mask.bool().expand_as(chi))


def units(entries: Units, unit: str, pools: int) -> Units:
    """Each entry by itself; or each sequence, the last axis, by the mean over its T entries that exist,
    χ̄ = (1/T) Σ_t χ_t, finite if they all are. [..., T] → [...]"""
    chi, rank, finite, exists = entries.delight, entries.priority, entries.finite, entries.exists
    if unit != "sequence" and (unit != "auto" or exists is None):
        return entries
    if chi.dim() < pools + 2:
        raise ValueError(f'unit="sequence" needs a token axis after the batch; got shape {tuple(chi.shape)}.')
    zero = entries.zero
    if exists is None:
        return Units(chi.mean(-1), rank.mean(-1), finite.all(-1), zero=None if zero is None else zero.all(-1))
    count = exists.sum(-1).clamp(min=1)
    chi, rank = (torch.where(exists, x, 0.0).sum(-1) / count for x in (chi, rank))
    zero = None if zero is None else (zero | ~exists).all(-1)
    return Units(chi, rank, (finite | ~exists).all(-1), exists.any(-1), zero)


def window(units: Units, history: Tensor | None = None) -> Tensor:
    """The priorities that a quantile looks at: the history's, then the batch's; −∞ for what cannot be bought."""
    batch = torch.where(units.valid(), units.priority, -torch.inf)
    if history is None:
        return batch
    if history.shape[:-1] != batch.shape[:-1]:
        raise ValueError(
            f"the gate's history holds {tuple(history.shape[:-1])} pools, the batch {tuple(batch.shape[:-1])}."
        )
    return torch.cat([history.to(batch.device), batch], dim=-1)


def price(window: Tensor, count: Tensor | int, settings: GateSettings) -> Tensor:
    """λ: fixed; or the (1 − ρ)-quantile of the window, its k-th highest priority, k = max(1, ⌊ρm⌋).

    m is the number of units, or with a history the number of priorities in the window. The gate stands open, λ = −∞, at
    ρ = 1, until the warm-up is over, and where fewer than k units can be bought.
    """
    rate = settings.ranked
    if rate is None or rate == 1 or window.shape[-1] == 0:
        fixed = -torch.inf if settings.price is None else settings.price
        return torch.full((*window.shape[:-1], 1), fixed).to(window)
    if not settings.history:
        return kth_highest(window, share(rate, count))
    seen = window.isfinite().sum(-1, keepdim=True)
    quantile = kth_highest(window, share(rate, seen))
    return torch.where(seen < settings.warmup, -torch.inf, quantile)


def calibrated(units: Units, settings: GateSettings, temperature: Tensor | float) -> Tensor:
    """λ such that Σ σ((χ − λ)/η) = ρn over the units that can be bought, a floor counted in; −∞ where they are too few.
    → [pools, 1]"""
    assert settings.rate is not None
    able, rank, count = units.able(), units.priority, units.count()
    target = settings.rate * (count if isinstance(count, int) else count.double())
    reach = 30 * temperature  # σ(±30) is 0 or 1 to thirteen digits
    low = torch.where(able, rank, torch.inf).amin(-1, keepdim=True) - reach
    high = torch.where(able, rank, -torch.inf).amax(-1, keepdim=True) + reach
    for _ in range(60):
        middle = (low + high) / 2
        probs = floored(units, torch.where(able, torch.sigmoid((rank - middle) / temperature), 0.0), settings)
        many = probs.sum(-1, keepdim=True) > target
        low, high = torch.where(many, middle, low), torch.where(many, high, middle)
    return torch.where(able.sum(-1, keepdim=True) <= target, -torch.inf, high)


def weights(
    units: Units, price: Tensor, settings: GateSettings, temperature: Tensor | float, coin: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """G and p = σ((χ − λ)/η): soft, G = p; bernoulli, G = 1{coin < p}; hard, G = 1{χ > λ}, χ being the priority.

    With a floor, the chance of the Bernoulli mode is max(p, f), that of the hard mode max(1{χ > λ}, f). Where a rate's
    units tie at its price, the first of them are kept, as many as make k = max(1, ⌊ρn⌋) in all.
    """
    able = units.able()
    probs = torch.where(able, torch.sigmoid((units.priority - price) / temperature), 0.0)
    if settings.mode == "soft":
        return probs, probs
    if settings.mode == "bernoulli":
        probs = floored(units, probs, settings)
        return tossed(units, probs, settings, coin), probs
    above, ties = able & (units.priority > price), able & (units.priority == price)
    quota = 0 if settings.ranked is None else share(settings.ranked, units.count())
    kept = above | (ties & (ties.cumsum(-1) <= quota - above.sum(-1, keepdim=True)))
    bought = kept.to(probs.dtype)
    if settings.floor:
        return tossed(units, floored(units, bought, settings), settings, coin), probs
    return (bought + reserve(units, kept, settings, coin) if settings.reserve else bought), probs


def floored(units: Units, chance: Tensor, settings: GateSettings) -> Tensor:
    """max(chance, f) of the units that the floor is for."""
    return (
        torch.where(floor_of(units, settings), chance.clamp(min=settings.floor), chance) if settings.floor else chance
    )


def floor_of(units: Units, settings: GateSettings) -> Tensor:
    """Which units the floor is for: all that can be bought, or the failures among them, those of negative delight."""
    return units.able() & (units.delight < 0) if settings.reserve_mode == "failures" else units.able()


def tossed(units: Units, chance: Tensor, settings: GateSettings, coin: Tensor | None) -> Tensor:
    """G = 1{coin < chance}; of the units that a floor is for, unless it is plain, G = 1{coin < chance}/chance, so that
    E[G] = 1 and E[Σ G U∇log π] = Σ U∇log π over them, with Var[G] ≤ 1/f − 1."""
    assert coin is not None
    kept = (coin < chance).to(chance.dtype)
    if not settings.floor or settings.reserve_mode == "plain":
        return kept
    return torch.where(floor_of(units, settings), kept / chance, kept)


def reserve(units: Units, kept: Tensor, settings: GateSettings, coin: Tensor | None) -> Tensor:
    """G of m units drawn at random from the N that are not kept: 1, or N/m, which is one over the chance of each.

    m = ⌊ρn⌋ − ⌊(1 − r)ρn⌋, each at least 1; of failures alone, those of negative delight. Where that is none of a small
    batch, a plain reserve draws none, the others one beside what the rate buys: nothing else would be unbiased.
    """
    assert coin is not None
    assert settings.rate is not None
    assert settings.ranked is not None
    left = units.able() & ~kept
    if settings.reserve_mode == "failures":
        left = left & (units.delight < 0)
    count = units.count()
    most = share(settings.rate, count) - share(settings.ranked, count)
    if settings.reserve_mode != "plain":
        most = most.clamp(min=1) if isinstance(most, Tensor) else max(1, most)
    order = torch.where(left, coin, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    drawn = left & (order < most)
    weight = drawn.to(coin.dtype)
    if settings.reserve_mode == "plain":
        return weight
    return weight * left.sum(-1, keepdim=True) / drawn.sum(-1, keepdim=True).clamp(min=1)


def fed(units: Units, weights: Tensor, drops: Tensor | None, most: int) -> tuple[Tensor, Tensor]:
    """G, where a pool that kept nothing of more than `most` batches in a row gets its best unit; and how many that are
    by now. A batch without anything to teach does not count. → [pools, n], [pools, 1]"""
    able = units.able() if units.zero is None else units.able() & ~units.zero
    teaches, empty = able.any(-1, keepdim=True), ~weights.any(-1, keepdim=True)
    before = torch.zeros_like(teaches, dtype=torch.long) if drops is None else drops.to(teaches.device)
    if weights.shape[-1] == 0:
        return weights, before
    after = torch.where(teaches, (before + 1) * empty, before)
    starved = teaches & (after > most)
    best = torch.where(able, units.priority, -torch.inf).argmax(-1, keepdim=True)
    only_best = torch.zeros_like(weights).scatter(-1, best, 1.0)
    return torch.where(starved, only_best, weights), torch.where(starved, 0, after)


def decision(
    settings: GateSettings, units: Units, state: GateState, coin: Tensor | None = None
) -> tuple[KondoGateOutput, GateState]:
    """What to keep of the units, and the state to go on from.

    coin: uniform numbers, one per unit, for the Bernoulli mode, a reserve or a floor. With scale="delight" the
    temperature is η·s, s the deviation of delight; with "surprisal" the state's moments are this batch's already.
    """
    seen = window(units, state.history if settings.history else None)
    moments: Tensor | None = state.moments
    temperature: Tensor | float = settings.temperature
    if settings.scale == "delight":
        moments = scaling.moments(units.delight, units.valid(), state.moments, settings.scale_decay)
        temperature = temperature * scaling.deviation(moments).to(units.delight)  # [pools, 1]
    cost = calibrated(units, settings, temperature) if settings.calibrated else price(seen, units.count(), settings)
    kept, probs = weights(units, cost, settings, temperature, coin)
    zero, drops = None, None
    if units.zero is not None:
        kept = torch.where(units.zero, 0.0, kept)
        zero = (units.zero if units.exists is None else units.zero & units.exists).sum(-1)
    if settings.max_consecutive_drops is not None:
        kept, drops = fed(units, kept, state.drops, settings.max_consecutive_drops)
    count = units.count()
    bought = kept if settings.mode == "soft" else kept != 0
    rate = bought.sum(-1) / (max(1, count) if isinstance(count, int) else count.squeeze(-1).clamp(min=1))
    history = seen[..., -settings.history :].clone() if settings.history else None
    output = KondoGateOutput(kept, probs, units.delight, cost.squeeze(-1), rate, zero_advantage=zero)
    return output, GateState(history, drops, None if settings.scale == "none" else moments)


@overload
def share(rate: float, count: int) -> int: ...
@overload
def share(rate: float, count: Tensor) -> Tensor: ...
def share(rate: float, count: Tensor | int) -> Tensor | int:
    """k = max(1, ⌊ρn⌋), proof against ρn being a rounding error below a whole number."""
    if isinstance(count, int):
        return max(1, int(rate * count + 1e-9))
    return (rate * count.double() + 1e-9).floor().clamp(min=1).long()


def kth_highest(values: Tensor, k: Tensor | int) -> Tensor:
    """[pools, m], one k or [pools, 1] → [pools, 1]"""
    if isinstance(k, int):
        return values.topk(k, dim=-1).values[..., -1:]
    return values.sort(dim=-1, descending=True).values.gather(-1, k - 1)
