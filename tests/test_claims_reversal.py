"""The claims about token reversal in worlds where their verdict is known."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from analysis.experiments import mnist_frictions, reversal_frictions, reversal_scaling
from analysis.judge import INCONCLUSIVE, NOT, NOT_RUN, PARTLY, REPRODUCED
from analysis.tables import AmbiguousRows
from tests.worlds import CLAIMS, PATTERNS, SEEDS, World, dgk, frame, runs

TASK = {"task.name": "reversal", "task.target": "reverse", "task.layers": 3, "task.width": 64}
TASK |= {"task.length": 10, "task.vocab": 2}
ANSWERS = {"gate.unit": "sequence"}
GATE, PRICE = TASK | dgk(0.03) | ANSWERS, TASK | dgk(None, 0.0) | ANSWERS
TOKENS = TASK | dgk(0.03) | {"gate.unit": "token"}


def methods(**ends):
    return [(TASK | {"method.name": name}, end) for name, end in ends.items()]


def curves(gap, ratio, others, noise=0.0, drift=0.0):
    """J9: DG-K ends a gap above DG, which needs `ratio` times its backward passes; the others end so far above it."""
    ours = 0.003 + gap
    return frame(
        runs(TASK | {"method.name": "dg"}, 0.003, reach=0.3),
        runs(GATE, ours, noise=noise, reach=0.3 / 0.03 / ratio, backward=3e4, drift=drift),
        runs(TOKENS, 0.9),
        *(runs(columns, ours + others) for columns, _ in methods(pg=0, ppo=0, pmpo=0)),
    )


LENGTHS = (3, 5, 8, 12, 20)


def scaling(tops, friction="none", intensity=np.nan, vocab=2, backward=None):
    """Methods that solve lengths up to a given one, or up to one of their own for each seed."""
    cells = []
    for name, top in tops.items():
        tops_by_seed = np.broadcast_to(np.asarray(top, dtype=float), SEEDS)
        for length in LENGTHS:
            columns = GATE if name == "dgk" else TASK | {"method.name": name}
            choice = {"choice.friction": friction, "choice.intensity": intensity, "solved": 0.05, "last": 20}
            place = {"task.length": length, "task.vocab": vocab}
            ends = np.where(tops_by_seed >= length, 0.001, 0.4)
            spent = (backward or {}).get(name, 3e4 if name == "dgk" else 1e6)
            cells.append(runs(columns | choice | place, ends, backward=spent))
            if (tops_by_seed < length).all():
                break  # the search ends where nothing is solved
    return frame(*cells)


def vocabulary(dg, price, rate, noise=0.0):
    """J11: errors at M = 32; at M = 2 the other way round."""
    large, cells = {"task.vocab": 32}, []
    for columns, end, other in ((TASK | {"method.name": "dg"}, dg, 0.9), (PRICE, price, 0.9), (GATE, rate, 0.001)):
        spread = noise if columns is PRICE else 0.0
        cells += [runs(columns | large, end, noise=spread), runs(columns, other)]
    return frame(*cells)


KINDS = ("staleness", "actor_bugs", "reward_corruption", "rare_discovery", "all")


def frictions(ends, noise=None, kinds=KINDS, reach=None, drift=0.0, elsewhere=0.5):
    """D4, D5: errors under frictions of intensity 0.25. DG falls to 30% after the share `reach` of its budget. The
    same methods elsewhere: clean, at intensity 0.75, and with junk punished."""
    cells = []
    for place, (columns, end) in enumerate(methods(**ends)):
        ours = columns["method.name"] == "dg"
        for kind in kinds:
            choice = {"choice.friction": kind, "choice.intensity": 0.25}
            course = {"target": 0.3, "reach": reach, "drift": drift} if ours else {}
            spread = (noise or {}).get(columns["method.name"], 0.0)
            cells.append(runs(columns | choice, end, noise=spread, pattern=place, **course))
            cells.append(runs(columns | choice | {"choice.intensity": 0.75}, elsewhere))
        cells.append(runs(columns | {"choice.friction": "none", "choice.intensity": 0.25}, elsewhere))
        cells.append(runs(columns | {"choice.friction": "penalised_bugs", "choice.intensity": 0.25}, elsewhere))
    return frame(*cells)


def efficient(dg, pg, **course):
    """D5: where PPO and PMPO end at 30%."""
    return frictions({"dg": dg, "pg": pg, "ppo": 0.3, "pmpo": 0.3}, **course)


ORDER = {"dgk": 12, "dg": 12, "pmpo": 8, "ppo": 5, "pg": 3}
REVERSED = {"dgk": 3, "dg": 5, "pmpo": 8, "ppo": 12, "pg": 20}
EQUAL_COST = dict.fromkeys(ORDER, 3e4)
SCATTER = {name: np.where(PATTERNS[place] > 0, 12, 3) for place, name in enumerate(ORDER)}
ROUGH = {"friction": "all", "intensity": 0.25}


def rough(tops, **options):
    """D6: under all frictions; clean, at another intensity and with another vocabulary the other way round."""
    ours = {name: top for name, top in tops.items() if name != "dgk"}
    back = dict(zip(ours, list(ours.values())[::-1], strict=True))
    return pd.concat(
        [scaling(ours, **ROUGH), scaling(back), scaling(back, "all", 0.75), scaling(back, **ROUGH, vocab=4)]
    )


WORLDS = [
    World("J9", "true", lambda: curves(0.002, 33, 0.03), REPRODUCED, "hhhhh", 33),
    World("J9", "false", lambda: curves(0.02, 20, 0.003), NOT, "fffff", 20),
    World("J9", "noisy", lambda: curves(0.002, 20, 0.003, noise=0.01, drift=0.5), INCONCLUSIVE, "ooooo", 20),
    World("J9", "tracks, and costs", lambda: curves(0.002, 20, 0.03), PARTLY, "hfhhh", 20),
    World("J10", "true", lambda: scaling(ORDER), REPRODUCED, 8 * "h", 0),
    World("J10", "false", lambda: scaling(REVERSED, backward=EQUAL_COST), NOT, 8 * "f", -2),
    World("J10", "noisy", lambda: scaling(SCATTER, backward=EQUAL_COST), INCONCLUSIVE, 8 * "o", 0),
    World("J10", "by backward passes alone", lambda: scaling(REVERSED), PARTLY, "ffff" + "hhhh", -2),
    World("J11", "true", lambda: vocabulary(0.01, 0.012, 0.013), REPRODUCED, "hh", -0.001),
    World("J11", "false", lambda: vocabulary(0.01, 0.04, 0.039), NOT, "ff", 0.001),
    World("J11", "noisy", lambda: vocabulary(0.01, 0.012, 0.013, noise=0.01), INCONCLUSIVE, "oo", -0.001),
    World("D4", "true", lambda: frictions({"dg": 0.01, "pg": 0.3, "ppo": 0.3, "pmpo": 0.08}), REPRODUCED, "hhhh", 8),
    World("D4", "false", lambda: frictions({"dg": 0.01, "pg": 0.3, "ppo": 0.05, "pmpo": 0.3}), NOT, "ffff", 5),
    World(
        "D4",
        "noisy",
        lambda: frictions({"dg": 0.01, "pg": 0.06, "ppo": 0.5, "pmpo": 0.5}, {"pg": 0.05}),
        INCONCLUSIVE,
        "oooo",
        6,
    ),
    World("D5", "true", lambda: efficient(0.1, 0.3, reach=0.125), REPRODUCED, "hhh", 8),
    World("D5", "false", lambda: efficient(0.1, 0.3, reach=0.2), NOT, "fff", 5),
    World(
        "D5",
        "noisy",
        lambda: efficient(0.1, 0.3, reach=1 / 6, drift=0.5),
        INCONCLUSIVE,
        "ooo",
        6,
    ),
    World("D5", "never there", lambda: efficient(0.4, 0.3), NOT, "fff", 0),
    World("D5", "PG is worse", lambda: efficient(0.1, 0.5, reach=0.2), PARTLY, "hff", 5),
    World(
        "D5-errors",
        "true",
        lambda: frictions({"dg": 0.008, "pg": 0.3, "ppo": 0.08, "pmpo": 0.1}),
        REPRODUCED,
        "hhhhh",
        10,
    ),
    World("D5-errors", "false", lambda: frictions({"dg": 0.05, "pg": 0.2, "ppo": 0.3, "pmpo": 0.25}), NOT, "fffff", 5),
    World(
        "D5-errors",
        "noisy",
        lambda: frictions(
            {"dg": 0.009, "pg": 0.07, "ppo": 0.06, "pmpo": 0.06}, {"dg": 0.005, "pg": 0.06, "ppo": 0.05, "pmpo": 0.05}
        ),
        INCONCLUSIVE,
        "ooooo",
    ),
    World("D6", "true", lambda: rough(ORDER), REPRODUCED, "hhh", 4),
    World("D6", "false", lambda: rough(REVERSED), NOT, "fff", -3),
    World("D6", "noisy", lambda: rough(SCATTER), INCONCLUSIVE, "ooo", 0),
    World("D6", "a tie", lambda: rough(ORDER | {"pmpo": 5}), PARTLY, "hfh", 7),
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_claim_is_judged_as_its_world_was_made(world):
    world.check()


def test_a_missing_friction_is_named_with_the_method():
    made = frictions({"dg": 0.01, "pg": 0.3, "ppo": 0.3, "pmpo": 0.08}, kinds=("staleness", "actor_bugs"))
    record = CLAIMS["D4"].judge(made)
    assert record["verdict"] == NOT_RUN
    assert "PPO, friction=rare_discovery, intensity=0.25" in record["detail"]
    assert "staleness" not in record["detail"]


# Lengths


def test_the_longest_length_is_the_last_before_the_first_that_is_not_solved():
    made = scaling({"dg": 8})
    assert set(reversal_scaling.longest(made)) == {8.0}
    assert set(reversal_scaling.longest(scaling({"dg": 0}))) == {0.0}
    broken = made.assign(error=made["error"].mask(made["task.length"] == 5, 0.4))
    assert set(reversal_scaling.longest(broken)) == {3.0}
    partial = made[(made["seed"] != 0) | (made["task.length"] == 5)]  # a seed of another figure, at one length
    assert set(reversal_scaling.longest(partial)) == {8.0}
    assert len(reversal_scaling.longest(partial)) == SEEDS - 1


@pytest.mark.parametrize(("budget", "lengths"), [(0.49, 0), (0.51, 3), (0.76, 5), (2.0, 8)])
def test_a_length_counts_within_a_budget_once_what_it_took_is_paid_for(budget, lengths):
    """5% is reached after 0.25, 0.5 and 1 of a million backward passes; each seed by itself."""
    cells = []
    for length, reach, spent in ((3, 0.5, 1e6), (5, 0.375, 2e6), (8, 0.25, 4e6), (12, None, 1e6)):
        columns = TASK | {"method.name": "dg", "task.length": length, "solved": 0.05}
        cells.append(runs(columns, 0.4 if reach is None else 0.001, reach=reach, backward=spent))
    assert set(reversal_scaling.longest(frame(*cells), "backward", budget * 1e6)) == {lengths}


def test_two_cells_of_one_length_are_refused():
    made = scaling({"dg": 8})
    other = made.assign(**{"optimizer.lr": 0.2, "cell": made["cell"] + "′"})
    with pytest.raises(AmbiguousRows, match=r"optimizer\.lr \(0.1, 0.2\)"):
        reversal_scaling.longest(pd.concat([made.assign(**{"optimizer.lr": 0.1}), other]))


def test_a_search_that_is_not_finished_is_not_judged():
    made = rough(ORDER)
    stopped = made[(made["method.name"] != "dg") | (made["task.length"] < 20) | (made["choice.friction"] != "all")]
    record = CLAIMS["D6"].judge(stopped)  # 12 was solved, 20 is to be tried
    assert (record["verdict"], record["detail"]) == (NOT_RUN, "no runs of DG")
    complete = stopped.assign(last=12)  # nothing longer is to be tried
    assert CLAIMS["D6"].judge(complete)["verdict"] == REPRODUCED


def test_seeds_that_all_agree_have_room_up_to_the_next_length_unless_there_are_six():
    grid = [3.0, 5.0, 8.0, 12.0]
    for seeds, spread in ((6, (4, 4)), (5, (0, 8)), (3, (0, 8))):
        lengths = pd.DataFrame({"a": [12.0] * seeds, "b": [8.0] * seeds})
        gap = reversal_scaling._gap(lengths, "a", "b", grid)
        assert (gap.mean, gap.low, gap.high) == (4, *spread)  # b short of 12: 12 − 12; a short of 16: 16 − 8
    scattered = pd.DataFrame({"a": [12.0, 8.0, 12.0], "b": [8.0, 8.0, 8.0]})
    gap = reversal_scaling._gap(scattered, "a", "b", grid)
    assert gap.low < gap.mean < gap.high
    assert gap.mean == pytest.approx(8 / 3)


def test_three_seeds_on_neighbouring_lengths_leave_the_order_open():
    made = rough(ORDER)
    three = CLAIMS["D6"].judge(made[made["seed"] < 3])
    assert set(three["parts"].values()) == {"open"}
    far = rough({"dg": 12, "pmpo": 3, "ppo": 3, "pg": 3})
    assert list(CLAIMS["D6"].judge(far[far["seed"] < 3])["parts"].values()) == ["holds", "open", "open"]


# Frictions by what was asked for


def test_frictions_are_told_by_what_was_asked_for_and_clean_runs_are_intensity_0():
    """Whatever is left of a friction in the cell: of rare discovery nothing is."""
    made = frictions({"dg": 0.1, "is_pg_uncapped": 0.2}, elsewhere=0.4)
    table = reversal_frictions.select(made.assign(friction="none"))
    means = table[table["kind"] == "mean"].set_index(["friction", "method.name", "intensity"])["error"]
    for kind in KINDS:
        assert means[kind, "dg"].to_dict() == pytest.approx({0.0: 0.4, 0.25: 0.1, 0.75: 0.4})
        assert means[kind, "is_pg_uncapped", 0.25] == pytest.approx(0.2)
    assert means["penalised_bugs", "dg"].to_dict() == pytest.approx({0.0: 0.4, 0.25: 0.4})
    drawn = reversal_frictions.plot(table).axes[0].lines  # a line and its seeds for each of two methods
    assert [len(line.get_xdata()) for line in drawn] == [3, 3 * SEEDS] * 2
    plt.close("all")
    seeds = table[table["kind"] == "seed"]
    assert len(seeds) == SEEDS * len(means)


def test_the_frictions_of_mnist_are_told_by_what_was_asked_for():
    made = frictions({"dg": 0.1, "pg": 0.3}, kinds=KINDS[1:], elsewhere=0.4)
    made = made[~made["choice.friction"].isin(["none", "penalised_bugs"])]
    table = mnist_frictions.select(made.assign(friction="staleness"))
    means = table.set_index(["friction", "method.name", "intensity"])
    assert means["error"].to_dict() == pytest.approx(
        {(kind, name, level): end for kind in KINDS[1:] for name, low in (("dg", 0.1), ("pg", 0.3))
         for level, end in ((0.25, low), (0.75, 0.4))}
    )  # fmt: skip
    assert "actor bugs: DG 10.00%" in mnist_frictions.measured(table)
    assert all(len(axes.lines) == 2 for axes in mnist_frictions.plot(table).axes)
    plt.close("all")


def test_the_scaling_figure_tells_clean_from_rough_by_what_was_asked_for():
    made = pd.concat([scaling({"dg": 12}), scaling({"dg": 5}, **ROUGH)]).assign(friction="none")
    table = reversal_scaling.select(made)
    ends = table[table["cost"] == "forward"].sort_values("budget").groupby("friction")["longest"].last()
    assert ends.to_dict() == {"none": 12.0, "all": 5.0}
    assert len(reversal_scaling.plot(table).axes) == 6
    plt.close("all")
