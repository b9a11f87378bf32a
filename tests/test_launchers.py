"""The same sweep on every launcher, and what becomes of it when workers, runs or neighbours misbehave."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from joblib.externals import loky

from analysis.load import load_figure
from experiments import launchers, reproduce, runs
from experiments.compose import single, sweep, with_value
from experiments.jobs import ROOT
from experiments.launchers import Basic, Joblib, launcher
from experiments.reproduce import in_order
from experiments.train import outcomes, train_all
from kondo.lab.config.cell import parse
from kondo.lab.interrupts import held, interruptible
from kondo.lab.records import in_training, read_plan, read_status
from kondo.schema import ConfigError
from tests.test_runs import log_of

SWEEP = ["method=pg,dgk", "gate.rate=0.1,0.3", "seeds=2", "steps=20", "evals=4", "wandb.mode=disabled"]


def command(module: str, *words: str, home: Path, **environment: str) -> subprocess.Popen:
    """A command of the suite in a process of its own, which leaves nothing outside the folder it is given."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home), **environment}
    line = [sys.executable, "-m", module if "." in module else f"experiments.{module}", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, cwd=home, env=env, text=True, start_new_session=True, preexec_fn=_heed, **pipes)


def _heed() -> None:
    """Ctrl-C counts, also where the tests run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def until(held) -> None:
    deadline = time.monotonic() + 120
    while not held():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def logs(root: Path) -> dict[str, list[dict]]:
    return {path.parent.name: log_of(path.parent) for path in root.glob("*/*/metrics.jsonl")}


def todo_of(words: list[str]) -> list:
    return [(job, block) for job in sweep(words) for block in job.blocks()]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    root = tmp_path_factory.mktemp("serial")
    assert train_all(todo_of([*SWEEP, f"runs={root}"]), Basic()) == {}
    return logs(root)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joblib", "ray", "submitit_local"])
def test_every_launcher_writes_the_logs_of_a_serial_run(tmp_path, serial, name):
    words = [*SWEEP, f"runs={tmp_path}/runs", f"hydra/launcher={name}", "hydra.launcher.n_jobs=2"]
    process = command("run", "-m", *words, home=tmp_path)
    output, trouble = process.communicate()
    assert process.returncode == 0, trouble
    assert output.count(": done") == 3
    assert logs(tmp_path / "runs") == serial


def test_slurm_jobs_are_asked_for_what_the_config_says():
    words = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.gpus=1"]
    asked = launcher(words).parameters()
    assert asked["slurm_partition"] == "gpu"
    assert (asked["gpus_per_node"], asked["cpus_per_task"], asked["timeout_min"]) == (1, 1, 240)
    assert "slurm_account" not in asked


def test_the_default_launcher_is_joblib_on_every_core():
    assert launcher([]) == Joblib(n_jobs=None)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["hydra/launcher=slurm"], ["hydra/launcher", "submitit_slurm"]),
        (["hydra/launcher=ray", "hydra.launcher.n_jobs=0"], ["hydra.launcher.n_jobs=0", "[1, inf)"]),
    ],
)
def test_a_wrong_launcher_is_refused(words, parts):
    with pytest.raises(ConfigError) as caught:
        launcher(words)
    for part in parts:
        assert part in str(caught.value)


def test_a_launcher_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launchers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kondo\[slurm\]'"):
        launcher(["hydra/launcher=submitit_slurm"])


def workers(parent: int | None = None, kind: str = "popen_loky") -> list[int]:
    """Processes of joblib's that train for this one, or for another."""
    parent = parent or os.getpid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if kind in Path(f"/proc/{pid}/cmdline").read_text()]


