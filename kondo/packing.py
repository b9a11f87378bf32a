"""Rows at their true length: a batch is passed through a causal model in packs that hold hardly any padding.

A row begins at its first real token, wherever the padding is, and ends at the last decision that is asked for: a causal
model needs nothing that comes later. Moved to the left edge, its positions are 0, 1, 2, … by themselves. Logits are
computed only where some row of the pack has a decision, and no cache is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kondo.parallel import highest
from kondo.signals import action_log_probs

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CHUNK = 2**24
"""How many logits a log-softmax works on at a time: 64 MiB of 32 bits."""


@dataclass
class Pack:
    """Some rows of a batch, as wide as the longest of them."""

    rows: Tensor  # [k]: which
    columns: Tensor | None = None  # [k, L]: where each place of a row came from; None: rows are taken as they are
    real: Tensor | None = None  # [k, L]: False beyond a row's end
    places: Tensor | None = None  # [n]: the places at which some row has a decision; None: one decision per row
    width: int = 1  # L

    def take(self, x: Tensor) -> Tensor:
        """[B, T] → [k, L]; what lies beyond a row's end is 0"""
        if self.columns is None or self.real is None:
            return x[self.rows]
        return x[self.rows].gather(1, self.columns).masked_fill(~self.real, 0)

    def decisions(self, x: Tensor) -> Tensor:
        """[B, T] → [k, n]: what belongs to the log-probabilities that `log_probs` gives"""
        taken = self.take(x)
        return taken if self.places is None else taken[:, self.places]

    @property
    def tokens(self) -> int:
        """How many tokens pass through the model, or rows where there is one decision in each."""
        return self.rows.numel() * self.width

    def put(self, values: Tensor, wanted: Tensor, into: Tensor) -> None:
        """[k, n], where they are wanted, back to where they came from in [B, T]"""
        if self.places is None:
            into[self.rows] = values
            return
        columns = self.places.expand(len(self.rows), -1) if self.columns is None else self.columns[:, self.places]
        asked = self.decisions(wanted)
        into[self.rows.unsqueeze(-1).expand_as(columns)[asked], columns[asked]] = values[asked]

    def log_probs(
        self, model: nn.Module, input_ids: Tensor, actions: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Any]:
        """log π of the actions, in 32 bits at least, [k, n], and the model's output, whose logits are [k, n, V]."""
        ids = self.take(input_ids)
        options = _options(model)
        if attention_mask is not None:
            options["attention_mask"] = self.take(attention_mask)
        fewer = self.places is not None and len(self.places) < ids.shape[1]
        if fewer and accepts(model, "logits_to_keep"):
            options["logits_to_keep"] = self.places
        output = model(input_ids=ids, **options)
        if fewer and output.logits.shape[1] != len(self.places):  # type: ignore[arg-type]
            output.logits = output.logits[:, self.places]
        return chosen_log_probs(output.logits, self.decisions(actions)), output


