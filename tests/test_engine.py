"""The engine: what is in the graph, what a seed feels of others, what frictions do, and what the ledger counts."""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from kondo.lab.actor import Actor
from kondo.lab.baselines import BASELINES
from kondo.lab.config.cell import gated, parse
from kondo.lab.engine import Engine, eval_steps
from kondo.lab.frictions import FRICTIONS, ActorBugs, RareDiscovery, RewardCorruption, Staleness
from kondo.lab.learner import select
from kondo.lab.optimizer import Optimizer, OptimizerSettings
from kondo.lab.policies.mlp import MLP, by_seed, views
from kondo.lab.streams import Streams
from kondo.objectives import METHODS
from kondo.signals import taken
from tests.conftest import ADAM, cell, trained


def weights(engine: Engine) -> torch.Tensor:
    """The learner's parameters, a row per seed."""
    return by_seed(engine.learner.leaves)


GATES = [
    {"rate": 0.1},
    {"rate": 1.0},
    {"price": 0.0},
    {"price": 0.1},
    {"rate": 0.3, "mode": "bernoulli"},
    {"price": 0.0, "mode": "soft"},
    {"rate": 0.2, "priority": "uniform"},
    {"rate": 0.2, "history": 50, "warmup": 30},
]


@pytest.mark.parametrize("gate", GATES)
def test_gathered_gradients_equal_those_of_the_masked_full_batch(gate):
    engine = trained(cell("dgk", gate), [0, 1, 2], steps=5)
    learner = engine.learner
    batch = engine.actor.act(engine.step)
    gradient = learner.gated_gradient(batch, learner.screening(batch, engine.step))

    log_policy = learner.policy.log_policy(learner.leaves, batch.contexts.inputs, batch.actions)
    log_prob = taken(log_policy, batch.actions)
    advantage = batch.rewards - log_policy.detach().exp().square().sum(-1)
    draw = lambda name, shape: engine.streams.uniform(f"gate.{name}", engine.step, shape[1:])  # noqa: E731
    weights = learner.gate.compute_gate(log_prob.detach(), advantage, pools=1, draw=draw).gate_weights
    masked = -(weights * advantage * log_prob).mean(dim=1).sum()
    expected = torch.autograd.grad(masked, list(learner.leaves.values()))
    for ours, theirs in zip(gradient.tensors, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("gate", [{"rate": 0.1}, {"price": 0.0}])
def test_a_skipped_row_is_absent_from_the_graph(gate, monkeypatch):
    rows_in_backward = []
    plain = MLP.log_policy

    def hooked(self, parameters, inputs, actions=None):
        output = plain(self, parameters, inputs, actions)
        if output.requires_grad:
            output.register_hook(lambda gradient: rows_in_backward.append(gradient.shape[0] * gradient.shape[1]))
        return output

    monkeypatch.setattr(MLP, "log_policy", hooked)
    engine = trained(cell("dgk", gate), [0, 1, 2])
    spent, padding = engine.ledger.counts["backward"], engine.ledger.timed["padding"]
    assert sum(rows_in_backward) == spent.sum() + padding
    assert spent.sum() < 0.7 * engine.ledger.counts["forward"].sum()
    if "rate" in gate:
        assert padding == 0
        assert spent.tolist() == [0.1 * 20 * 30] * 3


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("friction", [{}, {"staleness": {"delay": 5, "delay_mode": "uniform"}, "actor_bugs": {}}])
def test_stacked_seeds_train_like_each_alone_whichever_share_the_block(method, friction):
    """To 1e-5 after 30 steps of Adam: batched matmuls of other sizes may round differently, by about 1e-7 a step."""
    chosen = cell(method, {"price": 0.0} if gated(method) else None, friction=friction)
    block, other = trained(chosen, [4, 0, 9]), trained(chosen, [9, 2])
    for i, seed in enumerate((4, 0, 9)):
        alone = trained(chosen, [seed])
        torch.testing.assert_close(weights(block)[i], weights(alone)[0], atol=1e-5, rtol=0)
        assert block.ledger.counts["backward"][i] == alone.ledger.counts["backward"][0]
    torch.testing.assert_close(weights(block)[2], weights(other)[0], atol=1e-5, rtol=0)


def test_a_seed_with_no_survivor_does_not_move_at_all():
    chosen = cell("dgk", {"price": 0.0}, task={"arms": 60, "batch": 4, "contexts": 1})
    engine = Engine(chosen, list(range(12)))
    rested = 0
    for _ in range(40):
        before, spent = weights(engine), engine.ledger.counts["backward"].clone()
        steps = engine.learner.optimizer.steps.clone()
        engine.advance()
        moved = (weights(engine) != before).any(dim=1)
        assert torch.equal(moved, engine.ledger.counts["backward"] > spent)
        assert torch.equal(engine.learner.optimizer.steps - steps, moved.float())
        rested += int((~moved).sum())
    assert 0 < rested < 12 * 40


def test_rate_one_trains_exactly_like_policy_gradient():
    torch.testing.assert_close(
        trained(cell("dgk", {"rate": 1.0}), [0, 1]).learner.flat, trained(cell("pg"), [0, 1]).learner.flat
    )


def test_one_step_of_pg_on_a_table_is_the_gradient_written_out_by_hand():
    """Σ U (1{a} − π) / B, moved by plain gradient descent."""
    engine = Engine(
        cell("pg", task={"hidden": [], "contexts": 2, "arms": 3}, optimizer={"name": "sgd", "lr": 0.5}), [0]
    )
    batch = engine.actor.act(0)
    expected = torch.zeros(2, 3)
    for context, action, reward in zip(batch.contexts.inputs[0], batch.actions[0], batch.rewards[0], strict=True):
        score = torch.nn.functional.one_hot(action, 3) - torch.full((3,), 1 / 3)
        expected[context.argmax()] += 0.5 * (reward - 1 / 3) * score / 20
    engine.advance()
    torch.testing.assert_close(engine.learner.leaves["weight_0"][0].detach(), expected)


def test_select_gathers_kept_rows_in_order_and_pads_with_weight_zero():
    weight = torch.tensor([[0.0, 1, 0, 1], [0, 0, 0.5, 0], [0, 0, 0, 0]])
    chosen, kept = select(weight)
    assert kept.tolist() == [2, 1, 0]
    assert chosen.index[0].tolist() == [1, 3]
    assert chosen.index[1, 0] == 2
    assert chosen.weight.tolist() == [[1, 1], [0.5, 0], [0, 0]]
    by_token, rows = select(torch.tensor([[[0.0, 0], [0, 1]], [[1, 1], [0, 0]]]))
    assert rows.tolist() == [1, 1]
    assert by_token.weight.tolist() == [[[0, 1]], [[1, 1]]]


# Screening and cost


def test_on_policy_the_sampler_screens_for_free_and_a_friction_makes_the_learner_pay():
    clean = trained(cell("dgk", {"rate": 0.1}), [0])
    assert clean.ledger.counts["screened"].tolist() == [0]
    for friction in ({"staleness": {"delay": 2}}, {"actor_bugs": {"prob": 0.5}}):
        paid = trained(cell("dgk", {"rate": 0.1}, friction=friction), [0])
        assert paid.ledger.counts["screened"].tolist() == [20 * 30]


def test_the_sampler_screen_equals_the_learner_screen():
    engine = trained(cell("dgk", {"rate": 0.1}), [0, 1], steps=3)
    batch = engine.actor.act(3)
    own = engine.learner.policy.log_policy(engine.learner.leaves, batch.contexts.inputs, batch.actions)
    torch.testing.assert_close(batch.log_policy, own.detach())


def test_ledger_tells_nominal_from_counted_and_times_every_phase():
    engine = trained(cell("dgk", {"rate": 0.17}), [0, 1])  # ⌊0.17 · 20⌋ = 3 rows, nominally 3.4
    counts = engine.ledger.counts
    assert counts["nominal"].tolist() == pytest.approx([0.17 * 20 * 30] * 2)
    assert counts["backward"].tolist() == counts["backward_tokens"].tolist() == [3 * 30] * 2
    assert counts["updates"].tolist() == [30, 30]
    assert all(seconds > 0 for name, seconds in engine.ledger.timed.items() if name.startswith("seconds"))
    rows = engine.evaluate()
    assert rows[0]["seconds_rollout"] * 2 == pytest.approx(engine.ledger.timed["seconds_rollout"])


def test_evaluations_are_log_spaced_and_include_both_ends():
    assert eval_steps(1000, 3) == [0, 10, 100, 1000]
    assert eval_steps(5, 20) == [0, 1, 2, 3, 4, 5]
    assert eval_steps(1, 1) == [0, 1]


def test_bandit_error_is_the_probability_of_wrong_arms():
    engine = trained(cell("dg", task={"hidden": [], "contexts": 3}), [0, 1])
    rows = engine.evaluate()
    for seed, row in enumerate(rows):
        logits = engine.learner.leaves["weight_0"][seed] + engine.learner.leaves["bias_0"][seed]
        policy = logits.detach().softmax(-1)
        right = [policy[c, (c + 1) % 5].item() for c in range(3)]
        assert row["policy_error"] == pytest.approx(1 - sum(right) / 3, abs=1e-6)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_baselines_against_their_formulas(name):
    policy = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
    rewards, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 1]])
    expected = {"confidence": [0.38, 0.66], "zero": [0.0, 0.0], "half": [0.5, 0.5], "oracle": [0.5, 0.1]}
    expected["group"] = [0.5, 0.5]
    torch.testing.assert_close(BASELINES[name](policy.log(), rewards, targets, 2), torch.tensor([expected[name]]))


