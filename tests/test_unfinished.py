"""Finished runs of what is not whole yet: kept beside the published ones, and brought back, so that none is lost."""

import shutil

import pytest

from analysis import load
from experiments import publish as command
from experiments import runs as listing
from kondo.lab.records import Damaged, keep, planned, publish, read_experiment, restore
from kondo.lab.training import Block, finished
from tests.test_publish import CELLS, FIRST, SECOND, folder_of, made, root  # noqa: F401

LOST = (CELLS[0], (2, 3))


@pytest.fixture
def part(root):  # noqa: F811
    """Runs of the first experiment, one of which has not ended."""
    shutil.rmtree(folder_of(root, *LOST))
    return root


def test_what_is_kept_comes_back_complete_and_only_what_is_missing_is_trained(part, tmp_path):
    results, runs = tmp_path / "results", tmp_path / "elsewhere"
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    assert len(restore(results, runs)) == 5
    for each in CELLS[:3]:
        for seeds in ((0, 1), (2, 3)):
            ended = finished(Block(each, seeds, {"method": each.method}), runs)
            assert ended == (None if (each, seeds) == LOST else "done")
    for name in ("config.yaml", "metrics.jsonl"):
        assert (folder_of(runs) / name).read_bytes() == (folder_of(part) / name).read_bytes()
    assert restore(results, runs) == []


def test_no_figure_reads_what_is_kept(part, tmp_path):
    results = tmp_path / "results"
    publish(results, {SECOND: read_experiment(part, "paper", SECOND)})
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    assert planned(results) == [("paper", SECOND)]
    assert load.read_figure(results, "paper", FIRST)[0].empty


def test_keeping_again_elsewhere_loses_nothing(part, tmp_path):
    results = tmp_path / "results"
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    shutil.rmtree(folder_of(part))  # a machine that was lost
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    assert len(restore(results, tmp_path / "elsewhere")) == 5


def test_a_run_that_is_there_is_left_as_it_is(part, tmp_path):
    results, runs = tmp_path / "results", tmp_path / "elsewhere"
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    own = folder_of(runs)
    own.mkdir(parents=True)
    (own / "status.json").write_text('{"status": "running"}')
    assert own not in restore(results, runs)
    assert (own / "status.json").read_text() == '{"status": "running"}'


def test_published_and_kept_runs_come_back_by_name(part, tmp_path, capsys):
    results, runs = tmp_path / "results", tmp_path / "elsewhere"
    publish(results, {SECOND: read_experiment(part, "paper", SECOND)})
    keep(results, FIRST, read_experiment(part, "paper", FIRST))
    about = ["--results", str(results), "--runs", str(runs)]
    assert listing.main(["restore", SECOND, *about]) == 0
    assert capsys.readouterr().out.startswith("4 runs restored")
    assert listing.main(["restore", *about]) == 0
    assert capsys.readouterr().out.startswith("3 runs restored")


def test_once_it_is_whole_it_is_published_and_no_longer_kept(root, tmp_path):  # noqa: F811
    results = tmp_path / "results"
    path = keep(results, FIRST, read_experiment(root, "paper", FIRST))
    publish(results, {SECOND: read_experiment(root, "paper", SECOND)})
    assert path.exists()
    publish(results, {FIRST: read_experiment(root, "paper", FIRST)})
    assert not path.exists()


def test_damage_is_named_and_nothing_of_it_is_restored(part, tmp_path):
    results, runs = tmp_path / "results", tmp_path / "elsewhere"
    path = keep(results, FIRST, read_experiment(part, "paper", FIRST))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Damaged, match=f"{FIRST}.tar.xz: "):
        restore(results, runs)
    assert not list(runs.glob("*/*"))


def test_kept_by_command_only_of_experiments_that_there_are(part, tmp_path, capsys):
    about = ["--runs", str(part), "--out", str(tmp_path / "results"), "--unfinished"]
    assert command.main([FIRST, *about]) == 0
    assert f"{FIRST}.tar.xz" in capsys.readouterr().out
    assert command.main(["joy8", *about]) == 1
    assert "joy_8" in capsys.readouterr().err
