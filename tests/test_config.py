"""Every config composes; every mistake is refused with a message that helps, before any training."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from experiments import plans
from experiments.compose import single, sweep
from experiments.jobs import CONF, ROOT
from experiments.plans import compose_all, plan
from experiments.reproduce import unfinished
from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.frictions import FRICTIONS
from kondo.lab.records import read_runs
from kondo.lab.tasks import TASKS
from kondo.lab.training import train
from kondo.objectives import METHODS, method, settings
from kondo.schema import ConfigError

CHOICES = sorted(
    f"{path.parent.name}={path.stem}" for path in CONF.glob("*/*.yaml") if path.parent.name != "experiment"
)
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_to_a_valid_job(choice):
    job = single([choice])
    assert job.blocks()


SCALES = ("smoke", "laptop", "paper")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Every figure's plan at laptop scale."""
    words = [f"runs={tmp_path_factory.mktemp('plans')}"]
    compose_all(EXPERIMENTS, "laptop", words)
    return {name: plan(name, "laptop", words) for name in EXPERIMENTS}


@pytest.mark.slow
def test_every_cell_of_every_plan_has_a_name_of_its_own(planned):
    for name, jobs in planned.items():
        assert {job.launch.scale for job in jobs} == {"laptop"}
        assert len({job.name for job in jobs}) == len({job.cell.key() for job in jobs}) == len(jobs) > 0, name
        assert len({job.cell.evals for job in jobs}) == 1
        assert (ROOT / "analysis" / "experiments" / f"{name}.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_scale_changes_steps_seeds_and_evaluations_of_an_experiment_and_nothing_else(name):
    cells = [single([f"experiment={name}", f"scale={scale}"]).cell.plain() for scale in SCALES]
    science = [{key: value for key, value in cell.items() if key not in ("steps", "evals")} for cell in cells]
    assert science[0] == science[1] == science[2]
    assert [cell["evals"] for cell in cells] == [3, 30, 60]


def test_a_scale_is_steps_seeds_evaluations_and_how_many_of_the_papers_values_are_swept():
    budgets = [path for path in CONF.rglob("*.yaml") if "budget:" in path.read_text()]
    assert len(budgets) > 10
    for path in budgets:
        budget = OmegaConf.load(path).budget
        assert set(budget) <= set(SCALES), path
        axes = {axis for each in budget.values() for axis in each} - {"steps", "seeds"}
        swept = re.findall(r"^ +[\w.]+: \$\{budget\.\$\{scale\}\.(\w+)\}", path.read_text(), flags=re.M)
        assert set(swept) == axes, path
        for axis in axes:
            values = {scale: set(budget[scale][axis].split(",")) for scale in SCALES}
            assert values["smoke"] < values["paper"], path
            assert values["laptop"] <= values["paper"], path
    for path in CONF.rglob("*.yaml"):
        text = path.read_text()
        assert "${scale}" not in re.sub(r"\$\{budget\.\$\{scale\}\.\w+\}", "", text), path
        assert path.parent.name == "scale" or "\nevals:" not in text, path


@pytest.mark.parametrize(("task", "small"), [("mnist", "digits"), ("reversal", "reversal_small")])
def test_smoke_trains_a_smaller_task_that_is_a_choice_of_its_own(tmp_path, task, small):
    figure = {"mnist": "mnist_gate_anatomy", "reversal": "reversal_unit"}[task]
    words = [f"runs={tmp_path}"]
    assert {job.choices["task"] for job in plan(figure, "smoke", words)} == {small}
    assert {job.choices["task"] for job in plan(figure, "laptop", words)} == {task}
    assert {job.choices["task"] for job in plan(figure, "smoke", [*words, f"task={task}"])} == {task}


OWN_METHODS = [name for name, code in METHODS.items() if code.__module__.startswith("kondo.")]
OWN_FRICTIONS = [name for name, code in FRICTIONS.items() if code.__module__.startswith("kondo.")]


def test_every_method_friction_and_task_has_a_config_with_the_code_s_defaults():
    for name in OWN_METHODS:
        assert (CONF / "method" / f"{name}.yaml").exists()
        assert single([f"method={name}"]).cell.options == settings(METHODS[name])
    for name in set(OWN_FRICTIONS) - {"rare_discovery"}:  # which is all in the task
        assert single([f"friction={name}"]).cell.frictions == (FRICTIONS[name](),)
    named = {OmegaConf.load(path).task.get("name") for path in (CONF / "task").glob("*.yaml")}
    assert named - {None} == {name for name, code in TASKS.items() if code.__module__.startswith("kondo.")}


# What is saved is what was asked, and what is trained


@pytest.mark.parametrize("task", ["bandit", "digits", "reversal_small"])
@pytest.mark.parametrize("friction", ["none", *OWN_FRICTIONS, "penalised_bugs", "all", "[staleness,actor_bugs]"])
@pytest.mark.parametrize("intensity", ["null", "0.5"])
def test_the_recorded_config_is_what_was_trained(task, friction, intensity):
    words = [f"task={task}", f"friction={friction}", "method=dg"]
    words += [f"intensity={intensity}"] if friction != "none" else []
    job = single(words)
    engine = Engine(job.cell, [0])
    recorded = job.cell.plain()
    trained = dataclasses.asdict(engine.task)
    assert recorded["task"] == {"name": recorded["task"]["name"], **parse(recorded).plain()["task"]}
    assert {key: list(value) if isinstance(value, tuple) else value for key, value in trained.items()} == {
        key: value for key, value in recorded["task"].items() if key != "name"
    }
    size = {"bandit": "arms", "digits": "arms", "reversal_small": "vocab"}[task]
    assert (
        engine.learner.policy.log_policy(
            engine.learner.leaves, engine.actor.act(0).contexts.inputs, engine.actor.act(0).actions
        ).shape[-1]
        == recorded["task"][size]
    )
    assert {name: dataclasses.asdict(each) for name, each in zip(recorded["friction"], engine.actor.frictions,
                                                                 strict=True)} == recorded["friction"]  # fmt: skip
    assert parse(recorded).key() == job.cell.key()
    expected = None if intensity == "null" or friction == "none" else 0.5
    named = friction.strip("[]").replace(",", "+")
    assert dict(job.choices) == {"task": task, "method": "dg", "friction": named, "intensity": expected}


@pytest.mark.parametrize("task", ["bandit", "digits", "reversal_small"])
def test_all_frictions_at_intensity_zero_are_the_clean_cell(task):
    off = single([f"task={task}", "friction=all", "intensity=0"])
    assert off.cell.key() == single([f"task={task}"]).cell.key()
    assert (off.choices["friction"], off.choices["intensity"]) == ("all", 0)


def test_a_friction_that_does_nothing_is_no_part_of_a_cell():
    clean = single([]).cell.key()
    for words in (
        "friction=staleness friction.staleness.delay=0",
        "friction=actor_bugs friction.actor_bugs.prob=0",
        "friction=reward_corruption friction.reward_corruption.prob=0",
        "friction=reward_corruption friction.reward_corruption.mode=gaussian friction.reward_corruption.std=0",
        "friction=rare_discovery friction.rare_discovery.arms=10",
    ):
        assert single(words.split()).cell.key() == clean, words


def test_a_setting_that_a_friction_replaces_is_the_friction_s_or_refused():
    assert single(["friction=rare_discovery", "friction.rare_discovery.arms=50"]).cell.task.arms == 50
    assert single(["friction=rare_discovery", "task.arms=1000"]).cell.task.arms == 1000
    for words, parts in (
        ("task.arms=100 friction=rare_discovery intensity=0.5", ["task.arms=100", "friction.rare_discovery.arms=20"]),
        ("task=reversal task.kappa=0.5 friction=rare_discovery", ["task.kappa=0.5", "kappa=0.0", "exclude each other"]),
        ("task=reversal friction=rare_discovery friction.rare_discovery.arms=5", ["arms=5", "'reversal' has no arms"]),
        ("task=mnist friction=rare_discovery friction.rare_discovery.arms=5", ["task.arms=5", "[10, inf)"]),
    ):
        with pytest.raises(ConfigError) as caught:
            single(words.split())
        assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_name_is_the_difference_from_the_defaults():
    names = {
        "": "bandit dgk ρ=0.03",
        "method=is_pg_uncapped": "bandit is_pg_uncapped",
        "method=dg task.arms=20": "bandit dg arms=20",
        "method=dg friction=rare_discovery intensity=0.5": "bandit dg arms=20",
        "method=dg friction=staleness": "bandit dg staleness",
        "method=dg friction=staleness friction.staleness.delay=7": "bandit dg staleness delay=7",
        "method=dg optimizer.lr=0.5 steps=9": "bandit dg optimizer.lr=0.5 steps=9",
        "method=dg method.temperature=2": "bandit dg method.temperature=2.0",
        "task=reversal gate.price=0 gate.unit=token": "reversal dgk λ=0.0 unit=token",
        "task=digits gate.rate=0.1 gate.priority=additive gate.alpha=0.25":
            "digits dgk ρ=0.1 priority=additive alpha=0.25",
    }  # fmt: skip
    assert {words: single(words.split()).name for words in names} == names


def test_the_uncapped_method_keeps_its_name_in_config_plan_and_name(tmp_path):
    (job,) = sweep(["method=is_pg_uncapped", "task=reversal"])
    assert job.cell.plain()["method"] == {"name": "is_pg_uncapped"}
    assert (job.choices["method"], job.name) == ("is_pg_uncapped", "reversal is_pg_uncapped")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("first_seed=0,3", "first_seed=0,3: does not make another cell"),
        ("runs=a,b", "runs=a,b: does not make another cell"),
        ("seeds=2,3", "seeds=2,3"),
        ("scale=smoke,paper", "scale=smoke,paper"),
        ("wandb.group=a,b", "wandb.group=a,b"),
        ("experiment=mnist_pareto,mnist_noise", "one at a time"),
        ("intensity=0.1,0.2", "intensity=0.1,0.2: nothing follows it"),
        ("method=pg,dg gate.rate=0.1,0.2", "no method here has a gate"),
        ("friction=staleness friction.staleness.delay=3 intensity=0.1,0.2", "nothing follows it"),
    ],
)
def test_a_sweep_that_would_do_only_part_of_what_it_says_is_refused(words, part):
    with pytest.raises(ConfigError) as caught:
        sweep(words.split())
    assert part in str(caught.value)


