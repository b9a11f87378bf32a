"""Figures and claims from real smoke logs alone."""

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from analysis import claims, draw, plots, report, stats, style, tables
from analysis.load import final, load, read_plan
from analysis.style import COLOURS, FORMATS, NAMES
from experiments import compose, reproduce, runs
from experiments.compose import ROOT, sweep
from experiments.launchers import Basic
from experiments.train import train_all
from kondo.ledger import COUNTS, TIMED
from kondo.objectives import METHODS
from tests.test_load import sign


def reproduced(folder, *figures):
    """A smoke reproduction of all figures or some, in a folder of its own."""
    command = [sys.executable, "-m", "experiments.reproduce", "--scale", "smoke", *figures, f"runs={folder}/runs"]
    command += ["wandb.mode=disabled"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return reproduced(tmp_path_factory.mktemp("smoke"))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return reproduced(tmp_path_factory.mktemp("few"), "bandit_pareto", "gate_coefficient")


@pytest.mark.slow
def test_reproduce_draws_every_figure_and_judges_every_claim(smoke):
    folder, output = smoke
    for name in draw.figures():
        assert name in output
        for kind in (*FORMATS, "csv"):
            assert (folder / "figures" / "smoke" / f"{name}.{kind}").stat().st_size > 200
    records = json.loads((folder / "report" / "smoke" / "claims.json").read_text())
    assert {record["id"] for record in records} == set(claims.CLAIMS)
    keys = {"id", "claim", "verdict", "measured", "interval", "paper", "seeds", "steps", "figure"}
    for record in records:
        assert keys <= set(record)
        assert record["verdict"] in report.MARKS


@pytest.mark.slow
def test_reproducing_again_trains_nothing(smoke, monkeypatch, capsys):
    folder, _ = smoke
    monkeypatch.setattr(sys, "argv", ["reproduce", "--scale", "smoke", f"runs={folder}/runs"])
    monkeypatch.setattr(reproduce, "train_all", lambda todo, where: pytest.fail("trained again"))
    monkeypatch.setattr(compose, "write_atomically", lambda path, text: pytest.fail("wrote into the runs folder"))
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


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_redrawn_figures_are_byte_identical_and_need_no_torch(smoke, tmp_path):
    folder, _ = smoke
    code = (
        "import sys; from analysis import draw, report;"
        f"a = ['--runs', '{folder}/runs', '--scale', 'smoke'];"
        f"draw.main([*a, '--out', '{tmp_path}/f']);"
        f"report.main([*a, '--out', '{tmp_path}/r', '--figures', '{tmp_path}/f']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'hydra', 'wandb', 'kondo')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    assert digests(tmp_path / "f") == digests(folder / "figures" / "smoke")
    assert digests(tmp_path / "r") == digests(folder / "report" / "smoke")


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
    assert page.count("<img ") == 2 * 2
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
  images: [...document.images].map(image => image.naturalWidth),
  rows: document.querySelectorAll("table.claims tbody tr").length,
  cells: [...document.querySelectorAll("table.claims td")].filter(cell => !cell.textContent.trim()).length,
  targets: [...document.querySelectorAll("table.claims a")].filter(link => !document.querySelector(link.hash)).length,
  wider: document.documentElement.scrollWidth - innerWidth,
})})</script></head>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
def test_the_report_opens_in_a_browser_with_every_figure_a_complete_table_and_no_error(smoke, tmp_path):
    folder, _ = smoke
    page = (folder / "report" / "smoke" / "index.html").read_text()
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
    assert len(seen["images"]) == len(draw.figures())
    assert min(seen["images"]) > 100
    assert seen["rows"] == len(claims.CLAIMS)
    assert (seen["cells"], seen["targets"]) == (0, 0)
    assert seen["wider"] <= 0  # nothing sticks out on a narrow screen


@pytest.mark.slow
def test_every_figure_of_the_report_says_what_was_measured(smoke):
    folder, _ = smoke
    page = html.unescape((folder / "report" / "smoke" / "index.html").read_text())
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page, flags=re.S))
    assert set(sections) == set(draw.figures())
    decides = {claim.figure for claim in claims.CLAIMS.values()}
    for name, section in sections.items():
        words = re.findall(r"Measured: (.+?)\.</p>", section, flags=re.S)
        assert words, name
        assert ("Not a claim of the papers" in section) == (name not in decides)
        assert all(re.search(r"\d", each) or each == "no runs" for each in words), name
    shown = pd.read_csv(folder / "figures" / "smoke" / "llm_screening.csv").set_index("label")
    assert f"8-bit weights {shown.loc['8-bit weights', 'recall']:.0%}, " in sections["llm_screening"]


def test_numbers_in_words_are_readable_and_possible():
    wild = stats.Interval(11_934.2, 4.941, 28_512_345.0)
    assert claims.times(wild) == "11,900 times (4.94 to over a million)"
    assert claims.points(stats.Interval(-0.4473, -1.2876, 0.229)) == "-44.73 points (-100.00 to 22.90)"
    assert claims.share(6.67e-5) == "0.00667%"
    scattered = pd.DataFrame({"error": [0.01, 0.9, 0.02], "seed": [0, 1, 2], "step": 5})
    scattered = scattered.assign(forward=1, screened=0, backward=1, **{"method.name": "dg"})
    (row,) = tables.aggregate(scattered, ["method.name"]).to_dict("records")
    assert plots.error(row) == "31.00% (0.00% to 100.00%)"


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
    assert set(reproduce.experiments()) == set(draw.figures())


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


