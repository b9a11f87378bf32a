"""Run folders: identity, blocks of seeds, and what survives what."""

import errno
import io
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from kondo import runs
from kondo.cell import SCHEMA, parse
from kondo.engine import Engine
from kondo.ledger import TIMED
from kondo.runs import Block, RunBusy, Stop, blocks, finished, read_status, train
from kondo.schema import ConfigError
from tests.conftest import cell

BLOCK = Block(
    cell("dgk", {"rate": 0.2, "history": 60}, friction={"staleness": {"delay": 9}}, steps=200, evals=30), (0, 1)
)


def log_of(folder: Path) -> list[dict]:
    """The log less its timing columns, which are the machine's."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    assert train(BLOCK, root) == "done"
    return log_of(BLOCK.folder(root))


def test_a_finished_run_has_a_full_log_a_status_with_provenance_and_no_checkpoint(tmp_path, undisturbed):
    train(BLOCK, tmp_path, checkpoint_seconds=0)
    folder = BLOCK.folder(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "config.yaml", "metrics.jsonl", "status.json"]
    status = read_status(folder)
    assert status["status"] == "done"
    assert {"commit", "versions", "machine", "started", "ended"} <= set(status)
    rows = log_of(folder)
    assert rows == undisturbed
    assert [row["seed"] for row in rows[:4]] == [0, 1, 0, 1]
    assert rows[-1]["step"] == 200


def test_the_saved_config_parses_back_to_the_same_cell(tmp_path):
    train(BLOCK, tmp_path)
    saved = yaml.safe_load((BLOCK.folder(tmp_path) / "config.yaml").read_text())
    assert saved.pop("seeds") == [0, 1]
    assert parse(saved).key() == BLOCK.cell.key()


def test_identity_changes_with_every_scientific_setting_and_with_the_seeds_alone():
    base = cell("dgk", {"rate": 0.1})
    others = [
        cell("dgk", {"rate": 0.2}),
        cell("dgk", {"price": 0.1}),
        cell("dg"),
        cell(("dg", {"temperature": 0.5})),
        cell("dgk", {"rate": 0.1}, steps=31),
        cell("dgk", {"rate": 0.1}, task={"arms": 6}),
        cell("dgk", {"rate": 0.1}, friction={"staleness": {"delay": 1}}),
        cell("dgk", {"rate": 0.1}, optimizer={"name": "adam", "lr": 0.02}),
    ]
    assert len({each.key() for each in [base, *others]}) == 9
    assert cell("dgk", {"rate": 0.1}).key() == base.key()
    assert Block(base, (0, 1)).folder(Path()) != Block(base, (0, 1, 2)).folder(Path())


def test_a_complete_run_is_not_trained_again(tmp_path, monkeypatch):
    train(BLOCK, tmp_path)
    before = (BLOCK.folder(tmp_path) / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(Engine, "advance", lambda self: pytest.fail("trained again"))
    assert train(BLOCK, tmp_path) == "done"
    assert (BLOCK.folder(tmp_path) / "metrics.jsonl").read_bytes() == before


def test_more_seeds_add_blocks_and_never_repeat_one(tmp_path):
    chosen = cell("pg", steps=2)
    seeds = lambda n: [block.seeds for block in blocks(chosen, n, 3, tmp_path)]  # noqa: E731
    assert seeds(5) == [(0, 1, 2), (3, 4)]
    for block in blocks(chosen, 5, 3, tmp_path):
        train(block, tmp_path)
    assert seeds(8) == [(0, 1, 2), (3, 4), (5, 6, 7)]
    assert seeds(4) == [(0, 1, 2), (3, 4)]
    train(Block(chosen, (6, 7)), tmp_path)
    assert seeds(9) == [(0, 1, 2), (3, 4), (5,), (6, 7), (8,)]
    assert [block.seeds for block in blocks(chosen, 4, 3, tmp_path, first_seed=6)] == [(6, 7), (8, 9)]


KILLS = 20
KILLED = """
import os, random, signal, sys, time, torch
from pathlib import Path
from kondo.runs import read_status, train
from tests.test_runs import BLOCK, KILLS
torch.set_num_threads(1)
rng, kills, finished = random.Random(0), 0, 0
while kills < KILLS or finished == 0:
    root = Path(sys.argv[1], str(finished))
    while read_status(BLOCK.folder(root)).get("status") != "done":
        life = os.fork()
        if life == 0:
            train(BLOCK, root, checkpoint_seconds=0.01)
            os._exit(0)
        if kills < KILLS:
            time.sleep(rng.uniform(0.01, 0.1))
            os.kill(life, signal.SIGKILL)
        end = os.waitstatus_to_exitcode(os.waitpid(life, 0)[1])
        assert end in (0, -signal.SIGKILL)
        kills += end != 0
    finished += 1
