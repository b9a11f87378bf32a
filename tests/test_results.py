"""The pages of published results."""

from pathlib import Path

import pytest

from analysis import results
from analysis.experiments import experiments
from analysis.judge import REPRODUCED
from kondo.lab.records import read_manifest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_what_is_written_is_what_the_records_give(capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_a_page_that_was_changed_by_hand_is_named(tmp_path, capsys):
    out, readme = tmp_path / "pages", tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text().replace("| not reproduced |", "| reproduced |", 1))
    words = ["--out", str(out), "--readme", str(readme), "--check"]
    out.mkdir()
    for page in (ROOT / "docs" / "results").glob("*.md"):
        (out / page.name).write_text(page.read_text() + ("\n" if page.stem == "joy_3" else ""))
    (out / "stray.md").write_text("")
    assert results.main(words) == 1
    named = capsys.readouterr().out
    assert [name in named for name in ("joy_3.md", "README.md", "stray.md", "joy_1.md")] == [True, True, True, False]


def test_every_published_experiment_has_a_page_and_a_figure_and_every_claim_a_row():
    pages = ROOT / "docs" / "results"
    for name in read_manifest(ROOT / "results"):
        assert (pages / f"{name}.md").exists()
        assert (pages / f"{name}.png").stat().st_size > 10_000
    text = (pages / "README.md").read_text()
    assert all(f"| {id}: " in text or f"| [{id}](" in text for id in results.claims())


@pytest.mark.slow
def test_a_claim_that_paper_scale_did_not_reproduce_has_a_likely_reason_on_its_page_and_others_have_none():
    pages, every = ROOT / "docs" / "results", experiments()
    told = {id: module.__name__ for module in every.values() for id in vars(module).get("WHY", {})}
    claims = results.claims()
    assert all(told[id].endswith(f".{claims[id].figure}") for id in told)
    for name, entry in read_manifest(ROOT / "results").items():
        text = (pages / f"{name}.md").read_text()
        records = results.judged(ROOT / "results", entry["scale"], name) if entry["scale"] == "paper" else []
        open_ = [record["id"] for record in records if record["verdict"] != REPRODUCED]
        assert text.count("**Why, most likely.**") == len(open_), name
        assert all(vars(every[name])["WHY"][id] in text for id in open_)


@pytest.mark.slow
def test_what_paper_scale_did_not_reproduce_is_listed_with_every_part_that_does_not_hold():
    entries = read_manifest(ROOT / "results")
    listed = (ROOT / "docs" / "results" / "README.md").read_text().partition("## What came out otherwise")[2]
    for name, entry in entries.items():
        for record in results.judged(ROOT / "results", entry["scale"], name):
            expected = entry["scale"] == "paper" and record["verdict"] != REPRODUCED
            assert (f"**[{record['id']}]({name}.md), {record['verdict']}.**" in listed) == expected, record["id"]
            if expected:
                shown = {part: word for part, word in record["parts"].items() if f": {part}\n" in listed}
                assert shown == {part: word for part, word in record["parts"].items() if word != "holds"}


def test_only_the_table_of_the_readme_is_replaced():
    text = f"before\n{results.BEGIN}\nold\n{results.END}\nafter"
    assert results.with_table(text, "new") == f"before\n{results.BEGIN}\nnew\n{results.END}\nafter"
