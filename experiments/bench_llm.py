"""What the gate saves of a step of a language model: a GPT-2 of ten million parameters, 100 rows of 32 tokens, none of
them padding; and SmolLM2, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessorList, PreTrainedModel
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from experiments.timing import Step, best, count
from kondo import KondoGate, KondoGateConfig, KondoTrainer, dg_loss, packing
from kondo.integrations.transformers import Rollout, rollout
from kondo.lab.language.model import available, load
from kondo.lab.language.problems import problems
from kondo.schema import Unavailable
from kondo.signals import action_log_probs

ROWS, TOKENS, VOCABULARY, MICRO = 100, 32, 8192, 800
RATES = (0.03, 0.1, 0.3)


def smollm2(device: str = "cpu") -> list[dict[str, Any]]:
    """Seconds and memory of an update of SmolLM2-135M on 32 answers, by what share of them is bought."""
    try:
        available("smollm2")
    except Unavailable as missing:
        print(f"SmolLM2: left out; {missing}")
        return []
    torch.manual_seed(0)
    model = load("smollm2", 0, device).model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    ids, actions = torch.randint(model.config.vocab_size, (2, 32, TOKENS), device=device)
    advantages, log_probs = torch.randn(32, device=device), packing.log_probs(model, ids, actions)

    def update(rate: float) -> Step:
        gate = KondoGate(KondoGateConfig(gate_rate=rate, unit="sequence"))
        trainer = KondoTrainer(model, gate=gate, optimizer=optimizer, micro_tokens=32 * TOKENS)
        return lambda: trainer.step(ids, actions, advantages, log_probs=log_probs)

    steps = {f"ρ = {rate:.0%}": update(rate) for rate in (1.0, *reversed(RATES))}
    update(RATES[0])()  # the optimizer's memory is there before any is counted
    counted = {name: count(step, torch.device(device)) for name, step in steps.items()}
    seconds = best(steps, count=1, warmup=0, repeats=2)
    memory = {name: peak / 2**20 for name, (peak, _) in counted.items()}
    table, costs = told(seconds, counted)
    rows = [
        {
            "name": f"SmolLM2-135M: {what} of an update on all of 32 answers of {TOKENS} tokens over one on 10%",
            "ratio": each["ρ = 100%"] / each["ρ = 10%"],
            "bar": bar,
            "detail": f"{table}; the rollout's log-probs as screen; memory beside weights and optimizer; "
            f"the gradient alone is {sum(p.numel() for p in model.parameters()) * 4 / 2**20:.0f} MiB",
        }
        for what, each, bar in (("seconds", seconds, 4.0), ("memory", memory, 2.0))
    ]
    about = f"SmolLM2-135M, an update on 32 answers of {TOKENS} tokens, the rollout's log-probs as screen"
    return [rows[0] | {"about": about, "steps": costs}, *rows[1:]]


SAMPLERS: dict[str, dict[str, float]] = {
    "as the policy": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-p 0.95": {"top_p": 0.95},
    "top-p 0.8": {"top_p": 0.8},
    "top-k 5": {"top_k": 5},
}


def samplers(device: str = "cpu") -> list[dict[str, Any]]:
    """How much of what exact delight would keep is found by the log-probabilities that a sampler reports after it has
    cut or sharpened the policy: SmolLM2, 256 answers to sums, ρ = 10%."""
    try:
        available("smollm2")
    except Unavailable as missing:
        print(f"SmolLM2: left out; {missing}")
        return []
    speaker, found = load("smollm2", 0, device), {}
    asked = [each for each in problems("chain_sum", 0, range(64)) for _ in range(4)]
    ids, real = speaker.prompts([each.prompt for each in asked], device)
    ends: dict[str, Any] = {"eos_token_id": list(speaker.ends), "pad_token_id": speaker.ends[0]}
    for name, options in SAMPLERS.items():
        torch.manual_seed(0)
        batch = rollout(speaker.model, ids, real, max_new_tokens=4, **ends, **options)
        rewards = torch.tensor(
            [each.reward(speaker.text(answer)) for each, answer in zip(asked, batch.answers(), strict=True)]
        )
        advantages = (rewards.view(-1, 4) - rewards.view(-1, 4).mean(1, keepdim=True)).flatten()
        assert batch.log_probs is not None
        reported = _reported(speaker.model, batch, options)
        kept = []
        for seen in (batch.log_probs, reported):
            gate = KondoGate(KondoGateConfig(gate_rate=0.1, unit="sequence"))
            kept.append(gate.decide(seen, advantages, batch.action_mask)[0].keep)
        found[name] = round(100 * int((kept[0] & kept[1]).sum()) / int(kept[0].sum()))
    words = ", ".join(f"{name} {recall}%" for name, recall in found.items())
    return [
        {
            "name": "SmolLM2-135M: least recall at ρ = 10% of a changed sampler's own log-probs",
            "ratio": min(found.values()) / 100,
            "bar": 0.9,
            "detail": f"{len(asked)} answers; {words}; below the bar screen with a pass of your own",
            "about": f"SmolLM2-135M, {len(asked)} answers sampled with …",
            "steps": {name: {"recall, %": recall} for name, recall in found.items()},
        }
    ]


@torch.no_grad()
def _reported(model: PreTrainedModel, batch: Rollout, options: Mapping[str, float]) -> torch.Tensor:
    """log of the probabilities that the sampler drew with, 0 where it drew nothing. [B, T]"""
    warpers = LogitsProcessorList()
    if "temperature" in options:
        warpers.append(TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        warpers.append(TopKLogitsWarper(int(options["top_k"])))
    if "top_p" in options:
        warpers.append(TopPLogitsWarper(options["top_p"]))
    chosen = batch.action_mask.bool()
    places = batch.attention_mask.cumsum(-1) - 1
    logits = model(batch.input_ids, attention_mask=batch.attention_mask, position_ids=places.clamp(min=0)).logits
    drawn = warpers(batch.input_ids, logits[chosen]).log_softmax(-1).gather(-1, batch.actions[chosen][:, None])[:, 0]
    return torch.zeros(chosen.shape).masked_scatter(chosen, drawn)


def told(seconds: Mapping[str, float], counted: Mapping[str, tuple[int, int]]) -> tuple[str, dict[str, Any]]:
    """What each kind of step takes, in words and as numbers: ms, MiB beside weights and optimizer, GFLOP."""
    costs = {
        name: {"ms": round(seconds[name] * 1e3), "MiB": round(peak / 2**20), "GFLOP": round(operations / 1e9)}
        for name, (peak, operations) in counted.items()
    }
    words = (f"{name}: {', '.join(f'{value} {unit}' for unit, value in cost.items())}" for name, cost in costs.items())
    return "; ".join(words), costs


def language_model(device: str = "cpu") -> list[dict[str, Any]]:
    """Seconds, memory and operations of PG, DG, the masked gate and ours."""
    torch.manual_seed(0)
    shape = {"n_embd": 320, "n_layer": 6, "n_head": 5, "n_positions": TOKENS, "vocab_size": VOCABULARY}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    ids, actions = torch.randint(VOCABULARY, (2, ROWS, TOKENS), device=device)
    advantages = torch.randn(ROWS, device=device)
    each = advantages.unsqueeze(-1).expand_as(ids)
    log_probs = packing.log_probs(model, ids, actions)
    gate = KondoGate(KondoGateConfig(gate_rate=RATES[0], unit="sequence"))

    def pg(logits: torch.Tensor) -> torch.Tensor:
        return -(each * action_log_probs(logits, actions)).mean()

    def masked(logits: torch.Tensor) -> torch.Tensor:
        loss = gate(logits, actions, advantages).gated_policy_loss
        assert loss is not None
        return loss

    def everything(loss: Callable[[torch.Tensor], torch.Tensor], move: bool = True) -> Step:
        def step() -> None:
            optimizer.zero_grad()
            loss(model(input_ids=ids).logits).backward()
            if move:
                optimizer.step()

        return step

    def ours(rate: float, **given: torch.Tensor) -> Step:
        config = KondoGateConfig(gate_rate=rate, unit="sequence")
        trainer = KondoTrainer(model, gate=KondoGate(config), optimizer=optimizer, micro_tokens=MICRO)
        return lambda: trainer.step(ids, actions, advantages, **given)

    update = ours(RATES[0], log_probs=log_probs)
    update()  # the optimizer's memory is there before any is counted
    model.train()
    steps: dict[str, Step] = {
        "PG": everything(pg),
        "DG": everything(lambda logits: dg_loss(logits, actions, each)[0]),
        "masked gate": everything(masked),
        **{f"ours {rate:.0%}": ours(rate) for rate in RATES},
        "ours 3%, rollout's log-probs": update,
    }
    counted = {name: count(step, torch.device(device)) for name, step in steps.items()}
    memory = {name: peak / 2**20 for name, (peak, _) in counted.items()}
    operations = {name: total / 1e9 for name, (_, total) in counted.items()}
    parts: dict[str, Step] = {
        "screen": lambda: packing.log_probs(model, ids, actions, micro_tokens=MICRO),
        "forward and backward": everything(pg, move=False),
    }
    seconds = best(steps | parts, count=1, warmup=0, repeats=2)
    ideal = seconds["screen"] + RATES[0] * seconds["forward and backward"]
    table, costs = told(seconds, counted)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return [
        {
            "name": "language model: DG-K(3%) step over the ideal, screen + 3% of forward and backward",
            "ratio": seconds["ours 3%"] / ideal,
            "bar": 1.15,
            "detail": f"GPT-2 of {size:.1f}M parameters, {ROWS} rows of {TOKENS} tokens; screen "
            f"{seconds['screen'] * 1e3:.0f} ms, forward and backward {seconds['forward and backward'] * 1e3:.0f} ms, "
            f"ideal {ideal * 1e3:.0f} ms; {table}; the bar is a ceiling",
            "about": f"GPT-2 of {size:.1f}M parameters, a step on {ROWS} rows of {TOKENS} tokens",
            "steps": costs,
        },
        {
            "name": "language model: step of the masked gate over ours at 3%, the screen paid for",
            "ratio": seconds["masked gate"] / seconds["ours 3%"],
            "bar": 2.0,
            "detail": f"{operations['masked gate'] / operations['ours 3%']:.2f} times the operations",
        },
        {
            "name": "language model: step of the masked gate over ours at 3%, the rollout's log-probs as screen",
            "ratio": seconds["masked gate"] / seconds["ours 3%, rollout's log-probs"],
            "bar": 8.0,
            "detail": f"{operations['masked gate'] / operations[list(steps)[-1]]:.1f} times the operations",
        },
        {
            "name": "language model: memory that a step of the masked gate adds over what ours at 3% adds",
            "ratio": memory["masked gate"] / memory["ours 3%"],
            "bar": 2.0,
            "detail": f"{memory['masked gate']:.0f} against {memory['ours 3%']:.0f} MiB, beside weights and optimizer",
        },
    ]
