"""The gate on the scale of language models: what has no gradient, small surprisals, coins without bias, diagnostics."""

import itertools
import math
import tarfile
import threading
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import kondo
from kondo import KondoGate, KondoTrainer, dg_loss, diagnostics, gate
from kondo.gate import GateSettings
from kondo.lab.config.cell import parse
from kondo.pricing import KondoGateOutput
from kondo.schema import ConfigError
from kondo.signals import dg_weight
from tests.conftest import cell
from tests.test_trainer import Model, V

NAN, INF = math.nan, math.inf

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


# A scale of the model's own


def streams(count=4, rows=6, tokens=5):
    """Batches of little surprisal, some of it masked, infinite or NaN."""
    torch.manual_seed(3)
    made = []
    for step in range(count):
        log_probs = -torch.rand(rows, tokens, dtype=torch.float64) * 0.1 * (step + 1)
        mask = (torch.rand(rows, tokens) < 0.8).long()
        mask[:, 0] = 1
        log_probs[mask == 0] = -77.0  # what padding holds must not matter
        log_probs[0, 0], log_probs[1, 0] = -INF, NAN
        made.append((log_probs, torch.randn(rows, dtype=torch.float64), mask))
    return made


def known(batch):
    """The surprisals that count, as a list of numbers."""
    log_probs, _, mask = batch
    return [-x for x, m in zip(log_probs.flatten().tolist(), mask.flatten().tolist(), strict=True) if m and x > -INF]


def running(batches, decay, power):
    """The exponential mean of a power of the surprisals, in plain Python."""
    mean = None
    for batch in batches:
        own = sum(x**power for x in known(batch)) / len(known(batch))
        mean = own if mean is None else decay * mean + (1 - decay) * own
    return mean


def test_a_surprisal_scale_divides_by_the_running_root_mean_square_of_what_exists_and_is_finite():
    gate = KondoGate(GateSettings(price=0.3, mode="soft", temperature=0.5, scale="surprisal", scale_decay=0.7))
    batches = streams()
    for step, (log_probs, advantages, mask) in enumerate(batches):
        spread = math.sqrt(running(batches[: step + 1], 0.7, 2))
        output, _ = gate.decide(log_probs, advantages, mask)
        for row in range(2, 6):
            own = [-x for x, m in zip(log_probs[row].tolist(), mask[row].tolist(), strict=True) if m]
            chi = advantages[row].item() * sum(own) / len(own) / spread
            assert output.delight[row].item() == pytest.approx(chi)
            assert output.gate_weights[row].item() == pytest.approx(1 / (1 + math.exp(-(chi - 0.3) / 0.5)))
        assert not output.keep[:2].any()
    assert gate.moments.tolist() == pytest.approx([running(batches, 0.7, 1), running(batches, 0.7, 2)])


def test_scaled_surprisal_does_not_know_the_model_s_own_scale():
    """A model that is a thousand times surer, and its gate with the same price, keep the same."""
    log_probs, advantages = -torch.rand(50), torch.randn(50)
    gates = [KondoGate(GateSettings(price=0.8, scale="surprisal")) for _ in range(2)]
    plain = KondoGate(GateSettings(price=0.8))
    for _ in range(3):
        one, other = (gate.compute_gate(log_probs * by, advantages) for gate, by in zip(gates, (1, 1e-3), strict=True))
        assert torch.equal(one.keep, other.keep)
        assert one.keep.any()
        assert not plain.compute_gate(log_probs * 1e-3, advantages).keep.any()


def test_delight_from_elsewhere_and_other_priorities_are_of_scaled_surprisal_too():
    log_probs, advantages = -torch.rand(3, 8) - 0.1, torch.randn(3, 8)
    root = log_probs.square().mean(1, keepdim=True).sqrt()  # each pool by itself
    given = KondoGate(GateSettings(price=0.0, scale="surprisal")).compute_gate(
        log_probs, advantages, torch.full((3, 8), 2.0), pools=1
    )
    torch.testing.assert_close(given.delight, (2 / root).expand(3, 8))
    mixed = KondoGate(GateSettings(price=0.2, mode="soft", priority="additive", alpha=0.3, scale="surprisal"))
    rank = 0.3 * advantages - 0.7 * log_probs / root
    torch.testing.assert_close(
        mixed.compute_gate(log_probs, advantages, pools=1).gate_probs, torch.sigmoid((rank - 0.2) / 0.1)
    )