print(kills)
"""


def test_killed_at_random_and_resumed_the_log_is_the_undisturbed_one(tmp_path, undisturbed):
    """kill −9 at random moments; each life begins from the last checkpoint, and once enough were killed the last is
    left alone. On a fast machine a run ends before that: then another one begins."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=True)
    assert int(done.stdout) == KILLS
    logs = [log_of(BLOCK.folder(root)) for root in tmp_path.iterdir()]
    assert logs
    assert all(log == undisturbed for log in logs)


class Interrupted(Exception):
    pass


def interrupt_at(step: int):
    def watch(now, rows):
        if now == step:
            raise Interrupted

    return watch


@pytest.mark.parametrize(
    "damage", ["torn line", "torn checkpoint", "another version", "no checkpoint", "lost log", "rotten log"]
)
def test_damaged_folders_recover_to_the_undisturbed_log(tmp_path, undisturbed, damage, capsys):
    with pytest.raises(Interrupted):
        train(BLOCK, tmp_path, checkpoint_seconds=0, watch=interrupt_at(150))
    folder = BLOCK.folder(tmp_path)
    checkpoint, log = folder / "checkpoint.pt", folder / "metrics.jsonl"
    if damage == "torn line":
        with log.open("a") as file:
            file.write('{"step": 160, "se')
    elif damage == "torn checkpoint":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-500])
    elif damage == "another version":
        state = torch.load(checkpoint, weights_only=True)
        del state["engine"]["ledger"]
        torch.save(state, checkpoint)
    elif damage == "no checkpoint":
        checkpoint.unlink()
    elif damage == "rotten log":
        log.write_bytes(log.read_bytes()[:200] + bytes(10) + log.read_bytes()[210:])
    else:
        log.write_bytes(log.read_bytes()[:100])
    assert train(BLOCK, tmp_path) == "done"
    assert log_of(folder) == undisturbed
    unusable = damage in ("torn checkpoint", "another version", "rotten log")
    assert ("starting over" in capsys.readouterr().err) == unusable


def test_a_run_that_is_told_to_stop_goes_on_from_the_very_step(tmp_path, undisturbed):
    def stop(step, rows):
        if step == 150:
            raise Stop

    with pytest.raises(Stop):
        train(BLOCK, tmp_path, watch=stop)
    steps = []
    assert train(BLOCK, tmp_path, watch=lambda step, rows: steps.append(step)) == "done"
    assert steps[0] == 151
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed


@pytest.mark.parametrize("damage", ["torn log", "no log", "a seed short"])
def test_a_finished_run_whose_log_is_not_whole_is_trained_again(tmp_path, undisturbed, damage):
    train(BLOCK, tmp_path)
    assert finished(BLOCK, tmp_path) == "done"
    log = BLOCK.folder(tmp_path) / "metrics.jsonl"
    if damage == "no log":
        log.unlink()
    else:
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:-1]) + (lines[-1][:-20] if damage == "torn log" else b""))
    assert finished(BLOCK, tmp_path) is None
    assert train(BLOCK, tmp_path) == "done"
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed


def test_a_finished_run_of_another_schema_is_not_complete_and_is_refused(tmp_path):
    train(BLOCK, tmp_path)
    config = BLOCK.folder(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace(f"schema: {SCHEMA}", "schema: 0"))
    assert finished(BLOCK, tmp_path) is None
    with pytest.raises(ConfigError, match="schema=0"):
        train(BLOCK, tmp_path)


def test_checkpoints_that_take_long_are_taken_less_often(tmp_path, monkeypatch):
    saves = []
    monkeypatch.setattr(runs, "_save", lambda *a: (saves.append(1), time.sleep(0.05)))
    begun = time.monotonic()
    train(BLOCK, tmp_path, checkpoint_seconds=0)
    assert 1 <= len(saves) <= 1 + (time.monotonic() - begun) / (20 * 0.05)


def test_a_failed_run_is_recorded_with_its_traceback_and_can_be_tried_again(tmp_path, undisturbed):
    with pytest.raises(Interrupted):
        train(BLOCK, tmp_path, watch=interrupt_at(50))
    status = read_status(BLOCK.folder(tmp_path))
    assert status["status"] == "failed"
    assert "Interrupted" in status["traceback"]
    assert train(BLOCK, tmp_path) == "done"
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed


