"""A seed-stacked decoder-only transformer: a prompt in, an answer out, token by token.

The group of answers to one prompt shares the prompt's part of the computation: whether sampled from a cache or passed
through at once with the answers given, a prompt goes through the model once, however many answers it has. Letters in
shapes: P prompts, G answers to each, B = P·G rows, H tokens per prompt, T per answer, h heads of e numbers each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, pad

from kondo.policies import Parameters, Shapes, views
from kondo.streams import Streams, sample_index

LANES = 16  # 32-bit numbers in the widest vector register


@dataclass(frozen=True)
class Transformer:
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
        """G answers to each prompt, [S, P, H] → [S, P·G, T], and what they were drawn from, [S, P·G, T, M].

        Every prompt goes through the model once; then every answer, a token at a time, attends to its prompt's keys and
        values and to its own, which are remembered.
        """
        (seeds, prompts, _), rows = inputs.shape, inputs.shape[1] * self.samples
        weights = self._weights(parameters)
        draws = streams.uniform(stream, step, (rows, self.answer))
        actions = draws.new_empty(draws.shape, dtype=torch.long)
        log_policy = draws.new_empty(*draws.shape, self.vocab)
        memory = []  # by layer: keys and values, of the prompts [S·P·h, H, e], of the answers [2, S·P·h·G, T − 1, e]

        x = self._embed(parameters, inputs, 0)
        for i in range(self.layers):
            query, key, value = self._heads(weights, i, x, prompts)
            own = key.new_empty(2, len(key) * self.samples, self.answer - 1, key.shape[-1])
            memory.append((key, value, own))
            if i == self.layers - 1:
                query, x = query[:, -1:], _last(x, self.prompt)
            mixed = _attend(query, key, value, _causal(query, key))
            x = self._finish(weights, i, x, self._merge(mixed, seeds))
        logits = torch.bmm(x, parameters["unembedding"]).repeat_interleave(self.samples, dim=1)  # [S, B, M]

        for t in range(self.answer):
            log_policy[:, :, t] = logits - logits.logsumexp(dim=-1, keepdim=True)
            actions[:, :, t] = sample_index(log_policy[:, :, t].exp(), draws[:, :, t])
            if t == self.answer - 1:
                break
            x = self._embed(parameters, actions[:, :, t : t + 1], self.prompt + t)
            for i in range(self.layers):
                heads = self._heads(weights, i, x, prompts)  # [3, S·P·h, G, e]
                prompt_keys, prompt_values, own = memory[i]
                own[:, :, t] = heads[1:].flatten(1, 2)
                query, (keys, values) = heads[0], own
                to_prompt = torch.bmm(query, prompt_keys.transpose(1, 2))  # [S·P·h, G, H]
                to_own = torch.bmm(query.view(-1, 1, query.shape[-1]), keys[:, : t + 1].transpose(1, 2))
                share = _softmax(torch.cat([to_prompt, to_own.view(len(query), self.samples, -1)], dim=-1))
                mixed = torch.bmm(share[..., : self.prompt], prompt_values)
                own_share = share.flatten(0, 1).unsqueeze(1)[..., self.prompt :]
                mixed = torch.baddbmm(mixed.view(-1, 1, mixed.shape[-1]), own_share, values[:, : t + 1])
                x = self._finish(weights, i, x, self._merge(mixed.view_as(query), seeds))
            logits = torch.bmm(x, parameters["unembedding"])
        return actions, log_policy

    def log_policy(self, parameters: Parameters, inputs: Tensor, actions: Tensor) -> Tensor:
        """log π of every token of given answers, [S, P, H] and [S, P·G, T] → [S, P·G, T, M]; G = B / P."""
        (seeds, prompts, length), (_, rows, answer) = inputs.shape, actions.shape
        group, later = rows // prompts, answer - 1
        weights = self._weights(parameters)
        asked = self._embed(parameters, inputs, 0)
        answered = self._embed(parameters, actions[..., :-1], self.prompt)
        x = torch.cat([asked, answered], dim=1)  # [S, P·H + B·(T − 1), d]
        for i in range(self.layers):
            asked, answered = self._project(weights, i, x).split([prompts * length, rows * later], dim=1)
            query, key, value = self._split(asked, (seeds, prompts, length)).flatten(1, 3)  # [S·P·h, H, e]
            own = self._split(answered, (seeds, prompts, group, later)).flatten(1, 3)  # [3, S·P·h, G, T − 1, e]
            shared = torch.stack([key, value]).unsqueeze(2).expand(-1, -1, group, -1, -1)
            keys, values = torch.cat([shared, own[1:]], dim=3).flatten(1, 2)  # [S·P·h·G, H + T − 1, e]
            queries = own[0].flatten(0, 1)
            if i == self.layers - 1:
                query = query[:, -1:]
                asked, answered = x.split([prompts * length, rows * later], dim=1)
                x = torch.cat([_last(asked, length), answered], dim=1)  # [S, P + B·(T − 1), d]
            mixed = _attend(query, key, value, _causal(query, key))
            mixed_own = _attend(queries, keys, values, _causal(queries, keys))
            mixed_own = mixed_own.reshape(len(mixed), group * later, mixed.shape[-1])
            merged = torch.cat([self._merge(mixed, seeds), self._merge(mixed_own, seeds)], dim=1)
            x = self._finish(weights, i, x, merged)
        logits = torch.bmm(x, parameters["unembedding"])
        first, others = logits.split([prompts, rows * later], dim=1)
        first = first.unsqueeze(2).expand(-1, -1, group, -1).reshape(seeds, rows, 1, self.vocab)
        logits = torch.cat([first, others.view(seeds, rows, later, self.vocab)], dim=2)
        return logits - logits.logsumexp(dim=-1, keepdim=True)

    def _weights(self, parameters: Parameters) -> Parameters:
        """The matrices of the layers, with what multiplies their input folded in: the scale of the norm before them,
        and for queries attention's 1/√e."""
        query = parameters["out_0"].new_ones(3 * self.width)
        query[: self.width] = (self.width // self.heads) ** -0.5
        weights = {}
        for i in range(self.layers):
            weights[f"qkv_{i}"] = parameters[f"qkv_{i}"] * (parameters[f"attention_scale_{i}"] * query)
            weights[f"up_{i}"] = parameters[f"up_{i}"] * parameters[f"ff_scale_{i}"]
            weights |= {name: parameters[name] for name in (f"out_{i}", f"down_{i}")}
        return weights

    def _embed(self, parameters: Parameters, tokens: Tensor, first: int) -> Tensor:
        """[S, N, L] tokens, the first of each row at a given position → [S, N·L, d]"""
        seeds, _, length = tokens.shape
        offset = torch.arange(seeds, device=tokens.device).view(-1, 1, 1) * self.vocab
        embedded = embedding(tokens + offset, parameters["embedding"].flatten(0, 1))  # [S, N, L, d]
        position = parameters["position"][:, first : first + length]
        return (embedded + position.unsqueeze(1)).flatten(1, 2)

    def _project(self, weights: Parameters, i: int, x: Tensor) -> Tensor:
        """Queries, keys and values. [S, n, d] → [S, n, 3·d]"""
        return torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"qkv_{i}"])

    def _split(self, projected: Tensor, places: tuple[int, ...]) -> Tensor:
        """Heads and their parts to the front. [S, P·…, 3·d] → [3, S, P, h, …, e]"""
        y = projected.reshape(*places, 3, self.heads, self.width // self.heads)
        k = len(places)
        return y.permute(k, 0, 1, k + 1, *range(2, k), k + 2).contiguous()

    def _heads(self, weights: Parameters, i: int, x: Tensor, prompts: int) -> Tensor:
        """[S, P·n, d] → [3, S·P·h, n, e]"""
        places = (len(x), prompts, x.shape[1] // prompts)
        return self._split(self._project(weights, i, x), places).flatten(1, 3)

    def _merge(self, mixed: Tensor, seeds: int) -> Tensor:
        """[S·P·h, n, e] → [S, P·n, d]"""
        by_head = mixed.view(seeds, len(mixed) // (seeds * self.heads), self.heads, *mixed.shape[1:])  # [S, P, h, n, e]
        return by_head.transpose(2, 3).flatten(3).flatten(1, 2)

    def _finish(self, weights: Parameters, i: int, x: Tensor, mixed: Tensor) -> Tensor:
        """What attention found, then the feed-forward part, each added to x. [S, n, d]"""
        x = torch.baddbmm(x, mixed, weights[f"out_{i}"])
        hidden = torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"up_{i}"]).relu()
        return torch.baddbmm(x, hidden, weights[f"down_{i}"])


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """[N, q, e], [N, k, e], [N, k, e] → [N, q, e]"""
    return torch.bmm(_softmax(torch.baddbmm(mask, query, key.transpose(1, 2))), value)


def _softmax(scores: Tensor) -> Tensor:
    """Over the last axis. Rows shorter than a vector register, which torch takes many times as long for, are padded."""
    short = LANES - scores.shape[-1]
    if short <= 0:
        return scores.softmax(dim=-1)
    return pad(scores, (0, short), value=-torch.inf).softmax(dim=-1)[..., :-short]


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """Queries are the last of the keys' places, and see no later one. [q, k]"""
    q, k = query.shape[1], key.shape[1]
    return torch.full((q, k), -torch.inf, dtype=query.dtype, device=query.device).triu(k - q + 1)


def _last(x: Tensor, length: int) -> Tensor:
    """The last place of each row. [S, P·L, d] → [S, P, d]"""
    return x.view(len(x), -1, length, x.shape[-1])[:, :, -1]
