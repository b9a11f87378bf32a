import math

import pytest
import torch

from kondo import KondoGate, KondoGateConfig, delight, expected_confidence_baseline
from kondo.gate import PRIORITIES

NAN, INF = math.nan, math.inf


def keep(config: KondoGateConfig, log_probs, advantages, **options) -> list:
    log_probs, advantages = torch.as_tensor(log_probs), torch.as_tensor(advantages)
    return KondoGate(config).compute_gate(log_probs, advantages, **options).keep.int().tolist()


def rate(value: float, **options) -> KondoGateConfig:
    return KondoGateConfig(gate_rate=value, **options)


def price(value: float, **options) -> KondoGateConfig:
    return KondoGateConfig(gate_rate=None, price=value, **options)


def test_delight_is_advantage_times_surprisal_and_carries_no_gradient():
    probs = torch.tensor([0.5, 0.1, 0.9], requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
    chi = delight(probs.log(), advantages)
    torch.testing.assert_close(chi, torch.tensor([math.log(2), -2 * math.log(10), 0.0]))
    assert not chi.requires_grad


def test_zero_advantage_has_zero_delight_even_at_infinite_surprisal():
    assert delight(torch.tensor([-INF]), torch.tensor([0.0])).item() == 0


def test_expected_confidence_is_one_over_k_for_the_uniform_policy():
    torch.testing.assert_close(expected_confidence_baseline(torch.full((3, 8), 1 / 8)), torch.full((3,), 1 / 8))


def test_price_zero_keeps_exactly_the_positive_delights():
    assert keep(price(0.0), [-1.0, -1.0, -1.0, 0.0], [0.5, -0.5, 0.0, 1.0]) == [1, 0, 0, 0]


def test_price_keeps_strictly_above():
    assert keep(price(1.0), [-1.0, -1.1], [1.0, 1.0]) == [0, 1]


@pytest.mark.parametrize(("share", "count"), [(0.03, 3), (0.1, 10), (0.07, 7), (0.29, 29), (0.001, 1), (0.999, 99)])
def test_rate_keeps_the_k_most_delightful(share, count):
    log_probs, advantages = -torch.rand(100), torch.randn(100)
    kept = torch.tensor(keep(rate(share), log_probs, advantages)).bool()
    best = (advantages * -log_probs).sort(descending=True).indices[:count]
    assert sorted(best.tolist()) == kept.nonzero().flatten().tolist()


def test_gate_keeps_exactly_k_when_delight_ties_lowest_index_first():
    assert keep(rate(0.5), [-1.0] * 6, [2.0, 1.0, 1.0, 1.0, 1.0, 0.0]) == [1, 1, 1, 0, 0, 0]


def test_rate_one_keeps_everything_so_the_loss_is_plain_policy_gradient():
    logits, actions, advantages = torch.randn(6, 4), torch.randint(4, (6,)), torch.randn(6)
    output = KondoGate(rate(1.0))(logits, actions, advantages)
    by_hand = -(advantages * torch.log(torch.softmax(logits, -1)[torch.arange(6), actions])).mean()
    assert output.keep.all()
    assert output.price.item() == -INF
    torch.testing.assert_close(output.gated_policy_loss, by_hand)


@pytest.mark.parametrize("config", [rate(1.0), rate(0.3), price(-1.0), price(0.0), rate(0.5, priority="surprisal")])
def test_nothing_is_kept_when_all_advantages_are_zero(config):
    assert keep(config, [-1.0, -2.0, -3.0], [0.0, 0.0, 0.0]) == [0, 0, 0]


@pytest.mark.parametrize("config", [rate(1.0), rate(0.7), price(-INF), rate(1.0, hard=False)])
def test_nan_rewards_and_impossible_actions_are_never_kept(config):
    log_probs, advantages = [-1.0, -INF, -1.0, -2.0], [NAN, 1.0, 1.0, 1.0]
    weights = KondoGate(config).compute_gate(torch.tensor(log_probs), torch.tensor(advantages)).gate_weights
    assert weights[:2].tolist() == [0, 0]
    assert (weights[2:] > 0).all()


@pytest.mark.parametrize("config", [rate(1.0), rate(0.67), price(-1.0), price(-1.0, hard=False)])
def test_an_impossible_action_without_advantage_is_not_kept_either(config):
    gate = KondoGate(config)
    weights = gate.compute_gate(torch.tensor([-INF, -1.0, -2.0]), torch.tensor([0.0, 1.0, -1.0])).gate_weights
    assert weights[0] == 0
    assert weights[1] > 0
    logits = torch.tensor([[-INF, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert gate(logits, torch.zeros(3, dtype=torch.long), torch.tensor([0.0, 1.0, -1.0])).gated_policy_loss.isfinite()


def test_advantages_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="shape"):
        KondoGate(rate(0.5)).compute_gate(torch.zeros(4), torch.zeros(4, 1))


def test_a_batch_of_nothing_but_nan_keeps_nothing():
    assert keep(rate(0.5), [-1.0, -1.0], [NAN, NAN]) == [0, 0]


def test_empty_batch_keeps_nothing():
    assert keep(rate(0.5), torch.zeros(0), torch.zeros(0)) == []


def test_bernoulli_opens_with_the_sigmoid_of_delight_minus_price_over_temperature():
    n, eta, lam = 200_000, 0.5, 0.3
    gate = KondoGate(price(lam, temperature=eta, deterministic=False))
    weights = gate.compute_gate(torch.full((n,), -1.0), torch.ones(n)).gate_weights  # χ = 1
    expected = 1 / (1 + math.exp(-(1 - lam) / eta))
    deviation = math.sqrt(expected * (1 - expected) / n)
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert abs(weights.mean().item() - expected) < 4 * deviation  # 4σ: fails once in 16,000 for another seed


def test_bernoulli_approaches_the_hard_gate_as_temperature_falls():
    log_probs, advantages = -torch.rand(500) * 3, torch.randn(500)
    cold = keep(price(0.2, temperature=1e-6, deterministic=False), log_probs, advantages)
    assert cold == keep(price(0.2), log_probs, advantages)


def test_soft_gate_at_price_zero_weights_like_dg():
    log_probs, advantages = -torch.rand(50) * 3, torch.randn(50)
    output = KondoGate(price(0.0, temperature=1.0, hard=False)).compute_gate(log_probs, advantages)
    torch.testing.assert_close(output.gate_weights, 1 / (1 + torch.exp(advantages * log_probs)))


@pytest.mark.parametrize(
    ("priority", "expected"),
    [("delight", 0), ("advantage", 1), ("abs_advantage", 2), ("surprisal", 3), ("additive", 3)],
)
def test_each_priority_ranks_by_its_own_quantity(priority, expected):
    surprisal = torch.tensor([4.0, 0.1, 0.2, 9.0, 0.3])
    advantage = torch.tensor([2.0, 3.0, -5.0, -1.0, 0.1])
    kept = keep(rate(0.2, priority=priority, alpha=0.4), -surprisal, advantage)
    assert kept.index(1) == expected
    assert sum(kept) == 1


def test_uniform_priority_keeps_k_and_every_sample_equally_often():
    gate, n, times = KondoGate(rate(0.25, priority="uniform")), 8, 4000
    log_probs, advantages = -torch.rand(n), torch.randn(n)
    counts = sum(gate.compute_gate(log_probs, advantages).gate_weights for _ in range(times))
    assert counts.sum() == 2 * times
    deviation = math.sqrt(times * 0.25 * 0.75)
    assert ((counts - times / 4).abs() < 4.5 * deviation).all()


def test_every_priority_is_covered_above():
    own = {name for name, code in PRIORITIES.items() if code.__module__.startswith("kondo.")}
    assert own == {"delight", "advantage", "abs_advantage", "surprisal", "uniform", "additive"}


def test_sequence_unit_averages_delight_over_the_tokens_that_exist():
    log_probs = torch.tensor([[-1.0, -3.0, -100.0], [-2.5, -2.5, -2.5]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    output = KondoGate(rate(0.5, unit="sequence")).compute_gate(log_probs, torch.ones(2, 3), mask=mask)
    torch.testing.assert_close(output.delight, torch.tensor([2.0, 2.5]))
    assert output.keep.tolist() == [False, True]


def test_token_unit_decides_for_each_token_and_ignores_the_masked():
    log_probs = torch.tensor([[-1.0, -3.0, -100.0], [-2.0, -0.5, -0.1]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    output = KondoGate(rate(0.4, unit="token")).compute_gate(log_probs, torch.ones(2, 3), mask=mask)
    assert output.keep.int().tolist() == [[0, 1, 0], [1, 0, 0]]  # ⌊0.4 · 5⌋ of the tokens that exist


def test_sequence_unit_on_single_decisions_is_refused():
    with pytest.raises(ValueError, match="token axis"):
        KondoGate(rate(0.5, unit="sequence")).compute_gate(torch.zeros(4), torch.ones(4))


def test_pools_are_priced_apart():
    log_probs, advantages = -torch.rand(3, 2, 10), torch.randn(3, 2, 10)
    gate = KondoGate(rate(0.2))
    together = gate.compute_gate(log_probs, advantages, pools=2)
    for i in range(3):
        for j in range(2):
            alone = gate.compute_gate(log_probs[i, j], advantages[i, j])
            assert torch.equal(together.gate_weights[i, j], alone.gate_weights)
            assert together.price[i, j] == alone.price


def test_history_prices_a_batch_by_what_came_before():
    gate = KondoGate(rate(0.5, history=4))
    ones = torch.ones(4)
    first = gate.compute_gate(-torch.tensor([1.0, 2.0, 3.0, 4.0]), ones)
    assert first.keep.int().tolist() == [0, 0, 1, 1]
    poor = gate.compute_gate(-torch.tensor([0.1, 0.2, 0.3, 0.4]), ones)  # median of the eight: 1.0
    assert poor.keep.int().tolist() == [0, 0, 0, 0]
    assert poor.price.item() == 1.0


def test_a_full_history_forgets_the_oldest_first():
    gate = KondoGate(KondoGateConfig(gate_rate=0.5, history=4))
    for advantages in ([10.0, 9.0, 8.0, 7.0], [1.0, 2.0, 3.0, 4.0]):
        gate.compute_gate(-torch.ones(4), torch.tensor(advantages))
    decision = gate.compute_gate(-torch.ones(2), torch.tensor([5.0, 6.0]))  # beside 1, 2, 3, 4
    assert decision.price.item() == 4
    assert decision.keep.tolist() == [True, True]


def test_a_sequence_s_delight_is_the_mean_over_its_tokens_and_not_their_sum():
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=0.5, unit="sequence"))
    decision = gate.compute_gate(-torch.tensor([[0.4, 0.4, 0.4], [0.4, 0.8, 0.4]]), torch.ones(2, 3))
    torch.testing.assert_close(decision.delight, torch.tensor([0.4, 1.6 / 3]))
    assert decision.keep.tolist() == [False, True]


def test_warmup_keeps_everything_until_enough_was_seen():
    gate = KondoGate(rate(0.25, history=100, warmup=8))
    batch = -torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4)
    assert gate.compute_gate(*batch).keep.all()
    assert gate.compute_gate(*batch).keep.sum() == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate_rate": 0.1, "price": 0.0}, "not both"),
        ({"gate_rate": None}, "both are None"),
        ({"gate_rate": 0.0}, r"in \(0, 1\]"),
        ({"gate_rate": 1.5}, r"in \(0, 1\]"),
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"gate_rate": None, "price": NAN}, "not NaN"),
        ({"priority": "joy"}, "priority must be one of"),
        ({"unit": "word"}, "unit must be one of"),
        ({"alpha": 2.0}, "alpha"),
        ({"warmup": 3}, "set history too"),
        ({"gate_rate": None, "price": 0.0, "history": 3}, "fixed price"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        KondoGate(KondoGateConfig(**settings))


def test_gate_carries_no_gradient_and_works_on_any_leading_shape_and_dtype():
    for shape in [(7,), (2, 7), (2, 3, 7)]:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            log_probs = (-torch.rand(shape)).to(dtype).requires_grad_()
            output = KondoGate(rate(0.5)).compute_gate(log_probs, torch.randn(shape).to(dtype).requires_grad_())
            assert output.gate_weights.shape == shape
            assert not any(
                x.requires_grad for x in (output.gate_weights, output.gate_probs, output.delight, output.price)
            )


def test_after_too_many_batches_that_kept_nothing_the_best_unit_is_kept():
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=100.0, max_consecutive_drops=2))
    log_probs, advantages = torch.tensor([-1.0, -3.0, -2.0]), torch.ones(3)
    kept = [gate.compute_gate(log_probs, advantages).keep.tolist() for _ in range(7)]
    best, none = [False, True, False], [False] * 3
    assert kept == [none, none, best, none, none, best, none]


def test_batches_with_nothing_to_teach_do_not_count_as_drops_and_are_never_fed():
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=100.0, max_consecutive_drops=1))
    log_probs = torch.tensor([-1.0, -3.0])
    for advantages, kept in [(1, 0), (0, 0), (0, 0), (1, 1), (0, 0), (1, 0), (1, 1)]:
        assert gate.compute_gate(log_probs, torch.full((2,), float(advantages))).keep.sum() == kept


def test_pools_starve_by_themselves():
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=2.5, max_consecutive_drops=1))
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -1.0]])
    kept = [gate.compute_gate(log_probs, torch.ones(2, 2), pools=1).keep.tolist() for _ in range(2)]
    assert kept == [[[False, False], [True, False]], [[False, True], [True, False]]]
