"""The filter for asynchronous trainers: samples that arrive one at a time, their versions, and batches of one size."""

import json
import math
import os
import queue
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kondo.filter import FilteredQueue, SampleFilter
from kondo.integrations.trl_async import filter_rollouts

ROOT = Path(__file__).parent.parent


def stream(count, seed=0, version=0):
    drawn = random.Random(seed)
    for i in range(count):
        yield {"log_probs": -drawn.expovariate(1), "advantage": drawn.gauss(0, 1), "version": version, "name": i}


def kept(filter_, samples):
    return [each["name"] for each in samples if filter_.keep(each["log_probs"], each["advantage"], each["version"])]


def test_a_rate_keeps_that_share_and_its_price_is_the_quantile_of_the_past():
    filter_ = SampleFilter(rate=0.2, history=100, warmup=10)
    past, found = [], []
    for i, each in enumerate(stream(4000)):
        chi = -each["advantage"] * each["log_probs"]
        window = sorted(past[-100:], reverse=True)
        price = None if i < 10 else window[max(1, int(0.2 * len(window) + 1e-9)) - 1]
        assert filter_.price == price
        found.append(filter_.keep(each["log_probs"], each["advantage"]))
        assert found[-1] == (price is None or chi > price)
        past.append(chi)
    assert sum(found) / len(found) == pytest.approx(0.2, abs=0.02)


def test_a_fixed_price_keeps_what_is_strictly_above_it():
    filter_ = SampleFilter(price=1.0)
    assert [filter_.keep(-1.0, chi) for chi in (0.5, 1.0, 1.5)] == [False, False, True]


def test_of_equal_delights_a_share_is_kept_by_lot_not_all_and_not_none():
    filter_ = SampleFilter(rate=0.25, history=64, warmup=8)
    found = [filter_.keep(-1.0, 1.0) for _ in range(2000)]
    assert all(found[:8])
    assert sum(found) / len(found) == pytest.approx(0.25, abs=0.04)


def test_the_delight_of_several_tokens_is_their_mean_under_one_advantage_or_one_each():
    for log_probs, advantage, chi in [
        ([-1.0, -3.0], 0.5, 1.0),
        (torch.tensor([-1.0, -3.0]), torch.tensor([2.0, 0.0]), 1.0),
        (np.float32([-2.0]), 0.5, 1.0),
    ]:
        filter_ = SampleFilter(price=chi - 1e-6)
        assert filter_.keep(log_probs, advantage)
        assert filter_.metrics()["delight_mean"] == pytest.approx(chi)
        assert not SampleFilter(price=chi + 1e-6).keep(log_probs, advantage)


def test_what_teaches_nothing_or_is_not_finite_is_never_kept_and_counted():
    filter_ = SampleFilter(rate=1.0)
    assert not filter_.keep(-2.0, 0.0)
    assert not filter_.keep(-math.inf, 1.0)
    assert not filter_.keep([-1.0, math.nan], 1.0)
    assert not filter_.keep(-1.0, math.nan)
    assert not filter_.keep([], 1.0)
    assert filter_.keep(-1.0, -1.0)
    found = filter_.metrics()
    assert (found["seen"], found["kept"], found["nonfinite"], found["zero_advantage"]) == (6, 1, 4, 1)
    assert filter_.metrics()["seen"] == 0


def test_samples_older_than_the_bound_are_dropped_counted_and_not_remembered():
    filter_ = SampleFilter(rate=0.5, warmup=2, max_staleness=2)
    filter_.version = 5
    assert [filter_.keep(-1.0, 1.0, version) for version in (2, 3, 5, None)][:3] == [False, True, True]
    found = filter_.metrics()
    assert found["stale"] == 1
    assert found["staleness_mean"] == 1.0
    assert len(filter_.state_dict()["past"]) == 3


def test_a_batch_is_refilled_to_its_size_and_holds_nothing_stale():
    filter_ = SampleFilter(price=0.0, max_staleness=1)

    def source():
        for i, each in enumerate(stream(400)):
            filter_.version = i // 5  # the learner moves while a batch is filling
            yield each | {"version": filter_.version}

    batches = []
    for batch in filter_.batches(source(), 8):
        batches.append(batch)
        assert len(batch) == 8
        assert all(filter_.version - each["version"] <= 1 for each in batch)
        assert all(-each["advantage"] * each["log_probs"] > 0 for each in batch)
    found = filter_.metrics()
    assert found["batches"] == len(batches) > 0
    assert found["aged"] > 0
    assert found["kept"] == 8 * len(batches) + found["aged"] + len(filter_._waiting)


def test_what_is_left_of_one_source_begins_the_next_batch():
    filter_ = SampleFilter(rate=1.0)
    assert list(filter_.batches(stream(3), 4)) == []
    (batch,) = filter_.batches(stream(1, seed=1), 4)
    assert [each["name"] for each in batch] == [0, 1, 2, 0]


