"""Token reversal: the transformer, its cache, rewards, frictions on sequences, and both units of the gate."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from experiments.compose import single
from kondo.lab import kernels
from kondo.lab.baselines import BASELINES
from kondo.lab.config.cell import gated, parse
from kondo.lab.engine import Engine
from kondo.lab.frictions import ActorBugs, RareDiscovery, RewardCorruption
from kondo.lab.policies.mlp import by_seed, views
from kondo.lab.policies.transformer import Transformer
from kondo.lab.streams import Streams
from kondo.lab.tasks import Contexts
from kondo.lab.tasks.reversal import Reversal
from kondo.objectives import METHODS
from kondo.schema import ConfigError
from kondo.signals import taken
from tests.conftest import trained

SMALL = {"name": "reversal", "length": 4, "prompts": 5, "samples": 4, "layers": 2, "width": 16, "heads": 2, "ff": 32}


def reversal(method="dgk", gate=None, **changes):
    task = SMALL | changes.pop("task", {})
    name, options = (method, {}) if isinstance(method, str) else method
    plain = {"task": task, "method": {"name": name, **options}, "gate": gate, "steps": 20, "evals": 3}
    return parse(plain | {"optimizer": {"name": "adam", "lr": 1e-3}} | changes)


# The transformer


def written_out(policy, parameters, seed, prompt, answer):
    """Logits of one answer to one prompt, in double precision, one head and one place at a time."""
    p = {name: value[seed].detach().double() for name, value in parameters.items()}
    tokens = torch.cat([prompt, answer[:-1]])
    x = p["embedding"][tokens] + p["position"]
    size = policy.width // policy.heads

    def norm(x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    for i in range(policy.layers):
        y = (norm(x) * p[f"attention_scale_{i}"].T) @ p[f"qkv_{i}"]
        q, k, v = y.split(policy.width, dim=-1)
        mixed = torch.zeros_like(x)
        for head in range(policy.heads):
            at = slice(head * size, (head + 1) * size)
            for place in range(len(tokens)):
                scores = k[: place + 1, at] @ q[place, at] / math.sqrt(size)
                mixed[place, at] = scores.softmax(-1) @ v[: place + 1, at]
        x = x + mixed @ p[f"out_{i}"]
        x = x + ((norm(x) * p[f"ff_scale_{i}"].T) @ p[f"up_{i}"]).clamp(min=0) @ p[f"down_{i}"]
    return (x[len(prompt) - 1 :] @ p["unembedding"]).log_softmax(-1)


@pytest.fixture(params=["on", "off"], ids=["kernels", "plain"])
def model(request, monkeypatch):
    """A policy of three seeds away from its symmetric start, with prompts, samples and what they were drawn from."""
    monkeypatch.setenv(kernels.SWITCH, request.param)
    policy, streams = Transformer(vocab=5, prompt=6, answer=6, samples=3, width=16, heads=2, ff=32), Streams([3, 0, 8])
    flat = policy.init(streams)
    flat += 0.1 * torch.randn_like(flat)
    parameters = views(flat, policy.shapes())
    prompts = streams.below(5, "context", 0, (4, 6))
    return policy, parameters, streams, prompts, *policy.sample(parameters, prompts, streams, 0)


def test_the_policy_is_the_transformer_written_out_place_by_place(model):
    policy, parameters, _, prompts, actions, _ = model
    log_policy = policy.log_policy(parameters, prompts, actions)
    for seed, row in ((0, 0), (1, 4), (2, 11)):
        expected = written_out(policy, parameters, seed, prompts[seed, row // 3], actions[seed, row])
        torch.testing.assert_close(log_policy[seed, row].double(), expected, atol=1e-5, rtol=0)


def test_sampled_log_probabilities_are_those_of_a_full_forward_pass(model):
    """To 1e-5: the same sums in another order."""
    policy, parameters, _, prompts, actions, log_policy = model
    assert actions.shape == (3, 12, 6)
    torch.testing.assert_close(policy.log_policy(parameters, prompts, actions), log_policy, atol=1e-5, rtol=0)


def test_answers_that_share_a_prompt_are_treated_as_if_each_had_its_own(model):
    policy, parameters, _, prompts, actions, _ = model
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    gradients = []
    for inputs in (prompts, prompts.repeat_interleave(3, dim=1)):
        log_prob = taken(policy.log_policy(leaves, inputs, actions), actions)
        gradients.append(torch.autograd.grad((log_prob * log_prob.detach()).sum(), list(leaves.values())))
    for shared, own in zip(*gradients, strict=True):
        torch.testing.assert_close(shared, own, atol=1e-4, rtol=1e-4)


def test_tokens_are_drawn_from_the_policy_and_answers_to_a_prompt_differ(model):
    policy, parameters, streams, prompts, _, _ = model
    many = replace(policy, samples=4000)
    actions, log_policy = many.sample(parameters, prompts[:, :1], streams, 0)
    share = torch.nn.functional.one_hot(actions[:, :, 0], 5).float().mean(1)
    expected = log_policy[:, 0, 0].exp()
    assert ((share - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt() + 1e-6).all()
    assert len(actions[0].unique(dim=0)) > 20


# Rewards, baseline, evaluation


@pytest.mark.parametrize(
    ("settings", "answer", "expected"),
    [
        ({}, [1, 1, 0, 2], 1.0),
        ({}, [1, 0, 0, 2], 0.75),
        ({"credit": "to_first_error"}, [1, 0, 0, 2], 0.25),
        ({"kappa": 0.0}, [1, 0, 0, 2], 0.0),
        ({"kappa": 0.0}, [1, 1, 0, 2], 1.0),
        ({"kappa": 0.4}, [0, 1, 0, 2], 0.3),
        ({"kappa": 0.4, "credit": "to_first_error"}, [1, 1, 1, 2], 0.2),
        ({"target": "copy"}, [2, 0, 1, 1], 1.0),
        ({"target": "increment"}, [0, 1, 2, 2], 1.0),
        ({"target": "increment"}, [0, 1, 1, 1], 0.5),
    ],
)
def test_rewards_by_hand(settings, answer, expected):
    task = Reversal(length=4, vocab=3, **settings)
    contexts = task._asked(torch.tensor([[[2, 0, 1, 1]]]), 2)
    rewards = task.reward(contexts, torch.tensor([[answer, answer]]))
    assert rewards.tolist() == [[pytest.approx(expected)] * 2]


def test_the_advantage_is_the_reward_less_the_mean_of_its_group():
    engine = Engine(reversal("pg"), [0, 1])
    batch = engine.actor.act(0)
    assert batch.group == 4
    advantage = engine.learner.advantage(batch, batch.log_policy)
    for row in (0, 7, 19):
        group = batch.rewards[:, row // 4 * 4 : row // 4 * 4 + 4]
        torch.testing.assert_close(advantage[:, row], batch.rewards[:, row] - group.mean(1))


@pytest.mark.parametrize(("credit", "kappa"), [("share", 1.0), ("share", 0.25), ("to_first_error", 0.5)])
def test_errors_are_the_expectation_over_all_answers_of_the_learner(credit, kappa):
    """Against a sum over all 2⁴ answers to each prompt, exact where whole prefixes decide; the tokens' errors are given
    sampled answers, so within 4 deviations of 500 of them (tokens of an answer go together)."""
    engine = trained(reversal("dg", task={"credit": credit, "kappa": kappa}), [0, 1])
    rows, task = engine.evaluate(), engine.task
    contexts = task._asked(engine.streams.below(2, "evaluation", 20, (500, 4)), 1)
    every = torch.tensor(list(itertools.product(range(2), repeat=4)))  # [16, 4]
    answers = every.expand(2, 500, 16, 4).flatten(1, 2)
    log_prob = taken(engine.learner.policy.log_policy(engine.learner.leaves, contexts.inputs, answers), answers)
    chance = log_prob.double().sum(-1).exp().view(2, 500, 16)
    right = (every == contexts.targets.unsqueeze(2)).double()  # [2, 500, 16, 4]
    counted = right if credit == "share" else right.cumprod(-1)
    solved = right.prod(-1)
    errors = {
        "token_error": 1 - right.mean(-1),
        "answer_error": 1 - solved,
        "reward_error": 1 - kappa * counted.mean(-1) - (1 - kappa) * solved,
    }
    for name, error in errors.items():
        exact = name == "answer_error" or (name == "reward_error" and credit == "to_first_error")
        for seed, value in enumerate((chance * error).sum(-1).mean(-1).tolist()):
            assert rows[seed][name] == pytest.approx(value, abs=1e-6 if exact else 4 * 0.5 / math.sqrt(500))
    assert all(0 < row["entropy"] <= math.log(2) for row in rows)


def test_the_share_reward_s_error_is_the_token_error():
    rows = trained(reversal("dg"), [0, 1]).evaluate()
    assert all(row["reward_error"] == row["token_error"] > 0 for row in rows)


def test_equal_rewards_of_a_group_leave_no_advantage_at_all():
    """Ten times 0.7 has a mean that is not 0.7 in 32 bits."""
    rewards = torch.full((1, 20), 0.7)
    rewards[0, 10] = 0.3
    advantage = rewards - BASELINES["group"](torch.empty(0), rewards, torch.empty(0), 10)
    assert not advantage[0, :10].any()
    torch.testing.assert_close(advantage[0, 10:], rewards[0, 10:] - 0.66)


# The gate


GATES = [
    {"rate": 0.1},
    {"rate": 0.1, "unit": "token"},
    {"rate": 1.0},
    {"price": 0.0},
    {"price": 0.0, "unit": "token"},
    {"price": 0.0, "mode": "soft"},
    {"rate": 0.2, "mode": "bernoulli", "unit": "token"},
    {"rate": 0.2, "priority": "uniform"},
    {"rate": 0.2, "history": 40, "warmup": 30},
]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("friction", [{}, {"actor_bugs": {"prob": 0.3}}])
def test_gathered_gradients_equal_those_of_the_masked_full_batch(gate, friction):
    engine = trained(reversal("dgk", gate, friction=friction), [0, 1], steps=4)
    learner = engine.learner
    batch = engine.actor.act(engine.step)
    gradient = learner.gated_gradient(batch, learner.screening(batch, engine.step))

    log_prob = taken(learner.policy.log_policy(learner.leaves, batch.contexts.inputs, batch.actions), batch.actions)
    group = batch.rewards.view(2, 5, 4)
    advantage = (group - group.mean(-1, keepdim=True)).view(2, 20, 1).expand_as(log_prob)
    screened = taken(batch.log_policy, batch.actions) if batch.log_policy is not None else log_prob.detach()
    draw = lambda name, shape: engine.streams.uniform(f"gate.{name}", engine.step, shape[1:])  # noqa: E731
    weights = learner.gate.compute_gate(screened, advantage, pools=1, draw=draw).gate_weights
    weights = weights.view(2, 20, -1).expand_as(log_prob)
    masked = -(weights * advantage * log_prob).mean(dim=(1, 2)).sum()
    expected = torch.autograd.grad(masked, list(learner.leaves.values()))
    for ours, theirs in zip(gradient.tensors, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("unit", ["sequence", "token"])
def test_a_row_without_a_kept_token_is_absent_from_the_graph(unit, monkeypatch):
    rows_in_graph = []
    plain = Transformer.log_policy

    def hooked(self, parameters, inputs, actions):
        output = plain(self, parameters, inputs, actions)
        if output.requires_grad:
            output.register_hook(lambda gradient: rows_in_graph.append(gradient.shape[0] * gradient.shape[1]))
        return output

    monkeypatch.setattr(Transformer, "log_policy", hooked)
    engine = trained(reversal("dgk", {"rate": 0.1, "unit": unit}), [0, 1])
    rows, tokens = engine.ledger.counts["backward"], engine.ledger.counts["backward_tokens"]
    assert sum(rows_in_graph) == rows.sum() + engine.ledger.timed["padding"]
    assert torch.equal(tokens, 4 * rows)
    assert engine.ledger.counts["nominal"].tolist() == pytest.approx([0.1 * 20 * 20] * 2)
    if unit == "sequence":  # ⌊0.1 · 20⌋ rows in each of 20 steps
        assert rows.tolist() == [40, 40]
    else:  # ⌊0.1 · 80⌋ tokens, in as many rows or fewer
        assert ((rows >= 40) & (rows <= 160)).all()


def test_a_sequence_s_delight_is_the_mean_over_its_tokens():
    engine = Engine(reversal("dgk", {"rate": 0.1}), [0])
    batch = engine.actor.act(0)
    advantage = engine.learner.advantage(batch, batch.log_policy)
    delight = -taken(batch.log_policy, batch.actions).mean(-1) * advantage
    kept = delight[0].topk(2).indices
    seen = []
    plain = engine.learner.policy.log_policy
    object.__setattr__(engine.learner.policy, "log_policy", lambda p, x, a: seen.append((x, a)) or plain(p, x, a))
    engine.learner.gated_gradient(batch, engine.learner.screening(batch, 0))
    ((inputs, actions),) = seen
    rows = kept.sort().values
    assert torch.equal(actions[0], batch.actions[0, rows])
    assert torch.equal(inputs[0], batch.contexts.inputs[0, rows // 4])


def test_auto_means_sequence_and_sample_is_refused():
    assert reversal().gate.unit == "sequence"
    assert reversal().key() == reversal(gate={"unit": "sequence"}).key()
    with pytest.raises(ConfigError, match="allowed: auto, sequence, token"):
        reversal(gate={"unit": "sample"})
    with pytest.raises(ConfigError, match="several samples per context"):
        reversal(task={"samples": 1})
    with pytest.raises(ConfigError, match="not a multiple"):
        reversal(task={"width": 15})


def test_on_policy_the_sampler_screens_for_free_and_a_friction_makes_the_learner_pay():
    assert trained(reversal(), [0]).ledger.counts["screened"].tolist() == [0]
    for friction in ({"staleness": {"delay": 2}}, {"actor_bugs": {"prob": 0.5}}):
        assert trained(reversal(friction=friction), [0]).ledger.counts["screened"].tolist() == [20 * 20]


# Frictions on sequences


def batches(friction, steps=100, **task):
    """Batches of an actor under a friction whose learner never moves; 5 prompts of 4 answers for 2 seeds each."""
    engine = Engine(reversal("pg", task={"vocab": 5, **task}), [0, 1])
    engine.actor.frictions = [friction]
    return [engine.actor.act(step) for step in range(steps)]


def within(share, expected, n):
    return abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_bugs_make_whole_answers_junk_at_their_rate_and_report_certainty_for_each_token():
    seen = batches(ActorBugs(prob=0.3, penalty=0.5))
    reported = torch.cat([batch.actor_log_prob for batch in seen], 1)  # [S, n, T]
    actions, rewards = (torch.cat([getattr(batch, name) for batch in seen], 1) for name in ("actions", "rewards"))
    targets = torch.cat([batch.contexts.targets for batch in seen], 1)
    junk = (reported == 0).all(-1)
    assert torch.equal(junk, (reported == 0).any(-1))
    assert within(junk.float().mean().item(), 0.3, junk.numel())
    assert (actions[junk] == 0).all()
    deserved = (actions == targets).float().mean(-1) - 0.5 * junk
    torch.testing.assert_close(rewards, deserved)
    assert all(batch.log_policy is None for batch in seen)


def test_rare_discovery_pays_all_or_nothing_and_stumbles_on_whole_answers_at_its_rate():
    seen = batches(RareDiscovery(prob=0.25), kappa=0.0)
    right = torch.cat([(batch.actions == batch.contexts.targets).all(-1) for batch in seen], 1)
    rewards = torch.cat([batch.rewards for batch in seen], 1)
    assert torch.equal(rewards, right.float())
    # Of 5⁴ answers one is right: by chance 1 in 625, or so, as the untrained policy is not quite uniform.
    assert abs(right.float().mean().item() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / right.numel()) + 0.005
    policy, batch = Transformer, seen[0]
    own = policy.log_policy(batch.policy, batch.parameters, batch.contexts.inputs, batch.actions)
    torch.testing.assert_close(batch.actor_log_prob, taken(own, batch.actions), atol=1e-5, rtol=0)


def test_corruption_replaces_the_reward_of_whole_answers():
    seen = batches(RewardCorruption(prob=0.4), vocab=2)
    rewards = torch.cat([batch.rewards for batch in seen], 1)
    earned = torch.cat([(batch.actions == batch.contexts.targets).float().mean(-1) for batch in seen], 1)
    partly = (earned > 0) & (earned < 1)  # where no coin agrees
    changed = rewards != earned
    assert within(changed[partly].float().mean().item(), 0.4, int(partly.sum()))
    assert set(rewards[changed].unique().tolist()) == {0.0, 1.0}


def test_a_stale_actor_s_log_probabilities_are_those_of_its_old_parameters():
    engine = Engine(reversal("pg", friction={"staleness": {"delay": 3}}), [0, 1])
    past = []
    for step in range(6):
        past.append(engine.learner.flat.clone())
        batch = engine.actor.act(step)
        then = views(past[max(0, step - 3)], engine.learner.policy.shapes())
        expected = taken(engine.learner.policy.log_policy(then, batch.contexts.inputs, batch.actions), batch.actions)
        torch.testing.assert_close(batch.actor_log_prob, expected, atol=1e-5, rtol=0)
        assert batch.log_policy is None
        engine.learner.update(batch, step)
        engine.step += 1


# The engine on sequences


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("friction", [{}, {"staleness": {"delay": 5, "delay_mode": "uniform"}, "actor_bugs": {}}])
def test_stacked_seeds_train_like_each_alone(method, friction):
    """To 1e-3 after 20 steps of Adam at 1e-3, which turns rounding in a gradient near 0 into a step of up to its own
    size; the same tokens are drawn and kept."""
    chosen = reversal(method, {"price": 0.0} if gated(method) else None, friction=friction)
    block = trained(chosen, [4, 0, 9])
    for i, seed in enumerate((4, 0, 9)):
        alone = trained(chosen, [seed])
        gap = by_seed(block.learner.leaves)[i] - by_seed(alone.learner.leaves)[0]
        assert gap.abs().max() < 1e-3
        assert block.ledger.counts["backward"][i] == alone.ledger.counts["backward"][0]


@pytest.mark.parametrize(
    ("method", "gate", "bar"),
    [("dg", None, 0.05), ("dgk", {"rate": 0.1}, 0.1), ("dgk", {"price": 0.0}, 0.1), ("ce", None, 0.02)],
)
def test_methods_learn_to_reverse_three_bits(method, gate, bar):
    task = {"length": 3, "prompts": 10, "samples": 10, "width": 32}
    rows = trained(reversal(method, gate, task=task, steps=150), [0, 1]).evaluate()
    assert all(row["token_error"] < bar for row in rows), rows  # chance: 0.5


@pytest.mark.parametrize("method", ["dg", "dgk"])
def test_state_saved_and_loaded_goes_on_bit_for_bit(method):
    gate = {"rate": 0.2, "history": 60, "unit": "token"} if method == "dgk" else None
    friction = {"staleness": {"delay": 7, "delay_mode": "uniform"}, "actor_bugs": {}, "rare_discovery": {"prob": 0.1}}
    chosen = reversal(method, gate, friction=friction)
    straight, first, second = (Engine(chosen, [0, 1]) for _ in range(3))
    for step in range(20):
        straight.advance()
        if step < 9:
            first.advance()
    second.load(first.state())
    while second.step < 20:
        second.advance()
    assert torch.equal(straight.learner.flat, second.learner.flat)
    costs = {"seconds_rollout", "seconds_screen", "seconds_backward", "seconds_optimizer"}
    same = [
        [{k: v for k, v in row.items() if k not in costs} for row in each.evaluate()] for each in (straight, second)
    ]
    assert same[0] == same[1]


def test_the_update_never_goes_through_the_sampler_which_has_no_graph():
    engine = Engine(reversal("dg"), [0])
    assert engine.actor.leaves is None
    batch = engine.actor.act(0)
    assert not batch.log_policy.requires_grad
    assert isinstance(batch.contexts, Contexts)
    engine.advance()
    assert engine.ledger.counts["backward"].tolist() == [20]


# Configs and probes


def test_intensity_of_every_friction_has_a_meaning_of_its_own_on_sequences():
    given = single(["task=reversal", "friction=all", "intensity=0.25"]).cell.plain()["friction"]
    assert given["staleness"] == {"delay": 100, "delay_mode": "uniform"}
    assert "rare_discovery" not in given
    assert single(["task=reversal", "friction=all", "intensity=0.25"]).cell.task.kappa == 0.75
    assert single(["task=reversal", "friction=rare_discovery"]).cell.task.kappa == 0
    punished = single(["task=reversal", "friction=penalised_bugs", "intensity=0.5"]).cell.plain()["friction"]
    assert punished == {"actor_bugs": {"prob": 0.5, "penalty": 1.0}}


@pytest.mark.parametrize("unit", ["sequence", "token"])
def test_the_kept_probe_tells_of_the_next_batch_and_changes_nothing(unit):
    friction = {"staleness": {"delay": 2}}
    gate = {"rate": 0.2, "unit": unit}
    plain = trained(reversal("dgk", gate, friction=friction), [0, 1])
    engine = Engine(reversal("dgk", gate, friction=friction, probe={"name": "kept"}), [0, 1])
    for _ in range(20):
        engine.evaluate()
        engine.advance()
    assert torch.equal(engine.learner.flat, plain.learner.flat)

    row, batch, learner = engine.evaluate()[1], engine.actor.act(20), engine.learner
    log_prob = taken(learner.policy.log_policy(learner.leaves, batch.contexts.inputs, batch.actions), batch.actions)[1]
    advantage = batch.rewards[1].view(5, 4) - batch.rewards[1].view(5, 4).mean(1, keepdim=True)
    delight = -log_prob * advantage.view(20, 1)  # [B, T]
    if unit == "sequence":
        best = delight.mean(1).topk(4).indices
        kept = torch.zeros(20, 4, dtype=torch.bool).index_fill(0, best, True)
    else:
        kept = delight >= delight.flatten().topk(16).values[-1]
    right = batch.actions[1] == batch.contexts.targets[1]
    assert row["kept_surprisal"] == pytest.approx(-log_prob[kept].mean().item(), abs=1e-5)
    assert row["kept_right"] == pytest.approx(right[kept].float().mean().item(), abs=1e-6)
    assert row["all_right"] == pytest.approx(right.float().mean().item(), abs=1e-6)
