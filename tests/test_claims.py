"""The claims about MNIST and the quality–cost front in worlds where their verdict is known; how claims are judged."""

import dataclasses
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis import judge, plots, published, report, settings, stats, tables
from analysis.judge import INCONCLUSIVE, MIN_SEEDS, NOT, NOT_RUN, PARTLY, REPRODUCED
from analysis.stats import Interval
from kondo.lab.tasks import TASKS
from tests import test_claims_language, test_claims_reversal, test_claims_studies
from tests.worlds import CLAIMS, PATTERNS, SEEDS, World, dgk, frame, rename, runs, traced

MNIST = {"task.name": "mnist", "task.dataset": "mnist", "task.batch": 100, "task.baseline": "confidence"}
MNIST |= {"task.samples": 1, "optimizer.lr": 0.001, "screen.source": "exact", "screen.age": 0, "screen.noise": 0.0}
PG, DG = MNIST | {"method.name": "pg"}, MNIST | {"method.name": "dg"}
GATE = MNIST | dgk(0.03)


def headline(gap, ratio, noise=0.0, drift=0.0, extra=()):
    """J5: DG-K's sampled guesses end a gap above DG's, at test images the other way round; PG needs `ratio` times its
    backward passes to 5% test error."""
    made = frame(
        runs(PG, 0.035, reach=0.4, train_error=0.036),
        runs(DG, 0.027, reach=0.2, train_error=0.016),
        runs(GATE, 0.047 - gap, reach=0.4 / 0.03 / ratio, backward=3e4, drift=drift, train_error=0.016 + gap),
        *extra,
    )
    scatter = noise * PATTERNS[0][made["seed"]] * (made["method.name"] == "dgk")
    return made.assign(train_error=made["train_error"] + scatter)


FIGURE_1 = published.published(published.JOY_PAPER, "Fig. 1", "error")


def figure_1(off, noise=0.0, dg=None):
    """J5-curve: the published curves times a factor; those of the test error, and of another rate, are elsewhere."""
    factors = {"pg": off, "dg": dg or off, "dgk": off}
    return frame(
        *(
            traced(columns, published.of(FIGURE_1, columns), factors[name], noise=noise, column="train_error")
            for name, columns in (("pg", PG), ("dg", DG), ("dgk", GATE))
        ),
        runs(MNIST | dgk(0.1), 0.5, train_error=0.5),
    )


GUESSES = (1, 3, 10, 100)


def guesses(lead, few, many, noise=0.0, without=None):
    """G1-baseline: PG's error over DG's with each baseline at one guess; with Σπ² at S = 1, and at more. At test
    images, and with other baselines at more guesses, the other way round."""
    cells = []
    for baseline in ("confidence", "half", "zero", "oracle"):
        for count in GUESSES:
            once, often = (few, many) if baseline == "confidence" else (lead, 1 / lead)
            own = 1.0 if baseline == without else once if count == 1 else often
            task = MNIST | {"task.baseline": baseline, "task.samples": count}
            for place, (name, end) in enumerate((("pg", 0.02 * own), ("dg", 0.02))):
                column = {"column": "train_error", "error": 0.02 / own if name == "pg" else 0.02}
                cells.append(runs(task | {"method.name": name}, end, noise=noise * end, pattern=place, **column))
            cells.append(runs(task | dgk(0.03), 0.001, column="train_error", error=0.001))
    return frame(*cells)


def speedup(dg, gate, screened=0.0, drift=0.0):
    """J6: PG needs `dg` and `gate` times the forward passes of DG and DG-K to 5%."""
    return frame(
        runs(PG, 0.035, reach=0.42),
        runs(DG, 0.027, reach=0.42 / dg, screened=screened, drift=drift),
        runs(GATE, 0.03, reach=0.42 / gate, backward=3e4, screened=screened, drift=drift),
    )


RIVALS = [{"gate.priority": name} for name in ("advantage", "abs_advantage", "surprisal", "uniform")]
RIVALS += [{"gate.priority": "additive", "gate.alpha": tenth / 10} for tenth in range(1, 10)]


def priorities(delight, rival, noise=0.0, last=None):
    ends = [rival] * 12 + [rival if last is None else last]
    each = zip(RIVALS, ends, strict=True)
    return frame(runs(GATE, delight, noise=noise), *(runs(GATE | priority, end) for priority, end in each))