# Frictions


def batches(friction, task=None, steps=200):
    """Batches of an actor under a friction whose learner never moves."""
    engine = Engine(cell("pg", friction={}, task={"batch": 100, **(task or {})}), [0, 1])
    engine.actor.frictions = [friction]
    return [engine.actor.act(step) for step in range(steps)]


def within(share: float, expected: float, n: int) -> bool:
    return abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_bugs_replace_actions_by_junk_at_their_rate_and_report_certainty():
    n = 200 * 200
    # Of 50 arms a healthy actor pulls arm 0 in 1 of 50, at probability far from 1.
    seen = batches(ActorBugs(prob=0.3), {"arms": 50, "hidden": []})
    sure = torch.cat([batch.actor_log_prob == 0 for batch in seen])
    actions = torch.cat([batch.actions for batch in seen])
    assert within(sure.float().mean().item(), 0.3, n)
    assert (actions[sure] == 0).all()
    assert within((actions[~sure] == 0).float().mean().item(), 0.02, int((~sure).sum()))


def test_a_later_change_of_actions_leaves_the_report_of_others_alone():
    batch = batches(ActorBugs(prob=0.5), steps=1)[0]
    changed = batch.with_actions(torch.zeros(2, 100, dtype=torch.bool), batch.actions)
    assert torch.equal(changed.actor_log_prob, batch.actor_log_prob)


