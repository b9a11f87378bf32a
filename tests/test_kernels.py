"""Kernels against plain torch: the switch, the first layer, the tree and its attention, and whole training runs."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from kondo.lab import kernels
from kondo.lab.config.cell import gated, parse
from kondo.lab.engine import Engine
from kondo.lab.kernels import attention, decoder, first_layer
from kondo.lab.kernels.tree import Tree
from kondo.lab.policies.mlp import MLP, views
from kondo.lab.policies.rows import Rows
from kondo.lab.policies.transformer import Transformer
from kondo.lab.streams import Streams
from kondo.lab.tasks import data
from kondo.objectives import METHODS
from kondo.signals import taken
from tests.conftest import trained


@pytest.fixture(autouse=True)
def switch(monkeypatch):
    """Kernels are on, whatever the environment says; switch("off") turns them off."""
    monkeypatch.setenv(kernels.SWITCH, "on")
    return lambda to: monkeypatch.setenv(kernels.SWITCH, to)


# The switch


def test_kernels_stand_in_for_plain_torch_on_32_bit_floats_on_a_cpu_alone(switch):
    assert kernels.enabled(torch.zeros(1)), "numba is missing"
    assert not kernels.enabled(torch.zeros(1, dtype=torch.bfloat16))
    assert not kernels.enabled(torch.zeros(1, dtype=torch.float64))
    assert not kernels.enabled(torch.zeros(1, device="meta"))
    switch("off")
    assert not kernels.enabled(torch.zeros(1))


def test_a_switch_that_is_neither_on_nor_off_is_refused(switch):
    switch("of")
    with pytest.raises(ValueError, match="KONDO_KERNELS='of': allowed: on, off, shared"):
        kernels.enabled(torch.zeros(1))


def test_without_numba_there_are_no_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    kernels.installed.cache_clear()
    try:
        assert not kernels.enabled(torch.zeros(1))
    finally:
        kernels.installed.cache_clear()


@pytest.mark.slow
def test_on_another_device_policies_run_there_in_plain_torch():
    """torch's meta device has shapes and no numbers: it refuses a tensor that was left on the CPU, and to be read."""
    streams = Streams([0, 1], "meta")
    policy = Transformer(vocab=3, prompt=5, answer=4, samples=2, width=16, heads=2, ff=32)
    parameters = views(policy.init(streams), policy.shapes())
    prompts = streams.below(3, "context", 0, (6, 5))
    actions, log_policy = policy.sample(parameters, prompts, streams, 0)
    assert (actions.device.type, actions.shape, log_policy.shape) == ("meta", (2, 12, 4), (2, 12, 4, 3))
    assert policy.log_policy(parameters, prompts, actions).shape == (2, 12, 4, 3)

    mlp = MLP((8, 5, 3), Rows(torch.zeros(20, 8, dtype=torch.uint8, device="meta"), 1 / 16))
    parameters = views(mlp.init(streams), mlp.shapes())
    actions, log_policy = mlp.sample(parameters, streams.below(20, "context", 0, (7,)), streams, 0)
    assert (actions.device.type, log_policy.shape) == ("meta", (2, 7, 3))


# The first layer


def images(rows=40, columns=30):
    """A table of which a fifth is not zero, one row and one column wholly zero, one row full."""
    generator = np.random.default_rng(0)
    table = generator.integers(1, 256, (rows, columns)) * (generator.random((rows, columns)) < 0.2)
    table[3], table[:, 7], table[5] = 0, 0, 255
    return Rows(torch.from_numpy(table.astype(np.uint8)), 1 / 255)


