"""GRPO's settings and the gate's: what `KondoGRPOConfig` accepts, and what it refuses with a sentence.

`use_delight`, `use_kondo_gate` and `kondo_gate_{rate, temperature, history_size, warmup}` have the names and meanings
that open-instruct's pull request 1628 describes, where delight weighs token by token: `delight_level="token"`. Ours are
the default temperature, 0 (χ is compared with λ, no coin is tossed), and all other settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

from trl import GRPOConfig

from kondo.gate import GateSettings, check

SPELLED = {
    "rate": "kondo_gate_rate",
    "price": "kondo_gate_price",
    "mode": "kondo_gate_temperature",
    "temperature": "kondo_gate_temperature",
    "unit": "completions",
    "history": "kondo_gate_history_size",
    "warmup": "kondo_gate_warmup",
    "max_consecutive_drops": "max_consecutive_drops",
}
"""The gate's settings that have a name and a default of their own here, or GRPO no choice."""
OTHERS = {each.name: f"kondo_gate_{each.name}" for each in fields(GateSettings) if each.name not in SPELLED}
"""The others: what is new in GateSettings is a field of KondoGRPOConfig too."""
CHOICES = {
    "kondo_gate_screen": ("auto", "rollout", "exact"),
    "kondo_gate_advantage": ("scaled", "centred"),
    "delight_level": ("token", "response"),
}


def _help(text: str) -> dict[str, str]:
    return {"help": text}


_TYPES = get_type_hints(GateSettings)
_Others: Any = make_dataclass(
    "_Others",
    [
        (spelled, _TYPES[name], field(default=getattr(GateSettings, name), metadata=_help(f"The gate's {name}.")))
        for name, spelled in OTHERS.items()
    ],
)


