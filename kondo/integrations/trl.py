"""GRPO with DG and the Kondo gate (`pip install kondo[trl]`)::

    args = KondoGRPOConfig(output_dir="out", use_kondo_gate=True, kondo_gate_rate=0.1)
    KondoGRPOTrainer(model=…, reward_funcs=…, args=args, train_dataset=…).train()

The switches have the names and the meanings that open-instruct gave them. Each micro-batch is screened without a graph,
the completions that are worth it are gathered, cut to the longest of them, and only they are passed to GRPO's own loss,
which is scaled back to the whole micro-batch: multiplying the others by zero would have the same gradient and save
nothing. A micro-batch of which nothing is kept has no graph at all, and a step of such micro-batches moves neither the
weights nor the optimizer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor, distributed, nn
from trl import GRPOConfig, GRPOTrainer

from kondo.gate import GateSettings, KondoGate, check, per_entry
from kondo.parallel import summed
from kondo.signals import delight

COMPLETIONS = ("completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "sampling_per_token_logps",
               "ref_per_token_logps", "importance_sampling_ratio", "advantages")  # fmt: skip
"""What has an entry per row, and where it has two axes, one per token of the completion."""


def _help(text: str) -> dict[str, str]:
    return {"help": text}


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
"""The gate's settings that open-instruct has a name and a default for, or GRPO no choice."""
OTHERS = {each.name: f"kondo_gate_{each.name}" for each in fields(GateSettings) if each.name not in SPELLED}
"""The others: what is new in GateSettings is a field of KondoGRPOConfig too."""
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
    use_kondo_gate: bool = field(
        default=False, metadata=_help("Run forward and backward only on completions whose mean delight U·ℓ pays.")
    )
    kondo_gate_rate: float = field(
        default=1.0, metadata=_help("ρ in (0, 1]: share of the completions to keep; 1 keeps all.")
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
    kondo_gate_screen: str = field(
        default="rollout",
        metadata=_help(
            "rollout: screen with the log-probabilities that came with the completions, where there are any, though "
            "the weights may have moved since; exact: always with a pass of the present weights."
        ),
    )
    max_consecutive_drops: int | None = field(
        default=16,
        metadata=_help("After this many micro-batches that kept nothing, keep the best completion; null: never."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kondo_gate_screen not in ("rollout", "exact"):
            raise ValueError(f"kondo_gate_screen={self.kondo_gate_screen!r}: allowed are 'rollout' and 'exact'.")
        self.gate_settings()

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


class KondoGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that pays for the completions it keeps. Logs kondo/{delight_mean, gate_rate, price, backward_rows,
    backward_tokens, skipped_fraction}, over all processes, and kondo/seconds_saved, of the main one.

    seconds_saved charges a skipped token what a trained one cost, and subtracts the screen: an estimate from above
    where the overhead of a pass outweighs its tokens. A KL term (beta) is paid on the kept completions only. The gate's
    history is not part of a checkpoint.
    """

    args: KondoGRPOConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, KondoGRPOConfig):
            raise TypeError("args must be a KondoGRPOConfig.")
        settings = self.args.gate_settings()
        if settings is not None and (self._entropy_bonus_enabled or self.aux_loss_enabled):
            raise ValueError("an entropy bonus or a router's loss is over all rows, and the gate passes only some.")
        self.group = distributed.group.WORLD if self.accelerator.num_processes > 1 else None
        self.gate = None if settings is None else KondoGate(settings, self.group)
        self._weighed: dict[str, Any] | None = None  # inputs whose advantages wait for their surprisal
        self._pending = False  # whether gradients of this accumulation window wait for the others'
        self._update: dict[str, float] = {}  # of this micro-batch: when its update began, its tokens, its screen's time
        self._spent: defaultdict[str, float] = defaultdict(float)  # seconds and tokens of all updates so far

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        inputs = dict(inputs)
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        share = 1.0
        if self.gate is not None:
            if "pixel_values" in inputs:
                raise NotImplementedError("the gate passes on rows of text, not of images.")
            rows = self._screened(inputs)
            some = bool(summed(torch.tensor(float(len(rows)), device=rows.device), self.group) > 0)
            joins = self.group is not None and (some or (self._pending and self.accelerator.sync_gradients))
            self._pending = (self._pending or some) and not self.accelerator.sync_gradients
            if not len(rows) and not joins:
                return torch.zeros((), device=rows.device, requires_grad=True)
            whole = inputs
            inputs = gather(whole, rows if len(rows) else rows.new_zeros(1))  # others wait: a row that weighs nothing
            share = self._share(inputs, whole) if len(rows) else 0.0
        if self.args.use_delight:
            self._weighed = inputs
        with self._uneven():
            return super()._compute_loss(model, inputs) * share

    def _screened(self, inputs: dict[str, Any]) -> Tensor:
        """The rows to keep. [k]"""
        assert self.gate is not None
        begun = self._clock()
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        log_probs = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        if log_probs is None or self.args.kondo_gate_screen == "exact":
            log_probs = self._log_probs(inputs)
        decision, _ = self.gate.decide(log_probs.float(), inputs["advantages"], mask)
        rows = decision.keep.nonzero().squeeze(-1)
        kept = gather(inputs, rows)
        size, batch = (x["prompt_ids"].numel() + x["completion_ids"].numel() for x in (kept, inputs))
        self._update = {"begun": self._clock(), "tokens": size, "batch": batch}
        self._update["screen"] = self._update["begun"] - begun

        counts = [decision.delight.nansum(), len(rows), size, batch, len(mask)]
        total = summed(torch.tensor([float(x) for x in counts], device=mask.device), self.group).tolist()
        self._note(
            delight_mean=total[0] / total[4],
            gate_rate=total[1] / total[4],
            backward_rows=total[1],
            backward_tokens=total[2],
            skipped_fraction=1 - total[2] / total[3],
        )
        if decision.price.isfinite():
            self._note(price=decision.price.item())
        return rows

    @torch.no_grad()
    def _log_probs(self, inputs: dict[str, Any]) -> Tensor:
        """log π of the completions under the present weights, in evaluation mode. [B, T]"""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        self.model.eval()
        found, *_ = super()._get_per_token_logps_and_entropies(self.model, ids, mask, inputs["completion_ids"].size(1))
        self.model.train()
        return found

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._weighed is not None:  # DG takes ℓ from the very pass that is trained; GRPO reads U only after it
            advantages = per_entry(self._weighed["advantages"], found[0])
            self._weighed["advantages"] = advantages * torch.sigmoid(delight(found[0], advantages))
            self._weighed = None
        return found

    def _share(self, kept: dict[str, Any], whole: dict[str, Any]) -> float:
        """What makes GRPO's loss, a mean over the kept rows, their sum divided by the size of the whole micro-batch."""
        if self.loss_type in ("dapo", "cispo", "vespo"):  # divided by the number of all tokens as it is
            return 1.0
        tokens = self.loss_type == "bnpo"
        few, all_ = ((x["completion_mask"] * x.get("tool_mask", 1)).sum().item() for x in (kept, whole))
        return few / max(all_, 1.0) if tokens else len(kept["completion_ids"]) / len(whole["completion_ids"])

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if update := self._update:
            if update["tokens"]:
                self._spent["seconds"] += self._clock() - update["begun"]
                self._spent["tokens"] += update["tokens"]
            if self._spent["tokens"]:  # skipped tokens at the price of those that were not, less the screen
                each = self._spent["seconds"] / self._spent["tokens"]
                self._note(seconds_saved=(update["batch"] - update["tokens"]) * each - update["screen"])
            self._update = {}
        return loss

    @contextmanager
    def _uneven(self) -> Iterator[None]:
        """GRPO gathers statistics per row, as many from every process: fill up with NaN, which it leaves out."""
        gather, pad = self.accelerator.gather, self.accelerator.pad_across_processes
        if self.group is not None:
            self.accelerator.gather = lambda values: gather(pad(values, pad_index=torch.nan))
        try:
            yield
        finally:
            self.accelerator.gather = gather

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            self._metrics["train"][f"kondo/{name}"].append(value)

    def _clock(self) -> float:
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize(self.accelerator.device)
        return time.perf_counter()


def gather(inputs: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """Some rows of a GRPO batch, without the columns that are padding in all of them."""
    prompt, completion = inputs["prompt_mask"][rows], inputs["completion_mask"][rows]
    first = int(prompt.any(0).byte().argmax()) if prompt.any() else prompt.shape[1]  # padded on the left
    last = int(completion.sum(1).max()) if len(rows) else 0  # padded on the right
    kept = dict(inputs)
    for name in ("prompt_ids", "prompt_mask"):
        kept[name] = inputs[name][rows, first:]
    for name in COMPLETIONS:
        value = inputs.get(name)
        if value is not None:
            wide = value.dim() > 1 and value.shape[1] == completion.shape[1]
            kept[name] = value[rows, : max(last, 1)] if wide else value[rows]
    return kept