def test_an_intensity_turns_the_frictions_of_a_sweep_and_leaves_clean_cells_alone():
    jobs = sweep(["method=dg", "friction=none,actor_bugs", "intensity=0.1,0.2"])
    assert [(job.choices["friction"], job.choices["intensity"]) for job in jobs] == [
        ("none", None), ("actor_bugs", 0.1), ("actor_bugs", 0.2)]  # fmt: skip


def test_a_figure_is_not_trained_over_an_axis_it_does_not_show(tmp_path):
    with pytest.raises(ConfigError, match=r"bandit_pareto: has no axis for optimizer\.lr"):
        plan("bandit_pareto", "smoke", ["optimizer.lr=0.001,0.03", f"runs={tmp_path}"])
    assert not list(tmp_path.iterdir())
    assert plan("bandit_pareto", "smoke", ["optimizer.lr=0.03", f"runs={tmp_path}"])
    assert len(plan("bandit_pareto", "smoke", ["method=pg,dgk", "gate={rate:0.1},{rate:0.2}", f"runs={tmp_path}"])) == 3


def test_every_key_in_conf_has_a_comment():
    for path in CONF.glob("method/*.yaml"):
        keys = [line for line in path.read_text().splitlines() if ":" in line and not line.startswith("defaults:")]
        assert keys, path
        assert all("#" in line for line in keys), path
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
        ("method=dgg", ["method=dgg", "ce, dg, dg_is, dgk", "did you mean 'dg'"]),
        ("method.name=joy", ["method.name='joy'", "allowed"]),
        ("method=dg method.temprature=2", ["method.temprature", "did you mean 'method.temperature'"]),
        ("method=dg method.temperature=warm", ["method.temperature='warm'", "expected float"]),
        ("method=dg method.temperature=0", ["method.temperature=0.0", "(0, inf)"]),
        ("method=dg method.temperature=null", ["method.temperature=None", "expected float"]),
        ("method=pmpo method.gamma=0", ["method.gamma=0.0", "(0, inf)"]),
        ("method=pg screen.noise=1", ["'pg' uses no delight", "methods that do: dg"]),
        ("task=reversal task.samples=1", ["task.baseline='group'", "several samples per context", "reversal"]),
        ("screen.age=5", ["screen.age=5", "snapshot"]),
        ("task=reversal probe.name=alignment", ["probe.name='alignment'", "'reversal' has none", "bandit, mnist"]),
        ("task=mnist method=dg probe.name=anatomy", ["probe.name='anatomy'", "'dg' has no gate", "dgk"]),
        ("method=pg gate.rate=0.1", ["'pg' has no gate", "dgk"]),
        ("method=ppo actor.report_probabilities=false", ["'ppo' needs", "behaviour probabilities"]),
        ("friction.staleness.delay=3", ["friction=staleness"]),
        ("friction=stale", ["friction=stale", "did you mean 'staleness'"]),
        ("friction=staleness friction.staleness.delay=-1", ["friction.staleness.delay=-1", "[0, inf)"]),
        ("task.arms=1", ["task.arms=1", "[2, inf)"]),
        ("task.arms=many", ["task.arms='many'", "expected int", "got str"]),
        ("intensity=0.5", ["intensity=0.5", "friction=staleness"]),
        ("friction=staleness friction.staleness.delay=3 intensity=0.5", ["intensity=0.5: nothing follows it"]),
        ("gate.temperature=0.5", ["gate.temperature=0.5", "no effect with gate.mode=hard"]),
        ("gate.alpha=0.9", ["gate.alpha=0.9", "no effect with gate.priority=delight"]),
        ("friction=reward_corruption friction.reward_corruption.std=2", ["std=2", "mode=gaussian"]),
        ("task.hidden=[8,0]", ["task.hidden", "out of range"]),
        ("task.baseline=confidense", ["did you mean 'confidence'"]),
        ("optimizer.lr=0", ["optimizer.lr=0.0", "(0, inf)"]),
        ("method=pmpo optimizer.idle=skip", ["optimizer.idle=skip", "learns from every batch", "dg, dg_is, dgk"]),
        ("method=ce optimizer.idle=skip", ["'ce' learns from every batch"]),
        ("method=dg optimizer.idle=rest", ["optimizer.idle='rest'", "skip, step"]),
        ("method=dg optimizer.idle=skip optimizer.name=sgd", ["optimizer.idle=skip", "moves nothing", "sgd"]),
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


