"""Judge the claims and write the report, from logs alone: report/<scale>/claims.json and index.html.

    python -m analysis.report --scale laptop
    python -m analysis.report --compare other/runs        # a second set of logs beside the first

The page is one file: figures, data and the script that makes them live are inside it.
"""

from __future__ import annotations

import argparse
import base64
import functools
import html
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.draw import SCALES, draw_all, reason
from analysis.experiments import claims, experiments
from analysis.judge import INCONCLUSIVE, NOT, NOT_RUN, PARTLY, REPRODUCED, Claim, Finding
from analysis.live import inlined
from analysis.load import final, read_figure, which_logs
from kondo.lab.interrupts import quietly
from kondo.lab.records import Plan, cell_of, read_plan, read_status, run_folders, spent

CSS, SCRIPT = (Path(__file__).with_name(f"report.{kind}") for kind in ("css", "js"))
MARKS = {REPRODUCED: "✓", PARTLY: "◐", NOT: "✗", INCONCLUSIVE: "…", NOT_RUN: "–"}
PART_MARKS = {"holds": "✓", "open": "…", "fails": "✗"}


@dataclass(frozen=True)
class Source:
    """A set of logs."""

    name: str
    runs: Path
    scale: str
    figures: Path
    """Where its figures are drawn."""
    trouble: dict[str, str] = field(default_factory=dict, compare=False)
    """{figure or claim: what went wrong with it}"""

    def judge(self) -> list[dict[str, Any]]:
        """Every claim, on the runs that its figure planned at this scale."""
        return [self._judged(claim) | {"scale": self.scale} for claim in claims().values()]

    def _judged(self, claim: Claim) -> dict[str, Any]:
        """What a claim came to; one that cannot be checked is no reason not to check the others."""
        try:
            return claim.judge(self.frame(claim.figure))
        except Exception as error:
            self.trouble[claim.id] = f"cannot be checked: {reason(error)}"
            about = {key: value for key, value in vars(claim).items() if not callable(value)}
            return about | asdict(Finding(NOT_RUN, self.trouble[claim.id]))

    def frame(self, figure: str) -> pd.DataFrame:
        return self.read(figure)[0]

    @functools.cache  # noqa: B019  a source lives as long as the page is written
    def read(self, figure: str) -> tuple[pd.DataFrame, list[str]]:
        """The runs of a figure, and a sentence for each folder that had to be left out."""
        return read_figure(self.runs, self.scale, figure)

    @functools.cache  # noqa: B019
    def plan(self, figure: str) -> Plan | None:
        return read_plan(self.runs, self.scale, figure)


def draw_missing(sources: Sequence[Source]) -> None:
    """Draw what the page shows and is not drawn yet, the same figure of all sources on the same axes."""
    planned = [name for name in experiments() if any(source.plan(name) for source in sources)]
    missing = [name for name in planned if any(not (each.figures / f"{name}.svg").exists() for each in sources)]
    places = [(each.runs, each.figures) for each in sources]
    for name, drawn in draw_all(missing, places, sources[0].scale, ("svg",)):
        for source, each in zip(sources, drawn, strict=True):
            if each.trouble:
                source.trouble[name] = each.trouble


