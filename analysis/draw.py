"""Draw figures from logs alone.

    python -m analysis.draw                       # every figure, from runs/ or, without any, from results/
    python -m analysis.draw bandit_pareto --scale smoke

A figure shows the cells of its plan, which `make reproduce` and `experiments.run -m experiment=…` write into the runs
folder for each figure and scale.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import matplotlib as mpl
import pandas as pd

mpl.use("Agg")

from matplotlib.figure import Figure

from analysis import style
from analysis.experiments import experiments
from analysis.load import final, read_figure, which_logs
from kondo.lab.interrupts import held, quietly
from kondo.lab.records import content_of, is_results, planned, read_plan, write_atomically

SCALES = ("smoke", "laptop", "paper")
CODE = (Path(__file__).parent, Path(__file__).parents[1] / "kondo" / "lab" / "records")
"""Whose files decide what a figure looks like."""
LIBRARIES = ("matplotlib", "pandas", "numpy")

Places = Sequence[tuple[Path, Path]]
"""Folders of run folders, each with where its figures go."""


@dataclass(frozen=True)
class Drawn:
    """What came of a figure for one set of logs."""

    paths: Sequence[Path] = ()
    """None where there are no finished runs to draw, or where it cannot be drawn."""
    trouble: str = ""
    """Why it cannot be drawn."""
    damaged: Sequence[str] = ()
    """A sentence for each run folder that had to be left out."""


def draw(figure: str, places: Places, scale: str, formats: Sequence[str] = style.FORMATS) -> list[Drawn]:
    """<out>/<name>.{png,pdf,svg,csv} for each set of logs; those that are drawn together have the same axes."""
    with mpl.rc_context(style.RC):
        sketches = [Sketch(figure, runs, out, scale) for runs, out in places]
        for sketch in sketches:
            sketch.attempt(sketch.plot)
        style.common_axes([sketch.image for sketch in sketches if sketch.image is not None])
        for sketch in sketches:
            sketch.attempt(sketch.save, formats)
    return [Drawn(sketch.paths, sketch.trouble, sketch.damaged) for sketch in sketches]


def reason(error: Exception) -> str:
    """What went wrong, in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Sketch:
    """A figure of one set of logs while it is drawn; what goes wrong is its own."""

    def __init__(self, name: str, runs: Path, out: Path, scale: str) -> None:
        self.name, self.runs, self.out, self.scale = name, runs, out, scale
        self.damaged: list[str] = []
        self.table: pd.DataFrame | None = None
        self.image: Figure | None = None
        self.paths: list[Path] = []
        self.trouble = ""

    def attempt(self, part: Callable[..., None], *arguments: Any) -> None:
        try:
            part(*arguments)
        except Exception as error:
            self.image, self.paths = None, []
            self.trouble = f"cannot be drawn: {reason(error)}"

    def plot(self) -> None:
        frame, self.damaged = read_figure(self.runs, self.scale, self.name)
        if len(frame) and len(final(frame)):
            module = experiments()[self.name]
            self.table = module.select(frame)
            self.image = module.plot(self.table)

    def save(self, formats: Sequence[str]) -> None:
        if self.image is None or self.table is None:
            return
        self.paths = style.save(self.image, self.out / self.name, formats)
        self.paths.append(self.out / f"{self.name}.csv")
        self.table.to_csv(self.paths[-1], index=False, float_format="%.9g")


def draw_all(
    names: Sequence[str], places: Places, scale: str, formats: Sequence[str] = style.FORMATS
) -> Iterator[tuple[str, list[Drawn]]]:
    """What came of each figure, in order, drawn side by side in one process per core."""

    def outcome(get: Callable[..., list[Drawn]], *arguments: Any) -> list[Drawn]:
        try:
            return get(*arguments)
        except Exception as error:  # such as of a process that was killed
            return [Drawn(trouble=f"cannot be drawn: {reason(error)}") for _ in places]

    workers = min(len(names), joblib.cpu_count())
    if workers < 2:
        yield from ((name, outcome(draw, name, places, scale, formats)) for name in names)
        return
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        with held():
            drawn = [pool.submit(draw, name, places, scale, formats) for name in names]
        yield from ((name, outcome(future.result)) for name, future in zip(names, drawn, strict=True))
    except (KeyboardInterrupt, GeneratorExit):
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def source(figure: str, runs: Path, scale: str) -> bytes:
    """A digest of all that a figure is drawn from and by."""
    plan = read_plan(runs, scale, figure)
    logs = () if plan is None else content_of(runs, plan)
    versions = " ".join(importlib.metadata.version(name) for name in LIBRARIES)
    return _digest([versions.encode(), *_code(), *logs])


