"""Studies: every closed form against a simulation or brute force, within a stated Monte-Carlo error."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from experiments.compose import single
from kondo.gate import KondoGateConfig
from kondo.lab.config.cell import parse
from kondo.lab.streams import Streams
from kondo.lab.studies import Rule, policies
from kondo.lab.studies.coefficient import GateCoefficient
from kondo.lab.studies.contamination import Contamination, best_blind, collapse, population
from kondo.lab.studies.gambling import Gambling, false_positive, stall
from kondo.lab.studies.geometry import GradientGeometry, PriceGeometry, geometry, samples_needed, success_rate
from kondo.lab.studies.ranking import PriorityRanking, critical_alpha
from kondo.lab.studies.suppression import Suppression, sure
from kondo.lab.training import Block, train
from kondo.schema import ConfigError
from tests.test_runs import log_of

PG, DG = Rule("pg", {}, None), Rule("dg", {"temperature": 1.0}, None)
IS = Rule("is_pg_uncapped", {}, None)


def gate(price: float = 0.0, **settings) -> Rule:
    return Rule("dgk", {}, KondoGateConfig(gate_rate=None, price=price, **settings).settings())


def deviations(columns, exact: str, simulated: str) -> np.ndarray:
    """How many standard errors the mean over replicates is from the closed form, point by point."""
    drawn = np.array(columns[simulated], dtype=float)
    error = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
    return np.abs(drawn.mean(axis=0) - np.array(columns[exact][0])) / np.maximum(error, 1e-9)


# The mechanism


STUDY = {"name": "gradient_geometry", "arms": 4, "probs": [0.1, 0.3], "batch": 50, "replicates": 5}


def study_cell(**changes):
    return parse({"task": STUDY, "method": {"name": "dgk"}, "steps": 1, "evals": 1} | changes)


def test_a_study_is_a_run_of_one_row_per_seed_that_is_not_measured_again(tmp_path):
    block = Block(study_cell(), (0, 1, 2))
    assert train(block, tmp_path) == "done"
    rows = log_of(block.folder(tmp_path))
    assert [(row["step"], row["seed"]) for row in rows] == [(1, 0), (1, 1), (1, 2)]
    assert len(rows[0]["share_simulated"]) == 2
    before = (block.folder(tmp_path) / "metrics.jsonl").stat().st_mtime_ns
    assert train(block, tmp_path) == "done"
    assert before == (block.folder(tmp_path) / "metrics.jsonl").stat().st_mtime_ns


@pytest.mark.parametrize("rule", [PG, gate(0.1, deterministic=False)])
def test_a_replicate_depends_on_its_seed_alone(rule):
    studies = [
        GradientGeometry(**{key: tuple(v) if isinstance(v, list) else v for key, v in STUDY.items() if key != "name"}),
        PriceGeometry(batch=10, contexts=3),
        Gambling(batch=5, updates=3),
        Contamination(batch=50, contexts=10, replicates=2),
        GateCoefficient(batch=10),
        Suppression(batch=50, contexts=4, unsolved=2),
    ]
    for study in studies:
        together, alone = (study.measure(rule, Streams(seeds)) for seeds in ([3, 7], [7]))
        assert json.dumps([column[1] for column in together.values()]) == json.dumps(
            [column[0] for column in alone.values()]
        )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("gate.rate=0.1", "gate.price"),
        ("friction=staleness", "is not trained by the engine"),
        ("screen.noise=1", "is not trained by the engine"),
        ("probe.name=kept", "is not trained by the engine"),
        ("method=pmpo", "one sample at a time"),
        ("method=ce", "needs target_log_prob"),
        ("task=priority_ranking method=pg", "methods with one: dgk"),
        ("task.probs=[0.5,1.5]", "task.probs"),
    ],
)
def test_what_a_study_cannot_have_is_refused(words, part):
    with pytest.raises(ConfigError, match=part):
        single(["task=gradient_geometry", *words.split()])


def test_a_study_s_gate_is_priced_at_zero_unless_told_otherwise():
    assert single(["task=gradient_geometry"]).cell.gate.price == 0


def test_a_rule_is_the_gradient_of_its_objective():
    """PG 1·U, DG σ(χ)·U, IS (π/μ)·U and the gate's indicator, written out."""
    log_prob = torch.tensor([[-0.1, -2.0, -0.7]]).double()
    advantage = torch.tensor([[0.5, 0.8, -0.4]]).double()
    actor = torch.tensor([[-0.5, -1.0, -0.2]]).double()
    chi = -advantage * log_prob
    for rule, expected in (
        (PG, advantage),
        (DG, advantage * torch.sigmoid(chi)),
        (IS, advantage * (log_prob - actor).exp()),
        (gate(0.1), advantage * (chi > 0.1)),
        (gate(0.1, deterministic=False), advantage * torch.sigmoid((chi - 0.1) / 0.1)),
        (gate(0.1, hard=False), advantage * torch.sigmoid((chi - 0.1) / 0.1)),
    ):
        keep, coefficient = rule(log_prob, advantage, actor)
        assert torch.allclose(keep * coefficient, expected)