def screens(dg, gate, noise=0.0):
    """J8: how much the errors of DG and DG-K rise at 50% noise; at 100% the other way round."""
    cells = []
    for place, (base, rise, other) in enumerate(((DG, dg, gate), (GATE, gate, dg))):
        cells += [runs(base | {"screen.noise": 0.0}, 0.03), runs(base | {"screen.noise": 1.0}, 0.03 + other)]
        cells += [runs(base | {"screen.noise": 0.5}, 0.03 + rise, noise=noise, pattern=place)]
        cells += [runs(base | {"screen.source": "snapshot", "screen.age": 10}, 0.5)]
    return frame(*cells)


LAWS = ("uniform", "fixed")


def stale(law, pg, is_pg, dg, noise=(0.0, 0.0, 0.0), other=None):
    """D1: errors up to 1,000 steps behind; and others at 100. With the other law PG and DG change places."""
    cells = []
    for place, (name, end, turned) in enumerate((("pg", pg, dg), ("is_pg", is_pg, is_pg), ("dg", dg, pg))):
        late = MNIST | {"method.name": name, "friction.staleness.delay": 1000, "friction.staleness.delay_mode": law}
        cells += [runs(late, end, noise=noise[place], pattern=place)]
        cells += [runs(late | {"friction.staleness.delay": 100}, (other or {}).get(name, end))]
        cells += [runs(late | {"friction.staleness.delay_mode": LAWS[law == "uniform"]}, turned)]
    return frame(*cells)


def delays(gaps, noise=0.0):
    """D3-mnist: DG's error less IS-PG's by delay; at 10, and always so late, the other way round."""
    cells = []
    for delay, gap in {10: 0.3, **gaps}.items():
        for law, own in (("uniform", gap), ("fixed", -gap)):
            late = {"friction.staleness.delay": delay, "friction.staleness.delay_mode": law}
            cells += [runs(MNIST | late | {"method.name": "is_pg"}, 0.3, noise=noise)]
            cells += [runs(MNIST | late | {"method.name": "dg"}, 0.3 + own)]
    return frame(*cells)


def alignment(pg, dg, noise=0.0, below_half=SEEDS):
    """D2: (first, last) cosine of PG and of DG along a DG run, once half is right; before that the other way round."""
    rows = []
    for method in ("dg", "pg"):
        for seed in range(SEEDS):
            for step, policy_error in ((0, 0.9), (1, 0.8), (10, 0.4), (100, 0.1)):
                late = step == 100
                cosines = [pair[late] if step > 1 else 2 * pair[1] - pair[0] for pair in (pg, dg)]
                if method == "pg":  # another trajectory, of which the claim is not
                    cosines = cosines[::-1]
                shift = noise * late * np.array([PATTERNS[0][seed], PATTERNS[1][seed]])
                wrong = policy_error if seed < below_half else 0.9
                common = MNIST | {
                    "method.name": method,
                    "cell": method,
                    "steps": 100,
                    "error": 0.1,
                    "policy_error": wrong,
                }
                both = dict(zip(("cos_pg_mixed", "cos_dg_mixed"), np.array(cosines) + shift, strict=True))
                rows.append(common | both | {"seed": seed, "step": step})
    return frame(rows)


THEIRS = {"pg": (PG, 0.0344), "dg": (DG, 0.0267), "10%": (MNIST | dgk(0.1), 0.0328), "3%": (GATE, 0.0299)}
THEIRS |= {"1%": (MNIST | dgk(0.01), 0.034)}


def table(off, noise=0.0, steps=10_000):
    """R1: how far from the published errors."""
    return frame(*(runs(columns, end + off, noise=noise, steps=steps) for columns, end in THEIRS.values()))


def front(task, best, pg=0.03, dg=0.03, noise=0.0, backward=3e4):
    """J12: six gates, of which one ends at `best`; and a random gate that is better and does not count."""
    others = [(0.01, None), (0.1, None), (0.3, None), (None, 0.0), (None, 0.1)]
    return frame(
        runs(task | {"method.name": "pg"}, pg),
        runs(task | {"method.name": "dg"}, dg),
        runs(task | {"method.name": "ce"}, 0.001),
        runs(task | dgk(0.03), best, noise=noise, backward=backward),
        runs(task | dgk(0.03, **{"gate.priority": "uniform"}), 0.001, backward=3e4),
        *(runs(task | dgk(rate, price), 0.2, backward=1e5) for rate, price in others),
    )


