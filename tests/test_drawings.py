"""Experiments are drawn from logs as they are: of one seed, of few steps, with settings missing."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib import pyplot as plt

from analysis import results
from analysis.experiments import experiments, gate_robustness
from analysis.load import CHOICES, final, frame_of
from analysis.published import DG_PAPER, JOY_PAPER, published
from experiments.jobs import CONF
from kondo.lab.config.cell import GateSettings, parse
from kondo.lab.records import Run

ADAM = {"name": "adam", "lr": 0.001}
GATED = {"rate": 0.03}
EVERY = [("pg", None), ("dg", None), ("dgk", GATED)]
WRITING = [("pg", None), ("ppo", None), ("pmpo", None), ("dg", None)]
UNITS = [("dgk", gate | {"unit": unit}) for unit in ("sequence", "token") for gate in ({"rate": 0.03}, {"price": 0.0})]
MNIST = {"name": "mnist", "dataset": "digits", "hidden": [100, 100]}
REVERSAL = {"name": "reversal", "credit": "to_first_error"}


def cells(task, methods, **changes):
    """Cells as a plan has them, with what was asked for."""
    return [
        (parse({"task": task, "method": {"name": name} if isinstance(name, str) else name, "gate": gate}
               | {"optimizer": ADAM, "steps": 10_000, "evals": 3} | changes))
        for name, gate in methods
    ]  # fmt: skip


def logs(made, seeds=3, steps=10_000, **choices):
    """The frame of these cells as if they had been trained: errors that fall, each method's to its own."""
    runs = []
    for place, cell in enumerate(made):
        config = cell.plain() | {"schema": 2, "steps": steps, "error": cell.error, "seeds": [0], "choices": {}}
        rows = []
        for seed in range(seeds):
            for share in (0.0, 0.02, 0.1, 1.0):
                error = 0.9 * np.exp(-(place % 5 + 2 + seed) * share)
                metrics = dict.fromkeys((cell.error, "test_error", "policy_error", "train_error"), error)
                metrics["train_error"] = error if share else None
                probed = dict.fromkeys(("zero_advantage", "kept_good", "all_good", "kept_right", "all_right"), 0.5)
                metrics |= dict.fromkeys(("entropy", "kept_surprisal", "all_surprisal"), 0.3)
                forward = 100.0 * round(share * steps)
                costs = {"forward": forward, "screened": 0.0, "backward": forward * (0.03 if cell.gate else 1)}
                spent = {"seed": seed, "step": round(share * steps), "seconds_rollout": share}
                rows.append(metrics | (probed if cell.gate else {}) | costs | spent)
        runs.append(Run(cell.key(), f"{cell.key()}-s0-{seeds - 1}", config, {"status": "done"}, rows))
    frame = frame_of(runs).assign(solved=0.25, last=10)
    return frame.assign(**{f"choice.{choice}": choices.get(choice, np.nan) for choice in CHOICES})


def stale():
    ages = [{"delay": delay, "delay_mode": law} for delay in (30, 100) for law in ("fixed", "uniform")]
    ages = [{}, *({"staleness": age} for age in ages)]
    return [cell for age in ages for cell in cells(MNIST, [*EVERY, ("is_pg", None)], friction=age)]


def gates():
    """The gates of gate_robustness, as its config has them."""
    params = yaml.safe_load((CONF / "experiment" / "gate_robustness.yaml").read_text())["hydra"]["sweeper"]["params"]
    return [yaml.safe_load(word.replace(":", ": ")) for word in re.findall(r"\{[^}]*\}", params["gate"])]


def corrupted():
    return [
        cell
        for prob in (0.0, 0.2)
        for cell in cells(
            MNIST,
            [("pg", None), ("dg", None), *(("dgk", gate) for gate in gates())],
            friction={"reward_corruption": {"prob": prob}} if prob else {},
        )
    ]