# Geometry: J1, J2


def test_geometry_is_that_of_the_samples_drawn_one_by_one():
    """20,000 explicit gradient vectors. A mean is within 5 of its standard errors; variances within 5%, whose own
    relative standard error is about 1% here."""
    torch.manual_seed(1)
    policy = torch.cat([policies((0.2,), 5, skew=1.0), policies((0.6,), 5)])  # two contexts
    coefficient = torch.randn(2, 5, dtype=torch.float64)
    parts = geometry(policy, policy / 2, coefficient)
    place = torch.multinomial((policy / 2).flatten(), 20_000, replacement=True)
    samples = torch.zeros(20_000, 2, 5, dtype=torch.float64)
    context, arm = place // 5, place % 5
    vectors = torch.nn.functional.one_hot(arm, 5) - policy[context]
    samples[torch.arange(20_000), context] = coefficient[context, arm, None] * vectors
    goal = policy[:, :1] * (torch.eye(5, dtype=torch.float64)[0] - policy)
    unit = goal / goal.norm()
    along = (samples * unit).sum(dim=(1, 2))
    across = (samples - along[:, None, None] * unit).flatten(1)
    assert abs(along.mean() - parts["signal"]) < 5 * along.std() / 20_000**0.5
    assert float(along.var()) == pytest.approx(float(parts["parallel"]), rel=0.05)
    assert float(across.var(dim=0).sum()) == pytest.approx(float(parts["perpendicular"]), rel=0.05)


@pytest.mark.parametrize("baseline", ["confidence", "half", "zero", "oracle"])
@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_at_price_zero_every_update_is_along_the_gradient_and_a_share_p_is_bought(baseline, skew):
    probs = (0.01, 0.2, 0.7)
    policy = policies(probs, 6, skew)
    study = GradientGeometry(arms=6, probs=probs, baseline=baseline)
    keep, coefficient = gate()(policy.log(), study.advantage(policy))
    parts = geometry(policy.unsqueeze(-2), (policy * keep).unsqueeze(-2), coefficient.unsqueeze(-2))
    assert torch.allclose(parts["share"], torch.tensor(probs).double())
    assert torch.allclose(parts["cosine"], torch.ones(3).double())
    assert float((parts["perpendicular"] / parts["square"]).max()) < 1e-9


def test_equal_wrong_arms_have_the_variances_of_the_formula():
    """PG with b = p: p(1−2p)²/(1−p)·|v|² along ∇J, p²(1−p)(K−2)/(K−1) across, |v|² = (1−p)²K/(K−1)."""
    p, arms = torch.tensor([0.05, 0.3]).double(), 7
    policy = policies(p, arms)
    advantage = GradientGeometry(arms=arms, baseline="oracle").advantage(policy)
    parts = geometry(policy.unsqueeze(-2), policy.unsqueeze(-2), advantage.unsqueeze(-2))
    length = (1 - p) ** 2 * arms / (arms - 1)
    assert torch.allclose(parts["parallel"], p * (1 - 2 * p) ** 2 / (1 - p) * length)
    assert torch.allclose(parts["perpendicular"], p**2 * (1 - p) * (arms - 2) / (arms - 1))


@pytest.mark.parametrize("rule", [PG, DG, gate()])
def test_simulated_geometry_agrees_with_the_closed_form(rule):
    """Within 5 standard errors of the mean of 40 replicates, at every p."""
    study = GradientGeometry(probs=(0.01, 0.1, 0.5), batch=20_000, replicates=100)
    columns = study.measure(rule, Streams(list(range(40))))
    for name in ("share", "parallel"):
        assert deviations(columns, name, f"{name}_simulated").max() < 5
    drawn, exact = np.array(columns["perpendicular_simulated"]).mean(0), np.array(columns["perpendicular"][0])
    assert np.allclose(drawn, exact, rtol=0.05, atol=1e-9)
    # 100 batches of each size: 13% per replicate, 2% of their mean, and as much for sizes being a third apart
    needed, predicted = np.array(columns["needed_simulated"]).mean(0)[:2], np.array(columns["needed"][0])[:2]
    assert np.allclose(needed, predicted, rtol=0.12)