FRONTS = {
    "J12-mnist": MNIST,
    "J12-bandit": {"task.name": "bandit"},
    "J12-reversal": test_claims_reversal.TASK,
}
WORLDS = [
    World("J5", "true", lambda: headline(0.002, 100), REPRODUCED, "hh", 100),
    World("J5", "false", lambda: headline(0.02, 40), NOT, "ff", 40),
    World("J5", "noisy", lambda: headline(0.002, 60, noise=0.01, drift=0.5), INCONCLUSIVE, "oo", 60),
    World("J5", "near enough", lambda: headline(0.002, 76), REPRODUCED, "hh", 76),
    World("J5", "half", lambda: headline(0.002, 40), PARTLY, "hf", 40),
    World("J6", "true", lambda: speedup(2.1, 1.4), REPRODUCED, "hhh", 1.4 * 5 / 1.12),
    World("J6", "false", lambda: speedup(1.4, 1.0), NOT, "fff", 5 / 1.12),
    World("J6", "noisy", lambda: speedup(1.4, 0.9, drift=0.3), INCONCLUSIVE, "ooo", 0.9 * 5 / 1.12),
    World("J6", "screening costs", lambda: speedup(2.1, 1.4, screened=1e6), NOT, "fff", 1.4 * 5 / 2.12),
    World("J7", "true", lambda: priorities(0.04, 0.041), REPRODUCED, 13 * "h", -0.001),
    World("J7", "false", lambda: priorities(0.04, 0.039), NOT, 13 * "f", 0.001),
    World("J7", "noisy", lambda: priorities(0.04, 0.0515, noise=0.01), INCONCLUSIVE, 13 * "o", -0.0115),
    World("J7", "one mix is better", lambda: priorities(0.04, 0.05, last=0.03), PARTLY, 12 * "h" + "f", 0.01),
    World("J8", "true", lambda: screens(0.002, 0.015), REPRODUCED, "hh", 0.013),
    World("J8", "false", lambda: screens(0.02, 0.01), NOT, "ff", -0.01),
    World("J8", "noisy", lambda: screens(0.004, 0.006, noise=0.01), INCONCLUSIVE, "oo", 0.002),
    World("J5-curve", "true", lambda: figure_1(1.24), REPRODUCED, "hhh", 1.24),
    World("J5-curve", "true from below", lambda: figure_1(1 / 1.24), REPRODUCED, "hhh", 1.24),
    World("J5-curve", "false", lambda: figure_1(1.26), NOT, "fff", 1.26),
    World("J5-curve", "false from below", lambda: figure_1(1 / 1.26), NOT, "fff", 1.26),
    World("J5-curve", "noisy", lambda: figure_1(1.2, noise=0.3), INCONCLUSIVE, "ooo", 1.2),
    World("J5-curve", "DG alone is elsewhere", lambda: figure_1(1.1, dg=1.5), PARTLY, "hfh", 1.5),
    World("G1-baseline", "true", lambda: guesses(1.1, 1.5, 1.1), REPRODUCED, 8 * "h", 1.5),
    World("G1-baseline", "false", lambda: guesses(0.9, 0.6, 0.9), NOT, 8 * "f", 0.6),
    World("G1-baseline", "noisy", lambda: guesses(1.1, 1.15, 1.1, noise=0.3), INCONCLUSIVE, 8 * "o", 1.15),
    World("G1-baseline", "one baseline", lambda: guesses(1.2, 1.5, 1.1, without="half"), PARTLY, "hfhhhhhh", 1.5),
    World("G1-baseline", "the lead grows", lambda: guesses(1.2, 1.2, 1.5), PARTLY, "hhhhhhhf", 1.2),
    World("D2", "true", lambda: alignment((0.3, 0.2), (0.8, 0.9)), REPRODUCED, "hh", 0.1),
    World("D2", "false", lambda: alignment((0.2, 0.3), (0.9, 0.8)), NOT, "ff", -0.1),
    World("D2", "noisy", lambda: alignment((0.3, 0.2), (0.8, 0.9), noise=0.2), INCONCLUSIVE, "oo", 0.1),
    World("D3-mnist", "true", lambda: delays({100: -0.01, 300: -0.02, 1000: -0.03}), REPRODUCED, "hhh", -0.03),
    World("D3-mnist", "false", lambda: delays({100: 0.01, 300: 0.02, 1000: 0.03}), NOT, "fff", 0.03),
    World(
        "D3-mnist",
        "noisy",
        lambda: delays({100: -0.0101, 300: -0.0101, 1000: -0.0101}, noise=0.01),
        INCONCLUSIVE,
        "ooo",
        -0.0101,
    ),
    World("D3-mnist", "one delay", lambda: delays({100: 0.01, 1000: -0.03}), PARTLY, "fh", -0.03),
    World("R1", "true", lambda: table(0.004), REPRODUCED, "hhhhh", 0.004),
    World("R1", "false", lambda: table(0.02), NOT, "fffff", 0.02),
    World("R1", "false below", lambda: table(-0.02), NOT, "fffff", 0.02),
    World("R1", "noisy", lambda: table(0.004, noise=0.004), INCONCLUSIVE, "ooooo", 0.004),
]
for claim_id, law in (("D1", "uniform"), ("D1-fixed", "fixed")):
    late = partial(stale, law)
    WORLDS += [
        World(claim_id, "true", partial(late, 0.9, 0.08, 0.02, other={"dg": 0.95}), REPRODUCED, "hhhh", -0.06),
        World(claim_id, "false", partial(late, 0.15, 0.2, 0.3, other={"dg": 0.01, "pg": 0.9}), NOT, "ffff", 0.1),
        World(claim_id, "noisy", partial(late, 0.1, 0.06, 0.035, (0.08, 0.05, 0.01)), INCONCLUSIVE, "oooo", -0.025),
        World(claim_id, "PG below IS-PG", partial(late, 0.9, 0.95, 0.02), PARTLY, "hfhh", -0.93),
        World(claim_id, "PG fails by less than five", partial(late, 0.07, 0.05, 0.02), PARTLY, "hhfh", -0.03),
    ]
