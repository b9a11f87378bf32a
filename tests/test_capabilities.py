"""What parts of a cell have is declared, what they need too; and what runs a cell is trained or measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kondo.lab.capabilities import CAPABILITIES
from kondo.lab.config.cell import parse
from kondo.lab.config.requirements import HAS, LACKS
from kondo.lab.engine import Engine
from kondo.lab.probes import probe
from kondo.lab.process import start
from kondo.lab.screens import Screen
from kondo.lab.studies import Study
from kondo.lab.studies.measurement import Measurement
from kondo.lab.tasks import Task
from tests.conftest import cell

ROOT = Path(__file__).parent.parent


def test_every_capability_can_be_had_and_its_absence_be_told():
    assert HAS.keys() == LACKS.keys() == CAPABILITIES.keys()


def test_a_need_that_no_cell_can_meet_is_refused_where_it_is_declared():
    with pytest.raises(TypeError, match=r"joy.*capabilities: training, screen, batch"):
        probe(needs=("joy",))(lambda engine, settings: {})


def test_nothing_that_lacks_what_it_must_define_can_be_made():
    for base in (Task, Study, Screen):
        with pytest.raises(TypeError, match="abstract"):
            type("Half", (base,), {})()


def test_a_task_is_trained_by_an_engine_and_a_study_measured_by_a_measurement_neither_of_which_is_the_other():
    study = {"task": {"name": "gate_coefficient"}, "method": {"name": "dg"}, "steps": 1}
    assert type(start(cell(), [0])) is Engine
    assert type(start(parse(study), [0])) is Measurement
    assert not issubclass(Measurement, Engine)


def test_the_expected_update_of_pg_is_along_the_gradient_on_the_bandit_until_its_behaviour_is_contaminated():
    process = start(cell("pg", probe={"name": "alignment", "samples": 20}), [0, 1])
    for _ in range(30):
        process.advance()
    rows = process.evaluate()
    assert [row["cos_pg_clean"] for row in rows] == pytest.approx([1, 1], abs=1e-5)
    assert all(row["cos_pg_mixed"] < 1 - 1e-4 for row in rows)


STUDY = """
from dataclasses import dataclass
from kondo.lab.studies import Study, same, study

@study
@dataclass(frozen=True)
class MeanWeight(Study):
    def measure(self, rule, streams):
        return {"answer": same(42.0, streams)}
"""


@pytest.mark.slow
def test_a_study_of_one_s_own_is_named_on_the_command_line_and_its_code_is_part_of_its_cells(tmp_path):
    keys = []
    for line in ("", "MORE = 1"):
        (tmp_path / "mine.py").write_text(STUDY + line)
        check = (
            "from experiments.compose import single\nfrom kondo import lab\n"
            "cell = single(['task=mean_weight', 'method=dg', 'scale=smoke']).cell\n"
            "print(cell.key(), list(cell.plain()['extensions']), lab.train(cell, 1))"
        )
        env = {**os.environ, "KONDO_EXTENSIONS": str(tmp_path)}
        words = [sys.executable, "-c", check]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env, check=True)
        key, _, rest = done.stdout.strip().partition(" ")
        assert rest == "['task.mean_weight'] [{'step': 1, 'seed': 0, 'answer': 42.0}]"
        keys.append(key)
    assert keys[0] != keys[1]
