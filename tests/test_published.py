"""Published numbers beside ours: what is read, and how far a curve is from it."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import published, stats
from analysis.settings import DG, PG, gate
from tests.worlds import PATTERNS, SEEDS

POINTS = pd.DataFrame({"forward": [100.0, 1000.0, 10_000.0], "value": [0.4, 0.1, 0.05], "quantity": "error"})


def curve(values, forward=(100.0, 1000.0, 10_000.0), column="error"):
    return pd.DataFrame({"forward": forward, column: values})


def seeds(values, scatter=0.0, column="error", lost=()):
    """The rows of eight seeds whose mean curve has these values; before the first evaluation an error of 0.9."""
    rows = [{"seed": seed, "step": 0, "forward": 0.0, column: 0.9} for seed in range(SEEDS)]
    for step, (forward, value) in enumerate(zip(POINTS["forward"], values, strict=True), start=1):
        for seed in range(SEEDS):
            own = np.nan if seed in lost else value * (1 + scatter * PATTERNS[0][seed])
            rows.append({"seed": seed, "step": step, "forward": forward, column: own})
    return pd.DataFrame(rows)


# What is read


def test_the_numbers_of_a_figure_are_those_of_its_rows_in_the_file():
    rows = pd.read_csv(published.POINTS)
    own = rows[(rows["source"] == "2603.20526v1") & (rows["place"] == "Fig. 1") & (rows["quantity"] == "error")]
    read = published.published(published.JOY_PAPER, "Fig. 1", "error")
    assert read["value"].to_list() == own["value"].to_list()
    assert len(read) == 46
    last = {(row["method.name"], row["forward"]): row["value"] for row in read.to_dict("records")}
    assert (last["pg", 1e6], last["dg", 1e6], last["dgk", 1e6]) == (0.0362, 0.0161, 0.0234)
    assert published.published(published.JOY_PAPER, "Fig. 10", "longest_length")["value"].max() > 29
    assert published.published(published.JOY_PAPER, "Fig. 1", "no such").empty


def test_what_was_printed_with_a_number_becomes_columns():
    read = published.published(published.DG_PAPER, "Fig. 3", "error")
    values = {(row["method.name"], row["b"], row["S"]): row["value"] for row in read.to_dict("records")}
    assert (values["pg", "zero", "1"], values["dg", "zero", "1"]) == (0.083, 0.04)
    assert len(values) == len(read) == 14


def test_points_of_a_setting_are_told_by_method_rate_and_price():
    read = published.published(published.JOY_PAPER, "Fig. 8", "reward_error")
    assert len(published.of(read, gate(0.03))) == 14
    assert len(published.of(read, gate(None, 0.0))) == 10
    assert set(published.of(read, DG)["method.name"]) == {"dg"}
    row = {"method.name": "dgk", "gate.rate": np.nan, "gate.price": 0.0}  # as a table of ours has it
    assert published.of(read, row).equals(published.of(read, gate(None, 0.0)))
    assert published.of(read, gate(0.1)).empty
    assert published.of(read, PG)["value"].to_list() == read[read["method.name"] == "pg"]["value"].to_list()


# How far


def test_beside_each_point_stands_our_mean_over_seeds_there_and_points_that_we_do_not_reach_are_left_out():
    setting = {"method.name": "dgk", "gate.rate": 0.03, "gate.price": np.nan}
    other = {"method.name": "pg", "gate.rate": np.nan, "gate.price": np.nan}
    beyond = pd.DataFrame({"forward": [50.0, 1000.0, 3162.28, 20_000.0], "value": [0.9, 0.1, 0.07, 0.05]})
    beyond["quantity"] = "error"
    theirs = pd.concat(
        [beyond.assign(**setting), POINTS.assign(**other), POINTS.assign(**setting | {"gate.rate": 0.5})]
    )
    runs = pd.concat([seeds([0.4, 0.2, 0.05], 0.2).assign(**setting), seeds([0.4, 0.1, 0.05]).assign(**other)])
    found = published.beside(runs, theirs, "error")
    assert found["forward passes"].to_list() == [1000.0, 3162.28, 100.0, 1000.0, 10_000.0]
    middle = math.sqrt(0.2 * 0.05)  # of the second interval, on logarithmic axes
    assert found["ours"].to_list() == pytest.approx([0.2, middle, 0.4, 0.1, 0.05], rel=1e-4)
    assert found["value"].to_list() == [0.1, 0.07, 0.4, 0.1, 0.05]
    lost = published.beside(seeds([0.4, 0.1, 0.05], lost=[0]).assign(**other), POINTS.assign(**other), "error")
    assert lost["ours"].iloc[1] == pytest.approx((0.1 * (SEEDS - 1) + 1) / SEEDS)
    assert published.beside(runs, theirs.iloc[:0], "error").empty


@pytest.mark.parametrize("off", [1.0, 2.0, 0.5, 3.7])
def test_a_curve_that_is_a_multiple_of_the_points_is_as_many_times_away_in_either_direction(off):
    away = max(off, 1 / off)
    assert published.distance(curve(off * POINTS["value"]), POINTS, "error") == pytest.approx(away)
    assert published.spread(seeds(off * POINTS["value"]), POINTS, "error").mean == pytest.approx(away)


def test_the_distance_is_the_root_mean_square_of_the_logarithms():
    ours = [0.4 * 2, 0.1 / 3, 0.05]
    expected = math.exp(math.sqrt((math.log(2) ** 2 + math.log(3) ** 2) / 3))
    assert published.distance(curve(ours), POINTS, "error") == pytest.approx(expected)
    assert published.distance(curve(ours, column="train_error"), POINTS, "train_error") == pytest.approx(expected)
    assert published.spread(seeds(ours, column="train_error"), POINTS, "train_error").mean == pytest.approx(expected)


def test_between_evaluations_the_curve_is_straight_on_logarithmic_axes():
    """From 0.4 at 100 to 0.05 at 10,000: 0.4·8^(−1/2) at 1,000."""
    two = curve([0.4, 0.05], (100.0, 10_000.0))
    middle = math.log(0.4 / math.sqrt(8) / 0.1)
    assert published.distance(two, POINTS, "error") == pytest.approx(math.exp(math.sqrt(middle**2 / 3)))
    rows = seeds([0.4, 0.3, 0.05])
    assert published.spread(rows[rows["step"] != 2], POINTS, "error").mean == pytest.approx(
        math.exp(math.sqrt(middle**2 / 3))
    )


def test_only_points_that_the_curve_reaches_count_and_where_there_are_none_nothing_is_known():
    short = curve([0.8, 0.1], (100.0, 1000.0))
    assert published.distance(short, POINTS, "error") == pytest.approx(math.exp(math.log(2) / math.sqrt(2)))
    far = POINTS.assign(forward=POINTS["forward"] * 1e6)
    assert math.isnan(published.distance(short, far, "error"))
    none = published.spread(seeds([0.4, 0.1, 0.05]), far, "error")
    assert (math.isnan(none.mean), none.low, none.high) == (True, -math.inf, math.inf)
    assert math.isnan(published.distance(curve([0.0] * 3), POINTS, "error"))
    assert math.isnan(published.spread(seeds([0.0] * 3), POINTS, "error").mean)
    zero = published.distance(curve([0.4, 0.0, 0.05]), POINTS, "error")  # a logarithm of nothing is left out
    assert zero == published.spread(seeds([0.4, 0.0, 0.05]), POINTS, "error").mean
    assert zero == published.distance(curve([0.4, 0.05], (100.0, 10_000.0)), POINTS, "error")


def test_the_interval_of_a_distance_is_that_of_the_mean_curve_over_seeds():
    """Curves that are all multiples of the points: as far as their mean factor is from one."""
    found = published.spread(seeds(3 * POINTS["value"], scatter=0.2), POINTS, "error")
    factors = stats.bootstrap(3 * (1 + 0.2 * PATTERNS[0]))
    assert (found.mean, found.low, found.high) == pytest.approx((factors.mean, factors.low, factors.high))
    near = published.spread(seeds(POINTS["value"], scatter=0.2), POINTS, "error")
    assert near.mean == near.low == pytest.approx(1.0)  # nothing is nearer than one
    assert near.high > 1.1
    one = seeds(POINTS["value"])
    alone = published.spread(one[one["seed"] == 0], POINTS, "error")
    assert (alone.mean, alone.high) == (pytest.approx(1.0), math.inf)


def test_a_seed_that_diverged_counts_with_an_error_of_one_and_one_without_its_whole_course_not_at_all():
    lost = published.spread(seeds(POINTS["value"], lost=[3]), POINTS, "error")
    means = (7 * POINTS["value"] + 1) / 8
    assert lost.mean == pytest.approx(published.distance(curve(means), POINTS, "error"))
    rows = seeds(POINTS["value"], scatter=0.5)
    torn = rows[(rows["seed"] != 0) | (rows["step"] < 2)]
    mean = (1 + 0.5 * PATTERNS[0])[1:].mean()
    assert published.spread(torn, POINTS, "error").mean == pytest.approx(max(mean, 1 / mean))
