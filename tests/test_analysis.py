"""Figures and claims from real smoke logs alone."""

import hashlib
import html
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm as normal
from scipy.stats import t as student

from analysis import draw, report, stats, style
from analysis.experiments import claims, experiments
from analysis.load import final, load
from analysis.style import COLOURS, NAMES
from experiments import reproduce, runs
from experiments.compose import sweep
from experiments.jobs import ROOT
from experiments.launchers import Basic
from experiments.train import train_all
from kondo.lab.ledger import COUNTS, TIMED
from kondo.lab.records import files, read_plan
from kondo.objectives import METHODS
from tests.test_load import sign

WORDS = ["--scale", "smoke", "runs='runs'", "hydra/launcher=joblib"]  # as make has them
WORDS += [] if "KONDO_SMOKE" in os.environ else ["wandb.mode=disabled"]


def reproduced(folder, *figures):
    """A smoke reproduction of all figures or some, in a folder of its own."""
    command = [sys.executable, "-m", "experiments.reproduce", *WORDS, *figures]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A folder where all figures were reproduced: the one that CI has just done it in, or another."""
    if "KONDO_SMOKE" in os.environ:
        return Path(os.environ["KONDO_SMOKE"])
    return reproduced(tmp_path_factory.mktemp("smoke"))[0]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return reproduced(tmp_path_factory.mktemp("few"), "bandit_pareto", "gate_coefficient")


@pytest.mark.slow
def test_reproduce_draws_every_figure_and_judges_every_claim(smoke):
    for name in experiments():
        for kind in ("png", "svg", "csv"):
            assert (smoke / "figures" / "smoke" / f"{name}.{kind}").stat().st_size > 200
    records = json.loads((smoke / "report" / "smoke" / "claims.json").read_text())
    assert {record["id"] for record in records} == set(claims())
    keys = {"id", "claim", "verdict", "measured", "interval", "paper", "seeds", "steps", "figure"}
    for record in records:
        assert keys <= set(record)
        assert record["verdict"] in report.MARKS


@pytest.mark.slow
def test_reproducing_again_trains_nothing(smoke, monkeypatch, capsys):
    monkeypatch.chdir(smoke)
    monkeypatch.setattr(sys, "argv", ["reproduce", *WORDS])
    monkeypatch.setattr(reproduce, "train_all", lambda todo, where: pytest.fail("trained again"))
    monkeypatch.setattr(files, "replacing", lambda path: pytest.fail("wrote into the runs folder"))
    monkeypatch.setattr(reproduce.draw, "main", lambda arguments: 0)
    monkeypatch.setattr(reproduce.report, "main", lambda arguments: 0)
    assert reproduce.main() == 0
    assert "0 to resume, 0 to train" in capsys.readouterr().out


def test_a_figure_that_searches_gets_what_it_needs_once_its_runs_are_trained(tmp_path, monkeypatch, capsys):
    words = ["method=pg,dg", "steps=2", "seeds=1", "wandb.mode=disabled", f"runs={tmp_path}"]
    first, second = sweep([*words, "search.key=task.arms", "search.values=[10]"])
    trained, planned = [], []

    def plan(figure, scale, overrides):
        planned.append(figure)
        if figure == "plain":
            return sweep([*words[1:], "method=ce"])
        return [first, second] if reproduce.unfinished([first])[1] == [] else [first]

    def train(todo, where):
        trained.append([job.cell.method for job, _ in todo])
        return train_all(todo, where)

    monkeypatch.setattr(reproduce, "plan", plan)
    monkeypatch.setattr(reproduce, "train_all", train)
    assert reproduce.train_needed(["plain", "searching"], "smoke", [], Basic()) == {}
    assert [sorted(names) for names in trained] == [["ce", "pg"], ["dg"]]
    assert planned == ["plain", "searching", "searching", "searching"]


@pytest.mark.slow
def test_only_figures_that_are_not_as_their_logs_are_drawn_again(few, tmp_path, monkeypatch, capsys):
    folder, _ = few
    shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.copytree(folder / "figures" / "smoke", out := tmp_path / "figures")
    drawn = []
    every = draw.draw_all
    monkeypatch.setattr(draw, "draw_all", lambda names, *rest: drawn.append(names) or every(names, *rest))
    names = ["bandit_pareto", "gate_coefficient"]
    words = [*names, "--runs", str(tmp_path / "runs"), "--scale", "smoke", "--out", str(out), "--changed"]
    words += ["--formats", "png", "svg"]

    def drawn_again():
        before = digests(out)
        assert draw.main(words) == 0
        assert all(digest == before[path] for path, digest in digests(out).items() if path.endswith(".svg"))
        return drawn.pop()

    assert drawn_again() == names  # the same logs in another folder
    assert drawn_again() == []
    assert "2 of 2 figures" in capsys.readouterr().out
    (out / "bandit_pareto.png").unlink()
    assert drawn_again() == ["bandit_pareto"]
    (out / "gate_coefficient.csv").write_text("touched")
    assert drawn_again() == ["gate_coefficient"]
    status = next(tmp_path.glob("runs/bandit/*/status.json"))
    status.write_text(status.read_text() + "\n")
    assert drawn_again() == ["bandit_pareto"]
    monkeypatch.setattr(draw, "_code", lambda: (b"other code",))
    assert drawn_again() == names
    words.remove("--changed")
    assert drawn_again() == names


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_redrawn_figures_are_byte_identical_and_need_no_torch(smoke, tmp_path):
    code = (
        "import sys; from analysis import draw, report;"
        "a = ['--runs', 'runs', '--scale', 'smoke'];"
        f"draw.main([*a, '--out', '{tmp_path}/f', '--formats', 'png', 'svg']);"
        f"report.main([*a, '--out', '{tmp_path}/r', '--figures', '{tmp_path}/f']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'hydra', 'wandb')))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=smoke, env=environment, check=True, capture_output=True)
    assert digests(tmp_path / "f") == digests(smoke / "figures" / "smoke")
    assert digests(tmp_path / "r") == digests(smoke / "report" / "smoke")


@pytest.mark.slow
def test_the_frame_has_the_ledger_s_columns_and_one_row_per_evaluation_and_seed(few):
    folder, _ = few
    frame = load(folder / "runs")
    assert set(COUNTS) | set(TIMED) <= set(frame.columns)
    assert not frame.duplicated(["cell", "seed", "step"]).any()
    plan = read_plan(folder / "runs", "smoke", "bandit_pareto")
    assert set(frame["cell"]) >= set(plan.cells)
    assert final(frame).groupby("cell")["seed"].nunique().min() == plan.seeds


@pytest.mark.slow
def test_a_figure_draws_without_the_runs_that_are_missing_or_torn(few, tmp_path):
    folder, _ = few
    shutil.copytree(folder / "runs", tmp_path / "runs")
    logs = sorted(tmp_path.glob("runs/bandit/*/metrics.jsonl"))
    logs[0].unlink()
    logs[1].write_text(logs[1].read_text()[:-40])
    status = logs[2].with_name("status.json")
    status.write_text(status.read_text().replace('"done"', '"running"'))
    (drawn,) = draw.draw("bandit_pareto", [(tmp_path / "runs", tmp_path / "figures")], "smoke")
    assert len(drawn.paths) == 4
    assert len(drawn.damaged) == 2


@pytest.mark.slow
def test_a_diverged_seed_is_counted_in_the_figure_and_named_in_the_report(few, tmp_path):
    folder, _ = few
    shutil.copytree(folder / "runs", tmp_path / "runs")
    plan = read_plan(tmp_path / "runs", "smoke", "bandit_pareto")
    log = next(tmp_path.glob(f"runs/bandit/{next(iter(plan.cells))}-*/metrics.jsonl"))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    metric = load(tmp_path / "runs", [log.parent.name[:12]])["metric"].iloc[0]
    rows[-1] |= {metric: None, "diverged": 7}
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sign(log.parent, status="diverged", diverged={rows[-1]["seed"]: 7})
    draw.draw("bandit_pareto", [(tmp_path / "runs", tmp_path)], "smoke", ("svg",))
    points = pd.read_csv(tmp_path / "bandit_pareto.csv").query("kind == 'point'")
    assert points["diverged"].sum() == 1
    gaps = report._gaps(report.Source("", tmp_path / "runs", "smoke", tmp_path), plan)
    assert gaps == [f"diverged: {plan.name(next(iter(plan.cells)))} (seed {rows[-1]['seed']} at step 7)"]


@pytest.mark.slow
def test_two_sets_of_logs_are_shown_on_the_same_axes_with_their_own_verdicts(few, tmp_path, monkeypatch):
    folder, _ = few
    shutil.copytree(folder / "runs", tmp_path / "other" / "runs")
    for log in tmp_path.glob("other/runs/bandit/*/metrics.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        metric = load(tmp_path / "other" / "runs", [log.parent.name[:12]])["metric"].iloc[0]
        log.write_text("".join(json.dumps(row | {metric: row[metric] / 50}) + "\n" for row in rows))
        sign(log.parent)
    drawn = {}
    monkeypatch.setattr(style, "save", lambda figure, stem, formats: drawn.update({stem.parent.name: figure}) or [])
    places = [(folder / "runs", tmp_path / "a"), (tmp_path / "other" / "runs", tmp_path / "b")]
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    draw.draw("bandit_pareto", places, "smoke", ("svg",))
    (ours,), (theirs,) = (figure.axes for figure in drawn.values())
    assert ours.get_ylim() == theirs.get_ylim()
    assert ours.get_ylim()[0] < pd.read_csv(tmp_path / "b" / "bandit_pareto.csv")["error"].max() / 1.01
    monkeypatch.undo()
    main = ["--runs", str(folder / "runs"), "--scale", "smoke", "--out", str(tmp_path / "report")]
    assert report.main([*main, "--compare", str(tmp_path / "other" / "runs")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<svg role") == 2 * 2
    assert "measured (other/runs)" in page
    assert {path.name for path in (tmp_path / "report").glob("*.json")} == {"claims.json", "claims_compared.json"}


def test_reports_and_figures_of_no_folder_are_refused(tmp_path, capsys):
    for main in (draw.main, report.main):
        with pytest.raises(SystemExit):
            main(["--runs", str(tmp_path / "none")])
        assert "none: no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        runs.main(["list", "--runs", str(tmp_path / "none")])


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<script>addEventListener("load", () => { document.title = JSON.stringify({
  images: [...document.querySelectorAll("svg[role=img]")].map(image => image.getBoundingClientRect().width),
  rows: document.querySelectorAll("table.claims tbody tr").length,
  cells: [...document.querySelectorAll("table.claims td")].filter(cell => !cell.textContent.trim()).length,
  targets: [...document.querySelectorAll("table.claims a")].filter(link => !document.querySelector(link.hash)).length,
  wider: document.documentElement.scrollWidth - innerWidth,
})})</script></head>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
def test_the_report_opens_in_a_browser_with_every_figure_a_complete_table_and_no_error(smoke, tmp_path):
    page = (smoke / "report" / "smoke" / "index.html").read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)  # self-contained
    (tmp_path / "page.html").write_text(page.replace("</head>", PROBE))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    flags += (
        f" --disable-component-update --enable-logging=stderr --window-size=500,900 --user-data-dir={tmp_path}/user"
    )
    command = [str(CHROMIUM), *flags.split(), "--virtual-time-budget=10000", "--dump-dom", f"{tmp_path}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert "CONSOLE" not in done.stderr
    assert len(seen["images"]) == len(experiments())
    assert min(seen["images"]) > 100
    assert seen["rows"] == len(claims())
    assert (seen["cells"], seen["targets"]) == (0, 0)
    assert seen["wider"] <= 0  # nothing sticks out on a narrow screen


@pytest.mark.slow
def test_every_figure_of_the_report_says_what_was_measured(smoke):
    page = html.unescape((smoke / "report" / "smoke" / "index.html").read_text())
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page, flags=re.S))
    assert set(sections) == set(experiments())
    decides = {claim.figure for claim in claims().values()}
    for name, section in sections.items():
        words = re.findall(r"Measured: (.+?)\.</p>", section, flags=re.S)
        assert words, name
        assert ("Not a claim of the papers" in section) == (name not in decides)
        assert all(re.search(r"\d", each) or each.startswith(("no runs", "runs are of")) for each in words), name
    shown = pd.read_csv(smoke / "figures" / "smoke" / "llm_screening.csv").set_index("label")
    assert f"8-bit weights {shown.loc['8-bit weights', 'recall']:.0%}, " in sections["llm_screening"]


def test_drawing_from_nothing_says_what_to_do(tmp_path, capsys):
    assert draw.main(["--runs", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "make reproduce" in capsys.readouterr().out


def test_an_unknown_figure_is_refused(capsys):
    with pytest.raises(SystemExit):
        draw.main(["pareto_bandit"])
    assert "bandit_pareto" in capsys.readouterr().err


def test_every_method_has_a_colour_of_its_own_and_a_name():
    assert {name for name, code in METHODS.items() if code.__module__.startswith("kondo.")} <= set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS) == len(NAMES)


def test_every_experiment_has_a_figure_and_a_plan():
    assert set(reproduce.experiments()) == set(experiments())


# Statistics


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        interval = stats.bootstrap(rng.normal(3, 1, size=5))
        hits += interval.low <= 3 <= interval.high
    assert 0.91 <= hits / 300 <= 0.985  # 0.95 ± 3 binomial deviations


def test_factor_is_between_means_of_paired_seeds_with_the_interval_of_the_delta_method():
    rng = np.random.default_rng(0)
    common = rng.uniform(1, 2, size=400)
    theirs, ours = pd.Series(5 * common * rng.uniform(0.9, 1.1, 400)), pd.Series(common)
    found, inverse = stats.factor(theirs, ours), stats.factor(ours, theirs)
    assert found.mean == pytest.approx(theirs.mean() / ours.mean())
    assert (inverse.mean, inverse.low, inverse.high) == pytest.approx((1 / found.mean, 1 / found.high, 1 / found.low))
    spread = 1.966 * (theirs / theirs.mean() - ours / ours.mean()).std() / 20
    assert np.log([found.low, found.high]) - np.log(found.mean) == pytest.approx([-spread, spread], rel=0.05)
    few = stats.factor(pd.Series([8.0, 1.0, 9.0], index=[0, 1, 5]), pd.Series([2.0, 3.0], index=[0, 7]))
    assert (few.mean, few.low, few.high) == (pytest.approx(4.0), 0.0, np.inf)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_the_interval_is_that_of_all_resamples_stretched_for_few_values_at_the_asked_level(level):
    """All 3,125 resamples of five values. 10,000 random ones know a tail of 0.5% to 14%, and the rest better."""
    values = np.array([0.3, 0.9, 1.4, 3.1, 7.7])
    means = np.array(list(itertools.product(values, repeat=5))).mean(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    stretch = student.ppf(1 - tail, 4) / normal.ppf(1 - tail) * (5 / 4) ** 0.5
    found = stats.bootstrap(values, level)
    assert found.mean == pytest.approx(2.68)
    assert 2.68 - found.low == pytest.approx(stretch * (2.68 - low), rel=0.05)
    assert found.high - 2.68 == pytest.approx(stretch * (high - 2.68), rel=0.05)


def test_paired_differences_and_factors_have_the_asked_level_too():
    ours, theirs = pd.Series([1.0, 2.0, 5.0, 4.0]), pd.Series([3.0, 9.0, 2.0, 7.0])
    for level in (0.8, 0.99):
        assert stats.paired(ours, theirs, level) == stats.bootstrap([-2.0, -7.0, 3.0, -3.0], level)
    narrow, wide = (stats.factor(theirs, ours, level) for level in (0.8, 0.99))
    assert narrow.mean == wide.mean == pytest.approx(21 / 12)
    logs = [np.log((x.high / x.mean, x.mean / x.low)) for x in (narrow, wide)]
    assert (logs[1] > 2 * logs[0]).all()  # t₃ is 1.64 at 80% and 5.84 at 99%


def test_bootstrap_is_the_same_every_time_and_admits_ignorance_of_one_value():
    values = [1.0, 2.0, 5.0]
    assert stats.bootstrap(values) == stats.bootstrap(values)
    one = stats.bootstrap([2.0])
    assert (one.mean, one.low, one.high) == (2.0, -np.inf, np.inf)


def test_paired_interval_uses_the_seeds_both_have():
    ours, theirs = pd.Series({0: 1.0, 1: 2.0, 2: 9.0}), pd.Series({0: 0.5, 1: 1.5, 3: 4.0})
    interval = stats.paired(ours, theirs)
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.5, 0.5)


def test_pareto_front_is_what_no_point_beats_in_both():
    cost, loss = [1, 2, 3, 3, 4, 1], [5, 3, 4, 2, 2, 6]
    expected = [not any((c <= c0 and e <= e0) and (c < c0 or e < e0) for c, e in zip(cost, loss, strict=True))
                for c0, e0 in zip(cost, loss, strict=True)]  # fmt: skip
    assert stats.pareto_front(cost, loss).tolist() == expected
