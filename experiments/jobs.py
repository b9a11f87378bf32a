"""A job: a cell that is known to be valid, where and how to train it, what it was asked as, and its name."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kondo.lab.actor import logged_schedule, schedule_text
from kondo.lab.capabilities import declared
from kondo.lab.config.cell import Cell, gated, parse
from kondo.lab.frictions import FRICTIONS
from kondo.lab.probes import PROBES
from kondo.lab.records import is_results, read_log
from kondo.lab.training import Block, blocks, finished
from kondo.objectives import METHODS
from kondo.schema import ConfigError, build, knob

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
SCIENCE = ("task", "method", "friction", "screen", "probe", "actor", "optimizer", "steps", "evals", "until")
"""The keys of the config that say what a run is; the gate joins them where the method has one."""
ASIDE = ("budget", "dials", "experiment", "intensity", "small", "hydra")
"""The keys that others are made of."""


def _level(intensity: Any) -> float:
    if isinstance(intensity, bool) or not isinstance(intensity, (int, float)) or not 0 <= intensity < 1:
        raise ConfigError(f"intensity={intensity!r}: expected null or a number in [0, 1)")
    return float(intensity)


def _dial(intensity: Any, full: float, default: float) -> float:
    """${dial:intensity,full,default}: that share of the full amount, or the default where no intensity is given."""
    return default if intensity is None else type(full)(round(_level(intensity) * full, 6))


def _crowd(intensity: Any, few: int | None, default: int) -> int | None:
    """${crowd:intensity,few,default}: so many arms that this share of them is beyond the few; null without few."""
    if few is None:
        return None
    return default if intensity is None else round(few / (1 - _level(intensity)))


def _fade(intensity: Any, full: float | None, default: float) -> float | None:
    """${fade:intensity,full,default}: what that share leaves of the full amount; null without one."""
    if full is None:
        return None
    return default if intensity is None else round((1 - _level(intensity)) * full, 6)


def _coarse(intensity: Any, default: str) -> str | None:
    """${coarse:intensity,default}: exact at 0, bf16 below 0.2, int8 below 0.5, int4 from there on; or the default."""
    if intensity is None or _level(intensity) == 0:
        return default if intensity is None else None
    return "bf16" if intensity < 0.2 else "int8" if intensity < 0.5 else "int4"


OmegaConf.register_new_resolver("dial", _dial, replace=True)
OmegaConf.register_new_resolver("coarse", _coarse, replace=True)
OmegaConf.register_new_resolver("fade", _fade, replace=True)
OmegaConf.register_new_resolver("crowd", _crowd, replace=True)


@dataclass(frozen=True)
class WandbSettings:
    mode: str = knob("offline", choices=("offline", "online", "disabled"))
    project: str = "kondo"
    group: str | None = None
    """None in a config that names none; a job always has one."""
    dir: str = "runs"


@dataclass(frozen=True)
class Search:
    """An axis of a sweep that is climbed instead of crossed: the next value is tried where the last was solved."""

    key: str | None = None
    values: tuple[int, ...] = ()
    """From easy to hard."""
    solved: float = knob(0.05, low=0)
    """The error to get down to, by one seed at least, for the next value to be tried."""


@dataclass(frozen=True)
class Launch:
    """Where and how a run is trained, and for how many seeds; no part of its identity."""

    seeds: int = knob(1, low=1)
    first_seed: int = knob(0, low=0)
    block: int = knob(10, low=1)
    runs: str = "runs"
    data: str = "data"
    device: str = "cpu"
    threads: int = knob(1, low=1)
    checkpoint_seconds: float = knob(30.0, low=0)
    scale: str = "laptop"
    search: Search = Search()
    twin: bool = False
    """Whether an asynchronous run, once trained, gets a simulated twin; see `twin_of`."""
    wandb: WandbSettings = WandbSettings()

    def __post_init__(self) -> None:
        if not self.runs:
            raise ConfigError("runs=: expected a folder")
        if is_results(Path(self.runs)):
            raise ConfigError(f"runs={self.runs}: published records, which nothing is trained into; another folder")


@dataclass(frozen=True)
class Job:
    cell: Cell
    launch: Launch
    choices: Mapping[str, Any] = field(default_factory=dict)
    """What was asked by name: task, method, friction, intensity."""
    name: str = ""
    """The cell in a few words: how it differs from its task's and method's defaults. No two cells share one."""

    def blocks(self) -> list[Block]:
        launch = self.launch
        return blocks(self.cell, launch.seeds, launch.block, Path(launch.runs), launch.first_seed, self.choices)


def cell_name(cell: Cell, usual: Cell, choices: Mapping[str, Any]) -> str:
    """mnist dgk ρ=0.03 priority=uniform staleness delay=1000: what was chosen, and what differs from usual."""
    plain, default = cell.plain(), usual.plain()
    words = [str(choices["task"]), str(choices["method"])]
    if cell.gate is not None:
        words.append(f"λ={cell.gate.price!r}" if cell.gate.rate is None else f"ρ={cell.gate.rate!r}")
    for section in ("gate", "task", "method", "screen", "probe", "actor", "optimizer"):
        prefix = "" if section in ("gate", "task") else f"{section}."
        own, other = plain[section] or {}, default[section] or {}
        for key, value in own.items():
            if value != other.get(key) and (section, key) not in (("gate", "rate"), ("gate", "price")):
                words.append(f"{prefix}{key}={value}")
    for name, own in plain["friction"].items():
        other = dataclasses.asdict(FRICTIONS[name]())
        words += [name, *(f"{key}={value}" for key, value in own.items() if value != other[key])]
    return " ".join(
        words + [f"{key}={plain[key]}" for key in ("steps", "evals", "until") if plain.get(key) != default.get(key)]
    )


def job(config: DictConfig, choices: Mapping[str, Any], usual: Callable[[str, str, str], Cell], sweeping: bool) -> Job:
    """A checked job from a composed config and the choices of groups that it was composed of; `usual` is the cell of a
    task, a method and a scale alone, which names are the difference from.

    A gate, or a probe that looks into it, for a method without one is an error, and so is an intensity that turns
    nothing; in a sweep it only means that the axis is not for that method, or not for that friction.
    """
    made = checked(config, sweeping)
    friction = choices.get("friction", [])  # of a list of them Hydra says nothing
    asked: dict[str, Any] = {
        "task": str(choices["task"]),
        "method": str(choices["method"]),
        "friction": friction if isinstance(friction, str) else "+".join(config.friction),
        "intensity": _intensity(config, sweeping),
    }
    other = usual(asked["task"], asked["method"], made.launch.scale)
    launch = _grouped(made.launch, choices.get("experiment"))
    return dataclasses.replace(made, launch=launch, choices=asked, name=cell_name(made.cell, other, asked))


def _grouped(launch: Launch, experiment: str | None) -> Launch:
    """In W&B runs are grouped by the experiment that asked for them, unless a group is given."""
    group = launch.wandb.group or experiment or "ad hoc"
    return dataclasses.replace(launch, wandb=dataclasses.replace(launch.wandb, group=group))


def _intensity(config: DictConfig, sweeping: bool) -> float | None:
    """The intensity, where some friction follows it."""
    intensity, friction = config.get("intensity"), OmegaConf.to_container(config)["friction"]  # type: ignore[call-overload,index]
    if intensity is None or "${intensity}" in str(friction):
        return None if intensity is None else _level(intensity)
    if sweeping and not friction:
        return None
    raise ConfigError(f"intensity={intensity}: nothing follows it; choose a friction, say friction=staleness")


def checked(config: DictConfig, sweeping: bool) -> Job:
    """The job of a config, without a name."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise (error.__cause__ if isinstance(error.__cause__, ConfigError) else ConfigError(str(error))) from None
    assert isinstance(plain, dict)
    for key in ASIDE:
        plain.pop(key, None)
    gate = plain.pop("gate", None)
    cell = {key: plain.pop(key) for key in SCIENCE if key in plain}
    name = cell["method"].get("name") if isinstance(cell.get("method"), dict) else None
    if name in METHODS and not gated(name) and (sweeping or gate == _defaults("gate.yaml")["gate"]):
        gate = None
    if sweeping and name in METHODS and not gated(name) and "gate" in _probe_needs(cell.get("probe")):
        cell.pop("probe")
    launch = build(Launch, plain)
    _check_device(launch.device)
    return Job(parse({**cell, "gate": gate}), launch)


