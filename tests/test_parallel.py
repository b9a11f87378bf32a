"""Processes of a data-parallel run, over gloo, against one process that has the whole batch."""

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from kondo import KondoGate, KondoGateConfig, KondoTrainer
from tests.test_trainer import Model, V

B, T, STEPS = 12, 6, 3
PARTS = {2: [7, 5], 3: [6, 1, 5]}  # rows of each rank: uneven
CONFIGS = {
    "rate": KondoGateConfig(gate_rate=0.25),
    "tokens": KondoGateConfig(gate_rate=0.1, unit="token"),
    "price": KondoGateConfig(gate_rate=None, price=0.0),
    "history": KondoGateConfig(gate_rate=0.25, history=20, warmup=10),
    "fed": KondoGateConfig(gate_rate=None, price=1e3, max_consecutive_drops=1),
    "coin": KondoGateConfig(gate_rate=None, price=0.5, deterministic=False, temperature=1e-9),  # too cold for luck
    "scale": KondoGateConfig(gate_rate=None, price=0.3, scale="surprisal", scale_decay=0.5),
    "whitened": KondoGateConfig(gate_rate=0.25, hard=False, scale="delight", scale_decay=0.5),
}


def batches():
    """Batches of which only the first rows can please: rank 0 keeps all that is kept of some, and all advantages of the
    last are zero."""
    torch.manual_seed(1)
    made = []
    for step in range(STEPS):
        mask = torch.ones(B, T, dtype=torch.long)
        mask[::2, 4:] = 0
        advantages = torch.randn(B)
        if step == 1:
            advantages = torch.where(torch.arange(B) < 4, advantages.abs(), -advantages.abs())
        if step == 2:
            advantages = torch.zeros(B)
        made.append((torch.randint(V, (B, T)), torch.randint(V, (B, T)), advantages, mask))
    return made


def train(config, part=slice(None), group=None, wrapped=False):
    """Gradients, parameters and statistics after each step."""
    torch.manual_seed(0)
    network = Model()
    trainer = KondoTrainer(
        DistributedDataParallel(network) if wrapped else network, gate=KondoGate(config, group), lr=0.01, group=group
    )
    seen = []
    for batch in batches():
        stats = trainer.step(*(x[part] for x in batch))
        values = [p.detach().clone() for p in network.parameters()]
        seen.append((stats, values, [None if p.grad is None else p.grad.clone() for p in network.parameters()]))
    return seen


def worker(rank, world, folder):
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", world)
    distributed.init_process_group("gloo", rank=rank, world_size=world, store=store)
    start = sum(PARTS[world][:rank])
    part = slice(start, start + PARTS[world][rank])
    group = distributed.group.WORLD
    results = {name: train(config, part, group) for name, config in CONFIGS.items()}
    results["wrapped"] = train(CONFIGS["rate"], part, group, wrapped=True)
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.barrier()  # or a peer that ends first takes its connection with it
    distributed.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    """What each rank saw; a deadlock would end in gloo's timeout, and long before in the suite's."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (request.param, str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("name", [*CONFIGS, "wrapped"])
def test_ranks_move_as_one_process_with_the_whole_batch_does(ranks, name):
    for step, (stats, values, gradients) in enumerate(train(CONFIGS.get(name, CONFIGS["rate"]))):
        for rank in ranks:
            own, own_values, own_gradients = rank[name][step]
            for key in ("loss", "gate_rate", "price"):
                assert own[key] == pytest.approx(stats[key], abs=1e-6)
            torch.testing.assert_close(own_values, values, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(own_gradients, gradients, atol=1e-6, rtol=1e-4)
            assert all(torch.equal(a, b) for a, b in zip(own_values, ranks[0][name][step][1], strict=True))
        kept = sum(rank[name][step][0]["backward_rows"] for rank in ranks)
        assert kept == stats["backward_rows"]


def test_the_batches_leave_some_ranks_with_nothing_and_then_all(ranks):
    kept = [[rank["price"][step][0]["backward_rows"] for rank in ranks] for step in range(STEPS)]
    assert kept[1][0] > 0
    assert not any(kept[1][1:])
    assert not any(kept[2])
    assert len(set(kept[0])) > 1
