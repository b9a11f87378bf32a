"""Every config composes; every mistake is refused with a message that helps, before any training."""

import os
import subprocess
import sys

import pytest

from experiments import compose
from experiments.compose import CONF, ROOT, single, sweep
from experiments.reproduce import unfinished
from kondo.frictions import FRICTIONS
from kondo.objectives import METHODS, method, settings
from kondo.runs import train
from kondo.schema import ConfigError
from kondo.tasks import TASKS

CHOICES = sorted(
    f"{path.parent.name}={path.stem}" for path in CONF.glob("*/*.yaml") if path.parent.name != "experiment"
)
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_to_a_valid_job(choice):
    job = single([choice])
    assert job.blocks()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_expands_to_valid_jobs_and_composes_at_every_scale(name):
    jobs = sweep([f"experiment={name}", "scale=paper"])
    assert len({job.cell.key() for job in jobs}) == len(jobs) > 0
    for scale in ("smoke", "laptop"):
        assert single([f"experiment={name}", f"scale={scale}"]).launch.scale == scale
    assert (ROOT / "analysis" / "figures" / f"{name}.py").exists()


def test_every_method_friction_and_task_has_a_config_with_the_code_s_defaults():
    for name, objective in METHODS.items():
        assert single([f"method={name}"]).cell.options == settings(objective)
    for name, cls in FRICTIONS.items():
        assert single([f"friction={name}"]).cell.frictions == (cls(),)
    assert {path.stem for path in (CONF / "task").glob("*.yaml")} == set(TASKS)


def test_every_key_in_conf_has_a_comment():
    for path in CONF.glob("method/*.yaml"):
        assert all("#" in line for line in path.read_text().splitlines()), path
    for line in (CONF / "gate.yaml").read_text().splitlines():
        assert "#" in line or line == "gate:"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("gate.rate=1.5", ["gate.rate=1.5", "(0, 1]"]),
        ("gate.rate=0", ["gate.rate=0.0", "(0, 1]"]),
        ("gate.rat=0.1", ["gate.rat", "unknown key", "did you mean 'gate.rate'"]),
        ("gate={rat:0.1}", ["gate.rat", "did you mean 'gate.rate'"]),
        ("gate.rate=0.1 gate.price=0", ["gate.rate=0.1", "gate.price=0", "exclude each other"]),
        ("gate.mode=herd", ["gate.mode='herd'", "bernoulli, hard, soft", "did you mean 'hard'"]),
        ("gate.warmup=5", ["gate.warmup=5", "gate.history"]),
        ("gate.price=0 gate.history=5", ["gate.history=5", "gate.price is fixed"]),
        ("gate.unit=token", ["gate.unit='token'", "one decision per sample"]),
        ("method=dgg", ["method=dgg", "ce, dg, dgk", "did you mean 'dg'"]),
        ("method.name=joy", ["method.name='joy'", "allowed"]),
        ("method=dg method.temprature=2", ["method.temprature", "did you mean 'method.temperature'"]),
        ("method=dg method.temperature=warm", ["method.temperature='warm'", "expected float"]),
        ("method=dg method.temperature=0", ["method.temperature=0.0", "(0, inf)"]),
        ("method=dg method.temperature=null", ["method.temperature=None", "expected float"]),
        ("method=pmpo method.gamma=0", ["method.gamma=0.0", "(0, inf)"]),
        ("method=pg screen.noise=1", ["'pg' uses no delight"]),
        ("screen.age=5", ["screen.age=5", "snapshot"]),
        ("probe.name=alignment", ["probe.name='alignment'", "bandit"]),
        ("task=mnist method=dg probe.name=anatomy", ["'dg' has no gate"]),
        ("method=pg gate.rate=0.1", ["'pg' has no gate", "dgk"]),
        ("method=ppo actor.report_probabilities=false", ["'ppo' needs", "behaviour probabilities"]),
        ("friction.staleness.delay=3", ["friction=staleness"]),
        ("friction=stale", ["friction=stale", "did you mean 'staleness'"]),
        ("friction=staleness friction.staleness.delay=-1", ["friction.staleness.delay=-1", "[0, inf)"]),
        ("task.arms=1", ["task.arms=1", "[2, inf)"]),
        ("task.arms=many", ["task.arms='many'", "expected int", "got str"]),
        ("task.hidden=[8,0]", ["task.hidden", "out of range"]),
        ("task.baseline=confidense", ["did you mean 'confidence'"]),
        ("optimizer.lr=0", ["optimizer.lr=0.0", "(0, inf)"]),
        ("steps=0", ["steps=0", "[1, inf)"]),
        ("seeds=0", ["seeds=0", "[1, inf)"]),
        ("device=toaster", ["device='toaster'", "cpu always is"]),
        ("wandb.mode=on", ["wandb.mode", "did you mean 'online'"]),
        ("friction=all intensity=1", ["intensity=1", "[0, 1)"]),
        ("+joy=1", ["joy", "unknown key"]),
        ("scale=huge", ["scale=huge", "laptop, paper, smoke"]),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_would_do(words, parts):
    with pytest.raises(ConfigError) as caught:
        single(words.split())
    for part in parts:
        assert part in str(caught.value)