def stamp(source: bytes, paths: Iterable[Path]) -> str:
    """A digest of a figure's files, and of what they were drawn from."""
    return _digest([source, *(path.read_bytes() for path in sorted(paths))]).hex()


def stamp_of(out: Path, figure: str) -> Path:
    """Where the stamp of a figure is kept."""
    return out / f".{figure}.drawn"


def current(figure: str, out: Path, source: bytes, formats: Sequence[str]) -> bool:
    """Whether a figure was drawn from these very logs by this very code, and not touched since."""
    kept, paths = stamp_of(out, figure), [out / f"{figure}.{kind}" for kind in (*formats, "csv")]
    return all(path.is_file() for path in (kept, *paths)) and kept.read_text() == stamp(source, paths)


def _digest(contents: Iterable[bytes]) -> bytes:
    total = hashlib.sha256()
    for content in contents:
        total.update(hashlib.sha256(content).digest())
    return total.digest()


@functools.cache
def _code() -> tuple[bytes, ...]:
    files = sorted(path for folder in CODE for path in folder.rglob("*") if path.suffix in (".py", ".csv"))
    return tuple(path.read_bytes() for path in files)


def figures_by_scale(runs: Path) -> dict[str, list[str]]:
    """{scale: the figures that were published at it}"""
    found = sorted((scale, name) for scale, name in planned(runs) if name in experiments())
    return {scale: [name for each, name in found if each == scale] for scale in dict(found)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analysis.draw", description="Draw figures from logs alone.")
    parser.add_argument("figures", nargs="*", help=f"which (default all): {', '.join(experiments())}")
    parser.add_argument("--runs", type=Path, help="folder of runs or of published results (default: which there is)")
    parser.add_argument(
        "--scale", choices=SCALES, help="whose plan to draw (default laptop; of results each as it was published)"
    )
    parser.add_argument("--out", type=Path, help="where figures go (default figures/<scale>)")
    parser.add_argument("--formats", nargs="+", default=style.FORMATS, choices=style.FORMATS, help="default: all")
    parser.add_argument("--changed", action="store_true", help="only those that are not as their logs")
    asked = parser.parse_args(arguments)
    unknown = set(asked.figures) - set(experiments())
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are: {', '.join(experiments())}")
    runs, scale = which_logs(asked.runs, asked.scale)
    if not runs.is_dir():
        parser.error(f"--runs {runs}: no such folder")
    if asked.runs is None:
        print(f"logs: {runs}" + ("" if is_results(runs) and not asked.scale else f", {scale} scale"), flush=True)
    every = {scale: list(experiments())}
    if is_results(runs):  # each at the scale that it was published at
        every = {each: names for each, names in figures_by_scale(runs).items() if asked.scale in (None, each)}
    missing = 0
    for name in sorted(set(asked.figures) - {name for names in every.values() for name in names}):
        print(f"{name}: not in {runs}" + (f" at {asked.scale} scale" if asked.scale else ""))
        missing += 1
    for scale, names in every.items():
        figures = [name for name in asked.figures or names if name in names]
        missing += _draw_and_tell(
            figures, runs, scale, asked.out or Path("figures", scale), asked.formats, asked.changed
        )
    return 1 if missing else 0


def _draw_and_tell(
    figures: Sequence[str], runs: Path, scale: str, out: Path, formats: Sequence[str], changed: bool
) -> int:
    """Draw figures, with a line about each; how many could not be."""
    sources = {figure: source(figure, runs, scale) for figure in figures}
    if changed:
        figures = [figure for figure in figures if not current(figure, out, sources[figure], formats)]
        print(f"{len(sources) - len(figures)} of {len(sources)} figures in {out} are as their logs", flush=True)
    missing = 0
    for figure, (drawn,) in draw_all(figures, [(runs, out)], scale, formats):
        for sentence in drawn.damaged:
            print(f"{figure}: left out: {sentence}")
        train = f"no finished runs; make reproduce FIGURES={figure} SCALE={scale} trains them"
        print(f"{figure}: {drawn.paths[0] if drawn.paths else drawn.trouble or train}", flush=True)
        missing += not drawn.paths
        if drawn.paths and not drawn.damaged:
            write_atomically(stamp_of(out, figure), stamp(sources[figure], drawn.paths))
    return missing


if __name__ == "__main__":
    sys.exit(quietly(main))