@pytest.mark.parametrize("mode", ["soft", "bernoulli"])
def test_a_delight_scale_measures_the_temperature_in_deviations_of_delight(mode):
    settings = GateSettings(rate=0.3, mode=mode, temperature=0.7, scale="delight", scale_decay=0.6)
    gate, means = KondoGate(settings), None
    for log_probs, advantages, mask in streams():
        output, _ = gate.decide(log_probs, advantages, mask)
        chi = output.delight[2:].numpy()  # the first two rows are not finite
        own = np.array([chi.mean(), (chi**2).mean()])
        means = own if means is None else 0.6 * means + 0.4 * own
        spread = math.sqrt(means[1] - means[0] ** 2)
        expected = 1 / (1 + np.exp(-(chi - output.price.item()) / (0.7 * spread)))
        np.testing.assert_allclose(output.gate_probs[2:].numpy(), expected)
    coin = torch.rand(1, 6)
    tossed = KondoGate(settings).compute_gate(-torch.rand(1, 6), torch.randn(1, 6), pools=1, draw=lambda *_: coin)
    if mode == "bernoulli":
        assert torch.equal(tossed.keep, coin < tossed.gate_probs)


def test_a_whitened_coin_reaches_a_low_rate_where_one_of_temperature_one_cannot():
    log_probs, advantages = -torch.rand(1000) * 0.12, torch.randn(1000)
    rates = [
        KondoGate(GateSettings(rate=0.03, mode="bernoulli", temperature=0.1, scale=scale))
        .compute_gate(log_probs, advantages)
        .gate_probs.mean()
        for scale in ("none", "delight")
    ]
    assert rates[0] > 0.2
    assert rates[1] < 0.06
    paid = GateSettings(rate=0.03, mode="soft", temperature=1.0, calibrated=True, scale="delight")
    output = KondoGate(paid).compute_gate(log_probs, advantages)
    assert output.gate_probs.mean().item() == pytest.approx(0.03, abs=1e-5)


@pytest.mark.parametrize("scale", ["surprisal", "delight"])
def test_without_any_spread_the_scale_is_one_and_an_empty_batch_changes_nothing(scale):
    settings = GateSettings(price=0.0, mode="soft", temperature=1.0, scale=scale)
    gate = KondoGate(settings)
    gate.decide(torch.full((2, 3), NAN), torch.ones(2), torch.ones(2, 3))
    assert gate.moments.isnan().all()
    flat = torch.zeros(2, 3) if scale == "surprisal" else torch.full((2, 3), -0.3)
    output, _ = gate.decide(flat, torch.ones(2), torch.ones(2, 3))
    chi = 0.0 if scale == "surprisal" else 0.3
    torch.testing.assert_close(output.delight, torch.full((2,), chi))
    if scale == "delight":
        torch.testing.assert_close(output.gate_probs, torch.sigmoid(torch.full((2,), 0.3)))
    before = gate.moments.clone()
    gate.decide(torch.full((2, 3), NAN), torch.ones(2), torch.ones(2, 3))
    assert torch.equal(gate.moments, before)
    with pytest.raises(ValueError, match="moments are of"):
        gate.compute_gate(-torch.rand(4, 3), torch.rand(4, 3), pools=1)


def test_equal_delights_have_no_spread_though_rounding_gives_them_one():
    chi = torch.full((3,), 0.7, dtype=torch.float64)
    gate = KondoGate(GateSettings(price=0.0, mode="soft", temperature=1.0, scale="delight"))
    torch.testing.assert_close(gate.compute_gate(-chi, torch.ones_like(chi)).gate_probs, torch.sigmoid(chi))
    assert gate.moments[1] > gate.moments[0] ** 2


