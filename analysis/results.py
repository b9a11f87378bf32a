"""Pages of the published results, from the published records alone.

python -m analysis.results            # make results: docs/results/ and the README's table
python -m analysis.results --check    # is what is written what the records give?
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.draw import draw_all, figures_by_scale
from analysis.experiments import claims, experiments
from analysis.judge import INCONCLUSIVE, NOT, NOT_RUN, PARTLY, REPRODUCED
from analysis.load import read_figure
from analysis.style import label
from kondo.lab.interrupts import quietly
from kondo.lab.records import read_manifest

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results: written by make results -->", "<!-- end of results -->"
OUTCOMES = {"holds": "holds", "fails": "**fails**", "open": "open"}
HEADLINES, SHOWN = ("J5", "J6", "J9", "D1", "D4"), 5
"""The claims that the README shows first, and how many in all."""
PLAIN = ("speedup_to_5%", "longest_length")
"""Published quantities that are no errors."""
NEWLY = "Written by `make results` from `results/`; change nothing here by hand.\n"


def judged(results: Path, scale: str, figure: str) -> list[dict[str, Any]]:
    """What the published runs of an experiment say of the claims that it decides."""
    frame, _ = read_figure(results, scale, figure)
    return [claim.judge(frame) for claim in claims().values() if claim.figure == figure]


def page(name: str, entry: Mapping[str, Any], results: Path, records: list[dict[str, Any]]) -> str:
    """The page of an experiment."""
    module = experiments()[name]
    title, _, about = (module.__doc__ or name).strip().partition("\n\n")
    cells, steps = entry["cells"], ", ".join(f"{each:,}" for each in entry["steps"])
    versions = "; ".join(", ".join(f"{key} {value}" for key, value in each.items()) for each in entry["versions"])
    lines = [f"# {name}", "", NEWLY, " ".join(title.split()), "", f"![{name}]({name}.png)", ""]
    lines += [" ".join(about.split()), ""] if about else []
    for record in records:
        lines += [
            f"## {record['id']}: {record['verdict']}",
            "",
            f"**Claim.** {record['claim']} ({record['version']})",
            "",
        ]
        lines += [f"**The paper.** {record['paper']}", "", f"**Measured.** {record['detail']}", ""]
        lines += ["| part | outcome |", "|---|---|"] if record["parts"] else []
        lines += [f"| {_cell(part)} | {OUTCOMES[outcome]} |" for part, outcome in record["parts"].items()]
        lines += [""]
        if why := _why(record, entry["scale"]):
            lines += [f"**Why, most likely.** {why}", ""]
    frame, _ = read_figure(results, entry["scale"], name)
    if not records:
        lines += [f"**Measured.** {module.measured(module.select(frame))}", ""]
    if "beside" in vars(module):
        lines += point_by_point(module.beside(frame))
    lines += [
        "## Provenance",
        "",
        f"{len(cells)} cells at {entry['scale']} scale, {entry['seeds']} seeds, {steps} steps, "
        f"{entry['core_hours']:.2g} core-hours; "
        f"commit {', '.join(map(_commit, entry['commits']))}; {versions}.",
        "",
        f"    {entry['command']}",
        "",
        "| cell | seeds | seconds |",
        "|---|---|---|",
        *(f"| {_cell(cell['name'])} | {cell['seeds']} | {cell['seconds']['total']:,.0f} |" for cell in cells.values()),
    ]
    return "\n".join(lines) + "\n"


def _why(record: Mapping[str, Any], scale: str) -> str:
    """Why a claim was most likely not reproduced at paper scale, or only in part; of others nothing."""
    if scale != "paper" or record["verdict"] == REPRODUCED:
        return ""
    return vars(experiments()[record["figure"]]).get("WHY", {}).get(record["id"], "")


def differences(records: list[dict[str, Any]], entries: Mapping[str, Any]) -> list[str]:
    """What paper scale did not show as it was claimed: the parts that fail or are left open, and the likely reason."""
    lines = ["", "## What came out otherwise", ""]
    lines += ["At paper scale; the pages have the published points beside ours.", ""]
    for record in records:
        if record["verdict"] == REPRODUCED or entries[record["figure"]]["scale"] != "paper":
            continue
        lines += [f"**[{record['id']}]({record['figure']}.md), {record['verdict']}.** {record['claim']}.", ""]
        short = [(part, word) for part, word in record["parts"].items() if word != "holds"]
        lines += [f"- {OUTCOMES[word]}: {part}" for part, word in short]
        lines += ["", f"Most likely: {_why(record, 'paper')}", ""]
    return lines[:-1]


def _commit(words: str) -> str:
    """Twelve digits of a commit, and whether there were changes that it did not have."""
    commit, _, dirty = words.partition("-")
    return commit[:12] + (" with changes" if dirty else "")


def point_by_point(table: pd.DataFrame) -> list[str]:
    """Published points with ours beside them: a line for each place on the axis, a column per setting."""
    axis = table.columns[0]
    lines = ["## Point by point", "", "Published · ours there · ours over theirs.", ""]
    columns = list(dict.fromkeys(label(row) for row in table.to_dict("records")))
    cells = {(row[axis], label(row)): _pair(row) for row in table.to_dict("records")}
    lines += [f"| {axis} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    places = list(dict.fromkeys(table[axis]))
    for place in places if isinstance(places[0], str) else sorted(places):
        words = place if isinstance(place, str) else f"{place:,.0f}"
        lines.append(f"| {words} | " + " | ".join(cells.get((place, each), "") for each in columns) + " |")
    return [*lines, ""]


def _pair(row: Mapping[Any, Any]) -> str:
    theirs, ours = row["value"], row["ours"]
    shown = "{:.3g}".format if row["quantity"] in PLAIN else _error
    return f"{shown(theirs)} · {shown(ours)}" + (f" · ×{ours / theirs:.2f}" if theirs else "")


def _error(value: float) -> str:
    """An error to three digits, however small."""
    return f"{100 * value:.3g}%"


def index(records: list[dict[str, Any]], entries: Mapping[str, Any]) -> str:
    """The table of all claims, those without published runs among them."""
    counts = Counter((record["verdict"], entries[record["figure"]]["scale"]) for record in records)
    verdicts = [word for word in (REPRODUCED, PARTLY, NOT, INCONCLUSIVE) if any(word == each for each, _ in counts)]
    missing = [claim for claim in claims().values() if claim.figure not in entries]
    lines = ["# Results", "", NEWLY]
    for scale in dict.fromkeys(scale for _, scale in counts):
        shown = ", ".join(f"{counts[word, scale]} {word}" for word in verdicts if counts[word, scale])
        lines += [f"At {scale} scale: {shown}.", ""]
    lines += ["| claim | verdict | measured | n, steps |", "|---|---|---|---|"]
    lines += [_row(record, record["figure"] + ".md") for record in records]
    lines += [
        f"| {each.id}: {_cell(each.claim)} | {NOT_RUN} | no published runs of `{each.figure}` | |" for each in missing
    ]
    others = sorted(set(entries) - {record["figure"] for record in records})
    lines += (
        ["", "Experiments that decide no claim: " + ", ".join(f"[{name}]({name}.md)" for name in others)]
        if others
        else []
    )
    return "\n".join(lines + differences(records, entries)) + "\n"


def headline(records: list[dict[str, Any]]) -> str:
    """The README's table: the headlines that have published runs, and others after them."""
    records = sorted(records, key=lambda record: record["id"] not in HEADLINES)
    lines = ["| claim | verdict | measured | n, steps |", "|---|---|---|---|"]
    return "\n".join(lines + [_row(record, f"docs/results/{record['figure']}.md") for record in records[:SHOWN]])