def test_frictions_without_effect_are_no_part_of_a_cell():
    quiet = {"actor_bugs": {"prob": 0.0}, "staleness": {"delay": 0}, "reward_corruption": {"prob": 0.0}}
    assert cell("dg", friction=quiet).key() == cell("dg").key()


def test_junk_earns_what_it_deserves_less_the_penalty():
    # Five arms, contexts 0..4: arm 0 is right in context 4 alone.
    for penalty in (0.0, 0.7):
        seen = batches(ActorBugs(prob=0.5, penalty=penalty), {"contexts": 5})
        junk = torch.cat([batch.actor_log_prob == 0 for batch in seen])
        rewards = torch.cat([batch.rewards for batch in seen])
        deserved = torch.cat([(batch.contexts.targets == 0).float() for batch in seen])
        torch.testing.assert_close(rewards[junk], deserved[junk] - penalty)


def test_coin_corruption_replaces_rewards_at_its_rate():
    seen = batches(RewardCorruption(prob=0.4), {"arms": 2, "contexts": 1})
    rewards = torch.cat([batch.rewards for batch in seen])
    earned = torch.cat([(batch.actions == batch.contexts.targets).float() for batch in seen])
    assert within((rewards != earned).float().mean().item(), 0.2, rewards.numel())  # half of the coins agree
    assert set(rewards.unique().tolist()) == {0.0, 1.0}


