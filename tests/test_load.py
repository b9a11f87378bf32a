"""What is read, drawn and reported of run folders, and what becomes of those that are not what they should be."""

import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis import draw, judge, report
from analysis.experiments import experiments
from analysis.load import load, load_figure, read_figure
from experiments import runs
from kondo.lab.config.cell import SCHEMA
from kondo.lab.records import (
    CONFIG,
    LOG,
    STATUS,
    Damaged,
    checked_run,
    composed_path,
    parse_status,
    plan_path,
    read_plan,
    read_plans,
    read_run,
    read_runs,
)
from kondo.lab.training import Block, train
from tests.conftest import cell

FIGURE = "bandit_pareto"
CELLS = [cell("pg"), cell("dg"), cell("dgk", {"rate": 0.1}), cell("dgk", {"rate": 0.2})]
DAMAGED = Block(CELLS[0], (0, 1))
METRIC = CELLS[0].error


def write_plan(root: Path, **changes) -> Path:
    choices = [{"method": "pg", "task": "bandit"}, {"method": "dg", "intensity": 0.25}, {}, {"friction": ["a", "b"]}]
    cells = {each.key(): {"name": f"cell {i}", "choices": choices[i]} for i, each in enumerate(CELLS)}
    plan = {"figure": FIGURE, "scale": "smoke", "command": "make", "cells": cells, "seeds": 2, "schema": SCHEMA}
    path = plan_path(root, "smoke", FIGURE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan | changes))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "runs"
    for each in CELLS:
        train(Block(each, (0, 1), {"method": each.method}), root)
    write_plan(root)
    return root


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs"))


def sign(folder: Path, **changes) -> None:
    """Make the digests those of what is there, as a writer with a fault would."""
    status = json.loads((folder / "status.json").read_text()) | changes
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in status["digests"]}
    (folder / "status.json").write_text(json.dumps(status | {"digests": digests}))


def test_the_frame_has_the_error_of_its_task_and_the_choices_of_its_plan(root):
    frame = load_figure(root, "smoke", FIGURE)
    assert set(frame["metric"]) == {METRIC}
    assert (frame["error"] == frame[METRIC]).all()
    first = frame.groupby("name")[["choice.task", "choice.method", "choice.friction", "choice.intensity"]].first()
    assert first.loc["cell 0", ["choice.task", "choice.method"]].tolist() == ["bandit", "pg"]
    assert first.loc["cell 1", "choice.intensity"] == 0.25
    assert first.loc["cell 2"].isna().all()
    assert first.loc["cell 3", "choice.friction"] == "['a', 'b']"
    assert not {"seeds", "choices", "choices.method"} & set(frame)
    every = load(root)
    assert len(every) == len(frame)
    assert not any(column.startswith("choice.") for column in every)


def test_the_error_is_the_column_that_the_config_names(root):
    folder = DAMAGED.folder(root)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"error": "greedy_error"}, sort_keys=False))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key != "error"} for row in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sign(folder)
    frame = load(root, [CELLS[0].key()])
    assert set(frame["metric"]) == {"greedy_error"}
    assert frame["error"].tolist() == [row["greedy_error"] for row in rows]


def changed_rows(**changes):
    """Damage to a log: some columns of its third row."""

    def change(folder: Path) -> None:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        row = json.loads(lines[2]) | changes
        lines[2] = json.dumps({key: value for key, value in row.items() if value is not ...})
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    return change


def raw_log(change):
    def damage(folder: Path) -> None:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_bytes(b"".join(change(lines)))

    return damage


def changed_config(**changes):
    def change(folder: Path) -> None:
        config = yaml.safe_load((folder / "config.yaml").read_text()) | changes
        plain = {key: value for key, value in config.items() if value is not ...}
        (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))

    return change


def raw_config(text: bytes):
    return lambda folder: (folder / "config.yaml").write_bytes(text)