def test_the_gate_needs_one_success_and_pg_one_over_p_squared_unless_its_baseline_is_small():
    for p in (0.001, 0.01, 0.2):
        assert samples_needed(p, 10, 0.9, 0.0, 0.9, 0.1) == math.ceil(math.log(0.1) / math.log1p(-p))
        assert success_rate(20, p, 10, 0.9, 0.0, 0.9) == pytest.approx(1 - (1 - p) ** 20)
    fixed = [samples_needed(p, 10, 0.5, 0.5, 0.9, 0.1) * p**2 for p in (1e-4, 1e-3)]
    # χ²₈ is below 13.36 with probability 0.9; c² / (1 − c²) = 4.263
    assert fixed == pytest.approx([0.5**2 * 13.36 / 10 * 4.263] * 2, rel=0.02)
    small = [samples_needed(p, 10, 1 - p, p, 0.9, 0.1) * p for p in (1e-4, 1e-3)]
    assert small == pytest.approx([math.log(10)] * 2, rel=0.01)


@pytest.mark.parametrize("rule", [PG, DG, gate(-0.5), gate(0.2), gate(0.2, deterministic=False)])
def test_what_a_price_buys_agrees_with_simulation(rule):
    """Within 5 standard errors of the mean of 40 replicates; the cosine of a finite sample is lower than that of the
    mean by an amount of second order, allowed for by 0.005."""
    columns = PriceGeometry(batch=1000).measure(rule, Streams(list(range(40))))
    for name in ("share", "gain", "gain_backward", "batch_cosine"):
        drawn = np.array(columns[f"{name}_simulated"])
        error = 5 * drawn.std(ddof=1) / math.sqrt(len(drawn)) + 0.005 * (name == "batch_cosine")
        assert abs(drawn.mean() - columns[name][0]) <= error + 1e-12


# Ranking: J3


def test_the_critical_alpha_is_where_brute_force_finds_it():
    """Over p, K and α, by comparing the two priorities; 0 where a success is the more surprising."""
    for p, arms, alpha in itertools.product((0.01, 0.05, 0.2, 0.5, 0.9), (3, 10, 100), np.linspace(0, 1, 41)):
        success = alpha * (1 - 0.3) - (1 - alpha) * math.log(p)
        failure = alpha * (0 - 0.3) - (1 - alpha) * math.log((1 - p) / (arms - 1))
        critical = float(critical_alpha(torch.tensor(p, dtype=torch.float64), arms))
        if abs(alpha - critical) > 1e-9:
            assert (failure > success) == (alpha < critical)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.6, 0.9])
def test_simulated_ranks_agree_with_the_boundary_and_delight_has_none(alpha):
    """Equal wrong arms leave nothing to chance; unequal ones are within 5 standard errors of 40 replicates."""
    study = PriorityRanking(probs=(0.02, 0.05, 0.2, 0.5, 0.9), batch=500)
    columns = study.measure(gate(priority="additive", alpha=alpha), Streams(list(range(40))))
    expected = (alpha < np.array(columns["critical"][0])).astype(float)
    assert columns["misranked"][0] == pytest.approx(expected)
    assert (np.array(columns["misranked_simulated"]) == expected).all()
    assert deviations(columns, "misranked_skewed", "misranked_skewed_simulated").max() < 5
    columns = study.measure(gate(), Streams([0, 1]))
    assert np.max(columns["misranked_skewed"] + columns["misranked_skewed_simulated"]) == 0


def test_chance_misranks_half():
    columns = PriorityRanking(probs=(0.5,), batch=1000).measure(gate(priority="uniform"), Streams(list(range(40))))
    assert np.mean(columns["misranked_simulated"]) == pytest.approx(0.5, abs=0.015)  # 5 standard errors


# Gambling: J4


def test_the_gate_opens_for_the_bad_arm_as_often_as_the_normal_tail_says_and_below_the_bound():
    """Within 5 binomial standard errors of 40,000 samples."""
    study = Gambling(stds=(0.2, 0.5, 1.0, 5.0), batch=1000, updates=1)
    columns = study.measure(gate(0.1), Streams(list(range(40))))
    exact, drawn = np.array(columns["opened"][0]), np.array(columns["opened_simulated"]).mean(0)
    assert (np.abs(exact - drawn) < 5 * np.sqrt(exact * (1 - exact) / 40_000) + 1e-12).all()
    std = torch.tensor(study.stds, dtype=torch.float64)
    assert (false_positive(std, 0.5) <= 0.5 * torch.exp(-(0.25 / std**2) / 2)).all()