def test_a_sweep_over_batches_without_a_gradient_is_for_methods_that_meet_some():
    jobs = sweep(["method=pmpo,ce,dg,dgk", "gate.price=0", "optimizer.idle=skip,step"])
    assert [(job.cell.method, job.cell.optimizer.idle) for job in jobs] == [
        *(("pmpo", None), ("ce", None), ("dg", "skip"), ("dg", None), ("dgk", None), ("dgk", "step"))
    ]


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
    assert not list(tmp_path.glob("runs/*/*-s*"))


def run(*words: str, **environment: str) -> str:
    command = [sys.executable, "-m", "experiments.run", *words, "wandb.mode=disabled", "seeds=2", "steps=5"]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True).stdout


def test_the_command_line_trains_sweeps_and_skips(tmp_path):
    first = run(f"runs={tmp_path}", "task=bandit", "method=dgk", "gate.price=0")
    assert "bandit dgk λ=0.0 steps=5, seeds 0–1: done" in first
    again = run("-m", f"runs={tmp_path}", "method=pg,dgk", "gate.price=0,0.5")
    assert again.count("complete, skipped") == 1
    assert again.count("done") == 2
    assert len(list(tmp_path.glob("bandit/*/status.json"))) == 3


EXTENSION = '''
from __future__ import annotations
from dataclasses import dataclass, replace
from kondo.lab.frictions import Friction, friction
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
        return replace(batch, rewards=raised(batch.rewards * self.factor))

RAISED = 0

def raised(rewards):
    return rewards + RAISED
'''