MADE = {
    "joy_1": lambda: cells(MNIST, [*EVERY, ("dgk", {"rate": 0.1})]),
    "joy_3": lambda: cells(MNIST, EVERY),
    "joy_8": lambda: cells(REVERSAL, [*WRITING, *UNITS], probe={"name": "none"}),
    "joy_8_causes": lambda: [
        *cells(REVERSAL, [("pmpo", None), ("pmpo_strict", None)]),
        *(
            cell
            for idle in ("skip", "step")
            for cell in cells(REVERSAL, [("dg", None), *UNITS[:2]], optimizer=ADAM | {"idle": idle})
        ),
    ],
    "joy_10": lambda: [
        cell for length in (2, 3) for cell in cells(REVERSAL | {"length": length}, [*WRITING, UNITS[0], UNITS[1]])
    ],
    "dg_3": lambda: [
        cell
        for baseline in ("confidence", "half", "zero", "oracle")
        for count in (1, 10)
        for cell in cells(MNIST | {"baseline": baseline, "samples": count}, EVERY)
    ],
    "dg_8": lambda: cells(
        REVERSAL | {"credit": "share"}, [*WRITING, ({"name": "pmpo", "alpha": 0.6}, None)], steps=1000
    ),
    "dg_9": lambda: [
        cell
        for length, vocab in ((2, 2), (50, 2), (10, 2), (10, 50))
        for cell in cells(REVERSAL | {"credit": "share", "length": length, "vocab": vocab}, WRITING)
    ],
    "variants_mnist": lambda: [
        cell for hidden in ([100, 100], [50, 50]) for cell in cells(MNIST | {"hidden": hidden}, EVERY)
    ],
    "variants_reversal": lambda: [
        cell
        for layers in (2, 3)
        for cell in cells(
            REVERSAL | {"layers": layers},
            [*WRITING, ({"name": "pmpo", "alpha": 0.6}, None), ({"name": "ppo", "clip": 0.1}, None), *UNITS[:2]],
        )
    ],
    "terminal_reward": lambda: [
        cell
        for epochs in (1, 4)
        for cell in cells(REVERSAL | {"kappa": 0.0}, [*WRITING, *UNITS[:2]], optimizer=ADAM | {"epochs": epochs})
    ],
    "gate_robustness": corrupted,
    "mnist_staleness": stale,
    "reversal_unit": lambda: [
        cell for credit in ("to_first_error", "share") for cell in cells(REVERSAL | {"credit": credit}, UNITS)
    ],
    "reversal_bugs": lambda: [
        cell
        for baseline in ("group", "half")
        for cell in cells(REVERSAL | {"baseline": baseline}, [*WRITING, ("dg_is", None), UNITS[0]])
    ],
    "reversal_scaling": lambda: [
        cell for vocab in (2, 4) for cell in cells(REVERSAL | {"vocab": vocab, "length": 2}, [*WRITING, UNITS[0]])
    ],
}  # fmt: skip


def drawn(name, frame):
    """The table and the figure of an experiment; and, where it has them, its words."""
    module = experiments()[name]
    table = module.select(frame)
    figure = module.plot(table)
    words = module.measured(table) if hasattr(module, "measured") else ""
    return table, figure, words


UNNAMED = "ignore:No artists with labels"


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", MADE)
def test_an_experiment_is_drawn_of_several_seeds_of_one_and_of_few_steps(name):
    made = MADE[name]()
    for seeds, steps in ((3, 10_000), (1, 10_000), (2, 10)):
        table, figure, words = drawn(name, logs(made, seeds, steps))
        assert len(table) > 0
        assert f"n = {seeds} seeds; {steps:,} steps" in figure.get_supxlabel()
        assert "nan" not in words
        assert any(axes.lines for axes in figure.axes) or steps == 10


@pytest.mark.filterwarnings(UNNAMED)
@pytest.mark.parametrize("name", MADE)
def test_an_experiment_is_drawn_without_any_one_method(name):
    made = MADE[name]()
    for missing in sorted({cell.method for cell in made}):
        rest = [cell for cell in made if cell.method != missing]
        if rest:
            drawn(name, logs(rest))