@pytest.mark.parametrize("noise", ["bad", "both"])
@pytest.mark.parametrize("rule", [PG, DG, gate()])
def test_learning_follows_the_expected_update(rule, noise):
    """Batches of 1,000: fluctuations of the logits stay below a few percent over 200 updates."""
    study = Gambling(stds=(0.3, 1.0, 2.0), noise=noise, batch=1000, updates=200)
    columns = study.measure(rule, Streams([0, 1, 2]))
    learned = np.array(columns["learned"]).mean(0)
    assert np.allclose(learned, np.array(columns["mean_field"][0]), rtol=0.1, atol=0.01)


def test_the_gate_stalls_where_the_drift_is_zero():
    """From both sides of the stall, after 3,000 expected updates."""
    for start in (0.5, 0.97):
        columns = Gambling(stds=(1.0, 1.5), start=start, batch=1, updates=3000).measure(gate(), Streams([0]))
        assert np.array(columns["mean_field"][0])[:, -1] == pytest.approx([stall(1.0), stall(1.5)], rel=0.02)


# Contamination: D2, D3


@pytest.mark.parametrize("rule", [PG, IS, DG, gate()])
def test_batch_cosines_agree_with_simulation(rule):
    """Within 5 standard errors of 20 replicates of 10 batches each."""
    study = Contamination(contexts=100, deltas=(0.02, 0.1, 0.5), batch=1000)
    columns = study.measure(rule, Streams(list(range(20))))
    assert deviations(columns, "batch_cosine", "batch_cosine_simulated").max() < 5


def test_pg_collapses_as_the_root_of_delta_and_dg_comes_back_in_proportion_to_it():
    deltas = (1e-4, 4e-4, 1.6e-3)
    study = Contamination(contexts=10_000, deltas=deltas, batch=1, replicates=1)
    pg = np.array(study.measure(PG, Streams([0]))["cosine"][0])
    assert pg == pytest.approx(collapse(torch.tensor(deltas), 0.5, 10).tolist(), rel=0.02)
    for rule in (DG, gate()):
        short = 1 - np.array(study.measure(rule, Streams([0]))["cosine"][0])
        assert short[1:] / short[:-1] == pytest.approx([4, 4], rel=0.15)


def test_the_mean_of_exact_importance_sampling_is_the_gradient():
    assert Contamination(deltas=(0.01,), replicates=1).measure(IS, Streams([0]))["cosine"][0][0] == pytest.approx(1)


def test_no_random_sign_blind_weight_beats_the_best():
    """2,000 random weights per distinct probability, on the batch cosine computed by `geometry`."""
    torch.manual_seed(0)
    policy = population(0.1, 20, 5)
    behaviour = 0.5 * policy + 0.1
    advantage = Contamination().advantage(policy)
    best = best_blind(policy, behaviour, advantage, 100)
    levels, label = torch.unique((policy.log() * 1e6).round(), return_inverse=True)
    highest = 0.0
    for _ in range(2000):
        weight = torch.rand(len(levels), dtype=torch.float64)[label] ** 3
        parts = geometry(policy, behaviour / 20, weight * advantage)
        noise = (parts["parallel"] + parts["perpendicular"]) / 100
        highest = max(highest, float(parts["signal"] / (parts["square"] + noise).sqrt()))
    assert best - 0.02 < highest <= best + 1e-9


# Suppression: D2′, D3′


BY_SURPRISAL = [
    gate(6.0, priority="surprisal"),
    gate(6.0, priority="surprisal", hard=False, temperature=2.0),
    gate(6.0, priority="surprisal", deterministic=False, temperature=2.0),
]


@pytest.mark.parametrize(("baseline", "b"), [("confidence", None), ("half", 0.5)])
def test_the_second_moment_of_rare_failures_is_suppressed_by_the_square_of_the_weight(baseline, b):
    """1 for PG, σ(−bℓ)² for DG, 0 for the gate at λ = 0, (π/β)² for exact IS; and to leading order q^2b and (qK/ρ)²."""
    delta, arms, share = 1e-4, 7, 0.3
    study = Suppression(arms=arms, deltas=(delta,), share=share, baseline=baseline, batch=1)
    q = delta / (arms - 1)
    b = (1 - delta) ** 2 + (arms - 1) * q**2 if b is None else b
    rules = {"pg": PG, "dg": DG, "gate": gate(), "is": IS}
    exact = {"pg": 1.0, "dg": (1 / (1 + q**-b)) ** 2, "gate": 0.0, "is": (q / ((1 - share) * q + share / arms)) ** 2}
    factors = {name: study.measure(rule, Streams([0]))["factor"][0][0] for name, rule in rules.items()}
    assert factors == pytest.approx(exact, rel=1e-9)
    assert factors["dg"] == pytest.approx(q ** (2 * b), rel=0.02)
    assert factors["is"] == pytest.approx((q * arms / share) ** 2, rel=0.02)