@pytest.mark.parametrize("width", [1, 7, 16, 100])
@pytest.mark.parametrize("chosen", [40, 3, 0], ids=["a batch", "survivors", "none"])
def test_the_first_layer_and_its_gradient_are_those_of_a_matmul(width, chosen, switch):
    rows, generator = images(), torch.Generator().manual_seed(width)
    assert rows.sparse is not None
    assert set(np.diff(rows.sparse.first) % 4) == {0, 1, 2, 3}  # every remainder of the loop over four entries
    index = torch.stack([torch.randperm(40, generator=generator)[:chosen] for _ in range(3)])
    index[:, -2:] = 5  # padding: the same row again
    weight, bias = torch.randn(3, 30, width, generator=generator), torch.randn(3, 1, width, generator=generator)
    leaves = [x.clone().requires_grad_() for x in (weight, bias)]
    up = torch.randn(3, chosen, width, generator=generator)
    found = []
    for to in ("on", "off"):
        switch(to)
        out = rows.linear(index, *leaves)
        found.append((out, *torch.autograd.grad(out, leaves, up)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    switch("on")
    assert torch.equal(rows.linear(index[1:2], weight[1:2], bias[1:2])[0], found[0][0][1])  # no seed feels its block


def test_the_first_layer_takes_indices_and_weights_in_any_layout():
    rows = images()
    weight, bias = torch.randn(2, 30, 5), torch.randn(2, 1, 5)
    index = torch.arange(40).expand(2, -1)
    expected = rows.linear(index.contiguous(), weight, bias)
    assert torch.equal(rows.linear(index, weight.mT.contiguous().mT, bias.mT.contiguous().mT), expected)


def test_a_table_with_few_zeros_is_left_to_a_matmul():
    assert Rows(torch.ones(4, 4, dtype=torch.uint8), 1.0).sparse is None


# The tree


def prefixes(sequences):
    """How many there are of each length."""
    return [len({tuple(row[: n + 1]) for row in sequences.tolist()}) for n in range(sequences.shape[-1])]


@pytest.mark.parametrize("vocab", [2, 5])
def test_a_tree_has_a_node_for_every_prefix_and_the_path_to_it(vocab):
    generator = torch.Generator().manual_seed(vocab)
    sequences = torch.randint(vocab, (3, 40, 7), generator=generator)
    sequences[1, 10:] = sequences[1, 3]  # one seed has far fewer nodes
    tree = Tree(vocab, 7)
    tree.grow(sequences[:, ::2, :4].contiguous())
    tree.repeat(2)
    sequences[:, 1::2, :4] = sequences[:, ::2, :4]
    counts = [prefixes(each) for each in sequences]
    assert tree.sizes == [max(each) for each in zip(*counts, strict=True)][:4]
    first, tokens = tree.nodes, [tree.tokens]
    tree.grow(sequences[..., 4:])
    tokens = torch.cat([*tokens, tree.tokens], dim=1)
    assert tree.sizes == [max(each) for each in zip(*counts, strict=True)][4:]
    assert (tree.first, tree.nodes, tree.places) == (first, first + sum(tree.sizes), 7)
    start = [sum(tree.sizes[:i]) for i in range(3)]
    assert tree.depth.tolist() == [5] * tree.sizes[0] + [6] * tree.sizes[1] + [7] * tree.sizes[2]
    for seed in range(3):
        for row in range(40):
            for k in range(3):
                path = tree.path[seed, start[k] + tree.at[seed, row, k], : 5 + k]
                assert torch.equal(tokens[seed, path], sequences[seed, row, : 5 + k])


def test_from_a_given_place_on_no_two_sequences_of_a_tree_share_a_node():
    tree = Tree(2, 4, apart=2)
    tree.grow(torch.zeros(1, 6, 4, dtype=torch.long))
    assert tree.sizes == [1, 1, 6, 6]
    assert tree.at[0, :, 2:].tolist() == [[row, row] for row in range(6)]


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(IndexError, match="vocabulary"):
        Tree(3, 2).grow(torch.tensor([[[0, 1], [2, token]]]))


def along_paths(qkv, first, path, depth):
    """Attention in plain torch: every node's path is gathered."""
    (_, nodes, length), seed = path.shape, torch.arange(len(path)).view(-1, 1, 1)
    query, key, value = qkv.unbind(2)
    key, value = key[seed, path], value[seed, path]  # [S, n, L, h, e]
    score = (query[:, first : first + nodes].unsqueeze(2) * key).sum(-1)
    hidden = torch.arange(length) >= depth.unsqueeze(-1)  # [n, L]
    share = score.masked_fill(hidden.unsqueeze(-1), -torch.inf).softmax(dim=2)
    return (share.unsqueeze(-1) * value).sum(2)


@pytest.mark.parametrize(("heads", "size"), [(4, 16), (4, 4), (2, 5), (1, 37)])
def test_attention_along_paths_and_its_gradient_are_those_of_double_precision(heads, size):
    generator = torch.Generator().manual_seed(size)
    tree = Tree(2, 20)
    tree.grow(torch.randint(2, (2, 9, 20), generator=generator))
    first = sum(tree.sizes[:3])
    path, depth = tree.path[:, first:].contiguous(), tree.depth[first:]
    qkv = torch.randn(2, tree.nodes + 4, 3, heads, size, generator=generator)  # and room for more
    up = torch.randn(2, tree.nodes - first, heads, size, generator=generator)
    found = []
    for attend, dtype in ((attention.attend, torch.float32), (along_paths, torch.float64)):
        x = qkv.detach().to(dtype).requires_grad_()
        out = attend(x, first, path, depth)
        found.append((out.double(), torch.autograd.grad(out, x, up.to(dtype))[0].double()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


# The transformer on a tree


POLICY = Transformer(vocab=5, prompt=6, answer=6, samples=3, width=16, heads=2, ff=32)
SHAPES = {
    "several seeds": (POLICY, [3, 0, 8], 4),
    "one seed": (POLICY, [0], 4),
    "an answer per prompt": (replace(POLICY, samples=1), [3, 0], 7),
    "one prompt": (replace(POLICY, samples=10), [3, 0], 1),
    "two letters, many alike": (replace(POLICY, vocab=2, samples=10), [3, 0], 10),
    "one layer": (replace(POLICY, layers=1), [3, 0], 4),
    "as in the paper": (Transformer(vocab=2, prompt=10, answer=10, samples=10), [1], 10),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_tree_the_transformer_samples_the_same_answers_with_the_same_probabilities(shape, switch):
    policy, seeds, prompts = SHAPES[shape]
    streams = Streams(seeds)
    parameters = views(policy.init(streams), policy.shapes())
    inputs = streams.below(policy.vocab, "context", 0, (prompts, policy.prompt))
    actions, log_policy = policy.sample(parameters, inputs, streams, 0)
    switch("off")
    plain, plain_log_policy = policy.sample(parameters, inputs, streams, 0)
    assert torch.equal(actions, plain)
    torch.testing.assert_close(log_policy, plain_log_policy, atol=2e-5, rtol=0)


@pytest.mark.parametrize("survivors", [False, True], ids=["a batch", "survivors"])
@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_tree_the_transformer_has_the_same_log_policy_and_gradients(shape, survivors, switch):
    """To rounding: gradients within 1e-4 of the largest of their parameter."""
    policy, seeds, prompts = SHAPES[shape]
    streams = Streams(seeds)
    parameters = views(policy.init(streams), policy.shapes())
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    inputs = streams.below(policy.vocab, "context", 0, (prompts, policy.prompt))
    actions = policy.sample(parameters, inputs, streams, 0)[0]
    if survivors:  # some rows with their prompts, padded with one of them
        index = streams.below(actions.shape[1], "survivors", 0, (4,))
        index[:, 3] = index[:, 0]
        seed = torch.arange(len(seeds)).unsqueeze(-1)
        inputs, actions = inputs[seed, index // policy.samples], actions[seed, index]
    up = streams.normal("up", 0, (*actions.shape[1:], policy.vocab))
    found = []
    for to in ("on", "shared", "off"):
        switch(to)
        log_policy = policy.log_policy(leaves, inputs, actions)
        with torch.no_grad():
            torch.testing.assert_close(policy.log_policy(leaves, inputs, actions), log_policy, atol=2e-5, rtol=0)
        found.append((log_policy, torch.autograd.grad(log_policy, list(leaves.values()), up)))
    plain = found.pop()
    for log_policy, gradients in found:
        torch.testing.assert_close(log_policy, plain[0], atol=2e-5, rtol=0)
        for one, other in zip(gradients, plain[1], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4 * other.abs().max().item(), rtol=0)


def test_what_sequences_begin_with_in_common_goes_through_the_model_once(monkeypatch, switch):
    policy, seeds, _ = SHAPES["several seeds"]
    streams = Streams(seeds)
    parameters = views(policy.init(streams), policy.shapes())
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    prompts = streams.below(5, "context", 0, (4, 6))
    seen = []
    plain = decoder.layer_norm
    monkeypatch.setattr(decoder, "layer_norm", lambda x, shape: seen.append(x.shape[1]) or plain(x, shape))
    actions, _ = policy.sample(parameters, prompts, streams, 1)
    begun = torch.cat([prompts.repeat_interleave(3, dim=1), actions[..., :-1]], dim=-1)
    nodes = [max(each) for each in zip(*map(prefixes, begun), strict=True)]
    passes = [[sum(nodes[:6])] * 5 + [nodes[5]], *([n] * 6 for n in nodes[6:])]  # twice a layer
    assert seen == [n for one in passes for n in one]
    assert sum(nodes) < 4 * 6 + 12 * 5
    seen.clear()
    with torch.no_grad():
        policy.log_policy(leaves, prompts, actions)
    assert seen == [sum(nodes)] * 5 + [sum(nodes[5:])]
    seen.clear()
    policy.log_policy(leaves, prompts, actions)  # in a graph, only prompts
    assert seen == [sum(nodes[:6]) + 12 * 5] * 5 + [nodes[5] + 12 * 5]
    seen.clear()
    switch("shared")  # unless asked for
    policy.log_policy(leaves, prompts, actions)
    assert seen == [sum(nodes)] * 5 + [sum(nodes[5:])]


# Whole training runs


DIGITS = {"name": "mnist", "dataset": "digits"}
REVERSAL = {"name": "reversal", "length": 3, "width": 16, "prompts": 2, "evaluated": 20}  # conf/task/reversal_small


@pytest.fixture
def sparse_digits(monkeypatch):
    """Half of the pixels of `digits` are not zero: to have the kernel used on them the threshold must go."""
    monkeypatch.setattr(first_layer, "SPARSE", 1.0)
    data.load.cache_clear()
    yield
    data.load.cache_clear()


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("task", [DIGITS, REVERSAL], ids=["digits", "reversal_small"])
def test_training_with_and_without_kernels_is_the_same_to_rounding(task, method, switch, sparse_digits, monkeypatch):
    """After 20 steps of gradient descent, to a tenth or less of the way: a ReLU near 0 may be on in one and off in the
    other. (Adam turns rounding in a gradient near 0 into a step of its own size; soon another answer is drawn.)"""
    used = []
    for owner, name in ((first_layer.SparseTable, "linear"), (decoder, "sample"), (decoder, "log_policy")):
        kernel = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, kernel=kernel, name=name: used.append(name) or kernel(*args))
    gate = {"rate": 0.2} if gated(method) else None
    plain = {"task": task, "method": {"name": method}, "gate": gate, "steps": 20, "evals": 3}
    chosen = parse(plain | {"optimizer": {"name": "sgd", "lr": 0.02}})
    fast, start = trained(chosen, [4, 0, 9]), Engine(chosen, [4, 0, 9]).learner.flat
    assert set(used) == ({"linear"} if task is DIGITS else {"sample", "log_policy"})
    used.clear()
    switch("off")
    slow = trained(chosen, [4, 0, 9])
    assert not used
    assert (fast.learner.flat - start).abs().max() > 1e-3
    torch.testing.assert_close(fast.learner.flat, slow.learner.flat, atol=1e-4, rtol=0)
    for name, count in fast.ledger.counts.items():
        assert torch.equal(count, slow.ledger.counts[name])
    for one, other in zip(fast.evaluate(), slow.evaluate(), strict=True):
        for column in one.keys() - {name for name in one if name.startswith("seconds")}:
            assert one[column] == pytest.approx(other[column], abs=1e-4), column


def test_the_switch_is_no_part_of_a_cell_s_identity_and_a_run_goes_on_with_the_other(switch):
    plain = {"task": REVERSAL, "method": {"name": "dg"}, "gate": None, "steps": 20, "evals": 3}
    plain["optimizer"] = {"name": "sgd", "lr": 0.02}
    first = trained(parse(plain), [0, 1], steps=10)
    switch("off")
    assert parse(plain).key() == first.cell.key()
    second = Engine(parse(plain), [0, 1])
    second.load(first.state())
    while second.step < 20:
        second.advance()
    straight = trained(parse(plain), [0, 1])
    torch.testing.assert_close(second.learner.flat, straight.learner.flat, atol=1e-4, rtol=0)


def test_gathered_rows_of_a_taken_action_have_the_probability_they_were_drawn_with():
    policy, seeds, prompts = SHAPES["two letters, many alike"]
    streams = Streams(seeds)
    parameters = views(policy.init(streams), policy.shapes())
    inputs = streams.below(policy.vocab, "context", 0, (prompts, policy.prompt))
    actions, log_policy = policy.sample(parameters, inputs, streams, 0)
    again = taken(policy.log_policy(parameters, inputs[:, 3:4], actions[:, 30:40]), actions[:, 30:40])
    torch.testing.assert_close(again, taken(log_policy, actions)[:, 30:40], atol=1e-5, rtol=0)
