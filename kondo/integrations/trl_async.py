"""TRL's asynchronous GRPO with a filter between its rollouts and its learner."""

from __future__ import annotations

from typing import Any

from kondo.filter import FilteredQueue, SampleFilter


def filter_rollouts(trainer: Any, keep: SampleFilter) -> None:
    """Let TRL's asynchronous trainer (`trl.experimental.async_grpo`) train only on rollouts that a filter keeps.

    Call it between making the trainer and `train()`, in every process. TRL has no hook for it, but reads its samples
    from one queue, of which only the main process has one. A group of which nothing is kept does not count towards an
    epoch, and the filter's state is not in TRL's checkpoints: save `keep.state_dict()`. vLLM's log-probabilities are
    renormalised under top-p, top-k or min-p, and then not the policy's: leave these off.
    """
    if trainer.rollout_queue is None:
        return

    def read(sample: Any) -> tuple[Any, float, int]:
        keep.version = trainer.model_version
        return sample.old_log_probs[sample.completion_mask.astype(bool)], sample.advantage, sample.model_version

    trainer.rollout_queue = FilteredQueue(trainer.rollout_queue, keep, read)