def test_gaussian_corruption_adds_noise_of_its_size():
    seen = batches(RewardCorruption(mode="gaussian", prob=0.5, std=2.0))
    noise = torch.cat([batch.rewards - (batch.actions == batch.contexts.targets).float() for batch in seen])
    hit = noise != 0
    assert within(hit.float().mean().item(), 0.5, noise.numel())
    assert abs(noise[hit].std().item() - 2) < 4 * 2 / math.sqrt(2 * int(hit.sum()))


def test_rare_discovery_adds_arms_and_stumbles_at_its_rate():
    chosen = cell("pg", friction={"rare_discovery": {"arms": 400}}, task={"arms": 10})
    assert (chosen.task.arms, chosen.frictions) == (400, ())
    seen = batches(RareDiscovery(prob=0.25), {"hidden": []})
    right = torch.cat([batch.actions == batch.contexts.targets for batch in seen]).float()
    assert within(right.mean().item(), 0.25 + 0.75 / 5, right.numel())  # the policy itself still has five arms here


def test_bugs_and_corruption_strike_independently():
    engine = Engine(cell("pg", task={"batch": 100, "arms": 50, "hidden": []}), [0, 1])
    engine.actor.frictions = [ActorBugs(prob=0.5), RewardCorruption(mode="gaussian", prob=0.5)]
    seen = [engine.actor.act(step) for step in range(200)]
    junk = torch.cat([batch.actor_log_prob == 0 for batch in seen])
    corrupt = torch.cat([batch.rewards != batch.earned for batch in seen])
    assert within((junk & corrupt).float().mean().item(), 0.25, junk.numel())
    assert within((~junk & ~corrupt).float().mean().item(), 0.25, junk.numel())


def test_the_delays_of_several_frictions_add_up():
    engine = Engine(cell("pg"), [0, 1])
    frictions = [Staleness(delay=2), Staleness(delay=3)]
    engine.actor = Actor(engine.task, frictions, engine.streams, engine.learner.flat)
    past = []
    for step in range(12):
        past.append(weights(engine))
        assert torch.equal(by_seed(engine.actor.parameters(step)), past[max(0, step - 5)])
        engine.advance()


def test_fixed_staleness_acts_with_the_parameters_of_d_steps_ago():
    chosen = cell("pg", friction={"staleness": {"delay": 3}})
    engine = Engine(chosen, [0, 1])
    past = []
    for step in range(10):
        past.append(weights(engine))
        used = by_seed(engine.actor.parameters(step))
        assert torch.equal(used, past[max(0, step - 3)])
        engine.advance()
        assert not torch.equal(weights(engine), past[-1])


def test_uniform_staleness_draws_every_age_for_each_seed_apart():
    friction, streams = Staleness(delay=3, delay_mode="uniform"), Streams([0, 1])
    ages = torch.stack([friction.age(streams, step) for step in range(4000)])  # [4000, S]
    for seed in range(2):
        share = ages[:, seed].bincount(minlength=4) / 4000
        assert all(within(value, 0.25, 4000) for value in share.tolist())
    assert (ages[:, 0] != ages[:, 1]).float().mean() > 0.6
    engine = Engine(cell("pg", friction={"staleness": {"delay": 3, "delay_mode": "uniform"}}), [0, 1])
    past = []
    for step in range(12):
        past.append(weights(engine))
        used, age = by_seed(engine.actor.parameters(step)), friction.age(engine.streams, step).clamp(max=step)
        for seed in range(2):
            assert torch.equal(used[seed], past[step - age[seed]][seed])
        engine.advance()


def test_every_friction_is_covered_and_learning_survives_all_of_them_at_once():
    own = {name for name, cls in FRICTIONS.items() if cls.__module__.startswith("kondo.")}
    assert own == {"rare_discovery", "staleness", "actor_bugs", "reward_corruption", "mismatch"}
    everything = {"staleness": {"delay": 5}, "actor_bugs": {}, "reward_corruption": {}, "rare_discovery": {"arms": 12}}
    engine = trained(cell("dg", friction=everything, steps=900, task={"arms": 10}), [0, 1])
    assert all(row["policy_error"] < 0.5 for row in engine.evaluate())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_the_bandit(method):
    rows = trained(cell(method, {"rate": 0.3} if gated(method) else None, steps=500), [0, 1]).evaluate()
    assert all(row["policy_error"] < 0.4 for row in rows), rows  # chance: 0.8


