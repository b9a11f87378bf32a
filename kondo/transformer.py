"""A seed-stacked decoder-only transformer: a prompt in, an answer out, token by token.

Whether sampled from a cache or passed through at once with the answers given, what prompts and answers begin with in
common goes through the model once. Letters in shapes: P prompts, G answers to each, B = P·G rows, H tokens per prompt,
T per answer; n nodes of the tree of prompts and answers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from kondo.policies import Parameters, Shapes, views
from kondo.streams import Streams, sample_index
from kondo.tree import Tree, attend


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

        The prompts go through the model at once, then the answers token by token; what was computed is remembered.
        """
        weights, rows = self._weights(parameters), inputs.shape[1] * self.samples
        draws = streams.uniform(stream, step, (rows, self.answer))
        actions = draws.new_empty(draws.shape, dtype=torch.long)
        log_policy = draws.new_empty(*draws.shape, self.vocab)
        tree = Tree(self.vocab, self.prompt + self.answer - 1)
        tree.grow(inputs)
        most = tree.nodes + rows * (self.answer - 1)
        memory = [draws.new_empty(len(inputs), most, 3 * self.width) for _ in range(self.layers)]
        nodes = self._pass(parameters, weights, tree, memory)
        tree.repeat(self.samples)
        for t in range(self.answer):
            log_policy[:, :, t] = _by_row(nodes, tree.at[..., -1])
            actions[:, :, t] = sample_index(log_policy[:, :, t].exp(), draws[:, :, t])
            if t < self.answer - 1:
                tree.grow(actions[:, :, t : t + 1])
                nodes = self._pass(parameters, weights, tree, memory)
        return actions, log_policy

    def log_policy(self, parameters: Parameters, inputs: Tensor, actions: Tensor) -> Tensor:
        """log π of every token of given answers, [S, P, H] and [S, P·G, T] → [S, P·G, T, M]; G = B / P.

        In a graph answers share their prompt alone, so that the time of a backward pass tells what it would be where
        answers are seldom alike: with two letters they often are, and what a gate saves would seem less.
        """
        asked = inputs.repeat_interleave(actions.shape[1] // inputs.shape[1], dim=1)
        apart = self.prompt if torch.is_grad_enabled() else None
        tree = Tree(self.vocab, self.prompt + self.answer - 1, apart)
        tree.grow(torch.cat([asked, actions[..., :-1]], dim=-1))
        nodes = self._pass(parameters, self._weights(parameters), tree)
        before = itertools.accumulate(tree.sizes[self.prompt - 1 : -1], initial=0)
        at = tree.at[..., self.prompt - 1 :] + torch.tensor(list(before), device=tree.at.device)  # [S, B, T]
        return _by_row(nodes, at.flatten(1)).view(*at.shape, self.vocab)

    def _pass(
        self, parameters: Parameters, weights: Parameters, tree: Tree, memory: list[Tensor] | None = None
    ) -> Tensor:
        """log π after the nodes that grew last and that an answer goes on from; memory: what older nodes left there,
        by layer. [S, n, M]"""
        first, path, seen = tree.first, tree.path, tree.seen
        x = self._embed(parameters, tree.tokens, seen - 1)
        for i in range(self.layers):
            qkv = torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"qkv_{i}"])
            if memory is not None:
                memory[i][:, tree.first : tree.nodes] = qkv
                qkv = memory[i]
            if i == self.layers - 1:  # of a prompt only the last token goes on
                begun = sum(tree.sizes[: max(0, self.prompt - 1 - (tree.places - len(tree.sizes)))])
                x, path, seen, first = x[:, begun:], path[:, begun:].contiguous(), seen[begun:], first + begun
            x = torch.baddbmm(x, attend(qkv, self.heads, first, path, seen), weights[f"out_{i}"])
            hidden = torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"up_{i}"]).relu()
            x = torch.baddbmm(x, hidden, weights[f"down_{i}"])
        logits = torch.bmm(x, parameters["unembedding"])
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

    def _embed(self, parameters: Parameters, tokens: Tensor, places: Tensor) -> Tensor:
        """[S, n] tokens, each column of them at a place, [n] → [S, n, d]"""
        offset = torch.arange(len(tokens), device=tokens.device).unsqueeze(-1) * self.vocab
        embedded = embedding(tokens + offset, parameters["embedding"].flatten(0, 1))
        return embedded + parameters["position"].index_select(1, places)


def _by_row(nodes: Tensor, at: Tensor) -> Tensor:
    """[S, n, M], [S, B] → [S, B, M]"""
    return nodes.gather(1, at.unsqueeze(-1).expand(-1, -1, nodes.shape[-1]))
