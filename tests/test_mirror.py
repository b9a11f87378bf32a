"""W&B mirrors the log without an account or a network, and training does not care how it fares."""

import json
import os
import subprocess
import sys
import types

import pytest

from experiments import board, runs
from experiments.compose import single, sweep
from experiments.jobs import CONF, ROOT
from experiments.mirror import summary
from experiments.plans import plan
from experiments.train import train_block
from kondo.lab.records import read_manifest
from tests.test_launchers import until

WORDS = ["method=dgk", "gate.price=0", "steps=20", "seeds=2", "evals=4", "scale=smoke"]


def train(tmp_path, *words):
    job = single([*WORDS, f"runs={tmp_path}/runs", f"wandb.dir={tmp_path}/mirror", *words])
    (block,) = job.blocks()
    status = train_block(job, block, lambda step, rows: None)
    return status, block.folder(tmp_path / "runs")


def test_offline_mirror_works_without_an_account(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    status, folder = train(tmp_path)
    assert status == "done"
    (written,) = (tmp_path / "mirror" / "wandb").glob("offline-run-*/*.wandb")
    assert folder.name in written.name
    until(lambda: written.stat().st_size > 500)  # by a process of W&B's, which may be late


def test_disabled_mirror_writes_nothing(tmp_path):
    status, _ = train(tmp_path, "wandb.mode=disabled")
    assert status == "done"
    assert not (tmp_path / "mirror").exists()


class FakeRun:
    def __init__(self, fail_at: int | None = None):
        self.logged, self.metrics, self.finished, self.fail_at = [], {}, None, fail_at

    def define_metric(self, name, **options):
        self.metrics[name] = options

    def log(self, values):
        if len(self.logged) == self.fail_at:
            raise ConnectionError("gone")
        self.logged.append(values)

    def finish(self, exit_code):
        self.finished = exit_code


@pytest.fixture
def fake(monkeypatch):
    run = FakeRun()
    asked = {}

    def init(**options):
        asked.update(options)
        return run

    module = types.SimpleNamespace(init=init, Settings=lambda **options: options)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return run, asked


def test_mirror_says_what_the_run_is_and_logs_every_evaluation(tmp_path, fake):
    run, asked = fake
    _, folder = train(tmp_path, "wandb.group=bandit_pareto", "friction=staleness")
    assert asked["id"] == folder.name
    assert (asked["group"], asked["job_type"]) == ("bandit_pareto", "dgk")
    assert asked["tags"] == ["bandit", "staleness", "smoke"]
    assert asked["config"]["gate"]["price"] == 0.0
    assert {"step", "forward", "backward"} <= set(run.metrics)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [values["step"] for values in run.logged] == sorted({row["step"] for row in rows})
    assert run.logged[-1]["policy_error"] == pytest.approx((rows[-1]["policy_error"] + rows[-2]["policy_error"]) / 2)
    assert run.logged[-1]["policy_error/seed1"] == rows[-1]["policy_error"]
    assert run.finished == 0


def groups(jobs):
    return {job.launch.wandb.group for job in jobs}


GIVEN = [
    ([], "ad hoc"),
    (["experiment=bandit_pareto"], "bandit_pareto"),
    (["experiment=bandit_pareto", "wandb.group=mine"], "mine"),
    (["wandb.group=mine"], "mine"),
]


@pytest.mark.parametrize(("words", "group"), GIVEN)
def test_the_group_is_the_experiment_unless_there_is_none_or_one_is_given(tmp_path, fake, words, group):
    _, asked = fake
    train(tmp_path, *words)
    assert asked["group"] == group
    assert groups(sweep([*words, "scale=smoke"])) == {group}


STAND_IN = """
import os, pathlib
def init(**options):
    pathlib.Path(os.environ["ASKED"]).write_text(options["group"])
    raise SystemError("enough")
def Settings(**options):
    return options
"""


@pytest.mark.parametrize("mode", [["method=pg"], ["-m", "method=pg,dg", "gate={rate:0.1}", "hydra/launcher=basic"]])
def test_the_command_line_tells_w_and_b_which_experiment_it_runs(tmp_path, mode):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    words = [*mode, "experiment=bandit_pareto", f"runs={tmp_path}/runs", "steps=2", "evals=2", "seeds=1"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "ASKED": str(tmp_path / "asked")}
    subprocess.run([sys.executable, "-m", "experiments.run", *words], cwd=ROOT, env=env, check=True)
    assert (tmp_path / "asked").read_text() == "bandit_pareto"


def test_a_figure_s_plan_has_its_group_when_it_is_composed_and_when_it_is_kept(tmp_path):
    for _ in range(2):
        assert groups(plan("gate_coefficient", "smoke", [f"runs={tmp_path}"])) == {"gate_coefficient"}
        assert groups(plan("gate_coefficient", "smoke", [f"runs={tmp_path}", "wandb.group=mine"])) == {"mine"}


def test_no_experiment_types_its_group():
    assert not [path for path in (CONF / "experiment").glob("*.yaml") if "group:" in path.read_text()]


def test_a_mirror_that_fails_mid_run_does_not_stop_training(tmp_path, fake, capsys):
    run, _ = fake
    run.fail_at = 2
    status, folder = train(tmp_path)
    assert status == "done"
    assert len(run.logged) == 2
    assert "training goes on without it" in capsys.readouterr().err
    assert (folder / "metrics.jsonl").read_text().count("\n") >= 10


def test_wandb_missing_does_not_stop_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train(tmp_path)[0] == "done"
    assert "training goes on without it" in capsys.readouterr().err


def test_summary_leaves_out_what_a_diverged_seed_does_not_have():
    rows = [
        {"step": 4, "seed": 0, "test_error": 0.5, "backward": 10},
        {"step": 4, "seed": 1, "test_error": None, "backward": 20, "diverged": 2},
    ]
    assert summary(rows, "test_error") == {"step": 4, "test_error": 0.5, "backward": 15, "test_error/seed0": 0.5}


def test_finished_records_are_mirrored_later_as_they_would_have_been_and_only_once(tmp_path, fake, capsys):
    run, asked = fake
    train(tmp_path)
    along, asked_along = list(run.logged), dict(asked)
    run.logged.clear()
    words = ["sync", "--runs", str(tmp_path / "runs"), "--dir", str(tmp_path / "later"), "--project", "mine"]
    assert runs.main(words) == 0
    assert run.logged == along
    assert {key: asked[key] for key in ("id", "job_type")} == {key: asked_along[key] for key in ("id", "job_type")}
    assert asked["config"] | {"choices": None, "error": None} == asked_along["config"] | {
        "choices": None,
        "error": None,
    }
    assert (asked["project"], asked["group"], run.finished) == ("mine", "ad hoc", 0)
    assert runs.main(words) == 0
    assert run.logged == along
    assert "0 runs mirrored, 1 were already, 0 failed" in capsys.readouterr().out
    assert runs.main([*words, "--mode", "online"]) == 0
    assert asked["mode"] == "online"
    assert run.logged == along * 2


def test_a_record_that_cannot_be_mirrored_is_told_and_tried_again(tmp_path, fake, capsys):
    run, _ = fake
    train(tmp_path, "wandb.mode=disabled")
    run.fail_at = 2
    words = ["sync", "--runs", str(tmp_path / "runs")]
    assert runs.main(words) == 1
    assert "ConnectionError: gone" in capsys.readouterr().out
    run.fail_at = None
    assert runs.main(words) == 0


@pytest.mark.slow
def test_sync_works_offline_without_an_account(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    train(tmp_path, "wandb.mode=disabled")
    assert runs.main(["sync", "--runs", str(tmp_path / "runs"), "--dir", str(tmp_path / "later")]) == 0
    (written,) = (tmp_path / "later" / "wandb").glob("offline-run-*/*.wandb")
    assert written.stat().st_size > 500


def test_the_board_has_a_row_per_published_run_and_seed_and_panels_per_experiment():
    results = ROOT / "results"
    rows, report = board.table(results), board.template(results, "mine")
    entries = read_manifest(results)
    assert [section["title"] for section in report["sections"]] == sorted(entries)
    width = len(board.COLUMNS) + len(board.NUMBERS)
    assert {len(row) for row in rows} == {width}
    for name, entry in entries.items():
        own = [row for row in rows if row[0] == name]
        assert len(own) == sum(cell["seeds"] for cell in entry["cells"].values())
    error = board.COLUMNS.index("steps") + 1
    final = [row[error] for row in rows if row[0] == "joy_1" and row[4] == "dg"]
    assert sum(final) / len(final) == pytest.approx(0.0265, abs=5e-5)  # R1's 2.65%
    assert "## joy_1" in board.outline(report)


@pytest.mark.slow
def test_the_board_is_made_offline_without_an_account(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert board.main(["--results", str(ROOT / "results"), "--dir", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "wandb" / "board.json").read_text())["artifact"] == "published:latest"
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
