"""Seed-stacked policies: every parameter has a leading seed axis and every layer is one batched matmul.

A policy is a description. The parameters of all S seeds live in one flat tensor [S·P] and are read through named views
of it, each contiguous: so they are optimised by fused kernels, and remembered, copied and saved as one vector.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kondo.lab.policies.rows import Rows
from kondo.lab.rounding import log_softmax
from kondo.lab.streams import Streams, sample_index

Parameters = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


class Policy(Protocol):
    """What the engine asks of a policy; K is the number of actions (the vocabulary, for sequences)."""

    @property
    def graph(self) -> bool:
        """Whether sampling is one pass through the network, whose graph an update can go through."""
        ...

    def shapes(self) -> Shapes:
        """The parameters of one seed."""
        ...

    def init(self, streams: Streams) -> Tensor:
        """Fresh parameters, flat. [S·P]"""
        ...

    def sample(self, parameters: Parameters, inputs: Tensor, streams: Streams, step: int) -> tuple[Tensor, Tensor]:
        """Actions [S, B, …] and the log-probabilities they were drawn from [S, B, …, K]; where G samples share an input
        they are next to each other."""
        ...

    def log_policy(self, parameters: Parameters, inputs: Tensor, actions: Tensor) -> Tensor:
        """log π(·|h) where the actions were taken. [S, B, …, K]"""
        ...


class Layered(abc.ABC):
    """A policy that can be cut short after any of its layers."""

    @abc.abstractmethod
    def truncated(self, layers: int) -> Policy:
        """Its first layers and its head; the parameters of the whole serve."""


def views(flat: Tensor, shapes: Shapes) -> Parameters:
    """The parameters by name, as views. [S·P] → {name: [S, *shape]}"""
    sizes = [math.prod(shape) for shape in shapes.values()]
    seeds = len(flat) // sum(sizes)
    pieces = flat.split([seeds * size for size in sizes])
    return {name: piece.view(seeds, *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def by_seed(parameters: Parameters) -> Tensor:
    """A copy of the parameters with a row per seed. [S, P]"""
    return torch.cat([value.detach().flatten(1) for value in parameters.values()], dim=1)


class Past:
    """Parameters of the last `span` steps and the present ones; step t is in slot t mod (span + 1)."""

    def __init__(self, flat: Tensor, span: int) -> None:
        self.span = span
        self.ring = flat.new_empty(span + 1, len(flat))  # [span + 1, S·P]; memory is taken as it fills

    def record(self, step: int, flat: Tensor) -> None:
        """Keep the parameters of this step."""
        self.ring[step % len(self.ring)] = flat

    def of(self, step: int) -> Tensor:
        """The parameters of a step of the last `span`. [S·P]"""
        return self.ring[step % len(self.ring)]

    def state(self, step: int) -> Tensor:
        """The slots that were filled in `step` steps."""
        return self.ring[: min(step, self.span + 1)]

    def load(self, state: Tensor) -> None:
        self.ring[: len(state)] = state


@dataclass(frozen=True)
class MLP:
    """Fully connected ReLU network. With no hidden layer and one-hot inputs it is a softmax table."""

    sizes: tuple[int, ...]
    """Width of every layer, input and output included."""
    rows: Rows | None = None
    """Where inputs given by number are found."""
    samples: int = 1
    """G: actions sampled for each input."""
    precision: str | None = None
    """What its logits are rounded to; None: nothing."""

    graph: ClassVar[bool] = True

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i, (fan_in, fan_out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            shapes |= {f"weight_{i}": (fan_in, fan_out), f"bias_{i}": (1, fan_out)}
        return shapes

    def init(self, streams: Streams) -> Tensor:
        """Uniform in ±1/√fan_in, weights and biases; a table starts from zero: the uniform policy."""
        shapes = self.shapes()
        flat = torch.zeros(len(streams.seeds) * sum(map(math.prod, shapes.values())), device=streams.device)
        if len(self.sizes) > 2:
            for i, fan_in in enumerate(self.sizes[:-1]):
                for name in (f"weight_{i}", f"bias_{i}"):
                    draw = streams.uniform(f"init.{name}", 0, shapes[name]) * 2 - 1
                    views(flat, shapes)[name].copy_(draw * fan_in**-0.5)
        return flat

    def sample(self, parameters: Parameters, inputs: Tensor, streams: Streams, step: int) -> tuple[Tensor, Tensor]:
        log_policy = self.log_policy(parameters, inputs).repeat_interleave(self.samples, dim=1)
        draw = streams.uniform("action", step, tuple(log_policy.shape[1:-1]))
        return sample_index(log_policy.detach().exp(), draw), log_policy

    def log_policy(self, parameters: Parameters, inputs: Tensor, actions: Tensor | None = None) -> Tensor:
        """[S, P, in], or row numbers [S, P] → [S, P, K]; with the actions [S, P·G] of each input, [S, P·G, K]."""
        x = inputs
        last = len(self.sizes) - 2
        for i in range(last + 1):
            weight, bias = parameters[f"weight_{i}"], parameters[f"bias_{i}"]
            if i == 0 and self.rows is not None:
                x = self.rows.linear(inputs, weight, bias)
            else:
                x = torch.baddbmm(bias, x, weight)
            x = x.relu() if i < last else log_softmax(x, self.precision)
        group = 1 if actions is None else actions.shape[1] // x.shape[1]
        return x if group == 1 else x.repeat_interleave(group, dim=1)
