"""MNIST as a contextual bandit, on scikit-learn's digits: task, screens and probes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.policies.mlp import views
from kondo.lab.probes import weighted_quantile
from kondo.lab.rounding import rounded
from kondo.lab.tasks import Contexts, data
from kondo.signals import taken
from tests.conftest import trained

DIGITS = {"name": "mnist", "dataset": "digits", "hidden": [16, 16], "batch": 50}


def digits(method="dgk", gate=None, **changes):
    task = DIGITS | changes.pop("task", {})
    plain = {"task": task, "method": {"name": method}, "gate": gate, "steps": 30, "evals": 5}
    return parse(plain | {"optimizer": {"name": "adam", "lr": 0.003}} | changes)


# The task


def test_every_seed_sees_images_of_its_own_and_is_paid_for_the_right_digit_alone():
    engine = Engine(digits("pg"), [0, 1])
    batch = engine.actor.act(0)
    assert batch.contexts.inputs.shape == (2, 50)
    assert engine.learner.policy.rows.dense(batch.contexts.inputs).max() == 1
    assert not torch.equal(batch.contexts.inputs[0], batch.contexts.inputs[1])
    assert torch.equal(batch.rewards, (batch.actions == batch.contexts.targets).float())


def test_error_is_that_of_the_greedy_policy_on_the_test_images():
    engine = trained(digits("dg"), [0, 1])
    images = data.load("digits", Path())
    for seed, row in enumerate(engine.evaluate()):
        x = images.test.double() / 16
        for i in range(3):
            x = (
                x @ engine.learner.leaves[f"weight_{i}"][seed].double()
                + engine.learner.leaves[f"bias_{i}"][seed].double()
            )
            x = x.clamp(min=0) if i < 2 else x
        wrong = (x.argmax(-1) != images.test_labels).double().mean()
        assert row["test_error"] == pytest.approx(wrong.item(), abs=1e-6)
        assert row["policy_error"] == pytest.approx(
            1 - x.softmax(-1)[torch.arange(360), images.test_labels].mean().item(), abs=1e-5
        )


def test_padded_arms_never_pay():
    chosen = digits("pg", friction={"rare_discovery": {"arms": 40}})
    assert chosen.plain()["task"]["arms"] == 40
    engine = Engine(chosen, [0])
    assert engine.learner.policy.sizes[-1] == 40
    batch = engine.actor.act(0)
    assert (batch.actions >= 10).any()
    assert batch.rewards[batch.actions >= 10].sum() == 0


@pytest.mark.parametrize(("method", "gate"), [("pg", None), ("dg", None), ("dgk", {"rate": 0.1}), ("ce", None)])
def test_methods_learn_digits(method, gate):
    rows = trained(digits(method, gate, steps=600), [0, 1]).evaluate()
    assert all(row["test_error"] < 0.35 for row in rows), rows  # chance: 0.9


# Screens


@pytest.mark.parametrize(("source", "agreement"), [("bf16", 0.05), ("int8", 0.05), ("snapshot", 0.5)])
def test_an_approximate_screen_costs_a_pass_and_is_close_to_the_exact_one(source, agreement):
    screen = {"source": source, **({"age": 3} if source == "snapshot" else {})}
    engine = trained(digits("dgk", {"rate": 0.1}, screen=screen), [0, 1], steps=20)
    assert engine.ledger.counts["screened"].tolist() == [50 * 20] * 2
    batch, learner = engine.actor.act(20), engine.learner
    exact = taken(batch.log_policy, batch.actions)
    seen = learner.screen.delight(exact, torch.ones_like(exact), batch.contexts.inputs, batch.actions, 20)
    gap = (seen + exact).abs().max()
    assert 0 < gap < agreement


def test_a_snapshot_screen_is_the_policy_of_that_many_steps_ago():
    engine = Engine(digits("dgk", {"rate": 0.1}, screen={"source": "snapshot", "age": 4}), [0])
    past = []
    for step in range(10):
        past.append(engine.learner.flat.clone())
        contexts = engine.task.draw(engine.streams, step)
        seen = engine.learner.screen.log_policy(contexts.inputs, contexts.targets, step)
        then = views(past[max(0, step - 4)], engine.learner.policy.shapes())
        assert torch.equal(seen, engine.learner.policy.log_policy(then, contexts.inputs))
        engine.advance()


def test_noise_multiplies_delight_by_one_plus_sigma_times_a_standard_normal():
    engine = Engine(digits("dg", screen={"noise": 0.5}, task={"batch": 20_000}), [0])
    log_prob = torch.full((1, 20_000), -2.0)
    inputs = actions = torch.zeros(1)
    seen = engine.learner.screen.delight(log_prob, torch.ones_like(log_prob), inputs, actions, 0)
    assert abs(seen.mean() - 2) < 4 * 1 / 20_000**0.5
    assert abs(seen.std() - 1) < 4 / (2 * 20_000) ** 0.5


def test_noise_is_drawn_anew_in_every_step():
    screen = Engine(digits("dg", screen={"noise": 0.5}), [0]).learner.screen
    log_prob, nothing = torch.full((1, 50), -2.0), torch.zeros(1)
    first, second, again = (screen.delight(log_prob, -log_prob, nothing, nothing, step) for step in (0, 1, 0))
    assert torch.equal(first, again)
    assert (first != second).float().mean() > 0.9


def test_noise_changes_what_dg_learns_and_no_noise_changes_nothing():
    quiet, loud = (trained(digits("dg", screen={"noise": s}), [0]).learner.flat for s in (0.0, 1.0))
    assert torch.equal(quiet, trained(digits("dg"), [0]).learner.flat)
    assert not torch.equal(quiet, loud)


def test_int8_has_255_levels_per_seed():
    value = torch.randn(2, 30, 40)
    held = rounded(value, "int8")
    for seed in range(2):
        scale = value[seed].abs().max() / 127
        levels = held[seed] / scale
        torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
        assert (value[seed] - held[seed]).abs().max() <= scale / 2 * 1.001


# Probes


def test_expected_update_of_pg_is_the_gradient_of_the_expected_reward():
    engine = trained(digits("dg", probe={"name": "alignment", "samples": 60}), [0, 1], steps=300)
    for row in engine.evaluate():
        assert row["cos_pg_clean"] == pytest.approx(1, abs=1e-4)  # a baseline shifts no expectation
        assert row["cos_is_pg_mixed"] == pytest.approx(1, abs=1e-4)  # exact importance sampling neither
        assert row["cos_pg_mixed"] < 0.99
        assert row["cos_dg_clean"] == row["cos_dg_clean"] != 1


def test_expected_updates_agree_with_the_mean_of_many_sampled_ones():
    """cos of DG's exact expected update with the average over 4,000 draws of the actions, on the same contexts."""
    engine = trained(digits("dg", probe={"name": "alignment", "samples": 40}), [0], steps=20)
    learner = engine.learner
    contexts = engine.task.at(engine.streams.below(engine.task.size, "probe", 0, (40,)))
    log_policy = learner.policy.log_policy(learner.leaves, contexts.inputs)
    policy = log_policy.detach().exp()[0]
    draws = torch.multinomial(policy, 4000, replacement=True)  # [40, 4000]
    counts = torch.nn.functional.one_hot(draws, 10).float().mean(1)  # the sampled distribution
    reward = torch.nn.functional.one_hot(contexts.targets[0], 10).float()
    advantage = reward - policy.square().sum(-1, keepdim=True)
    weight = torch.sigmoid(advantage * -policy.log())
    goal = (policy * reward * log_policy[0]).sum()
    update = (counts * weight * advantage * log_policy[0]).sum()
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad(x, list(learner.leaves.values()), retain_graph=True)])
        for x in (goal, update)
    ]
    sampled = torch.nn.functional.cosine_similarity(*flat, dim=0).item()
    assert engine.evaluate()[0]["cos_dg_clean"] == pytest.approx(sampled, abs=0.01)


