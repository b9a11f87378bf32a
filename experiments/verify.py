"""Retrain some of the published runs, and compare.

    python -m experiments.verify --number 10 --seed 1
    python -m experiments.verify --minutes 5              # the cheapest, as many as five minutes allow

On the machine and with the versions that a run was published from the log must be the same, number by number, but for
its seconds. Elsewhere rounding differs: there every final error must be inside the prediction interval of the published
seeds, Student's, 95% for all that are compared together (Bonferroni).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from experiments.extend import load_extensions
from experiments.replay import replayed
from kondo.lab import kernels
from kondo.lab.config.cell import Cell, parse
from kondo.lab.interrupts import quietly
from kondo.lab.records import BESIDE, Damaged, Run, is_results, read_manifest, read_run, read_runs, spent
from kondo.lab.remote import COLUMNS
from kondo.lab.training import Block, provenance, train
from kondo.schema import ConfigError, Unavailable

NUMBER = 10
LEVEL = 0.95
ROUNDING = 1e-6
"""How far apart two numbers may be whose seeds are all alike."""
TIMED = "seconds_"
DIVERGED = 1.0
"""What counts as the error of a seed that has none."""


@dataclass(frozen=True)
class Outcome:
    """What came of retraining a run."""

    holds: bool
    words: str


# Which runs


def possible(runs: Sequence[Run]) -> list[Run]:
    """The runs whose tasks have what they need installed; of the others it is said what that is."""
    left: list[Run] = []
    missing: Counter[str] = Counter()
    for run in runs:
        try:
            asked(run).task.available()
        except Unavailable as what:
            missing[str(what)] += 1
            continue
        except ConfigError:
            pass  # is told where it is trained again
        left.append(run)
    for words, count in missing.items():
        print(f"{count} runs left out: {words}", flush=True)
    return left


def asked(run: Run) -> Cell:
    """The cell of a run, or ConfigError where this code has no such settings."""
    return parse({key: value for key, value in run.config.items() if key not in BESIDE})


def chosen(runs: Sequence[Run], number: int | None, minutes: float | None, seed: int) -> list[Run]:
    """A random sample; where minutes are given the cheapest of it, or of all, that fit into them."""
    most = len(runs) if number is None and minutes is not None else number or NUMBER
    drawn = random.Random(seed).sample(list(runs), min(most, len(runs)))
    if minutes is None:
        return drawn
    cheapest = sorted(drawn, key=lambda run: spent(run.status))
    seconds = np.cumsum([spent(run.status) for run in cheapest])
    return [run for run, until in zip(cheapest, seconds, strict=True) if until <= 60 * minutes]


# Training anew


def retrained(run: Run, data: Path) -> Run:
    """The same run, trained here; an asynchronous one as its replay. ConfigError where this code has no such cell."""
    cell = asked(run)
    if cell.actor.mode == "async":
        cell = parse(replayed(run))
    elif cell.key() != run.cell:
        raise ConfigError(f"this code calls the same settings {cell.key()}")
    os.environ[kernels.SWITCH] = run.status.get("versions", {}).get("kernels", "on")
    provenance.cache_clear()
    threads = run.status.get("machine", {}).get("threads")
    torch.set_num_threads(threads if isinstance(threads, int) and threads > 0 else 1)
    cell.task.fetch(data)
    block = Block(cell, tuple(run.config["seeds"]), run.config.get("choices") or {})
    with tempfile.TemporaryDirectory() as folder:
        train(block, Path(folder), data=data)
        anew = read_run(block.folder(Path(folder)))
    assert anew is not None
    return anew


def other_place(status: Mapping[str, Any]) -> list[str]:
    """What decides the rounding of a run, and is not the same here or not known."""
    here = provenance("cpu")
    decisive = {"versions": ("torch", "numpy", "numba"), "machine": ("device", "cpu")}
    return [
        name
        for part, names in decisive.items()
        for name in names
        if name not in status.get(part, {}) or status[part][name] != here[part][name]
    ]


# Comparing


def without_seconds(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what no two runs have in common: seconds, and how actors elsewhere fared."""
    return {name: value for name, value in row.items() if not name.startswith(TIMED) and name not in COLUMNS}


