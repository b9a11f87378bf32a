"""Speed, as ratios measured in one run on one thread → bench/results.json: [{name, ratio, bar, detail}, …]

    make bench                                                              # everything
    python -m experiments.bench language_model smollm2 --out docs/bench.json   # some parts: those the docs show

Each entry is the best of several repeats, taken in turns so that a slow moment of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.bench_llm import language_model, samplers, smollm2
from experiments.timing import REPEATS, Step, best, peak_memory
from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.streams import sample_index
from kondo.lab.tasks import data

SEEDS, BATCH = 10, 100


def ours(method: str, gate: dict[str, Any] | None = None, **changes: Any) -> Engine:
    plain = {"task": {"name": "mnist"}, "method": {"name": method}, "gate": gate, "steps": 10_000}
    return Engine(parse(plain | changes), list(range(SEEDS)))


def peer(method: str) -> Step:
    """The loop that a user of kondo-gate 0.1.0 writes: one model, its loss, torch's Adam."""
    import kondo_gate

    images = data.load("mnist", Path("data"))
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    gate = kondo_gate.KondoGate(kondo_gate.KondoGateConfig(gate_rate=0.03))

    def step() -> None:
        index = torch.randint(len(images.train), (BATCH,))
        logits = model(images.train[index].float() / 255)
        policy = logits.detach().softmax(-1)
        actions = torch.multinomial(policy, 1).squeeze(-1)
        rewards = (actions == images.train_labels[index]).float()
        advantages = rewards - kondo_gate.expected_confidence_baseline(policy)
        if method == "dg":
            loss, _ = kondo_gate.dg_loss(logits, actions, advantages)
        else:
            loss = gate(logits, actions, advantages).gated_policy_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def mnist() -> list[dict[str, Any]]:
    square = torch.randn(1024, 1024)
    dg, dgk = ours("dg"), ours("dgk", {"rate": 0.03})
    for engine in (dg, dgk):  # the first step compiles
        engine.advance()
        engine.ledger.timed = dict.fromkeys(engine.ledger.timed, 0.0)
    times = best(
        {
            "peak": lambda: square @ square,
            "peer dg": peer("dg"),
            "peer dgk": peer("dgk"),
            "dg": dg.advance,
            "dgk": dgk.advance,
        }
    )
    parts = first_layer(dg)
    per_seed = {name: times[name] / SEEDS for name in ("dg", "dgk")}
    rows = data.load("mnist", Path("data")).rows.table
    filled = rows.count_nonzero().item() / rows.numel()
    first, small = 784 * 100 * filled, 100 * 100 + 100 * 10  # multiplications per sample; zeros are skipped
    # DG: forward, weight gradients, input gradients but of the first layer; DG-K: forward on all, everything on 3
    work = {
        "dg": 2 * BATCH * (2 * first + 3 * small),
        "dgk": 2 * BATCH * (first + small) + 2 * 3 * (3 * first + 4 * small),
    }
    peak = 2 * 1024**3 / times["peak"]
    share = {name: work[name] / per_seed[name] / peak for name in work}
    phases = {
        name: ", ".join(
            f"{key.removeprefix('seconds_')} {value / (engine.step - 1) / SEEDS * 1e3:.2f}" for key, value in timed
        )
        for name, engine in (("dg", dg), ("dgk", dgk))
        if (timed := [item for item in engine.ledger.timed.items() if item[0].startswith("seconds")])
    }
    results = []
    for name, bar in (("dg", 2.5), ("dgk", 4.0)):
        results.append(
            {
                "name": f"mnist: seed-steps per second of {name}, ten seeds stacked, over the kondo-gate loop",
                "ratio": times[f"peer {name}"] / per_seed[name],
                "bar": bar,
                "detail": f"{per_seed[name] * 1e3:.3f} ms against {times[f'peer {name}'] * 1e3:.3f} ms per seed-step; "
                f"{share[name]:.0%} of the {peak / 1e9:.0f} GFLOP/s matmul peak ({1 - filled:.0%} of the pixels are "
                f"zero and not multiplied); ms by phase: {phases[name]}; bound by memory and overhead more than by "
                f"arithmetic: of a seed-step the first layer takes {parts['ahead'] * 1e3:.2f} ms, its gradient for "
                f"every row {parts['back'] * 1e3:.2f} ms, Adam {parts['adam'] * 1e3:.2f} ms, and the rest are many "
                f"small operations",
            }
        )
    results.append(
        {
            "name": "mnist: our DG step over our DG-K(3%) step",
            "ratio": times["dg"] / times["dgk"],
            "bar": 1.4,
            "detail": f"{times['dg'] * 1e3:.2f} ms against {times['dgk'] * 1e3:.2f} ms for ten seeds",
        }
    )
    return results


