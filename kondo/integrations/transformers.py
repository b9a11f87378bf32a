"""The gate for Hugging Face causal language models (`pip install kondo[transformers]`)::

    trainer = KondoTrainer(model, gate_rate=0.03, lr=1e-5, micro_tokens=8192, autocast=torch.bfloat16)
    batch = rollout(model, prompt_ids, prompt_mask, max_new_tokens=64)
    stats = trainer.step(**batch.inputs(), advantages=advantages)

`KondoTrainer` and `KondoGate.screen` take such a model as it is; here is what turns text into their arguments. Gradient
checkpointing is the model's own: `model.gradient_checkpointing_enable()`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kondo.gate import KondoGate, KondoGateConfig
from kondo.signals import action_log_probs
from kondo.trainer import KondoTrainer

__all__ = ["KondoGate", "KondoGateConfig", "KondoTrainer", "Rollout", "decisions", "rollout", "truncated"]


@dataclass
class Rollout:
    """Prompts and sampled answers as decisions: at each place, what the model read and which token it chose next."""

    input_ids: Tensor  # [B, T]
    actions: Tensor  # [B, T]: the next token
    attention_mask: Tensor  # [B, T]: 0 on padding
    action_mask: Tensor  # [B, T]: 1 where the model chose: on the answer, its end included
    log_probs: Tensor | None = None  # [B, T]: the sampler's own, which screen for free; 0 on the prompt

    def inputs(self) -> dict[str, Any]:
        """What `KondoTrainer.step` takes, but for the advantages."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def answers(self) -> list[list[int]]:
        """The sampled tokens of each row."""
        return [row[mask.bool()].tolist() for row, mask in zip(self.actions, self.action_mask, strict=True)]


def decisions(input_ids: Tensor, attention_mask: Tensor, answer_mask: Tensor) -> Rollout:
    """Rows of tokens, whoever sampled them, as decisions; answer_mask: 1 on the tokens that a model chose. [B, T+1]"""
    return Rollout(
        input_ids=input_ids[:, :-1],
        actions=input_ids[:, 1:],
        attention_mask=attention_mask[:, :-1],
        action_mask=answer_mask[:, 1:],
    )


@torch.no_grad()
def rollout(
    model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor, max_new_tokens: int, **options: Any
) -> Rollout:
    """Sample an answer to each prompt, padded on the left, from the model's own distribution. [B, H]

    options: those of `model.generate`. With a temperature or top-k, log_probs are still those of the model itself,
    which is what delight is about.
    """
    training = model.training
    model.eval()
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, **options}
    sampled = model.generate(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        max_new_tokens=max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    model.train(training)
    tokens, length = sampled.sequences, prompt_ids.shape[1]
    answers = tokens[:, length:]
    ends = settings.get("eos_token_id", model.generation_config.eos_token_id)
    over = torch.isin(answers, torch.tensor([] if ends is None else ends, device=tokens.device))
    chosen = (over.cumsum(1) - over.long() == 0).long()  # up to the first end, which is a choice too
    batch = decisions(
        tokens, torch.cat([prompt_mask, chosen], dim=1), torch.cat([torch.zeros_like(prompt_mask), chosen], dim=1)
    )
    batch.log_probs = torch.zeros(batch.actions.shape, device=tokens.device)
    batch.log_probs[:, length - 1 :] = action_log_probs(torch.stack(sampled.logits, dim=1).float(), answers) * chosen
    return batch


def truncated(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The model's first layers and its head, as a screen: it shares the weights, and so is always up to date."""
    config = copy.deepcopy(model.config)
    if not 1 <= layers <= config.num_hidden_layers:
        raise ValueError(f"layers={layers}: the model has {config.num_hidden_layers}")
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    fewer = type(model)(config).to(model.device)
    fewer.load_state_dict(model.state_dict(keep_vars=True), strict=False, assign=True)
    return fewer.eval()
