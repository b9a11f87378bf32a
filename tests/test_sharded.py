"""Models split by `fully_shard`, and processes unlike each other, over gloo: against one process with all rows."""

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from kondo import KondoGate, KondoGateConfig, KondoTrainer
from kondo.parallel import sum_gradients
from tests.test_parallel import B, T, batches
from tests.test_trainer import Model

PARTS = {2: [B, 0], 3: [6, 0, 6]}  # rows of each rank: one has none
CONFIGS = {"rate": KondoGateConfig(gate_rate=0.25), "price": KondoGateConfig(gate_rate=None, price=0.0)}
MICRO = 2 * T


class Deep(Model):
    """The small model with a layer more."""

    def __init__(self):
        super().__init__()
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Tanh())

    def forward(self, input_ids, attention_mask=None):
        output = super().forward(input_ids, attention_mask)
        output.logits = self.head(self.middle(self.embed(input_ids))) + output.logits
        return output


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x.clone()


def train(config, part=slice(None), group=None, split=False, accumulate=1):
    torch.manual_seed(0)
    model = Deep()
    if split:
        fully_shard(model.middle)
        fully_shard(model)
    trainer = KondoTrainer(
        model,
        gate=KondoGate(config, group),
        lr=0.01,
        group=group,
        micro_tokens=MICRO,
        max_grad_norm=0.02,
        accumulate=accumulate,
    )
    seen = []
    for batch in batches():
        stats = trainer.step(*(x[part] for x in batch))
        seen.append((stats, [whole(p.detach()) for p in model.parameters()]))
    stats = trainer.finish()
    seen.append((stats, [whole(p.detach()) for p in model.parameters()]))
    return seen


def refusals(rank, group):
    """What is said of processes that would drift apart."""
    said = []
    torch.manual_seed(rank)
    model = Model()
    different = KondoTrainer(model, price=0.0, group=group)
    for make in (
        lambda: different.step(*batches()[0]),
        lambda: KondoTrainer(DistributedDataParallel(Model())),
        lambda: KondoTrainer(fully_shard(Model())),
    ):
        try:
            make()
        except ValueError as error:
            said.append(str(error))
    return said


def mixed(rank, group):
    """Gradients of parameters in different types, one of which only rank 0 has."""
    parameters = [nn.Parameter(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.bfloat16, torch.float32)]
    parameters[0].grad = torch.ones(2) * (rank + 1)
    if rank == 0:
        parameters[1].grad = torch.ones(2, dtype=torch.bfloat16)
    sum_gradients(parameters, group)
    return [None if p.grad is None else p.grad.clone() for p in parameters]


def worker(rank, world, folder):
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", world)
    distributed.init_process_group("gloo", rank=rank, world_size=world, store=store)
    start = sum(PARTS[world][:rank])
    part, group = slice(start, start + PARTS[world][rank]), distributed.group.WORLD
    results = {(name, split): train(config, part, group, split) for name, config in CONFIGS.items() for split in (0, 1)}
    results["accumulated"] = train(CONFIGS["price"], part, group, True, accumulate=2)
    results["said"], results["mixed"] = refusals(rank, group), mixed(rank, group)
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.barrier()  # or a peer that ends first takes its connection with it
    distributed.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (request.param, str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def alike(ranks, name, expected):
    for step, (stats, values) in enumerate(expected):
        for rank in ranks:
            own, own_values = rank[name][step]
            for key in ("loss", "gate_rate", "price", "grad_norm"):
                assert own.get(key) == pytest.approx(stats.get(key), abs=1e-6)
            torch.testing.assert_close(own_values, values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_split_models_and_ranks_without_rows_move_as_one_process_with_the_whole_batch_does(ranks, name, split):
    expected = train(CONFIGS[name])
    alike(ranks, (name, split), expected)
    assert expected[0][0]["grad_norm"] > 0.02  # clipped
    assert expected[0][0]["backward_rows"] > 2  # several packs, and none in a rank without rows


def test_split_models_accumulate_as_one_process_does(ranks):
    alike(ranks, "accumulated", train(CONFIGS["price"], accumulate=2))


def test_processes_that_would_drift_apart_are_refused(ranks):
    for rank in ranks:
        different, wrapped, split = rank["said"]
        assert "do not begin with the same weights" in different
        assert "give group=torch.distributed.group.WORLD" in wrapped
        assert "give group=torch.distributed.group.WORLD" in split


def test_gradients_of_different_types_are_added_up_each_in_its_own(ranks):
    count = len(ranks)
    for rank in ranks:
        first, second, third = rank["mixed"]
        assert torch.equal(first, torch.full((2,), float(sum(range(1, count + 1)))))
        assert torch.equal(second, torch.ones(2, dtype=torch.bfloat16))
        assert third is None