@pytest.mark.parametrize("scale", ["surprisal", "delight"])
def test_a_scale_goes_with_the_state_dict_and_asking_does_not_move_it(scale):
    settings = GateSettings(price=0.1, mode="soft", scale=scale, scale_decay=0.5)
    gate, other, fresh = (KondoGate(settings) for _ in range(3))
    *first, last = streams(3)
    for batch in first:
        gate.decide(*batch)
    other.load_state_dict(gate.state_dict())
    assert set(gate.state_dict()) == {"moments"}
    flat = -torch.rand(6, dtype=torch.float64), last[1]
    asked, state = other.decision(*flat)
    assert torch.equal(other.moments, gate.moments)
    assert not torch.equal(state.moments, gate.moments)
    went_on = gate.compute_gate(*flat)
    assert torch.equal(asked.gate_weights, went_on.gate_weights)
    assert not torch.equal(fresh.compute_gate(*flat).gate_weights, went_on.gate_weights)


@pytest.mark.parametrize("scale", ["surprisal", "delight"])
def test_ranks_agree_on_the_spread_of_all_their_units(monkeypatch, scale):
    settings = GateSettings(price=0.1, mode="soft", temperature=1.0, scale=scale, scale_decay=0.5)
    batches, whole, ranks = streams(), KondoGate(settings), Ranks([1, 3, 2])

    def decided(gate, own=slice(None)):
        return [gate.decide(*(x[own] for x in batch))[0].gate_weights for batch in batches], gate.moments

    expected, moments = decided(whole)
    parts = ranks.run(monkeypatch, lambda own: decided(KondoGate(settings, ranks), own))
    for step, weights in enumerate(expected):
        torch.testing.assert_close(torch.cat([part[0][step] for part in parts]), weights)
    for part in parts:
        torch.testing.assert_close(part[1], moments)
        assert torch.equal(part[1], parts[0][1])


def test_a_scale_that_cannot_be_or_has_no_effect_is_refused():
    with pytest.raises(ConfigError, match="scale=delight: of a gate that ranks by delight; got priority=surprisal"):
        KondoGate(GateSettings(rate=0.1, mode="soft", priority="surprisal", scale="delight"))
    for settings, words in (
        ({"rate": 0.1, "scale": "delight"}, "gate.scale=delight: has no effect with gate.mode=hard"),
        ({"rate": 0.1, "scale": "surprisal"}, "gate.scale=surprisal: has no effect with gate.mode=hard"),
        ({"rate": 0.1, "scale_decay": 0.5}, "gate.scale_decay=0.5: has no effect with gate.scale=none"),
    ):
        with pytest.raises(ConfigError, match=words):
            cell("dgk", settings)
    assert cell("dgk", {"price": 0.1, "scale": "surprisal"}).gate.scale == "surprisal"


def test_unit_gain_makes_the_weight_of_a_neutral_sample_one_and_doubles_every_other():
    logits, actions = torch.randn(9, 4, requires_grad=True), torch.randint(4, (9,))
    advantages = torch.cat([torch.zeros(1), torch.randn(8)])
    (half, weights), (loss, gains) = (
        dg_loss(logits, actions, advantages, 0.7, unit_gain=gain) for gain in (False, True)
    )
    assert gains[0] == 1
    chosen = logits.log_softmax(-1)[torch.arange(9), actions]
    torch.testing.assert_close(gains, 2 / (1 + torch.exp(advantages * chosen / 0.7)).detach())
    torch.testing.assert_close(loss, -(gains * advantages * chosen).mean())
    torch.testing.assert_close([loss, gains], [2 * half, 2 * weights])
    assert dg_weight(torch.zeros(2), unit_gain=True).tolist() == [1, 1]


# Coins without bias


