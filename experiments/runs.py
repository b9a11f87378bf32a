"""What is in the runs folder: what each run cost, what failed and why.

python -m experiments.runs list [--status failed]
python -m experiments.runs show 1ca975919c95            # a cell's key, or its first digits
python -m experiments.runs clean --failed               # remove failed runs; the next sweep trains them anew
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from analysis.load import read_json, read_log, run_folders, spent
from kondo.runs import in_training
from kondo.schema import nearest


def state(folder: Path) -> str:
    """done, diverged, failed, running; or interrupted, where nobody trains what is not complete."""
    status = read_json(folder / "status.json").get("status", "running")
    return "interrupted" if status == "running" and not in_training(folder) else str(status)


def names(runs: Path) -> dict[str, str]:
    """{cell key: the cell in a few words}, as the plans call it."""
    plans = [read_json(path) for path in sorted(runs.glob("plans/*/*.json"))]
    return {key: words for plan in plans for key, words in plan.get("cells", {}).items()}


def show_list(runs: Path, only: str | None) -> int:
    """A line per run, and what there is in all."""
    words, counts, seconds = names(runs), Counter[str](), 0.0
    for folder in run_folders(runs):
        status, how = read_json(folder / "status.json"), state(folder)
        if only not in (None, how):
            continue
        counts[how] += 1
        seconds += spent(status)
        cell = folder.name.partition("-s")[0]
        error = status.get("error")
        about = [f"{folder.name:<22} {how:<11} step {status.get('step', 0):>7,}"]
        about += [f"error {error:<8.4g}" if error is not None else " " * 14, f"{spent(status):>8,.1f} s"]
        print(*about, words.get(cell, folder.parent.name), *([status["reason"]] if how == "failed" else []))
    total = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    print(f"{counts.total()} runs in {runs}: {total or 'none'}; {seconds / 3600:.2f} process hours")
    return 0


def show_one(runs: Path, key: str) -> int:
    """Everything about the runs of a cell."""
    found = [folder for folder in run_folders(runs) if folder.name.startswith(key)]
    if not found:
        keys = {folder.name.partition("-s")[0] for folder in run_folders(runs)}
        sys.exit(f"error: {key}: no such run in {runs}; {nearest(key, keys) if len(keys) < 20 else 'list shows them'}")
    for folder in found:
        status: dict[str, Any] = read_json(folder / "status.json")
        print(f"{folder}: {state(folder)}")
        if (folder / "config.yaml").exists():
            print(yaml.safe_dump(yaml.safe_load((folder / "config.yaml").read_text()), sort_keys=False).rstrip())
        trace = status.pop("traceback", None)
        print(json.dumps(status, indent=1))
        rows = read_log(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        for row in (row for row in rows if row["step"] == rows[-1]["step"]):
            print("  ".join(f"{name} {value:.5g}" for name, value in row.items() if isinstance(value, (int, float))))
        print(*([trace] if trace else []), sep="")
    return 0


def clean_failed(runs: Path) -> int:
    """Remove the folders of runs that failed; what is complete or interrupted stays."""
    for folder in run_folders(runs):
        if state(folder) == "failed" and not in_training(folder):
            print(f"removed {folder}: {read_json(folder / 'status.json').get('reason')}")
            shutil.rmtree(folder)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.runs", description="What is in the runs folder.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    either = argparse.ArgumentParser(add_help=False)
    either.add_argument("--runs", type=Path, default=argparse.SUPPRESS, help="folder of run folders")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="a line per run", parents=[either])
    listing.add_argument("--status", choices=("done", "diverged", "failed", "running", "interrupted"))
    commands.add_parser("show", help="everything about a cell's runs", parents=[either]).add_argument("hash")
    cleaning = commands.add_parser("clean", help="remove runs", parents=[either])
    cleaning.add_argument("--failed", action="store_true", required=True, help="those that failed")
    asked = parser.parse_args(arguments)
    if not asked.runs.is_dir():
        sys.exit(f"error: {asked.runs}: no such folder")
    if asked.command == "list":
        return show_list(asked.runs, asked.status)
    return show_one(asked.runs, asked.hash) if asked.command == "show" else clean_failed(asked.runs)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… list | head` ends quietly
    sys.exit(main())