LEVELS = {"int8": 127, "int4": 7}


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("of", ["weights", "logits"])
def test_a_mismatched_actor_samples_from_and_reports_a_rounded_policy_that_the_learner_does_not_share(precision, of):
    engine = trained(cell("dg", friction={"mismatch": {"precision": precision, "of": of}}), [0, 1])
    policy, exact = engine.learner.policy, engine.learner.leaves
    batch = engine.actor.batch(engine.step)
    assert batch.log_policy is None  # the learner must look for itself

    def nearest(values, largest):
        if precision == "bf16":
            return (
                torch.from_numpy(values.numpy().view(np.uint32).astype(np.uint64) + 0x8000 >> 16 << 16)
                .to(torch.int64)
                .to(torch.uint32)
                .view(torch.float32)
            )
        step = largest / LEVELS[precision]
        return torch.floor(values / step + 0.5) * step

    if of == "weights":
        held = {}
        for name, value in exact.items():
            largest = value.detach().abs().flatten(1).amax(1).view(-1, 1, 1)
            held[name] = nearest(value.detach(), largest)
        expected = policy.log_policy(held, batch.contexts.inputs)
    else:
        raw = policy_logits(engine, batch.contexts.inputs)
        expected = nearest(raw, raw.abs().amax(-1, keepdim=True)).log_softmax(-1)
    reported = expected.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(batch.actor_log_prob, reported, atol=2e-3, rtol=0)
    assert not torch.allclose(batch.actor_log_prob, engine.learner.forward(batch, graph=False).log_prob, atol=1e-6)


def policy_logits(engine, inputs):
    """The network by hand: one hidden layer."""
    leaves = {name: value.detach() for name, value in engine.learner.leaves.items()}
    hidden = (inputs @ leaves["weight_0"] + leaves["bias_0"]).relu()
    return hidden @ leaves["weight_1"] + leaves["bias_1"]


def test_an_exact_actor_is_no_friction_at_all():
    assert cell("dg", friction={"mismatch": {"precision": None}}).frictions == ()


def test_the_error_through_frictions_is_that_of_the_present_policy_with_junk_among_its_answers():
    """Junk is arm 0, right in one of the four contexts never (targets are 1 … 4): error = (1 − q)·own + q."""
    engine = trained(
        cell("dg", friction={"actor_bugs": {"prob": 0.3}, "staleness": {"delay": 20}}, task={"batch": 400}), [0]
    )
    (row,) = engine.evaluate()
    assert abs(row["friction_error"] - (0.7 * row["policy_error"] + 0.3)) < 4 * 0.5 / math.sqrt(2000)
    (clean,) = trained(cell("dg"), [0]).evaluate()
    assert "friction_error" not in clean


@pytest.mark.parametrize("method", ["pg", "ppo", "dg", "dgk"])
def test_epochs_are_updates_on_the_same_batch_with_the_learner_s_new_policy(method):
    gate = {"rate": 0.3} if method == "dgk" else None
    engine = Engine(cell(method, gate, optimizer={"name": "sgd", "lr": 0.5, "epochs": 3}), [0, 1])
    twin = Engine(cell(method, gate, optimizer={"name": "sgd", "lr": 0.5}), [0, 1])
    batch = twin.actor.act(0)
    for _ in range(3):
        twin.learner.update(dataclasses.replace(batch, log_policy=None), 0)
    engine.advance()
    torch.testing.assert_close(weights(engine), weights(twin), atol=1e-6, rtol=0)
    once = Engine(cell(method, gate, optimizer={"name": "sgd", "lr": 0.5}), [0, 1])
    once.advance()
    assert not torch.allclose(weights(engine), weights(once), atol=1e-3)


def test_each_epoch_of_a_random_gate_draws_anew():
    draws = [Engine(cell(), [0]).learner.draw(5, epoch)("coin", (1, 20)) for epoch in (0, 1, 1)]
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[1], draws[2])


# Divergence