def short_names(paths: Sequence[Path]) -> list[str]:
    """As much of the end of each path as tells them apart."""
    parts = [path.absolute().parts for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return [str(Path(*part[-length:])) for part in parts]


def page(sources: Sequence[Source], judged: Sequence[list[dict[str, Any]]]) -> str:
    """The report, as one HTML document; `judged` is what each source's claims came to."""
    verdicts = [{record["id"]: record for record in records} for records in judged]
    shown = [name for name in experiments() if any(source.plan(name) for source in sources)]
    tally = Counter(record["verdict"] for record in verdicts[0].values())
    summary = ", ".join(f"{tally[word]} {word}" for word in MARKS if tally[word])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kondo: what held</title><style>{CSS.read_text()}</style></head>
<body class="{"compared" if len(sources) > 1 else "single"}"><main>
<h1>What held</h1>
<p>The claims of <em>Does This Gradient Spark Joy?</em> (arXiv 2603.20526, J) and <em>Delightful Distributed Policy
Gradient</em> (arXiv 2603.20521, D), each checked on this suite's logs at {_esc(sources[0].scale)} scale:
{_esc(summary)}. Each is a predicate over the logs, in <code>analysis/experiments/</code>, whose parts hold, do not
hold, or are left open by a 95% confidence interval (a bootstrap over seeds): “{REPRODUCED}”, all parts hold;
“{PARTLY}”, some; “{NOT}”, none, and none is open; “{INCONCLUSIVE}”, the runs are there, and too few or too scattered
to tell; “{NOT_RUN}”, there are no finished runs of what the claim is about. In J7, J12 and D3-mnist, where many
alternatives are compared, intervals are wider by Bonferroni's rule. Elsewhere each part has its own 95%: enough for a
claim all of whose parts must hold, but “{PARTLY}” may rest on a single part. A factor of the paper's counts as reached
if the estimate is at least three quarters of it and the interval is above 1. A seed that diverged counts as an error of
100%, one that never reached 5% as a failure of its method. Which of these rules were settled after a look at the
numbers is in docs/protocol.md.</p>
{_table(sources, verdicts)}
<h2>Figures</h2>
{"".join(_figure(name, sources, verdicts) for name in shown)}
<h2>Provenance</h2>
{"".join(_provenance(source) for source in sources)}
</main><script>{SCRIPT.read_text()}</script></body></html>
"""


def _table(sources: Sequence[Source], verdicts: Sequence[dict[str, dict[str, Any]]]) -> str:
    rows = []
    for key, record in verdicts[0].items():
        shown = any(source.plan(record["figure"]) for source in sources)
        link = f'<a href="#{_esc(record["figure"])}">{_esc(key)}</a>' if shown else _esc(key)
        cells = "".join(
            _verdict_cells(each[key], _named(source, sources)) for each, source in zip(verdicts, sources, strict=True)
        )
        claim = f'<td data-label="claim">{_esc(record["claim"])}</td>'
        version = f" ({record['version']})" if record.get("version") else ""
        paper = f'<td data-label="paper">{_esc(record["paper"])}{_esc(version)}</td>'
        about = f'id="claim-{_esc(key)}" data-verdict="{_esc(record["verdict"])}"'
        rows.append(f'<tr {about}><th scope="row">{link}</th>{claim}{cells}{paper}</tr>')
    heads = "<th>verdict</th><th>measured</th><th>n, steps</th>"
    if len(sources) > 1:
        heads = "".join(f"<th>measured{_named(source, sources)}</th>" for source in sources)
    return f"""<table class="claims" id="claims"><thead><tr><th>id</th><th>claim</th>{heads}<th>paper</th></tr></thead>
<tbody>{"".join(rows)}</tbody></table>"""


def _verdict_cells(record: dict[str, Any], named: str) -> str:
    word = record["verdict"]
    chip = f'<span class="chip {word.replace(" ", "-")}">{MARKS[word]} {_esc(word)}</span>'
    seeds, steps = record["seeds"], record["steps"]
    usual = {0: f"{seeds} seeds", 1: f"{seeds} replicates, nothing trained"}
    size = usual.get(steps, f"{seeds} seeds, {steps:,} steps") if seeds else "none"
    measured = f"{_esc(record['detail'])}{_parts(record['parts'])}"
    if named:
        return f'<td data-label="measured{named}">{chip} {_esc(size)}<br>{measured}</td>'
    return (
        f'<td data-label="verdict">{chip}</td><td data-label="measured">{measured}</td>'
        f'<td data-label="n">{_esc(size)}</td>'
    )


def _parts(parts: dict[str, str]) -> str:
    """Which parts of a claim hold, folded away."""
    if not parts:
        return ""
    tally = Counter(parts.values())
    total = ", ".join(f"{tally[word]} {_plural(word, tally[word])}" for word in PART_MARKS if tally[word])
    rows = "".join(f"<li>{PART_MARKS[word]} {_esc(word)}: {_esc(text)}</li>" for text, word in parts.items())
    return f"<details><summary>parts: {_esc(total)}</summary><ul>{rows}</ul></details>"


def _plural(word: str, count: int) -> str:
    return word if count == 1 or word == "open" else word.removesuffix("s")


def _figure(name: str, sources: Sequence[Source], verdicts: Sequence[dict[str, dict[str, Any]]]) -> str:
    module = experiments()[name]
    title = (module.__doc__ or name).strip().splitlines()[0]
    body = "".join(_drawing(name, source, sources) for source in sources)
    body = f'<div class="beside">{body}</div>' if len(sources) > 1 else body
    notes = "".join(
        f"<p><b>{_esc(record['id'])}</b> {_esc(record['claim'])}. The paper: {_esc(record['paper'])}. "
        f"Measured{_named(source, sources)}: {_esc(record['detail'])}.</p>"
        for source, verdict in zip(sources, verdicts, strict=True)
        for record in verdict.values()
        if record["figure"] == name
    )
    if hasattr(module, "measured"):
        notes += "".join(
            f"<p>Not a claim of the papers. Measured{_named(source, sources)}: {_esc(_measured(name, source))}.</p>"
            for source in sources
            if (source.figures / f"{name}.csv").exists()
        )
    return f'<section id="{_esc(name)}"><h3>{_esc(title)}</h3>{body}{notes}</section>'


def _measured(name: str, source: Source) -> str:
    """What a figure shows, in words."""
    try:
        return str(experiments()[name].measured(pd.read_csv(source.figures / f"{name}.csv")))
    except Exception as error:
        source.trouble[name] = f"cannot be put in words: {reason(error)}"
        return source.trouble[name]


def _drawing(name: str, source: Source, sources: Sequence[Source]) -> str:
    plan = source.plan(name)
    if plan is None:
        return f"<p>{_esc(source.name)}: not planned at {_esc(source.scale)} scale.</p>"
    paths = {kind: source.figures / f"{name}{kind}" for kind in (".svg", ".csv")}
    gaps = "".join(f'<p class="gap">{_esc(gap)}</p>' for gap in _gaps(source, plan))
    if not all(path.exists() for path in paths.values()):
        return f"<div><p>{_esc(source.name)}: {_esc(source.trouble.get(name, 'no finished runs'))}.</p>{gaps}</div>"
    data = _data_uri(paths[".csv"], "text/csv")
    place = f"{name}{sources.index(source) or ''}"
    image = inlined(paths[".svg"].read_text(), _esc(place), f"{_esc(name)}{_named(source, sources)}")
    return (
        f'<div><figure><div class="wide">{image}</div>'
        f'<figcaption><code>{_esc(plan.command)}</code> · <a download="{_esc(name)}.csv" href="{data}">data</a>'
        f"{_named(source, sources)}</figcaption></figure>{gaps}</div>"
    )


def _gaps(source: Source, plan: Plan) -> list[str]:
    """What the figure should show and does not: runs that are damaged, failed, diverged, or missing beside others."""
    frame, damaged = source.read(plan.figure)
    gaps = [f"damaged: {sentence}" for sentence in damaged]
    for folder in run_folders(source.runs, plan.cells):
        name, status = plan.name(cell_of(folder)), read_status(folder)
        if status.get("status") == "diverged":
            when = ", ".join(f"seed {seed} at step {step}" for seed, step in status.get("diverged", {}).items())
            gaps.append(f"diverged: {name} ({when})")
        elif status.get("status") == "failed":
            gaps.append(f"failed: {name} ({status.get('reason', 'no reason given')})")
    if frame.empty:
        return gaps
    seeds = Counter(final(frame[frame["seed"] < plan.first_seed + plan.seeds])["cell"])
    fewer = [cell for cell in plan.cells if seeds[cell] < plan.seeds]
    return gaps + [f"missing: {plan.name(cell)} ({seeds[cell]} of {plan.seeds} seeds)" for cell in fewer]


def _provenance(source: Source) -> str:
    """Where, when and with what the runs were trained, and what they cost."""
    hours, commits, versions, machines, count = 0.0, Counter[str](), Counter[str](), Counter[str](), 0
    for folder in run_folders(source.runs):
        status = read_status(folder)
        if "ended" not in status:
            continue
        count += 1
        hours += spent(status) / 3600
        commits[str(status.get("commit"))] += 1
        versions[", ".join(f"{name} {version}" for name, version in status.get("versions", {}).items())] += 1
        machine = status.get("machine", {})
        machines[f"{machine.get('platform')}, {machine.get('device')}, {machine.get('cores')} cores"] += 1
    rows = {
        "logs": str(source.name),
        "runs": f"{count}, {hours:.1f} process hours",
        "commits": _listed(commits),
        "versions": _listed(versions),
        "machines": _listed(machines),
    }
    body = "".join(f'<tr><th scope="row">{name}</th><td>{_esc(value)}</td></tr>' for name, value in rows.items())
    return f'<table class="provenance">{body}</table>'


def _listed(counter: Counter[str]) -> str:
    return "; ".join(f"{name} ({count})" for name, count in counter.most_common())


def _named(source: Source, sources: Sequence[Source]) -> str:
    """Which of several sets of logs, as HTML."""
    return f" ({_esc(source.name)})" if len(sources) > 1 else ""


def _data_uri(path: Path, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _esc(text: object) -> str:
    return html.escape(str(text), quote=True)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analysis.report", description="Judge the papers' claims from logs alone.")
    parser.add_argument("--runs", type=Path, help="folder of runs or of published results (default: which there is)")
    parser.add_argument("--scale", choices=SCALES, help="whose plan to judge (default laptop, of results paper)")
    parser.add_argument("--out", type=Path, help="where the report goes (default report/<scale>)")
    parser.add_argument("--figures", type=Path, help="folder of figures that are drawn from these very logs already")
    parser.add_argument("--compare", type=Path, help="another folder of run folders, to show beside")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    runs, scale = which_logs(asked.runs, asked.scale)
    for name, folder in (("runs", runs), ("compare", asked.compare)):
        if folder is not None and not folder.is_dir():
            parser.error(f"--{name} {folder}: no such folder")
    if asked.runs is None:
        print(f"logs: {runs}, {scale} scale", flush=True)
    folders = [runs, *([asked.compare] if asked.compare else [])]
    with tempfile.TemporaryDirectory() as scratch:
        sources = [
            Source(name, folder, scale, Path(scratch, str(place)))
            for place, (name, folder) in enumerate(zip(short_names(folders), folders, strict=True))
        ]
        if asked.figures is not None and asked.compare is None:
            sources[0] = replace(sources[0], figures=asked.figures)
        draw_missing(sources)
        judged = [source.judge() for source in sources]
        text = page(sources, judged)
    out = asked.out or Path("report", scale)
    out.mkdir(parents=True, exist_ok=True)
    for name, records in zip(("claims.json", "claims_compared.json"), judged, strict=False):
        (out / name).write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")
    (out / "index.html").write_text(text)
    for record in judged[0]:
        print(f"{record['id']:<12} {record['verdict']:<16} {record['claim']}\n{'':<30}{record['detail']}")
    trouble = [f"{source.name}: {key}: {words}" for source in sources for key, words in source.trouble.items()]
    print(*trouble, f"report: {out / 'index.html'}", sep="\n")
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(quietly(main))