def test_neither_rate_nor_price_means_three_percent():
    assert single(["method=dgk"]).cell.gate.rate == 0.03


def test_a_sweep_trains_a_method_without_a_gate_once_and_not_once_per_gate():
    jobs = sweep(["method=pg,dg,dgk", "gate.rate=0.01,0.03,0.1", "friction=none,staleness"])
    assert sum(job.cell.method == "pg" for job in jobs) == 2
    assert sum(job.cell.method == "dgk" for job in jobs) == 6


def test_a_search_climbs_where_a_value_is_solved_and_goes_on_from_its_logs(tmp_path):
    def plan(level: float) -> list[tuple[str, int]]:
        words = ["search.key=task.arms", "search.values=[2,5,10]", f"search.solved={level}", f"runs={tmp_path}"]
        jobs = sweep([*words, "task=bandit", "method=pg,dg", "steps=3", "seeds=2"])
        for job in jobs:
            for block in job.blocks():
                train(block, tmp_path)
        return [(job.cell.method, job.cell.task.arms) for job in jobs]

    assert plan(1.0) == [("pg", 2), ("dg", 2)]  # nothing is known to be solved before it is trained
    assert plan(1.0) == [("pg", 2), ("pg", 5), ("dg", 2), ("dg", 5)]
    assert plan(0.0) == [("pg", 2), ("dg", 2)]
    assert len(plan(1.0)) == len(plan(1.0)) == 6  # to the last value, and no farther
    with pytest.raises(ConfigError, match=r"search\.values is empty"):
        sweep(["search.key=task.arms"])


def test_one_command_climbs_a_search_to_its_end(tmp_path):
    words = ["-m", f"runs={tmp_path}", "search.key=task.arms", "search.values=[2,5]", "search.solved=1", "method=pg,dg"]
    assert run(*words).count("done") == 4
    assert run(*words).count("complete, skipped") == 4


def test_a_cell_that_two_figures_share_gets_the_seeds_of_the_one_that_wants_more(tmp_path):
    words = ["task=bandit", "method=pg", f"runs={tmp_path}"]
    many, few = single([*words, "seeds=3"]), single([*words, "seeds=2"])
    for jobs in ([many, few], [few, many]):
        runs, todo = unfinished(jobs)
        assert (runs, [block.seeds for _, block in todo]) == (1, [(0, 1, 2)])


def test_a_sweep_is_refused_as_a_whole_before_any_of_it_is_trained(tmp_path):
    command = [sys.executable, "-m", "experiments.run", "-m", f"runs={tmp_path}/runs", "gate.rate=0.1,0.5,7", "steps=2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "gate.rate=7.0: out of range" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def run(*words: str, **environment: str) -> str:
    command = [sys.executable, "-m", "experiments.run", *words, "wandb.mode=disabled", "seeds=2", "steps=5"]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True).stdout


