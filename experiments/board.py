"""The published runs on Weights & Biases: a table as an artifact, and a template of a report with panels for it.

    python -m experiments.board                       # offline: no account needed
    python -m experiments.board --mode online --project mine

The template is data, board.json and board.md in the folder of W&B's files: for each experiment its panels, with the
columns they show and how runs are grouped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.sync import PROJECT, plans_of, start
from kondo.lab.records import is_number, read_runs, write_atomically

COLUMNS = ("experiment", "cell", "name", "task", "method", "gate.rate", "gate.price", "friction", "seed", "steps")
NUMBERS = ("error", "train_error", "forward", "screened", "nominal", "backward", "updates")
"""Of the last row of each seed."""


def table(results: Path) -> list[Iterable[Any]]:
    """A row per published run and seed: what it is, and where it ended."""
    rows: list[Iterable[Any]] = []
    for plan in plans_of(results):
        for run in read_runs(results, plan.cells)[0]:
            about = run.about()
            for row in run.columns():
                if row["step"] == run.end:
                    what = {"experiment": plan.figure, "name": plan.name(run.cell), "steps": run.config["steps"]}
                    named = {"task": about["task.name"], "method": about["method.name"]}
                    every = row | what | named
                    texts = [_plain(every.get(column)) for column in COLUMNS]
                    rows.append([*texts, *(_number(row.get(column)) for column in NUMBERS)])
    return rows


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _number(value: Any) -> float | None:
    """A cost or an error of a run; a study's settings and lists of that name are none."""
    return float(value) if is_number(value) else None


def template(results: Path, project: str) -> dict[str, Any]:
    """A report as data: a section per published experiment, the error against either cost, and the table."""
    sections = []
    for plan in sorted(plans_of(results), key=lambda plan: plan.figure):
        panels = [
            {"kind": "line", "x": cost, "y": "*_error", "group_by": "name", "log_x": cost == "backward", "log_y": True}
            for cost in ("forward", "backward")
        ]
        sections.append({"title": plan.figure, "runs": {"group": plan.figure}, "panels": panels})
    about = {"title": "kondo: published runs", "project": project, "artifact": "published:latest", "table": "runs"}
    return about | {"sections": sections}


def outline(report: dict[str, Any]) -> str:
    """The template in words, to be pasted into a report's editor."""
    lines = [f"# {report['title']}", "", f"Table `{report['table']}` of artifact `{report['artifact']}`.", ""]
    for section in report["sections"]:
        lines += [f"## {section['title']}", "", f"Run set: group = `{section['runs']['group']}`.", ""]
        lines += [f"- {each['y']} against {each['x']}, grouped by {each['group_by']}" for each in section["panels"]]
        lines += [""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.board", description="The published runs as a table on W&B.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of published results")
    parser.add_argument("--mode", choices=("offline", "online"), default="offline")
    parser.add_argument("--project", default=PROJECT)
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="W&B's files go to <dir>/wandb")
    asked = parser.parse_args(arguments)
    rows, report = table(asked.results), template(asked.results, asked.project)
    if not rows:
        sys.exit(f"error: {asked.results}: nothing is published there")
    import wandb

    run = start(asked.mode, asked.dir, project=asked.project, job_type="publish", name="published")
    artifact = wandb.Artifact("published", type="results", metadata={"rows": len(rows)})
    artifact.add(wandb.Table(columns=[*COLUMNS, *NUMBERS], data=rows), "runs")
    run.log_artifact(artifact)
    run.finish(exit_code=0)
    for name, text in (("board.json", json.dumps(report, indent=1) + "\n"), ("board.md", outline(report))):
        write_atomically(asked.dir / "wandb" / name, text)
    print(
        f"{len(rows)} rows, {len(report['sections'])} experiments: artifact published, {asked.dir / 'wandb'}/board.json"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