def difference(published: Run, anew: Run) -> str | None:
    """Where two logs differ first, but for their seconds; None where they are the same, byte by byte."""
    if len(published.rows) != len(anew.rows):
        return f"{len(anew.rows)} rows instead of {len(published.rows)}"
    for rows in zip(published.rows, anew.rows, strict=True):
        old, new = map(without_seconds, rows)
        if json.dumps(old) == json.dumps(new):
            continue
        at = f"step {old['step']}, seed {old['seed']}"
        names = [name for name in old if json.dumps(old[name]) != json.dumps(new.get(name))]
        if not names:
            return f"{at}: other columns"
        values = f"{names[0]} {_short(old[names[0]])} published, {_short(new.get(names[0]))} retrained"
        return f"{at}: {values}"
    return None


def _short(value: Any) -> str:
    return str(value)[:40]


def ends(runs: Sequence[Run]) -> np.ndarray:
    """What runs came to, seeds × numbers: the final error; of a study, which has none, every number of its rows."""
    return np.array([_end(run, row) for run in runs for row in run.rows if row["step"] == run.end])


def _end(run: Run, row: Mapping[str, Any]) -> list[float]:
    if metric := run.config["error"]:
        return [DIVERGED if row[metric] is None else row[metric]]
    return [number for value in without_seconds(row).values() for number in _numbers(value)]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) else []


def deviations(published: np.ndarray, anew: np.ndarray, level: float) -> np.ndarray:
    """How far each number is from the published seeds' mean, in halves of their prediction interval: above 1, outside.

    The interval of one more value is x̄ ± t · s · √(1 + 1/n), with n − 1 degrees of freedom.
    """
    n, mean = len(published), published.mean(axis=0)
    half = student.ppf((1 + level) / 2, n - 1) * published.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n) if n > 1 else 0.0
    return np.abs(anew - mean) / (half + ROUNDING * (1 + np.abs(mean)))


def compare(published: Run, anew: Run, seeds: Sequence[Run], compared: int) -> Outcome:
    """Whether a run came out as published; `seeds` are all published runs of its cell, `compared` how many numbers all
    runs of this command have."""
    apart = difference(published, anew)
    if apart is None:
        return Outcome(True, f"identical, {len(anew.rows)} rows")
    elsewhere = other_place(published.status)
    if not elsewhere:
        return Outcome(False, f"differs on the same machine with the same versions: {apart}")
    reference, own = ends(seeds), ends([anew])
    why = f"other {', '.join(elsewhere)}, or not known"
    if reference.shape[1:] != own.shape[1:]:
        return Outcome(False, f"has {own.shape[1:]} numbers instead of {reference.shape[1:]} ({why})")
    far = deviations(reference, own, 1 - (1 - LEVEL) / compared)
    inside = int((far <= 1).sum())
    words = f"{inside} of {far.size} final values inside the prediction interval, the farthest at {far.max():.2f} of it"
    return Outcome(inside == far.size, f"{words} ({why}; first: {apart})")


def verify(results: Path, runs: Sequence[Run], data: Path) -> int:
    """Retrain and compare, with a line each; how many did not come out as published."""
    names = {key: cell["name"] for entry in read_manifest(results).values() for key, cell in entry["cells"].items()}
    compared, failed = sum(ends([run]).size for run in runs), 0
    for run in runs:
        try:
            outcome = compare(run, retrained(run, data), read_runs(results, [run.cell])[0], compared)
        except (ConfigError, Damaged) as problem:
            outcome = Outcome(False, f"cannot be trained again: {problem}")
        mark = "same" if outcome.holds else "MISMATCH"
        print(f"{mark}: {run.name} ({names.get(run.cell)}, {spent(run.status):.0f} s): {outcome.words}", flush=True)
        failed += not outcome.holds
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.verify", description="Retrain published runs, and compare.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of published results")
    parser.add_argument("--number", type=int, help=f"how many runs (default {NUMBER}, with --minutes all that fit)")
    parser.add_argument("--minutes", type=float, help="cheapest first, as many as took no longer than this in all")
    parser.add_argument("--seed", type=int, default=0, help="of the random sample")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    words = parser.parse_args(arguments)
    if not is_results(words.results):
        parser.error(f"--results {words.results}: no published results there")
    load_extensions()
    runs, damaged = read_runs(words.results)
    for sentence in damaged:
        print(f"MISMATCH: {sentence}", flush=True)
    todo = chosen(possible(runs), words.number, words.minutes, words.seed)
    seconds = sum(spent(run.status) for run in todo)
    print(f"{words.results}: retraining {len(todo)} of {len(runs)} runs, which took {seconds:.0f} s", flush=True)
    failed = verify(words.results, todo, words.data)
    print(f"{len(todo) - failed} of {len(todo)} came out as published")
    return 1 if failed or damaged or not todo else 0


if __name__ == "__main__":
    sys.exit(quietly(main))