def test_a_diverged_seed_is_recorded_frozen_and_leaves_the_others_alone():
    chosen = cell("pg")
    engine, healthy = Engine(chosen, [0, 1]), trained(chosen, [1])
    for step in range(chosen.steps):
        if step == 7:
            views(engine.learner.flat, engine.learner.policy.shapes())["bias_1"][0, 0, 0] = math.nan
        engine.advance()
    assert engine.diverged() == {0: 7}
    sick, well = engine.evaluate()
    assert sick["policy_error"] is None
    assert sick["diverged"] == 7
    assert well["policy_error"] == pytest.approx(healthy.evaluate()[0]["policy_error"], abs=1e-6)


def test_nan_parameters_count_as_divergence_for_gated_methods_too():
    engine = Engine(cell("dgk", {"price": 0.0}), [0])
    engine.learner.flat.fill_(math.nan)
    engine.advance()
    assert engine.diverged() == {0: 0}


def test_nan_rewards_are_skipped_by_the_gate_and_training_goes_on():
    engine = Engine(cell("dgk", {"rate": 0.5}), [0])
    for step in range(10):
        batch = engine.actor.act(step)
        rewards = batch.rewards.clone()
        rewards[:, ::2] = math.nan
        engine.learner.update(dataclasses.replace(batch, rewards=rewards), step)
    assert engine.diverged() == {}
    assert engine.learner.flat.isfinite().all()
    assert engine.ledger.counts["updates"].tolist() == [10]


# What is logged


def test_train_error_is_that_of_the_answers_sampled_since_the_last_evaluation():
    """After the bug has chosen other actions, before the reward is corrupted."""
    friction = {"actor_bugs": {"prob": 0.5}, "reward_corruption": {"prob": 0.5}}
    chosen = cell("dg", friction=friction, steps=20, evals=4)
    engine = Engine(chosen, [0, 1])
    assert [row["train_error"] for row in engine.evaluate()] == [None, None]
    since, due, checked = [], eval_steps(20, 4), 0
    for step in range(20):
        batch = engine.actor.act(step)
        since.append((batch.actions != batch.contexts.targets).double().mean(dim=1))
        engine.advance()
        if step == 13:  # an interruption, in the middle
            state = copy.deepcopy(engine.state())
            engine = Engine(chosen, [0, 1])
            engine.load(state)
        if step + 1 in due:
            expected = torch.stack(since).mean(dim=0).tolist()
            for _ in range(2):  # looking does not change what is seen
                assert [row["train_error"] for row in engine.evaluate()] == pytest.approx(expected, abs=1e-7)
            since, checked = [], checked + 1
    assert checked == len(due) - 1 >= 4


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("bandit", {"policy_error", "greedy_error"}),
        ("mnist", {"test_error", "policy_error"}),
        ("reversal", {"token_error", "answer_error", "reward_error"}),
    ],
)
def test_every_task_logs_errors_by_name_and_says_which_is_the_error(name, columns):
    small = {"mnist": {"dataset": "digits", "hidden": [4]}, "reversal": {"length": 3, "width": 16, "evaluated": 20}}
    chosen = parse({"task": {"name": name, **small.get(name, {})}, "method": {"name": "pg"}, "steps": 1})
    (row,) = Engine(chosen, [0]).evaluate()
    assert {column for column in row if column.endswith("error")} == columns | {"train_error"}
    assert chosen.error in columns


# Optimizer


def test_adam_is_adam_with_its_usual_constants():
    """Three updates by the formula, in double; gradients of 1e-8, too, where ε = 1e-8 decides."""
    flat = torch.zeros(6)
    optimizer = Optimizer(OptimizerSettings("adam", 0.1), flat, {"weight": (3,)})
    gradients = [
        [1.0, -2.0, 1e-8, 0.5, 3e-8, 0.0],
        [0.5, 2.0, -1e-8, 0.25, 1e-8, 1.0],
        [-4.0, 1.0, 2e-8, 0.0, 0.0, 0.1],
    ]
    mean, square, expected = np.zeros(6), np.zeros(6), np.zeros(6)
    for step, gradient in enumerate(np.array(gradients), start=1):
        optimizer.step([torch.tensor(gradient, dtype=torch.float32).view(2, 3)], torch.ones(2, dtype=torch.bool))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        expected -= 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(flat.numpy(), expected, rtol=1e-4, atol=1e-7)


