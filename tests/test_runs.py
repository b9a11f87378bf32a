"""Run folders: identity, blocks of seeds, and what survives what."""

import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from analysis.load import final, load
from kondo.lab import training
from kondo.lab.config.cell import SCHEMA, parse
from kondo.lab.engine import Engine
from kondo.lab.ledger import TIMED
from kondo.lab.process import run
from kondo.lab.records import (
    CHECKPOINT,
    CONFIG,
    LOCK,
    LOG,
    STATUS,
    Damaged,
    RunBusy,
    in_training,
    key_of,
    read_run,
    read_status,
    replacing,
    status_age,
    write_atomically,
    write_status,
)
from kondo.lab.training import Block, Stop, blocks, finished, train
from kondo.schema import ConfigError
from tests.conftest import cell, trained

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
    files = ("config.yaml", "metrics.jsonl")
    assert status["digests"] == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    rows = log_of(folder)
    assert rows == undisturbed
    assert [row["seed"] for row in rows[:4]] == [0, 1, 0, 1]
    assert rows[-1]["step"] == 200


def test_the_saved_config_parses_back_to_the_same_cell(tmp_path):
    chosen = Block(BLOCK.cell, BLOCK.seeds, {"task": "digits", "intensity": 0.25})
    train(chosen, tmp_path)
    saved = yaml.safe_load((chosen.folder(tmp_path) / "config.yaml").read_text())
    assert saved.pop("seeds") == [0, 1]
    assert saved.pop("error") in log_of(chosen.folder(tmp_path))[0]
    assert saved.pop("choices") == {"task": "digits", "intensity": 0.25}
    assert parse(saved).key() == BLOCK.cell.key()
    assert parse(saved).plain() == saved


def test_what_was_asked_for_is_no_part_of_what_a_run_is(tmp_path, monkeypatch):
    asked = Block(BLOCK.cell, BLOCK.seeds, {"friction": "staleness"})
    assert asked == BLOCK
    assert asked.plain() == BLOCK.plain()
    train(asked, tmp_path)
    monkeypatch.setattr(Engine, "advance", lambda self: pytest.fail("trained again"))
    assert train(BLOCK, tmp_path) == "done"
    saved = yaml.safe_load((BLOCK.folder(tmp_path) / "config.yaml").read_text())
    assert saved["choices"] == {"friction": "staleness"}
    assert [block.choices for block in blocks(BLOCK.cell, 5, 3, tmp_path, choices={"a": 1})] == [{"a": 1}] * 2


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


def test_the_key_of_a_cell_does_not_depend_on_the_order_of_its_settings():
    assert key_of({"b": 1, "a": [2]}) == hashlib.sha256(b'{"a": [2], "b": 1}').hexdigest()[:12]
    assert BLOCK.cell.key() == key_of(dict(reversed(BLOCK.cell.plain().items())))


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


@pytest.mark.parametrize("name", ["s0-99999999999", "s-1-3", "s9-0", "s0-3 copy", "s0-999999999", "s0-4"])
def test_a_folder_with_absurd_seeds_gets_a_sentence_and_no_block(tmp_path, capsys, name):
    chosen = cell("pg", steps=2)
    folder = tmp_path / "bandit" / f"{chosen.key()}-{name}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(Block(chosen, (0, 1)).config()))
    assert [block.seeds for block in blocks(chosen, 3, 2, tmp_path)] == [(0, 1), (2,)]
    assert str(folder) in capsys.readouterr().err