def test_the_command_line_trains_sweeps_and_skips(tmp_path):
    first = run(f"runs={tmp_path}", "task=bandit", "method=dgk", "gate.price=0")
    assert "bandit dgk λ=0, seeds 0–1: done" in first
    again = run("-m", f"runs={tmp_path}", "method=pg,dgk", "gate.price=0,0.5")
    assert again.count("complete, skipped") == 1
    assert again.count("done") == 2
    assert len(list(tmp_path.glob("bandit/*/status.json"))) == 3


EXTENSION = '''
from __future__ import annotations
from dataclasses import dataclass, replace
from kondo.frictions import Friction, friction
from kondo.gate import priority
from kondo.objectives import method
from kondo.schema import knob

@method
def cautious(log_prob, advantage, *, caution: float = 0.5):
    """Σ U (1 − caution·1{U<0}) ∇log π"""
    return -advantage * (1 - caution * (advantage < 0)) * log_prob

@priority
def negative(advantage, surprisal, noise, alpha):
    return -advantage

@friction
@dataclass(frozen=True)
class Inflation(Friction):
    factor: float = knob(2.0, above=0)

    def on_rewards(self, batch, streams, step):
        return replace(batch, rewards=batch.rewards * self.factor)
'''


def test_one_small_file_adds_a_method_a_priority_and_a_friction(tmp_path):
    (tmp_path / "mine.py").write_text(EXTENSION)
    words = [f"runs={tmp_path}/runs", "-m", "friction=none,inflation"]
    output = run(*words, "method=cautious", "method.caution=0.1,0.9", KONDO_EXTENSIONS=str(tmp_path))
    assert output.count("done") == 4
    assert "bandit cautious inflation" in output
    assert "done" in run(*words, "gate.priority=negative", KONDO_EXTENSIONS=str(tmp_path))
    (tmp_path / "mine.py").write_text(EXTENSION.replace("self.factor)", "self.factor + 1)"))
    again = run(*words, "method=cautious", "method.caution=0.1,0.9", KONDO_EXTENSIONS=str(tmp_path))
    assert (again.count("done"), again.count("skipped")) == (2, 2)  # another body is another friction


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ConfigError, match="pg: there is one"):
        method(METHODS["pg"])


def test_intensity_turns_every_chosen_friction():
    given = single(["friction=all", "intensity=0.5"]).cell.plain()["friction"]
    assert [given["staleness"]["delay"], given["actor_bugs"]["prob"], given["rare_discovery"]["arms"]] == [500, 0.5, 20]
    off = single(["friction=[staleness,actor_bugs,reward_corruption]", "intensity=0"])
    assert off.cell.key() == single([]).cell.key()


def test_frictions_can_be_combined_from_a_list():
    assert len(single(["friction=[staleness,actor_bugs]"]).cell.frictions) == 2
    with pytest.raises(ConfigError, match="did you mean 'staleness'"):
        single(["friction=[stale,actor_bugs]"])


def test_importing_kondo_needs_neither_hydra_nor_wandb_nor_matplotlib():
    check = (
        "import sys, kondo; print([m for m in ('hydra','omegaconf','wandb','matplotlib','pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_sweep_composes_each_job_as_a_single_run_would():
    words = ["friction=staleness", "task.hidden=[4]", "friction.staleness.delay=7", "steps=9"]
    swept = sweep([*words, "method=dg,dgk", "gate={rate:0.5},{price:1}"])
    alone = [single([*words, "method=dg"])] + [
        single([*words, "method=dgk", gate]) for gate in ("gate.rate=0.5", "gate.price=1")
    ]
    assert [job.cell.key() for job in swept] == [job.cell.key() for job in alone]


@pytest.mark.parametrize("figure", EXPERIMENTS)
def test_choices_that_are_put_together_are_what_hydra_composes(figure):
    """Under each figure's own choices of task, friction and evaluations."""
    with compose._hydra():
        for scale, method, friction in (("laptop", "dg", "all"), ("smoke", "ppo", "staleness")):
            choices = (f"experiment={figure}", f"scale={scale}", f"method={method}", f"friction={friction}")
            assert compose._chosen(choices) == compose._composed(choices)[0]