def members(session: int) -> list[int]:
    """Processes of a session that live."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [int(stat[3]) for stat in stats if int(stat[3]) == session and stat[0] != "Z"]


@pytest.mark.slow
def test_a_sweep_whose_workers_are_killed_ends_with_every_run_correct(tmp_path):
    """200 runs; after every 20 that end a worker is killed in the middle of another: 5% of the runs lose theirs."""
    words = ["method=dgk", "seeds=1", "steps=10", "evals=2", "task.contexts=2", "task.arms=3", "task.batch=10"]

    def todo_in(root: Path) -> list:
        one = single([*words, f"runs={root}", "wandb.mode=disabled"])
        cells = [parse(with_value(one.cell.plain(), "gate.rate", k / 200)) for k in range(1, 201)]
        return [(job, block) for job in (replace(one, cell=cell) for cell in cells) for block in job.blocks()]

    todo = todo_in(tmp_path / "killed")
    assert len(todo) == 200
    rng, ended, kills = random.Random(0), Counter[str](), 0
    for event in outcomes(todo, Joblib(n_jobs=2)):
        if event is None:
            continue
        ended[event[1]] += 1
        if ended.total() % 20 == 10:
            os.kill(rng.choice(workers()), signal.SIGKILL)
            kills += 1
    assert kills == 10
    assert ended == {"done": 200}
    assert train_all(todo_in(tmp_path / "whole"), Basic()) == {}
    assert logs(tmp_path / "killed") == logs(tmp_path / "whole")


def test_a_run_that_always_loses_its_worker_is_given_up_and_the_others_end(tmp_path):
    todo = todo_of([*SWEEP, f"runs={tmp_path}"])

    class Deadly(Basic):
        @contextmanager
        def open(self, folder):
            with super().open(folder) as (submit, size):
                yield lambda work, *call: lost if call[0] == todo[0][0].cell.plain() else submit(work, *call), size

    lost = Future()
    lost.set_exception(MemoryError("no more"))
    assert train_all(todo, Deadly()) == {0: "failed: lost 3 workers: MemoryError: no more"}
    assert len(logs(tmp_path)) == len(todo) - 1
    status = read_status(todo[0][1].folder(tmp_path))
    assert (status["status"], status["reason"]) == ("failed", "lost 3 workers: MemoryError: no more")


LONG = ["method=pg,dg", "steps=1000000", "evals=4", "checkpoint_seconds=1000", "wandb.mode=disabled"]


def reached(root: Path) -> int:
    """How many runs are in training."""
    return sum(read_status(path.parent).get("step", 0) > 10 for path in root.glob("*/*/status.json"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_ctrl_c_twice_saves_what_is_trained_and_prints_no_traceback(tmp_path, moment):
    root = tmp_path / "runs"
    process = command("run", "-m", *LONG, f"runs={root}", "hydra.launcher.n_jobs=2", home=tmp_path)
    until(lambda: workers(process.pid) if moment == "starting" else reached(root) == 2)
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.strip() == "interrupted; the same command goes on from the last checkpoint"
    assert len(list(root.glob("*/*/checkpoint.pt"))) == (2 if moment == "training" else 0)
    until(lambda: not members(process.pid))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["run", "method=pg"], ["reproduce", "--scale", "smoke", "bandit_pareto", "hydra/launcher=basic"]]
)
def test_ctrl_c_twice_ends_training_in_one_process_without_a_traceback(tmp_path, words):
    process = command(*words, *LONG[1:], f"runs={tmp_path}/runs", home=tmp_path)
    until(lambda: reached(tmp_path / "runs") == 1)
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.strip().rstrip("s") == "interrupted; the same command goes on from the last checkpoint"


@pytest.fixture
def signals():
    """What the tests' process does with signals, kept."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_an_interruption_waits_until_a_worker_is_started(tmp_path, signals, monkeypatch):
    """One in the middle would leave the semaphores of a pool that nobody knows."""
    made = []

    class Interrupted(loky.ProcessPoolExecutor):
        def __init__(self, *arguments, **settings):
            signal.raise_signal(signal.SIGINT)
            super().__init__(*arguments, **settings)
            made.append(self)

    monkeypatch.setattr(loky, "ProcessPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt), Joblib(n_jobs=1).open(tmp_path) as (submit, _):
        submit(str, 1)
    assert len(made) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interruption_counts_and_waits_while_processes_are_started(signals, number):
    """Also where another thread is told, as the system may choose."""
    reached, done = [], threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with interruptible():
            with held():
                signal.pthread_kill(other.ident, number)
                time.sleep(0.01)
                reached.append("inside")
                child = subprocess.run([sys.executable, "-c", MASK], capture_output=True, text=True, check=True)
            reached.append("outside")
    except KeyboardInterrupt:
        signal.raise_signal(number)  # ignored by now
        reached.append("interrupted")
    done.set()
    other.join()
    assert reached == ["inside", "interrupted"]
    assert "SIGINT" in child.stdout
    assert "SIGTERM" not in child.stdout


MASK = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def test_what_was_ignored_stays_so_and_what_was_not_is_as_before(signals):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible(), held():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interruptible(), held():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.parametrize("module", ["analysis.draw", "analysis.report"])
def test_ctrl_c_ends_the_drawing_without_a_traceback(tmp_path, module):
    plans = tmp_path / "runs" / "plans" / "laptop"
    plans.mkdir(parents=True)
    for name in ("bandit_pareto", "gambling"):
        (plans / f"{name}.json").write_text(f'{{"figure": "{name}", "scale": "laptop", "command": ""}}')
    process = command(module, home=tmp_path)
    until(lambda: workers(process.pid, "spawn_main"))
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "interrupted")
    until(lambda: not members(process.pid))