for claim_id, task in FRONTS.items():
    WORLDS += [
        World(claim_id, "true", lambda task=task: front(task, 0.029), REPRODUCED, "hh", -0.001),
        World(claim_id, "false", lambda task=task: front(task, 0.031), NOT, "ff", 0.001),
        World(claim_id, "noisy", lambda task=task: front(task, 0.0194, noise=0.01), INCONCLUSIVE, "oo", -0.0106),
        World(claim_id, "better, no cheaper", lambda task=task: front(task, 0.02, backward=1e6), NOT, "ff"),
        World(claim_id, "below PG alone", lambda task=task: front(task, 0.02, dg=0.01), PARTLY, "hf", 0.01),
    ]
EVERY = [*WORLDS, *test_claims_reversal.WORLDS, *test_claims_studies.WORLDS, *test_claims_language.WORLDS]
TRUE = {world.claim: world for world in EVERY if world.name == "true"}


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_claim_is_judged_as_its_world_was_made(world):
    world.check()


# What holds for every claim


def test_every_claim_has_a_world_in_which_it_is_true_and_one_in_which_it_is_false():
    verdicts = {(world.claim, world.verdict) for world in EVERY}
    assert verdicts >= {(id, verdict) for id in CLAIMS for verdict in (REPRODUCED, NOT)}
    noisy = {world.claim: set(world.parts) for world in EVERY if world.name == "noisy"}
    assert all(parts == {"o"} for parts in noisy.values())
    assert all(CLAIMS[id].where["task.name"] not in ("mnist", "reversal", "bandit") for id in CLAIMS.keys() - noisy)