def _row(record: Mapping[str, Any], link: str) -> str:
    claim = f"[{record['id']}]({link}): {_cell(record['claim'])}"
    return f"| {claim} | {record['verdict']} | {_cell(record['detail'])} | {record['seeds']}, {record['steps']:,} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def written(results: Path) -> tuple[dict[str, str], str]:
    """{file in docs/results: its text}, and the README's table."""
    entries = read_manifest(results)
    by_figure = {name: judged(results, entry["scale"], name) for name, entry in entries.items()}
    every = {record["id"]: record for records in by_figure.values() for record in records}
    records = [every[id] for id in claims() if id in every]
    files = {f"{name}.md": page(name, entry, results, by_figure[name]) for name, entry in entries.items()}
    return files | {"README.md": index(records, entries)}, headline(records)


def with_table(readme: str, table: str) -> str:
    """The README with its table of results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analysis.results", description="Pages of the published results.")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of published records")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where the pages go")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--check", action="store_true", help="change nothing; say what would change")
    asked = parser.parse_args(arguments)
    files, table = written(asked.results)
    texts = {asked.out / name: text for name, text in files.items()}
    texts[asked.readme] = with_table(asked.readme.read_text(), table)
    stale = sorted(path for path, text in texts.items() if not path.exists() or path.read_text() != text)
    stale += sorted(path for path in asked.out.glob("*.md") if path not in texts)
    if asked.check:
        print(*(f"{path}: not what the records give; make results" for path in stale), sep="\n")
        return 1 if stale else 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in asked.out.glob("*"):
        path.unlink()
    for path, text in texts.items():
        path.write_text(text)
    for scale, names in figures_by_scale(asked.results).items():
        for name, (drawn,) in draw_all(names, [(asked.results, asked.out)], scale, ("png",)):
            print(f"{name}: {drawn.paths[0] if drawn.paths else drawn.trouble}")
    for path in asked.out.glob("*.csv"):
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(quietly(main))
