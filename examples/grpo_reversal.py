# /// script
# requires-python = ">=3.11"
# dependencies = ["kondo[trl]"]
#
# [tool.uv.sources]
# kondo = { path = ".." }
# ///
"""GRPO with the Kondo gate on a small Llama that learns to write a word backwards: "abca=" → "acba". CPU, minutes.

python examples/grpo_reversal.py --steps 400 --rate 0.1
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback

from kondo.integrations.trl import KondoGRPOConfig, KondoGRPOTrainer


def tokenizer(letters: str) -> PreTrainedTokenizerFast:
    """A token per character."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<end>", "=", *letters])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>", padding_side="left")


def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """The share of the letters that are right: verifiable, without a judge."""
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        right = prompt.removesuffix("=")[::-1]
        said = completion.replace(" ", "")
        rewards.append(sum(a == b for a, b in zip(said, right, strict=False)) / len(right))
    return rewards


def trainer(
    steps: int,
    length: int = 4,
    letters: str = "ab",
    batch: int = 64,
    seed: int = 0,
    folder: str = "out",
    hidden: int = 64,
    kind: Callable[..., Any] = KondoGRPOTrainer,
    **settings: Any,
) -> Any:
    """A model and a trainer (of a kind: GRPOTrainer is the plain one) from nothing; settings: of KondoGRPOConfig."""
    torch.manual_seed(seed)
    words = random.Random(seed)
    tokens = tokenizer(letters)
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), max_position_embeddings=64, **shape, **ends))
    prompts = ["".join(words.choices(letters, k=length)) + "=" for _ in range(steps * batch // 8)]
    defaults: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "num_generations": 8,
        "max_completion_length": length,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant",
        "scale_rewards": "none",
        "loss_type": "dr_grpo",
        "logging_steps": 20,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": seed,
    }
    return kind(
        model=model,
        reward_funcs=reward,
        args=KondoGRPOConfig(**defaults | settings),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokens,
    )


class Progress(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "reward" in logs:
            skipped = logs.get("kondo/skipped_fraction", 0.0)
            print(f"step {state.global_step:4}: reward {logs['reward']:.3f}, {skipped:.0%} of the tokens in no graph")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the completions to keep; 1 is GRPO itself")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(asked.steps, folder=folder, use_kondo_gate=asked.rate < 1, kondo_gate_rate=asked.rate)
        run.remove_callback(PrinterCallback)
        run.add_callback(Progress())
        run.train()


if __name__ == "__main__":
    main()