@pytest.mark.slow
@pytest.mark.parametrize("world", TRUE.values(), ids=str)
def test_no_verdict_depends_on_display_names(world, monkeypatch):
    """Not even on their being different."""
    rename(monkeypatch, "X")
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("id", CLAIMS)
def test_what_a_claim_is_not_about_is_not_judged(id):
    made = TRUE[id].build()
    assert CLAIMS[id].where.keys() >= {"task.name"}
    for column in CLAIMS[id].where:
        record = CLAIMS[id].judge(made.assign(**{column: 7}))
        assert (record["verdict"], record["detail"]) == (NOT_RUN, f"runs are of {column}=7")
    assert CLAIMS[id].judge(made.iloc[:0])["verdict"] == NOT_RUN
    mixed = pd.concat([made, made.assign(**{"task.name": "other", "cell": "other", "error": 0.77})])
    assert CLAIMS[id].judge(mixed) == CLAIMS[id].judge(made)


@pytest.mark.parametrize("id", CLAIMS)
def test_two_cells_under_one_setting_are_an_error_that_names_where_they_differ(id):
    made = TRUE[id].build().assign(**{"optimizer.momentum": 0.1})
    twice = pd.concat([made, made.assign(**{"optimizer.momentum": 0.9, "cell": made["cell"] + "′"})])
    with pytest.raises(tables.AmbiguousRows, match=rf"^{id}: .*optimizer.momentum \(0.1, 0.9\)"):
        CLAIMS[id].judge(twice)


@pytest.mark.slow
@pytest.mark.parametrize("id", CLAIMS)
def test_a_setting_that_was_not_run_is_named(id):
    made = TRUE[id].build()
    named = 0
    for column in ("method.name", "gate.priority", "choice.friction"):
        for value in made[column].dropna().unique() if column in made else ():
            record = CLAIMS[id].judge(made[made[column] != value])
            if record["verdict"] == NOT_RUN:
                assert "no runs of" in record["detail"] or record["detail"] == "no runs"
                assert record["parts"] == {}
                named += 1
    assert named > 0


@pytest.mark.slow
@pytest.mark.parametrize("id", CLAIMS)
def test_few_seeds_are_inconclusive(id):
    made = TRUE[id].build()
    record = CLAIMS[id].judge(made[made["seed"] < MIN_SEEDS - 1])
    assert (record["verdict"], record["parts"]) == (INCONCLUSIVE, {})
    assert f"{MIN_SEEDS - 1} " in record["detail"]
    enough = CLAIMS[id].judge(made[made["seed"] < MIN_SEEDS])
    assert enough["parts"] != {}


@pytest.mark.parametrize("id", CLAIMS)
def test_a_claim_says_which_version_of_which_paper_it_is_from_and_its_columns_exist(id):
    claim = CLAIMS[id]
    papers = {"J": "2603.20526v1", "D": "2603.20521v", "R": "kondo-gate's repository", "G": "2603.14608v1"}
    papers |= {"L": "measured here"}
    others = {"DG-gate": papers["J"], "T1": "2604.06159"}
    others |= dict.fromkeys(("J9-unit", "J9-pmpo", "J9-idle"), papers["L"])
    assert claim.version.startswith(others.get(id) or papers[id[0]])
    assert ("withdrawn in v2" in claim.version) == (id in ("D2", "D2-bandit", "D3", "D3-mnist"))
    task = TASKS[claim.where["task.name"]]
    fields = {field.name for field in dataclasses.fields(task)} | {"name"}
    assert {column.removeprefix("task.") for column in claim.where if column.startswith("task.")} <= fields


def test_smoke_runs_on_digits_say_nothing_of_mnist():
    about = [id for id, claim in CLAIMS.items() if claim.where["task.name"] == "mnist"]
    assert {"J5", "J5-curve", "J6", "J7", "J8", "D1", "D1-fixed", "D2", "D3-mnist", "R1", "G1-baseline"} <= {*about}
    for id in about:
        record = CLAIMS[id].judge(TRUE[id].build().assign(**{"task.dataset": "digits"}))
        assert (record["verdict"], record["detail"]) == (NOT_RUN, "runs are of task.dataset=digits")


def test_a_missing_gate_is_named_by_its_rate():
    made = headline(0.002, 100)
    record = CLAIMS["J5"].judge(made[made["gate.rate"].isna()])
    assert (record["verdict"], record["detail"]) == (NOT_RUN, "no runs of DG-K ρ=3%")
    ranked = priorities(0.04, 0.041)
    record = CLAIMS["J7"].judge(ranked[(ranked["gate.priority"] != "additive") | (ranked["gate.alpha"] != 0.5)])
    assert (record["verdict"], record["detail"]) == (NOT_RUN, "no runs of DG-K ρ=3%, additive, gate.alpha=0.5")