def test_one_small_file_adds_a_method_a_priority_and_a_friction(tmp_path):
    (tmp_path / "mine.py").write_text(EXTENSION)
    words = ["-m", f"runs={tmp_path}/runs", "friction=none,inflation"]
    output = run(*words, "method=cautious", "method.caution=0.1,0.9", KONDO_EXTENSIONS=str(tmp_path))
    assert output.count("done") == 4
    assert "bandit cautious method.caution=0.1 inflation" in output
    assert "done" in run(*words, "gate.priority=negative", KONDO_EXTENSIONS=str(tmp_path))
    (tmp_path / "mine.py").write_text(EXTENSION.replace("RAISED = 0", "RAISED = 1"))
    again = run(*words, "method=cautious", "method.caution=0.1,0.9", KONDO_EXTENSIONS=str(tmp_path))
    assert (again.count("done"), again.count("skipped")) == (4, 0)  # any other line of the file is another cell


@pytest.mark.slow
def test_a_file_of_one_s_own_extensions_breaks_no_test(tmp_path):
    (tmp_path / "mine.py").write_text(EXTENSION + TASK)
    (tmp_path / "conftest.py").write_text("from experiments.extend import load_extensions\nload_extensions()\n")
    chosen = "config_with_the_code or covered or a_colour_of_its_own or stacked or learns_the_bandit"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", "-k", chosen]
    files = [f"tests/test_{name}.py" for name in ("config", "gate", "engine", "objectives", "analysis")]
    env = {**os.environ, "KONDO_EXTENSIONS": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, *files], capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert done.returncode == 0, done.stdout