@dataclass
class KondoGRPOConfig(GRPOConfig, _Others):
    """GRPO's settings, and the gate's."""

    use_delight: bool = field(
        default=False, metadata=_help("DG: weight each token's advantage U by σ(U·ℓ), ℓ its surprisal.")
    )
    delight_level: str = field(
        default="token",
        metadata=_help(
            "token: σ of the token's own delight; response: σ of the mean over the response, for all of it."
        ),
    )
    delight_gain: float = field(
        default=1.0, metadata=_help("DG's weight is gain·σ(delight); with 2 a sample of no delight weighs 1.")
    )
    use_kondo_gate: bool = field(
        default=False, metadata=_help("Run forward and backward only on completions whose mean delight U·ℓ pays.")
    )
    kondo_gate_rate: float = field(
        default=1.0, metadata=_help("ρ in (0, 1]: share of the completions to keep; 1 is GRPO itself, bit for bit.")
    )
    kondo_gate_price: float | None = field(
        default=None, metadata=_help("λ: keep delight above it, in place of a rate; 0 keeps exactly the positive.")
    )
    kondo_gate_temperature: float = field(
        default=0.0, metadata=_help("η: keep with probability σ((χ − λ)/η); 0 compares χ with λ.")
    )
    kondo_gate_history_size: int = field(
        default=512, metadata=_help("How many past delights, of all processes, a rate's price looks back on.")
    )
    kondo_gate_warmup: int = field(
        default=32, metadata=_help("Keep everything until this many delights have been seen.")
    )
    kondo_gate_advantage: str = field(
        default="scaled",
        metadata=_help(
            "Which advantage the gate sees: scaled, GRPO's own, or centred, reward less the mean of its group, not "
            "divided by a standard deviation."
        ),
    )
    kondo_gate_screen: str = field(
        default="auto",
        metadata=_help(
            "rollout: screen with the log-probabilities that came with the completions, where there are any, though "
            "the weights may have moved since; exact: with a pass of the present weights; auto: rollout, unless they "
            "are those of a truncated or penalised sampler."
        ),
    )
    kondo_gate_screen_batch_size: int | None = field(
        default=None,
        metadata=_help("Rows at a time in a screening pass; null: as many as a rate keeps, at least 8."),
    )
    max_consecutive_drops: int | None = field(
        default=16,
        metadata=_help("After this many micro-batches that kept nothing, keep the best completion; null: never."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are {', '.join(map(repr, allowed))}.")
        if self.delight_gain <= 0:
            raise ValueError(f"delight_gain={self.delight_gain} must be > 0.")
        size = self.kondo_gate_screen_batch_size
        if size is not None and size < 1:
            raise ValueError(f"kondo_gate_screen_batch_size={size} must be >= 1.")
        for name in self._changed():
            if name.startswith(("kondo_gate", "max_consecutive")) and not self.use_kondo_gate:
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without use_kondo_gate=True.")
            if name.startswith("delight") and not self.use_delight:
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without use_delight=True.")
        if self.kondo_gate_advantage == "centred" and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                "kondo_gate_advantage='centred' needs multi_objective_aggregation='sum_then_normalize': "
                f"with {self.multi_objective_aggregation!r} each reward is divided by its own deviation first."
            )
        settings = self.gate_settings()
        if settings is not None and settings.warmup > settings.history:
            raise ValueError(
                f"kondo_gate_warmup={self.kondo_gate_warmup} must be <= kondo_gate_history_size="
                f"{self.kondo_gate_history_size}: a history that is shorter never ends it."
            )

    def _changed(self) -> list[str]:
        """The settings of this class that are not at their default."""
        own = {each.name for each in fields(KondoGRPOConfig)} - {each.name for each in fields(GRPOConfig)}
        return [each.name for each in fields(self) if each.name in own and getattr(self, each.name) != each.default]

    def gate_settings(self) -> GateSettings | None:
        """The gate's own settings; None without a gate."""
        if not self.use_kondo_gate:
            return None
        if self.kondo_gate_temperature < 0:
            raise ValueError("kondo_gate_temperature must be >= 0.")
        priced = self.kondo_gate_price is not None
        history = 0 if priced else self.kondo_gate_history_size
        settings = GateSettings(
            rate=None if priced and self.kondo_gate_rate == 1 else self.kondo_gate_rate,
            price=self.kondo_gate_price,
            mode="bernoulli" if self.kondo_gate_temperature else "hard",
            temperature=self.kondo_gate_temperature or GateSettings.temperature,
            unit="sequence",
            history=history,
            warmup=self.kondo_gate_warmup if history else 0,
            max_consecutive_drops=self.max_consecutive_drops,
            **{name: getattr(self, spelled) for name, spelled in OTHERS.items()},
        )
        check(settings, (SPELLED | OTHERS).__getitem__, strict=True)
        return settings

    def screen_batch_size(self) -> int:
        """How many rows a screening pass takes at a time: no more than a rate leaves to train on, at least 8."""
        if self.kondo_gate_screen_batch_size is not None:
            return self.kondo_gate_screen_batch_size
        share = self.kondo_gate_rate if self.kondo_gate_price is None else 0.0
        return max(8, round(share * self.per_device_train_batch_size))

    def truncations(self) -> list[str]:
        """The settings by which the sampler's probabilities are not, or may not be, those of the policy in training.

        A temperature is not among them, as GRPO's own log-probabilities are taken at it too; but a vLLM server may be
        one that reports raw log-probabilities, those of temperature 1.
        """
        neutral: dict[str, tuple[float | None, ...]]
        neutral = {"top_p": (1, None), "top_k": (0, -1, None), "min_p": (0, None), "repetition_penalty": (1, None)}
        harmless = {"seed", "max_tokens", "max_new_tokens", "min_tokens", "do_sample", "use_cache", "n"}
        further = self.generation_kwargs if isinstance(self.generation_kwargs, dict) else {}
        asked = {name: getattr(self, name) for name in neutral} | further
        changed = [name for name in neutral if asked[name] not in neutral[name]]
        changed += [f"generation_kwargs[{name!r}]" for name in sorted(set(further) - set(neutral) - harmless)]
        if self.use_vllm and self.vllm_mode == "server" and self.temperature != 1:
            changed.append("temperature")
        return changed