@pytest.mark.parametrize("name", MADE)
def test_an_experiment_is_drawn_where_a_cell_has_fewer_seeds_than_others(name):
    frame = logs(MADE[name]())
    for cell in frame["cell"].iloc[[0, -1]]:
        drawn(name, frame[(frame["cell"] != cell) | (frame["seed"] == 0)])


@pytest.mark.filterwarnings(UNNAMED)
@pytest.mark.parametrize("name", MADE)
def test_an_experiment_is_drawn_of_a_single_cell(name):
    made = MADE[name]()
    for place in (0, len(made) - 1):
        drawn(name, logs(made[place : place + 1]))


@pytest.mark.parametrize("name", MADE)
def test_a_seed_that_diverged_is_drawn_around_and_counted(name):
    frame = logs(MADE[name]())
    lost = (frame["cell"] == frame["cell"].iloc[0]) & (frame["seed"] == 0) & (frame["step"] > 0)
    errors = [column for column in frame if str(column).endswith("error") and frame[column].dtype == float]
    gone = frame.assign(**{column: frame[column].mask(lost) for column in errors}, diverged=np.where(lost, 5, np.nan))
    table, figure, _ = drawn(name, gone)
    assert table["diverged"].sum() > 0
    assert "seeds diverged" in figure.get_supxlabel()


