import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml

from kondo import KondoGate, KondoGateConfig, delight, expected_confidence_baseline, pricing
from kondo.gate import PRIORITIES, GateSettings
from kondo.pricing import GateState
from kondo.schema import ConfigError
from tests.conftest import cell

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


def test_a_batch_of_nothing_starves_nobody():
    gate = KondoGate(KondoGateConfig(gate_rate=None, price=100.0, max_consecutive_drops=0))
    assert gate.compute_gate(torch.zeros(0), torch.zeros(0)).keep.tolist() == []
    assert gate.drops.tolist() == [0]


# State


STATES = {
    "history": rate(0.3, history=12, warmup=5),
    "drops": price(2.5, max_consecutive_drops=2),
    "both": rate(0.2, history=9, max_consecutive_drops=1),
}


def batches(count: int, pools: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Some of much delight, which price the later ones out of a history, and then some of little."""
    return [(-torch.rand(pools, 5) * 2, torch.randn(pools, 5) + (3 if step < 3 else -1)) for step in range(count)]


def decided(gate: KondoGate, given: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list]:
    return [gate.compute_gate(*batch, pools=1).gate_weights.tolist() for batch in given]


def same_state(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", STATES)
def test_a_state_dict_takes_a_new_gate_to_where_the_old_one_was(name):
    gate, given = KondoGate(STATES[name]), batches(10)
    decided(gate, given[:4])
    later = given[4:]
    saved = {key: value.clone() for key, value in gate.state_dict().items()}
    assert set(saved) == {"history": {"history"}, "drops": {"drops"}, "both": {"history", "drops"}}[name]
    other, fresh = KondoGate(STATES[name]), KondoGate(STATES[name])
    other.load_state_dict(saved)
    went_on = decided(gate, later)
    assert decided(other, later) == went_on
    assert decided(fresh, later) != went_on
    gate.load_state_dict(saved)  # and back in time
    assert decided(gate, later) == went_on


def test_a_gate_without_memory_has_an_empty_state_dict_which_empties_one_that_has():
    gate = KondoGate(rate(0.3))
    gate.compute_gate(*batches(1)[0])
    assert gate.state_dict() == {}
    used = KondoGate(STATES["both"])
    decided(used, batches(3))
    used.load_state_dict(gate.state_dict())
    assert used.state_dict() == {}


def test_a_gate_inside_a_model_is_saved_with_it():
    model, copied = (torch.nn.ModuleDict({"gate": KondoGate(STATES["both"])}) for _ in range(2))
    decided(model["gate"], batches(3))
    copied.load_state_dict(model.state_dict())
    assert set(model.state_dict()) == {"gate.history", "gate.drops"}
    assert same_state(model.state_dict(), copied.state_dict())


@pytest.mark.parametrize("name", STATES)
def test_asking_for_a_decision_changes_nothing_and_computing_the_gate_does(name):
    gate = KondoGate(STATES[name])
    moved = 0
    for batch in batches(6):
        before = {key: value.clone() for key, value in gate.state_dict().items()}
        (asked, state), (again, _) = (gate.decision(*batch, pools=1) for _ in range(2))
        assert same_state(gate.state_dict(), before)
        made = gate.compute_gate(*batch, pools=1)
        assert torch.equal(asked.gate_weights, made.gate_weights)
        assert torch.equal(again.price, made.price)
        after = {key: value for key, value in vars(state).items() if value is not None}
        assert same_state(gate.state_dict(), after)
        moved += not same_state(gate.state_dict(), before)
    assert moved > 3


def test_the_pure_steps_change_none_of_their_tensors():
    settings = GateSettings(rate=0.4, mode="bernoulli", history=6, max_consecutive_drops=0)
    chi, finite, exists = torch.randn(2, 4, 3), torch.rand(2, 4, 3) < 0.9, torch.rand(2, 4, 3) < 0.8
    state = GateState(torch.randn(2, 6) + 9, torch.ones(2, 1, dtype=torch.long))
    given = [chi, finite, exists, state.history, state.drops]
    copies = [x.clone() for x in given]
    units = pricing.units(pricing.Units(chi, -chi, finite, exists), "sequence", 1).pooled(1)
    output, after = pricing.decision(settings, units, state, torch.ones(2, 4))
    assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True))
    assert output.keep.sum(-1).tolist() == [1, 1]  # fed
    assert after.drops.tolist() == [[0], [0]]
    assert not torch.equal(after.history, state.history)


def test_a_history_of_other_pools_is_refused():
    gate = KondoGate(STATES["history"])
    decided(gate, batches(1, pools=2))
    with pytest.raises(ValueError, match=r"holds \(2,\) pools, the batch \(3,\)"):
        decided(gate, batches(1, pools=3))


@pytest.mark.parametrize("mask", [None, torch.ones(2, 4, dtype=torch.bool)])
def test_the_price_is_minus_infinity_where_fewer_than_k_units_can_be_bought(mask):
    advantages = torch.tensor([[NAN, 1.0, NAN, NAN], [NAN, NAN, 2.0, NAN]])
    decision = KondoGate(rate(0.5, unit="token")).compute_gate(-torch.ones(2, 4), advantages, mask=mask)
    assert decision.price.item() == -INF
    assert decision.keep.sum() == 2


# Settings


def test_kondo_gates_words_and_our_own_make_the_same_gate():
    for words, settings in [
        ({}, {"rate": 0.3}),
        ({"gate_rate": 0.1, "deterministic": False}, {"rate": 0.1, "mode": "bernoulli"}),
        ({"gate_rate": None, "price": 0.2, "hard": False}, {"price": 0.2, "mode": "soft"}),
        ({"temperature": 0.5}, {"rate": 0.3, "temperature": 0.5}),
        ({"unit": "token", "history": 4}, {"rate": 0.3, "unit": "token", "history": 4}),
    ]:
        assert KondoGate(KondoGateConfig(**words)).settings == KondoGate(GateSettings(**settings)).settings
    with pytest.raises(ValueError, match=r"^rate must be in"):
        KondoGate(GateSettings(rate=2.0))


def test_a_rate_may_be_changed_between_batches():
    gate = KondoGate(rate(0.2))
    batch = -torch.rand(10), torch.rand(10)
    assert gate.compute_gate(*batch).keep.sum() == 2
    gate.config.gate_rate = 0.6
    assert gate.compute_gate(*batch).keep.sum() == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rate": 0.1, "price": 0.0}, "exclude each other"),
        ({"price": 0.0, "history": 3}, "price is fixed"),
        ({"rate": 0.5, "warmup": 3}, "history too"),
        ({"rate": 1.5}, r"\(0, 1\]"),
        ({"price": NAN}, "a number"),
        ({"rate": 0.5, "max_consecutive_drops": -1}, ">= 0|inf"),
    ],
)
def test_the_config_and_the_python_api_refuse_the_same_settings(settings, words):
    with pytest.raises(ConfigError, match=words):
        KondoGate(GateSettings(**settings))
    with pytest.raises(ConfigError, match=words):
        cell("dgk", settings)


def test_the_config_file_has_every_setting_of_the_gate_with_its_default():
    written = yaml.safe_load((Path(__file__).parents[1] / "conf" / "gate.yaml").read_text())["gate"]
    assert written == asdict(GateSettings())


NEW_SETTING = """
import sys, types
from pathlib import Path
import kondo.pricing

path = Path(kondo.pricing.__file__).with_name("settings.py")
mark = "    history: int = knob(0, low=0)\\n"
source = path.read_text()
assert source.count(mark) == 1
module = types.ModuleType("kondo.settings")
module.__file__ = str(path)
sys.modules["kondo.settings"] = module
source = source.replace(mark, "    margin: float = knob(0.0, low=0)\\n" + mark)
exec(compile(source, str(path), "exec"), module.__dict__)
for name in [name for name in sys.modules if name.startswith("kondo.") and name != "kondo.settings"]:
    del sys.modules[name]
del sys.modules["kondo"]

import torch
from kondo import KondoGateConfig, KondoTrainer
from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.integrations.trl import KondoGRPOConfig

print(KondoGateConfig(margin=2.0).settings().margin)
print(KondoTrainer(torch.nn.Linear(1, 1), margin=2.0).gate.settings.margin)
cell = parse({"task": {"name": "bandit"}, "method": {"name": "dgk"}, "gate": {"margin": 2.0}, "steps": 1})
print(cell.plain()["gate"]["margin"])
print(Engine(cell, [0]).learner.gate.settings.margin)
cpu = {"output_dir": "out", "use_cpu": True, "bf16": False}
print(KondoGRPOConfig(**cpu, use_kondo_gate=True, kondo_gate_margin=2.0).gate_settings().margin)
for refused in (
    lambda: KondoTrainer(torch.nn.Linear(1, 1), margin=-1.0),
    lambda: parse(cell.plain() | {"gate": {"margin": -1.0}}),
    lambda: KondoGRPOConfig(**cpu, use_kondo_gate=True, kondo_gate_margin=-1.0),
):
    try:
        refused()
    except ValueError as error:
        print(str(error).split()[0])
"""


@pytest.mark.slow
def test_a_setting_written_once_in_the_settings_class_reaches_the_config_the_engine_and_every_trainer(tmp_path):
    """A field is added to the source; each way to make a gate must take it, and refuse it out of range by its name."""
    script = tmp_path / "new_setting.py"
    script.write_text(NEW_SETTING)
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.0"] * 5 + ["margin", "gate.margin=-1.0:", "kondo_gate_margin"]


# A reserve, and a calibrated price


RESERVES = ("plain", "unbiased", "failures")


def reserved(mode, rate=0.1, share=0.5, n=60, times=3000, **settings):
    """Weights of many decisions on the same batch: [times, n]; and its delight."""
    torch.manual_seed(1)
    log_probs, advantages = -torch.rand(n) * 3 - 0.01, torch.randn(n)
    gate = KondoGate(GateSettings(rate=rate, reserve=share, reserve_mode=mode, **settings))
    drawn = gate.compute_gate(log_probs.expand(times, n), advantages.expand(times, n), pools=1)
    return drawn.gate_weights, -log_probs * advantages, drawn


@pytest.mark.parametrize("mode", RESERVES)
def test_a_reserve_costs_what_the_rate_says_and_keeps_the_best_of_what_is_ranked(mode):
    weights, delight, output = reserved(mode)
    assert ((weights != 0).sum(1) == 6).all()
    assert torch.allclose(output.actual_gate_rate, torch.tensor(0.1))
    best = delight.topk(3).indices
    assert (weights[:, best] == 1).all()


def test_an_unbiased_reserve_makes_every_expected_weight_one():
    """3 of 57 drawn at weight 19: its mean over 3000 batches is within 5 deviations of 1."""
    weights, _, _ = reserved("unbiased")
    deviation = math.sqrt((57 / 3 - 1) / 3000)
    assert (weights.mean(0) - 1).abs().max() < 5 * deviation


def test_a_reserve_of_failures_gives_failures_and_no_others_an_expected_weight_of_one():
    weights, delight, _ = reserved("failures")
    failures = int((delight < 0).sum())
    deviation = math.sqrt((failures / 3 - 1) / 3000)
    assert (weights.mean(0)[delight < 0] - 1).abs().max() < 5 * deviation
    best = delight.topk(3).indices
    others = torch.ones_like(delight, dtype=torch.bool).scatter(0, best, False) & (delight >= 0)
    assert not weights[:, others].any()


def test_a_plain_reserve_draws_each_of_the_skipped_alike_and_weighs_none():
    weights, delight, _ = reserved("plain")
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    rest = torch.ones_like(delight, dtype=torch.bool).scatter(0, delight.topk(3).indices, False)
    assert (weights.mean(0)[rest] - 3 / 57).abs().max() < 5 * math.sqrt(3 / 57 / 3000)


def test_a_reserve_larger_than_what_is_left_takes_all_of_it():
    gate = KondoGate(GateSettings(rate=0.5, reserve=0.5, reserve_mode="failures"))
    log_probs, advantages = -torch.ones(8), torch.tensor([8.0, 7, 6, 5, 4, 3, 2, -1])
    assert gate.compute_gate(log_probs, advantages).gate_weights.tolist() == [1, 1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "settings",
    [{"price": 0.0, "reserve": 0.5}, {"rate": 1.0, "reserve": 0.5}, {"rate": 0.1, "mode": "soft", "reserve": 0.5}],
)
def test_a_reserve_without_a_hard_rate_is_refused(settings):
    with pytest.raises(ConfigError, match=r"reserve=0\.5: a share of what a hard gate buys"):
        KondoGate(GateSettings(**settings))


@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("mode", ["bernoulli", "soft"])
def test_a_calibrated_price_pays_the_rate_on_average_whatever_the_temperature(mode, temperature):
    torch.manual_seed(2)
    log_probs, advantages = -torch.rand(3, 200) * 3, torch.randn(3, 200)
    advantages[0, 5] = torch.nan  # never bought, and the others make up for it
    settings = GateSettings(rate=0.07, mode=mode, temperature=temperature, calibrated=True)
    output = KondoGate(settings).compute_gate(log_probs, advantages, pools=1)
    torch.testing.assert_close(output.gate_probs.mean(1), torch.full((3,), 0.07), atol=1e-5, rtol=0)
    other = KondoGate(replace(settings, calibrated=False)).compute_gate(log_probs, advantages, pools=1)
    assert temperature < 1 or not torch.allclose(other.gate_probs.mean(1), torch.full((3,), 0.07), atol=5e-3)


@pytest.mark.parametrize("settings", [{"price": 0.0, "mode": "soft"}, {"rate": 0.1}])
def test_a_calibration_without_a_rate_or_a_coin_is_refused(settings):
    with pytest.raises(ConfigError, match="calibrated=True: of a rate in the Bernoulli or soft mode"):
        KondoGate(GateSettings(calibrated=True, **settings))
