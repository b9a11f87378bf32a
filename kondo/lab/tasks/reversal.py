"""Token reversal: read a prompt, write it backwards, and learn only how good the whole answer was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kondo.lab.policies.mlp import Parameters
from kondo.lab.policies.transformer import Transformer
from kondo.lab.streams import Streams
from kondo.lab.tasks.base import Contexts, Task, task
from kondo.schema import ConfigError, knob


@task
@dataclass(frozen=True)
class Reversal(Task):
    """R = κc + (1 − κ)1{c = 1}, where c is how much of the answer is right."""

    length: int = knob(10, low=2)
    """H: tokens of a prompt, and of its answer."""
    vocab: int = knob(2, low=2)
    """M"""
    prompts: int = knob(10, low=1)
    """Prompts per step."""
    samples: int = knob(10, low=1)
    """Answers sampled for each prompt: the group whose mean reward is the baseline."""
    target: str = knob("reverse", choices=("reverse", "copy", "increment"))
    """The right answer: the prompt backwards; as it is; or with 1 added to every token (mod M)."""
    credit: str = knob("share", choices=("share", "to_first_error"))
    """c: the share of tokens that are right, or that are right before the first wrong one."""
    kappa: float = knob(1.0, low=0, high=1)
    """κ: what partly right answers earn; 1 is dense, 0 all or nothing."""
    baseline: str = knob("group", choices=("group", "half", "zero"))
    """b"""
    evaluated: int = knob(500, low=1)
    """Prompts that an evaluation answers, once each."""
    layers: int = knob(3, low=1)
    width: int = knob(64, low=1)
    heads: int = knob(4, low=1)
    ff: int = knob(128, low=1)

    error: ClassVar[str] = "token_error"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"task.width={self.width}: not a multiple of task.heads={self.heads}")

    @property
    def batch(self) -> int:
        """B: samples per step."""
        return self.prompts * self.samples

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def group(self) -> int:
        return self.samples

    def policy(self) -> Transformer:
        return Transformer(
            vocab=self.vocab,
            prompt=self.length,
            answer=self.length,
            samples=self.samples,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            ff=self.ff,
        )

    def draw(self, streams: Streams, step: int) -> Contexts:
        return self._asked(streams.below(self.vocab, "context", step, (self.prompts, self.length)), self.samples)

    def reward(self, contexts: Contexts, actions: Tensor) -> Tensor:
        right = (actions == contexts.targets).float()  # [S, B, T]
        earned = right if self.credit == "share" else right.cumprod(dim=-1)
        return self.kappa * earned.mean(dim=-1) + (1 - self.kappa) * right.amin(dim=-1)

    def evaluate(self, parameters: Parameters, streams: Streams, step: int) -> dict[str, Tensor]:
        """On answers of the learner's own: the share of wrong tokens, of answers with any, 1 − R, and the entropy per
        token.

        The share of wrong tokens is expected over each token, given those before it: 1 − π(y*) in place of 1{a ≠ y*},
        the same on average, with less noise and exact near 0.
        """
        prompts = streams.below(self.vocab, "evaluation", step, (self.evaluated, self.length))
        contexts = self._asked(prompts, 1)
        policy = replace(self.policy(), samples=1)
        actions, log_policy = policy.sample(parameters, contexts.inputs, streams, step, "evaluation.action")
        wrong = log_policy.exp().scatter(-1, contexts.targets.unsqueeze(-1), 0.0)
        return {
            "token_error": wrong.sum(dim=-1).mean(dim=(1, 2)),
            "answer_error": (actions != contexts.targets).any(dim=-1).float().mean(dim=1),
            "reward_error": (1 - self.reward(contexts, actions)).mean(dim=1),
            "entropy": -(log_policy.exp() * log_policy).sum(dim=-1).mean(dim=(1, 2)),
        }

    def _asked(self, prompts: Tensor, samples: int) -> Contexts:
        """[S, P, H] → contexts"""
        right = {"reverse": prompts.flip(-1), "copy": prompts, "increment": (prompts + 1) % self.vocab}[self.target]
        return Contexts(inputs=prompts, targets=right.repeat_interleave(samples, dim=1))