def test_weighted_quantile_of_equal_weights_is_the_order_statistic():
    values = torch.randn(3, 100)
    expected = values.sort(dim=1).values[:, 96]
    assert torch.equal(weighted_quantile(values, torch.ones(3, 100), 0.97), expected)


def test_anatomy_shows_what_the_gate_keeps_and_changes_nothing():
    probe = {"name": "anatomy", "samples": 40}
    engine = trained(digits("dgk", {"rate": 0.1, "history": 100}, probe=probe), [0, 1], steps=10)
    before = engine.learner.gate.history.clone()
    row = engine.evaluate()[1]
    assert len(row["anatomy_advantage"]) == len(row["anatomy_digit"]) == 40
    assert torch.equal(engine.learner.gate.history, before)
    delights = np.array(row["anatomy_advantage"]) * np.array(row["anatomy_surprisal"])
    keep = np.array(row["anatomy_keep"], dtype=bool)
    assert delights[keep].min() >= row["anatomy_price"] - 1e-3
    assert keep.any()


# Costs


def test_on_policy_the_ungated_update_goes_through_the_sampler_s_own_forward_pass(monkeypatch):
    calls = []
    policy = type(Engine(digits("dg"), [0]).learner.policy)
    plain = policy.log_policy
    monkeypatch.setattr(policy, "log_policy", lambda self, *a: calls.append(1) or plain(self, *a))
    trained(digits("dg"), [0], steps=5)
    assert len(calls) == 5
    shared = trained(digits("dg"), [0], steps=8).learner.flat
    engine = Engine(digits("dg"), [0])
    engine.actor.leaves = None  # as if it could not
    for _ in range(8):
        engine.advance()
    torch.testing.assert_close(engine.learner.flat, shared)


def test_memory_of_a_stale_actor_is_what_its_delay_needs():
    engine = Engine(digits("pg", friction={"staleness": {"delay": 30}}), [0, 1])
    assert engine.actor.past.ring.shape == (31, len(engine.learner.flat))


# Several guesses per image


@pytest.mark.parametrize(("method", "gate"), [("pg", None), ("dg", None), ("dgk", {"rate": 0.2})])
def test_guesses_at_the_same_image_are_the_same_as_that_image_drawn_as_often(method, gate):
    """The update equals that of a batch in which every image stands there S times, with the same guesses."""
    engine = Engine(digits(method, gate, task={"batch": 6, "samples": 5}), [0, 1])
    batch = engine.actor.act(0)
    assert batch.actions.shape == (2, 30)
    assert batch.contexts.inputs.shape == (2, 6)
    spread = replace(
        batch,
        contexts=Contexts(batch.contexts.inputs.repeat_interleave(5, dim=1), batch.contexts.targets),
        log_policy=None,
    )
    twin = Engine(digits(method, gate, task={"batch": 30}), [0, 1])
    engine.learner.update(batch, 0)
    twin.learner.update(spread, 0)
    torch.testing.assert_close(engine.learner.flat, twin.learner.flat, atol=1e-7, rtol=0)
    assert (batch.actions.view(2, 6, 5) != batch.actions.view(2, 6, 5)[..., :1]).any()


def test_an_image_is_one_forward_pass_however_often_it_is_guessed():
    rows = trained(digits("dg", task={"batch": 6, "samples": 5}, steps=3), [0]).evaluate()
    assert (rows[0]["forward"], rows[0]["backward"]) == (18, 90)
