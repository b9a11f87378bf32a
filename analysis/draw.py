"""Draw figures from logs alone.

    python -m analysis.draw                       # every figure that has runs
    python -m analysis.draw bandit_pareto --scale smoke

A figure shows the cells of its plan, which `make reproduce` and `experiments.run -m experiment=…` write into the runs
folder for each figure and scale.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType

import joblib
import matplotlib as mpl

mpl.use("Agg")

from analysis import figures as package
from analysis import style
from analysis.load import final, load_figure

SCALES = ("smoke", "laptop", "paper")


def figures() -> dict[str, ModuleType]:
    """Every figure: a module with select(frame) → the plotted data, plot(data) → Figure, and, where no claim is decided
    by it, measured(data) → what it shows, in words."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"analysis.figures.{name}") for name in names}


Places = Sequence[tuple[Path, Path]]
"""Folders of run folders, each with where its figures go."""


def draw(figure: str, places: Places, scale: str, formats: Sequence[str] = style.FORMATS) -> list[Path]:
    """figures/<name>.{png,pdf,svg,csv}; none where there are no finished runs to draw. Sets of logs that are drawn
    together have the same axes."""
    module = figures()[figure]
    frames = {out: load_figure(runs, scale, figure) for runs, out in places}
    with mpl.rc_context(style.RC):
        tables = {out: module.select(frame) for out, frame in frames.items() if len(frame) and len(final(frame))}
        drawn = {out: module.plot(table) for out, table in tables.items()}
        style.common_axes(list(drawn.values()))
        paths = [path for out, each in drawn.items() for path in style.save(each, out / figure, formats)]
    for out, table in tables.items():
        paths.append(out / f"{figure}.csv")
        table.to_csv(paths[-1], index=False, float_format="%.9g")
    return paths


def draw_all(
    names: Sequence[str], places: Places, scale: str, formats: Sequence[str] = style.FORMATS
) -> Iterator[tuple[str, list[Path]]]:
    """Each figure's name and files, in order, drawn side by side in one process per core."""
    workers = min(len(names), joblib.cpu_count())
    if workers < 2:
        yield from ((name, draw(name, places, scale, formats)) for name in names)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        drawn = [pool.submit(draw, name, places, scale, formats) for name in names]
        yield from ((name, future.result()) for name, future in zip(names, drawn, strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analysis.draw", description="Draw figures from logs alone.")
    parser.add_argument("figures", nargs="*", help=f"which (default all): {', '.join(figures())}")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    parser.add_argument("--scale", default="laptop", choices=SCALES, help="whose plan to draw")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="where figures go")
    asked = parser.parse_args(arguments)
    unknown = set(asked.figures) - set(figures())
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are: {', '.join(figures())}")
    if not asked.runs.is_dir():
        parser.error(f"--runs {asked.runs}: no such folder")
    missing = 0
    for figure, paths in draw_all(asked.figures or list(figures()), [(asked.runs, asked.out)], asked.scale):
        print(
            f"{figure}: {paths[0]}"
            if paths
            else f"{figure}: no finished runs; make reproduce FIGURES={figure} SCALE={asked.scale} trains them"
        )
        missing += not paths
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
