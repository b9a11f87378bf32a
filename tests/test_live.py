"""The report's page is live: clicked through in Chromium, where there is one."""

import html
import json
import re
import shutil
import subprocess

import matplotlib as mpl
import pandas as pd
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt

from analysis import live, plots, report, style
from analysis.judge import NOT, REPRODUCED, Claim, Finding

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def svg(tmp_path_factory):
    """Two curves with their bands, and published points."""
    rows = [
        {"method.name": name, "gate.rate": rate, "gate.price": None, "step": step, "seeds": 7, "forward": 100.0 * step}
        | {"error": level / step, "error_low": 0.9 * level / step, "error_high": 1.1 * level / step}
        for name, rate, level in (("dg", None, 0.5), ("dgk", 0.03, 0.8))
        for step in (1, 10, 100)
    ]
    figure, axes = plt.subplots()
    table = pd.DataFrame(rows)
    plots.lines(axes, table, "forward")
    points = table[table["method.name"] == "dg"].assign(value=0.4, **{"gate.price": None})
    plots.overlay(axes, points)
    axes.set(xscale="log", yscale="log", xlabel="forward passes", ylabel="error")
    (path,) = style.save(figure, tmp_path_factory.mktemp("figure") / "fig", ("svg",))
    return path.read_text()


def series(svg: str) -> list[dict]:
    return json.loads(html.unescape(live.DESCRIPTION.search(svg)[1]))


def test_a_saved_figure_says_which_shape_is_whose_and_what_it_shows(svg):
    told = series(svg)
    assert [(each["kind"], each["label"]) for each in told if each["kind"] != "band"] == [
        ("curve", "DG"),
        ("curve", "DG-K ρ=3%"),
        ("paper", "DG"),
    ]
    assert {each["label"] for each in told if each["kind"] == "band"} == {"DG", "DG-K ρ=3%"}
    curve = told[0]
    assert (curve["n"], curve["x"], curve["y"]) == (7, "forward passes", "error")
    assert [point[2:] for point in curve["points"]] == [[100, 0.5], [1000, 0.05], [10000, 0.005]]
    path = re.search(rf'<g id="{curve["id"]}">\s*<path d="([^"]*)"', svg)[1]
    drawn = [list(map(float, pair)) for pair in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    for point, place in zip(curve["points"], drawn, strict=True):
        assert point[:2] == pytest.approx(place, abs=0.1)


def test_figures_on_one_page_share_no_id(svg):
    first, second = (live.inlined(svg, name, name) for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', each)) for each in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r"(?:url\(|href=\")#([^\")]+)", first)) <= ids[0]


def page(svg: str, tmp_path, script: str) -> str:
    """A page with a table of three claims and a figure, and a script that clicks."""
    records = []
    for id, verdict, seeds in (("J1", REPRODUCED, 30), ("J2", NOT, 5), ("J3", REPRODUCED, 100)):
        about = {
            key: value
            for key, value in vars(Claim(id, f"claim {id}", "", "fig", "", {}, None)).items()
            if key != "check"
        }
        records.append(about | vars(Finding(verdict, "detail", seeds=seeds, steps=10)))
    source = report.Source("", tmp_path, "smoke", tmp_path)
    table = report._table([source], [{record["id"]: record for record in records}])
    other = svg.replace("=3%", "=3%, soft")  # a label with a comma, in another figure
    figures = "".join(
        f'<section id="{name}"><figure><div class="wide">{live.inlined(each, name, name)}</div></figure></section>'
        for name, each in (("fig", svg), ("two", other))
    )
    body = f"{table}{figures}<script>{report.SCRIPT.read_text()}</script>"
    return f"<!doctype html><style>{report.CSS.read_text()}</style>{body}<script>{script}</script>"


HELPERS = """
const every = () => [...document.querySelectorAll("table.claims tbody tr")];
const shown = () => every().filter((row) => !row.hidden).map((row) => row.id);
const button = (text) => [...document.querySelectorAll("button")].find((each) => each.textContent === text);
const box = (text) => [...document.querySelectorAll("label")].find((each) => each.textContent === text).firstChild;
const head = (key) => document.querySelector(`th[data-key="${key}"]`);
const told = JSON.parse(document.querySelector("svg[data-series]").dataset.series);
const off = () => told.filter((each) => document.getElementById(`fig--${each.id}`).style.display === "none");
const names = () => off().map((each) => `${each.kind} ${each.label}`);
const out = {};
const tell = () => { document.title = JSON.stringify(out); };
"""


def clicked(tmp_path, svg: str, script: str, address: str = "") -> dict:
    path = tmp_path / "page.html"
    path.write_text(page(svg, tmp_path, f"{HELPERS}{script}; tell();"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *words, f"{path.as_uri()}{address}"], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout, flags=re.S)[1]))


