"""The gate's settings, in our words and in those of kondo-gate, and which of them cannot go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from kondo.priorities import PRIORITIES
from kondo.schema import ConfigError, check_range, described, knob


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
    unit, whatever the price and at weight 1, which no expectation of a reserve or a floor counts; None: never."""
    calibrated: bool = knob(False)
    """A rate's price in the Bernoulli and soft modes: that of the hard mode (False), or the one at which σ((χ − λ)/η)
    is ρ on average, so that the rate is what is paid for (True)."""
    reserve: float = knob(0.0, low=0, below=1)
    """r: share of what a rate buys that is drawn at random from what it would skip."""
    reserve_mode: str = knob("plain", choices=("plain", "unbiased", "failures"))
    """plain: any unit, G = 1; unbiased: any, G = N/m where m of N are drawn, so that E[Σ G U∇log π] = Σ U∇log π;
    failures: the same among units of negative delight alone. Of a floor likewise, with G = 1/p for N/m."""
    floor: float = knob(0.0, low=0, below=1, later=True)
    """f: the least chance that a unit is kept with, p = max(σ((χ − λ)/η), f), or max(1{χ > λ}, f) in the hard mode. It
    is paid for beside a rate; `reserve_mode` says for which units, and whether they weigh G = 1 or 1/p ≤ 1/f."""
    scale: str = knob("none", choices=("none", "surprisal", "delight"), later=True)
    """surprisal: χ = U · ℓ/s, s the running root mean square of ℓ; delight: a coin or weight of σ((χ − λ)/(η·s)), s the
    running deviation of the units' χ."""
    scale_decay: float = knob(0.99, low=0, below=1, later=True)
    """β: how much of the running means of x and x² is kept from batch to batch; 0: each batch by its own spread."""


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
        except (ConfigError, TypeError):  # out of its range, or nothing that has one
            raise ConfigError(f"{spell(field.name)} must be {described(limits)}; got {value!r}.") from None
    said = {field.name: f"{spell(field.name)}={getattr(settings, field.name)}" for field in fields(settings)}
    either = f"specify either {spell('rate')} or {spell('price')}"
    if settings.rate is not None and settings.price is not None:
        raise ConfigError(
            f"{said['rate']} and {said['price']} exclude each other: {either}, not both; None for the other."
        )
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
    if settings.floor and (settings.rate == 1 or settings.mode == "soft" or settings.reserve):
        raise ConfigError(
            f"{said['floor']}: the chance of what a gate would skip, and in place of a reserve; "
            f"got {said['rate']}, {said['mode']}, {said['reserve']}."
        )
    if settings.calibrated and (settings.rate is None or settings.mode == "hard" or settings.history):
        raise ConfigError(
            f"{said['calibrated']}: of a rate in the Bernoulli or soft mode, batch by batch; "
            f"got {said['rate']}, {said['mode']}, {said['history']}."
        )
    if settings.scale == "delight" and settings.priority != "delight":
        raise ConfigError(f"{said['scale']}: of a gate that ranks by delight; got {said['priority']}.")
    moved = settings.mode != "hard" or (
        settings.scale == "surprisal"
        and (settings.rate is None or settings.history > 0 or settings.priority == "additive")
    )
    for name, reader, read in (
        ("temperature", "mode", settings.mode != "hard"),
        ("alpha", "priority", settings.priority == "additive"),
        ("reserve_mode", "reserve", settings.reserve > 0 or settings.floor > 0),
        ("scale", "mode", moved),
        ("scale_decay", "scale", settings.scale != "none"),
    ):
        if strict and not read and getattr(settings, name) != getattr(GateSettings, name):
            raise ConfigError(f"{said[name]}: has no effect with {said[reader]}.")