@pytest.mark.parametrize("delay", [100, 1000])
def test_the_delays_that_d3_names_must_have_been_run(delay):
    made = delays({100: -0.01, 300: -0.02, 1000: -0.03})
    record = CLAIMS["D3-mnist"].judge(made[made["friction.staleness.delay"] != delay])
    assert record["verdict"] == NOT_RUN
    assert f"DG, friction.staleness.delay={delay}" in record["detail"]


@pytest.mark.parametrize("late", [0.5, np.nan])
def test_a_seed_that_diverges_or_never_gets_there_speaks_against_its_method(late):
    made = headline(0.0, 100)
    ours = made["method.name"] == "dgk"

    def spoilt(rows):
        lost = {column: made[column].mask(rows & (made["step"] > 0), late) for column in ("error", "train_error")}
        return CLAIMS["J5"].judge(made.assign(**lost))

    one, every = spoilt(ours & (made["seed"] == 0)), spoilt(ours)
    assert (list(one["parts"].values()), one["measured"]) == (["open", "open"], 0)
    assert "as many backward passes: 0 times (0 to over a million)" in list(one["parts"])[1]
    assert "never reached 5%: 1 of DG-K" in one["detail"]
    assert list(every["parts"].values()) == ["fails", "fails"]
    bound = spoilt(made["method.name"] == "pg")  # all that PG spent
    assert (bound["measured"], bound["parts"].popitem()[1]) == (pytest.approx(100 / 0.4), "holds")


def test_too_few_seeds_of_dg_below_half_leave_d2_open():
    record = CLAIMS["D2"].judge(alignment((0.3, 0.2), (0.8, 0.9), below_half=2))
    assert (record["verdict"], record["detail"]) == (INCONCLUSIVE, "2 seeds of DG got below half, 3 needed")


def test_published_errors_stand_beside_ours_and_are_those_of_the_data_file():
    record = CLAIMS["R1"].judge(table(0.001))
    for words in ("PG 3.54% (3.54% to 3.54%), theirs 3.44%", "DG-K ρ=10% 3.38% (3.38% to 3.38%), theirs 3.28%"):
        assert words in record["detail"]
    shown = published.published(published.PACKAGE, "table", "test_error")["value"]
    assert len(shown) == len(THEIRS)
    assert all(f"{value:.2%}" in CLAIMS["R1"].paper for value in shown)
    assert CLAIMS["R1"].judge(table(0.0, steps=3000))["detail"] == "runs are of steps=3000"


# The helpers, each against numbers computed another way


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ([True, True], REPRODUCED),
        ([True, False], PARTLY),
        ([True, None], PARTLY),
        ([False, False], NOT),
        ([False, None], INCONCLUSIVE),
        ([None], INCONCLUSIVE),
    ],
)
def test_the_verdict_follows_from_the_parts(parts, word):
    assert judge.verdict(parts) == word
    found = judge.found([("part", held) for held in parts], "", None)  # the same words for each
    assert (found.verdict, len(found.parts)) == (word, len(parts))


def test_a_claim_without_parts_has_no_verdict():
    for call in (lambda: judge.verdict([]), lambda: judge.found([], "", None)):
        with pytest.raises(ValueError, match="without parts"):
            call()


def test_bounds_are_decided_where_the_interval_tells():
    inside = Interval(0.5, 0.4, 0.6)
    assert [judge.below(inside, bound) for bound in (0.7, 0.6, 0.5, 0.4, 0.3)] == [True, None, None, False, False]
    assert [judge.above(inside, bound) for bound in (0.7, 0.6, 0.5, 0.4, 0.3)] == [False, False, None, None, True]
    assert [judge.within(inside, value, 0.2) for value in (0.5, 0.45, 0.3, 0.1, 0.9)] == [
        True,
        True,
        None,
        False,
        False,
    ]
    assert judge.within(inside, 0.75, 0.2) is None
    others = [Interval(each, each - 0.05, each + 0.05) for each in (0.7, 0.64, 0.5, 0.36, 0.3)]
    assert [judge.lower(inside, each) for each in others] == [True, None, None, None, False]
    assert [judge.some(parts) for parts in ([True, None], [None, False], [False], [])] == [True, None, False, False]