def hollow(axes):
    return sum(len(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "none")


def test_published_points_are_drawn_beside_ours():
    for name, source, place, quantity in (
        ("joy_1", JOY_PAPER, "Fig. 1", "error"),
        ("joy_3", JOY_PAPER, "Fig. 3", "speedup_to_5%"),
        ("joy_8", JOY_PAPER, "Fig. 8", "reward_error"),
        ("dg_8", DG_PAPER, "Fig. 8", "token_error"),
    ):
        _, figure, _ = drawn(name, logs(MADE[name]()))
        assert hollow(figure.axes[0]) == len(published(source, place, quantity)) > 0
    theirs = published(DG_PAPER, "Fig. 3", "error")
    _, figure, _ = drawn("dg_3", logs(MADE["dg_3"]()))
    assert [hollow(axes) for axes in figure.axes] == [
        (theirs["b"] == baseline).sum() for baseline in ("confidence", "half", "zero", "oracle")
    ]


def test_every_published_point_that_was_trained_has_ours_beside_it():
    frame = {name: logs(MADE[name]()) for name in ("joy_1", "joy_3", "joy_8", "joy_10", "dg_3", "dg_8")}
    frame["dg_8"] = logs(MADE["dg_8"](), steps=1000)
    beside = {name: experiments()[name].beside(own) for name, own in frame.items()}
    theirs = published(JOY_PAPER, "Fig. 10", "longest_length")
    assert len(beside["joy_1"]) == (published(JOY_PAPER, "Fig. 1", "error")["forward"] > 0).sum()
    assert len(beside["joy_3"]) == len(published(JOY_PAPER, "Fig. 3", "speedup_to_5%"))
    assert len(beside["joy_8"]) == (published(JOY_PAPER, "Fig. 8", "reward_error")["forward"] > 0).sum()
    assert len(beside["joy_10"]) == len(theirs)
    assert len(beside["dg_8"]) == len(published(DG_PAPER, "Fig. 8", "token_error"))
    many = published(DG_PAPER, "Fig. 3", "error")
    assert len(beside["dg_3"]) == (many["S"].isin(["1", "10"])).sum()  # 3 and 100 were not trained

    ends = final(frame["dg_3"])
    for row in beside["dg_3"].to_dict("records"):
        baseline = {"b = 0": "zero", "b = ½": "half", "b = Σπ²": "confidence", "b = π(y*)": "oracle"}
        words, _, guesses = row["baseline and guesses"].partition(", S = ")
        own = (ends["task.baseline"] == baseline[words]) & (ends["task.samples"] == int(guesses))
        assert row["ours"] == pytest.approx(
            ends[own & (ends["method.name"] == row["method.name"])]["train_error"].mean()
        )
        printed = many[(many["b"] == baseline[words]) & (many["S"] == guesses)].set_index("method.name")["value"]
        assert row["value"] == printed[row["method.name"]]

    ends = final(frame["dg_8"])
    appendix = ends[ends["method.alpha"] == 0.6]["error"].mean()
    assert beside["dg_8"].set_index("method.name")["ours"]["pmpo"] == pytest.approx(appendix)
    reached = beside["joy_10"].set_index("forward passes")["ours"]
    assert reached[0] == 0
    assert reached[1e6].to_list() == [3.0] * (theirs["forward"] == 1e6).sum()
    sped = beside["joy_3"].set_index(["method.name", "c"])["ours"]
    assert sped["dgk", 8] > sped["dgk", 0] > 0


def test_points_are_shown_in_their_own_units_and_with_their_ratio():
    rows = [{"c": 8.0, "method.name": "dg", "gate.rate": np.nan, "gate.price": np.nan, "quantity": "speedup_to_5%"}]
    rows = [rows[0] | {"value": 2.0, "ours": 3.0}, rows[0] | {"c": 1000.0, "value": 0.0, "ours": 1.0}]
    table = pd.DataFrame(rows)
    assert results.point_by_point(table)[-4:] == ["|---|---|", "| 8 | 2 · 3 · ×1.50 |", "| 1,000 | 0 · 1 |", ""]
    errors = table.assign(quantity="error", value=0.2, ours=0.1).rename(columns={"c": "steps"})
    assert results.point_by_point(errors)[-5:-2] == ["| steps | DG |", "|---|---|", "| 8 | 20% · 10% · ×0.50 |"]


# What is in the tables


def test_the_mean_over_all_steps_is_that_of_the_line_between_evaluations():
    frame = logs(MADE["dg_9"]()[:1], seeds=1)
    (row,) = experiments()["dg_9"].select(frame).to_dict("records")
    course = frame.sort_values("step")
    fine = np.interp(np.arange(10_001), course["step"], course["error"])
    assert row["average"] == pytest.approx((fine[:-1] + fine[1:]).mean() / 2)
    assert row["error"] == pytest.approx(course["error"].iloc[-1])


def test_a_clean_actor_is_the_first_point_of_both_laws_of_age():
    table = experiments()["mnist_staleness"].select(logs(stale()))
    ends = table[(table["kind"] == "end") & (table["method.name"] == "pg")]
    delays = [sorted(ends[ends["law"] == law]["delay"]) for law in ("fixed", "uniform")]
    assert delays == [[0, 30, 100], [0, 30, 100]]
    curves = table[table["kind"] == "curve"]
    assert set(curves["delay"]) == {100}


def test_seeds_that_start_are_those_that_ever_get_below_their_bound():
    joy_8 = experiments()["joy_8"]
    frame = logs(MADE["joy_8"]()[:1], seeds=2)
    stuck = frame.assign(error=frame["error"].where(frame["seed"] == 0, joy_8.START))
    once = stuck.assign(error=stuck["error"].mask((stuck["seed"] == 1) & (stuck["step"] == 1000), joy_8.START - 0.01))
    for made, started in ((stuck, {0: True, 1: False}), (once, {0: True, 1: True})):
        table = joy_8.select(made)
        own = table[table["kind"] == "seed"]
        assert own.groupby("seed")["started"].first().to_dict() == started
        assert joy_8.starts(made, {"method.name": "pg"}).to_dict() == started
        assert set(own["born"]) == {0.3}


@pytest.mark.parametrize("name", ["variants_mnist", "variants_reversal"])
def test_the_distance_of_a_variant_from_the_paper_is_one_where_its_curve_is_the_paper_s(name):
    mnist = name == "variants_mnist"
    place, quantity, size = ("Fig. 1", "error", "task.hidden") if mnist else ("Fig. 8", "reward_error", "task.layers")
    theirs = published(JOY_PAPER, place, quantity)
    theirs = theirs[(theirs["method.name"] == "dg") & (theirs["forward"] > 0)].sort_values("forward")
    frame = logs([cell for cell in MADE[name]() if cell.method == "dg"], seeds=1)
    rows = []
    for _, own in frame.groupby("cell"):
        wide = own[size].iloc[0] in ("[50, 50]", 2)
        for forward, value in zip(theirs["forward"], theirs["value"], strict=True):
            errors = dict.fromkeys(("error", "train_error"), value * (2 if wide else 1))
            errors |= dict.fromkeys(("test_error", "policy_error"), value * 3)
            rows.append(own.iloc[0].to_dict() | errors | {"step": forward / 100, "forward": forward})
    table = experiments()[name].select(frame_like(frame, rows))
    if mnist:
        away = table.set_index(["task.hidden", "error_shown"])["distance"].to_dict()
        assert away["[100, 100]", "train_error"] == pytest.approx(1)
        assert away["[50, 50]", "train_error"] == pytest.approx(2)
        assert away["[100, 100]", "test_error"] == away["[50, 50]", "policy_error"] == pytest.approx(3)
    else:
        assert table.set_index("task.layers")["distance"].to_dict() == pytest.approx({2: 2, 3: 1})


def frame_like(frame, rows):
    return type(frame)(rows).astype({column: frame[column].dtype for column in ("gate.rate", "gate.price")})


# Names of repairs


def repaired(gate):
    settings = dataclasses.asdict(GateSettings(**({"rate": 0.03} | gate)))
    return gate_robustness.repair({"method.name": "dgk"} | {f"gate.{key}": value for key, value in settings.items()})


def test_every_gate_of_the_robustness_experiment_has_a_name_and_a_look_of_its_own():
    names = [repaired(gate) for gate in gates()]
    assert len(names) == 8
    assert set(names) | {"PG", "DG"} == set(gate_robustness.LOOKS)
    assert len(set(names)) == len(names)
    assert len(set(gate_robustness.LOOKS.values())) == len(gate_robustness.LOOKS)
    assert names[0] == "gate alone"
    assert repaired({"mode": "bernoulli", "temperature": 1.0}) == "coin, η = 1"
    assert repaired({"reserve": 0.5, "reserve_mode": "failures"}) == "half of failures, unbiased"
    assert repaired({"history": 10_000}) == "price from history"
    assert [gate_robustness.repair({"method.name": name}) for name in ("pg", "dg")] == ["PG", "DG"]


def test_the_robustness_table_has_a_row_per_repair_and_share_of_corrupted_rewards():
    frame = logs(corrupted())
    table = gate_robustness.select(frame)
    assert not table.duplicated(["repair", "intensity"]).any()
    assert len(table) == 2 * len(gate_robustness.LOOKS)
    assert set(table["intensity"]) == {0.0, 0.2}
    assert table.set_index("repair")["paid"].groupby(level=0).first()[["PG", "gate alone"]].to_list() == [1.0, 0.03]
    ends = final(frame)
    clean = ends[(ends["method.name"] == "pg") & ends["friction.reward_corruption.prob"].isna()]["error"].mean()
    assert table[(table["repair"] == "PG") & (table["intensity"] == 0)]["error"].item() == pytest.approx(clean)


def test_every_panel_of_the_causes_has_both_of_its_curves_with_a_line_for_each_seed():
    _, figure, _ = drawn("joy_8_causes", logs(MADE["joy_8_causes"](), 3))
    for axes in figure.axes:
        lines = [line for line in axes.lines if len(line.get_xdata()) > 1 and line.get_markerfacecolor() != "none"]
        assert [len(line.get_xdata()) > 1 for line in lines] == [True] * 2 * (3 + 1)