@pytest.mark.slow
def test_a_worker_whose_parent_died_before_it_looked_around_does_not_train_on(tmp_path):
    process = command("run", "-m", *LONG, f"runs={tmp_path}/runs", "hydra.launcher.n_jobs=1", home=tmp_path)
    until(lambda: workers(process.pid))
    time.sleep(0.3)  # by now it has its call, and still imports
    (worker,) = workers(process.pid)
    process.kill()
    process.communicate()
    until(lambda: not Path(f"/proc/{worker}").exists())
    assert reached(tmp_path / "runs") == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_parent_ends_its_workers_save_and_end_too(tmp_path, end):
    """SIGINT to all of them does the same as SIGTERM to the parent."""
    process = command("run", "-m", *LONG, f"runs={tmp_path}/runs", "hydra.launcher.n_jobs=2", home=tmp_path)

    def folders(file: str) -> list[Path]:
        return sorted(path.parent for path in tmp_path.glob(f"runs/*/*/{file}"))

    until(lambda: sum(read_status(folder).get("step", 0) > 10 for folder in folders("status.json")) == 2)
    process.send_signal(end)
    _, said = process.communicate()
    assert ("interrupted" in said) == (end == signal.SIGTERM)
    until(lambda: len(folders("checkpoint.pt")) == 2)
    until(lambda: not any(in_training(folder) for folder in folders("checkpoint.pt")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=mnist_pareto", "bandit_pareto"], "experiment=mnist_pareto: not an override"),
        (["scale=paper", "bandit_pareto"], "--scale"),
        (["runs=", "bandit_pareto"], "expected a folder"),
        ([f"runs={ROOT}/results", "bandit_pareto"], "published records, which nothing is trained into"),
    ],
)
def test_what_would_make_a_figure_of_other_runs_is_refused(tmp_path, words, said):
    process = command("reproduce", "--scale", "smoke", *words, home=tmp_path)
    _, trouble = process.communicate()
    assert process.returncode == 1
    assert said in trouble
    assert not list(tmp_path.glob("**/plans"))


@pytest.mark.slow
def test_overrides_of_a_reproduction_are_swept_and_told_and_its_seeds_are_kept_apart(tmp_path):
    words = ["--scale", "smoke", "bandit_pareto", f"runs={tmp_path}/runs", "wandb.mode=disabled", "steps=3"]
    words += ["hydra/launcher=basic", "method=pg,dg"]
    for first in (0, 100):
        process = command("reproduce", *words, "seeds=3", f"first_seed={first}", home=tmp_path)
        _, trouble = process.communicate()
        assert process.returncode == 0, trouble
        plan = read_plan(tmp_path / "runs", "smoke", "bandit_pareto")
        changed = f"OVERRIDES='steps=3 method=pg,dg seeds=3 first_seed={first}'"
        assert plan.command == f"make reproduce FIGURES=bandit_pareto SCALE=smoke RUNS={tmp_path}/runs {changed}"
        frame = load_figure(tmp_path / "runs", "smoke", "bandit_pareto")
        assert set(frame["seed"]) == {first, first + 1, first + 2}
        assert set(frame["method.name"]) == {"pg", "dg"}


