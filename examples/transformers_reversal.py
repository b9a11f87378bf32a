# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo[transformers]"]
#
# [tool.uv.sources]
# kondo = { path = ".." }
# ///
"""A small Llama learns to write a word backwards with KondoTrainer: the rollout screens, a tenth of the rows is kept.

python examples/transformers_reversal.py --steps 300 --rate 0.1
python examples/transformers_reversal.py --priority advantage    # a control: does surprisal matter at all?
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kondo.integrations.transformers import KondoTrainer, rollout

PAD, ASK, FIRST = 0, 1, 2  # then the letters


def train(
    steps: int,
    rate: float,
    length: int = 4,
    letters: int = 2,
    prompts: int = 8,
    samples: int = 8,
    priority: str = "delight",
    lr: float = 2e-3,
    seed: int = 0,
) -> list[float]:
    """The mean reward of each step: the share of the letters that are right."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": PAD}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=FIRST + letters, **shape, **ends))
    trainer = KondoTrainer(model, gate_rate=rate, lr=lr, priority=priority)
    rewards = []
    for step in range(steps):
        words = torch.randint(FIRST, FIRST + letters, (prompts, length)).repeat_interleave(samples, dim=0)
        asked = torch.cat([words, torch.full((len(words), 1), ASK)], dim=1)
        batch = rollout(model, asked, torch.ones_like(asked), max_new_tokens=length)
        said = batch.actions[:, -length:]
        reward = (said == words.flip(1)).float().mean(1)  # [prompts · samples]
        baseline = reward.view(prompts, samples).mean(1).repeat_interleave(samples)
        stats = trainer.step(**batch.inputs(), advantages=reward - baseline)
        rewards.append(reward.mean().item())
        if step % 20 == 19:
            recent = sum(rewards[-20:]) / 20
            print(
                f"step {step + 1:4}: reward {recent:.3f}, {stats['backward_rows']:.0f} of {len(words)} rows in a graph"
            )
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the rows to keep")
    parser.add_argument("--priority", default="delight", help="what is kept: delight, advantage, uniform, …")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    train(asked.steps, asked.rate, priority=asked.priority, lr=asked.lr, seed=asked.seed)


if __name__ == "__main__":
    main()
