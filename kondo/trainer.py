"""`KondoTrainer`: a training step for causal language models that pays only for the rows it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kondo import packing
from kondo.gate import KondoGate, KondoGateConfig, batch_size, gated_sum, per_entry
from kondo.parallel import sum_gradients, summed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class KondoTrainer:
    """REINFORCE with the Kondo gate around any model that maps `input_ids` to an output with `.logits`::

        trainer = KondoTrainer(model, gate_rate=0.03, lr=3e-4)
        stats = trainer.step(input_ids, actions, advantages, attention_mask)

    A step screens the batch without building a graph, then runs forward and backward on the surviving rows alone,
    packed to their true length. The gradient is that of the masked loss over the whole batch, for models that treat the
    rows of a batch independently (no batch norm). The screen runs in evaluation mode, the update in training mode.

    settings: further ones of the gate, those of `KondoGateConfig`: unit, history, priority, …
    gate: a gate of your own, in place of one made from settings.
    screen: a cheaper model to screen with (quantised, truncated, distilled, old); None: the model itself.
    micro_tokens: at most so many tokens pass through the model at a time, which bounds the memory; None: all at once.
    accumulate: the gradients of this many steps are averaged into one step of the optimizer.
    autocast: torch.bfloat16 for mixed precision; log-probabilities and the loss stay in 32 bits.
    group: the data-parallel processes, each with its part of the batch. They agree on the price, and their gradients
    are added up, so that all move as one process with the whole batch would; no process waits for one that kept
    nothing. Of a model in DistributedDataParallel only the model is used, not its gradient hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        gate_rate: float = 0.3,
        temperature: float = 0.1,
        price: float | None = None,
        hard: bool = True,
        deterministic: bool = True,
        lr: float = 3e-4,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        gate: KondoGate | None = None,
        screen: nn.Module | None = None,
        micro_tokens: int | None = None,
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        group: ProcessGroup | None = None,
        **settings: Any,
    ) -> None:
        if autocast == torch.float16:
            raise ValueError("autocast: small gradients vanish in float16 without a scaler; use torch.bfloat16.")
        if accumulate < 1 or (micro_tokens is not None and micro_tokens < 1):
            raise ValueError("accumulate and micro_tokens must be >= 1.")
        if gate is not None and settings:
            raise ValueError(f"{', '.join(settings)}: the gate that is given has settings of its own.")
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        rate = gate_rate if price is None else None
        self.gate = gate or KondoGate(KondoGateConfig(rate, price, temperature, hard, deterministic, **settings), group)
        if self.gate.group is not group:
            raise ValueError("group: the gate and the trainer must have the same; KondoGate(config, group).")
        self.optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=lr)
        self.screener, self.micro_tokens, self.autocast, self.group = screen or model, micro_tokens, autocast, group
        self.accumulate = accumulate
        self.accumulated = 0  # steps since the optimizer's last
        self.any_kept = False  # whether any of them kept anything, in any process

    def step(
        self,
        input_ids: Tensor,
        actions: Tensor,
        advantages: Tensor,
        attention_mask: Tensor | None = None,
        *,
        action_mask: Tensor | None = None,
        log_probs: Tensor | None = None,
    ) -> dict[str, float]:
        """One training step on a batch of rows: actions (B, T), or (B,) for models with one decision per row.

        attention_mask: 1 on real tokens; padding may be on either side.
        action_mask: 1 where the model decided, such as on an answer but not on its prompt; None: on all real tokens.
        log_probs: log π of the actions under the *current* weights, where the rollout has them already; the screening
        pass is then free. Where nothing is kept there is no backward pass and the optimizer takes no step.

        Returns loss, gate_rate, price, mean_delight, and how many rows and tokens were in the graph (backward_rows,
        backward_tokens); rows, tokens and delight are this process's own.
        """
        decided = attention_mask if action_mask is None else action_mask
        with self._precision(input_ids):
            if log_probs is None:
                log_probs = packing.log_probs(self.screener, input_ids, actions, attention_mask, self.micro_tokens)
            result, weights = self.gate.decide(log_probs, advantages, decided)
        if self.accumulated == 0:
            self.optimizer.zero_grad()
            self.any_kept = False
        self.accumulated += 1
        self.any_kept |= bool(result.actual_gate_rate > 0)  # of the whole group: all its processes go on alike
        size = summed(torch.as_tensor(batch_size(log_probs, decided), device=weights.device), self.group)
        each = per_entry(advantages, log_probs)
        loss, rows, tokens = self._backward(input_ids, actions, attention_mask, each, weights, size)
        if self.accumulated == self.accumulate:
            self._step()
        return {
            "loss": summed(loss, self.group).item(),
            "gate_rate": result.actual_gate_rate.item(),
            "price": result.price.item(),
            "mean_delight": result.delight.mean().item(),
            "backward_rows": float(rows),
            "backward_tokens": float(tokens),
        }

    def _backward(
        self,
        input_ids: Tensor,
        actions: Tensor,
        attention_mask: Tensor | None,
        advantages: Tensor,
        weights: Tensor,
        size: Tensor,
    ) -> tuple[Tensor, int, int]:
        """Forward and backward on the rows that have weight, pack by pack: their loss, and how many rows and tokens."""
        loss, rows, tokens = torch.zeros((), device=weights.device), 0, 0
        self.model.train()
        for pack in packing.packs(weights != 0, attention_mask, self.micro_tokens):
            with self._precision(input_ids):
                kept = pack.log_probs(self.model, input_ids, actions, attention_mask)
            part = gated_sum(kept, pack.take(advantages), pack.take(weights)) / size
            (part / self.accumulate).backward()
            loss += part.detach()
            rows += len(pack.rows)
            tokens += kept.numel()
        return loss, rows, tokens

    def _step(self) -> None:
        """The optimizer's step, on the gradients of the whole group; none where nothing was kept."""
        self.accumulated = 0
        if self.any_kept:
            if self.group is not None:
                sum_gradients(self.model.parameters(), self.group)
            self.optimizer.step()

    def _precision(self, inputs: Tensor) -> torch.autocast:
        return torch.autocast(inputs.device.type, self.autocast, enabled=self.autocast is not None)
