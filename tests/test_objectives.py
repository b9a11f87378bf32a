"""Each objective against numpy, and its gradient against one derived by hand for a softmax policy."""

import math

import numpy as np
import pytest
import torch

from kondo import dg_loss, pg_loss
from kondo.objectives import METHODS, dgk, method, pmpo
from kondo.signals import action_log_probs

B, K = 12, 5
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(1, B, K))
ACTIONS = RNG.integers(K, size=(1, B))
TARGETS = RNG.integers(K, size=(1, B))
ADVANTAGE = RNG.normal(size=(1, B))
ADVANTAGE[0, [3, 7]] = 0.0
ACTOR = np.log(RNG.uniform(0.05, 0.9, size=(1, B)))
WEIGHT = RNG.integers(2, size=(1, B)).astype(float)

POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
PROB = np.take_along_axis(POLICY, ACTIONS[..., None], -1)[..., 0]
ELL = -np.log(PROB)
RATIO = PROB / np.exp(ACTOR)
GOOD, WORSE = ADVANTAGE > 0, ADVANTAGE < 0


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The coefficient c of each sample in the loss's gradient −c ∇log π(a), derived by hand.
PPO_PASSES = np.where(GOOD, RATIO < 1.2, RATIO > 0.8)
COEFFICIENTS = {
    "pg": ADVANTAGE,
    "is_pg": np.minimum(RATIO, 2.0) * ADVANTAGE,
    "is_pg_uncapped": RATIO * ADVANTAGE,
    "dg": sigmoid(ADVANTAGE * ELL / 0.7) * ADVANTAGE,
    "dg_is": np.minimum(RATIO, 1.5) * sigmoid(ADVANTAGE * ELL / 0.7) * ADVANTAGE,
    "dgk": WEIGHT * ADVANTAGE,
    "ppo": np.where(PPO_PASSES, RATIO * ADVANTAGE, 0),
    "pmpo": B * (0.3 * GOOD / GOOD.sum() - 0.7 * ~GOOD / (~GOOD).sum() * PROB / (1e-3 + PROB) + 0.2 / B),
    "pmpo_strict": B * (0.3 * GOOD / GOOD.sum() - 0.7 * WORSE / WORSE.sum() * PROB / (1e-3 + PROB) + 0.2 / B),
}
LOSSES = {
    "pg": ADVANTAGE * ELL,
    "is_pg": np.minimum(RATIO, 2.0) * ADVANTAGE * ELL,
    "is_pg_uncapped": RATIO * ADVANTAGE * ELL,
    "dg": sigmoid(ADVANTAGE * ELL / 0.7) * ADVANTAGE * ELL,
    "dg_is": np.minimum(RATIO, 1.5) * sigmoid(ADVANTAGE * ELL / 0.7) * ADVANTAGE * ELL,
    "dgk": WEIGHT * ADVANTAGE * ELL,
    "ppo": -np.minimum(RATIO * ADVANTAGE, np.clip(RATIO, 0.8, 1.2) * ADVANTAGE),
    "pmpo": B
    * (0.3 * GOOD / GOOD.sum() * ELL + 0.7 * ~GOOD / (~GOOD).sum() * np.log(1e-3 + PROB) + 0.2 / B * (ACTOR + ELL)),
    "pmpo_strict": B
    * (0.3 * GOOD / GOOD.sum() * ELL + 0.7 * WORSE / WORSE.sum() * np.log(1e-3 + PROB) + 0.2 / B * (ACTOR + ELL)),
}
OPTIONS = {
    "is_pg": {"cap": 2.0},
    "dg": {"temperature": 0.7},
    "dg_is": {"temperature": 0.7, "cap": 1.5},
    "ppo": {"clip": 0.2},
    "pmpo": {"alpha": 0.3, "gamma": 1e-3, "beta": 0.2},
    "pmpo_strict": {"alpha": 0.3, "gamma": 1e-3, "beta": 0.2},
}


