"""Which cells a figure shows: its sweep, composed once and kept until the config, the code or the words change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib

from experiments.compose import climbs, session, small_task, swept_by_experiment
from experiments.extend import extensions, load_extensions
from experiments.jobs import CONF, ROOT, Climb, Job, Launch, needed
from experiments.suggest import foreign_axes
from kondo.lab.config.cell import SCHEMA, parse
from kondo.lab.records import Plan, composed_path, read_json, write_atomically, write_plan
from kondo.schema import ConfigError, build, nearest

FEW = 3
"""So many figures are composed here rather than in processes that must start first."""


def experiments() -> list[str]:
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def plan(figure: str, scale: str, overrides: Sequence[str]) -> list[Job]:
    """The jobs that a figure needs as far as its logs tell now, written down for the figures to read."""
    jobs = needed_now(figure, scale, overrides)
    write_plan(Path(jobs[0].launch.runs), plan_of(figure, jobs, overrides))
    return jobs


def needed_now(figure: str, scale: str, overrides: Sequence[str]) -> list[Job]:
    """The jobs that a figure needs as far as its logs tell now."""
    return needed(_climbs(figure, scale, overrides))


def compose_all(figures: Sequence[str], scale: str, overrides: Sequence[str]) -> None:
    """Compose what is not kept yet, side by side, the longest sweeps first."""
    missing = [figure for figure in figures if _kept(figure, scale, overrides) is None]
    sizes = {path.stem: path.read_text().count(",") for path in CONF.glob("experiment/*.yaml")}
    missing.sort(key=lambda figure: -sizes.get(figure, 0))
    if len(missing) > FEW:
        joblib.Parallel(n_jobs=-1)(joblib.delayed(_composed)(figure, scale, overrides) for figure in missing)


def _climbs(figure: str, scale: str, overrides: Sequence[str]) -> list[Climb]:
    """The jobs of a figure's sweep, from what is kept of it if that is up to date."""
    kept = _kept(figure, scale, overrides) or _composed(figure, scale, overrides)
    load_extensions()
    launch = build(Launch, kept["launch"])

    def job(each: dict[str, Any]) -> Job:
        return Job(parse(each["config"]), launch, each["choices"], each["name"])

    return [[job(each) for each in climb] for climb in kept["climbs"]]


def _composed(figure: str, scale: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a figure's sweep, and keep it."""
    if figure not in experiments():
        raise ConfigError(f"{figure}: no such figure; {nearest(figure, experiments())}")
    words = [f"experiment={figure}", f"scale={scale}", *overrides]
    if scale == "smoke" and (small := small_task(figure)) and not any(word.startswith("task=") for word in overrides):
        words.insert(0, f"task={small}")
    if foreign := outside(words):
        what = ", ".join(foreign)
        raise ConfigError(f"{figure}: has no axis for {what}; give one value, or sweep with experiments.run")
    every = climbs(words)
    launch = every[0][0].launch
    kept = {
        "digest": _digest(figure, scale, overrides),
        "launch": dataclasses.asdict(launch),
        "climbs": [
            [{"config": job.cell.plain(), "choices": dict(job.choices), "name": job.name} for job in climb]
            for climb in every
        ],
    }
    path = composed_path(Path(launch.runs), scale, figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(kept, ensure_ascii=False))
    return kept


def outside(words: Sequence[str]) -> list[str]:
    """What a command line sweeps beyond the sweep of its experiment."""
    with session() as parser:
        parsed = parser.parse_overrides(list(words))
        return foreign_axes(parsed, list(swept_by_experiment(parsed)))


def _kept(figure: str, scale: str, overrides: Sequence[str]) -> dict[str, Any] | None:
    """A figure's sweep as it was composed before; None where it must be composed anew."""
    named = [word.partition("=")[2].strip("'\"") for word in overrides if word.startswith("runs=")]
    kept = read_json(composed_path(Path(named[-1] if named else "runs"), scale, figure))
    return kept if kept.get("digest") == _digest(figure, scale, overrides) else None


def _digest(figure: str, scale: str, overrides: Sequence[str]) -> str:
    """Of all that decides what a figure's sweep is composed to."""
    code = [*CONF.rglob("*.yaml"), *(ROOT / "kondo").rglob("*.py"), *(ROOT / "experiments").glob("*.py"), *extensions()]
    digest = hashlib.sha256(json.dumps([figure, scale, *overrides]).encode())
    for path in sorted(code):
        digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def plan_of(figure: str, jobs: Sequence[Job], overrides: Sequence[str]) -> Plan:
    """Which cells a figure shows, and the command that asked for them."""
    launch = jobs[0].launch
    elsewhere = ("experiment=", "scale=", "runs=", "hydra", "wandb.", "data=", "device=")
    changed = " ".join(word for word in overrides if not word.startswith(elsewhere))
    command = [f"make reproduce FIGURES={figure} SCALE={launch.scale}"]
    command += [f"RUNS={shlex.quote(launch.runs)}"] if launch.runs != "runs" else []
    command += [f"OVERRIDES={shlex.quote(changed)}"] if changed else []
    return Plan(
        figure=figure,
        scale=launch.scale,
        command=" ".join(command),
        cells={each.cell.key(): {"name": each.name, "choices": dict(each.choices)} for each in jobs},
        seeds=launch.seeds,
        first_seed=launch.first_seed,
        schema=SCHEMA,
        search=None if launch.search.key is None else dataclasses.asdict(launch.search),
    )