def first_layer(engine: Engine) -> dict[str, float]:
    """Seconds per seed for the parts of a step that touch every parameter: the first layer, its gradient, Adam."""
    learner, rows = engine.learner, data.load("mnist", Path("data")).rows
    index = torch.randint(60_000, (SEEDS, BATCH))
    leaves = [learner.leaves["weight_0"], learner.leaves["bias_0"]]
    up = torch.randn(SEEDS, BATCH, 100)
    gradients = [torch.zeros_like(leaf) for leaf in learner.leaves.values()]
    everyone = torch.ones(SEEDS, dtype=torch.bool)
    times = best(
        {
            "ahead": lambda: rows.linear(index, *(leaf.detach() for leaf in leaves)),
            "both": lambda: torch.autograd.grad(rows.linear(index, *leaves), leaves, up),
            "adam": lambda: learner.optimizer.step(gradients, everyone),
        }
    )
    return {
        "ahead": times["ahead"] / SEEDS,
        "back": (times["both"] - times["ahead"]) / SEEDS,
        "adam": times["adam"] / SEEDS,
    }


def staleness() -> list[dict[str, Any]]:
    """What remembering a thousand steps of parameters costs."""
    short, long = (ours("dg", friction={"staleness": {"delay": delay}}) for delay in (1, 1000))
    while long.step < 1010:  # until its memory is full
        long.advance()
    full = peak_memory() / 2**30
    times = best({"short": short.advance, "long": long.advance})
    later = peak_memory() / 2**30
    return [
        {
            "name": "mnist: step time with D = 1000 over D = 1 (ten seeds)",
            "ratio": times["long"] / times["short"],
            "bar": 1.1,
            "detail": f"{times['long'] * 1e3:.2f} ms against {times['short'] * 1e3:.2f} ms; the bar is a ceiling",
        },
        {
            "name": "mnist: peak memory with D = 1000 and ten seeds, GiB",
            "ratio": later,
            "bar": 6.0,
            "detail": f"{full:.2f} GiB once the memory was full, {later:.2f} GiB some 200 steps later; a ceiling",
        },
    ]


def reversal(method: str, gate: dict[str, Any] | None = None, length: int = 10, seeds: int = SEEDS) -> Engine:
    task = {"name": "reversal", "length": length}
    plain = {"task": task, "method": {"name": method}, "gate": gate, "steps": 10_000}
    return Engine(parse(plain), list(range(seeds)))


def learning(engine: Engine) -> float:
    """Seconds that the learner has spent: screen, backward and optimizer."""
    return sum(engine.ledger.timed[f"seconds_{phase}"] for phase in ("screen", "backward", "optimizer"))


def gated_step() -> list[dict[str, Any]]:
    """What the gate saves of the learner's phase, and of a whole step, rollout included."""
    engines = {"dg": reversal("dg"), "dgk": reversal("dgk", {"rate": 0.03})}
    whole, learner = dict.fromkeys(engines, float("inf")), dict.fromkeys(engines, float("inf"))
    for turn in range(2 * REPEATS):
        for name, engine in engines.items():
            before, begun = learning(engine), time.perf_counter()
            engine.advance()
            if turn > 1:
                whole[name] = min(whole[name], time.perf_counter() - begun)
                learner[name] = min(learner[name], learning(engine) - before)
    return [
        {
            "name": f"reversal, H = 10, batch 100: {words} of DG over DG-K(3%, sequence)'s",
            "ratio": times["dg"] / times["dgk"],
            "bar": bar,
            "detail": f"{times['dg'] * 1e3:.1f} ms against {times['dgk'] * 1e3:.1f} ms for ten seeds",
        }
        for words, times, bar in (("learner phase", learner, 10.0), ("whole step", whole, 2.5))
    ]


