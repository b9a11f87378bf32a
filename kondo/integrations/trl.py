"""GRPO with DG and the Kondo gate (`pip install kondo[trl]`)::

    args = KondoGRPOConfig(output_dir="out", use_kondo_gate=True, kondo_gate_rate=0.1)
    KondoGRPOTrainer(model=…, reward_funcs=…, args=args, train_dataset=…).train()

Each micro-batch is screened without a graph, the completions that are worth it are gathered, cut to the longest of
them, and only they are passed to GRPO's own loss, which is scaled back to the whole micro-batch: multiplying the others
by zero would have the same gradient and save nothing. A micro-batch of which nothing is kept has no graph at all, and a
step of such micro-batches moves neither the weights nor the optimizer. With the gate off or at ρ = 1 it is GRPO bit for
bit. Gradient checkpointing, LoRA, dropout (the screen runs without it) and several iterations per batch work; an
entropy bonus, a router's loss and images are refused. For TRL's asynchronous trainer there is `trl_async`.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

try:
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
    from trl import GRPOTrainer
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; pip install 'kondo[trl]'", name=missing.name) from missing

from kondo.gate import GateSettings, KondoGate, per_entry, too_few
from kondo.integrations.trl_config import KondoGRPOConfig as KondoGRPOConfig
from kondo.integrations.trl_metrics import PassTimes, Survivors, averages, response_delight, sums
from kondo.parallel import summed
from kondo.signals import delight

COMPLETIONS = ("completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "sampling_per_token_logps",
               "ref_per_token_logps", "importance_sampling_ratio", "advantages")  # fmt: skip
"""What has an entry per row, and where it has two axes, one per token of the completion."""
STATE = "kondo_gate.pt"
"""The gate's history, in a checkpoint's folder."""


class KondoGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that pays for the completions it keeps.

    It logs, over all processes, kondo/{delight_mean, delight_std, off_neutral_share, zero_advantage_share}, and with a
    gate kondo/{gate_rate, price, backward_rows, backward_tokens, skipped_fraction, nonfinite_rows, kept_length,
    dropped_length, survivors_per_group, groups_without_survivors} and the shares of all completions that are
    kept/dropped and have positive/negative advantage. What GRPO measures on the rows it is given (entropy, KL, clip
    ratios) is then logged as kondo/kept_…; `entropy` itself only where a pass of the screen measured it on all rows.

    kondo/{seconds_screen, seconds_update} are measured, by the main process. kondo/seconds_saved is what an update of
    the whole micro-batch would take, less these two; an estimate, by a straight line through the updates so far, which
    may be negative, and is left out while the line does not tell. A KL term (beta) is paid on kept completions only.
    """

    args: KondoGRPOConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.args, KondoGRPOConfig):
            raise TypeError("args must be a KondoGRPOConfig.")
        settings = self.args.gate_settings()
        if settings is not None:
            self._refuse(settings)
        self.group = distributed.group.WORLD if self.accelerator.num_processes > 1 else None
        self.gate = None if settings is None else KondoGate(settings, self.group)
        self.stands_open = settings is not None and settings.rate == 1 and settings.mode == "hard"
        self._trained: dict[str, Any] | None = None  # what the next pass is of; then its log-probs are in it
        self._pending = False  # whether gradients of this accumulation window wait for the others'
        self._update: dict[str, float] = {}  # of this micro-batch: when its update began, its tokens, its screen's time
        self._times = PassTimes()
        self._survivors: Survivors | None = None
        self._rewards: Tensor | None = None  # of all processes, per reward function
        self._warned: set[str] = set()

    def _refuse(self, settings: GateSettings) -> None:
        if self.args.top_entropy_quantile < 1 and settings.rate != 1:
            raise ValueError(
                f"top_entropy_quantile={self.args.top_entropy_quantile}: a quantile over all tokens, and the gate "
                "passes those of some rows; set it to 1.0."
            )
        if self._entropy_bonus_enabled or self.aux_loss_enabled:
            raise ValueError("an entropy bonus or a router's loss is over all rows, and the gate passes only some.")
        sampled = self.use_vllm or self.rollout_func is not None
        every = self.args.steps_per_generation * self.num_iterations
        recomputed = self.args.gradient_accumulation_steps % every or (
            self.use_vllm and self.vllm_importance_sampling_correction
        )
        if self.args.kondo_gate_screen == "rollout" and sampled and not recomputed:
            self._refuse_truncated()

    def _refuse_truncated(self) -> None:
        if truncations := self.args.truncations():
            raise ValueError(
                f"kondo_gate_screen='rollout': with {', '.join(truncations)} the sampler's log-probabilities are not "
                "the policy's; set kondo_gate_screen='exact' or 'auto'."
            )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.gate is None or not self.model.training:
            return output
        rows, size = len(output["advantages"]), self.num_generations
        own = torch.arange(rows, device=output["advantages"].device) + rows * self.accelerator.process_index
        output["kondo_group"] = own // size
        groups = rows * self.accelerator.num_processes // size
        self._survivors = Survivors(size, torch.zeros(groups, dtype=torch.double, device=own.device))
        if self.args.kondo_gate_advantage == "centred":
            assert self._rewards is not None
            output["centred_advantages"] = centred(self._rewards, self.reward_weights, size)[own]
        return output

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training or (self.gate is None and not self.args.use_delight):
            return super()._compute_loss(model, inputs)
        whole = dict(inputs)
        if self.gate is None or self.stands_open:
            self._trained = whole
            loss = super()._compute_loss(model, whole)
            everything = torch.ones(len(inputs["advantages"]), dtype=torch.bool, device=loss.device)
            self._diagnose(inputs, whole["kondo_log_probs"], self._advantages(inputs), everything)
            return loss
        if "pixel_values" in inputs:
            raise NotImplementedError("the gate passes on rows of text, not of images.")
        rows, weights = self._screened(whole)
        some = bool(summed(torch.tensor(float(len(rows)), device=rows.device), self.group) > 0)
        joins = self.group is not None and (some or (self._pending and self.accelerator.sync_gradients))
        self._pending = (self._pending or some) and not self.accelerator.sync_gradients
        if not len(rows) and not joins:
            return torch.zeros((), device=rows.device, requires_grad=True)
        kept = gather(whole, rows if len(rows) else rows.new_zeros(1))
        if len(rows):
            share = self._share(kept, whole)
            kept["kondo_weights"] = weights
        else:  # others wait: a row that weighs nothing and is in no statistic
            share = 0.0
            kept |= {name: torch.zeros_like(kept[name]) for name in COMPLETIONS[1:] if kept.get(name) is not None}
        self._trained = kept
        with self._uneven(), self._renamed():
            return super()._compute_loss(model, kept) * share

    def _advantages(self, inputs: dict[str, Any]) -> Tensor:
        """What the gate sees. [B]"""
        found: Tensor = inputs["advantages"]
        return inputs["centred_advantages"] if self.args.kondo_gate_advantage == "centred" else found

    def _screened(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The rows to keep, and their weights. [k], [k]"""
        assert self.gate is not None
        begun = self._clock()
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        others: dict[str, float] = {}
        log_probs = self._reported(inputs)
        if log_probs is None:
            log_probs, entropies = self._log_probs(inputs)
            others = {"entropy": (entropies * mask).sum().item(), "entropy_tokens": mask.sum().item()}
        log_probs, advantages = log_probs.float(), self._advantages(inputs)
        decision, _ = self.gate.decide(log_probs, advantages, mask)
        if few := too_few(self.gate.settings, len(log_probs) * self.accelerator.num_processes):
            self._warn(few)
        rows = decision.keep.nonzero().squeeze(-1)
        kept = gather(inputs, rows)
        size, batch = (x["prompt_ids"].numel() + x["completion_ids"].numel() for x in (kept, inputs))
        self._update = {"begun": self._clock(), "tokens": size, "batch": batch}
        self._update["screen"] = self._update["begun"] - begun
        others |= {"backward_tokens": size, "batch_tokens": batch}
        self._diagnose(inputs, log_probs, advantages, decision.keep, **others)
        if decision.price.isfinite():
            self._note(price=decision.price.item())
        return rows, decision.gate_weights[rows]

    def _reported(self, inputs: dict[str, Any]) -> Tensor | None:
        """The log-probabilities that came with the completions, if they are the policy's and asked for. [B, T]"""
        if self.args.kondo_gate_screen == "exact":
            return None
        if (old := inputs.get("old_per_token_logps")) is not None:  # GRPO's own, of the weights that sampled
            return old
        sampled: Tensor | None = inputs.get("sampling_per_token_logps")
        if sampled is not None and (truncations := self.args.truncations()):
            if self.args.kondo_gate_screen == "rollout":
                self._refuse_truncated()
            self._warn(
                f"with {', '.join(truncations)} the sampler's log-probabilities are not the policy's: "
                "the gate screens with a pass of its own instead."
            )
            return None
        return sampled

    @torch.no_grad()
    def _log_probs(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """log π of the completions under the present weights, in evaluation mode, and the entropies. [B, T], [B, T]"""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        self.model.eval()
        found, entropies, _ = super()._get_per_token_logps_and_entropies(
            self.model,
            ids,
            mask,
            inputs["completion_ids"].size(1),
            batch_size=self.args.screen_batch_size(),
            compute_entropy=True,
        )
        self.model.train()
        return found, entropies

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if (inputs := self._trained) is None:
            return found
        self._trained = None
        inputs["kondo_log_probs"] = found[0].detach()
        advantages = inputs["advantages"]
        if self.args.use_delight:  # DG takes ℓ from the very pass that is trained; GRPO reads U only after it
            each = per_entry(advantages, found[0])
            chi = delight(found[0], each)
            if self.args.delight_level == "response":
                mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
                chi = response_delight(found[0], advantages, mask).unsqueeze(-1)
            advantages = each * (self.args.delight_gain * torch.sigmoid(chi))
        weights = inputs.get("kondo_weights")
        if weights is not None:
            advantages = advantages * weights.to(advantages.dtype).view(-1, *[1] * (advantages.dim() - 1))
        inputs["advantages"] = advantages
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
            took = self._clock() - update["begun"]
            self._note(seconds_screen=update["screen"], seconds_update=took)
            if update["tokens"]:
                self._times.add(update["tokens"], took)
            if (whole := self._times.predicted(update["batch"])) is not None:
                self._note(seconds_saved=whole - took - update["screen"])
            self._update = {}
        return loss

    def _diagnose(
        self, inputs: dict[str, Any], log_probs: Tensor, advantages: Tensor, keep: Tensor, **others: float
    ) -> None:
        """Log what the screen saw and what was kept of it, over all processes."""
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        own = sums(log_probs, advantages, mask, keep, **others)
        groups = inputs.get("kondo_group")
        survivors = self._survivors if groups is not None else None
        if survivors is not None and groups is not None:
            own = torch.cat([own, torch.zeros_like(survivors.kept).index_add(0, groups, keep.double())])
        total = summed(own, self.group)
        counts = total[: len(total) - (0 if survivors is None else len(survivors.kept))]
        found = averages(counts, gated=self.gate is not None)
        if survivors is not None:
            found |= survivors.add(total[len(counts) :], len(keep) * self.accelerator.num_processes)
        entropy, tokens = counts[-2:].tolist()
        if tokens:
            self._metrics["train"]["entropy"].append(entropy / tokens)
        self._note(**found)
        if found.get("nonfinite_rows"):
            self._warn("some completions have log-probabilities that are NaN or infinite: they are never kept.")

    @contextmanager
    def _renamed(self) -> Iterator[None]:
        """What GRPO measures on the rows it is given is logged as that of the kept rows."""
        logged = self._metrics["train"]
        self._metrics["train"] = defaultdict(list)
        try:
            yield
        finally:
            for name, values in self._metrics["train"].items():
                logged[f"kondo/kept_{name}"].extend(values)
            self._metrics["train"] = logged

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

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.gate is not None and self.args.should_save:  # the same in every process
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            torch.save(self.gate.state_dict(), folder / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.gate is None or checkpoint is None:
            return
        if (path := Path(checkpoint) / STATE).exists():
            self.gate.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            self._warn(f"{checkpoint} has no state of the gate: its history begins anew.")

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            self._metrics["train"][f"kondo/{name}"].append(value)

    def _warn(self, text: str) -> None:
        """Once."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"kondo: {text}", stacklevel=3)

    def _clock(self) -> float:
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize(self.accelerator.device)
        return time.perf_counter()


def centred(rewards: Tensor, weights: Tensor, size: int) -> Tensor:
    """Each completion's reward less the mean of its group; 0 for one that no function could score. [B, F] → [B]"""
    total = (rewards * weights.to(rewards.device)).nansum(1).masked_fill(rewards.isnan().all(1), torch.nan)
    grouped = total.view(-1, size)
    return (grouped - grouped.nanmean(1, keepdim=True)).nan_to_num(0.0).flatten()


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
