"""The examples do what their docstrings say, each run by the command that it names."""

import ast
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from kondo import lab
from kondo.lab.config.cell import parse
from kondo.lab.engine import Engine
from kondo.lab.ledger import TIMED
from kondo.lab.policies.mlp import by_seed
from kondo.lab.training import Block, train

ROOT = Path(__file__).parent.parent
EXTENDING = ROOT / "examples" / "extending"
FILES = sorted(EXTENDING.glob("*.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "KONDO_EXTENSIONS": str(EXTENDING)}


def python(*words: str, cwd: Path = ROOT) -> str:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, check=True
    ).stdout


def test_there_is_an_example_of_each_thing_to_add():
    assert [path.stem for path in FILES] == ["experiment", "friction", "method", "priority", "screen", "task"]
    for path in FILES:
        about = ast.get_docstring(ast.parse(path.read_text()))
        assert about.startswith("Adds a"), path
        assert f"python examples/extending/{path.name}" in about, path


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in FILES if path.stem != "experiment"])
def test_an_example_runs_by_itself_and_tells_an_error(name):
    errors = [float(word) for word in re.findall(r"error ([\d.]+\d)", python(f"examples/extending/{name}.py"))]
    assert len(errors) >= 3
    assert len(set(errors)) > 1  # what it adds makes a difference
    assert all(0 <= error < 1 for error in errors)


@pytest.mark.slow
def test_the_experiment_of_one_s_own_is_swept_by_its_name_and_shown_from_its_logs(tmp_path):
    table = python("examples/extending/experiment.py", str(tmp_path)).splitlines()[-4:]
    assert [line.split()[0] for line in table] == ["priority", "delight", "gradient_size", "uniform"]
    assert all(math.isfinite(float(value)) for line in table[1:] for value in line.split()[1:])
    assert len(list(tmp_path.glob("noisyxor/*/metrics.jsonl"))) == 9


@pytest.mark.slow
def test_the_code_of_what_was_added_is_part_of_the_cell_and_only_of_a_cell_that_uses_it():
    check = (
        "from experiments.compose import single\n"
        "for words in WORDS: print(list(single(words.split()).cell.plain().get('extensions', {})))"
    )
    words = [
        "task=noisyxor method=dgk gate.priority=gradient_size friction=inattention screen.source=pruned",
        "task=noisyxor method=dg_tempered method.power=0.25",
        "task=bandit method=dgk",
    ]
    found = python("-c", check.replace("WORDS", repr(words))).splitlines()
    assert [ast.literal_eval(line) for line in found] == [
        ["task.noisyxor", "priority.gradient_size", "friction.inattention", "screen.pruned"],
        ["task.noisyxor", "method.dg_tempered"],
        [],
    ]


@pytest.mark.parametrize("task", ["bandit", "gate_coefficient"])
def test_training_from_python_gives_the_rows_of_the_log_and_writes_nothing(task, tmp_path, monkeypatch):
    plain = {"task": {"name": task}, "method": {"name": "dgk"}, "steps": 1 if task == "gate_coefficient" else 20}
    block = Block(parse(plain), (0, 1))
    train(block, tmp_path / "runs")
    log = [json.loads(line) for line in (block.folder(tmp_path / "runs") / "metrics.jsonl").read_text().splitlines()]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for cell, seeds in ((plain, 2), (parse(plain), [0, 1])):
        rows = json.loads(json.dumps(lab.train(cell, seeds)))
        assert [{k: v for k, v in row.items() if k not in TIMED} for row in rows] == [
            {k: v for k, v in row.items() if k not in TIMED} for row in log
        ]
    assert [row["seed"] for row in lab.train(plain, [5])][-1] == 5
    assert not list(Path().iterdir())


def test_the_glossary_and_the_guide_name_files_and_names_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, guide, glossary = re.split(r"^## (?:Where to find things|Glossary)$", text, flags=re.M)
    named = re.findall(r"`((?:kondo|conf|examples|experiments)/[\w./]*)`(?: `(\w+)`)?", guide + glossary)
    assert len(named) > 40
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{path} {name}"
    terms = [line for line in glossary.splitlines() if line.startswith("|")][2:]
    assert len(terms) > 30
    assert all(line.count("`") >= 4 for line in terms)