def test_a_source_that_teaches_nothing_ends_in_an_error_if_asked():
    filter_ = SampleFilter(rate=0.5)
    with pytest.raises(RuntimeError, match="10 samples in a row filled no batch of 4"):
        next(filter_.batches(({"log_probs": -1.0, "advantage": 0.0} for _ in range(99)), 4, most=10))


def test_a_starved_learner_is_fed():
    filter_ = SampleFilter(price=1e3, max_consecutive_drops=2)
    assert [filter_.keep(-1.0, 1.0) for _ in range(6)] == [False, False, True, False, False, True]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"priority": "uniform"}], ids=str)
def test_a_filter_goes_on_from_its_state_as_if_it_had_not_been_interrupted(settings):
    samples = list(stream(600))
    whole, first, second = (SampleFilter(rate=0.3, history=50, **settings) for _ in range(3))
    expected = kept(whole, samples)  # a history shorter than the default warm-up ends it
    assert len(expected) < 300
    before = kept(first, samples[:300])
    first.version = 7
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.version == 7
    second.version = 0
    assert before + kept(second, samples[300:]) == expected
    assert whole.metrics() == second.metrics()


def test_settings_that_cannot_be_are_refused():
    for settings, words in [
        ({}, "both are None"),
        ({"rate": 0.5, "price": 0.0}, "exclude each other"),
        ({"rate": 1.5}, "rate must be in"),
        ({"rate": 0.5, "priority": "joy"}, "priority must be one of"),
        ({"rate": 0.5, "alpha": 0.9}, "no effect"),
        ({"rate": 0.5, "max_staleness": -1}, "max_staleness"),
        ({"rate": 0.5, "history": 0, "warmup": 0}, "history must be >= 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            SampleFilter(**settings)


def test_a_filtered_queue_gives_what_is_kept_and_is_empty_in_time():
    samples = queue.Queue()
    for each in stream(20):
        samples.put(each)
    expected = kept(SampleFilter(price=0.0), stream(20))
    filtered = FilteredQueue(samples, SampleFilter(price=0.0))
    assert filtered.qsize() == 20
    assert [filtered.get(timeout=5)["name"] for _ in expected] == expected
    with pytest.raises(queue.Empty):
        filtered.get(timeout=0.01)


@pytest.mark.parametrize("get", [lambda x: x.get(timeout=0), lambda x: x.get(True, 0), lambda x: x.get_nowait()])
def test_what_is_there_is_had_without_waiting_and_filtered_too(get):
    samples = queue.Queue()
    for advantage in (-1.0, 1.0, -1.0):
        samples.put({"log_probs": [-1.0], "advantage": advantage, "version": None})
    filtered = FilteredQueue(samples, SampleFilter(price=0.0))
    assert get(filtered)["advantage"] == 1.0
    with pytest.raises(queue.Empty):
        get(filtered)


def test_trls_asynchronous_trainer_reads_only_rollouts_that_are_kept(monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    rollouts = queue.Queue()
    for i, advantage in enumerate([1.0, -1.0, 0.0, 2.0, 3.0]):
        plain = {"prompt": [], "completion": [], "input_ids": np.arange(4), "group_id": i, "metrics": {}}
        mask, log_probs = np.array([0, 0, 1, 1]), np.float32([0, 0, -1, -2])
        version = 0 if i == 4 else 5
        rollouts.put(RolloutSample(
            completion_mask=mask, old_log_probs=log_probs, advantage=advantage, model_version=version, **plain
        ))  # fmt: skip
    trainer = SimpleNamespace(rollout_queue=rollouts, model_version=5)
    filter_ = SampleFilter(price=0.0, max_staleness=3)
    filter_rollouts(trainer, filter_)

    def nothing_left(_):
        raise EOFError

    dataset = RolloutQueueDataset(
        trainer.rollout_queue, lambda: 5, nothing_left, 1.0, defaultdict(list), max_staleness=3, poll_interval_s=0.01
    )
    rollout = iter(dataset)
    found = [next(rollout)["group_id"] for _ in range(2)]
    with pytest.raises(EOFError):
        next(rollout)
    assert found == [0, 3]
    counted = filter_.metrics()
    assert (counted["seen"], counted["stale"], counted["zero_advantage"]) == (5, 1, 1)
    assert counted["delight_mean"] == pytest.approx(1.5 * (1 - 1 + 0 + 2) / 4)
    filter_rollouts(SimpleNamespace(rollout_queue=None), filter_)  # processes beside the main one have no queue


@pytest.mark.slow
def test_the_example_of_a_producer_and_a_consumer_learns_from_full_batches():
    told = subprocess.run(
        [sys.executable, "examples/async_filter.py", "--steps", "30"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=300,
    ).stdout  # fmt: skip
    assert float(re.search(r"arm that pays: ([\d.]+)", told)[1]) > 0.05
    assert "kept 480," in told
    assert "batches 30," in told