def outcomes(chances):
    """Every way that coins of these chances can fall: numbers that fall so, and how likely it is."""
    for fallen in itertools.product((True, False), repeat=len(chances)):
        coins = [p / 2 if heads else (1 + p) / 2 for p, heads in zip(chances, fallen, strict=True)]
        yield coins, math.prod(p if heads else 1 - p for p, heads in zip(chances, fallen, strict=True))


def expected_weights(settings, log_probs, advantages, chances):
    """E[G] of each unit, summed over all outcomes of the coins, each a pool of its own."""
    ways = list(outcomes(chances))
    coins, likely = (torch.tensor(x, dtype=torch.float64) for x in zip(*ways, strict=True))
    shape = (len(ways), len(chances))
    output = KondoGate(settings).compute_gate(
        log_probs.expand(shape), advantages.expand(shape), pools=1, draw=lambda name, size: coins
    )
    assert likely.sum().item() == pytest.approx(1)
    return (likely.unsqueeze(-1) * output.gate_weights).sum(0), output


UNITS = (
    -torch.tensor([0.2, 2.0, 0.1, 1.0, 3.0, 0.4, 0.9], dtype=torch.float64),
    torch.tensor([1.0, -2.0, -0.3, 0.7, 1.5, 0.0, -0.1], dtype=torch.float64),
)


@pytest.mark.parametrize("scope", ["plain", "unbiased", "failures"])
@pytest.mark.parametrize(
    "gated",
    [
        {"price": 0.1, "mode": "bernoulli", "temperature": 0.3},
        {"price": 0.1, "mode": "hard"},
        {"rate": 0.3, "mode": "hard"},
    ],
)
def test_over_all_falls_of_its_coins_a_floor_has_no_bias_on_the_units_it_is_for(gated, scope):
    log_probs, advantages = UNITS
    chi = [-a * b for a, b in zip(log_probs.tolist(), advantages.tolist(), strict=True)]
    price = sorted(chi)[-3] if "rate" in gated else 0.1  # ⌊0.3·7⌋ = 2 above the third
    if gated["mode"] == "hard":
        usual = [float(x > price) for x in chi]
    else:
        usual = [1 / (1 + math.exp(-(x - price) / 0.3)) for x in chi]
    covered = [scope != "failures" or x < 0 for x in chi]
    chances = [max(p, 0.25) if within else p for p, within in zip(usual, covered, strict=True)]
    settings = GateSettings(floor=0.25, reserve_mode=scope, **gated)
    expected, output = expected_weights(settings, log_probs, advantages, chances)
    whole = [1.0 if within else p for p, within in zip(usual, covered, strict=True)]
    assert expected.tolist() == pytest.approx(chances if scope == "plain" else whole)
    assert output.gate_weights.max().item() == pytest.approx(1.0 if scope == "plain" else 4.0)  # 1/f
    if scope == "unbiased":  # the gradient itself, by its logits
        logits = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
        losses = advantages * logits.log_softmax(-1)[:, 0]
        (gradient,) = torch.autograd.grad((expected * losses).sum(), logits, retain_graph=True)
        torch.testing.assert_close(gradient, torch.autograd.grad(losses.sum(), logits)[0])


def test_without_a_floor_a_coin_is_biased_towards_delight():
    chi = -UNITS[0] * UNITS[1]
    chances = torch.sigmoid((chi - 0.1) / 0.3).tolist()
    settings = GateSettings(price=0.1, mode="bernoulli", temperature=0.3)
    assert expected_weights(settings, *UNITS, chances)[0].tolist() == pytest.approx(chances)


@pytest.mark.parametrize("scope", ["unbiased", "failures"])
def test_over_all_orders_of_its_coins_a_reserve_has_no_bias(scope):
    orders = torch.tensor(list(itertools.permutations(range(5)))).double() / 5  # 120, each as likely
    log_probs, advantages = (x[:5].expand(120, 5) for x in UNITS)
    gate = KondoGate(GateSettings(rate=0.4, reserve=0.5, reserve_mode=scope))
    weights = gate.compute_gate(log_probs, advantages, pools=1, draw=lambda name, size: orders).gate_weights
    expected = [1.0] * 5 if scope == "unbiased" else [0.0, 1.0, 1.0, 0.0, 1.0]
    assert weights.mean(0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["unbiased", "failures"])
