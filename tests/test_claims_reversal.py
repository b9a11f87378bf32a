"""The claims about token reversal, on made-up logs whose verdict is known."""

import numpy as np
import pandas as pd
import pytest

from analysis import claims
from analysis.claims_reversal import (
    dg_goes_farthest_under_frictions,
    dg_survives_all_frictions,
    dg_survives_each_friction,
    gate_goes_farthest,
    gate_tracks_dg,
    price_adapts,
)
from analysis.figures.reversal_frictions import friction, intensity
from analysis.figures.reversal_scaling import longest

SEEDS = 6


def rows(method, error, *, rate=np.nan, price=np.nan, backward=1000, spread=0.05, **columns):
    """A start at 50% and an end at about the given error, for every seed."""
    rng = np.random.default_rng(0)
    common = {"method.name": method, "gate.rate": rate, "gate.price": price, "steps": 10, "status": "done"}
    made = []
    for seed in range(SEEDS):
        end = error * np.exp(spread * rng.normal())
        for step, value, share in ((1, 0.5, 0.1), (10, end, 1.0)):
            costs = {"forward": 1000 * share, "backward": backward * share, "screened": 0.0, "seconds_rollout": share}
            made.append(common | columns | costs | {"seed": seed, "step": step, "error": value})
    return made


@pytest.mark.parametrize(
    ("gate", "others", "verdict"),
    [(0.004, 0.2, claims.REPRODUCED), (0.1, 0.2, claims.PARTLY), (0.3, 0.2, claims.NOT)],
)
def test_tracking_dg_needs_a_low_error_few_backward_passes_and_others_behind(gate, others, verdict):
    frame = rows("dg", 0.003) + rows("dgk", gate, rate=0.03, backward=30 if gate < 0.2 else 1000)
    frame += [row for method in ("pg", "ppo", "pmpo") for row in rows(method, others)]
    assert gate_tracks_dg(pd.DataFrame(frame)).verdict == verdict


def scaling(solved, friction_name="none"):
    """Methods that solve lengths up to a given one."""
    frame = []
    for method, top in solved.items():
        for length in (3, 5, 8, 12, 20):
            backward = 30 if method == "dgk" else 1000
            error = 0.001 if length <= top else 0.4
            columns = {"task.length": length, "task.vocab": 2, "solved": 0.05, "last": 20, "friction": friction_name}
            frame += rows(method, error, backward=backward, **columns)
            if length > top:
                break  # the search ends where nothing is solved
    return pd.DataFrame(frame)


def test_the_longest_length_is_the_last_before_the_first_that_is_not_solved():
    frame = scaling({"dg": 8})
    assert set(longest(frame)) == {8.0}
    broken = frame.copy()
    broken.loc[broken["task.length"] == 5, "error"] = 0.4
    assert set(longest(broken)) == {3.0}
    assert set(longest(frame, "forward", 50.0)) == {0.0}
    partial = frame[(frame["seed"] != 0) | (frame["task.length"] == 5)]  # a seed of another figure, at one length
    assert set(longest(partial)) == {8.0}


def test_the_order_of_lengths_is_judged_relation_by_relation():
    assert gate_goes_farthest(scaling({"dgk": 12, "dg": 12, "pmpo": 8, "ppo": 5, "pg": 3})).verdict == claims.REPRODUCED
    assert gate_goes_farthest(scaling({"dgk": 12, "dg": 12, "pmpo": 5, "ppo": 5, "pg": 3})).verdict == claims.PARTLY
    rough = scaling({"dg": 12, "pmpo": 8, "ppo": 5, "pg": 3}, "rare_discovery+staleness")
    assert dg_goes_farthest_under_frictions(rough).verdict == claims.REPRODUCED
    assert gate_goes_farthest(rough).verdict == claims.INCONCLUSIVE  # no clean runs
    three = dg_goes_farthest_under_frictions(rough[rough["seed"] < 3])
    assert set(three.parts.values()) == {
        "open"
    }  # neighbours on the grid, and too few seeds to agree by more than chance
    apart = scaling({"dg": 12, "pmpo": 3, "ppo": 3, "pg": 3}, "rare_discovery+staleness")
    far = dg_goes_farthest_under_frictions(apart[apart["seed"] < 3])
    assert list(far.parts.values()) == ["holds", "open", "open"]
    unfinished = rough[(rough["method.name"] != "dg") | (rough["task.length"] < 20)]  # 12 was solved, 20 is to be tried
    assert dg_goes_farthest_under_frictions(unfinished).verdict == claims.INCONCLUSIVE


def test_a_price_adapts_where_a_rate_fails_at_the_largest_vocabulary():
    def frame(rate):
        made = rows("dg", 0.01, **{"task.vocab": 32}) + rows("dgk", 0.011, price=0.0, **{"task.vocab": 32})
        return pd.DataFrame(
            made + rows("dgk", rate, rate=0.03, **{"task.vocab": 32}) + rows("dg", 0.9, **{"task.vocab": 2})
        )

    assert price_adapts(frame(0.3)).verdict == claims.REPRODUCED
    assert price_adapts(frame(0.002)).verdict == claims.PARTLY


def frictions(errors):
    """Runs at intensity 0.25; errors by kind and method."""
    settings = {
        "staleness": {"friction": "staleness", "friction.staleness.delay": 100},
        "actor_bugs": {"friction": "actor_bugs", "friction.actor_bugs.prob": 0.25, "friction.actor_bugs.penalty": 0.0},
        "penalised_bugs": {
            "friction": "actor_bugs",
            "friction.actor_bugs.prob": 0.25,
            "friction.actor_bugs.penalty": 1.0,
        },
        "reward_corruption": {"friction": "reward_corruption", "friction.reward_corruption.prob": 0.25},
        "rare_discovery": {"friction": "rare_discovery", "friction.rare_discovery.kappa": 0.75},
        "all": {
            "friction": "rare_discovery+staleness+actor_bugs+reward_corruption",
            "friction.actor_bugs.prob": 0.25,
            "friction.actor_bugs.penalty": 0.0,
            "friction.staleness.delay": 100,
        },
    }
    made = []
    for columns in settings.values():
        for method, error in errors.items():
            made += rows(method, error, **columns)
    return pd.DataFrame(made)


def test_every_friction_is_told_by_its_settings():
    frame = frictions({"dg": 0.1})
    assert set(intensity(frame)) == {0.25}
    assert friction(frame).value_counts().to_dict() == dict.fromkeys(
        ["staleness", "actor_bugs", "penalised_bugs", "reward_corruption", "rare_discovery", "all"], 2 * SEEDS
    )


def test_surviving_frictions_takes_a_tenth_of_the_error_of_every_other():
    better = frictions({"dg": 0.004, "pg": 0.3, "ppo": 0.1, "pmpo": 0.1})
    worse = frictions({"dg": 0.2, "pg": 0.3, "ppo": 0.1, "pmpo": 0.1})
    assert dg_survives_each_friction(better).verdict == claims.REPRODUCED
    assert dg_survives_each_friction(worse).verdict == claims.NOT
    assert dg_survives_all_frictions(better).verdict == claims.REPRODUCED
    assert dg_survives_all_frictions(worse).verdict == claims.PARTLY  # the others still beat PG