EXTENSION = """
import os, pathlib
from kondo.lab import training
from kondo.objectives import method

@method
def broken(log_prob, advantage):
    raise RuntimeError("boom")

train = training._train
def counted(folder, *rest):
    with open(pathlib.Path(__file__).with_name("trained"), "a") as file:
        file.write(folder.name + "\\n")
    return train(folder, *rest)
training._train = counted
"""


@pytest.mark.slow
def test_a_crashed_run_is_recorded_stops_no_other_and_can_be_looked_at_and_cleaned(tmp_path, capsys):
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "broken.py").write_text(EXTENSION)
    words = ["-m", f"runs={tmp_path}/runs", "method=pg,broken,dg", "steps=5", "seeds=2", "wandb.mode=disabled"]
    process = command("run", *words, home=tmp_path, KONDO_EXTENSIONS=str(tmp_path / "extensions"))
    output, _ = process.communicate()
    assert process.returncode == 1
    assert (output.count(": done"), output.count("failed: RuntimeError: boom")) == (2, 1)
    root = ["--runs", f"{tmp_path}/runs"]
    (failed,) = (path.parent for path in tmp_path.glob("runs/*/*/status.json") if "boom" in path.read_text())
    assert runs.main([*root, "list", "--status", "failed"]) == 0
    listed = capsys.readouterr().out
    assert (failed.name in listed, "boom" in listed, "1 runs" in listed) == (True, True, True)
    assert runs.main([*root, "show", failed.name[:6]]) == 0
    shown = capsys.readouterr().out
    assert "name: broken" in shown
    assert "Traceback" in shown
    assert runs.main([*root, "clean", "--failed"]) == 0
    assert not failed.exists()
    assert len(list(tmp_path.glob("runs/*/*/status.json"))) == 2


@pytest.mark.slow
def test_two_reproducers_at_once_train_every_run_once(tmp_path, serial):
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "counted.py").write_text(EXTENSION)
    words = ["--scale", "smoke", "gate_coefficient", f"runs={tmp_path}/runs", "wandb.mode=disabled"]
    words += ["hydra.launcher.n_jobs=1"]
    environment = {"KONDO_EXTENSIONS": str(tmp_path / "extensions")}
    both = [command("reproduce", *words, home=tmp_path, **environment) for _ in range(2)]
    for process in both:
        _, trouble = process.communicate()
        assert process.returncode == 0, trouble
    trained = (tmp_path / "extensions" / "trained").read_text().split()
    assert sorted(trained) == sorted(path.parent.name for path in tmp_path.glob("runs/*/*/metrics.jsonl"))
    assert len(trained) == 7


@pytest.mark.slow
def test_a_runs_folder_that_cannot_be_written_is_named(tmp_path):
    process = command("run", "runs=/sys/kondo", "steps=2", "wandb.mode=disabled", home=tmp_path)
    _, trouble = process.communicate()
    assert process.returncode == 1
    assert trouble.startswith("error: ")
    assert "/sys/kondo" in trouble


def test_long_runs_come_first_and_tasks_are_mixed():
    cells = [single(["task=bandit"]), single(["task=reversal", "scale=smoke"])]
    todo = [(cells[task], cells[task].blocks()[0]) for task in (0, 0, 0, 0, 1, 1)]
    costs = [1.0, 4.0, 2.0, 3.0, 50.0, 150.0]
    ordered = [costs[[id(pair) for pair in todo].index(id(pair))] for pair in in_order(todo, costs)]
    assert ordered == [150.0, 4.0, 3.0, 2.0, 50.0, 1.0]