@needs_chromium
def test_clicks_sort_and_filter_the_verdicts_and_the_address_keeps_it(tmp_path, svg):
    found = clicked(
        tmp_path,
        svg,
        """
        out.all = shown();
        button("reproduced").click(); out.reproduced = shown(); out.address = location.hash;
        button("reproduced").click(); out.again = shown();
        head("n").click(); out.up = shown();
        head("n").click(); out.down = shown();
        const search = document.querySelector("input[type=search]");
        search.value = "claim j2"; search.dispatchEvent(new Event("input")); out.searched = shown();
        """,
    )
    every = ["claim-J1", "claim-J2", "claim-J3"]
    assert found["all"] == found["again"] == every
    assert found["reproduced"] == ["claim-J1", "claim-J3"]
    assert found["address"] == "#claims?verdict=reproduced"
    assert found["up"] == ["claim-J2", "claim-J1", "claim-J3"]
    assert found["down"] == found["up"][::-1]
    assert found["searched"] == ["claim-J2"]


@needs_chromium
def test_methods_and_the_paper_s_points_are_switched_and_a_curve_tells_its_values(tmp_path, svg):
    found = clicked(
        tmp_path,
        svg,
        """
        box("DG-K ρ=3%").click(); out.hidden = names();
        box("DG-K ρ=3%").click(); box("the paper's points").click(); out.paper = names(); out.address = location.hash;
        const svg = document.querySelector("svg[data-series]");
        const point = told.find((each) => each.label === "DG" && each.points).points[1];
        const at = new DOMPoint(point[0], point[1]).matrixTransform(svg.getScreenCTM());
        svg.dispatchEvent(new MouseEvent("mousemove", { clientX: at.x, clientY: at.y }));
        out.tip = document.querySelector(".tip").textContent;
        svg.dispatchEvent(new MouseEvent("mouseleave")); out.left = document.querySelector(".tip").hidden;
        """,
    )
    assert sorted(found["hidden"]) == ["band DG-K ρ=3%", "curve DG-K ρ=3%"]
    assert found["paper"] == ["paper DG"]
    assert found["address"] == "#fig?paper=off"
    assert found["tip"] == "DG: error 0.05, forward passes 1,000, n = 7"
    assert found["left"] is True


@needs_chromium
def test_what_is_hidden_in_one_figure_is_hidden_in_all_also_after_a_reload(tmp_path, svg):
    two = """
        const second = () => JSON.parse(document.querySelectorAll("svg[data-series]")[1].dataset.series)
          .filter((each) => document.getElementById(`two--${each.id}`).style.display === "none")
          .map((each) => `${each.kind} ${each.label}`);
        const boxes = (text) => [...document.querySelectorAll("label")].filter((each) => each.textContent === text)
          .map((each) => each.firstChild.checked);
        """
    click = two + 'box("DG").click(); box("DG-K ρ=3%, soft").click(); out.second = second(); out.boxes = boxes("DG");'
    found = clicked(tmp_path, svg, click + "out.first = names(); out.address = location.hash;")
    assert sorted(found["second"]) == [
        "band DG",
        "band DG-K ρ=3%, soft",
        "curve DG",
        "curve DG-K ρ=3%, soft",
        "paper DG",
    ]
    assert sorted(found["first"]) == ["band DG", "curve DG", "paper DG"]
    assert found["boxes"] == [False, False]
    again = clicked(tmp_path, svg, two + "out.second = second(); out.first = names();", found["address"])
    assert (again["second"], again["first"]) == (found["second"], found["first"])


@needs_chromium
def test_an_address_that_is_none_of_ours_does_no_harm(tmp_path, svg):
    assert len(clicked(tmp_path, svg, "out.shown = shown();", "#50%?q=%")["shown"]) in (0, 3)


@needs_chromium
def test_a_deep_link_opens_the_page_as_it_was(tmp_path, svg):
    found = clicked(
        tmp_path, svg, "out.shown = shown(); out.off = names();", "#claims?verdict=not+reproduced&hide=DG&paper=off"
    )
    assert found["shown"] == ["claim-J2"]
    assert sorted(found["off"]) == ["band DG", "curve DG", "paper DG"]