@pytest.mark.parametrize("name", ["sgd", "adam"])  # Adam would not notice a gradient of another length
@pytest.mark.parametrize("method", ["pg", "dg", "dgk"])
def test_the_first_updates_of_the_one_file_example_are_the_engine_s(method, name):
    from examples.mnist_kondo import network, update

    cell = {"task": {"name": "mnist", "dataset": "digits"}, "method": {"name": method}, "steps": 10}
    lr = 1e-3 if name == "adam" else 1.0
    cell |= {"optimizer": {"name": name, "lr": lr}}
    engine = Engine(parse(cell | ({"gate": {"rate": 0.1}} if method == "dgk" else {})), [3])
    policy = network(64)
    layers = [layer for layer in policy if isinstance(layer, torch.nn.Linear)]
    for i, layer in enumerate(layers):
        layer.weight.data.copy_(engine.learner.leaves[f"weight_{i}"].detach()[0].T)
        layer.bias.data.copy_(engine.learner.leaves[f"bias_{i}"].detach()[0, 0])
    optimizer = (torch.optim.Adam if name == "adam" else torch.optim.SGD)(policy.parameters(), lr=lr)
    for step in range(3):
        batch = engine.actor.batch(step)
        x = engine.task.images.train[batch.contexts.inputs[0]] * engine.task.images.scale
        kept = update(policy, optimizer, x, batch.contexts.targets[0], batch.actions[0], method, rate=0.1)
        assert kept == (10 if method == "dgk" else 100)
        before = by_seed(engine.learner.leaves).clone()
        engine.advance()
        assert not torch.equal(before, by_seed(engine.learner.leaves))
        for i, layer in enumerate(layers):
            torch.testing.assert_close(layer.weight.T, engine.learner.leaves[f"weight_{i}"][0], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(layer.bias, engine.learner.leaves[f"bias_{i}"][0, 0], atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_one_file_example_has_about_a_hundred_lines_and_learns():
    text = (ROOT / "examples" / "mnist_kondo.py").read_text()
    assert len(text.splitlines()) <= 110
    words = [
        "examples/mnist_kondo.py",
        "--dataset",
        "digits",
        "--steps",
        "150",
        "--rate",
        "0.1",
        "--methods",
        "dg",
        "dgk",
    ]
    lines = python(*words).splitlines()
    ends = {line.split()[0]: line.split() for line in lines}
    assert (ends["dg"][3], ends["dgk"][3]) == ("15,000", "1,500")
    assert all(float(line[-1].rstrip("%")) < 40 for line in ends.values())


def test_every_example_says_what_it_needs_to_be_run_alone():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        if path.name == "experiment.py":
            assert "It needs the suite" in path.read_text()
            continue
        header = re.match(r"# /// script\n(.*?)# ///\n", path.read_text(), flags=re.S)
        assert header, path
        about = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.M))
        assert about["requires-python"] == ">=3.11"
        assert any(each.startswith("kondo") for each in about["dependencies"]), path
        clone = path.parent / about["tool"]["uv"]["sources"]["kondo"]["path"]
        assert clone.resolve() == ROOT, path


@pytest.mark.slow
def test_the_notebook_opens_the_published_logs_and_redraws_two_figures(monkeypatch):
    import matplotlib as mpl

    mpl.use("Agg")
    notebook = json.loads((ROOT / "examples" / "published_logs.ipynb").read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    monkeypatch.chdir(ROOT / "examples")
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["frame"]) > 1000
    assert len(names["figure_1"].axes) == 4
    assert len(names["axes"].lines) == 3 * 30
    text = (ROOT / "docs" / "results" / "joy_1.md").read_text()
    for id, verdict in names["verdicts"].items():
        assert f"## {id}: {verdict}" in text
    names["plt"].close("all")
