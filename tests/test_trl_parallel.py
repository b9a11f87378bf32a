"""The TRL trainer in two processes, replicated and sharded."""

import copy
import os
import socket
import warnings

import pytest
import torch
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.grpo_reversal import trainer as build

pytestmark = pytest.mark.slow

B, H, T = 8, 5, 4


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def join(rank, world, port):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}


def lonely(rank, world, port, folder):
    """Rank 1 never has anything to learn from; of every four micro-batches, the last two teach nobody anything."""
    join(rank, world, port)
    trainer = build(
        4, batch=8, folder=folder, use_kondo_gate=True, kondo_gate_price=0.0, gradient_accumulation_steps=2,
        steps_per_generation=1, weight_decay=0.0, ddp_backend="gloo",
    )  # fmt: skip
    calls, moves = [], []

    def reward(completions, **_):
        calls.append(len(calls))
        dull = rank == 1 or calls[-1] % 4 in (1, 2, 3)
        return [0.0 if dull else float("a" in text) for text in completions]

    trainer.reward_funcs = [reward]
    start = copy.deepcopy(trainer.model.state_dict())
    keep = trainer.gate.decide
    trainer.gate.decide = lambda *given: (lambda made: moves.append(int(made[0].keep.sum())) or made)(keep(*given))
    trainer.train()
    moved = any(not torch.equal(start[name], value) for name, value in trainer.model.state_dict().items())
    torch.save((trainer.model.state_dict(), moves, moved), f"{folder}/{rank}.pt")


def test_two_processes_stay_equal_when_one_keeps_nothing_and_when_a_window_ends_on_nothing(tmp_path):
    multiprocessing.spawn(lonely, (2, free_port(), str(tmp_path)), nprocs=2)
    (first, kept, moved), (second, none, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert moved
    assert sum(kept) > 0
    assert not any(none)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def rows(rank):
    """Half a batch: the first process has two completions to keep, the second none."""
    drawn = torch.Generator().manual_seed(rank)
    advantages = -torch.rand(B, generator=drawn)
    advantages[1:5:3] *= -1 if rank == 0 else 1
    held = (torch.arange(T) < torch.arange(B).unsqueeze(-1) % 3 + 1).long()
    return {
        "prompt_ids": torch.randint(2, 5, (B, H), generator=drawn),
        "prompt_mask": torch.ones(B, H).long(),
        "completion_ids": torch.randint(2, 5, (B, T), generator=drawn) * held,
        "completion_mask": held,
        "advantages": advantages,
        "num_items_in_batch": 2 * held.sum(),
    }


def gradients(trainer, inputs):
    trainer.current_gradient_accumulation_steps = 1
    trainer.compute_loss(trainer.model.train(), inputs).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters()}


def sharded(rank, world, port, folder):
    join(rank, world, port)
    trainer = build(1, batch=B, folder=folder, hidden=16, use_kondo_gate=True, kondo_gate_price=0.0)
    mesh = init_device_mesh("cpu", (world,))
    for layer in trainer.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trainer.model, mesh=mesh)
    found = {name: value.full_tensor() for name, value in gradients(trainer, rows(rank)).items()}
    torch.save((found, trainer._metrics["train"]["kondo/backward_rows"]), f"{folder}/{rank}.pt")


def test_a_model_sharded_over_two_processes_has_the_gradient_of_one(tmp_path):
    """FSDP2 by hand: accelerate, which would do it on GPUs, shards nothing on a CPU. One process keeps nothing."""
    multiprocessing.spawn(sharded, (2, free_port(), str(tmp_path)), nprocs=2)
    trainer = build(1, batch=2 * B, folder=str(tmp_path), hidden=16, use_kondo_gate=True, kondo_gate_price=0.0)
    halves = rows(0), rows(1)
    whole = {name: torch.cat([half[name] for half in halves]) for name in halves[0] if name != "num_items_in_batch"}
    expected = gradients(trainer, whole | {"num_items_in_batch": halves[0]["num_items_in_batch"]})
    for rank in range(2):
        found, kept = torch.load(tmp_path / f"{rank}.pt")
        assert kept == [2]
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-4)
    assert any(value.abs().max() > 1e-4 for value in expected.values())
