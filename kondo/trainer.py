"""`KondoTrainer`: a training step for causal language models that pays only for the rows it keeps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kondo import packing
from kondo.batch import Batch, Decision, remarks
from kondo.gate import KondoGate, KondoGateConfig, gated_sum, per_entry, too_few
from kondo.parallel import check_equal, clip, highest, is_sharded, sharded, sum_gradients, summed, unwrapped

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ExtraLoss = Callable[[Tensor, Any, Tensor, packing.Pack], Tensor]
COUNTS = ("accumulated", "size", "kept")


class KondoTrainer:
    """REINFORCE with the Kondo gate around any model that maps `input_ids` to an output with `.logits`::

        trainer = KondoTrainer(model, gate_rate=0.03, lr=3e-4)
        stats = trainer.step(input_ids, actions, advantages, attention_mask)

    A step screens the batch without building a graph, then runs forward and backward on the surviving rows alone,
    packed to their true length. The gradient is that of the masked loss over the whole batch, for models that treat the
    rows of a batch independently (no batch norm). The screen runs in evaluation mode, the update in training mode; a
    part of a model in training mode that is in evaluation mode stays so.

    In a loop of your own, `step` is `decision = screen(…)`, `backward(decision)` and, every `accumulate` batches,
    `update()`; and `update` is `collect()`, which leaves the finished gradients, and the optimizer's step.

    settings: further ones of the gate, those of `KondoGateConfig`: unit, history, priority, …
    gate: a gate of your own, in place of one made from settings.
    screen: a cheaper model to screen with (quantised, truncated, distilled, old); None: the model itself.
    micro_tokens: at most so many tokens pass through the model at a time, which bounds the memory; None: all at once.
    accumulate: so many batches make one step of the optimizer, whose loss is the mean over all of their decisions;
    `finish()` takes the step of an accumulation that is not complete.
    autocast: torch.bfloat16 for mixed precision; log-probabilities and the loss stay in 32 bits.
    group: the data-parallel processes, each with its part of the batch. They agree on the price, and their gradients
    are added up, so that all move as one process with the whole batch would; one that kept nothing, or has no rows,
    takes part. Of a model in DistributedDataParallel only the model is used, not its gradient hooks.
    max_grad_norm: gradients are scaled down to this norm, that of all parameters and shards together.
    scheduler: of the learning rate; it takes a step with each of the optimizer's.
    extra_loss: `(log_probs, output, weights, pack) → Σ` over the decisions of a pack, times their weights, added to
    their loss and divided like it by the size of the whole batch: a KL or entropy term, a router's loss. A weight is 0
    where a decision is skipped and 1 where it is kept, unless the gate is soft or weighs by inverse chances.
    `pack.decisions(x)` brings a tensor of the batch to the shape of log_probs.
    backward: in place of `loss.backward()`, such as `accelerator.backward`; accumulation is the trainer's.
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
        max_grad_norm: float | None = None,
        scheduler: Any = None,
        extra_loss: ExtraLoss | None = None,
        backward: Callable[[Tensor], Any] = torch.Tensor.backward,
        **settings: Any,
    ) -> None:
        if autocast == torch.float16:
            raise ValueError("autocast: small gradients vanish in float16 without a scaler; use torch.bfloat16.")
        if accumulate < 1 or (micro_tokens is not None and micro_tokens < 1):
            raise ValueError("accumulate and micro_tokens must be >= 1.")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be > 0; got {max_grad_norm}.")
        given = {"gate_rate": gate_rate, "temperature": temperature, "price": price, "hard": hard}
        given |= {"deterministic": deterministic}
        if gate is not None and (unread := [*_changed(given), *settings]):
            raise ValueError(f"{', '.join(unread)}: the gate that is given has settings of its own.")
        if optimizer is not None and _changed({"lr": lr}):
            raise ValueError(f"lr={lr}: the optimizer that is given has its own.")
        steps = getattr(getattr(backward, "__self__", None), "gradient_accumulation_steps", 1)
        if steps != 1:
            raise ValueError(
                f"backward: its Accelerator has gradient_accumulation_steps={steps} and would divide each loss by it; "
                f"make it with 1, and the trainer with accumulate={steps}."
            )
        self.model = unwrapped(model, group)
        if extra_loss is None:
            _refuse_router(self.model)
        rate = gate_rate if price is None else None
        self.gate = gate or KondoGate(KondoGateConfig(rate, price, temperature, hard, deterministic, **settings), group)
        if self.gate.group is not group:
            raise ValueError("group: the gate and the trainer must have the same; KondoGate(config, group).")
        self.optimizer = optimizer or torch.optim.Adam(self.model.parameters(), lr=lr)
        self.screener = self.model if screen is None else unwrapped(screen, group)
        self.micro_tokens, self.autocast, self.group, self.accumulate = micro_tokens, autocast, group, accumulate
        self.max_grad_norm, self.scheduler, self.extra_loss = max_grad_norm, scheduler, extra_loss
        self.call_backward = backward
        self.accumulated = 0  # batches since the optimizer's last step
        self.size = 0  # their decisions
        self.kept = 0  # how many of these were trained, in any process
        self.begun = False  # whether the processes are known to have begun with the same weights
        self.warned: set[str] = set()

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
        """Train on a batch of decisions: actions[b, t] was taken after input_ids[b, :t+1]. All arguments are (B, T), or
        advantages (B,) for one per row; or actions (B,) for models with one decision per row.

        attention_mask: 1 on real tokens; padding may be on either side.
        action_mask: 1 where the model decided, such as on an answer but not on its prompt; None: on all real tokens.
        log_probs: log π of the actions under the *current* weights, where the rollout has them already; the screening
        pass is then free. In further epochs on a batch they are stale: the gate then ranks by the surprisal that was;
        leave them out to screen anew. The gradient is that of log π itself, without a ratio to the sampler's, in each.
        Where nothing is kept there is no backward pass and the optimizer takes no step.

        Returns loss, gate_rate, price, mean_delight, how many rows and tokens were in the graph (backward_rows,
        backward_tokens), nonfinite (rows, or units of the gate, left out: their log-probabilities or advantages are not
        finite), and where there are such, extra_loss and grad_norm; rows, tokens and delight are this process's own.
        """
        batch = Batch(input_ids, actions, advantages, attention_mask, action_mask, log_probs)
        decision = self._screen(batch.checked())
        stats = self.backward(decision)
        if self.accumulated >= self.accumulate:
            stats |= self.update()
        return stats

    def screen(
        self,
        input_ids: Tensor,
        actions: Tensor,
        advantages: Tensor,
        attention_mask: Tensor | None = None,
        *,
        action_mask: Tensor | None = None,
        log_probs: Tensor | None = None,
    ) -> Decision:
        """What the gate keeps of a batch, by a pass without a graph or by the log-probabilities given: see `step`."""
        return self._screen(Batch(input_ids, actions, advantages, attention_mask, action_mask, log_probs).checked())

    def _screen(self, batch: Batch) -> Decision:
        if self.group is not None and not self.begun:
            check_equal(self.model.parameters(), self.group)
        self.begun = True
        seen = batch.log_probs
        with self._precision(batch.input_ids):
            if seen is None:
                seen = packing.log_probs(
                    self.screener,
                    batch.input_ids,
                    batch.actions,
                    batch.attention_mask,
                    self.micro_tokens,
                    batch.decided,
                    self.group if sharded(self.screener) else None,
                )
            output, weights = self.gate.decide(seen, batch.advantages, batch.decided)
        decided = torch.ones_like(seen, dtype=torch.bool) if batch.decided is None else batch.decided.bool()
        wrong = ~(seen.isfinite() & per_entry(batch.advantages, seen).isfinite()) & decided
        units = decided
        if output.gate_weights.dim() < seen.dim():
            wrong, units = wrong.any(-1), decided.any(-1)
        counts = torch.stack([decided.sum(), (weights != 0).sum(), units.sum()])
        size, kept, count = summed(counts, self.group).tolist()
        decision = Decision(batch, output, weights, size, kept, int(wrong.sum()))
        few = too_few(self.gate.settings, count)
        for sentence in ([few] if few else []) + remarks(decision, alone=self.group is None):
            self._once(sentence)
        return decision

    def backward(self, decision: Decision) -> dict[str, float]:
        """Forward and backward on the rows that are kept, pack by pack; gradients are added up, not yet divided."""
        if self.extra_loss is None:
            _refuse_router(self.model)
        if self.accumulated == 0:
            for p in self._parameters():  # a prepared optimizer's zero_grad may do nothing
                p.grad = None
            self.size = self.kept = 0
        try:
            stats = self._backward(decision)
        except BaseException:  # what the batch has added cannot be told from the rest: the accumulation begins anew
            self.accumulated = 0
            raise
        self.accumulated += 1
        self.size += decision.size
        self.kept += decision.kept
        return stats

    def _parameters(self) -> list[nn.Parameter]:
        """The model's, and what else the optimizer holds, such as a head that only extra_loss uses."""
        held = (p for group in self.optimizer.param_groups for p in group["params"])
        return list({id(p): p for p in (*self.model.parameters(), *held)}.values())

    def _backward(self, decision: Decision) -> dict[str, float]:
        batch, weights = decision.batch, decision.weights
        advantages = per_entry(batch.advantages, weights)
        losses, rows, tokens = torch.zeros(2, device=weights.device), 0, 0
        several = list(packing.packs(weights != 0, batch.attention_mask, self.micro_tokens))
        together = self.group if sharded(self.model) else None  # each pass is one of all processes
        missing = highest(len(several), together, weights.device) - len(several)
        with packing.mode(self.model, training=True):
            for pack in several:
                with self._precision(batch.input_ids):
                    chosen, output = pack.log_probs(self.model, batch.input_ids, batch.actions, batch.attention_mask)
                each = pack.decisions(weights)
                part = gated_sum(chosen, pack.decisions(advantages), each)
                extra = None if self.extra_loss is None else self.extra_loss(chosen, output, each, pack)
                self._run_backward(part if extra is None else part + extra)
                losses += torch.stack([part.detach(), torch.zeros_like(part) if extra is None else extra.detach()])
                rows += len(pack.rows)
                tokens += pack.tokens
            for _ in range(missing):
                with self._precision(batch.input_ids):
                    nothing = packing.filler(self.model, batch.input_ids, batch.attention_mask)
                self._run_backward(nothing)
        loss, extra_loss = (summed(losses, self.group) / max(1, decision.size)).tolist()
        delight = decision.output.delight
        delight = delight[delight.isfinite()]
        stats = {
            "loss": loss,
            "gate_rate": decision.output.actual_gate_rate.item(),
            "price": decision.output.price.item(),
            "mean_delight": delight.mean().item() if delight.numel() else 0.0,
            "backward_rows": float(rows),
            "backward_tokens": float(tokens),
            "nonfinite": float(decision.nonfinite),
        }
        return stats if self.extra_loss is None else stats | {"extra_loss": extra_loss}

    def collect(self) -> dict[str, float]:
        """Finish the gradients of what was accumulated: summed over the group, divided by its size, clipped. The next
        batch begins anew. Where nothing was kept, there are none."""
        accumulated, self.accumulated = self.accumulated, 0
        if not accumulated or not self.kept:
            return {}
        parameters = self._parameters()
        shards = 1 if self.group is None else torch.distributed.get_world_size(self.group)
        if self.group is not None:
            sum_gradients(parameters, self.group)
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_((shards if is_sharded(p) else 1) / self.size)  # fully_shard has left their mean
        if self.max_grad_norm is None:
            return {}
        return {"grad_norm": clip(parameters, self.max_grad_norm)}

    def update(self) -> dict[str, float]:
        """The optimizer's step on what was accumulated, and the scheduler's; none where nothing was kept."""
        moves = self.accumulated > 0 and self.kept > 0
        found = self.collect()
        if moves:
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return found

    def finish(self) -> dict[str, float]:
        """The step of an accumulation that is not complete, if there is one: at the end of training."""
        return self.update()

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, but for the model's own `state_dict` and the state of random generators;
        in the middle of an accumulation with its gradients, which are each process's own."""
        named = self.model.named_parameters() if self.accumulated else ()
        return {
            "gate": self.gate.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "gradients": {name: p.grad.clone() for name, p in named if p.grad is not None},
            **{name: getattr(self, name) for name in COUNTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved, with the weights that were saved with it."""
        if (state["scheduler"] is None) != (self.scheduler is None):
            raise ValueError("scheduler: the saved state and this trainer must both have one, or neither.")
        self.gate.load_state_dict(state["gate"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, p in self.model.named_parameters():
            saved = state["gradients"].get(name)
            p.grad = None if saved is None else saved.to(p.device, copy=True)
        for name in COUNTS:
            setattr(self, name, state[name])

    def _run_backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise ValueError(
                "model: no gradient reaches a parameter; all are frozen, or reentrant checkpointing cuts them off "
                "(model.enable_input_require_grads(), or use_reentrant=False)."
            )
        self.call_backward(loss)

    def _once(self, sentence: str) -> None:
        """Say what makes batches teach other than it seems to, once of each kind."""
        about = sentence.partition(":")[0]
        if about not in self.warned:
            self.warned.add(about)
            warnings.warn(sentence, stacklevel=5)

    def _precision(self, inputs: Tensor) -> torch.autocast:
        return torch.autocast(inputs.device.type, self.autocast, enabled=self.autocast is not None)


def _changed(given: dict[str, Any]) -> list[str]:
    """Which arguments of a trainer are not at their default."""
    usual = inspect.signature(KondoTrainer.__init__).parameters
    return [name for name, value in given.items() if value != usual[name].default]


def _refuse_router(model: nn.Module) -> None:
    """A router's loss that the model would add, and nothing here takes up."""
    if any(getattr(getattr(part, "config", None), "output_router_logits", False) for part in model.modules()):
        raise ValueError(
            "model: its router's loss is about all tokens, and only the kept ones pass. Set "
            "model.config.output_router_logits = False, or take output.aux_loss into extra_loss."
        )
