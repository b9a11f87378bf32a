"""A seed-stacked decoder-only transformer: a prompt in, an answer out, token by token.

Answers to the same prompt share its keys and values, whether they are sampled or given. Letters in shapes: S seeds,
P prompts, G answers to each, B = P·G rows, H tokens per prompt, T per answer, M the vocabulary, d the width, h heads of
e = d/h numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention

from kondo.lab import kernels
from kondo.lab.kernels import decoder
from kondo.lab.policies.mlp import Layered, Parameters, Shapes, views
from kondo.lab.rounding import log_softmax
from kondo.lab.streams import Streams, sample_index

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of the tokens so far, by layer; each [S·R, h, tokens, e] for R rows per seed."""


@dataclass(frozen=True)
class Transformer(Layered):
    """Pre-norm layers, learned positions, ReLU; no biases, no final norm, no weight tying.

    The last token of the prompt predicts the first of the answer, so that a sequence is H + T − 1 tokens long.
    """

    vocab: int
    """M"""
    prompt: int
    """H"""
    answer: int
    """T"""
    samples: int = 1
    """G: answers sampled for each prompt."""
    layers: int = 3
    width: int = 64
    heads: int = 4
    ff: int = 128
    precision: str | None = None
    """What its logits are rounded to; None: nothing."""

    graph: ClassVar[bool] = False

    def shapes(self) -> Shapes:
        d = self.width
        shapes: Shapes = {"embedding": (self.vocab, d), "position": (self.prompt + self.answer - 1, d)}
        for i in range(self.layers):
            shapes |= {f"attention_scale_{i}": (d, 1), f"qkv_{i}": (d, 3 * d), f"out_{i}": (d, d)}
            shapes |= {f"ff_scale_{i}": (d, 1), f"up_{i}": (d, self.ff), f"down_{i}": (self.ff, d)}
        return shapes | {"unembedding": (d, self.vocab)}

    def init(self, streams: Streams) -> Tensor:
        """Scales 1; everything else normal: embeddings of variance 1/d, weights of variance 1/fan_in."""
        shapes = self.shapes()
        flat = torch.empty(len(streams.seeds) * sum(map(math.prod, shapes.values())), device=streams.device)
        for name, view in views(flat, shapes).items():
            if "scale" in name:
                view.fill_(1.0)
            else:
                spread = self.width if name in ("embedding", "position") else shapes[name][0]
                view.copy_(streams.normal(f"init.{name}", 0, shapes[name]) * spread**-0.5)
        return flat

    @torch.no_grad()
    def sample(
        self, parameters: Parameters, inputs: Tensor, streams: Streams, step: int, stream: str = "action"
    ) -> tuple[Tensor, Tensor]:
        """G answers to each prompt, and what they were drawn from. [S, P, H] → [S, B, T], [S, B, T, M]"""
        draws = streams.uniform(stream, step, (inputs.shape[1] * self.samples, self.answer))
        if kernels.enabled(parameters["embedding"]):
            return decoder.sample(self, parameters, inputs, draws)
        log_policy, cache = self._read(parameters, inputs, self.samples)  # [S, B, 1, M]
        actions: list[Tensor] = []
        log_policies: list[Tensor] = []
        for t in range(self.answer):
            if t > 0:
                log_policy, cache = self._forward(parameters, actions[-1], cache)
            log_policies.append(log_policy)
            actions.append(sample_index(log_policy.exp(), draws[:, :, t : t + 1]))
        return torch.cat(actions, dim=2), torch.cat(log_policies, dim=2)

    def log_policy(self, parameters: Parameters, inputs: Tensor, actions: Tensor) -> Tensor:
        """log π of every token of given answers. [S, P, H], [S, B, T] → [S, B, T, M]; G = B/P"""
        if kernels.enabled(parameters["embedding"]):
            return decoder.log_policy(self, parameters, inputs, actions)
        first, cache = self._read(parameters, inputs, actions.shape[1] // inputs.shape[1])
        rest, _ = self._forward(parameters, actions[..., :-1], cache)
        return torch.cat([first, rest], dim=2)

    def truncated(self, layers: int) -> Transformer:
        return replace(self, layers=layers)

    def _read(self, parameters: Parameters, prompts: Tensor, group: int) -> tuple[Tensor, Cache]:
        """Pass every prompt once; for each of its G answers log π of the first token, and the prompt's cache.

        [S, P, H] → [S, P·G, 1, M], cache of P·G rows
        """
        log_policy, cache = self._forward(parameters, prompts)
        cache = [(key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)) for key, value in cache]
        return log_policy[:, :, -1:].repeat_interleave(group, dim=1), cache

    def _forward(self, parameters: Parameters, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Pass n more tokens of every row: log π after each, and the cache with them added. [S, R, n] → [S, R, n, M]"""
        seeds, rows, n = tokens.shape
        past = 0 if cache is None else cache[0][0].shape[2]
        visible = torch.ones(n, past + n, dtype=torch.bool, device=tokens.device).tril(past)  # causal
        x = self._embed(parameters, tokens, past).flatten(1, 2)  # [S, R·n, d]
        split = seeds * rows, n, 3, self.heads, self.width // self.heads
        grown: Cache = []
        for i in range(self.layers):
            qkv = torch.bmm(_norm(x, parameters[f"attention_scale_{i}"]), parameters[f"qkv_{i}"])
            query, key, value = qkv.view(split).permute(2, 0, 3, 1, 4)  # [S·R, h, n, e]
            if cache is not None:
                key, value = torch.cat([cache[i][0], key], dim=2), torch.cat([cache[i][1], value], dim=2)
            grown.append((key, value))
            found = scaled_dot_product_attention(query, key, value, attn_mask=visible)
            x = torch.baddbmm(x, found.transpose(1, 2).reshape(x.shape), parameters[f"out_{i}"])
            hidden = torch.bmm(_norm(x, parameters[f"ff_scale_{i}"]), parameters[f"up_{i}"]).relu()
            x = torch.baddbmm(x, hidden, parameters[f"down_{i}"])
        logits = torch.bmm(x, parameters["unembedding"]).view(seeds, rows, n, self.vocab)
        return log_softmax(logits, self.precision), grown

    def _embed(self, parameters: Parameters, tokens: Tensor, place: int) -> Tensor:
        """Tokens at the places from `place` on. [S, R, n] → [S, R, n, d]"""
        offset = torch.arange(len(tokens), device=tokens.device).view(-1, 1, 1) * self.vocab
        embedded = embedding(tokens + offset, parameters["embedding"].flatten(0, 1))
        return embedded + parameters["position"][:, None, place : place + tokens.shape[2]]


def _norm(x: Tensor, scale: Tensor) -> Tensor:
    """[S, R·n, d], [S, d, 1] → [S, R·n, d]"""
    return layer_norm(x, x.shape[-1:]) * scale.mT