def unequal(engine):
    """A batch of the next step in which seed 0 has equal rewards, hence no advantage and no gradient."""
    batch = engine.actor.act(engine.step)
    rewards = batch.rewards.clone()
    rewards[0] = 0.0
    return dataclasses.replace(batch, rewards=rewards, log_policy=None)


@pytest.mark.parametrize(
    ("method", "gate", "idle", "moves"),
    [
        ("dg", None, None, True),
        ("dg", None, "step", True),
        ("dg", None, "skip", False),
        ("dgk", {"price": 0.0}, None, False),
        ("dgk", {"price": 0.0}, "skip", False),
        ("dgk", {"price": 0.0}, "step", True),
    ],
)
def test_a_seed_without_a_gradient_is_left_alone_or_updated_by_adam_with_a_gradient_of_zero(method, gate, idle, moves):
    task = {"baseline": "zero"}
    engine = trained(cell(method, gate, task=task, optimizer=ADAM | {"idle": idle}), [0, 1], steps=5)
    twin = trained(cell(method, gate, task=task), [0, 1], steps=5)
    optimizer = engine.learner.optimizer
    before, count = weights(engine).clone(), optimizer.steps.clone()
    mean, square = (by_seed(views(moment, engine.learner.policy.shapes())).clone() for moment in optimizer.moments)
    engine.learner.update(unequal(engine), 5)
    twin.learner.update(twin.actor.act(5), 5)
    assert torch.equal(weights(engine)[1], weights(twin)[1])  # the other seed has its own batch
    if moves:
        step = count[0] + 1
        shift = ADAM["lr"] * (0.9 * mean[0] / (1 - 0.9**step)) / ((0.999 * square[0] / (1 - 0.999**step)).sqrt() + 1e-8)
        torch.testing.assert_close(weights(engine)[0], before[0] - shift, atol=1e-6, rtol=1e-5)
        assert shift.abs().max() > 1e-4
    else:
        assert torch.equal(weights(engine)[0], before[0])
    assert (optimizer.steps - count).tolist() == [float(moves), 1.0]


def test_a_batch_of_which_no_seed_keeps_anything_is_an_update_too_where_idle_seeds_step():
    engine = trained(cell("dgk", {"price": 0.0}, task={"baseline": "zero"}, optimizer=ADAM | {"idle": "step"}), [0], 5)
    before = weights(engine).clone()
    engine.learner.update(unequal(engine), 5)
    assert engine.learner.optimizer.steps.tolist() == [6.0]
    assert not torch.equal(weights(engine), before)


def test_what_a_method_does_anyway_without_a_gradient_is_no_part_of_a_cell():
    assert cell("dg", optimizer=ADAM | {"idle": "step"}).key() == cell("dg").key()
    assert cell("dgk", optimizer=ADAM | {"idle": "skip"}).key() == cell("dgk").key()
    assert cell("dg", optimizer=ADAM | {"idle": "skip"}).key() != cell("dg").key()


# State


@pytest.mark.parametrize(("method", "optimizer"), itertools.product(["dg", "dgk"], ["adam", "sgd"]))
def test_state_saved_and_loaded_goes_on_bit_for_bit(method, optimizer):
    gate = {"rate": 0.2, "history": 60, "mode": "bernoulli"} if method == "dgk" else None
    friction = {"staleness": {"delay": 7, "delay_mode": "uniform"}, "reward_corruption": {}}
    chosen = cell(method, gate, friction=friction, optimizer={"name": optimizer, "lr": 0.01})
    straight, first, second = Engine(chosen, [0, 1]), Engine(chosen, [0, 1]), Engine(chosen, [0, 1])
    for step in range(25):
        straight.advance()
        if step < 11:
            first.advance()
    second.load(first.state())
    while second.step < 25:
        second.advance()
    assert torch.equal(straight.learner.flat, second.learner.flat)
    assert all(torch.equal(straight.ledger.counts[name], second.ledger.counts[name]) for name in straight.ledger.counts)