SIGNED = {
    "a list as a line": raw_log(lambda lines: [*lines[:3], b"[1, 2]\n", *lines[3:]]),
    "a number as a line": raw_log(lambda lines: [*lines, b"3\n"]),
    "no JSON": raw_log(lambda lines: [*lines[:-1], lines[-1][:-20]]),
    "bytes": raw_log(lambda lines: [b"\xff\xfe\n", *lines]),
    "deep": raw_log(lambda lines: [*lines, b"[" * 100_000 + b"\n"]),
    "deep in a row": changed_rows(entropy=[[[[0.5]]]]),
    "nothing": raw_log(lambda lines: []),
    "a seed short": raw_log(lambda lines: lines[:-1]),
    "an evaluation short": raw_log(lambda lines: lines[:-2]),
    "a row twice": raw_log(lambda lines: [*lines[:2], *lines]),
    "a foreign seed": changed_rows(seed=7),
    "a text as seed": changed_rows(seed="1"),
    "no step": changed_rows(step=...),
    "NaN": changed_rows(**{METRIC: float("nan")}),
    "infinity": changed_rows(**{METRIC: float("inf")}),
    "beyond floats": raw_log(
        lambda lines: [line.replace(b'"entropy": ', b'"entropy": 1e999, "x": ') for line in lines]
    ),
    "a text": changed_rows(**{METRIC: "0.5"}),
    "below zero": changed_rows(**{METRIC: -1}),
    "large": changed_rows(**{METRIC: 1e308}),
    "huge": changed_rows(entropy=10**400),
    "true": changed_rows(**{METRIC: True}),
    "no error": changed_rows(**{METRIC: ...}),
    "no costs": changed_rows(backward=...),
    "a cost that is none": changed_rows(forward=None),
    "a text as cost": changed_rows(forward="many"),
    "a column of the config": changed_rows(**{"method.name": "dg"}),
    "a number of the config": changed_rows(**{"task.arms": 9}),
    "the last step": changed_rows(steps=20),
    "the status": changed_rows(status="failed"),
    "the cell": changed_rows(cell="x"),
    "a mapping": changed_rows(entropy={"a": 1}),
    "no YAML": raw_config(b"task: ["),
    "a list as config": raw_config(b"- 1\n"),
    "no config": raw_config(b""),
    "no text as config": raw_config(b"\xff\xfe\x00"),
    "deep config": raw_config(b"[" * 100_000),
    "a date as config": raw_config(b"task: 2020-01-01\n"),
    "another config": changed_config(steps=31),
    "another schema": changed_config(schema=SCHEMA - 1),
    "no schema": changed_config(schema=...),
    "other seeds": changed_config(seeds=[0, 1, 2]),
    "no seeds": changed_config(seeds=None),
    "no list of seeds": changed_config(seeds={"a": 1}),
    "an error that is no column": changed_config(error="no such column"),
    "an error that is no name": changed_config(error=[1]),
    "no error's name": changed_config(error=...),
}


def left_out(root: Path, capsys) -> str:
    """The one run that is left out, everywhere the same; the others are read and listed."""
    frame, (sentence,) = read_figure(root, "smoke", FIGURE)
    assert set(frame["cell"]) == {each.key() for each in CELLS[1:]}
    assert set(load(root)["cell"]) == set(frame["cell"])
    source = report.Source("", root, "smoke", root.parent)
    gaps = report._gaps(source, source.plan(FIGURE))
    assert f"damaged: {sentence}" in gaps
    assert "missing: cell 0 (0 of 2 seeds)" in gaps
    assert runs.main(["list", "--runs", str(root)]) == 0
    assert sentence in capsys.readouterr().out
    assert runs.main(["show", CELLS[0].key(), "--runs", str(root)]) == 0
    assert sentence in capsys.readouterr().out
    return sentence


