"""Screens that are cheaper than the learner: its first layers, and a draft that is distilled from it."""

import copy

import pytest
import torch

from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.policies.mlp import views
from kondo.schema import ConfigError
from kondo.signals import taken

SMALL = {"name": "reversal", "length": 3, "width": 16, "ff": 16, "prompts": 2, "samples": 10, "evaluated": 10}


def cell(source):
    plain = {
        "task": SMALL,
        "method": {"name": "dgk"},
        "gate": {"rate": 0.2},
        "screen": {"source": source},
        "optimizer": {"name": "adam", "lr": 0.01},
        "probe": {"name": "agreement"},
        "steps": 40,
        "evals": 4,
    }
    return parse(plain)


def trained(source, steps, seeds=(0, 1)):
    engine = Engine(cell(source), list(seeds))
    for _ in range(steps):
        engine.advance()
    return engine


def batch(engine):
    made = engine.actor.act(engine.step)
    return made.contexts.inputs, made.actions


@pytest.mark.parametrize("layers", [1, 2])
def test_a_truncated_screen_is_the_policy_whose_later_layers_add_nothing(layers):
    engine = trained(f"truncated_{layers}", 5)
    inputs, actions = batch(engine)
    seen = engine.learner.screen.log_policy(inputs, actions, engine.step)
    silenced = views(engine.learner.flat.clone(), engine.learner.policy.shapes())
    for later in range(layers, 3):
        silenced[f"out_{later}"].zero_()
        silenced[f"down_{later}"].zero_()
    torch.testing.assert_close(seen, engine.learner.policy.log_policy(silenced, inputs, actions))


def test_a_draft_comes_to_say_what_the_learner_says():
    engine = trained("draft", 5)
    inputs, actions = batch(engine)
    screen = engine.learner.screen
    with torch.no_grad():
        exact = engine.learner.policy.log_policy(engine.learner.leaves, inputs, actions)

    def divergence():
        return (exact.exp() * (exact - screen.log_policy(inputs, actions, 0))).sum(-1).mean().item()

    before = divergence()
    for _ in range(200):
        screen.observe(exact, inputs, actions, 0)
    assert before > 0
    assert divergence() < before / 4


def test_a_draft_learns_once_a_step_and_not_from_being_looked_at():
    engine = trained("draft", 3)
    draft = engine.learner.screen
    assert draft.optimizer.steps.tolist() == [3, 3]
    before = draft.own.clone()
    engine.evaluate()
    assert torch.equal(draft.own, before)


@pytest.mark.parametrize("source", ["exact", "int8", "truncated_1", "draft", "blind"])
def test_recall_is_the_share_of_the_exact_gates_choice_that_the_screen_makes_too(source):
    engine = trained(source, 3)
    recall = [row["recall"] for row in engine.evaluate()]
    made = engine.actor.act(engine.step)
    learner = engine.learner
    log_prob = taken(made.log_policy, made.actions)  # [S, B, T]
    advantage = learner.advantage(made, made.log_policy)
    seen = {"exact": log_prob, "blind": torch.full_like(log_prob, -1)}.get(source)
    if seen is None:
        seen = taken(learner.screen.log_policy(made.contexts.inputs, made.actions, engine.step), made.actions)
    for seed in range(2):
        delights = ((-advantage[seed] * x[seed].mean(-1)).tolist() for x in (log_prob, seen))
        best, found = (set(sorted(range(20), key=lambda i, chi=chi: -chi[i])[:4]) for chi in delights)
        assert recall[seed] == pytest.approx(len(best & found) / 4)
    assert source != "exact" or recall == [1, 1]
    assert engine.ledger.counts["screened"].tolist() == [0 if source in ("exact", "blind") else 60] * 2


def test_a_resumed_draft_goes_on_as_if_never_interrupted():
    whole = trained("draft", 6)
    half = trained("draft", 3)
    state = copy.deepcopy(half.state())
    other = Engine(cell("draft"), [0, 1])
    other.load(state)
    for _ in range(3):
        other.advance()
    assert torch.equal(other.learner.flat, whole.learner.flat)
    assert torch.equal(other.learner.screen.own, whole.learner.screen.own)


def test_a_seeds_draft_does_not_depend_on_which_others_share_its_block():
    alone, shared = trained("draft", 5, [1]), trained("draft", 5, [0, 1])
    mine = views(alone.learner.screen.own, alone.learner.screen.draft.shapes())
    ours = views(shared.learner.screen.own, shared.learner.screen.draft.shapes())
    for name, value in mine.items():
        torch.testing.assert_close(value[0], ours[name][1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("source", "task"),
    [("truncated_1", {"name": "bandit"}), ("draft", SMALL | {"layers": 1}), ("truncated_2", SMALL | {"layers": 2})],
)
def test_a_screen_of_fewer_layers_is_refused_where_the_policy_has_no_more(source, task):
    plain = {"task": task, "method": {"name": "dgk"}, "screen": {"source": source}, "steps": 1}
    with pytest.raises(ConfigError, match=source):
        parse(plain)
