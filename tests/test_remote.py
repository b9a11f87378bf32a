"""Actors elsewhere: the same learner in lockstep, none of its batches lost or taken twice whatever dies, a run that can
be replayed."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray
import torch

from analysis.experiments import async_age, async_throughput
from experiments import jobs
from experiments import replay as replaying
from experiments.replay import learned
from kondo.lab.actor import parse_schedule
from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.process import run
from kondo.lab.records import read_run
from kondo.lab.remote import actors, available
from kondo.lab.remote.workers import Exchange, Message
from kondo.lab.training import Block, train
from kondo.schema import ConfigError, Unavailable
from tests.test_launchers import command, reached, until

DIGITS = {"name": "mnist", "dataset": "digits", "batch": 20, "hidden": [16]}
REVERSAL = {"name": "reversal", "length": 3, "width": 16, "ff": 16, "prompts": 2, "samples": 5, "evaluated": 10}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def cell(task=DIGITS, method="dg", steps=12, gate=None, friction=None, **actor):
    plain = {"task": task, "method": {"name": method}, "gate": gate, "steps": steps, "evals": 3, "actor": actor}
    return parse(plain | {"optimizer": {"name": "adam", "lr": 0.01}, "friction": friction or {}})


def schedule_of(rows):
    """number:version of each step, of the first seed's rows."""
    pairs = [pair for row in rows if row["seed"] == rows[0]["seed"] for pair in row["schedule"]]
    return " ".join(f"{number}:{version}" for number, version in pairs)


def in_turn(rows, count):
    """The numbers that each actor's batches had, in the order in which the learner took them."""
    numbers = [number for number, _ in parse_schedule(schedule_of(rows))]
    return [[number for number in numbers if number % count == place] for place in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    ("task", "method", "gate", "friction"),
    [
        (DIGITS, "dgk", {"rate": 0.2}, {"staleness": {"delay": 3}, "reward_corruption": {"prob": 0.3}}),
        (REVERSAL, "ppo", None, {"staleness": {"delay": 4, "delay_mode": "uniform"}, "actor_bugs": {"prob": 0.2}}),
    ],
)
def test_lockstep_gives_the_log_of_the_simulated_staleness(task, method, gate, friction, count):
    simulated = run(cell(task, method, gate=gate, friction=friction), 2)
    elsewhere = run(cell(task, method, gate=gate, friction=friction, mode="lockstep", count=count), 2)
    assert learned(elsewhere) == learned(simulated)


@pytest.mark.slow
def test_an_asynchronous_run_is_replayed_bit_for_bit_here_and_in_lockstep():
    rows = run(cell(mode="async", count=2, steps=30), 2)
    schedule = schedule_of(rows)
    assert len(schedule.split()) == 30
    assert any(version < step for step, (_, version) in enumerate(parse_schedule(schedule)))
    here = run(cell(steps=30, schedule=schedule), 2)
    assert learned(here) == learned(rows)
    assert learned(run(cell(steps=30, mode="lockstep", count=2, schedule=schedule), 2)) == learned(rows)
    assert learned(run(cell(steps=30), 2)) != learned(rows)


def replay(monkeypatch, capsys, *words):
    """What the command answers: its exit status, and what it says."""
    monkeypatch.setattr("sys.argv", ["replay", *map(str, words)])
    try:
        status = replaying.main()
    except SystemExit as error:
        return 1, str(error)
    return status, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_the_command_repeats_an_asynchronous_run_even_one_with_an_actor_that_errs(tmp_path, monkeypatch, capsys, count):
    block = Block(cell(mode="async", count=count, steps=20, fault="junk"), (0, 1))
    train(block, tmp_path)
    folder = block.folder(tmp_path)
    status, said = replay(monkeypatch, capsys, folder)
    assert (status, f"--lockstep {count}" in said) == (1, True)
    status, said = replay(monkeypatch, capsys, folder, "--lockstep", count)
    assert (status, "the same log in all that was learned" in said) == (0, True)
    again = next(path for path in tmp_path.glob("*/*") if path != folder)
    status, said = replay(monkeypatch, capsys, again)
    assert (status, "no asynchronous run" in said) == (1, True)
    config = replaying.replayed(read_run(folder), lockstep=count)
    del config["actor"]["fault"]
    assert learned(run(parse(config), 2)) != learned(read_run(folder).rows)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "bf16", "int8", "junk", "cut_off"])