def packs(wanted: Tensor, attention_mask: Tensor | None, micro_tokens: int | None = None) -> Iterator[Pack]:
    """The rows in which any decision is wanted, [B] or [B, T], longest first, in packs of at most `micro_tokens` tokens
    (None: one pack); a row that is longer has a pack to itself."""
    rows = (wanted if wanted.dim() == 1 else wanted.any(-1)).nonzero().squeeze(-1)
    if attention_mask is None or wanted.dim() == 1:
        width = wanted.shape[1] if wanted.dim() > 1 else 1
        for part in rows.split(len(rows) or 1 if micro_tokens is None else max(1, micro_tokens // max(1, width))):
            if len(part):
                yield Pack(part, places=_places(wanted[part]), width=width)
        return
    start = attention_mask[rows].bool().byte().argmax(-1) if len(rows) else rows
    length = _end(wanted[rows]) - start if len(rows) else rows  # [k]
    length, order = length.sort(descending=True, stable=True)
    rows, start = rows[order], start[order]
    first, lengths = 0, length.tolist()
    while first < len(rows):
        width = lengths[first]
        size = len(rows) if micro_tokens is None else max(1, micro_tokens // width)
        some = slice(first, first + size)
        places = torch.arange(width, device=rows.device)
        real = places < length[some].unsqueeze(-1)
        columns = torch.where(real, start[some].unsqueeze(-1) + places, 0)
        pack = Pack(rows[some], columns, real, width=width)
        pack.places = _places(pack.take(wanted))
        yield pack
        first += size


@torch.no_grad()
def log_probs(
    model: nn.Module,
    input_ids: Tensor,
    actions: Tensor,
    attention_mask: Tensor | None = None,
    micro_tokens: int | None = None,
    action_mask: Tensor | None = None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """log π of the actions of a whole batch, without a graph, in evaluation mode; 0 where the action mask is, or in its
    absence the attention mask. The shape of actions

    group: processes that must pass the model equally often, because each holds a part of it.
    """
    wanted = torch.ones_like(actions, dtype=torch.bool)
    decided = attention_mask if action_mask is None else action_mask
    if decided is not None and actions.dim() > 1:
        wanted = decided.bool()
    whole = None
    with mode(model, training=False):
        several = list(packs(wanted, attention_mask, micro_tokens))
        missing = highest(len(several), group, input_ids.device) - len(several)
        for pack in several:
            values, _ = pack.log_probs(model, input_ids, actions, attention_mask)
            whole = values.new_zeros(actions.shape) if whole is None else whole
            pack.put(values, wanted, whole)
        for _ in range(missing):
            filler(model, input_ids, attention_mask)
    return torch.zeros(actions.shape, device=actions.device) if whole is None else whole


def filler(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """A pass of one row that weighs nothing: a zero whose gradient is zero."""
    language = not input_ids.is_floating_point() and input_ids.dim() == 2
    ids = input_ids.new_zeros((1, 1) if language else (1, *input_ids.shape[1:]))
    masked = {} if attention_mask is None else {"attention_mask": attention_mask.new_ones(ids.shape[:2])}
    logits = model(input_ids=ids, **masked, **_options(model)).logits
    return logits.masked_fill(torch.ones_like(logits, dtype=torch.bool), 0).sum()


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in evaluation mode, or in training mode: as it is if it is in it already, whatever parts of it are in
    evaluation mode. Every module has its own mode back afterwards."""
    before = [(module, module.training) for module in model.modules()]
    if not (training and model.training):
        model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def accepts(model: nn.Module, option: str) -> bool:
    """Whether the model's forward has an argument of this name; an adapter's around it (peft) counts for nothing."""
    model = getattr(model, "_orig_mod", model)  # torch.compile
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return option in inspect.signature(inner.forward).parameters


class _Chosen(torch.autograd.Function):
    """log π of actions from logits, some rows at a time: no second copy of all logits is held. [n, V], [n] → [n]"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor) -> Tensor:
        ctx.save_for_backward(logits, actions)
        parts = zip(logits.split(_rows(logits)), actions.split(_rows(logits)), strict=True)
        return torch.cat([action_log_probs(_wide(part), some) for part, some in parts])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, actions = ctx.saved_tensors
        whole = torch.empty_like(logits)
        for first in range(0, len(logits), _rows(logits)):
            some = slice(first, first + _rows(logits))
            each = gradient[some].unsqueeze(-1)
            part = _wide(logits[some]).softmax(-1).mul_(-each)
            whole[some] = part.scatter_add_(-1, actions[some].unsqueeze(-1), each)
        return whole, None


def chosen_log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    """log π(a|h) of the actions taken, in 32 bits at least. [..., V], [...] → [...]"""
    if not actions.numel():
        return _wide(logits).sum(-1)
    if int(actions.max()) >= logits.shape[-1]:
        raise ValueError(f"actions: the highest is {int(actions.max())}, but the model has {logits.shape[-1]} logits.")
    return _Chosen.apply(logits.flatten(0, -2), actions.flatten()).view(actions.shape)


def _rows(logits: Tensor) -> int:
    return max(1, CHUNK // logits.shape[-1])


def _wide(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _options(model: nn.Module) -> dict[str, Any]:
    return {"use_cache": False} if accepts(model, "use_cache") else {}


def _places(wanted: Tensor) -> Tensor | None:
    """The columns in which anything is wanted. [k, L] → [n]"""
    return None if wanted.dim() == 1 else wanted.any(0).nonzero().squeeze(-1)


def _end(wanted: Tensor) -> Tensor:
    """One past the last True of each row. [k, T] → [k]"""
    return wanted.shape[1] - wanted.flip(1).byte().argmax(1)
