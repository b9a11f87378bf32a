"""`KondoTrainer`: a training step for causal language models that pays only for the rows it keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kondo.gate import KondoGate, KondoGateConfig, batch_size, gated_sum, per_entry
from kondo.signals import action_log_probs


class KondoTrainer:
    """REINFORCE with the Kondo gate around any model that maps `input_ids` to an output with `.logits`::

        trainer = KondoTrainer(model, gate_rate=0.03, lr=3e-4)
        stats = trainer.step(input_ids, actions, advantages, attention_mask)

    A step screens the batch without building a graph, then runs forward and backward on the surviving rows alone. The
    gradient is that of the masked loss over the whole batch, for models that treat the rows of a batch independently
    (no batch norm). The screen runs in evaluation mode, the update in training mode.
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
    ) -> None:
        self.model = model
        self.gate = KondoGate(
            KondoGateConfig(
                gate_rate=gate_rate if price is None else None,
                price=price,
                temperature=temperature,
                hard=hard,
                deterministic=deterministic,
            )
        )
        self.optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=lr)

    def step(
        self,
        input_ids: Tensor,
        actions: Tensor,
        advantages: Tensor,
        attention_mask: Tensor | None = None,
        *,
        log_probs: Tensor | None = None,
    ) -> dict[str, float]:
        """One training step on a batch of rows: actions (B, T), or (B,) for models with one decision per row.

        log_probs: log π of the actions under the *current* weights, where the rollout has them already; the screening
        pass is then free. Where nothing is kept there is no backward pass and the optimiser does not move.

        Returns loss, gate_rate, price, mean_delight, and how many rows were in the graph (backward_rows).
        """
        if log_probs is None:
            self.model.eval()
            with torch.no_grad():
                log_probs = action_log_probs(self._logits(input_ids, attention_mask), actions)
        result, weights = self.gate.decide(log_probs, advantages, attention_mask)
        rows = (weights != 0).view(len(weights), -1).any(-1).nonzero().squeeze(-1)  # [k]: those with any token kept

        self.model.train()
        self.optimizer.zero_grad()
        loss = 0.0
        if len(rows):
            mask = None if attention_mask is None else attention_mask[rows]
            kept_log_probs = action_log_probs(self._logits(input_ids[rows], mask), actions[rows])
            kept_advantages = per_entry(advantages, log_probs)[rows]
            total = gated_sum(kept_log_probs, kept_advantages, weights[rows]) / batch_size(log_probs, attention_mask)
            total.backward()
            self.optimizer.step()
            loss = total.item()
        return {
            "loss": loss,
            "gate_rate": result.actual_gate_rate.item(),
            "price": result.price.item(),
            "mean_delight": result.delight.mean().item(),
            "backward_rows": float(len(rows)),
        }

    def _logits(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        masked = {} if attention_mask is None else {"attention_mask": attention_mask}
        return self.model(input_ids=input_ids, **masked).logits