def quantities(logits):
    log_prob = action_log_probs(logits, torch.tensor(ACTIONS))
    target = action_log_probs(logits, torch.tensor(TARGETS))
    advantage, actor, weight = map(torch.tensor, (ADVANTAGE, ACTOR, WEIGHT))
    return {
        "pg": (log_prob, advantage),
        "is_pg": (log_prob, advantage, actor),
        "is_pg_uncapped": (log_prob, advantage, actor),
        "dg": (log_prob, advantage, (advantage * -log_prob).detach()),
        "dg_is": (log_prob, advantage, (advantage * -log_prob).detach(), actor),
        "dgk": (log_prob, advantage, weight),
        "ppo": (log_prob, advantage, actor),
        "pmpo": (log_prob, advantage, actor),
        "pmpo_strict": (log_prob, advantage, actor),
        "ce": (target,),
    }


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_objective_equals_its_formula_and_its_gradient_the_hand_derived_one(name):
    logits = torch.tensor(LOGITS, requires_grad=True)
    loss = METHODS[name](*quantities(logits)[name], **OPTIONS.get(name, {}))
    np.testing.assert_allclose(loss.detach().numpy(), LOSSES[name], rtol=1e-9)
    loss.mean().backward()
    score = np.eye(K)[ACTIONS] - POLICY  # ∇log π(a) with respect to the logits
    np.testing.assert_allclose(logits.grad.numpy(), -COEFFICIENTS[name][..., None] * score / B, atol=1e-12)


def test_cross_entropy_is_minus_the_log_probability_of_the_target():
    logits = torch.tensor(LOGITS, requires_grad=True)
    METHODS["ce"](*quantities(logits)["ce"]).mean().backward()
    np.testing.assert_allclose(logits.grad.numpy(), (POLICY - np.eye(K)[TARGETS]) / B, atol=1e-12)


def test_every_method_is_covered_above():
    own = {name for name, objective in METHODS.items() if objective.__module__.startswith("kondo.")}
    assert own == set(LOSSES) | {"ce", "is_pg_sequence"}
    assert RATIO.max() > 2  # so that a cap of 2 is felt


def test_importance_sampling_by_answer_weights_every_token_by_the_capped_product_of_its_answer():
    probs = RNG.uniform(0.05, 0.9, size=(2, 1, 6, 4))  # learner's and actor's, [S, B, T]
    advantage = np.repeat(ADVANTAGE[:, :6, None], 4, axis=2)
    ours, theirs = np.log(probs)
    weight = np.minimum((probs[0] / probs[1]).prod(-1), 2.0)[..., None]
    loss = METHODS["is_pg_sequence"](*map(torch.tensor, (ours, advantage, theirs)), cap=2.0)
    np.testing.assert_allclose(loss.numpy(), -weight * advantage * ours)
    log_prob, advantage, actor = quantities(torch.tensor(LOGITS))["is_pg"]
    single = METHODS["is_pg_sequence"](log_prob, advantage, actor, cap=2.0)
    assert torch.equal(single, METHODS["is_pg"](log_prob, advantage, actor, cap=2.0))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pmpo_has_a_finite_gradient_when_all_samples_are_good_or_all_bad(sign):
    log_prob = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    pmpo(log_prob, torch.full((1, 2), sign), torch.zeros(1, 2), beta=0.1).mean().backward()
    expected = (-0.5 if sign > 0 else 0.5) / 2 - 0.1 / 2
    torch.testing.assert_close(log_prob.grad, torch.full((1, 2), expected), atol=1e-6, rtol=0)


def test_pmpo_means_are_taken_per_seed():
    log_prob, actor = -torch.rand(2, 6), torch.zeros(2, 6)
    advantage = torch.tensor([[1.0, -1, -1, -1, -1, -1], [1.0, 1, 1, 1, 1, -1]])
    together = pmpo(log_prob, advantage, actor)
    for seed in range(2):
        torch.testing.assert_close(together[seed], pmpo(log_prob[[seed]], advantage[[seed]], actor[[seed]])[0])


def test_pg_loss_and_dg_loss_are_means_over_the_batch():
    logits, actions, advantage = torch.tensor(LOGITS[0]), torch.tensor(ACTIONS[0]), torch.tensor(ADVANTAGE[0])
    loss, weights = dg_loss(logits, actions, advantage, eta=0.7)
    assert math.isclose(loss.item(), LOSSES["dg"].mean())
    np.testing.assert_allclose(weights.numpy(), sigmoid(ADVANTAGE * ELL / 0.7)[0])
    assert math.isclose(pg_loss(logits, actions, advantage).item(), LOSSES["pg"].mean())


def test_the_gate_with_every_weight_one_is_policy_gradient():
    log_prob, advantage = -torch.rand(1, 4), torch.randn(1, 4)
    assert torch.equal(dgk(log_prob, advantage, torch.ones(1, 4)), METHODS["pg"](log_prob, advantage))


def test_a_method_that_asks_for_what_no_learner_has_is_refused():
    with pytest.raises(TypeError, match="reward_to_go"):
        method(lambda log_prob, reward_to_go: log_prob)