def test_a_run_gets_to_its_end_whatever_is_wrong_with_an_actor(fault, monkeypatch):
    taken = []

    def got(self, message):
        taken.append(message)
        return actors.Remote.got(self, message)

    monkeypatch.setattr(actors.Asynchronous, "got", got)
    rows = run(cell(mode="async", count=2, steps=40, fault=fault, pace=20.0), 1)
    assert rows[-1]["step"] == 40
    for place, numbers in enumerate(in_turn(rows, 2)):
        assert numbers == list(range(place, place + 2 * len(numbers), 2)), "none lost, none twice"
    first = [message for message in taken if message.actor == 0]
    others = [message for message in taken if message.actor == 1]
    assert first
    assert others
    if fault == "slow":
        assert len(first) < len(others)
    if fault == "junk":
        assert all((message.tensors["actions"] == 0).all() for message in first)
        assert not all((message.tensors["actions"] == 0).all() for message in others)
    if fault == "cut_off":
        assert len({message.version for message in first[2:]}) <= 2
        assert len({message.version for message in others}) > 2
    if fault in ("bf16", "int8"):
        rounded = [message for message in first if message.version == 0]
        exact = Engine(cell(mode="inline"), [0]).actor
        for message in rounded:
            clean = exact.batch(message.number)
            assert (clean.contexts.inputs.numpy() == message.tensors["inputs"]).all()
            same = clean.actions.numpy() == message.tensors["actions"]
            said = clean.actor_log_prob.numpy() - message.tensors["actor_log_prob"]
            assert abs(said[same]).max() > 0


@pytest.mark.slow
def test_an_actor_that_is_killed_is_begun_anew_and_none_of_its_batches_is_lost_or_taken_twice():
    rows = run(cell(mode="async", count=1, steps=5, fault="killed"), 1)
    assert in_turn(rows, 1) == [[0, 1, 2, 3, 4]]
    assert rows[-1]["restarts"] == 2  # it dies in its third batch, again and again


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on_without_losing_a_batch_or_learning_from_one_twice():
    asked = cell(mode="async", count=2, steps=20)
    first, rows = Engine(asked, [0]), []
    for _ in range(7):
        first.advance()
    state = first.state()
    first.close()
    second = Engine(asked, [0])
    second.load(state)
    try:
        while second.step < 20:
            second.advance()
        rows = second.evaluate()
    finally:
        second.close()
    for place, numbers in enumerate(in_turn(rows, 2)):
        assert numbers == list(range(place, place + 2 * len(numbers), 2))
    assert len(schedule_of(rows).split()) == 20


@pytest.mark.slow
def test_restarts_are_counted_over_a_resumption_and_old_versions_are_forgotten():
    asked = cell(mode="async", count=1, steps=60, fault="killed")
    first = Engine(asked, [0])
    for _ in range(5):
        first.advance()
    state = first.state()
    first.close()
    before = state["actor"]["restarts"]
    assert before >= 2
    second = Engine(asked, [0])
    second.load(state)
    try:
        for _ in range(3):
            second.advance()
        assert second.actor.news()["restarts"] > before
    finally:
        second.close()
    steady = Engine(cell(mode="async", count=2, steps=60), [0])
    try:
        for _ in range(60):
            steady.advance()
        assert len(steady.actor.published) < 20
    finally:
        steady.close()