@pytest.mark.parametrize(("seconds", "measured"), [(0.0, ["dg 20", "pg 4"]), (1e6, ["dg 20", "pg 4", "dg 5"])])
def test_what_is_not_measured_is_taken_to_cost_as_much_per_decision_as_what_is(monkeypatch, seconds, measured):
    cells = [single(["task=reversal", f"method={method}", f"task.length={length}", "steps=10", "seeds=2"])
             for method, length in (("dg", 5), ("dg", 20), ("pg", 4))]  # fmt: skip
    todo = [(cell, cell.blocks()[0]) for cell in cells]
    timed = []

    def cost(job, block):
        timed.append(f"{job.cell.method} {job.cell.task.length}")
        return 0.1 * job.cell.task.length

    monkeypatch.setattr(reproduce, "per_seed_step", cost)
    monkeypatch.setattr(reproduce, "CALIBRATION_SECONDS", seconds)
    assert reproduce.estimate(todo) == pytest.approx([0.5 * 20, 2.0 * 20, 0.4 * 20])
    assert sorted(timed) == sorted(measured)


@pytest.mark.slow
def test_a_runs_folder_with_a_space_works_from_make_to_the_report(tmp_path):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for path in ("pyproject.toml", "constraints.txt", ".venv/.suite"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()

    def make(*words: str) -> str:
        asked = ["make", "--dry-run", "--no-print-directory", "SCALE=smoke", "RUNS=my runs", *words]
        outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        printed = subprocess.run(asked, cwd=tmp_path, env=outside, capture_output=True, text=True, check=True).stdout
        _, dash, module, *rest = shlex.split(printed)
        assert dash == "-m"
        process = command(module, *rest, home=tmp_path)
        output, trouble = process.communicate()
        assert process.returncode == 0, trouble
        return output

    make("reproduce", "FIGURES=gate_coefficient", "OVERRIDES=wandb.mode=disabled hydra.launcher.n_jobs=1")
    plan = read_plan(tmp_path / "my runs", "smoke", "gate_coefficient")
    assert "RUNS='my runs'" in plan.command
    for kind, folder in (("figures", tmp_path / "figures"), ("report", tmp_path / "report")):
        shutil.rmtree(folder)
        make(kind, "FIGURES=gate_coefficient")
    assert (tmp_path / "figures" / "smoke" / "gate_coefficient.png").exists()
    page = (tmp_path / "report" / "smoke" / "index.html").read_text()
    assert page.count("<svg role") == 1


def test_what_is_in_the_place_of_a_run_s_folder_is_named_and_stops_no_other_run(tmp_path):
    first, *rest = todo_of([*SWEEP, f"runs={tmp_path}"])
    folder = first[1].folder(tmp_path)
    folder.parent.mkdir()
    folder.write_text("")
    assert train_all([first, *rest], Basic()) == {
        0: f"failed: ConfigError: {folder}: no folder, but a file in its place; move it away"
    }
    assert len(logs(tmp_path)) == len(rest)


@pytest.mark.slow
def test_what_was_asked_for_is_written_down_by_whoever_trains_it(tmp_path):
    choices = {"method": "pg", "friction": "none", "intensity": 0.5}
    ((job, block), *_) = todo_of([*SWEEP, f"runs={tmp_path}"])
    assert train_all([(replace(job, choices=choices), block)], Joblib(n_jobs=1)) == {}
    assert yaml.safe_load((block.folder(tmp_path) / "config.yaml").read_text())["choices"] == choices


@pytest.mark.slow
def test_a_plan_says_how_long_each_figure_takes_and_trains_nothing(tmp_path):
    words = ("--plan", "gate_coefficient", "gambling", f"runs={tmp_path / 'runs'}", "wandb.mode=disabled")
    process = command("experiments.reproduce", *words, home=tmp_path)
    output, trouble = process.communicate()
    assert process.returncode == 0, trouble
    assert [line.split()[0] for line in output.splitlines() if "core-hours" in line] == ["gate_coefficient", "gambling"]
    assert not list((tmp_path / "runs").glob("*/*/status.json"))
