"""An experiment is one config and one module: nothing else knows its name, and its claims need no drawing."""

import ast
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.experiments import claims, experiments
from analysis.judge import order
from tests.test_claims import TRUE

ROOT = Path(__file__).parent.parent
CONFIG = """# @package _global_
defaults:
  - override /task: bandit

hydra:
  sweeper:
    params:
      method: pg,dg
"""
MODULE = '''"""Sparks: what PG and DG end with."""

from analysis import plots, style
from analysis.judge import Finding, by_setting, claim, found, scope, unready
from analysis.load import final
from analysis.settings import DG, PG
from analysis.tables import SETTING, aggregate


def select(frame):
    return aggregate(final(frame), SETTING)


def plot(table):
    figure, axes = plots.panels(1, 1)
    plots.dots(axes, table, list(table["method.name"]), [style.colour(name) for name in table["method.name"]])
    return figure


@claim("J13", "Both end", "nowhere", "sparks", version="none", where={"task.name": "bandit"})
def both_end(frame):
    errors = by_setting(frame, "error", {"pg": PG, "dg": DG})
    if few := unready(errors, {"pg": PG, "dg": DG}):
        return few
    return found([("both end", True)], "both ended", 1.0, **scope(frame, errors))
'''


@pytest.mark.slow
def test_a_config_and_a_module_are_all_that_a_new_experiment_takes(tmp_path):
    for name in ("kondo", "experiments", "hydra_plugins"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("analysis", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "conf" / "experiment" / "sparks.yaml").write_text(CONFIG)
    (tmp_path / "analysis" / "experiments" / "sparks.py").write_text(MODULE)
    words = ["--scale", "smoke", "sparks", "seeds=3", "steps=5", "wandb.mode=disabled", "hydra/launcher=basic"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "experiments.reproduce", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "runs" / "plans" / "smoke" / "sparks.json").read_text())
    assert len(plan["cells"]) == 2
    assert (tmp_path / "figures" / "smoke" / "sparks.png").stat().st_size > 200
    records = json.loads((tmp_path / "report" / "smoke" / "claims.json").read_text())
    assert [record["id"] for record in records] == sorted([*claims(), "J13"], key=order)
    (own,) = (record for record in records if record["id"] == "J13")
    assert (own["verdict"], own["detail"], own["seeds"]) == ("reproduced", "both ended", 3)
    page = (tmp_path / "report" / "smoke" / "index.html").read_text()
    assert '<section id="sparks"><h3>Sparks: what PG and DG end with.</h3>' in page


JUDGE_ALL = """
import pickle, sys
from analysis.experiments import claims
worlds = pickle.load(open(sys.argv[1], "rb"))
verdicts = {id: claim.judge(worlds[id])["verdict"] for id, claim in claims().items()}
print(sorted(set(verdicts.values())), len(verdicts), [name for name in sys.modules if name.startswith("matplotlib")])
"""


@pytest.mark.slow
def test_no_claim_needs_matplotlib_to_be_judged(tmp_path):
    (tmp_path / "worlds").write_bytes(pickle.dumps({id: world.build() for id, world in TRUE.items()}))
    command = [sys.executable, "-c", JUDGE_ALL, str(tmp_path / "worlds")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == f"['reproduced'] {len(claims())} []\n"


def test_a_claim_is_in_the_module_of_the_experiment_that_decides_it():
    written = {
        (node.args[0].value, path.stem): node.args[3].value
        for path in (ROOT / "analysis").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "claim"
    }
    assert written == {(id, claim.figure): claim.figure for id, claim in claims().items()}


def test_every_experiment_selects_plots_and_decides_or_tells():
    deciding = {claim.figure for claim in claims().values()}
    for name, module in experiments().items():
        assert callable(module.select), name
        assert callable(module.plot), name
        assert (name in deciding) != hasattr(module, "measured"), name
        assert (ROOT / "conf" / "experiment" / f"{name}.yaml").exists()


def test_claims_are_in_the_order_of_their_numbers_whichever_module_has_them():
    shuffled = [
        "T1",
        "R1",
        "D2",
        "G10",
        "J10",
        "D10",
        "G1-share",
        "DG-gate",
        "J9-unit",
        "G2",
        "J9",
        "D2′",
        "J1",
        "D1-b",
    ]
    assert sorted(shuffled, key=order) == [
        "J1", "J9", "J9-unit", "J10", "D1-b", "D2", "D2′", "D10", "DG-gate", "G1-share", "G2", "G10", "R1", "T1"
    ]  # fmt: skip
    assert list(claims()) == sorted(claims(), key=order)