def test_the_moment_is_across_the_gradient_of_all_contexts():
    """Against explicit vectors of all logits, for weights that differ between the contexts (b sees the label)."""
    study = Suppression(arms=4, contexts=3, unsolved=1, deltas=(0.2,), share=0.4, baseline="oracle", batch=1)
    policy = sure(0.2, 3, 1, 4)
    assert policy[:, 0].tolist() == pytest.approx([0.2 / 3, 0.8, 0.8])
    goal = torch.zeros(3, 4, dtype=torch.float64)
    for context in range(3):
        goal[context] = policy[context, 0] * (torch.eye(4, dtype=torch.float64)[0] - policy[context])
    unit = goal.flatten() / goal.norm()
    moments = {"pg": 0.0, "dg": 0.0}
    for context, arm in itertools.product(range(3), range(1, 4)):
        if policy[context, arm] > 0.5:
            continue  # not rare
        vector = torch.zeros(3, 4, dtype=torch.float64)
        vector[context] = torch.eye(4, dtype=torch.float64)[arm] - policy[context]
        across = vector.flatten() - (vector.flatten() @ unit) * unit
        gain = -float(policy[context, 0])
        square = (0.6 * float(policy[context, arm]) + 0.1) * gain**2 * float(across.square().sum())
        moments["pg"] += square
        moments["dg"] += square / (1 + float(policy[context, arm]) ** gain) ** 2
    found = study.measure(DG, Streams([0]))["factor"][0][0]
    assert found == pytest.approx(moments["dg"] / moments["pg"], rel=1e-9)


@pytest.mark.parametrize("rule", [PG, IS, DG, gate(), *BY_SURPRISAL])
@pytest.mark.parametrize("baseline", ["confidence", "half", "oracle"])
def test_simulated_suppression_agrees_with_the_closed_form(rule, baseline):
    """Within 5 standard errors of 20 replicates."""
    study = Suppression(deltas=(0.001, 0.03, 0.3), baseline=baseline, batch=2000)
    columns = study.measure(rule, Streams(list(range(20))))
    for name in ("factor", "failure", "success"):
        assert deviations(columns, name, f"{name}_simulated").max() < 5


@pytest.mark.parametrize("baseline", ["confidence", "half", "oracle"])
def test_what_sees_only_probabilities_weighs_rare_failures_and_successes_alike_and_delight_does_not(baseline):
    study = Suppression(deltas=(1e-5, 0.01), baseline=baseline, batch=1)
    for rule in (PG, IS, *BY_SURPRISAL):
        columns = study.measure(rule, Streams([0]))
        assert columns["failure"][0] == pytest.approx(columns["success"][0], rel=1e-12)
    free = study.measure(gate(), Streams([0]))
    assert (free["failure"][0], free["success"][0]) == ([0, 0], [1, 1])
    dg = study.measure(DG, Streams([0]))
    failure, success = dg["failure"][0][0], dg["success"][0][0]
    assert success == pytest.approx({"confidence": 0.5, "half": 1.0, "oracle": 1.0}[baseline], abs=0.01)
    # with b = π(y*), failures of unsolved contexts have no advantage left: 8 of 17 rare failures weigh ½
    assert failure == pytest.approx({"confidence": 0.0, "half": 0.0, "oracle": 0.5 * 8 / 17}[baseline], abs=0.01)


# Coefficient


def test_the_coin_s_frequency_is_its_weight_and_at_price_zero_and_temperature_one_that_is_dg_s():
    """Within 5 binomial standard errors of 40,000 tosses."""
    study = GateCoefficient(advantages=(-0.8, -0.1, 0.4, 1.0), probs=(0.01, 0.3, 0.9), batch=1000)
    streams = Streams(list(range(40)))
    columns = study.measure(gate(deterministic=False, temperature=1.0), streams)
    exact, drawn = np.array(columns["weight"][0]), np.array(columns["weight_simulated"]).mean(0)
    assert (np.abs(exact - drawn) < 5 * np.sqrt(exact * (1 - exact) / 40_000)).all()
    assert exact == pytest.approx(study.measure(DG, streams)["weight"][0])
    hard = study.measure(gate(0.3), streams)["weight"][0]
    chi = -np.array(columns["advantage"][0]) * np.log(columns["prob"][0])
    assert hard == (chi > 0.3).astype(float).tolist()