TASK = """
from dataclasses import dataclass
from kondo.lab.tasks import task
from kondo.lab.tasks.bandit import Bandit

@task
@dataclass(frozen=True)
class Casino(Bandit):
    def reward(self, contexts, actions):
        return (actions != contexts.targets).float()
"""


def test_the_code_of_a_task_of_one_s_own_is_part_of_its_cells(tmp_path):
    keys = []
    for line in ("", "STAKE = 2"):
        (tmp_path / "casino.py").write_text(TASK + line)
        check = (
            "from experiments.extend import load_extensions\nload_extensions()\n"
            "from kondo.lab.config.cell import parse\n"
            "cell = parse({'task': {'name': 'casino'}, 'method': {'name': 'pg'}, 'steps': 1})\n"
            "print(cell.key(), list(cell.plain()['extensions']))"
        )
        env = {**os.environ, "KONDO_EXTENSIONS": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, env=env, check=True
        )
        key, _, names = done.stdout.strip().partition(" ")
        assert names == "['task.casino']"
        keys.append(key)
    assert keys[0] != keys[1]


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ConfigError, match="pg: there is one"):
        method(METHODS["pg"])


def test_intensity_turns_every_chosen_friction():
    cell = single(["friction=all", "intensity=0.5"]).cell
    given = cell.plain()["friction"]
    assert [given["staleness"]["delay"], given["actor_bugs"]["prob"], cell.task.arms] == [500, 0.5, 20]


def test_frictions_can_be_combined_from_a_list():
    assert len(single(["friction=[staleness,actor_bugs]"]).cell.frictions) == 2
    with pytest.raises(ConfigError, match="did you mean 'staleness'"):
        single(["friction=[stale,actor_bugs]"])


