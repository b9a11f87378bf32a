"""The gate on the scale of language models: what has no gradient, small surprisals, coins without bias, diagnostics."""

import threading

import pytest
import torch

from kondo import KondoGate, KondoTrainer, gate
from kondo.gate import GateSettings
from tests.test_trainer import Model, V

ADVANTAGES = torch.tensor([0.0, -1.0, 2.0, 0.0, -3.0, 0.0, 0.0, -0.5])
LOG_PROBS = -torch.tensor([1.0, 0.5, 2.0, 3.0, 0.1, 0.7, 1.5, 0.2])


class Ranks:
    """A group of threads that exchange tensors as the processes of a data-parallel run do."""

    def __init__(self, sizes):
        self.sizes, self.barrier, self.given = sizes, threading.Barrier(len(sizes)), [None] * len(sizes)
        self.own = threading.local()

    def exchange(self, value):
        self.given[self.own.rank] = value
        self.barrier.wait()
        everyone = list(self.given)
        self.barrier.wait()
        return everyone

    def gathered(self, parts, group):
        every = self.exchange(parts)
        start = sum(each[0].shape[-1] for each in every[: self.own.rank])
        whole = [torch.cat(part, -1) for part in zip(*every, strict=True)]
        return whole, slice(start, start + parts[0].shape[-1])

    def summed(self, value, group):
        return sum(self.exchange(value.clone()))

    def run(self, monkeypatch, work):
        """What work(part of the batch) gives on every rank."""
        monkeypatch.setattr(gate, "gathered", self.gathered)
        monkeypatch.setattr(gate, "summed", self.summed, raising=False)
        results = [None] * len(self.sizes)

        def rank(number):
            self.own.rank, start = number, sum(self.sizes[:number])
            results[number] = work(slice(start, start + self.sizes[number]))

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(self.sizes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


# What has no advantage has no gradient


@pytest.mark.parametrize("mode", ["hard", "soft", "bernoulli"])
def test_a_row_without_advantage_is_never_kept_and_its_place_goes_to_no_other(mode):
    settings = GateSettings(rate=0.5, mode=mode, temperature=1e-4 if mode == "bernoulli" else 1.0)
    rule = KondoGate(settings).compute_gate(LOG_PROBS, ADVANTAGES)
    output, weights = KondoGate(settings).decide(LOG_PROBS, ADVANTAGES)
    zero = ADVANTAGES == 0
    assert rule.keep[zero].any()
    assert not output.keep[zero].any()
    assert not weights[zero].any()
    assert torch.equal(output.gate_weights[~zero], rule.gate_weights[~zero])
    assert output.price == rule.price
    assert output.zero_advantage.item() == 4
    kept = output.gate_weights if mode == "soft" else output.keep
    assert output.actual_gate_rate.item() == pytest.approx(kept.sum().item() / 8)


def test_computing_the_gate_keeps_the_papers_k_even_without_advantage():
    gate = KondoGate(GateSettings(rate=0.5))
    for output in (gate.compute_gate(LOG_PROBS, ADVANTAGES), gate.decision(LOG_PROBS, ADVANTAGES)[0]):
        assert output.keep.tolist() == [True, False, True, True, False, True, False, False]
        assert output.zero_advantage is None


def test_a_sequence_has_no_advantage_if_none_of_its_own_tokens_has():
    advantages = torch.tensor([[0.0, 0.0, 9.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0]])
    output, weights = KondoGate(GateSettings(rate=1.0)).decide(-torch.ones(4, 3), advantages, mask)
    assert output.keep.tolist() == [False, True, False, False]
    assert weights.tolist() == [[0.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3]
    assert output.zero_advantage.item() == 2  # the last does not exist
    tokens, _ = KondoGate(GateSettings(rate=1.0, unit="token")).decide(-torch.ones(4, 3), advantages, mask)
    assert tokens.keep.tolist() == [[False] * 3, [False, True, False], [False] * 3, [False] * 3]
    assert tokens.zero_advantage.item() == 7
    unmasked, _ = KondoGate(GateSettings(rate=1.0, unit="sequence")).decide(-torch.ones(4, 3), advantages)
    assert unmasked.keep.tolist() == [True, True, False, True]


def test_a_batch_that_would_keep_rows_without_advantage_alone_kept_nothing_and_the_best_other_is_fed():
    gate = KondoGate(GateSettings(rate=0.25, max_consecutive_drops=1))
    advantages = torch.where(ADVANTAGES > 0, 0.0, ADVANTAGES)
    kept = [gate.decide(LOG_PROBS, advantages)[0].keep.nonzero().flatten().tolist() for _ in range(3)]
    assert kept == [[], [7], []]


def test_a_step_leaves_rows_without_advantage_out_of_the_graph_and_has_the_same_gradient():
    ids, actions = torch.randint(V, (8, 5)), torch.randint(V, (8, 5))
    model = Model()
    trainer = KondoTrainer(model, gate_rate=1.0, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    stats = trainer.step(ids, actions, ADVANTAGES)
    assert stats["backward_rows"] == 4
    assert stats["gate_rate"] == 0.5
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    log_probs = model(ids).logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    (-(ADVANTAGES.unsqueeze(-1) * log_probs).sum() / 40).backward()
    torch.testing.assert_close(ours, [p.grad for p in model.parameters()])
    screened = trainer.gate.screen(model, ids, actions, ADVANTAGES)
    assert screened.keep.any(-1).tolist() == (ADVANTAGES != 0).tolist()
    assert trainer.gate(model(ids).logits, actions, ADVANTAGES).zero_advantage.item() == 20


def test_ranks_count_and_skip_rows_without_advantage_as_one_process_does(monkeypatch):
    settings = GateSettings(rate=0.6, max_consecutive_drops=3)
    whole, _ = KondoGate(settings).decide(LOG_PROBS, ADVANTAGES)
    ranks = Ranks([3, 1, 4])
    parts = ranks.run(monkeypatch, lambda own: KondoGate(settings, ranks).decide(LOG_PROBS[own], ADVANTAGES[own])[0])
    assert torch.equal(torch.cat([part.keep for part in parts]), whole.keep)
    for part in parts:
        assert (part.zero_advantage, part.actual_gate_rate) == (whole.zero_advantage, whole.actual_gate_rate)
    assert whole.zero_advantage.item() == 4
