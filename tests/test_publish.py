"""What is published, that it reads like the run folders it was made of, and what is refused."""

import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import draw, load, report, tables
from experiments import publish as command
from experiments import runs as listing
from experiments import verify
from kondo.lab.config.cell import SCHEMA, parse
from kondo.lab.records import (
    BESIDE,
    Damaged,
    Plan,
    Refused,
    archive,
    publication,
    publish,
    read_experiment,
    read_plan,
    read_plans,
    read_run,
    read_runs,
    run_folders,
    write_plan,
)
from kondo.lab.training import Block, train
from kondo.schema import Unavailable
from tests.conftest import cell

ROOT = Path(__file__).parent.parent
FIRST, SECOND = "bandit_pareto", "mnist_pareto"
CELLS = [cell("pg"), cell("dg"), cell("dgk", {"rate": 0.1}), cell("dgk", {"rate": 0.2})]
SHARED = CELLS[1].key()
PLANNED = {FIRST: CELLS[:3], SECOND: CELLS[1:2] + CELLS[3:]}
"""Two experiments that share a cell."""


def plan_cells(root: Path, name: str, cells, **changes) -> None:
    named = {each.key(): {"name": f"cell {CELLS.index(each)}", "choices": {"task": "bandit"}} for each in cells}
    words = f"make reproduce FIGURES={name} SCALE=paper RUNS='{root}' OVERRIDES=seeds=4"
    plan = Plan(figure=name, scale="paper", command=words, cells=named, seeds=4, schema=SCHEMA)
    write_plan(root, replace(plan, **changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "my runs"
    for each in CELLS:
        for seeds in ((0, 1), (2, 3)):
            train(Block(each, seeds, {"method": each.method}), root)
    for name, cells in PLANNED.items():
        plan_cells(root, name, cells)
    return root


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs"))


def published(root: Path, out: Path, *names: str) -> Path:
    publish(out, {name: read_experiment(root, "paper", name) for name in names})
    return out


@pytest.fixture
def results(made, tmp_path):
    return published(made, tmp_path / "results", FIRST, SECOND)


def manifest_of(results: Path) -> dict:
    return json.loads((results / "manifest.json").read_text())["experiments"]


def folder_of(root: Path, each=CELLS[0], seeds=(0, 1)) -> Path:
    return Block(each, seeds).folder(root)


# What is published reads as what it was made of


@pytest.mark.parametrize("name", PLANNED)
def test_frames_from_results_are_those_from_runs(made, results, name):
    expected, _ = load.read_figure(made, "paper", name)
    frame, damaged = load.read_figure(results, "paper", name)
    pd.testing.assert_frame_equal(frame, expected)
    assert len(frame) == 4 * len(PLANNED[name]) * frame["step"].nunique()
    assert damaged == []
    assert load.read_figure(results, "smoke", name)[0].empty


def test_whatever_reads_runs_reads_results(made, results, capsys):
    pd.testing.assert_frame_equal(load.load(results), load.load(made))
    assert [plan.figure for plan in read_plans(results)] == sorted(PLANNED)
    assert [path.name for path in run_folders(results)] == [path.name for path in run_folders(made)]
    assert read_plan(results, "paper", FIRST).cells == read_plan(made, "paper", FIRST).cells
    source, other = (report.Source("", folder, "paper", folder) for folder in (results, made))
    assert report._provenance(source) == report._provenance(other)
    assert report._gaps(source, source.plan(FIRST)) == []
    assert listing.main(["show", SHARED, "--runs", str(results)]) == 0
    assert "name: dg" in capsys.readouterr().out
    assert listing.main(["list", "--runs", str(results)]) == 0
    assert "8 runs" in capsys.readouterr().out


def test_config_and_log_are_published_verbatim(made, results):
    files = archive.opened(results / f"{FIRST}.tar.xz")
    for name in ("config.yaml", "metrics.jsonl", "status.json"):
        assert files[f"bandit/{folder_of(made).name}/{name}"] == (folder_of(made) / name).read_bytes()


def test_the_same_runs_give_the_same_bytes_in_whatever_order_they_are_published(made, results, tmp_path):
    published(made, tmp_path / "again", SECOND)
    assert set(manifest_of(tmp_path / "again")) == {SECOND}
    published(made, tmp_path / "again", FIRST)
    assert sorted(path.name for path in results.iterdir()) == [f"{FIRST}.tar.xz", "manifest.json", f"{SECOND}.tar.xz"]
    for path in results.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_an_archive_tells_neither_when_nor_who(results):
    with tarfile.open(results / f"{FIRST}.tar.xz") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in members} == {(0, 0, 0, "", "")}


def test_a_run_that_two_experiments_share_is_stored_once(results):
    held = {name: set(archive.opened(results / f"{name}.tar.xz")) for name in PLANNED}
    assert sum(SHARED in file for file in held[FIRST]) == 2 * 3
    assert not any(SHARED in file for file in held[SECOND])
    for name in PLANNED:
        assert set(manifest_of(results)[name]["cells"][SHARED]["runs"].values()) == {f"{FIRST}.tar.xz"}


def test_publishing_anew_keeps_the_others_and_moves_what_they_share(root, results):
    before = load.read_figure(results, "paper", SECOND)[0]
    plan_cells(root, FIRST, CELLS[:1])
    published(root, results, FIRST)
    assert set(manifest_of(results)[SECOND]["cells"][SHARED]["runs"].values()) == {f"{SECOND}.tar.xz"}
    pd.testing.assert_frame_equal(load.read_figure(results, "paper", SECOND)[0], before)
    assert set(load.read_figure(results, "paper", FIRST)[0]["cell"]) == {CELLS[0].key()}


def test_publishing_fewer_seeds_of_a_shared_run_is_refused(root, results):
    plan_cells(root, FIRST, PLANNED[FIRST], seeds=2)
    for each in CELLS:
        shutil.rmtree(folder_of(root, each, (2, 3)))
    before = (results / "manifest.json").read_bytes()
    with pytest.raises(Refused, match=rf"{SECOND}: 1 of 2 cells are not finished: cell 1 \(2 of 4 seeds\)"):
        published(root, results, FIRST)
    assert (results / "manifest.json").read_bytes() == before


def test_the_manifest_says_what_was_published_and_what_it_cost(made, results):
    entry = manifest_of(results)[FIRST]
    content = (results / entry["archive"]).read_bytes()
    assert (entry["sha256"], entry["bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert (entry["scale"], entry["seeds"], entry["steps"]) == ("paper", 4, [30])
    frame = load.final(load.load(made, [SHARED]))
    told = entry["cells"][SHARED]
    assert (told["name"], told["seeds"], told["status"]) == ("cell 1", 4, "done")
    assert told["seconds"]["rollout"] == pytest.approx(frame["seconds_rollout"].sum(), abs=1e-3)
    statuses = [json.loads((folder / "status.json").read_text()) for folder in run_folders(made, [SHARED])]
    assert told["seconds"]["total"] == pytest.approx(sum(status["seconds"] for status in statuses), abs=1e-3)
    assert entry["commits"] == [str(statuses[0]["commit"])]
    assert entry["machines"] == [statuses[0]["machine"]]
    assert entry["versions"] == [statuses[0]["versions"]]
    text = (results / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_nothing_published_tells_whose_machine_it_was(root, tmp_path):
    path = folder_of(root) / "status.json"
    status = json.loads(path.read_text())
    status |= {"machine": status["machine"] | {"hostname": "secret"}, "reason": "/home/secret"}
    path.write_text(json.dumps(status))
    out = published(root, tmp_path / "out", FIRST)
    held = archive.opened(out / f"{FIRST}.tar.xz")
    everything = b"".join(held.values()) + (out / "manifest.json").read_bytes()
    assert b"secret" not in everything
    assert str(root).encode() not in everything
    assert manifest_of(out)[FIRST]["command"] == f"make reproduce FIGURES={FIRST} SCALE=paper OVERRIDES=seeds=4"


# What is damaged or foreign


def sign(results: Path, content: bytes, name: str = FIRST) -> None:
    """Make the manifest that of what is there, as someone would who wants it to be read."""
    (results / f"{name}.tar.xz").write_bytes(content)
    manifest = json.loads((results / "manifest.json").read_text())
    manifest["experiments"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    (results / "manifest.json").write_text(json.dumps(manifest))


def with_member(**attributes):
    """An archive with one more member, signed."""

    def damage(results: Path) -> None:
        plain = io.BytesIO(lzma.decompress((results / f"{FIRST}.tar.xz").read_bytes()))
        with tarfile.open(fileobj=plain, mode="a") as tar:
            member = tarfile.TarInfo()
            content = attributes.pop("content", b"")
            member.size = len(content)
            for name, value in attributes.items():
                setattr(member, name, value)
            tar.addfile(member, io.BytesIO(content))
        sign(results, lzma.compress(plain.getvalue()))

    return damage


def changed(change, signed: bool):
    def damage(results: Path) -> None:
        path = results / f"{FIRST}.tar.xz"
        content = change(path.read_bytes())
        sign(results, content) if signed else path.write_bytes(content)

    return damage


def without_a_file(packed: bytes) -> bytes:
    files = archive.unpacked(packed)
    files.pop(next(name for name in files if name.endswith("status.json")))
    return archive.packed(files)


def linked(results: Path) -> None:
    path = results / f"{FIRST}.tar.xz"
    path.symlink_to(path.rename(results / "elsewhere"))


NAMED = f"bandit/{CELLS[0].key()}-s0-1/config.yaml"
DAMAGE = {
    "a byte changed": (changed(lambda x: x[:100] + bytes([x[100] ^ 1]) + x[101:], False), "sha256"),
    "truncated": (changed(lambda x: x[:-100], False), "sha256"),
    "truncated and signed": (changed(lambda x: x[: len(x) // 2], True), "truncated|not xz"),
    "not xz": (changed(lambda x: b"PK\x03\x04" + x, True), "not xz"),
    "something behind": (changed(lambda x: x + b"\0" * 8, True), "something follows"),
    "no tar": (changed(lambda x: lzma.compress(b"hello" * 1000), True), "no archive that can be read"),
    "empty": (changed(lambda x: b"", True), "truncated"),
    "a file missing": (changed(without_a_file, True), "status.json' is missing"),
    "outside": (with_member(name="../../evil.py", content=b"x"), "'../../evil.py' is no name"),
    "absolute": (with_member(name="/etc/evil", content=b"x"), "'/etc/evil' is no name"),
    "code": (with_member(name="bandit/evil.py", content=b"x"), "'bandit/evil.py' is no name"),
    "a link": (with_member(name=NAMED, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is no plain file"),
    "a hard link": (with_member(name=NAMED, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is no plain file"),
    "a folder": (with_member(name="bandit", type=tarfile.DIRTYPE), "'bandit' is no plain file"),
    "a device": (with_member(name="bandit/null", type=tarfile.CHRTYPE), "is no plain file"),
    "twice": (with_member(name=NAMED), "there twice"),
    "a foreign run": (with_member(name="bandit/0123456789ab-s0-1/config.yaml"), "manifest.json does not list"),
    "a link to it": (linked, "a link"),
    "gone": (lambda results: (results / f"{FIRST}.tar.xz").unlink(), "cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_archive_is_refused_by_name_and_the_others_are_read(results, tmp_path, kind, monkeypatch, capsys):
    damage, reason = DAMAGE[kind]
    expected = load.read_figure(results, "paper", SECOND)[0]
    before = set(tmp_path.rglob("*"))
    damage(results)
    with pytest.raises(Damaged, match=rf"{results / FIRST}.tar.xz: .*({reason})"):
        archive.opened(results / f"{FIRST}.tar.xz")
    frame, (sentence,) = load.read_figure(results, "paper", SECOND)
    assert f"{FIRST}.tar.xz: " in sentence
    columns = ["cell", "seed", "step", "error", "backward"]
    sound = expected.loc[expected["cell"] != SHARED, columns]
    pd.testing.assert_frame_equal(frame[columns].reset_index(drop=True), sound.reset_index(drop=True))
    assert load.read_figure(results, "paper", FIRST)[0].empty
    assert f"{FIRST}.tar.xz: " in capsys.readouterr().err
    words = ["--runs", str(results), "--scale", "paper", "--out", str(tmp_path / "report")]
    monkeypatch.setattr(report, "draw_missing", lambda sources: None)
    assert report.main(words) == 0
    assert f"{FIRST}.tar.xz: " in (tmp_path / "report" / "index.html").read_text()
    added = {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before}
    assert added <= {"report", "results"}


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("LARGEST_ARCHIVE", "too large, "), ("LARGEST_FILE", "is too large"), ("LARGEST_UNPACKED", "when unpacked")],
)
def test_what_is_too_large_is_refused(results, monkeypatch, limit, reason):
    monkeypatch.setattr(archive, limit, 3000)
    monkeypatch.setattr(archive, "_manifest", archive._manifest.__wrapped__ if limit != "LARGEST_FILE" else read_whole)
    archive._opened.cache_clear()
    with pytest.raises(Damaged, match=reason):
        archive.opened(results / f"{FIRST}.tar.xz")
    archive._opened.cache_clear()


def read_whole(path: Path, changed: int, size: int) -> dict:
    return json.loads(path.read_text())["experiments"]


def edited(change):
    def damage(text: str) -> str:
        manifest = json.loads(text)
        change(manifest["experiments"])
        return json.dumps(manifest)

    return damage


MANIFESTS = {
    "no JSON": lambda text: text[:-30],
    "a list": lambda text: "[]",
    "nothing": lambda text: "",
    "deep": lambda text: "[" * 100_000,
    "no digest": edited(lambda entries: entries[FIRST].pop("sha256")),
    "a scale that is a path": edited(lambda entries: entries[FIRST].update(scale="../..")),
    "an experiment that is a path": edited(lambda entries: entries.update({"../x": entries[FIRST]})),
    "a run that is a path": edited(
        lambda entries: entries[FIRST]["cells"][SHARED]["runs"].update({"../../x": f"{FIRST}.tar.xz"})
    ),
    "an archive elsewhere": edited(
        lambda entries: entries[FIRST]["cells"][SHARED]["runs"].update(
            dict.fromkeys(entries[FIRST]["cells"][SHARED]["runs"], "../x.tar.xz")
        )
    ),
    "cells that are none": edited(lambda entries: entries[FIRST].update(cells=[1])),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_damaged_manifest_is_told_by_name_and_crashes_nothing(results, kind, capsys, tmp_path):
    path = results / "manifest.json"
    path.write_text(MANIFESTS[kind](path.read_text()))
    assert load.read_figure(results, "paper", FIRST)[0].empty
    assert read_runs(results) == ([], [])
    assert f"{path}: no manifest" in capsys.readouterr().err
    assert report.main(["--runs", str(results), "--out", str(tmp_path / "report")]) == 0
    with pytest.raises(Damaged, match="no manifest"):
        archive.opened(results / f"{FIRST}.tar.xz")


def test_an_archive_that_is_changed_while_it_is_read_from_is_read_anew(root, results):
    assert len(read_runs(results)[0]) == 8
    changed(lambda content: content[:-10], False)(results)
    assert len(read_runs(results)[0]) == 2


def test_an_archive_is_opened_once(results, monkeypatch):
    opened = []
    monkeypatch.setattr(archive, "unpacked", lambda packed, real=archive.unpacked: opened.append(1) or real(packed))
    load.load(results)
    load.read_figure(results, "paper", FIRST)
    assert len(opened) == len(PLANNED)


# Who may be published


def needed(*cells):
    """What this code plans, in the place of composing it."""
    jobs = [SimpleNamespace(cell=each, name=f"cell {CELLS.index(each)}") for each in cells]
    return lambda name, scale, overrides: jobs


def told(root: Path, out: Path, capsys, *names: str) -> tuple[int, str]:
    code = command.main([*names, "--runs", str(root), "--out", str(out)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_a_whole_experiment_is_published_with_its_size(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "needed_now", needed(*PLANNED[FIRST]))
    code, words = told(root, tmp_path / "out", capsys, FIRST)
    total = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert code == 0
    assert f"3 cells, {(tmp_path / 'out' / f'{FIRST}.tar.xz').stat().st_size:,} bytes" in words
    assert f"1 experiments, 6 runs, {total:,} bytes" in words


def lose(root: Path) -> None:
    shutil.rmtree(folder_of(root))


def interrupt(root: Path) -> None:
    path = folder_of(root) / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running"}))


def tamper(root: Path) -> None:
    path = folder_of(root) / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 30', '"step": 31'))


UNFIT = {
    "lost": (lose, r"1 of 3 cells are not finished: cell 0 \(2 of 4 seeds\)"),
    "in training": (interrupt, r"1 of 3 cells are not finished: cell 0 \(2 of 4 seeds\)"),
    "damaged": (tamper, f"{CELLS[0].key()}-s0-1: metrics.jsonl was changed"),
    "no plan": (lambda root: (root / "plans/paper" / f"{FIRST}.json").unlink(), "no plan at paper scale"),
    "another schema": (lambda root: plan_cells(root, FIRST, PLANNED[FIRST], schema=1), "3 of 3 cells are not finished"),
    "a cell too many": (
        lambda root: plan_cells(root, FIRST, CELLS),
        "1 cells differ .*not planned by this code: cell 3",
    ),
    "a cell to climb to": (
        lambda root: plan_cells(root, FIRST, CELLS[:2]),
        "1 cells differ .*still to be climbed: cell 2",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_experiment_that_is_not_whole_or_not_this_code_s_is_refused(root, results, kind, monkeypatch, capsys):
    change, reason = UNFIT[kind]
    change(root)
    before = {path: path.read_bytes() for path in results.iterdir()}
    monkeypatch.setattr(command, "needed_now", needed(*PLANNED[FIRST]))
    code, words = told(root, results, capsys, FIRST)
    assert code == 1
    assert words.startswith("error: ")
    assert pd.Series([words]).str.contains(reason).all(), words
    assert {path: path.read_bytes() for path in results.iterdir()} == before


def test_a_results_folder_that_grew_too_large_is_refused(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "needed_now", needed(*PLANNED[FIRST]))
    monkeypatch.setattr(publication, "LARGEST", 5000)
    code, words = told(root, tmp_path / "out", capsys, FIRST)
    assert (code, (tmp_path / "out").exists()) == (1, False)
    assert "5,000 is the most" in words


def test_an_experiment_trained_with_this_code_can_be_published_and_one_trained_otherwise_cannot(tmp_path, capsys):
    from experiments.plans import plan
    from experiments.train import train_block

    name, overrides = "gate_coefficient", [f"runs={tmp_path / 'runs'}", "wandb.mode=disabled"]
    for job in plan(name, "smoke", overrides):
        for block in job.blocks():
            train_block(job, block, lambda step, rows: None)
    words = [name, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--scale", "smoke"]
    assert command.main(words) == 0
    for job in plan(name, "smoke", [*overrides, "evals=4"]):
        for block in job.blocks():
            train_block(job, block, lambda step, rows: None)
    assert command.main(words) == 1
    assert "cells differ from this code's at smoke scale" in capsys.readouterr().err
    assert command.main(["gate_coeficient", "--out", str(tmp_path / "out")]) == 1
    assert "gate_coefficient" in capsys.readouterr().err


# Which logs are read


def test_runs_are_read_where_there_are_any_and_published_results_otherwise(results, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert load.which_logs(None, None) == (Path("results"), "paper")
    assert load.which_logs(None, "paper") == (Path("results"), "paper")
    assert load.which_logs(None, "laptop") == (Path("runs"), "laptop")
    assert load.which_logs(Path("results"), None) == (Path("results"), "paper")
    plan_cells(Path("runs"), FIRST, CELLS, scale="laptop")
    assert load.which_logs(None, None) == (Path("runs"), "laptop")
    assert load.which_logs(None, "paper") == (Path("results"), "paper")
    plan_cells(Path("runs"), FIRST, CELLS)
    assert load.which_logs(None, "paper") == (Path("runs"), "paper")
    shutil.rmtree("runs")
    assert draw.figures_by_scale(Path("results")) == {"paper": sorted(PLANNED)}
    assert draw.main([FIRST]) == 0
    assert capsys.readouterr().out.startswith("logs: results\n")


def test_a_published_experiment_is_drawn_at_the_scale_that_it_was_published_at(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan_cells(root, SECOND, PLANNED[SECOND], scale="laptop")
    publish(tmp_path / "results", {FIRST: read_experiment(root, "paper", FIRST)})
    publish(tmp_path / "results", {SECOND: read_experiment(root, "laptop", SECOND)})
    words = ["--runs", "results", "--formats", "png"]
    assert draw.main(words) == 0
    drawn = {str(path) for path in Path("figures").glob("*/*.png")}
    assert drawn == {f"figures/paper/{FIRST}.png", f"figures/laptop/{SECOND}.png"}
    assert draw.main([*words, "--scale", "paper", SECOND]) == 1
    assert f"{SECOND}: not in results at paper scale" in capsys.readouterr().out


def test_published_figures_are_drawn_without_torch_and_the_same_twice(results, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from analysis import draw, report;"
        "code = draw.main(['--out', sys.argv[2]]) or report.main([]);"
        "sys.exit(code or any(m in sys.modules for m in ('torch', 'hydra', 'wandb')))"
    )
    drawn = []
    for out in ("one", "two"):
        words = [sys.executable, "-c", code, str(ROOT), out]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True)
        drawn.append({path.name: path.read_bytes() for path in (tmp_path / out).iterdir()})
    assert drawn[0] == drawn[1]
    assert {f"{FIRST}.png", f"{SECOND}.svg"} <= set(drawn[0])


# Retraining what was published


def rewritten(results: Path, change, name: str = FIRST) -> None:
    """Change what an archive holds, and fix up every digest, so that only retraining can tell."""
    files = dict(archive.opened(results / f"{name}.tar.xz"))
    for path in [path for path in files if path.endswith("status.json")]:
        run = path.removesuffix("status.json")
        status = json.loads(files[path])
        files[f"{run}metrics.jsonl"] = change(run, files[f"{run}metrics.jsonl"].decode(), status).encode()
        status["digests"]["metrics.jsonl"] = hashlib.sha256(files[f"{run}metrics.jsonl"]).hexdigest()
        files[path] = json.dumps(status).encode()
    sign(results, archive.packed(files), name)


def set_error(value: float):
    """A log whose last row has another error."""

    def change(run: str, log: str, status: dict) -> str:
        *lines, last = log.splitlines()
        row = json.loads(last)
        error = "error" if "error" in row else next(name for name in row if name.endswith("error"))
        return "".join(line + "\n" for line in [*lines, json.dumps(row | {error: row[error] + value})])

    return change


def test_what_was_published_here_comes_out_the_same(results, capsys):
    assert verify.main(["--results", str(results), "--number", "3", "--seed", "1"]) == 0
    words = capsys.readouterr().out
    assert words.count(": identical, ") == 3
    assert "3 of 3 came out as published" in words


def test_a_changed_value_is_found_by_retraining_whatever_the_digests_say(results, capsys):
    rewritten(results, set_error(1e-9))
    assert read_runs(results)[1] == []
    assert verify.main(["--results", str(results)]) == 1
    words = capsys.readouterr().out
    assert words.count("MISMATCH: ") == 6
    assert words.count("same: ") == 2
    assert "differs on the same machine with the same versions: step 30, seed 1: " in words


def test_other_seconds_are_no_mismatch(results):
    rewritten(results, lambda run, log, status: log.replace('"seconds_rollout": ', '"seconds_rollout": 1'))
    assert verify.main(["--results", str(results), "--number", "8"]) == 0


def elsewhere(change):
    """As if it had been trained on another CPU."""

    def both(run: str, log: str, status: dict) -> str:
        status["machine"]["cpu"] = "another"
        return change(run, log, status)

    return both


def test_elsewhere_final_errors_must_be_inside_the_prediction_interval(results, capsys):
    rewritten(results, elsewhere(set_error(1e-9)))
    assert verify.main(["--results", str(results)]) == 0
    words = capsys.readouterr().out
    assert words.count("2 of 2 final values inside the prediction interval") == 6
    assert "other cpu, or not known" in words

    def all_lower(run: str, log: str, status: dict) -> str:
        rows = [json.loads(line) for line in log.splitlines()]
        error = "error" if "error" in rows[0] else next(name for name in rows[0] if name.endswith("error"))
        return "".join(json.dumps(row | {error: row[error] * 1e-3}) + "\n" for row in rows)

    rewritten(results, elsewhere(all_lower))
    assert verify.main(["--results", str(results)]) == 1
    assert "MISMATCH: " in capsys.readouterr().out


def test_the_prediction_interval_covers_one_more_value_as_often_as_it_says():
    drawn = np.random.default_rng(0).normal(3.0, 2.0, (4000, 6))
    far = np.array([verify.deviations(row[:5, None], row[5:, None], 0.95).item() for row in drawn])
    assert np.mean(far <= 1) == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / 4000))
    sample = drawn[0, :5]
    half = stats.t.ppf(0.975, 4) * sample.std(ddof=1) * np.sqrt(1.2)
    assert verify.deviations(sample[:, None], np.array([[sample.mean() + 0.999 * half]]), 0.95) < 1
    assert verify.deviations(sample[:, None], np.array([[sample.mean() + 1.001 * half]]), 0.95) > 1


def test_samples_are_seeded_and_minutes_take_the_cheapest(results):
    runs = read_runs(results)[0]
    drawn = verify.chosen(runs, 3, None, 1)
    assert [run.name for run in drawn] == [run.name for run in verify.chosen(runs, 3, None, 1)]
    assert len({tuple(run.name for run in verify.chosen(runs, 3, None, seed)) for seed in range(5)}) > 1
    timed = [replace(run, status=dict(run.status) | {"seconds": 60.0 * (8 - i)}) for i, run in enumerate(runs)]
    assert [run.status["seconds"] for run in verify.chosen(timed, None, 7, 1)] == [60, 120, 180]
    assert len(verify.chosen(timed, 2, 100, 1)) == 2
    assert verify.chosen(timed, None, 0.5, 1) == []


def test_a_cell_that_this_code_no_longer_has_is_a_mismatch(results, monkeypatch, capsys):
    monkeypatch.setattr(verify, "parse", lambda plain: CELLS[0])
    assert verify.main(["--results", str(results), "--number", "8"]) == 1
    assert "cannot be trained again: this code calls the same settings" in capsys.readouterr().out


def test_runs_whose_packages_are_not_installed_are_left_out_and_told(results, monkeypatch, capsys):
    class Lacking:
        def available(self):
            raise Unavailable("needs a package; pip install it")

    def asked(run):
        cell = parse({key: value for key, value in run.config.items() if key not in BESIDE})
        return replace(cell, task=Lacking()) if cell.method == "pg" else cell

    lacking = [run for run in read_runs(results)[0] if asked(run).method == "pg"]
    monkeypatch.setattr(verify, "asked", asked)
    assert verify.main(["--results", str(results), "--number", "100"]) == 0
    said = capsys.readouterr().out
    assert f"{len(lacking)} runs left out: needs a package; pip install it" in said
    every = len(read_runs(results)[0]) - len(lacking)
    assert every > 0 < len(lacking)
    assert f"{every} of {every} came out as published" in said


@pytest.mark.slow
def test_a_published_asynchronous_run_is_verified_by_its_replay():
    runs = [
        run
        for run in read_runs(ROOT / "results")[0]
        if run.config.get("actor", {}).get("mode") == "async" and run.config["task"]["name"] == "reversal"
    ]
    cheapest = min(runs, key=lambda run: (len(run.config["seeds"]) * run.config["steps"], run.status["seconds"]))
    anew = verify.retrained(cheapest, ROOT / "data")
    assert verify.compare(cheapest, anew, [cheapest], 1).holds or verify.other_place(cheapest.status)
    assert "schedule" in anew.config["actor"]


def test_kernels_are_switched_as_a_run_s_record_says_and_seconds_of_shared_answers_are_left_out(tmp_path, monkeypatch):
    small = {"name": "reversal", "length": 4, "width": 16, "prompts": 2, "evaluated": 20}
    plain = {"task": small, "method": {"name": "dg"}, "gate": None, "steps": 8, "evals": 3}
    block = Block(parse(plain), (0, 1))
    seconds, logs = [], []
    for switch in ("on", "shared"):
        monkeypatch.setenv("KONDO_KERNELS", switch)
        verify.provenance.cache_clear()
        train(block, tmp_path / switch)
        run = read_run(block.folder(tmp_path / switch))
        monkeypatch.setenv("KONDO_KERNELS", "off")
        anew = verify.retrained(run, tmp_path)
        assert anew.status["versions"]["kernels"] == run.status["versions"]["kernels"] == switch
        assert verify.difference(run, anew) is None
        seconds.append(tables.seconds(load.frame_of([run])))
        logs.append([verify.without_seconds(row) for row in run.rows])
    assert (seconds[0][2:] > 0).all()
    assert seconds[1].isna().all()
    assert logs[0] != logs[1], "rounding tells them apart"