def test_importing_kondo_needs_neither_hydra_nor_wandb_nor_matplotlib():
    check = (
        "import sys, kondo; print([m for m in ('hydra','omegaconf','wandb','matplotlib','pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_a_sweeper_that_chooses_by_what_came_out_gets_the_final_error(tmp_path):
    """Optuna minimises the final error over the gate's rate."""
    how = ["n_trials=4", "n_jobs=2", "direction=minimize", "sampler.seed=1"]
    words = ["-m", f"runs={tmp_path}", "hydra/sweeper=optuna", *(f"hydra.sweeper.{word}" for word in how)]
    run(*words, "gate.rate=interval(0.05,1.0)", "method=dgk")
    results = OmegaConf.load(tmp_path / ".sweep" / "optimization_results.yaml")
    runs, damaged = read_runs(tmp_path)
    assert damaged == []
    ends = {
        each.config["gate"]["rate"]: [row["policy_error"] for row in each.rows if row["step"] == 5] for each in runs
    }
    assert len(ends) == 4
    means = {rate: sum(errors) / len(errors) for rate, errors in ends.items()}
    assert results.best_value == pytest.approx(min(means.values()))
    assert means[results.best_params["gate.rate"]] == pytest.approx(results.best_value)


@pytest.mark.slow
def test_hydra_s_own_words_do_what_its_documentation_says(tmp_path):
    def output(*words: str) -> str:
        command = [sys.executable, "-m", "experiments.run", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    shown = OmegaConf.create(output("--cfg", "job", "method=dg", "steps=7"))
    assert (shown.method.name, shown.steps) == ("dg", 7)
    assert "Powered by Hydra" in output("--help")
    words = ["-m", f"runs={tmp_path}", "gate.rate=choice(0.1,0.2)", "method=glob(dg*)", "task.arms=range(5,7)"]
    assert run(*words).count(": done") == 8
    basic = run("-m", f"runs={tmp_path}", "method=pg,dg", "task.arms=5", "hydra/launcher=basic")
    assert (basic.count(": done"), basic.count("skipped")) == (1, 1)


@pytest.mark.slow
def test_a_plan_is_composed_anew_only_where_something_changed(tmp_path, monkeypatch):
    first = [job.cell.key() for job in plan("gambling", "smoke", [f"runs={tmp_path}"])]
    monkeypatch.setattr(plans, "climbs", lambda words: pytest.fail("composed again"))
    assert [job.cell.key() for job in plan("gambling", "smoke", [f"runs={tmp_path}"])] == first
    with pytest.raises(pytest.fail.Exception, match="composed again"):
        plan("gambling", "smoke", [f"runs={tmp_path}", "seeds=3"])
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "more.py").write_text("MORE = 1")
    monkeypatch.setenv("KONDO_EXTENSIONS", str(mine))
    with pytest.raises(pytest.fail.Exception, match="composed again"):
        plan("gambling", "smoke", [f"runs={tmp_path}"])


def test_nothing_of_hydra_s_internals_is_used():
    files = [*ROOT.glob("experiments/**/*.py"), *ROOT.glob("hydra_plugins/**/*.py"), *ROOT.glob("kondo/**/*.py")]
    assert len(files) > 40
    assert not [path for path in files if "hydra._internal" in path.read_text()]


def test_a_sweep_composes_each_job_as_a_single_run_would():
    words = ["friction=staleness", "task.hidden=[4]", "friction.staleness.delay=7", "steps=9"]
    swept = sweep([*words, "method=dg,dgk", "gate={rate:0.5},{price:1}"])
    alone = [single([*words, "method=dg"])] + [
        single([*words, "method=dgk", gate]) for gate in ("gate.rate=0.5", "gate.price=1")
    ]
    assert [job.cell.key() for job in swept] == [job.cell.key() for job in alone]
    (late,) = sweep(["method=dgk", "gate.rate=0.5", "++gate.rate=0.25"])
    assert late.cell.gate.rate == single(["method=dgk", "gate.rate=0.5", "++gate.rate=0.25"]).cell.gate.rate == 0.25


@pytest.mark.parametrize(
    ("intensity", "precision"),
    [(None, "int8"), (0.1, "bf16"), (0.2, "int8"), (0.3, "int8"), (0.5, "int4"), (0.9, "int4")],
)
def test_a_stronger_mismatch_is_a_coarser_actor(intensity, precision):
    words = ["task=bandit", "friction=mismatch", *([] if intensity is None else [f"intensity={intensity}"])]
    (friction,) = single(words).cell.frictions
    assert friction.precision == precision


def test_a_mismatch_of_intensity_zero_is_no_friction():
    assert single(["task=bandit", "friction=mismatch", "intensity=0"]).cell.frictions == ()


def test_in_a_sweep_a_probe_of_the_gate_is_for_gated_methods_alone():
    jobs = sweep(["task=reversal_small", "probe.name=kept", "method=pg,dgk"])
    assert {job.cell.method: job.cell.probe.name for job in jobs} == {"pg": "none", "dgk": "kept"}
    with pytest.raises(ConfigError, match="needs"):
        single(["task=reversal_small", "probe.name=kept", "method=pg"])