@pytest.mark.parametrize(("rate", "share"), [(0.1, 0.5), (0.3, 0.1)])
def test_nor_has_one_in_a_batch_so_small_that_its_share_is_less_than_one(scope, rate, share):
    orders = torch.tensor(list(itertools.permutations(range(5)))).double() / 5
    log_probs, advantages = (x[:5].expand(120, 5) for x in UNITS)
    gate = KondoGate(GateSettings(rate=rate, reserve=share, reserve_mode=scope))
    weights = gate.compute_gate(log_probs, advantages, pools=1, draw=lambda name, size: orders).gate_weights
    chi = (-log_probs * advantages)[0]
    whole = [float(scope == "unbiased" or x < 0 or x == chi.max()) for x in chi]
    assert weights.mean(0).tolist() == pytest.approx(whole)
    assert set((weights != 0).sum(1).tolist()) == {2}  # the best, and one more


def test_a_floor_is_part_of_what_a_calibrated_coin_pays_and_nothing_else_is_ever_bought():
    log_probs, advantages = -torch.rand(400) * 3, torch.randn(400)
    advantages[3] = NAN
    settings = GateSettings(rate=0.2, mode="bernoulli", calibrated=True, floor=0.05, reserve_mode="unbiased")
    output = KondoGate(settings).compute_gate(log_probs, advantages)
    assert output.gate_probs.mean().item() == pytest.approx(0.2, abs=1e-4)
    assert output.gate_probs.sort().values[:2].tolist() == pytest.approx([0, 0.05])
    always = KondoGate(GateSettings(price=9.0, floor=0.99)).compute_gate(
        torch.tensor([-1.0, -INF, -1.0]), torch.tensor([1.0, 1.0, NAN]), draw=lambda *_: torch.zeros(3)
    )
    assert always.keep.tolist() == [True, False, False]


def test_ranks_toss_for_a_floor_as_one_process_does(monkeypatch):
    settings, coins = GateSettings(rate=0.3, floor=0.5, reserve_mode="failures"), torch.rand(7)

    def decided(group=None, own=slice(None)):
        gate = KondoGate(settings, group)
        return gate.compute_gate(*(x[own] for x in UNITS), draw=lambda *_: coins[own]).gate_weights

    ranks = Ranks([2, 4, 1])
    parts = ranks.run(monkeypatch, lambda own: decided(ranks, own))
    assert torch.equal(torch.cat(parts), decided())
    assert 2.0 in decided().tolist()


@pytest.mark.parametrize("others", [{"rate": 1.0}, {"rate": 0.1, "mode": "soft"}, {"rate": 0.1, "reserve": 0.5}])
def test_a_floor_under_what_is_never_skipped_or_beside_a_reserve_is_refused(others):
    with pytest.raises(ConfigError, match=r"floor=0\.1: the chance of what a gate would skip"):
        KondoGate(GateSettings(floor=0.1, **others))


# Diagnostics


def decided(keep, delight):
    """A decision as it might have come out."""
    keep = torch.tensor(keep, dtype=torch.float)
    return KondoGateOutput(keep, keep, torch.tensor(delight), torch.zeros(()), keep.mean())