def longer() -> list[dict[str, Any]]:
    """How the cost of a step grows with the length of the prompt."""
    results = []
    for name, gate in (("dg", None), ("dgk", {"rate": 0.03})):
        steps: dict[str, Step] = {str(length): reversal(name, gate, length, 2).advance for length in (10, 20, 40)}
        times = best(steps, count=1, warmup=2)
        results.append(
            {
                "name": f"reversal: exponent of the cost of a {name} step in H, from 10 to 40",
                "ratio": math.log(times["40"] / times["10"]) / math.log(4),
                "bar": 1.5,
                "detail": "ms for two seeds: "
                + ", ".join(f"H = {length}: {seconds * 1e3:.1f}" for length, seconds in times.items())
                + "; the bar is a ceiling",
            }
        )
    return results


def cached() -> list[dict[str, Any]]:
    """Decoding from a cache, against a full forward pass over the answers so far for every token."""
    engine = reversal("dg", length=30, seeds=1)
    policy, parameters, streams = engine.learner.policy, engine.learner.leaves, engine.streams
    inputs = engine.task.draw(streams, 0).inputs

    @torch.no_grad()
    def repeated() -> None:
        actions = torch.zeros(1, BATCH, 30, dtype=torch.long)
        draws = streams.uniform("action", 0, (BATCH, 30))
        for t in range(30):
            log_policy = policy.log_policy(parameters, inputs, actions[..., : t + 1])[:, :, t]
            actions[:, :, t] = sample_index(log_policy.exp(), draws[:, :, t])

    times = best({"cached": lambda: policy.sample(parameters, inputs, streams, 0), "repeated": repeated}, 1, warmup=1)
    return [
        {
            "name": "reversal, H = 30: decoding by repeated full passes over decoding from a cache",
            "ratio": times["repeated"] / times["cached"],
            "bar": 3.0,
            "detail": f"{times['repeated'] * 1e3:.0f} ms against {times['cached'] * 1e3:.0f} ms for one seed; what "
            "answers begin with in common passes once in both",
        }
    ]


def stacked() -> list[dict[str, Any]]:
    """Which number of seeds side by side is fastest, per seed."""
    sizes = (1, 2, 5, 10, 20)
    results = []
    for name, gate in (("dg", None), ("dgk", {"rate": 0.03})):
        steps: dict[str, Step] = {str(size): reversal(name, gate, seeds=size).advance for size in sizes}
        times = best(steps, count=1, warmup=2)
        results.append(
            {
                "name": f"reversal: one seed alone over ten stacked, {name} seed-step",
                "ratio": times["1"] / (times[str(SEEDS)] / SEEDS),
                "bar": 1.0,
                "detail": "ms per seed-step by block: "
                + ", ".join(f"{size}: {times[str(size)] / size * 1e3:.1f}" for size in sizes),
            }
        )
    return results


CEILINGS = ("step time with D", "peak memory", "exponent", "over the ideal")
PARTS = (mnist, staleness, gated_step, longer, cached, stacked, language_model, smollm2, samplers)


def met(result: dict[str, Any]) -> bool:
    ceiling = any(words in result["name"] for words in CEILINGS)
    return result["ratio"] <= result["bar"] if ceiling else result["ratio"] >= result["bar"]


def main() -> int:
    torch.set_num_threads(1)
    names = [part.__name__ for part in PARTS]
    parser = argparse.ArgumentParser(prog="experiments.bench", description="Speed, as ratios measured in one run.")
    parser.add_argument("parts", nargs="*", help=f"which (default all): {', '.join(names)}")
    parser.add_argument("--out", type=Path, default=Path("bench/results.json"))
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    results = [result for part in PARTS if part.__name__ in (asked.parts or names) for result in part()]
    for result in results:
        result["ratio"] = round(result["ratio"], 3)
        print(f"{result['ratio']:8.2f}  bar {result['bar']:<5} {'ok ' if met(result) else 'NOT'}  {result['name']}")
        print(f"{'':24}{result['detail']}")
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
