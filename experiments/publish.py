"""Publish finished experiments: plan, configs, logs and statuses, compressed, into results/.

    python -m experiments.publish joy_1 joy_3 --scale paper
    python -m experiments.publish joy_8 --unfinished    # keep what is finished so far: `experiments.runs restore`

Only what is whole is published: every planned seed finished, every record sound, every cell one that this code plans.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.plans import experiments, needed_now
from kondo.lab.records import MANIFEST, Damaged, Experiment, Plan, Refused, check_whole, keep, publish, read_experiment
from kondo.schema import ConfigError, nearest

SCALES = ("smoke", "laptop", "paper")


def check_cells(name: str, plan: Plan, runs: Path) -> None:
    """The cells of a plan are those that this code plans now, of a search as far as its logs tell, or Refused."""
    overrides = [f"runs='{runs}'", f"seeds={plan.seeds}", f"first_seed={plan.first_seed}"]
    needed = {job.cell.key(): job.name for job in needed_now(name, plan.scale, overrides)}
    foreign = [plan.name(key) for key in plan.cells if key not in needed]
    more = [words for key, words in needed.items() if key not in plan.cells]
    if foreign or more:
        count = len(foreign) + len(more)
        words = [f"not planned by this code: {', '.join(foreign)}"] if foreign else []
        words += [f"not in the plan, or still to be climbed: {', '.join(more)}"] if more else []
        raise Refused(f"{name}: {count} cells differ from this code's at {plan.scale} scale; {'; '.join(words)}")


def finished_so_far(name: str, scale: str, runs: Path) -> Experiment:
    """An experiment's plan and its finished runs, or Refused, or Damaged."""
    if name not in experiments():
        raise Refused(f"{name}: no such experiment; {nearest(name, experiments())}")
    return read_experiment(runs, scale, name)


def publishable(name: str, scale: str, runs: Path) -> Experiment:
    """An experiment that is whole, or Refused, or Damaged."""
    found = finished_so_far(name, scale, runs)
    check_whole(name, found)
    check_cells(name, found.plan, runs)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.publish", description="Publish finished experiments.")
    parser.add_argument("experiments", nargs="+", help="which")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    parser.add_argument("--scale", default="paper", choices=SCALES, help="whose plan to publish")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where archives and manifest go")
    parser.add_argument("--unfinished", action="store_true", help="keep what is finished of experiments that are not")
    asked = parser.parse_args(arguments)
    try:
        if asked.unfinished:
            for name in asked.experiments:
                path = keep(asked.out, name, finished_so_far(name, asked.scale, asked.runs))
                print(f"{path}: {path.stat().st_size:,} bytes")
            return 0
        manifest = publish(asked.out, {name: publishable(name, asked.scale, asked.runs) for name in asked.experiments})
    except (Refused, Damaged, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    for name in asked.experiments:
        entry = manifest["experiments"][name]
        print(f"{asked.out / entry['archive']}: {len(entry['cells'])} cells, {entry['bytes']:,} bytes")
    every = manifest["experiments"].values()
    total = sum(entry["bytes"] for entry in every) + (asked.out / MANIFEST).stat().st_size
    print(f"{asked.out}: {len(every)} experiments, {manifest['runs']} runs, {total:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