def test_diagnostics_of_sequences_are_what_one_counts_by_hand():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]])
    output = decided([1, 0, 0, 1, 0, 0], [math.log(3), 0.0, -math.log(4), math.log(1.1), NAN, 9.0])
    advantages = torch.tensor([2.0, 0.0, -1.0, 1.0, 3.0, -5.0])
    found = diagnostics(output, -torch.ones(6, 3), advantages, mask, torch.tensor([7, 7, 2, 2, 5, 5]))
    gates = [0.75, 0.5, 0.2, 1.1 / 2.1]
    mean = sum(gates) / 4
    assert found == pytest.approx(
        {
            "gate_spread": math.sqrt(sum((x - mean) ** 2 for x in gates) / 4),
            "off_neutral": 2 / 4,
            "zero_advantage": 1 / 5,
            "kept_positive": 2 / 3,
            "dropped_positive": 1 / 3,
            "kept_negative": 0.0,
            "dropped_negative": 1.0,
            "kept_length": 3.0,
            "dropped_length": (2 + 1 + 2) / 3,
            "survivors_per_group": 2 / 3,
            "groups_without_survivors": 1 / 3,
        }
    )
    assert "survivors_per_group" not in diagnostics(output, -torch.ones(6, 3), advantages, mask)


def test_diagnostics_of_tokens_count_tokens_and_lengths_of_rows():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages = torch.tensor([[1.0, -1.0, 0.0], [-2.0, -2.0, 9.0]])
    output = decided([[1, 0, 0], [0, 0, 1]], [[5.0, 0.0, 0.0], [0.0, 0.0, 5.0]])  # the last is padding
    found = diagnostics(output, -torch.ones(2, 3), advantages, mask, torch.tensor([0, 1]))
    assert found["off_neutral"] == pytest.approx(1 / 5)
    assert found["zero_advantage"] == pytest.approx(1 / 5)
    assert (found["kept_positive"], found["kept_negative"], found["dropped_negative"]) == (1, 0, 1)
    assert (found["kept_length"], found["dropped_length"]) == (3, 2)
    assert (found["survivors_per_group"], found["groups_without_survivors"]) == (0.5, 0.5)


def test_diagnostics_of_a_real_decision_agree_with_it_and_a_mean_over_nothing_is_nan():
    gate = KondoGate(GateSettings(rate=0.5))
    output, _ = gate.decide(LOG_PROBS, ADVANTAGES)
    found = kondo.diagnostics(output, LOG_PROBS, ADVANTAGES)
    assert found["zero_advantage"] * 8 == output.zero_advantage
    assert found["kept_positive"] == 1
    assert found["kept_length"] == found["dropped_length"] == 1
    idle, _ = gate.decide(LOG_PROBS, torch.zeros(8))
    nothing = kondo.diagnostics(idle, LOG_PROBS, torch.zeros(8))
    assert math.isnan(nothing["kept_positive"])
    assert math.isnan(nothing["kept_length"])
    assert nothing["gate_spread"] == 0


# What was trained before is the same cell


RESULTS = Path(__file__).parents[1] / "results"
LATER = {"floor": 0.0, "scale": "none", "scale_decay": 0.99}


@pytest.mark.parametrize("archive", ["joy_1", "gate_coefficient", "suppression"])
def test_published_cells_keep_their_hash_whether_the_later_settings_are_written_at_their_default_or_not(archive):
    with tarfile.open(RESULTS / f"{archive}.tar.xz") as files:
        configs = {name: yaml.safe_load(files.extractfile(name)) for name in files.getnames() if "config" in name}
    asked = 0
    for name, config in configs.items():
        config = {key: value for key, value in config.items() if key not in ("seeds", "error", "choices")}
        written = config if config["gate"] is None else config | {"gate": config["gate"] | LATER}
        assert parse(config).key() == parse(written).key() == name.split("/")[1].split("-")[0]
        asked += config["gate"] is not None
    assert asked >= 3


def test_a_later_setting_that_is_used_is_part_of_the_cell_and_is_parsed_again():
    used = cell("dgk", {"price": 0.1, "scale": "surprisal"})
    assert used.plain()["gate"]["scale"] == "surprisal"
    assert "scale_decay" not in used.plain()["gate"]
    assert parse(used.plain()).gate == used.gate
    assert used.key() != cell("dgk", {"price": 0.1}).key()
    assert {each.name for each in fields(GateSettings) if each.metadata["later"]} == set(LATER)
    assert {name: getattr(GateSettings, name) for name in LATER} == LATER