@pytest.mark.parametrize(
    ("mean", "low", "high", "held"),
    [(7.6, 7, 8, True), (7.4, 6, 8, None), (7.0, 6, 7.4, False), (9.0, 0.9, 20, None), (30, 20, 40, True)],
)
def test_a_factor_is_reached_from_three_quarters_on_if_surely_above_one(mean, low, high, held):
    assert judge.reaches(Interval(mean, low, high), 10) is held


def test_settings_are_told_by_their_columns_and_seeds_stay_paired():
    made = frame(runs(PG, 0.035), runs(DG, 0.027), runs(GATE, 0.029, noise=0.01, backward=3e4))
    compared = {"a": settings.gate(0.03), "b": settings.DG, "c": settings.gate(0.1)}
    errors = judge.by_setting(made[(made["seed"] != 3) | (made["method.name"] != "dg")], "error", compared)
    assert list(errors) == ["a", "b"]
    assert errors["a"].to_dict() == pytest.approx(dict(enumerate(0.029 + 0.01 * PATTERNS[0])))
    assert errors["b"].isna().to_list() == [seed == 3 for seed in range(SEEDS)]
    lost = made.assign(error=made["error"].mask((made["seed"] == 1) & (made["step"] > 0)))
    assert judge.by_setting(lost, "error", compared)["b"].to_list() == [0.027, 1.0, *[0.027] * 6]
    assert set(judge.by_setting(lost, "backward", compared)["a"]) == {3e4}


def test_costs_count_screening_and_c_backward_passes_and_are_interpolated():
    made = frame(runs(PG, 0.03, reach=0.3, forward=1000, backward=500, screened=70), runs(DG, 0.2, forward=1000))
    compared = {"ours": settings.PG, "theirs": settings.DG}
    table = judge.costs_until(made, compared, 8)
    assert table["total", "ours"].to_list() == pytest.approx([0.3 * (1000 + 70 + 8 * 500)] * SEEDS)
    assert (set(table["reached", "ours"]), set(table["reached", "theirs"])) == ({True}, {False})
    assert judge.costs_until(made, compared)["total", "ours"].to_list() == pytest.approx([0.3 * 500] * SEEDS)
    assert set(judge.costs_until(made, compared, 1, target=0.5)["total", "theirs"]) == {0}  # from the start


def test_cheaper_is_the_geometric_mean_of_paired_ratios_with_its_interval():
    ours, theirs = np.array([1.0, 2.0, 4.0, 8.0]), np.array([10.0, 10.0, 80.0, 320.0])
    columns = {("total", "a"): ours, ("total", "b"): theirs, ("reached", "a"): [True] * 4}
    costs = pd.DataFrame(columns)
    found = judge.cheaper(costs, "a", "b")
    assert found.mean == pytest.approx((10 * 5 * 20 * 40) ** 0.25)
    logs = stats.bootstrap(np.log(theirs / ours))
    assert (found.low, found.high) == pytest.approx((np.exp(logs.low), np.exp(logs.high)))
    assert found.low < found.mean < found.high
    for reached, high in (([True, False, True, True], np.inf), ([False] * 4, 0.0)):
        some = pd.DataFrame(columns | {("reached", "a"): reached})
        assert judge.cheaper(some, "a", "b") == Interval(0.0, 0.0, high)


def test_cost_to_reach_is_where_the_line_between_two_evaluations_crosses():
    """Every crossing against a fine walk along the line log e(cost)."""
    rng = np.random.default_rng(0)
    errors = np.exp(rng.normal(-3, 1, size=(6, 5)))
    rows = [
        {
            "seed": seed,
            "cell": "a",
            "step": step,
            "error": errors[seed, step],
            "method.name": "pg",
            "seconds_x": 2.0 * step,
        }
        | {"forward": 100.0 * step, "backward": 7.0 * step, "screened": 1.0 * step}
        for seed in range(6)
        for step in range(5)
    ]
    reached = tables.cost_to_reach(pd.DataFrame(rows), 0.02, ["method.name"]).set_index("seed")
    for seed in range(6):
        fine = np.linspace(0, 4, 400_001)
        walk = np.interp(fine, range(5), np.log(errors[seed]))
        there = np.flatnonzero(walk <= np.log(0.02))
        step = fine[there[0]] if len(there) else 4.0
        assert reached.loc[seed, "reached"] == (len(there) > 0)
        spent = reached.loc[seed, ["step", "forward", "backward", "screened", "seconds"]].astype(float)
        assert spent.to_list() == pytest.approx([step, 100 * step, 7 * step, step, 2 * step], abs=2e-3)
    assert 0 < reached["reached"].sum() < 6


