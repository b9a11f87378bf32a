"""What looks changes nothing: probes, and all that a learner computes before it acts."""

import copy
import math
from typing import Any

import pytest
import torch

from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.probes import PROBES, ProbeSettings
from tests.conftest import trained

DIGITS = {"name": "mnist", "dataset": "digits", "hidden": [8], "batch": 30}
REVERSAL = {"name": "reversal", "length": 3, "width": 16, "ff": 16, "prompts": 2, "samples": 10, "evaluated": 10}
GATE = {"rate": 0.2, "mode": "bernoulli", "history": 70, "max_consecutive_drops": 2, "priority": "uniform"}
STALE = {"staleness": {"delay": 3, "delay_mode": "uniform"}}
CELLS: dict[str, dict[str, Any]] = {
    "stale": {"task": DIGITS, "gate": GATE, "friction": STALE},
    "snapshot": {"task": DIGITS, "gate": GATE, "screen": {"source": "snapshot", "age": 3}},
    "draft": {"task": REVERSAL, "gate": GATE, "screen": {"source": "draft"}, "friction": STALE},
}
OWN = [name for name, code in PROBES.items() if code.__module__.startswith("kondo.")]


def engine_of(name: str, method: str = "dgk", **changes: Any) -> Engine:
    """Trained for longer than anything is remembered."""
    plain = {"method": {"name": method}, "steps": 20} | CELLS[name] | changes
    return trained(parse(plain | ({"gate": None} if method != "dgk" else {})), [0, 1], steps=9)


def state(engine: Engine) -> Any:
    """All there is, torch's own generator included."""
    return copy.deepcopy((engine.state(), engine.learner.leaves, torch.get_rng_state()))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):  # the price is NaN without a gate
        return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
    return one == other


@pytest.mark.parametrize(
    ("name", "probe"),
    [(name, probe) for name in CELLS for probe in OWN if name != "draft" or probe not in ("alignment", "anatomy")],
)
def test_a_probe_changes_nothing(name, probe):
    engine = engine_of(name)
    before = state(engine)
    with torch.no_grad():
        first, second = (PROBES[probe](engine, ProbeSettings(probe, samples=20)) for _ in range(2))
    assert same(state(engine), before)
    assert str(first) == str(second)
    engine.advance()
    assert not same(state(engine), before)


@pytest.mark.parametrize("name", CELLS)
def test_what_a_learner_computes_changes_nothing_until_it_updates(name):
    engine = engine_of(name)
    learner, step = engine.learner, engine.step
    before = state(engine)
    batch = engine.actor.batch(step)
    forward = learner.forward(batch, graph=False)
    learner.delight(batch, forward, step)
    gradient = learner.gated_gradient(batch, learner.screening(batch, step))
    assert len(gradient.tensors) == len(learner.leaves)
    assert same(state(engine), before)
    learner.update(batch, step)
    assert not same(state(engine), before)


def test_dg_computes_its_gradient_and_delight_without_teaching_the_draft_and_teaches_it_once_a_step():
    engine = engine_of("draft", "dg")
    learner, step = engine.learner, engine.step
    before = state(engine)
    batch = engine.actor.batch(step)
    learner.gradient(batch, learner.forward(batch, graph=True), step)
    assert same(state(engine), before)
    assert learner.screen.optimizer.steps.tolist() == [step, step]
    engine.advance()
    assert learner.screen.optimizer.steps.tolist() == [step + 1, step + 1]


@pytest.mark.parametrize("gate", [GATE, {"rate": 0.2, "mode": "bernoulli"}, {"price": 0.05}])
def test_the_kept_probe_tells_what_the_next_step_keeps_coins_included(gate, monkeypatch):
    engine = engine_of("stale", gate=gate, probe={"name": "kept"})
    rows, made = engine.evaluate(), []
    plain = engine.learner.gated_gradient
    monkeypatch.setattr(engine.learner, "gated_gradient", lambda *given: made.append(given) or plain(*given))
    engine.advance()
    ((_, screening),) = made
    for seed, row in enumerate(rows):
        weight, surprisal = screening.decision.gate_weights[seed], -screening.forward.log_prob[seed]
        assert 0 < weight.sum() < 30
        assert row["kept_surprisal"] == pytest.approx((weight * surprisal).sum().item() / weight.sum().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "friction", "source", "passes"),
    [
        ("pg", STALE, "exact", 0),
        ("dg", {}, "exact", 0),
        ("dg", STALE, "int8", 1),
        ("dgk", {}, "exact", 0),
        ("dgk", {}, "int8", 1),
        ("dgk", STALE, "int8", 2),
    ],
)
def test_the_ledger_counts_every_pass_that_only_screens(method, friction, source, passes):
    engine = engine_of("stale", method, friction=friction, screen={"source": source})
    assert engine.ledger.counts["screened"].tolist() == [passes * 30 * 9] * 2


def test_a_starved_run_is_fed_as_often_as_the_config_says_and_goes_on_after_a_resume_as_if_never_interrupted():
    gate = {"price": 100.0, "max_consecutive_drops": 3}
    engine = engine_of("stale", gate=gate)
    assert engine.ledger.counts["updates"].tolist() == [2, 2]  # after 3 batches that kept nothing, the fourth; 9 in all
    resumed = Engine(engine.cell, [0, 1])
    resumed.load(copy.deepcopy(engine.state()))
    for each in (engine, resumed):
        while each.step < 20:
            each.advance()
    assert torch.equal(engine.learner.flat, resumed.learner.flat)
    assert resumed.ledger.counts["updates"].tolist() == [5, 5]


def test_a_seed_that_met_a_non_finite_number_stays_frozen_in_a_loaded_state_of_its_own():
    engine = engine_of("stale", "pg")
    engine.learner.flat[: len(engine.learner.flat) // 2].fill_(math.nan)  # the first parameters, of both seeds
    saved = engine.state()
    other = Engine(engine.cell, [0, 1])
    other.load(saved)
    other.advance()
    assert other.diverged() == {0: 9, 1: 9}
    assert engine.diverged() == {}