@pytest.mark.parametrize("damage", SIGNED)
def test_a_record_that_cannot_be_true_is_left_out_and_named(root, damage, capsys):
    folder = DAMAGED.folder(root)
    SIGNED[damage](folder)
    sign(folder)
    assert left_out(root, capsys).startswith(f"{folder}: ")


def test_a_run_is_checked_the_same_wherever_its_bytes_come_from(root):
    folder = DAMAGED.folder(root)
    files = {name: (folder / name).read_bytes() for name in (CONFIG, LOG)}
    status = parse_status((folder / STATUS).read_bytes())
    read = read_run(folder)
    shutil.rmtree(root)
    assert checked_run(folder.name, files, status) == read
    assert read.rows == [json.loads(line) for line in files[LOG].splitlines()]
    for name, held, known, problem in (
        (f"{CELLS[1].key()}-s0-1", files, status, "another config than the folder's name says"),
        (f"{CELLS[0].key()}-s0-2", files, status, "other seeds than the folder's name says"),
        ("run", files, status, "no name of a run"),
        (folder.name, files | {LOG: files[LOG] + b"\n"}, status, f"{LOG} was changed"),
        (folder.name, {CONFIG: files[CONFIG]}, status, f"{LOG} cannot be read"),
        (folder.name, files, status | {"status": "running"}, f"{STATUS} cannot be read"),
    ):
        with pytest.raises(Damaged, match=problem):
            checked_run(name, held, known)