def _probe_needs(probe: Any) -> tuple[str, ...]:
    """What the chosen probe looks at."""
    name = probe.get("name") if isinstance(probe, dict) else None
    return declared(PROBES[name]) if name in PROBES else ()


@functools.cache
def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device={device!r}: not available here ({reason}); cpu always is") from None


@functools.cache
def _defaults(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(CONF / name))


Climb = list[Job]
"""The jobs of a search, from easy to hard; of a cell without one, its job alone."""


def needed(climbs: Sequence[Climb]) -> list[Job]:
    """What is to be trained as far as logs tell: of a search every value up to the first that is not known solved; of
    an asynchronous run that asks for it its twin."""
    jobs = [job for climb in climbs for job in _tried(climb)]
    twins = [twin_of(job) for job in jobs if job.launch.twin and job.cell.actor.mode == "async"]
    return jobs + [twin for twin in twins if twin is not None]


def twin_of(job: Job) -> Job | None:
    """An asynchronous job in one process: batches in their order, each with parameters of an age drawn from those that
    the asynchronous runs had, by themselves and independent of each other. None where these are not trained yet."""
    runs = Path(job.launch.runs)
    if not all(finished(block, runs) for block in job.blocks()):
        return None
    logs = [logged_schedule(read_log(block.folder(runs))) for block in job.blocks()]
    ages = [step - version for log in logs for step, (_, version) in enumerate(log)]
    draw = random.Random(job.cell.key())
    schedule = [(step, step - min(step, draw.choice(ages))) for step in range(job.cell.steps)]
    plain = job.cell.plain()
    plain["actor"] = {
        "report_probabilities": job.cell.actor.report_probabilities,
        "pace": job.cell.actor.pace,
        "schedule": schedule_text(schedule),
    }
    return dataclasses.replace(
        job, cell=parse(plain), choices={**job.choices, "twin": 1}, name=f"{job.name}, simulated"
    )


def _tried(climb: Climb) -> Iterator[Job]:
    for job in climb:
        yield job
        if len(climb) > 1 and not _solved(job):
            return


def _solved(job: Job) -> bool:
    """Whether a job is trained, and some seed of it got down to the error that its search asks for."""
    runs, error = Path(job.launch.runs), job.cell.error or ""
    return all(finished(block, runs) for block in job.blocks()) and any(
        row.get(error) is not None and row[error] <= job.launch.search.solved
        for block in job.blocks()
        for row in read_log(block.folder(runs))
    )


def final_error(job: Job) -> float:
    """The mean over seeds of the last error in its logs; NaN where there is none."""
    runs, error = Path(job.launch.runs), job.cell.error or ""
    logs = [read_log(block.folder(runs)) for block in job.blocks() if finished(block, runs)]
    ends = [row[error] for log in logs for row in log if row["step"] == log[-1]["step"] and row.get(error) is not None]
    return fmean(ends) if ends else math.nan