KILLS = 20
KILLED = """
import os, random, signal, sys, time, torch
from pathlib import Path
from kondo.lab.records import read_status
from kondo.lab.training import train
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


@pytest.mark.slow
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
    "damage",
    [
        "torn line",
        "torn checkpoint",
        "another version",
        "no checkpoint",
        "lost log",
        "rotten log",
        "changed log",
        "no log",
        "absurd step",
        "no status",
        "rotten status",
    ],
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
    elif damage == "changed log":
        log.write_text(re.sub(r'"entropy": [0-9]', '"entropy": 3', log.read_text(), count=1))
    elif damage == "no log":
        log.unlink()
    elif damage == "absurd step":
        state = torch.load(checkpoint, weights_only=True)
        state["engine"]["step"] = 10**9
        torch.save(state, checkpoint)
    elif damage == "no status":
        (folder / "status.json").unlink()
    elif damage == "rotten status":
        (folder / "status.json").write_text('{"status": ["done"], "seconds": "long", "started": [], "digests": 3}')
    elif damage == "rotten log":
        log.write_bytes(log.read_bytes()[:200] + bytes(10) + log.read_bytes()[210:])
    else:
        log.write_bytes(log.read_bytes()[:100])
    steps = []
    assert train(BLOCK, tmp_path, watch=lambda step, rows: steps.append(step)) == "done"
    assert log_of(folder) == undisturbed
    told = "starting over" in capsys.readouterr().err
    over = damage in ("torn checkpoint", "another version", "lost log", "rotten log", "changed log", "absurd step")
    assert told == over
    assert (steps[0] == 0) == (over or damage in ("no checkpoint", "no log"))
    assert finished(BLOCK, tmp_path) == "done"


@pytest.mark.parametrize("at", [0, 150])
def test_a_run_that_is_told_to_stop_goes_on_from_the_very_step(tmp_path, undisturbed, at):
    def stop(step, rows):
        if step == at:
            raise Stop

    with pytest.raises(Stop):
        train(BLOCK, tmp_path, watch=stop)
    steps = []
    assert train(BLOCK, tmp_path, watch=lambda step, rows: steps.append(step)) == "done"
    assert steps[0] == at + 1
    assert log_of(BLOCK.folder(tmp_path)) == undisturbed


@pytest.mark.parametrize("damage", ["torn log", "no log", "a seed short", "a value", "a row more", "no digests"])
def test_a_finished_run_whose_log_was_changed_is_trained_anew_and_the_changed_log_kept(
    tmp_path, undisturbed, damage, capsys
):
    train(BLOCK, tmp_path)
    assert finished(BLOCK, tmp_path) == "done"
    folder = BLOCK.folder(tmp_path)
    for times in (1, 2):
        log = folder / "metrics.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        if damage == "torn log":
            lines[-1] = lines[-1][:-20]
        elif damage == "a seed short":
            lines.pop()
        elif damage == "a value":
            lines[3] = re.sub(rb'"entropy": [0-9]', b'"entropy": 3', lines[3])
        elif damage == "a row more":
            lines.insert(2, lines[0])
        elif damage == "no digests":
            status = read_status(folder)
            del status["digests"]
            (folder / "status.json").write_text(json.dumps(status))
        changed = b"".join(lines)
        if damage == "no log":
            log.unlink()
        else:
            log.write_bytes(changed)
        assert finished(BLOCK, tmp_path) is None
        assert train(BLOCK, tmp_path) == "done"
        assert log_of(folder) == undisturbed
        assert finished(BLOCK, tmp_path) == "done"
        if damage != "no log":
            assert (folder / f"metrics.damaged-{times}.jsonl").read_bytes() == changed
            assert f"{log}: changed after the run ended" in capsys.readouterr().err


@pytest.mark.parametrize("status", [None, "[1]", "done"])
def test_a_log_of_which_nothing_says_whether_it_is_complete_is_kept(tmp_path, undisturbed, status):
    train(BLOCK, tmp_path)
    folder = BLOCK.folder(tmp_path)
    log = (folder / "metrics.jsonl").read_bytes()
    (folder / "status.json").unlink()
    if status:
        (folder / "status.json").write_text(status)
    assert finished(BLOCK, tmp_path) is None
    assert train(BLOCK, tmp_path) == "done"
    assert (folder / "metrics.damaged-1.jsonl").read_bytes() == log
    assert log_of(folder) == undisturbed


@pytest.mark.parametrize(
    "change",
    ["choices: {a: 1}", "choices: {} # a comment", "error: entropy", "steps: 201", "task: [", "task: " + "[" * 100_000],
)
def test_a_finished_run_whose_config_was_changed_is_refused_and_nothing_of_it_touched(tmp_path, change):
    train(BLOCK, tmp_path)
    folder = BLOCK.folder(tmp_path)
    config = folder / "config.yaml"
    key = change.partition(":")[0]
    config.write_text(re.sub(rf"^{key}.*$", change, config.read_text(), flags=re.M))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert finished(BLOCK, tmp_path) is None
    with pytest.raises(ConfigError, match=str(folder)):
        train(BLOCK, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_whole_run_in_the_folder_of_another_is_refused(tmp_path):
    other = Block(cell("pg", steps=2), BLOCK.seeds)
    train(other, tmp_path)
    other.folder(tmp_path).rename(BLOCK.folder(tmp_path))
    assert finished(BLOCK, tmp_path) is None
    with pytest.raises(ConfigError, match="another config"):
        train(BLOCK, tmp_path)


def test_a_finished_run_that_lost_its_config_gets_it_back(tmp_path, monkeypatch):
    train(BLOCK, tmp_path)
    config = BLOCK.folder(tmp_path) / "config.yaml"
    before = config.read_text()
    config.unlink()
    assert finished(BLOCK, tmp_path) is None
    monkeypatch.setattr(Engine, "advance", lambda self: pytest.fail("trained again"))
    assert train(BLOCK, tmp_path) == "done"
    assert config.read_text() == before


def test_a_file_in_the_place_of_a_run_folder_is_named(tmp_path):
    folder = BLOCK.folder(tmp_path)
    folder.parent.mkdir()
    folder.write_text("")
    assert finished(BLOCK, tmp_path) is None
    assert not in_training(folder)
    with pytest.raises(ConfigError, match=f"{folder}: no folder"):
        train(BLOCK, tmp_path)
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.write_text("")
    with pytest.raises(ConfigError, match=f"{folder}: no folder"):
        train(BLOCK, tmp_path)


@pytest.mark.parametrize("name", [CONFIG, LOG, STATUS, CHECKPOINT, LOCK])
def test_a_folder_in_the_place_of_a_run_s_file_is_named(tmp_path, name):
    folder = BLOCK.folder(tmp_path)
    (folder / name).mkdir(parents=True)
    assert finished(BLOCK, tmp_path) is None
    assert not in_training(folder)
    with pytest.raises(ConfigError, match=f"{folder / name}: no file"):
        train(BLOCK, tmp_path)


def test_without_git_runs_are_trained_and_have_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    training.provenance.cache_clear()
    try:
        assert train(BLOCK, tmp_path) == "done"
    finally:
        training.provenance.cache_clear()
    assert read_status(BLOCK.folder(tmp_path))["commit"] is None


@pytest.mark.slow
def test_without_file_locks_runs_are_refused(tmp_path):
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from pathlib import Path\n"
        "from kondo.lab.training import train\n"
        "from tests.test_runs import BLOCK\n"
        "train(BLOCK, Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
    assert done.stderr.splitlines()[-1] == ("kondo.schema.ConfigError: run folders need POSIX file locks: use WSL")


@pytest.mark.parametrize("moment", [1, 2, 9, 25])
def test_ctrl_c_during_a_checkpoint_is_ctrl_c_and_no_failure(tmp_path, undisturbed, monkeypatch, moment):
    """At one of the writes of a checkpoint, which torch makes a RuntimeError of."""
    count = itertools.count(1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with SIGINT ignored

    class Interrupting(io.FileIO):
        def write(self, data):
            if next(count) == moment:
                signal.raise_signal(signal.SIGINT)
            return super().write(data)

    def opened(path, mode="r", *rest, **options):
        checkpoint = mode == "wb" and path.name.startswith(f".{CHECKPOINT}")
        return Interrupting(path, "w") if checkpoint else OPEN(path, mode, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(KeyboardInterrupt):
            train(BLOCK, tmp_path, checkpoint_seconds=0)
    signal.signal(signal.SIGINT, before)
    folder = BLOCK.folder(tmp_path)
    assert read_status(folder)["status"] == "running"
    assert not [path for path in folder.iterdir() if path.name.startswith(f".{CHECKPOINT}")]
    assert train(BLOCK, tmp_path) == "done"
    assert log_of(folder) == undisturbed


def test_a_finished_run_of_another_schema_is_not_complete_and_is_refused(tmp_path):
    train(BLOCK, tmp_path)
    config = BLOCK.folder(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace(f"schema: {SCHEMA}", "schema: 0"))
    assert finished(BLOCK, tmp_path) is None
    with pytest.raises(ConfigError, match="schema=0"):
        train(BLOCK, tmp_path)


def test_checkpoints_that_take_long_are_taken_less_often(tmp_path, monkeypatch):
    saves = []
    monkeypatch.setattr(training, "_save", lambda *a: (saves.append(1), time.sleep(0.05)))
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
    assert log_of(chosen.folder(tmp_path))[-1][chosen.cell.error] is None
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
    [(f"schema: {SCHEMA}\nsteps: 3\n", "another config"), ("schema: 0\nsteps: 3\n", "schema=0, written by")],
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
    write_atomically(path, "whole")

    def torn():
        with replacing(path) as file:
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


def test_a_status_is_as_old_as_its_file_and_none_is_older_than_any(tmp_path):
    assert status_age(tmp_path) == math.inf
    write_status(tmp_path, {"status": "running"})
    assert -1 < status_age(tmp_path) < 60  # a file system may round its times
    long_ago = time.time() - 1000
    os.utime(tmp_path / STATUS, (long_ago, long_ago))
    assert 999 < status_age(tmp_path) < 1060


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


def test_an_engine_that_is_restored_says_the_same_of_every_seed_and_goes_on_alike():
    """A seed that diverged before, one that did not, and a gate whose price is that of the last step."""
    chosen = cell("dgk", {"rate": 0.2, "history": 60}, steps=60)
    engine = trained(chosen, [0, 1, 2], steps=5)
    bias = engine.learner.leaves["bias_1"].data
    before = bias[1].clone()
    bias[1] = torch.nan
    engine.advance()
    bias[1] = before  # a seed that once diverged stays so, whatever its next batch is like
    for _ in range(6):
        engine.advance()
    buffer = io.BytesIO()
    torch.save(engine.state(), buffer)
    buffer.seek(0)
    again = Engine(chosen, [0, 1, 2])
    again.load(torch.load(buffer, weights_only=True))
    assert engine.diverged() == {1: 5}
    assert engine.evaluate()[0]["price"] is not None
    assert again.evaluate() == engine.evaluate()
    assert again.diverged() == engine.diverged()
    for _ in range(5):
        engine.advance()
        again.advance()
    untimed = [[{k: v for k, v in row.items() if k not in TIMED} for row in e.evaluate()] for e in (engine, again)]
    assert untimed[0] == untimed[1]


# Ending where it was solved


def until(error: float | None, seeds: tuple[int, ...] = (0, 1, 2)) -> Block:
    return Block(cell("pg", None, steps=200, evals=30, until=error), seeds)


def test_a_run_ends_at_the_first_evaluation_that_finds_every_seed_solved_and_its_log_is_the_beginning_of_the_whole(
    tmp_path,
):
    train(until(None), tmp_path)
    whole = log_of(until(None).folder(tmp_path))
    error = until(None).cell.error
    errors = {step: [row[error] for row in rows] for step, rows in itertools.groupby(whole, lambda row: row["step"])}
    goal = 0.9 * max(errors[0])
    first = next(step for step, each in errors.items() if max(each) <= goal)
    assert any(min(each) <= goal for step, each in errors.items() if step < first), "one seed alone does not end it"
    assert 0 < first < 200
    block = until(goal)
    assert train(block, tmp_path) == finished(block, tmp_path) == "done"
    log = log_of(block.folder(tmp_path))
    assert log == [row for row in whole if row["step"] <= first]
    rows = run(block.cell, 3)
    assert [{name: value for name, value in row.items() if name not in TIMED} for row in rows] == log
    read = read_run(block.folder(tmp_path))
    assert read is not None
    assert read.end == first
    ends = final(load(tmp_path))
    assert dict(ends.groupby("cell")["step"].unique().map(list)) == {block.cell.key(): [first], whole_key(): [200]}


def whole_key() -> str:
    """The key that the cell has where nothing is said of an end."""
    plain = cell("pg", None, steps=200, evals=30).plain()
    assert "until" not in plain
    return key_of(plain)


def test_a_run_that_was_stopped_as_it_was_solved_ends_there_when_it_goes_on(tmp_path):
    block = until(1.0)  # solved before the first step

    def watch(step, rows):
        raise Stop

    with pytest.raises(Stop):
        train(block, tmp_path, watch=watch)
    assert train(block, tmp_path) == "done"
    assert {row["step"] for row in log_of(block.folder(tmp_path))} == {0}


def test_what_is_never_solved_is_trained_to_its_end(tmp_path):
    block = until(0.0)
    train(block, tmp_path)
    assert read_run(block.folder(tmp_path)).end == 200


def test_a_log_that_ends_before_it_was_solved_is_not_whole(tmp_path):
    block = until(0.0)
    train(block, tmp_path)
    folder = block.folder(tmp_path)
    lines = [line for line in (folder / LOG).read_text().splitlines() if json.loads(line)["step"] < 200]
    (folder / LOG).write_text("\n".join(lines) + "\n")
    status, now = read_status(folder), hashlib.sha256((folder / LOG).read_bytes()).hexdigest()
    write_status(folder, status | {"digests": status["digests"] | {LOG: now}})
    with pytest.raises(Damaged, match="not the whole log"):
        read_run(folder)


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.5, "until=1.5: out of range; allowed: [0, 1]"), ("soon", "until='soon': expected float or null")],
)
def test_an_end_that_no_error_can_be_is_refused(value, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        cell("pg", None, until=value)


def test_a_study_has_no_error_to_end_at():
    with pytest.raises(ConfigError, match=r"until=0\.5: needs"):
        parse({"task": {"name": "gambling"}, "method": {"name": "dgk"}, "steps": 1, "until": 0.5})
