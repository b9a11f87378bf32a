"""Token reversal: read a prompt, write it backwards, and learn only how good the whole answer was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
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

    error: ClassVar[str] = "reward_error"

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
        """1 − E[R], the share of wrong answers and of wrong tokens, and the entropy per token.

        All are expected, not counted, so that they are exact near 0: what depends on whole prefixes from the
        probabilities of the right answer; what does not, the tokens, given answers of the learner's own up to there.
        """
        prompts = streams.below(self.vocab, "evaluation", step, (self.evaluated, self.length))
        contexts = self._asked(prompts, 1)
        policy = replace(self.policy(), samples=1)
        _, log_policy = policy.sample(parameters, contexts.inputs, streams, step, "evaluation.action")
        token_error = _wrong(log_policy, contexts.targets).mean(dim=(1, 2))
        wrong = _wrong(policy.log_policy(parameters, contexts.inputs, contexts.targets), contexts.targets)
        failed = -torch.log1p(-wrong.double()).cumsum(dim=-1).expm1()  # 1 − Π π(y*): the prefix has a mistake
        answer_error = failed[..., -1].mean(dim=1)
        partly = token_error if self.credit == "share" else failed.mean(dim=(1, 2))
        return {
            "reward_error": self.kappa * partly + (1 - self.kappa) * answer_error,
            "answer_error": answer_error,
            "token_error": token_error,
            "entropy": -(log_policy.exp() * log_policy).sum(dim=-1).mean(dim=(1, 2)),
        }

    def _asked(self, prompts: Tensor, samples: int) -> Contexts:
        """[S, P, H] → contexts"""
        right = {"reverse": prompts.flip(-1), "copy": prompts, "increment": (prompts + 1) % self.vocab}[self.target]
        return Contexts(inputs=prompts, targets=right.repeat_interleave(samples, dim=1))


def _wrong(log_policy: Tensor, targets: Tensor) -> Tensor:
    """1 − π(y*), summed over the others, which is exact near 0. [..., M], [...] → [...]"""
    return log_policy.exp().scatter(-1, targets.unsqueeze(-1), 0.0).sum(dim=-1)