# Claims


def bandit_frame(errors: dict, seeds: int = 10, spread: float = 0.01) -> pd.DataFrame:
    """Final rows of runs with given (method, rate) → (mean error, backward passes)."""
    rng = np.random.default_rng(0)
    rows = []
    for (method, rate), (error, backward) in errors.items():
        for seed in range(seeds):
            rows.append(
                {
                    "seed": seed,
                    "step": 100,
                    "steps": 100,
                    "method.name": method,
                    "gate.rate": rate,
                    "gate.price": np.nan,
                    "gate.priority": "delight" if method == "dgk" else np.nan,
                    "error": error + spread * rng.normal(),
                    "backward": backward,
                }
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("gate", "verdict"),
    [
        ((0.1, 50), claims.REPRODUCED),  # better and cheaper than both
        ((0.3, 50), claims.PARTLY),  # better than PG, worse than DG
        ((0.5, 50), claims.NOT),
        ((0.1, 100), claims.NOT),  # better, but no cheaper
        ((0.199, 50), claims.PARTLY),  # a difference to DG that noise explains
        ((0.399, 50), claims.INCONCLUSIVE),  # worse than DG, and one to PG that noise explains
    ],
)
def test_domination_needs_lower_error_beyond_noise_and_fewer_backward_passes(gate, verdict):
    frame = bandit_frame({("pg", np.nan): (0.4, 100), ("dg", np.nan): (0.2, 100), ("dgk", 0.1): gate})
    assert claims.gate_dominates(frame).verdict == verdict


def curves(courses: dict[str, list[list[float]]]) -> pd.DataFrame:
    """Learning curves, {method: [errors at steps 0, 1, 2, … of each seed]}; NaN from where a seed diverged."""
    rows = [
        {"seed": seed, "step": step, "steps": len(errors) - 1, "error": error, "method.name": method}
        | {"forward": 100 * step, "screened": 0, "backward": (3 if method == "dgk" else 100) * step}
        | {"gate.rate": 0.03 if method == "dgk" else np.nan, "gate.price": np.nan}
        for method, seeds in courses.items()
        for seed, errors in enumerate(seeds)
        for step, error in enumerate(errors)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("late", [[0.9, 0.9, 0.9, 0.9], [0.9, np.nan, np.nan, np.nan]])
def test_a_seed_that_diverges_or_never_gets_there_speaks_against_its_method(late):
    good = [[0.9, 0.5, 0.04, 0.03]] * 4
    reached = claims.gate_matches_dg(curves({"pg": good, "dg": good, "dgk": good}))
    assert reached.measured == pytest.approx(100 / 3)
    one = claims.gate_matches_dg(curves({"pg": good, "dg": good, "dgk": [*good[:3], late]}))
    assert list(one.parts.values()) == ["open", "open"]
    assert one.measured == 0
    assert "as many backward passes: 0 times (0 to over a million)" in list(one.parts)[1]
    assert "never reached 5%: 1 of DG-K" in one.detail
    every = claims.gate_matches_dg(curves({"pg": good, "dg": good, "dgk": [late] * 4}))
    assert list(every.parts.values()) == ["fails", "fails"]
    against = claims.gate_matches_dg(curves({"pg": [late] * 4, "dg": good, "dgk": good}))
    assert against.measured > reached.measured  # all that PG spent, a bound


def test_importance_sampling_must_be_in_between():
    def frame(sampling: float) -> pd.DataFrame:
        ends = bandit_frame({("pg", np.nan): (0.9, 1), ("dg", np.nan): (0.02, 1), ("is_pg", np.nan): (sampling, 1)},
                            spread=0.001)  # fmt: skip
        return ends.assign(**{"friction.staleness.delay": 1000})

    assert claims.dg_survives_staleness(frame(0.1)).verdict == claims.REPRODUCED
    beyond = claims.dg_survives_staleness(frame(0.97))
    assert [text.partition(":")[0] for text, held in beyond.parts.items() if held == "fails"] == ["IS-PG below PG"]


def test_few_seeds_or_missing_references_are_not_judged():
    cells = {("pg", np.nan): (0.4, 100), ("dg", np.nan): (0.2, 100), ("dgk", 0.1): (0.1, 50)}
    assert claims.gate_dominates(bandit_frame(cells, seeds=2)).verdict == claims.INCONCLUSIVE
    cells.pop(("pg", np.nan))
    assert claims.gate_dominates(bandit_frame(cells)).verdict == claims.INCONCLUSIVE


def test_claims_without_runs_say_so(tmp_path):
    assert {record["verdict"] for record in report.Source("none", tmp_path, "laptop", tmp_path).judge()} == {
        claims.INCONCLUSIVE
    }
