"""The Kondo gate: which samples are worth their backward pass?

    G ~ Bernoulli(σ((χ − λ)/η)),    η → 0:  G = 1{χ > λ}

The price λ is either fixed, or set so that a fixed rate ρ of the units passes. A *unit* is what is bought or skipped as
a whole: a sample, a token, or a sequence (whose delight is the mean over its tokens).

What the gate decides at the edges:

- every delight is zero: there is nothing to learn, none is kept, at any rate or price;
- ρ = 1: every unit is kept (λ = −∞), exactly policy gradient;
- a rate keeps exactly k = max(1, ⌊ρn⌋) of n units; ties at the price go to the lowest index;
- a reserve of r leaves max(1, ⌊(1 − r)ρn⌋) of the k to the price and draws the others at random;
- a fixed price keeps what is strictly above it, so λ = 0 keeps exactly the positive delights;
- NaN rewards and infinite surprisal (log π = −∞): no finite gradient, so never kept and never part of a quantile.

The arithmetic is in `kondo.pricing`, what a gate may rank by in `kondo.priorities`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kondo import packing, pricing
from kondo.parallel import gathered
from kondo.pricing import GateState, KondoGateOutput, Units
from kondo.priorities import PRIORITIES as PRIORITIES
from kondo.priorities import priority as priority
from kondo.schema import ConfigError, check_range, described, knob
from kondo.signals import action_log_probs
from kondo.signals import delight as delight_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Draw = Callable[[str, tuple[int, ...]], Tensor]
STATE = tuple(field.name for field in fields(GateState))


@dataclass(kw_only=True)
class GateOptions:
    """Settings of the gate that every way to write them down has under the same name."""

    priority: str = knob("delight", choices=PRIORITIES)
    """What the gate ranks by: a name in PRIORITIES."""
    alpha: float = knob(0.5, low=0, high=1)
    """α: weight of the advantage in the additive priority."""
    unit: str = knob("auto", choices=("auto", "sample", "token", "sequence"))
    """sample, token (every entry decides for itself), sequence (the last axis is averaged); auto means sequence where
    an attention mask says where sequences end, and every entry otherwise."""
    history: int = knob(0, low=0)
    """How many past priorities the quantile looks back on, beside the batch itself; 0 prices each batch by itself."""
    warmup: int = knob(0, low=0)
    """With a history: keep everything until this many priorities have been seen."""
    max_consecutive_drops: int | None = knob(None, low=0)
    """After this many batches in a row that had something to teach and kept nothing, the next such batch keeps its best
    unit, whatever the price; None: never."""
    calibrated: bool = knob(False)
    """A rate's price in the Bernoulli and soft modes: that of the hard mode (False), or the one at which σ((χ − λ)/η)
    is ρ on average, so that the rate is what is paid for (True)."""
    reserve: float = knob(0.0, low=0, below=1)
    """r: share of what a rate buys that is drawn at random from what it would skip."""
    reserve_mode: str = knob("plain", choices=("plain", "unbiased", "failures"))
    """plain: any unit, G = 1; unbiased: any, G = N/m where m of N are drawn, so that E[Σ G U∇log π] = Σ U∇log π;
    failures: the same among units of negative delight alone."""


@dataclass
class GateSettings(GateOptions):
    """Settings of the gate: a rate or a price, and how it decides by it."""

    rate: float | None = knob(None, above=0, high=1)
    """ρ: the share of units to keep; the price is then their (1 − ρ)-quantile."""
    price: float | None = knob(None)
    """λ: a fixed compute price."""
    mode: str = knob("hard", choices=("hard", "bernoulli", "soft"))
    """hard: 1{χ > λ}; bernoulli: a coin with probability σ((χ − λ)/η); soft: weight by it, and skip nothing."""
    temperature: float = knob(0.1, above=0)
    """η: softness of the Bernoulli and soft modes. The hard mode is its limit η → 0 and does not read it."""

    @property
    def ranked(self) -> float | None:
        """The share of units that is bought by priority: the rate, less the reserve."""
        return self.rate if self.rate is None or not self.reserve else self.rate * (1 - self.reserve)


@dataclass
class KondoGateConfig(GateOptions):
    """The gate's settings in the words of kondo-gate; `gate_rate` and `price` exclude each other.

    The mode is hard (the default), Bernoulli (`deterministic=False`) or soft (`hard=False`).
    """

    gate_rate: float | None = 0.3
    """ρ"""
    price: float | None = None
    """λ"""
    temperature: float = 0.1
    """η"""
    hard: bool = True
    """Decide 0 or 1 (True), or weight smoothly (False)."""
    deterministic: bool = True
    """Hard mode only: compare with the price (True), or toss a coin with probability σ((χ − λ)/η) (False)."""

    def settings(self) -> GateSettings:
        """The same in the words of `GateSettings`."""
        mode = "soft" if not self.hard else "hard" if self.deterministic else "bernoulli"
        shared = {field.name: getattr(self, field.name) for field in fields(GateOptions)}
        return GateSettings(rate=self.gate_rate, price=self.price, mode=mode, temperature=self.temperature, **shared)


def check(settings: GateSettings, spell: Callable[[str], str] = str, *, strict: bool = False) -> None:
    """Refuse settings that cannot be, each under the name that `spell` gives it; strict: those without effect, too."""
    for field in fields(settings):
        value, limits = getattr(settings, field.name), field.metadata["limits"]
        try:
            check_range(value, limits, field.name)
        except ConfigError:
            raise ConfigError(f"{spell(field.name)} must be {described(limits)}; got {value!r}.") from None
    said = {field.name: f"{spell(field.name)}={getattr(settings, field.name)}" for field in fields(settings)}
    either = f"specify either {spell('rate')} or {spell('price')}"
    if settings.rate is not None and settings.price is not None:
        raise ConfigError(f"{said['rate']} and {said['price']} exclude each other: {either}, not both.")
    if settings.rate is None and settings.price is None:
        raise ConfigError(f"{either}: both are None.")
    if settings.history and settings.rate is None:
        raise ConfigError(f"{said['history']}: a fixed price has no use for a history; {spell('price')} is fixed.")
    if settings.warmup and not settings.history:
        raise ConfigError(f"{said['warmup']}: the warm-up fills a history; set {spell('history')} too.")
    if settings.reserve and (settings.rate in (None, 1) or settings.mode != "hard"):
        raise ConfigError(
            f"{said['reserve']}: a share of what a hard gate buys at a rate below 1; "
            f"got {said['rate']}, {said['mode']}."
        )
    if settings.calibrated and (settings.rate is None or settings.mode == "hard" or settings.history):
        raise ConfigError(
            f"{said['calibrated']}: of a rate in the Bernoulli or soft mode, batch by batch; "
            f"got {said['rate']}, {said['mode']}, {said['history']}."
        )
    for name, reader, read in (
        ("temperature", "mode", settings.mode != "hard"),
        ("alpha", "priority", settings.priority == "additive"),
        ("reserve_mode", "reserve", settings.reserve > 0),
    ):
        if strict and not read and getattr(settings, name) != getattr(GateSettings, name):
            raise ConfigError(f"{said[name]}: has no effect with {said[reader]}.")


class KondoGate(nn.Module):
    """Selects the samples that are worth a backward pass.

    Screen without gradients, then train on the survivors alone::

        gate = KondoGate(KondoGateConfig(gate_rate=0.03))
        keep = gate.compute_gate(log_probs, advantages).keep          # no graph needed
        loss = -(advantages[keep] * log_prob(model, inputs[keep])).sum() / keep.numel()

    Calling the gate on logits gives the masked loss of the same gradient, which costs every backward pass.

    A gate with a history, or with max_consecutive_drops, has a state, which is in its `state_dict`: `compute_gate`,
    `decide`, `screen` and calling it go on to the next; `decision` tells what they would do and changes nothing.

    group: the processes (of `torch.distributed`) whose batches are parts of one. They then agree on everything: the
    price is that of all their units together, ties go to the lowest rank, histories are the same. Each process must
    ask the gate for each batch, and gets the decision on its own units.
    """

    history: Tensor | None
    drops: Tensor | None

    def __init__(self, config: KondoGateConfig | GateSettings | None = None, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.config, self.group = config or KondoGateConfig(), group
        spelled = {"rate": "gate_rate"} if isinstance(self.config, KondoGateConfig) else {}
        check(self.settings, lambda name: spelled.get(name, name))
        for name in STATE:
            self.register_buffer(name, None)

    @property
    def settings(self) -> GateSettings:
        return self.config.settings() if isinstance(self.config, KondoGateConfig) else self.config

    @property
    def state(self) -> GateState:
        """What the gate remembers."""
        return GateState(self.history, self.drops)

    def remember(self, state: GateState) -> None:
        """Go on from this state."""
        self.history, self.drops = state.history, state.drops

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """A saved state is taken as it is: its shapes are those of the batches it has seen."""
        for name in STATE:
            saved = state_dict.get(prefix + name)
            self._buffers[name] = None if saved is None else torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def compute_delight(self, log_probs: Tensor, advantages: Tensor) -> Tensor:
        """χ = U · ℓ, entry by entry."""
        return delight_of(log_probs, advantages)

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
        """Decide what to keep, and remember it: see `decision`."""
        output, state = self.decision(log_probs, advantages, delight, mask=mask, pools=pools, draw=draw)
        self.remember(state)
        return output

    @torch.no_grad()
    def decision(
        self,
        log_probs: Tensor,
        advantages: Tensor,
        delight: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        pools: int = 0,
        draw: Draw | None = None,
    ) -> tuple[KondoGateOutput, GateState]:
        """What to keep, and the state to go on from; the gate itself stays as it is.

        log_probs: log π of the actions, any shape; advantages: the same shape.
        delight: χ computed elsewhere (noisy, approximate, of another model), in place of U · ℓ.
        mask: which entries exist. pools: how many leading axes hold separate pools, each priced by itself
        (0: the whole tensor is one pool). draw: `(name, shape) → uniform numbers`, the source of all randomness.

        Everything in the output has one entry per unit: the shape of log_probs, less the last axis for
        unit="sequence".
        """
        settings = self.settings
        draw = draw or (lambda name, shape: torch.rand(shape, device=log_probs.device))
        entries = pricing.entries(
            settings, log_probs, advantages, delight, mask, lambda: draw("priority", log_probs.shape)
        )
        units = pricing.units(entries, settings.unit, pools)
        shape, pooled = units.delight.shape, units.pooled(pools)
        tossed = settings.mode == "bernoulli" or settings.reserve > 0
        coin = draw("coin", tuple(pooled.delight.shape)) if tossed else None
        own = slice(None)
        if self.group is not None:  # decided on the units of all processes, by each of them
            pooled, coin, own = _joined(pooled, coin, self.group)
        output, state = pricing.decision(settings, pooled, self.state, coin)
        each = ("gate_weights", "gate_probs", "delight")
        return replace(output, **{name: getattr(output, name)[..., own].reshape(shape) for name in each}), state

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


def gated_sum(log_probs: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    """−Σ G · U · log π, where a skipped entry adds nothing even if its advantage is NaN or its log π is −∞."""
    kept = weights != 0
    coefficients = torch.where(kept, weights * advantages, 0.0).detach()
    return -(coefficients * torch.where(kept, log_probs, 0.0)).sum()


def _joined(units: Units, coin: Tensor | None, group: ProcessGroup) -> tuple[Units, Tensor | None, slice]:
    """The units of all processes of the group and their coins, in order of rank, and where one's own are."""
    exists = torch.ones_like(units.finite) if units.exists is None else units.exists
    own = [units.delight, units.priority, units.finite, exists, *([] if coin is None else [coin])]
    (delight, priority, finite, exists, *coins), where = gathered(own, group)
    return Units(delight, priority, finite, exists), coins[0] if coins else None, where