def test_a_diverged_run_is_recorded_with_its_step_and_is_complete(tmp_path, monkeypatch):
    advance = Engine.advance

    def poisoned(self):
        if self.step == 12:
            self.learner.leaves["bias_1"].data[1] = torch.nan
        advance(self)

    monkeypatch.setattr(Engine, "advance", poisoned)
    chosen = Block(cell("pg"), (0, 1))
    assert train(chosen, tmp_path) == "diverged"
    assert read_status(chosen.folder(tmp_path))["diverged"] == {"1": 12}
    assert log_of(chosen.folder(tmp_path))[-1]["error"] is None
    monkeypatch.setattr(Engine, "advance", lambda self: pytest.fail("trained again"))
    assert train(chosen, tmp_path) == "diverged"


def test_a_run_in_training_is_refused_to_a_second_process(tmp_path):
    def second(step, rows):
        if step == 3:
            with pytest.raises(RunBusy, match="another process"):
                train(BLOCK, tmp_path)

    assert train(BLOCK, tmp_path, watch=second) == "done"


@pytest.mark.parametrize(
    ("config", "reason"),
    [("schema: 1\nsteps: 3\n", "another config"), ("schema: 0\nsteps: 3\n", "schema=0, written by")],
)
def test_a_folder_that_holds_another_config_is_refused(tmp_path, config, reason):
    folder = BLOCK.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    with pytest.raises(ConfigError, match=reason):
        train(BLOCK, tmp_path)
    assert not (folder / "metrics.jsonl").exists()


def test_a_checkpoint_cannot_run_code(tmp_path, undisturbed):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    folder = BLOCK.folder(tmp_path)
    folder.mkdir(parents=True)
    torch.save({"engine": Bomb(), "log_bytes": 0}, folder / "checkpoint.pt")
    assert train(BLOCK, tmp_path) == "done"
    assert not (tmp_path / "exploded").exists()
    assert log_of(folder) == undisturbed


def test_a_half_written_file_never_takes_the_place_of_a_whole_one(tmp_path):
    path = tmp_path / "status.json"
    runs.write_atomically(path, "whole")

    def torn():
        with runs._replacing(path) as file:
            file.write(b"ha")
            raise Interrupted

    with pytest.raises(Interrupted):
        torn()
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


class SmallDisk:
    """Files opened for writing share so many bytes; what does not fit is cut off, as by a disk that is full."""

    def __init__(self, room: int):
        self.room = room

    def open(self, path, mode="r", *rest, **options):
        if mode.strip("b+") == "r":
            return OPEN(path, mode, *rest, **options)
        file = io.BufferedWriter(Limited(path, mode, self))
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")


class Limited(io.FileIO):
    def __init__(self, path, mode, disk):
        super().__init__(path, mode.replace("b", ""))
        self.disk = disk

    def write(self, data):
        if len(data) and self.disk.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(memoryview(data)[: self.disk.room])
        self.disk.room -= written
        return written


OPEN = Path.open


@pytest.mark.parametrize("room", [100, 1_500, 6_000, 12_000, 40_000])
def test_a_full_disk_is_named_and_loses_nothing(tmp_path, undisturbed, monkeypatch, room):
    disk = SmallDisk(room)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *rest, **options: disk.open(path, *rest, **options))
        with pytest.raises(OSError, match="No space left"):
            train(BLOCK, tmp_path, checkpoint_seconds=0)
    assert disk.room == 0
    assert not [path for path in BLOCK.folder(tmp_path).iterdir() if path.name.startswith(".") and path.name != ".lock"]
    assert train(BLOCK, tmp_path) == "done"
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed


def test_clocks_that_jump_change_neither_the_log_nor_the_time_spent(tmp_path, undisturbed, monkeypatch):
    jumps = itertools.cycle([2e9, 0.0, 1e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    assert train(BLOCK, tmp_path, checkpoint_seconds=0) == "done"
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed
    assert 0 < read_status(BLOCK.folder(tmp_path))["seconds"] < 1e6


def test_the_time_spent_adds_up_over_interruptions_and_not_over_the_nights_between(tmp_path):
    with pytest.raises(Interrupted):
        train(BLOCK, tmp_path, checkpoint_seconds=0, watch=interrupt_at(150))
    folder = BLOCK.folder(tmp_path)
    status = read_status(folder)
    (folder / "status.json").write_text(json.dumps(status | {"seconds": 1000.0, "started": status["started"] - 1e6}))
    train(BLOCK, tmp_path)
    assert 1000 < read_status(folder)["seconds"] < 2000
