"""The claims about token reversal in worlds where their verdict is known."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from analysis import lengths as longest
from analysis import published
from analysis.experiments import (
    joy_10,
    mnist_frictions,
    reversal_frictions,
    reversal_mismatch,
    reversal_scaling,
    reversal_strengths,
)
from analysis.judge import INCONCLUSIVE, NOT, NOT_RUN, PARTLY, REPRODUCED
from analysis.settings import LEVEL
from analysis.tables import AmbiguousRows
from tests.worlds import CLAIMS, PATTERNS, SEEDS, World, dgk, frame, runs, traced

TASK = {"task.name": "reversal", "task.target": "reverse", "task.layers": 3, "task.width": 64}
TASK |= {"task.length": 10, "task.vocab": 2, "task.credit": "to_first_error", "task.kappa": 1.0}
ANSWERS = {"gate.unit": "sequence"}
GATE, PRICE = TASK | dgk(0.03) | ANSWERS, TASK | dgk(None, 0.0) | ANSWERS
TOKENS = TASK | dgk(0.03) | {"gate.unit": "token"}
PRICE_TOKENS = PRICE | {"gate.unit": "token"}


def methods(**ends):
    return [(TASK | {"method.name": name}, end) for name, end in ends.items()]


def curves(gap, ratio, others, noise=0.0, drift=0.0, **each):
    """J9: DG-K ends a gap above DG, which needs `ratio` times its backward passes; the others end so far above it, or
    each so far as it is said."""
    ours = 0.003 + gap
    return frame(
        runs(TASK | {"method.name": "dg"}, 0.003, reach=0.3),
        runs(GATE, ours, noise=noise, reach=0.3 / 0.03 / ratio, backward=3e4, drift=drift),
        runs(TOKENS, 0.9),
        runs(PRICE, 0.9),
        *(
            runs(columns, ours + gap)
            for columns, gap in methods(**dict.fromkeys(("pg", "ppo", "pmpo"), others) | dict(each))
        ),
    )


FIGURE_8 = published.published(published.JOY_PAPER, "Fig. 8", "reward_error")


def units(answers, tokens, noise=0.0, price=None):
    """J9-unit: published curves times a factor, by answer and by token; at λ = 0 the same, or another pair."""
    cells = []
    for pair, factors in (((GATE, TOKENS), (answers, tokens)), ((PRICE, PRICE_TOKENS), price or (answers, tokens))):
        for place, (columns, off) in enumerate(zip(pair, factors, strict=True)):
            cells.append(traced(columns, published.of(FIGURE_8, columns), off, noise=noise, pattern=place))
    return frame(*cells, runs(TASK | dgk(0.1) | ANSWERS, 0.001), runs(TASK | {"method.name": "dg"}, 0.001))


def ties(plain, strict, noise=0.0):
    """J9-pmpo: the published curve times a factor, of PMPO and of one that leaves answers of no advantage alone."""
    names = (("pmpo", plain), ("pmpo_strict", strict))
    theirs = published.of(FIGURE_8, {"method.name": "pmpo"})
    cells = [
        traced(TASK | {"method.name": name}, theirs, off, noise=noise, pattern=place)
        for place, (name, off) in enumerate(names)
    ]
    return frame(*cells, runs(TASK | {"method.name": "dg"}, 0.001))


def idle(relapses, steps, skips, noise=0.0):
    """J9-idle: how often DG relapses with updates in batches that give no gradient, by seed, and as often without as
    the second says; and published curves of the gates times a factor, with and without such updates. Small rises, and
    those of before the first descent, do not count."""
    dg = []
    for word, often in zip((None, "skip"), relapses, strict=True):
        cell = runs(TASK | {"method.name": "dg", "optimizer.idle": word}, 1e-6)
        for seed, count in enumerate(np.broadcast_to(often, SEEDS)):
            course = [0.5, 0.9, 2e-4, 0.0019, 1e-6, 9e-4] + [0.02, 1e-5] * int(count)
            first = next(row for row in cell if row["seed"] == seed)
            dg += [first | {"step": 200 + place, "error": error} for place, error in enumerate(course)]
        dg += cell
    cells = []
    for gate in (GATE, PRICE):
        for place, (word, off) in enumerate((("step", steps), (None, skips))):
            columns = gate | {"optimizer.idle": word}
            cells.append(traced(columns, published.of(FIGURE_8, gate), off, noise=noise, pattern=place))
    return frame(dg, *cells)


def sparse(paid, idle, noise=0.0):
    """J9-sparse: the share of answers in a graph at λ = 0, and of those without advantage in the last batch; on the
    way, by token and at a rate the other way round."""
    cells = []
    for columns, bought, solved in ((PRICE, paid, idle), (PRICE_TOKENS, 0.2 - paid, 1 - idle), (GATE, 0.5, 0.5)):
        made = frame(runs(columns, 0.001, backward=bought * 1e6))
        last = made["step"] == made["steps"]
        spread = noise * PATTERNS[0][made["seed"]]
        share = np.where(last, solved + spread, 1 - solved)
        backward = np.where(last, made["backward"] + 1e6 * spread, 1e6 * bought)
        cells.append(made.assign(zero_advantage=share, backward=backward))
    return pd.concat(cells, ignore_index=True)


SHARES = TASK | {"task.credit": "share"}


def shares(lead, order, noise=0.0):
    """G1-share: PG's error over DG's, and over it that of PMPO at α = 0.6; at α = 0.5 it is the other way round."""
    pmpo = SHARES | {"method.name": "pmpo", "method.alpha": 0.6}
    short = {"steps": 1000, "forward": 1e5, "backward": 1e5}
    return frame(
        runs(SHARES | {"method.name": "dg"}, 0.0004, **short),
        runs(SHARES | {"method.name": "pg"}, 0.0004 * lead, noise=noise * 0.0004 * lead, **short),
        runs(SHARES | {"method.name": "ppo"}, 0.9, **short),
        runs(pmpo, 0.0004 * lead * order, noise=noise * 0.0004 * lead * order, pattern=1, **short),
        runs(pmpo | {"method.alpha": 0.5}, 0.0004 * lead / order, **short),
    )


LARGE = {"H": {"task.length": 50, "task.vocab": 2}, "M": {"task.length": 10, "task.vocab": 50}}


def sizes(pg, pmpo, noise=0.0):
    """G1-size: errors over DG's for long prompts and for large vocabularies, (H, M) of each; at other sizes the other
    way round."""
    cells = []
    small, both = {"task.length": 10, "task.vocab": 2}, {"task.length": 50, "task.vocab": 50}
    for size, place in ((LARGE["H"], 0), (LARGE["M"], 1), (small, None), (both, None)):
        for pattern, (name, ratios) in enumerate((("dg", (1, 1)), ("pg", pg), ("pmpo", pmpo))):
            ratio = 1 / ratios[0] if place is None else ratios[place]
            end = 0.01 * ratio
            cells.append(runs(SHARES | size | {"method.name": name}, end, noise=noise * end, pattern=pattern))
    return frame(*cells)


def terminal(dg, ppo, noise=0.0):
    """T1: errors of DG and of PPO with one update per batch and with four; with two, and of the others, anything."""
    cells = []
    for epochs, ours, theirs in ((1, dg[0], ppo[0]), (4, dg[1], ppo[1]), (2, 0.5, 0.2)):
        task = TASK | {"task.credit": "share", "task.length": 5, "task.kappa": 0.0, "optimizer.epochs": epochs}
        cells.append(runs(task | {"method.name": "dg"}, ours, noise=noise))
        cells.append(runs(task | {"method.name": "ppo"}, theirs, noise=noise, pattern=1))
        cells += [runs(task | columns, 0.3) for columns in ({"method.name": "pg"}, dgk(0.03) | ANSWERS, PRICE | task)]
    return frame(*cells)


LENGTHS = (3, 5, 8, 12, 20)


def scaling(tops, friction="none", intensity=np.nan, vocab=2, backward=None):
    """Methods that solve lengths up to a given one, or up to one of their own for each seed."""
    cells = []
    for name, top in tops.items():
        tops_by_seed = np.broadcast_to(np.asarray(top, dtype=float), SEEDS)
        for length in LENGTHS:
            columns = {"dgk": GATE, "free": PRICE}.get(name, TASK | {"method.name": name})
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
    """D4, D5: errors under frictions of intensity 0.3. DG falls to 30% after the share `reach` of its budget. The
    same methods elsewhere: clean, at intensity 0.6, always so late, and with junk punished."""
    cells = []
    for place, (columns, end) in enumerate(methods(**ends)):
        ours = columns["method.name"] == "dg"
        for kind in kinds:
            choice = {"choice.friction": kind, "choice.intensity": LEVEL}
            course = {"target": 0.3, "reach": reach, "drift": drift} if ours else {}
            spread = (noise or {}).get(columns["method.name"], 0.0)
            cells.append(runs(columns | choice, end, noise=spread, pattern=place, **course))
            cells.append(runs(columns | choice | {"choice.intensity": 0.6}, elsewhere))
        cells.append(runs(columns | {"choice.friction": "none", "choice.intensity": LEVEL}, elsewhere))
        for kind in ("penalised_bugs", "staleness_fixed"):
            cells.append(runs(columns | {"choice.friction": kind, "choice.intensity": LEVEL}, elsewhere))
    return weighted(frame(*cells), elsewhere)


def weighted(made, elsewhere):
    """With PG as the author has it under frictions, by importance weights; and beside it a plain one."""
    plain = made[made["method.name"] == "pg"]
    plain = plain.assign(error=elsewhere, cell=plain["cell"] + " plain")
    return pd.concat([made.assign(**{"method.name": made["method.name"].replace("pg", "is_pg_uncapped")}), plain])


def efficient(dg, pg, **course):
    """D5: where PPO and PMPO end at 30%."""
    return frictions({"dg": dg, "pg": pg, "ppo": 0.3, "pmpo": 0.3}, **course)


ORDER = {"dgk": 12, "dg": 12, "pmpo": 8, "ppo": 5, "pg": 3}
REVERSED = {"dgk": 3, "dg": 5, "pmpo": 8, "ppo": 12, "pg": 20}
EQUAL_COST = dict.fromkeys(ORDER, 3e4)
SCATTER = {name: np.where(PATTERNS[place] > 0, 12, 3) for place, name in enumerate(ORDER)}
ROUGH = {"friction": "all", "intensity": LEVEL}


def rough(tops, **options):
    """D6: under all frictions; clean, at another intensity and with another vocabulary the other way round."""
    ours = {name: top for name, top in tops.items() if name != "dgk"}
    back = dict(zip(ours, list(ours.values())[::-1], strict=True))
    made = pd.concat(
        [scaling(ours, **ROUGH), scaling(back), scaling(back, "all", 0.6), scaling(back, **ROUGH, vocab=4)]
    )
    return weighted(made, 0.0)


WORLDS = [
    World("J9", "true", lambda: curves(0.002, 33, 0.03), REPRODUCED, "hhhhh", 33),
    World("J9", "false", lambda: curves(0.02, 20, 0.003), NOT, "fffff", 20),
    World("J9", "noisy", lambda: curves(0.002, 20, 0.003, noise=0.01, drift=0.5), INCONCLUSIVE, "ooooo", 20),
    World("J9", "tracks, and costs", lambda: curves(0.002, 20, 0.03), PARTLY, "hfhhh", 20),
    World("J9", "PPO alone keeps up", lambda: curves(0.002, 33, 0.03, ppo=0.003), PARTLY, "hhhfh", 33),
    World("J9-unit", "true", lambda: units(1.1, 12), REPRODUCED, "hhhh", 12 * 0.000825),
    World("J9-unit", "false", lambda: units(12, 1.1), NOT, "ffff", 1.1 * 0.000825),
    World("J9-unit", "noisy", lambda: units(2, 6, noise=0.9), INCONCLUSIVE, "oooo", 6 * 0.000825),
    World("J9-unit", "by less than ten", lambda: units(1.1, 10), PARTLY, "fhfh", 10 * 0.000825),
    World("J9-unit", "lower, and as far", lambda: units(1 / 15, 2), PARTLY, "hfhf", 2 * 0.000825),
    World("J9-unit", "at a rate alone", lambda: units(1.1, 12, price=(12, 1.1)), PARTLY, "hhff", 12 * 0.000825),
    World("J9-pmpo", "true", lambda: ties(0.3, 1.1), REPRODUCED, "hh", 0.8 * 0.22),
    World("J9-pmpo", "false", lambda: ties(1.1, 0.3), NOT, "ff", -0.8 * 0.22),
    World("J9-pmpo", "noisy", lambda: ties(0.8, 1.1, noise=0.9), INCONCLUSIVE, "oo", 0.3 * 0.22),
    World("J9-pmpo", "above, and farther", lambda: ties(0.9, 3), PARTLY, "fh", 2.1 * 0.22),
    World("J9-idle", "true", lambda: idle((2, 1), 1.1, 0.2), REPRODUCED, "hhh", 1),
    World("J9-idle", "false", lambda: idle((0, 1), 0.2, 1.1), NOT, "fff", -1),
    World("J9-idle", "none at all", lambda: idle((0, 0), 0.2, 1.1), NOT, "fff", 0),
    World("J9-idle", "noisy", lambda: idle((2 + PATTERNS[0], 1 + PATTERNS[1]), 0.5, 0.4, 0.9), INCONCLUSIVE, "ooo", 1),
    World("J9-idle", "DG's alone", lambda: idle((1, 0), 0.2, 1.1), PARTLY, "hff", 1),
    World("J9-sparse", "true", lambda: sparse(0.09, 0.51), REPRODUCED, "hh", 0.09),
    World("J9-sparse", "false", lambda: sparse(0.11, 0.49), NOT, "ff", 0.11),
    World("J9-sparse", "noisy", lambda: sparse(0.09, 0.51, noise=0.08), INCONCLUSIVE, "oo", 0.09),
    World("J9-sparse", "groups are not solved", lambda: sparse(0.067, 0.3), PARTLY, "hf", 0.067),
    World("J10", "true", lambda: scaling(ORDER | {"free": 3}), REPRODUCED, 7 * "h", 0),
    World("J10", "false", lambda: scaling(REVERSED, backward=EQUAL_COST), NOT, 7 * "f", -2),
    World("J10", "noisy", lambda: scaling(SCATTER, backward=EQUAL_COST), INCONCLUSIVE, 7 * "o", 0),
    World("J10", "by backward passes alone", lambda: scaling(REVERSED), PARTLY, "fff" + "hhhh", -2),
    World("J10", "PPO and PG change places", lambda: scaling(ORDER | {"ppo": 3, "pg": 5}), REPRODUCED, 7 * "h", 0),
    World(
        "J10",
        "PPO goes as far",
        lambda: scaling(ORDER | {"ppo": 12}, backward=EQUAL_COST),
        PARTLY,
        "hhhhhfh",
        0,
    ),
    World("G1-share", "true", lambda: shares(76, 1.1), REPRODUCED, "hh", 76),
    World("G1-share", "false", lambda: shares(74, 0.9), NOT, "ff", 74),
    World("G1-share", "noisy", lambda: shares(70, 1.1, noise=0.6), INCONCLUSIVE, "oo", 70),
    World("G1-share", "PMPO below PG", lambda: shares(100, 0.9), PARTLY, "hf", 100),
    World("G1-size", "true", lambda: sizes((20, 6), (1.1, 10)), REPRODUCED, "hhhh", 20),
    World("G1-size", "false", lambda: sizes((0.5, 0.9), (0.9, 0.1)), NOT, "ffff", 0.5),
    World("G1-size", "noisy", lambda: sizes((1.2, 1.1), (1.1, 1.2), noise=0.4), INCONCLUSIVE, "oooo", 1.2),
    World("G1-size", "PG leads at M", lambda: sizes((20, 0.9), (30, 10)), PARTLY, "hhfh", 20),
    World("T1", "true", lambda: terminal((0.09, 0.48), (0.08, 0.47)), REPRODUCED, "hhhh", 0.01),
    World("T1", "false", lambda: terminal((0.11, 0.09), (0.11, 0.5)), NOT, "ffff", 0.0),
    World("T1", "noisy", lambda: terminal((0.09, 0.11), (0.08, 0.1), noise=0.04), INCONCLUSIVE, "oooo", 0.01),
    World("T1", "by less than half a point", lambda: terminal((0.05, 0.48), (0.046, 0.47)), PARTLY, "fhhh", 0.004),
    World("T1", "four do no harm", lambda: terminal((0.05, 0.05), (0.01, 0.4)), PARTLY, "hfhf", 0.04),
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
    assert f"PPO, friction=rare_discovery, intensity={LEVEL}" in record["detail"]
    assert "staleness" not in record["detail"]


# Lengths


def test_the_longest_length_is_the_longest_that_was_solved_whatever_became_of_shorter_ones():
    made = scaling({"dg": 8})
    assert set(longest.longest(made)) == {8.0}
    assert set(longest.longest(scaling({"dg": 0}))) == {0.0}
    broken = made.assign(error=made["error"].mask(made["task.length"] == 5, 0.4))
    assert set(longest.longest(broken)) == {8.0}
    cut = made.assign(error=made["error"].mask((made["task.length"] == 8) & (made["seed"] == 0), 0.4))
    assert longest.longest(cut).to_dict() == {seed: 5.0 if seed == 0 else 8.0 for seed in range(SEEDS)}
    partial = made[(made["seed"] != 0) | (made["task.length"] == 5)]  # a seed of another figure, at one length
    assert set(longest.longest(partial)) == {8.0}
    assert len(longest.longest(partial)) == SEEDS - 1


@pytest.mark.parametrize(("budget", "lengths"), [(0.49, 0), (0.51, 3), (0.76, 5), (2.0, 8)])
def test_a_length_counts_within_a_budget_once_what_it_took_is_paid_for(budget, lengths):
    """5% is reached after 0.25, 0.5 and 1 of a million backward passes; each seed by itself."""
    cells = []
    for length, reach, spent in ((3, 0.5, 1e6), (5, 0.375, 2e6), (8, 0.25, 4e6), (12, None, 1e6)):
        columns = TASK | {"method.name": "dg", "task.length": length, "solved": 0.05}
        cells.append(runs(columns, 0.4 if reach is None else 0.001, reach=reach, backward=spent))
    assert set(longest.longest(frame(*cells), "backward", budget * 1e6)) == {lengths}


def test_a_method_that_bought_nothing_at_first_or_ever_has_a_curve(recwarn):
    made = scaling({"dg": 8, "dgk": 3})
    gated = made["method.name"] == "dgk"
    for nothing in (gated & (made["step"] < made["step"].max()), gated):
        table = longest.curves(made.assign(backward=made["backward"].mask(nothing, 0)))
        budgets = table[(table["cost"] == "backward") & (table["method.name"] == "dgk")]["budget"]
        assert np.isfinite(table["longest"]).all()
        assert len(budgets) == (1 if nothing is gated else longest.BUDGETS)
    assert not recwarn.list


def test_two_cells_of_one_length_are_refused():
    made = scaling({"dg": 8})
    other = made.assign(**{"optimizer.lr": 0.2, "cell": made["cell"] + "′"})
    with pytest.raises(AmbiguousRows, match=r"optimizer\.lr \(0.1, 0.2\)"):
        longest.longest(pd.concat([made.assign(**{"optimizer.lr": 0.1}), other]))


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
        gap = longest.gap(lengths, "a", "b", grid)
        assert (gap.mean, gap.low, gap.high) == (4, *spread)  # b short of 12: 12 − 12; a short of 16: 16 − 8
    scattered = pd.DataFrame({"a": [12.0, 8.0, 12.0], "b": [8.0, 8.0, 8.0]})
    gap = longest.gap(scattered, "a", "b", grid)
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
    table = reversal_strengths.select(made.assign(friction="none"))
    means = table[table["kind"] == "mean"].set_index(["friction", "method.name", "intensity"])["error"]
    for kind in KINDS:
        assert means[kind, "dg"].to_dict() == pytest.approx({0.0: 0.4, LEVEL: 0.1, 0.6: 0.4})
        assert means[kind, "is_pg_uncapped", LEVEL] == pytest.approx(0.2)
    drawn = reversal_strengths.plot(table).axes[0].lines  # a line and its seeds for each of two methods
    assert [len(line.get_xdata()) for line in drawn] == [3, 3 * SEEDS] * 2
    plt.close("all")
    seeds = table[table["kind"] == "seed"]
    assert len(seeds) == SEEDS * len(means)
    words = reversal_strengths.measured(table)
    assert "staleness at 0.3, not at 0, 0.6; " in words
    others = reversal_mismatch.select(made.assign(friction="none"))
    means = others[others["kind"] == "mean"].set_index(["friction", "method.name", "intensity"])["error"]
    assert means["penalised_bugs", "dg"].to_dict() == pytest.approx({0.0: 0.4, LEVEL: 0.4})
    assert "penalised_bugs nowhere" in reversal_mismatch.measured(others)
    assert len(reversal_mismatch.plot(others).axes) == 6
    fewer = reversal_frictions.select(made.assign(friction="none"))
    assert "staleness_fixed" not in set(fewer.loc[fewer["intensity"] == 0, "friction"])
    assert len(reversal_frictions.plot(fewer).axes) == 6
    plt.close("all")


def test_the_frictions_of_mnist_are_told_by_what_was_asked_for():
    made = frictions({"dg": 0.1, "pg": 0.3}, kinds=KINDS[1:], elsewhere=0.4)
    made = made[~made["choice.friction"].isin(["none", "penalised_bugs", "staleness_fixed"])]
    made = made[made["method.name"] != "pg"].replace({"method.name": {"is_pg_uncapped": "pg"}})
    table = mnist_frictions.select(made.assign(friction="staleness"))
    means = table.set_index(["friction", "method.name", "intensity"])
    assert means["error"].to_dict() == pytest.approx(
        {(kind, name, level): end for kind in KINDS[1:] for name, low in (("dg", 0.1), ("pg", 0.3))
         for level, end in ((LEVEL, low), (0.6, 0.4))}
    )  # fmt: skip
    assert "actor bugs: DG 10.00%" in mnist_frictions.measured(table)
    assert all(len(axes.lines) == 2 for axes in mnist_frictions.plot(table).axes)
    plt.close("all")


def test_the_scaling_figures_tell_clean_from_rough_by_what_was_asked_for():
    made = pd.concat([scaling({"dg": 12}), scaling({"dg": 5}, **ROUGH)]).assign(friction="none")
    for module in (reversal_scaling, joy_10):
        table = module.select(made)
        ends = table[table["cost"] == "forward"].sort_values("budget").groupby("friction")["longest"].last()
        assert ends.to_dict() == {"none": 12.0, "all": 5.0}
    assert [len(module.plot(table).axes) for module in (reversal_scaling, joy_10)] == [3, 2]
    plt.close("all")