@pytest.mark.slow
def test_a_learner_whose_process_is_killed_goes_on_by_the_same_command_with_every_batch_once(tmp_path):
    mark = f"kondo-test-{tmp_path}"
    words = ["task=digits", "task.batch=20", "steps=600", "evals=4", "wandb.mode=disabled", f"runs={tmp_path}/runs"]
    words += ["actor.mode=async", "actor.count=2", "hydra/launcher=basic", "checkpoint_seconds=0.2"]
    process = command("run", "-m", *words, home=tmp_path, KONDO_MARK=mark)
    until(lambda: list(tmp_path.glob("runs/*/*/checkpoint.pt")))
    process.kill()
    process.communicate(timeout=60)
    (folder,) = tmp_path.glob("runs/*/*-s*")
    assert read_run(folder) is None
    again = command("run", "-m", *words, home=tmp_path, KONDO_MARK=mark)
    again.communicate(timeout=240)
    assert again.returncode == 0
    rows = read_run(folder).rows
    for place, numbers in enumerate(in_turn(rows, 2)):
        assert numbers == list(range(place, place + 2 * len(numbers), 2)), "none lost, none twice"
    assert len(schedule_of(rows).split()) == 600
    until(lambda: not carrying(mark))


def carrying(mark):
    """Processes with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_ctrl_c_leaves_no_process_behind_and_a_worker_keeps_what_was_learned(tmp_path, launcher):
    mark = f"kondo-test-{tmp_path}"
    words = ["task=digits", "task.batch=20", "steps=1000000", "evals=4", "wandb.mode=disabled"]
    words += [f"runs={tmp_path}/runs", "actor.mode=async", "actor.count=2", f"hydra/launcher={launcher}"]
    words += ["checkpoint_seconds=1000"]
    process = command("run", "-m", *words, home=tmp_path, KONDO_MARK=mark)
    until(lambda: reached(tmp_path / "runs") == 1)
    assert len(carrying(mark)) > 3
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.strip() == "interrupted; the same command goes on from the last checkpoint"
    kept = len(list(tmp_path.glob("runs/*/*/checkpoint.pt")))
    assert kept == (1 if launcher == "joblib" else 0)  # Hydra's own launcher goes on from the last that was due
    until(lambda: not carrying(mark))


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_an_error_with_what_to_do(tmp_path):
    words = ["task=digits", "steps=10", "wandb.mode=disabled", f"runs={tmp_path}/runs", "actor.mode=async"]
    process = command("run", *words, home=tmp_path, RAY_ADDRESS="127.0.0.1:9")
    said = "".join(process.communicate(timeout=120))
    assert process.returncode == 1
    assert "no Ray cluster for the actors" in said
    assert "without RAY_ADDRESS a local one" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_actor_that_fails_is_an_error_and_so_is_a_cluster_that_is_gone(monkeypatch):
    engine = Engine(cell(mode="async", count=1, steps=100), [0])
    engine.advance()
    ray.kill(engine.actor.exchange)
    with suppress(actors.ActorsLost):
        engine.advance()  # what was on its way may still arrive
    with pytest.raises(actors.ActorsLost, match=r"cannot be reached .* the same command goes on"):
        engine.advance()
    engine.close()
    engine = Engine(cell(mode="async", count=1, steps=100), [0])
    engine.actor.open()
    monkeypatch.setattr(actors, "PATIENCE", 0.0)
    with pytest.raises(actors.ActorsLost, match="no batch for 0 s"):
        engine.advance()
    engine.close()


# The exchange, without any process


def message(number, actor=0):
    return Message(number, 0, {}, actor)


def test_a_full_queue_lets_actors_wait_until_the_learner_takes_a_batch():
    async def story():
        exchange = Exchange(2, [0])
        for number in (0, 1):
            assert await exchange.put(message(number)) == number + 1
        third = asyncio.ensure_future(exchange.put(message(2)))
        await asyncio.sleep(0.02)
        assert not third.done()
        taken, behind, _ = await exchange.get()
        assert (taken.number, behind) == (0, 1)
        assert await asyncio.wait_for(third, 1) == 3
        return [(await exchange.get())[0] for _ in range(2)]

    later = asyncio.run(story())
    assert [each.number for each in later] == [1, 2]
    assert later[1].idle > 0.01


def test_an_actor_that_begins_anew_goes_on_with_the_batch_that_did_not_arrive():
    async def story():
        exchange = Exchange(9, [0, 1])
        assert await exchange.join(0) == 0
        assert await exchange.put(message(0)) == 2
        assert await exchange.join(0) == 2  # it died in its second batch
        assert await exchange.put(message(0)) == 2  # which had come to be the first again
        assert await exchange.put(message(2)) == 4
        await exchange.join(1)
        return [await exchange.get() for _ in range(2)]

    found = asyncio.run(story())
    assert [each.number for each, _, _ in found] == [0, 2]
    assert [restarts for _, _, restarts in found] == [1, 1]


def test_a_closed_exchange_lets_nobody_wait():
    async def story():
        exchange = Exchange(1, [0])
        await exchange.put(message(0))
        waiting = asyncio.ensure_future(exchange.put(message(1)))
        await asyncio.sleep(0)
        await exchange.close()
        return await asyncio.wait_for(waiting, 1)

    assert asyncio.run(story()) is None


def test_parameters_are_the_newest_and_waited_for_at_first():
    async def story():
        exchange = Exchange(1, [0])
        first = asyncio.ensure_future(exchange.latest())
        await asyncio.sleep(0)
        await exchange.publish(0, ["zero"])
        await exchange.publish(1, ["one"])
        return await first, await exchange.latest()

    first, later = asyncio.run(story())
    assert first[0] in (0, 1)
    assert later == (1, ["one"])


# What is made of an asynchronous log


@pytest.mark.parametrize(
    ("shares", "distance"),
    [([0.2] * 5, 0.0), ([0, 0, 1.0], 0.8), ([0.75, 0.25], 0.0), ([1.0], 0.0), ([0.5, 0, 0.5], 1 / 3)],
)
def test_the_distance_of_ages_from_uniform_is_the_probability_that_would_have_to_move(shares, distance):
    assert async_age.from_uniform(np.array(shares)) == pytest.approx(distance)


def test_ages_are_counted_over_evaluations_and_runs():
    schedules = {("a", 0, 1): [[0, 0]], ("a", 0, 3): [[2, 0], [1, 2]], ("b", 1, 3): [[0, 0], [1, 0], [2, 0]]}
    rows = [
        dict(zip(("cell", "seed", "step"), key, strict=True), schedule=log, age_s=[10.0 * i for i, _ in log])
        for key, log in schedules.items()
    ]
    steps, seconds = async_age.ages_of(pd.DataFrame(rows))
    assert sorted(zip(steps, seconds, strict=True)) == [(0, 10), (1, 10), (1, 20), (2, 20)]  # each run's second half


def test_throughput_is_samples_of_all_seeds_over_the_learner_s_seconds_and_actors_are_told_apart():
    """Two seeds of 300 samples: 3 s here, of which 1.2 s are learning; 2 s with two actors, who took 2.4 s; 4 s in one
    process with batches of the same ages, on the mean over two such cells."""
    common = {"task": "m", "choice.task": "m", "method.name": "dg", "gate.rate": np.nan, "gate.price": np.nan}
    common |= {
        "gate.priority": np.nan,
        "steps": 3,
        "step": 3,
        "error": 0.1,
        "forward": 300.0,
        "cell": "c",
        "diverged": np.nan,
    }
    learning = {"seconds_screen": 0.1, "seconds_backward": 0.4, "seconds_optimizer": 0.1}
    here = {"cell": "a", "seconds_rollout": 0.9}
    there = {"cell": "b", "seconds_rollout": 0.4, "actor.mode": "async", "actor.count": 2, "learner_idle": 0.8,
             "actor_busy": 2.4}  # fmt: skip
    twins = [{"cell": cell, "seconds_rollout": taken, "choice.twin": 1} for cell, taken in (("c", 1.4), ("d", 1.4))]
    rows = [common | learning | each | {"seed": seed} for each in (here, there, *twins) for seed in (0, 1)]
    every = async_throughput.select(pd.DataFrame(rows))
    assert every.loc[every["twin"] == 1, "per_second"].tolist() == pytest.approx([150])
    table = every[every["twin"] == 0].set_index("actors")
    assert table["per_second"].to_dict() == pytest.approx({0: 200, 2: 300})
    assert table["ratio"].to_dict() == pytest.approx({0: 1.5, 2: 2.0})
    assert table["idle"].to_dict() == pytest.approx({0: 0, 2: 0.4})
    assert (
        "200 in one process (acting 1.5 times learning), 1.50 times with 2 elsewhere, 2.00 of its twin's (acting 2 "
        "times learning, the learner idle 40%)" in async_throughput.measured(every)
    )


def test_a_slow_environment_slows_acting_and_changes_nothing_else(monkeypatch):
    slept = []
    monkeypatch.setattr("kondo.lab.actor.time.sleep", slept.append)
    usual, slow = (Engine(cell(steps=12, **pace), [0, 1]) for pace in ({}, {"pace": 30.0}))
    for _ in range(12):
        usual.advance()
        slow.advance()
    computed = float(slow.ledger.totals()["seconds_rollout"].sum())
    assert len(slept) == 12
    assert sum(slept) == pytest.approx(29 * computed, rel=0.3)
    assert torch.equal(usual.learner.flat, slow.learner.flat)


def test_a_simulated_twin_has_the_ages_of_all_runs_of_its_cell_in_another_order(monkeypatch):
    asked = cell(mode="async", count=2, steps=12)
    job = jobs.Job(asked, jobs.Launch(seeds=2, block=1, twin=True), {"task": "digits"}, "digits dg")
    logs = {0: [[step, step] for step in range(12)], 1: [[step, max(0, step - 3)] for step in range(12)]}
    monkeypatch.setattr(jobs, "read_log", lambda folder: [{"seed": 0, "schedule": logs[int(folder.name[-1])]}])
    monkeypatch.setattr(jobs, "finished", lambda block, runs: None)
    assert jobs.needed([[job]]) == [job]
    monkeypatch.setattr(jobs, "finished", lambda block, runs: "done")
    twin = jobs.needed([[job]])[1]
    schedule = parse_schedule(twin.cell.actor.schedule)
    assert twin.cell.actor.mode == "inline"
    assert [number for number, _ in schedule] == list(range(12))
    assert {step - version for step, (_, version) in enumerate(schedule)} <= {0, 1, 2, 3}
    assert {step - version for step, (_, version) in enumerate(schedule)} & {3}
    assert (twin.choices["twin"], twin.name) == (1, "digits dg, simulated")
    assert jobs.twin_of(job).cell.key() == twin.cell.key()


# What is refused


@pytest.mark.parametrize(
    ("actor", "words"),
    [
        ({"count": 2}, "actor.count=2: not with actor.mode=inline"),
        ({"fault": "junk"}, "actor.fault=junk: not with actor.mode=inline"),
        ({"mode": "lockstep", "fault": "slow"}, "actor.fault=slow: not with actor.mode=lockstep"),
        ({"mode": "async", "schedule": "0:0"}, "actor.schedule=0:0: not with actor.mode=async"),
        ({"schedule": "0:0"}, "1 steps, of 12"),
        ({"schedule": "0:1 " * 12}, "a version from 0 to t"),
        ({"schedule": "0:0 " * 12}, "a batch is there twice"),
        ({"schedule": "zero " * 12}, "expected number:version"),
        ({"mode": "async", "friction": {"staleness": {"delay": 3}}}, "exclude each other"),
    ],
)
def test_what_does_not_go_together_is_refused(actor, words):
    with pytest.raises(ConfigError, match=words):
        cell(**actor)


def test_without_ray_there_is_a_word_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    available("inline")
    with pytest.raises(Unavailable, match=r"actor\.mode=async: needs ray; pip install 'kondo\[ray\]'"):
        available("async")


def test_settings_of_actors_elsewhere_are_no_part_of_a_run_without_any():
    assert set(cell().plain()["actor"]) == {"report_probabilities"}
    assert cell(mode="async", count=2).plain()["actor"]["mode"] == "async"
    assert cell(mode="async", count=2).key() != cell(mode="lockstep", count=2).key() != cell().key()
