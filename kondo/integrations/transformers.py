"""The gate for Hugging Face causal language models (`pip install kondo[transformers]`)::

    trainer = KondoTrainer(model, gate_rate=0.03, lr=1e-5, micro_tokens=8192, autocast=torch.bfloat16)
    batch = rollout(model, prompt_ids, prompt_mask, max_new_tokens=64)
    stats = trainer.step(**batch.inputs(), advantages=advantages)

`KondoTrainer` and `KondoGate.screen` take such a model as it is; here is what turns text into their arguments. Gradient
checkpointing is the model's own: `model.gradient_checkpointing_enable()`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

try:
    from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; pip install 'kondo[transformers]'", name=missing.name) from missing

from kondo.gate import KondoGate, KondoGateConfig
from kondo.packing import mode
from kondo.parallel import sharded
from kondo.signals import taken
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

    options: those of `model.generate`, a `generation_config` among them. With a temperature or top-k, log_probs are
    still those of the model itself, which is what delight is about. An answer ends as generation ends it: with its end
    token, a stop string, or any stopping criterion, the token that fulfils it included. With num_return_sequences the
    answers to a prompt are next to each other.
    """
    for name, value in (("prompt_ids", prompt_ids), ("prompt_mask", prompt_mask)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}.")
    if prompt_ids.dim() != 2 or not prompt_ids.numel() or prompt_ids.shape != prompt_mask.shape:
        raise ValueError(
            f"prompt_ids {tuple(prompt_ids.shape)}, prompt_mask {tuple(prompt_mask.shape)}: expected both (B, H), "
            "with a row and a token at least."
        )
    if not prompt_mask[:, -1].all():
        raise ValueError("prompt_mask: 0 at the end of a row; prompts must be padded on the left.")
    if model.config.is_encoder_decoder:
        raise ValueError(f"model: {type(model).__name__} has an encoder; a causal language model is needed.")
    log = _Log(prompt_ids.shape[1])
    if sharded(model):
        options = {"synced_gpus": True, **options}
    with mode(model, training=False), log.written(model):
        tokens = model.generate(
            input_ids=prompt_ids, attention_mask=prompt_mask, **_settings(options, max_new_tokens=max_new_tokens)
        )
    answers = tokens[:, log.length :]
    chosen = torch.stack(log.chosen[: answers.shape[1]], dim=1).long()
    prompt_mask = prompt_mask.repeat_interleave(len(tokens) // len(prompt_mask), dim=0)
    batch = decisions(
        tokens, torch.cat([prompt_mask, chosen], dim=1), torch.cat([torch.zeros_like(prompt_mask), chosen], dim=1)
    )
    batch.log_probs = torch.zeros(batch.actions.shape, device=tokens.device)
    own = torch.stack(log.log_probs[: answers.shape[1]], dim=1)
    batch.log_probs[:, log.length - 1 :] = own.masked_fill(chosen == 0, 0.0)
    return batch


def _settings(options: dict[str, Any], **fixed: Any) -> dict[str, Any]:
    """Options of `generate` that sample from the model's own distribution, but for what they ask otherwise."""
    own = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    given = options.get("generation_config")
    plain = {"return_dict_in_generate": False, **fixed}
    if given is None:
        return own | options | plain
    config = copy.deepcopy(given)
    for name, value in own.items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    for name, value in plain.items():
        setattr(config, name, value)
    return {**options, "generation_config": config}


class _Log:
    """What generation does step by step: which rows are still being written, and log π of what is written in them."""

    def __init__(self, length: int) -> None:
        self.length = length  # of the prompts
        self.log_probs: list[Tensor] = []  # [B] each
        self.chosen: list[Tensor] = []  # [B] each: False after a row's end
        self.log_policy: Tensor | None = None  # [B, V], until the token is chosen
        self.over: Tensor | None = None  # [B]

    @contextmanager
    def written(self, model: PreTrainedModel) -> Iterator[None]:
        """Generation with the criteria and processors that it makes for itself, watched."""
        owner = model.get_base_model() if hasattr(model, "get_base_model") else model
        criteria, processors = owner._get_stopping_criteria, owner._get_logits_processor
        owner._get_stopping_criteria = lambda *args, **kwargs: _Criteria(self, criteria(*args, **kwargs))
        owner._get_logits_processor = lambda *args, **kwargs: _Processors(self, processors(*args, **kwargs))
        try:
            yield
        finally:
            del owner._get_stopping_criteria, owner._get_logits_processor

    def take(self, tokens: Tensor, over: Tensor) -> None:
        """Note the tokens that were added last, and which rows end with them."""
        places = self.length + len(self.chosen) + 1
        if self.log_policy is None or tokens.shape != (len(self.log_policy), places):
            raise ValueError("options: answers must be sampled token by token, without beams or an assistant.")
        self.log_probs.append(taken(self.log_policy, tokens[:, -1]))
        self.log_policy = None
        going = torch.ones_like(over) if self.over is None else ~self.over
        self.chosen.append(going)
        self.over = over | ~going


class _Criteria(StoppingCriteriaList):
    def __init__(self, log: _Log, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self.log = log

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        over = super().__call__(input_ids, scores, **kwargs)
        self.log.take(input_ids, over)
        return over


class _Processors(LogitsProcessorList):
    def __init__(self, log: _Log, processors: LogitsProcessorList) -> None:
        super().__init__(processors)
        self.log = log

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        self.log.log_policy = scores.float().log_softmax(-1)
        return super().__call__(input_ids, scores, **kwargs)


def truncated(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The model's first layers and its head, as a screen: it shares the weights, and so is always up to date."""
    config = model.config.get_text_config()
    if not 1 <= layers <= config.num_hidden_layers:
        raise ValueError(f"layers={layers}: the model has {config.num_hidden_layers}")
    if sharded(model):
        raise ValueError("model: fully_shard has split it, and its layers cannot be taken apart; truncate it before.")
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    fewer = copy.deepcopy(model, shared)
    stacks = [
        (name, module)
        for name, module in fewer.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    depth = min((name.count(".") for name, _ in stacks), default=0)
    outer = [(name, module) for name, module in stacks if name.count(".") == depth]
    if len(outer) != 1:
        found = ", ".join(name for name, _ in outer) or "none"
        many = f"{config.num_hidden_layers} layers in one list"
        raise ValueError(f"model: {type(model).__name__} must have its {many}; found: {found}.")
    del outer[0][1][layers:]
    own = fewer.config.get_text_config()
    own.num_hidden_layers = layers
    if vars(own).get("layer_types"):
        own.layer_types = own.layer_types[:layers]
    fewer.eval()
    try:
        with torch.no_grad():
            fewer(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device))
    except Exception as error:
        raise ValueError(f"model: {type(model).__name__} does not run with {layers} layers: {error}") from error
    return fewer
