"""What is in the runs folder: what each run cost, what failed and why.

python -m experiments.runs list [--status failed]
python -m experiments.runs show 1ca975919c95            # a cell's key, or its first digits
python -m experiments.runs clean --failed               # remove failed runs; the next sweep trains them anew
python -m experiments.runs sync [--mode online]         # finished runs to W&B; what is there already is skipped
python -m experiments.runs restore [joy_8]             # published runs, and unfinished experiments' kept ones, to runs/
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

from experiments.sync import PROJECT, sync
from kondo.lab.records import (
    FINISHED,
    UNFINISHED,
    Damaged,
    cell_of,
    config_text,
    in_training,
    is_results,
    read_log,
    read_plans,
    read_run,
    read_status,
    restore,
    run_folders,
    spent,
)
from kondo.schema import ConfigError, nearest

STATES = (*FINISHED, *UNFINISHED, "interrupted", "damaged")


def state(folder: Path) -> tuple[str, str]:
    """done, diverged, failed, running; interrupted, where nobody trains what is not complete; or damaged, where the
    record is not sound. And, of what failed or is damaged, why."""
    try:
        run = read_run(folder)
    except Damaged as problem:
        return "damaged", str(problem)
    if run is not None:
        return str(run.status["status"]), ""
    status = read_status(folder)
    if status.get("status") == "failed":
        return "failed", status.get("reason", "no reason given")
    return "running" if in_training(folder) else "interrupted", ""


def names(runs: Path) -> dict[str, str]:
    """{cell key: the cell in a few words}, as the plans call it."""
    return {key: plan.name(key) for plan in read_plans(runs) for key in plan.cells}


def show_list(runs: Path, only: str | None) -> int:
    """A line per run, and what there is in all."""
    words, counts, seconds = names(runs), Counter[str](), 0.0
    for folder in run_folders(runs):
        status, (how, why) = read_status(folder), state(folder)
        if only not in (None, how):
            continue
        counts[how] += 1
        seconds += spent(status)
        error = status.get("error")
        about = [f"{folder.name:<22} {how:<11} step {status.get('step', 0):>7,}"]
        about += [f"error {error:<8.4g}" if error is not None else " " * 14, f"{spent(status):>8,.1f} s"]
        print(*about, words.get(cell_of(folder), folder.parent.name), *([why] if why else []))
    total = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    print(f"{counts.total()} runs in {runs}: {total or 'none'}; {seconds / 3600:.2f} process hours")
    return 0


def show_one(runs: Path, key: str) -> int:
    """Everything about the runs of a cell."""
    found = [folder for folder in run_folders(runs) if folder.name.startswith(key)]
    if not found:
        keys = {cell_of(folder) for folder in run_folders(runs)}
        sys.exit(f"error: {key}: no such run in {runs}; {nearest(key, keys) if len(keys) < 20 else 'list shows them'}")
    for folder in found:
        status, (how, why) = read_status(folder), state(folder)
        print(f"{folder}: {how}{f' ({why})' if how == 'damaged' else ''}")
        if config := config_text(folder).rstrip():
            print(config)
        trace = status.pop("traceback", None)
        print(json.dumps(status, indent=1))
        rows = read_log(folder)
        for row in (row for row in rows if row.get("step") == rows[-1].get("step")):
            print("  ".join(f"{name} {value:.5g}" for name, value in row.items() if _shown(value)))
        print(*([trace] if trace else []), sep="")
    return 0


def _shown(value: Any) -> bool:
    """Whether a value of a log is a number."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1e300)


def clean_failed(runs: Path) -> int:
    """Remove the folders of runs that failed; what is complete or interrupted stays."""
    for folder in run_folders(runs):
        how, why = state(folder)
        if how == "failed" and not in_training(folder):
            print(f"removed {folder}: {why}")
            shutil.rmtree(folder)
    return 0


def restore_runs(results: Path, runs: Path, only: list[str]) -> int:
    """Runs of a results folder to a runs folder, so that what is published is not trained again."""
    try:
        new = restore(results, runs, only)
    except (Damaged, ConfigError) as problem:
        sys.exit(f"error: {problem}")
    print(f"{len(new)} runs restored to {runs}; make reproduce finds them complete")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.runs", description="What is in the runs folder.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    either = argparse.ArgumentParser(add_help=False)
    either.add_argument("--runs", type=Path, default=argparse.SUPPRESS, help="folder of run folders")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="a line per run", parents=[either])
    listing.add_argument("--status", choices=STATES)
    commands.add_parser("show", help="everything about a cell's runs", parents=[either]).add_argument("hash")
    cleaning = commands.add_parser("clean", help="remove runs", parents=[either])
    cleaning.add_argument("--failed", action="store_true", required=True, help="those that failed")
    syncing = commands.add_parser("sync", help="mirror finished runs to W&B", parents=[either])
    syncing.add_argument("--mode", choices=("offline", "online"), default="offline")
    syncing.add_argument("--project", default=PROJECT)
    syncing.add_argument("--dir", type=Path, help="W&B's files go to <dir>/wandb (default: the runs; of results, runs)")
    restoring = commands.add_parser("restore", help="published and kept runs to the runs folder", parents=[either])
    restoring.add_argument("experiments", nargs="*", help="which (default: all)")
    restoring.add_argument("--results", type=Path, default=Path("results"), help="where they are")
    asked = parser.parse_args(arguments)
    if asked.command == "restore":
        return restore_runs(asked.results, asked.runs, asked.experiments)
    if not asked.runs.is_dir():
        sys.exit(f"error: {asked.runs}: no such folder")
    if asked.command == "sync":
        folder = asked.dir or (Path("runs") if is_results(asked.runs) else asked.runs)
        return 1 if sync(asked.runs, asked.mode, asked.project, folder) else 0
    if asked.command == "list":
        return show_list(asked.runs, asked.status)
    return show_one(asked.runs, asked.hash) if asked.command == "show" else clean_failed(asked.runs)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… list | head` ends quietly
    sys.exit(main())