def test_aggregates_are_means_with_their_intervals_by_group():
    made = judge.final(frame(runs(DG, 0.027), runs(GATE, 0.029, noise=0.01, backward=3e4)))
    (row,) = tables.aggregate(made[made["method.name"] == "dgk"], ["method.name"]).to_dict("records")
    expected = stats.bootstrap(0.029 + 0.01 * PATTERNS[0])
    assert (row["error"], row["error_low"], row["error_high"]) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert (row["forward"], row["backward"], row["seeds"], row["diverged"]) == (1e6, 3e4, SEEDS, 0)


def test_numbers_in_words_are_readable_and_possible():
    assert judge.times(Interval(11_934.2, 4.941, 28_512_345.0)) == "11,900 times (4.94 to over a million)"
    assert judge.points(Interval(-0.4473, -1.2876, 0.229)) == "-44.73 points (-100.00 to 22.90)"
    assert judge.share(6.67e-5) == "0.00667%"
    (row,) = tables.aggregate(judge.final(frame(runs(PG, 0.31, noise=0.9))), ["method.name"]).to_dict("records")
    assert plots.error(row) == "31.00% (0.00% to 100.00%)"


def test_claims_without_runs_say_so(tmp_path):
    records = report.Source("none", tmp_path, "laptop", tmp_path).judge()
    assert {(record["verdict"], record["detail"]) for record in records} == {(NOT_RUN, "no runs")}
    assert len(records) == len(CLAIMS)


# One row where one is expected


def test_two_rows_where_one_is_expected_are_refused_with_what_differs():
    one = frame(runs(PG, 0.03))
    tables.check_unique(one, ["method.name", "step"])
    baselines = frame(runs(PG | {"task.baseline": "half"}, 0.03), runs(PG | {"task.baseline": "zero"}, 0.05))
    expected = (
        r"method.name=pg, seed=0: 2 rows .*they differ in task.baseline \(half, zero\), for which there is no axis"
    )
    for refused in (
        lambda: tables.aggregate(judge.final(baselines), tables.SETTING),
        lambda: tables.aggregate(baselines, [*tables.SETTING, "step"]),
        lambda: tables.cost_to_reach(baselines, 0.05),
    ):
        with pytest.raises(tables.AmbiguousRows, match=expected):
            refused()
    tables.aggregate(judge.final(baselines), [*tables.SETTING, "task.baseline"])


def test_runs_of_other_lengths_and_forgotten_axes_are_refused():
    longer = frame(runs(PG, 0.03, steps=100), runs(PG | {"evals": 2}, 0.03, steps=200))
    for call in (
        lambda: tables.cost_to_reach(longer, 0.05),
        lambda: judge.by_setting(longer, "error", {"a": settings.PG}),
    ):
        with pytest.raises(tables.AmbiguousRows, match=r"steps \(100, 200\)"):
            call()
    with pytest.raises(tables.AmbiguousRows, match="they differ in step"):
        tables.aggregate(frame(runs(PG, 0.03)), ["method.name"])
    with pytest.raises(tables.AmbiguousRows, match="of the same cell"):
        tables.check_unique(frame(runs(PG, 0.03), runs(PG, 0.03)), ["step"])


def test_rows_match_by_value_and_empty_columns_by_none():
    made = frame(runs(GATE, 0.03), runs(PG, 0.03), runs(MNIST | dgk(0.1 + 0.2), 0.03))
    assert set(tables.matching(made, {"gate.rate": None})["method.name"]) == {"pg"}
    assert len(tables.matching(made, {"gate.rate": 0.3})) == len(made) / 3  # 0.1 + 0.2
    assert tables.matching(made, {"no.such": 1}).empty
    assert len(tables.matching(made, {"no.such": None})) == len(made)
