"""The Kondo gate: which samples are worth their backward pass?

    G ~ Bernoulli(σ((χ − λ)/η)),    η → 0:  G = 1{χ > λ}

The price λ is either fixed, or set so that a fixed rate ρ of the units passes. A *unit* is what is bought or skipped as
a whole: a sample, a token, or a sequence (whose delight is the mean over its tokens).

What the gate decides at the edges:

- every delight is zero: there is nothing to learn, none is kept, at any rate or price;
- ρ = 1: every unit is kept (λ = −∞), exactly policy gradient;
- a rate keeps exactly k = max(1, ⌊ρn⌋) of n units; ties at the price go to the lowest index;
- a reserve of r leaves max(1, ⌊(1 − r)ρn⌋) of the k to the price and draws the others at random; one that is unbiased
  draws at least one, if need be beside the k;
- a floor of f keeps what the price or the coin would skip with chance f, beside what a rate buys;
- a fixed price keeps what is strictly above it, so λ = 0 keeps exactly the positive delights;
- NaN rewards and infinite surprisal (log π = −∞): no finite gradient, so never kept and never part of a quantile.
- an advantage of exactly zero has no gradient: `decide`, and so `screen`, calling the gate and `KondoTrainer`, keep no
  such unit, and its place in a rate goes to no other; `compute_gate` and `decision` keep the papers' rule.

The settings are in `kondo.settings`, the arithmetic in `kondo.pricing`, what a gate may rank by in `kondo.priorities`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kondo import packing, pricing, scaling
from kondo.batch import Batch
from kondo.parallel import gathered, summed
from kondo.pricing import GateState, KondoGateOutput, Units
from kondo.priorities import PRIORITIES as PRIORITIES
from kondo.priorities import priority as priority
from kondo.settings import GateOptions as GateOptions
from kondo.settings import GateSettings, KondoGateConfig
from kondo.settings import check as check
from kondo.signals import action_log_probs
from kondo.signals import delight as delight_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Draw = Callable[[str, tuple[int, ...]], Tensor]
STATE = tuple(field.name for field in fields(GateState))


class KondoGate(nn.Module):
    """Selects the samples that are worth a backward pass.

    Screen without gradients, then train on the survivors alone::

        gate = KondoGate(KondoGateConfig(gate_rate=0.03))
        keep = gate.compute_gate(log_probs, advantages).keep          # no graph needed
        loss = -(advantages[keep] * log_prob(model, inputs[keep])).sum() / keep.numel()

    Calling the gate on logits gives the masked loss of the same gradient, which costs every backward pass.

    A gate with a history, a scale or max_consecutive_drops has a state, which is in its `state_dict`: `compute_gate`,
    `decide`, `screen` and calling it go on to the next; `decision` tells what they would do and changes nothing.

    group: the processes (of `torch.distributed`) whose batches are parts of one. They then agree on everything: the
    price is that of all their units together, ties go to the lowest rank, histories are the same. Each process must
    ask the gate for each batch, and gets the decision on its own units.
    """

    history: Tensor | None
    drops: Tensor | None
    moments: Tensor | None

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
        return GateState(**{name: self._buffers[name] for name in STATE})

    def remember(self, state: GateState) -> None:
        """Go on from this state."""
        for name in STATE:
            self._buffers[name] = getattr(state, name)

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
        return self._decision(log_probs, advantages, delight, mask, pools, draw)

    @torch.no_grad()
    def _decision(
        self,
        log_probs: Tensor,
        advantages: Tensor,
        delight: Tensor | None = None,
        mask: Tensor | None = None,
        pools: int = 0,
        draw: Draw | None = None,
        *,
        skip_zero: bool = False,
    ) -> tuple[KondoGateOutput, GateState]:
        """See `decision`; skip_zero: a unit without any advantage is never kept."""
        settings, state = self.settings, self.state
        if settings.scale == "surprisal":
            total = None if self.group is None else lambda sums: summed(sums, self.group)
            found = scaling.surprisal_moments(log_probs, mask, state.moments, settings.scale_decay, pools, total)
            state, spread = replace(state, moments=found), scaling.root_mean_square(found)
            log_probs = scaling.divided(log_probs, spread, pools)
            delight = None if delight is None else scaling.divided(delight, spread, pools)
        draw = draw or (lambda name, shape: torch.rand(shape, device=log_probs.device))
        entries = pricing.entries(
            settings, log_probs, advantages, delight, mask, lambda: draw("priority", log_probs.shape)
        )
        if skip_zero:
            entries = replace(entries, zero=advantages == 0)
        units = pricing.units(entries, settings.unit, pools)
        shape, pooled = units.delight.shape, units.pooled(pools)
        tossed = settings.mode == "bernoulli" or settings.reserve > 0 or settings.floor > 0
        coin = draw("coin", tuple(pooled.delight.shape)) if tossed else None
        own = slice(None)
        if self.group is not None:  # decided on the units of all processes, by each of them
            pooled, coin, own = _joined(pooled, coin, self.group)
        output, state = pricing.decision(settings, pooled, state, coin)
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
        batch = Batch(input_ids, actions, advantages, attention_mask, action_mask).checked()
        log_probs = packing.log_probs(model, input_ids, batch.actions, attention_mask, micro_tokens)
        output, _ = self.decide(log_probs, batch.advantages, batch.decided)
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
        actions = Batch(actions, actions, advantages, attention_mask).checked().actions
        if logits.shape[:-1] != actions.shape:
            raise ValueError(f"logits {tuple(logits.shape)}: expected those of actions {tuple(actions.shape)}.")
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
        """The gate's decision on a batch (B,) or (B, T), and its weights entry by entry (0 where the mask is).

        A unit whose advantages are all exactly 0 has no policy gradient and is never kept; `zero_advantage` says how
        many these are. A term of your own that has a gradient there, such as a KL or an entropy, is then not computed
        on them, as on all that is skipped.
        """
        if log_probs.dim() == 1:
            attention_mask = None
        each = per_entry(advantages, log_probs)
        output, state = self._decision(log_probs, each, mask=attention_mask, skip_zero=True)
        self.remember(state)
        weights = output.gate_weights
        if weights.dim() < log_probs.dim():
            weights = weights.unsqueeze(-1).expand_as(log_probs)
        return output, weights if attention_mask is None else weights * attention_mask


def too_few(settings: GateSettings, units: int) -> str | None:
    """What there is to say where a rate is of less than one unit of a batch; None: nothing."""
    rate = settings.rate
    if rate is None or not units or rate * units >= 1 - 1e-9 or settings.history or settings.calibrated:
        return None
    return (
        f"rate: {rate:g} of {units} is less than one, and the gate keeps one, {1 / units:.1%}; "
        "with history= the price looks back on past batches too, and the rate holds over time."
    )


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
    own = {name: x for name, x in (vars(units) | {"exists": exists, "coin": coin}).items() if x is not None}
    whole, where = gathered(list(own.values()), group)
    joined = dict(zip(own, whole, strict=True))
    coin = joined.pop("coin", None)
    return Units(**joined), coin, where
