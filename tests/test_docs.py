"""The front door: what the README and the documentation say is there, and works."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import kondo
from kondo import lab
from kondo.lab.ledger import COUNTS
from kondo.lab.records import read_runs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def test_the_readme_is_at_most_120_lines_and_its_python_runs_as_it_stands():
    assert len(README.splitlines()) <= 120
    (code,) = blocks(README, "python")
    names: dict = {}
    exec(code, names)
    assert names["keep"].sum() == 10
    weight = names["policy"].weight
    assert weight.grad.abs().sum() > 0


def test_the_commands_of_the_readme_are_what_ci_runs():
    (commands,) = (block for block in blocks(README, "bash") if "make" in block)
    asked = [line.partition("#")[0].strip() for line in commands.splitlines()]
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert asked
    assert set(asked) <= set(ci)
    assert "make docs" in ci
    (workflow,) = (ROOT / ".github" / "workflows").glob("*.yml")
    steps = yaml.safe_load(workflow.read_text())["jobs"]["ci"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_to_one(page, site):
    for target in site.targets(page.read_text()):
        assert (page.parent / target).exists(), target


def test_a_link_out_of_the_documentation_leads_to_a_page_with_that_file(site):
    text, files = site.relinked("[a](../kondo/gate.py#L1) [b](run.md) [c](no/such.md)", DOCS / "use.md")
    assert text == "[a](source/kondo/gate.py.md#L1) [b](run.md) [c](no/such.md)"
    assert files == {ROOT / "kondo" / "gate.py"}
    assert "class KondoGate(" in site.source_page(ROOT / "kondo" / "gate.py")
    text, _ = site.relinked("![f](docs/results/joy_1.png) [c](CHANGELOG.md)", ROOT / "README.md")
    assert text == "![f](results/joy_1.png) [c](changes.md)"
    text, _ = site.relinked("[g](../../kondo/gate.py) [j](joy_1.md)", DOCS / "results" / "README.md")
    assert text == "[g](../source/kondo/gate.py.md) [j](../results/joy_1.md)"
    assert site.targets("```\n[x](nowhere.md)\n```\n[y](there.md)") == ["there.md"]


def test_the_navigation_has_every_page_and_every_example_is_shown():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/]+\.md", str(config["nav"])))
    assert named == {path.name for path in DOCS.glob("*.md")} | {"index.md", "changes.md", "results/README.md"}
    assert config["theme"]["font"] is False
    found = {
        name for page in DOCS.glob("*.md") for name in re.findall(r'^--8<-- "([^":]+)', page.read_text(), flags=re.M)
    }
    shown = [*(ROOT / "examples" / "extending").glob("*.py"), ROOT / "examples" / "mnist_kondo.py"]
    assert found == {str(path.relative_to(ROOT)) for path in shown}


CELLS = [
    {"task": {"name": "bandit"}, "friction": {"staleness": {"delay": 2}}},
    {"task": {"name": "bandit"}, "probe": {"name": "kept"}},
    {"task": {"name": "bandit"}, "probe": {"name": "agreement"}},
    {"task": {"name": "bandit"}, "probe": {"name": "anatomy", "samples": 10}},
    {"task": {"name": "bandit"}, "probe": {"name": "alignment", "samples": 10}},
]


def test_every_column_that_a_run_logs_is_in_the_table_of_columns(site):
    table = site.filled("<!-- generated: columns -->")
    cells = re.findall(r"`([\w…]+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))
    patterns = [re.compile(re.escape(name).replace("…", r"\w+")) for name in cells]
    for cell in CELLS:
        rows = lab.train(cell | {"method": {"name": "dgk"}, "steps": 2}, seeds=1)
        for column in rows[-1]:
            assert any(pattern.fullmatch(column) for pattern in patterns), column
    logged = {
        column for run in read_runs(ROOT / "results")[0] for column in run.rows[-1] if run.config["error"] is None
    } | {column for run in read_runs(ROOT / "results")[0][:1] for column in run.rows[-1]}
    assert len(logged) > 40
    for column in logged:
        assert any(pattern.fullmatch(column) for pattern in patterns), column
    assert all(text in table for text in COUNTS.values())
    assert {"reward_error", "test_error", "greedy_error", "diverged"} <= set(cells)


def test_the_api_has_every_public_name_with_its_docstring(site):
    text = site.filled("<!-- generated: api -->")
    for name in set(kondo.__all__) - {"__version__"}:
        assert f"#### {name}\n" in text
    assert kondo.KondoTrainer.step.__doc__.split("\n")[0] in text
    assert "#### _joined" not in text


def test_the_rules_have_the_numbers_of_the_code(site, monkeypatch):
    from analysis import judge, stats

    text = site.filled("<!-- generated: rules -->")
    assert f"{stats.RESAMPLES:,} resamples" in text
    assert f"{judge.MIN_SEEDS} seeds in common" in text
    for path, name in re.findall(r"`(analysis/[\w/]+\.py)` `(\w+)`", text):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), name
    verdicts = (judge.REPRODUCED, judge.PARTLY, judge.NOT, judge.INCONCLUSIVE, judge.NOT_RUN)
    assert all(f"| {word} |" in text for word in verdicts)


@pytest.mark.slow
def test_the_site_is_built_strictly_and_asks_nothing_of_the_network(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc=.?(https?:)?//", text), page
        assert not re.search(r"<link[^>]*rel=.?(stylesheet|preconnect)[^>]*(https?:)?//", text), page
    assert "generated:" not in (tmp_path / "api.html").read_text()
    assert "def dg_tempered" in re.sub(r"<[^>]*>", "", (tmp_path / "extend.html").read_text())