UNSIGNED = {
    "a changed log": changed_rows(entropy=1.0),
    "a changed config": changed_config(choices={"method": "dg"}),
    "no log": lambda folder: (folder / "metrics.jsonl").unlink(),
    "no config": lambda folder: (folder / "config.yaml").unlink(),
    "a folder as log": lambda folder: replaced(folder / "metrics.jsonl"),
    "a folder as config": lambda folder: replaced(folder / "config.yaml"),
    "a folder as status": lambda folder: replaced(folder / "status.json"),
    "a pipe as log": lambda folder: ((folder / "metrics.jsonl").unlink(), os.mkfifo(folder / "metrics.jsonl")),
    "a list as status": lambda folder: (folder / "status.json").write_text("[1]"),
    "bytes as status": lambda folder: (folder / "status.json").write_bytes(b"\xff\xfe"),
    "another status": lambda folder: (folder / "status.json").write_text('{"status": "splendid"}'),
    "no digests": lambda folder: (folder / "status.json").write_text('{"status": "done"}'),
    "wrong digests": lambda folder: (folder / "status.json").write_text('{"status": "done", "digests": [1]}'),
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


def replaced(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", UNSIGNED)
def test_a_run_that_was_changed_after_its_end_is_left_out_and_named(root, damage, capsys):
    UNSIGNED[damage](DAMAGED.folder(root))
    assert left_out(root, capsys).startswith(f"{DAMAGED.folder(root)}: ")


def test_what_is_left_out_is_told_where_the_rest_is_drawn(root, capsys):
    changed_rows(entropy=1.0)(DAMAGED.folder(root))
    assert draw.main([FIGURE, "--runs", str(root), "--scale", "smoke", "--out", str(root.parent)]) == 0
    sentence = f"{DAMAGED.folder(root)}: metrics.jsonl was changed after the run ended"
    drawn = f"{FIGURE}: {root.parent / FIGURE}.png"
    assert capsys.readouterr().out.splitlines() == [f"{FIGURE}: left out: {sentence}", drawn]


@pytest.mark.parametrize("name", ["s0-99999999999", "s0-999999999", "s-1-3", "s9-0", "s1-2", "s0-1 copy"])
def test_a_folder_with_absurd_seeds_is_left_out_and_named(root, name, capsys):
    folder = DAMAGED.folder(root)
    folder = folder.rename(folder.with_name(f"{CELLS[0].key()}-{name}"))
    assert left_out(root, capsys).startswith(f"{folder}: ")


@pytest.mark.parametrize("status", [{"status": "running"}, {"status": "failed", "reason": "boom"}, None])
def test_unfinished_runs_are_left_out_without_a_word(root, status):
    path = DAMAGED.folder(root) / "status.json"
    path.unlink() if status is None else path.write_text(json.dumps(status))
    sound, damaged = read_runs(root)
    assert (len(sound), damaged) == (3, [])


@pytest.mark.parametrize(
    "nonsense",
    [
        {"seconds": "long", "step": "far", "error": "small", "ended": [], "started": {}},
        {"seconds": None, "step": -3, "error": [], "ended": True, "reason": 3},
        {"versions": [1], "machine": 3, "commit": [], "diverged": "yes", "traceback": 1},
        {"seconds": 1e308, "step": 10**400, "error": 10**400},
    ],
)
@pytest.mark.parametrize("status", ["done", "diverged", "failed"])
def test_nonsense_in_a_status_stops_nothing(root, nonsense, status, capsys):
    path = DAMAGED.folder(root) / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": 1.0} | nonsense | {"status": status}))
    source = report.Source("", root, "smoke", root.parent)
    report._provenance(source)
    report._gaps(source, source.plan(FIGURE))
    assert runs.main(["list", "--runs", str(root)]) == 0
    assert runs.main(["show", CELLS[0].key(), "--runs", str(root)]) == 0


CELL = {"name": "a", "choices": {}}


@pytest.mark.parametrize(
    "content",
    [
        *("null", "3", '"text"', "[]", "{}", "{", "\xff", "[" * 100_000, "true"),
        *(
            {"cells": wrong}
            for wrong in (None, 3, [], {"x": CELL}, {"a" * 12: "name"}, {"a" * 12: {}}, {"../" + "a" * 9: CELL})
        ),
        *({"cells": {"a" * 12: CELL | wrong}} for wrong in ({"name": 3}, {"choices": []}, {"choices": None})),
        *({key: wrong} for key in ("seeds", "first_seed", "schema") for wrong in ("2", -1, 1.5, [], True)),
        *({key: wrong} for key in ("figure", "scale", "command") for wrong in (None, 3, [])),
        *({"search": wrong} for wrong in ([], 3, {}, {"values": [], "solved": 1}, {"values": ["a"], "solved": 1})),
        *({"search": {"values": [1], "solved": wrong}} for wrong in (None, "x")),
        {"unknown": 1},
    ],
)
def test_a_plan_that_is_none_gets_one_sentence_and_is_absent(root, content, capsys):
    path = write_plan(root, **(content if isinstance(content, dict) else {}))
    if isinstance(content, str):
        path.write_bytes(content.encode("latin-1"))
    assert read_plan(root, "smoke", FIGURE) is None
    assert load_figure(root, "smoke", FIGURE).empty
    assert read_figure(root, "smoke", FIGURE)[1] == []
    assert runs.names(root) == {}
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"{path}: ")
    assert draw.main([FIGURE, "--runs", str(root), "--scale", "smoke", "--out", str(root.parent)]) == 1


def test_a_sweep_that_is_kept_beside_its_plan_is_no_plan(root, capsys):
    composed_path(root, "smoke", FIGURE).write_text('{"digest": ""}')
    assert [plan.figure for plan in read_plans(root)] == [FIGURE]
    assert capsys.readouterr().err == ""


def test_a_plan_that_is_a_folder_is_absent(root):
    path = write_plan(root)
    path.unlink()
    path.mkdir()
    assert read_plan(root, "smoke", FIGURE) is None


def test_a_diverged_seed_has_no_error_and_is_read(root):
    folder = DAMAGED.folder(root)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {METRIC: None, "entropy": None, "diverged": 7}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    sign(folder, status="diverged", diverged={"1": 7})
    frame, damaged = read_figure(root, "smoke", FIGURE)
    assert damaged == []
    last = frame[(frame["cell"] == CELLS[0].key()) & (frame["step"] == 30)]
    assert last["diverged"].isna().tolist() == [True, False]
    assert np.isnan(last["error"].iloc[1])


def test_show_tells_what_was_asked_for_and_which_column_is_the_error(root, capsys):
    assert runs.main(["show", CELLS[1].key(), "--runs", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "choices:\n  method: dg\n" in shown
    assert f"\nerror: {METRIC}\n" in shown
    assert f"  {METRIC} 0." in shown
    assert runs.main(["list", "--runs", str(root)]) == 0
    listed = capsys.readouterr().out
    assert "4 runs" in listed
    assert "cell 1" in listed


# Figures and reports


@pytest.fixture
def here(monkeypatch):
    """Figures are drawn in this process."""
    monkeypatch.setattr(draw.joblib, "cpu_count", lambda: 1)


def second_plan(root: Path, cells: list) -> None:
    """A second figure, of other runs."""
    planned = {each.key(): {"name": "second", "choices": {}} for each in cells}
    plan = {"figure": "mnist_pareto", "scale": "smoke", "command": "make", "cells": planned, "seeds": 2}
    plan_path(root, "smoke", "mnist_pareto").write_text(json.dumps(plan))


def reported(root: Path, *words: str) -> tuple[int, dict, str]:
    """The exit code, the claims' records and the page of a report."""
    out = root.parent / "report"
    code = report.main(["--runs", str(root), "--scale", "smoke", "--out", str(out), *words])
    records = json.loads((out / "claims.json").read_text())
    return code, {record["id"]: record for record in records}, (out / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_figure_of_which_no_run_is_finished_stops_no_other(root, here, status, capsys):
    begun = Block(cell("ce"), (0, 1))
    train(begun, root)
    path = begun.folder(root) / "status.json"
    path.write_text(json.dumps({"status": status, "step": 3}))
    second_plan(root, [begun.cell])
    assert load_figure(root, "smoke", "mnist_pareto").empty
    words = [FIGURE, "mnist_pareto", "--runs", str(root), "--scale", "smoke", "--out", str(root.parent / "figures")]
    assert draw.main(words) == 1
    drawn, undrawn = capsys.readouterr().out.splitlines()
    assert drawn == f"{FIGURE}: {root.parent}/figures/{FIGURE}.png"
    assert undrawn.startswith("mnist_pareto: no finished runs; make reproduce FIGURES=mnist_pareto")
    code, _, page = reported(root)
    assert code == 0
    assert page.count("<svg role") == 1
    assert "runs: no finished runs.</p>" in page


@pytest.mark.slow
@pytest.mark.parametrize("part", ["select", "plot"])
def test_a_figure_that_cannot_be_drawn_stops_no_other_and_says_why(root, here, part, monkeypatch, capsys):
    def broken(data):
        raise KeyError("no <such> column\nat all")

    second_plan(root, CELLS)
    monkeypatch.setattr(experiments()["mnist_pareto"], part, broken)
    words = ["mnist_pareto", FIGURE, "--runs", str(root), "--scale", "smoke", "--out", str(root.parent / "figures")]
    assert draw.main(words) == 1
    undrawn, drawn = capsys.readouterr().out.splitlines()
    assert undrawn.startswith("mnist_pareto: cannot be drawn: KeyError: ")
    assert drawn == f"{FIGURE}: {root.parent}/figures/{FIGURE}.png"
    code, _, page = reported(root)
    assert code == 1
    assert page.count("<svg role") == 1
    assert "cannot be drawn: KeyError: " in page
    assert "no &lt;such&gt; column" in page
    assert "mnist_pareto: cannot be drawn" in capsys.readouterr().out


def dies(*arguments):
    os._exit(1)


@pytest.mark.slow
def test_a_process_that_dies_drawing_stops_nothing_but_the_drawing(root, monkeypatch):
    monkeypatch.setattr(draw, "draw", dies)
    monkeypatch.setattr(draw.joblib, "cpu_count", lambda: 2)
    drawn = dict(draw.draw_all([FIGURE, "gambling"], [(root, root.parent)], "smoke"))
    assert set(drawn) == {FIGURE, "gambling"}
    assert all(each.trouble for (each,) in drawn.values())


def test_a_claim_that_cannot_be_checked_stops_no_other_and_says_why(root, here, monkeypatch):
    def broken(frame):
        raise ZeroDivisionError("by <nothing>")

    before = reported(root)[1]
    monkeypatch.setitem(judge.CLAIMS, "J12-bandit", replace(judge.CLAIMS["J12-bandit"], check=broken))
    code, records, page = reported(root)
    assert code == 1
    assert records["J12-bandit"]["verdict"] == judge.NOT_RUN
    assert records["J12-bandit"]["detail"] == "cannot be checked: ZeroDivisionError: by <nothing>"
    assert set(records["J12-bandit"]) == set(before["J12-bandit"])
    assert {key: value for key, value in records.items() if key != "J12-bandit"} == {
        key: value for key, value in before.items() if key != "J12-bandit"
    }
    assert "ZeroDivisionError: by &lt;nothing&gt;" in page


def test_what_a_figure_shows_is_told_or_why_not(root, here, monkeypatch):
    module = experiments()[FIGURE]
    monkeypatch.setattr(module, "measured", lambda table: f"{len(table)} rows <b>", raising=False)
    assert re.search(r"Measured: \d+ rows &lt;b&gt;\.</p>", reported(root)[2])
    monkeypatch.setattr(module, "measured", lambda table: 1 / 0)
    code, _, page = reported(root)
    assert code == 1
    assert "cannot be put in words: ZeroDivisionError" in page


def test_the_name_of_a_folder_is_no_html(root, here, monkeypatch):
    name = "<img src=x onerror=alert(1)>"
    other = Path(shutil.copytree(root, root.parent / name))
    monkeypatch.setattr(experiments()[FIGURE], "measured", lambda table: "much", raising=False)
    _, _, page = reported(root, "--compare", str(other))
    assert name not in page
    assert page.count("(&lt;img src=x onerror=alert(1)&gt;)") >= 4
    assert "Measured (&lt;img src=x onerror=alert(1)&gt;): much." in page


@pytest.mark.slow
def test_figures_and_reports_of_each_scale_have_a_folder_of_their_own(root, here, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert draw.main([FIGURE, "--scale", "smoke"]) == 0
    assert report.main(["--scale", "smoke"]) == 0
    assert sorted(path.name for path in root.parent.glob("*")) == ["figures", "report", "runs"]
    assert (root.parent / "figures" / "smoke" / f"{FIGURE}.png").exists()
    assert (root.parent / "report" / "smoke" / "index.html").exists()


def test_the_version_of_the_paper_is_told_beside_what_it_reports(root, here, monkeypatch):
    judged = judge.Claim.judge
    monkeypatch.setattr(judge.Claim, "judge", lambda self, frame: judged(self, frame) | {"version": "<v2>"})
    _, records, page = reported(root)
    assert page.count("(&lt;v2&gt;)</td></tr>") == len(records)


def test_every_verdict_has_a_mark_and_a_look_and_is_explained(root, here):
    words = {judge.REPRODUCED, judge.PARTLY, judge.NOT, judge.INCONCLUSIVE, judge.NOT_RUN}
    assert set(report.MARKS) == words
    assert len(set(report.MARKS.values())) == len(words)
    looks = report.CSS.read_text()
    for word in words:
        record = {"verdict": word, "seeds": 0, "steps": 0, "detail": "", "parts": {}}
        look = re.search('class="chip ([a-z-]+)"', report._verdict_cells(record, ""))[1]
        assert looks.count(f".chip.{look} {{") == 1
    page = reported(root)[2]
    assert all(re.search(rf"“{word}”,\s", page) for word in words)
