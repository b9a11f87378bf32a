"""The transformer on a tree of prompts and answers, each node once. Reference: kondo/lab/policies/transformer.py.

Letters in shapes: S seeds, P prompts, G answers to each, B = P·G, H tokens per prompt, T per answer, M the vocabulary,
n nodes of the tree.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from kondo.lab import kernels
from kondo.lab.kernels.attention import attend
from kondo.lab.kernels.tree import Tree
from kondo.lab.rounding import log_softmax
from kondo.lab.streams import sample_index

if TYPE_CHECKING:
    from kondo.lab.policies.mlp import Parameters
    from kondo.lab.policies.transformer import Transformer


def sample(policy: Transformer, parameters: Parameters, inputs: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """G answers to each prompt, and what they were drawn from. [S, P, H], [S, B, T] → [S, B, T], [S, B, T, M]"""
    weights, rows = _folded(policy, parameters), draws.shape[1]
    actions = draws.new_empty(draws.shape, dtype=torch.long)
    log_policy = draws.new_empty(*draws.shape, policy.vocab)
    tree = Tree(policy.vocab, policy.prompt + policy.answer - 1)
    tree.grow(inputs)
    most = tree.nodes + rows * (policy.answer - 1)
    cache = [draws.new_empty(len(inputs), most, 3 * policy.width) for _ in range(policy.layers)]
    nodes = _forward(policy, parameters, weights, tree, cache)
    tree.repeat(policy.samples)
    for t in range(policy.answer):
        log_policy[:, :, t] = _by_row(nodes, tree.at[..., -1])
        actions[:, :, t] = sample_index(log_policy[:, :, t].exp(), draws[:, :, t])
        if t < policy.answer - 1:
            tree.grow(actions[:, :, t : t + 1])
            nodes = _forward(policy, parameters, weights, tree, cache)
    return actions, log_policy


def log_policy(policy: Transformer, parameters: Parameters, inputs: Tensor, actions: Tensor) -> Tensor:
    """log π of every token of given answers. [S, P, H], [S, B, T] → [S, B, T, M]

    In a graph answers share their prompt alone, so that the time of a backward pass tells what it would be where
    answers are seldom alike: with two letters they often are, and what a gate saves would seem less. In runs
    whose time tells nothing KONDO_KERNELS=shared has them share all that they have in common.
    """
    asked = inputs.repeat_interleave(actions.shape[1] // inputs.shape[1], dim=1)
    apart = policy.prompt if torch.is_grad_enabled() and kernels.switch() != "shared" else None
    tree = Tree(policy.vocab, policy.prompt + policy.answer - 1, apart)
    tree.grow(torch.cat([asked, actions[..., :-1]], dim=-1))
    nodes = _forward(policy, parameters, _folded(policy, parameters), tree)
    before = itertools.accumulate(tree.sizes[policy.prompt - 1 : -1], initial=0)
    at = tree.at[..., policy.prompt - 1 :] + torch.tensor(list(before))  # [S, B, T]
    return _by_row(nodes, at.flatten(1)).view(*at.shape, policy.vocab)


def _forward(
    policy: Transformer, parameters: Parameters, weights: Parameters, tree: Tree, cache: list[Tensor] | None = None
) -> Tensor:
    """log π after those of the last nodes that an answer goes on from. [S, n, M]

    cache: room for queries, keys and values of all nodes, by layer; those of older nodes are there. [S, N, 3·d]
    """
    first, path, depth = tree.first, tree.path, tree.depth
    x = _embed(policy, parameters, tree.tokens, depth - 1)
    for i in range(policy.layers):
        qkv = torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"qkv_{i}"])
        if cache is not None:
            cache[i][:, tree.first : tree.nodes] = qkv
            qkv = cache[i]
        if i == policy.layers - 1:  # of a prompt only the last token goes on
            begun = sum(tree.sizes[: max(0, policy.prompt - 1 - (tree.places - len(tree.sizes)))])
            x, path, depth, first = x[:, begun:], path[:, begun:].contiguous(), depth[begun:], first + begun
        found = attend(qkv.unflatten(-1, (3, policy.heads, -1)), first, path, depth).flatten(2)
        x = torch.baddbmm(x, found, weights[f"out_{i}"])
        hidden = torch.bmm(layer_norm(x, x.shape[-1:]), weights[f"up_{i}"]).relu()
        x = torch.baddbmm(x, hidden, weights[f"down_{i}"])
    logits = torch.bmm(x, parameters["unembedding"])
    return log_softmax(logits, policy.precision)


def _folded(policy: Transformer, parameters: Parameters) -> Parameters:
    """The matrices of the layers, with what multiplies their input folded in: the scale of the norm before them, and
    for queries attention's 1/√e."""
    query = parameters["out_0"].new_ones(3 * policy.width)
    query[: policy.width] = (policy.width // policy.heads) ** -0.5
    weights = {}
    for i in range(policy.layers):
        weights[f"qkv_{i}"] = parameters[f"qkv_{i}"] * (parameters[f"attention_scale_{i}"] * query)
        weights[f"up_{i}"] = parameters[f"up_{i}"] * parameters[f"ff_scale_{i}"]
        weights |= {name: parameters[name] for name in (f"out_{i}", f"down_{i}")}
    return weights


def _embed(policy: Transformer, parameters: Parameters, tokens: Tensor, places: Tensor) -> Tensor:
    """[S, n] tokens, each column of them at a place, [n] → [S, n, d]"""
    offset = torch.arange(len(tokens)).unsqueeze(-1) * policy.vocab
    embedded = embedding(tokens + offset, parameters["embedding"].flatten(0, 1))
    return embedded + parameters["position"].index_select(1, places)


def _by_row(nodes: Tensor, at: Tensor) -> Tensor:
    """[S, n, M], [S, B] → [S, B, M]"""
    return nodes.gather(1, at.unsqueeze(-1).expand(-1, -1, nodes.shape[-1]))
