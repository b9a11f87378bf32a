"""Rows at their true length: a batch is passed through a causal model in packs that hold hardly any padding.

A row begins at its first real token, wherever the padding is, and ends at the last decision that is asked for: a causal
model needs nothing that comes later. Moved to the left edge, its positions are 0, 1, 2, … by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kondo.signals import action_log_probs


@dataclass
class Pack:
    """Some rows of a batch, as wide as the longest of them."""

    rows: Tensor  # [k]: which
    columns: Tensor | None = None  # [k, L]: where each place of a row came from; None: rows are taken as they are
    real: Tensor | None = None  # [k, L]: False beyond a row's end

    def take(self, x: Tensor) -> Tensor:
        """[B, T] → [k, L]; what lies beyond a row's end is 0"""
        if self.columns is None or self.real is None:
            return x[self.rows]
        return x[self.rows].gather(1, self.columns).masked_fill(~self.real, 0)

    def put(self, values: Tensor, into: Tensor) -> None:
        """[k, L] back to where they came from in [B, T]"""
        if self.columns is None or self.real is None:
            into[self.rows] = values
        else:
            places = self.rows.unsqueeze(-1).expand_as(self.columns)
            into[places[self.real], self.columns[self.real]] = values[self.real]

    def log_probs(self, model: nn.Module, input_ids: Tensor, actions: Tensor, attention_mask: Tensor | None) -> Tensor:
        """log π of the actions, in 32 bits at least. [k, L]"""
        masked = {} if attention_mask is None else {"attention_mask": self.take(attention_mask)}
        logits = model(input_ids=self.take(input_ids), **masked).logits
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        return action_log_probs(logits, self.take(actions))


def packs(wanted: Tensor, attention_mask: Tensor | None, micro_tokens: int | None = None) -> Iterator[Pack]:
    """The rows in which any decision is wanted, [B] or [B, T], longest first, in packs of at most `micro_tokens` tokens
    (None: one pack); a row that is longer has a pack to itself."""
    rows = wanted.view(len(wanted), -1).any(-1).nonzero().squeeze(-1)
    if attention_mask is None or wanted.dim() == 1:
        width = wanted.shape[1] if wanted.dim() > 1 else 1
        for part in rows.split(len(rows) or 1 if micro_tokens is None else max(1, micro_tokens // width)):
            if len(part):
                yield Pack(part)
        return
    start = attention_mask[rows].bool().byte().argmax(-1)
    length = _end(wanted[rows]) - start  # [k]
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
        yield Pack(rows[some], columns, real)
        first += size


@torch.no_grad()
def log_probs(
    model: nn.Module,
    input_ids: Tensor,
    actions: Tensor,
    attention_mask: Tensor | None = None,
    micro_tokens: int | None = None,
) -> Tensor:
    """log π of the actions of a whole batch, without a graph, in evaluation mode; 0 on padding. The shape of actions"""
    training = model.training
    model.eval()
    wanted = torch.ones_like(actions, dtype=torch.bool)
    if attention_mask is not None and actions.dim() > 1:
        wanted = attention_mask.bool()
    whole = None
    for pack in packs(wanted, attention_mask, micro_tokens):
        values = pack.log_probs(model, input_ids, actions, attention_mask)
        whole = values.new_zeros(actions.shape) if whole is None else whole
        pack.put(values, whole)
    model.train(training)
    return torch.zeros(actions.shape, device=actions.device) if whole is None else whole


def _end(wanted: Tensor) -> Tensor:
    """One past the last True of each row. [k, T] → [k]"""
    return wanted.shape[1] - wanted.flip(1).byte().argmax(1)
