"""From a command line or a figure's name to jobs that are known to be valid: the only place that composes configs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import importlib.util
import json
import operator
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.load import Plan, plan_path, read_log
from kondo.cell import SCHEMA, Cell, gated, parse
from kondo.frictions import FRICTIONS
from kondo.objectives import METHODS, settings
from kondo.runs import Block, blocks, finished, write_atomically
from kondo.schema import ConfigError, build, knob, nearest

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
SCIENCE = ("task", "method", "friction", "screen", "probe", "actor", "optimizer", "steps", "evals")
"""The keys of the config that say what a run is; the gate joins them where the method has one."""
LAUNCH = ("seeds", "first_seed", "block", "runs", "data", "device", "threads", "checkpoint_seconds", "search", "wandb")
"""The keys that say where and how a run is trained, and for how many seeds."""
INDEPENDENT = ("method=", "friction=")
"""Choices that leave every other choice as it is."""


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


OmegaConf.register_new_resolver("dial", _dial, replace=True)
OmegaConf.register_new_resolver("fade", _fade, replace=True)
OmegaConf.register_new_resolver("crowd", _crowd, replace=True)


@dataclass(frozen=True)
class WandbSettings:
    mode: str = knob("offline", choices=("offline", "online", "disabled"))
    project: str = "kondo"
    group: str = "ad hoc"
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
    wandb: WandbSettings = WandbSettings()

    def __post_init__(self) -> None:
        if not self.runs:
            raise ConfigError("runs=: expected a folder")


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
    return " ".join(words + [f"{key}={plain[key]}" for key in ("steps", "evals") if plain[key] != default[key]])


def load_extensions() -> None:
    """Import every file in experiments/extensions and in the folders of $KONDO_EXTENSIONS, so that what they register
    can be named in a config; methods and frictions without a config file get one from their defaults."""
    extra = [Path(folder) for folder in os.environ.get("KONDO_EXTENSIONS", "").split(os.pathsep) if folder]
    for folder in [Path(__file__).parent / "extensions", *extra]:
        if not folder.is_dir():
            raise ConfigError(f"KONDO_EXTENSIONS: {folder} is no folder")
        for path in sorted(folder.glob("*.py")):
            name = f"kondo_extension_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}_{path.stem}"
            if name not in sys.modules:  # once: what it registers is registered for good
                spec = importlib.util.spec_from_file_location(name, path)
                assert spec is not None
                assert spec.loader is not None
                sys.modules[name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
    store = ConfigStore.instance()
    for name, objective in METHODS.items():
        if not (CONF / "method" / f"{name}.yaml").exists():
            store.store(group="method", name=name, node={"name": name, **settings(objective)})
    for name, cls in FRICTIONS.items():
        if not (CONF / "friction" / f"{name}.yaml").exists():
            store.store(group="friction", name=name, package="friction", node={name: dataclasses.asdict(cls())})


def job(config: DictConfig, choices: Mapping[str, Any], sweeping: bool) -> Job:
    """A checked job from a composed config and the choices of groups that it was composed of.

    A gate for a method without one is an error, and so is an intensity that turns nothing; in a sweep it only means
    that the axis is not for that method, or not for that friction.
    """
    made = _checked(config, sweeping)
    friction = choices.get("friction", [])  # of a list of them Hydra says nothing
    asked = {
        "task": str(choices["task"]),
        "method": str(choices["method"]),
        "friction": friction if isinstance(friction, str) else "+".join(config.friction),
        "intensity": _intensity(config, sweeping),
    }
    usual = _usual(asked["task"], asked["method"], made.launch.scale)
    return dataclasses.replace(made, choices=asked, name=cell_name(made.cell, usual, asked))


def _intensity(config: DictConfig, sweeping: bool) -> float | None:
    """The intensity, where some friction follows it."""
    intensity, friction = config.get("intensity"), OmegaConf.to_container(config)["friction"]  # type: ignore[call-overload,index]
    if intensity is None or "${intensity}" in str(friction):
        return None if intensity is None else _level(intensity)
    if sweeping and not friction:
        return None
    raise ConfigError(f"intensity={intensity}: nothing follows it; choose a friction, say friction=staleness")


@functools.lru_cache(maxsize=1024)
def _usual(task: str, method: str, scale: str) -> Cell:
    """The cell of a task and a method alone: what the names of others are the difference from."""
    config = _chosen((f"task={task}", f"scale={scale}", f"method={method}"))
    return _checked(OmegaConf.create(config), sweeping=True).cell


def _checked(config: DictConfig, sweeping: bool) -> Job:
    """The job of a config, without a name."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise (error.__cause__ if isinstance(error.__cause__, ConfigError) else ConfigError(str(error))) from None
    assert isinstance(plain, dict)
    for key in ("budget", "dials", "experiment", "intensity", "small"):
        plain.pop(key, None)
    gate = plain.pop("gate", None)
    cell = {key: plain.pop(key) for key in SCIENCE if key in plain}
    name = cell["method"].get("name") if isinstance(cell.get("method"), dict) else None
    if name in METHODS and not gated(name) and (sweeping or gate == _defaults("gate.yaml")["gate"]):
        gate = None
    launch = build(Launch, plain)
    _check_device(launch.device)
    return Job(parse({**cell, "gate": gate}), launch)


def single(overrides: Sequence[str]) -> Job:
    """The job of a command line without sweeps."""
    with _hydra() as parser:
        _check_names(parser.parse_overrides(list(overrides)))
        config, hydra = _composed(tuple(overrides))
        return job(OmegaConf.create(config), hydra["runtime"]["choices"], sweeping=False)


def sweep(overrides: Sequence[str]) -> list[Job]:
    """The jobs of a command line with -m, each cell once: a bad one is refused before any other is trained."""
    with _hydra() as parser:
        parsed = parser.parse_overrides(list(overrides))
        _check_names(parsed)
        _check_swept(parsed)
        swept = _swept_by_experiment(parsed)
        lines = [f"{key}={value}" for key, value in swept.items()]
        lines += [o.input_line for o in parsed if o.input_line and not _is_hydra(o)]
        (cells,) = BasicSweeper.split_arguments(parser.parse_overrides(lines), None)
        groups = _groups()

        def made(cell: list[str]) -> Job:
            return job(*_compose(parser.parse_overrides(cell), groups), sweeping=True)

        jobs = [each for cell in cells for each in _climbed(cell, made)]
        _check_effect(parsed, jobs)
    unique: dict[str, Job] = {}
    for each in jobs:
        unique.setdefault(each.cell.key(), each)
    names = Counter(each.name for each in unique.values())
    assert max(names.values()) == 1, f"two cells share a name: {names.most_common(1)}"
    return list(unique.values())


def small_task(figure: str) -> str | None:
    """The task that a smoke test of a figure trains in the place of the figure's own."""
    with _hydra():
        return _composed((f"experiment={figure}",))[0].get("small")


def foreign_axes(overrides: Sequence[str]) -> list[str]:
    """What a command line sweeps beyond the sweep of its experiment: a figure has no axis for it."""
    with _hydra() as parser:
        parsed = parser.parse_overrides(list(overrides))
        own = [str(key) for key in _swept_by_experiment(parsed)]
    asked = [str(o.key_or_group) for o in parsed if o.is_sweep_override() and not _is_hydra(o)]
    return [key for key in asked if not any(key == each or key.startswith(f"{each}.") for each in own)]


def _swept_by_experiment(parsed: Sequence[Override]) -> dict[str, Any]:
    """{key: values} of the sweep that the chosen experiment brings."""
    chosen = [o for o in parsed if o.key_or_group in ("experiment", "scale") and not o.is_sweep_override()]
    return _composed(tuple(str(o.input_line) for o in chosen))[1]["sweeper"]["params"] or {}


def _check_swept(parsed: Sequence[Override]) -> None:
    """Only what makes another cell can be swept."""
    for override in parsed:
        key = str(override.key_or_group)
        if override.is_sweep_override() and key == "experiment":
            raise ConfigError(f"{override.input_line}: one at a time; make reproduce FIGURES=… trains several")
        if override.is_sweep_override() and key.partition(".")[0] in (*LAUNCH, "scale"):
            raise ConfigError(
                f"{override.input_line}: does not make another cell, so it cannot be swept; give one value"
            )


def _check_effect(parsed: Sequence[Override], jobs: Sequence[Job]) -> None:
    """An axis that matters to none of the cells is refused."""
    for override in parsed:
        key = str(override.key_or_group)
        if key == "intensity" and override.value() is not None and all(j.choices["intensity"] is None for j in jobs):
            raise ConfigError(f"{override.input_line}: nothing follows it; choose a friction, say friction=staleness")
        if key.partition(".")[0] == "gate" and all(each.cell.gate is None for each in jobs):
            others = ", ".join(sorted(name for name in METHODS if gated(name)))
            raise ConfigError(f"{override.input_line}: no method here has a gate; methods with one: {others}")


def _climbed(cell: list[str], made: Callable[[list[str]], Job]) -> Iterator[Job]:
    """The job of a cell; or, where it asks for a search, one for each value that is to be tried as far as logs tell."""
    first = made(cell)
    search = first.launch.search
    if search.key is None:
        yield first
        return
    if not search.values:
        raise ConfigError(f"search.key={search.key}: search.values is empty; give some, from easy to hard")
    for value in search.values:
        each = made([*cell, f"{search.key}={value}"])
        yield each
        if not _solved(each, search.solved):
            return


def _solved(job: Job, level: float) -> bool:
    """Whether a job is trained, and some seed of it got down to this error."""
    runs, error = Path(job.launch.runs), job.cell.error or ""
    return all(finished(block, runs) for block in job.blocks()) and any(
        row.get(error) is not None and row[error] <= level
        for block in job.blocks()
        for row in read_log(block.folder(runs) / "metrics.jsonl")
    )


def launcher_settings(overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Which launcher a command line asks for, and its settings: hydra/launcher=…, hydra.launcher.…"""
    with _hydra() as parser:
        asked = [o for o in parser.parse_overrides(list(overrides)) if _is_hydra(o)]
        hydra = _composed(tuple(str(o.input_line) for o in asked))[1]
        return hydra["runtime"]["choices"]["hydra/launcher"], dict(hydra["launcher"])


def _is_hydra(override: Override) -> bool:
    return str(override.key_or_group).startswith(("hydra.", "hydra/"))


def _compose(overrides: Sequence[Override], groups: Collection[str]) -> tuple[DictConfig, dict[str, Any]]:
    """What Hydra would compose, in a fraction of the time: choices of groups from `_chosen`, values set afterwards;
    and the choices."""
    values = [o for o in overrides if o.type == OverrideType.CHANGE and o.key_or_group not in groups]
    choices = [str(o.input_line) for o in overrides if o not in values and o.input_line]
    choices.sort(key=lambda choice: choice.startswith(INDEPENDENT))
    config = copy.deepcopy(_chosen(tuple(choices)))
    for override in values:
        *path, leaf = str(override.key_or_group).split(".")
        try:
            node = functools.reduce(operator.getitem, path, config)
            node[leaf] = _merged(node[leaf], override.value())
        except (KeyError, TypeError):
            raise ConfigError(f"{override.input_line}: not there with {' '.join(choices)}") from None
    others = tuple(choice for choice in choices if not choice.startswith(INDEPENDENT))
    named = {str(o.key_or_group): o.value() for o in overrides if str(o.key_or_group) in groups}
    return OmegaConf.create(config), _composed(others)[1]["runtime"]["choices"] | named


@functools.lru_cache(maxsize=4096)
def _chosen(choices: tuple[str, ...]) -> dict[str, Any]:
    """The config with these choices, interpolations and all.

    A choice that leaves the others alone changes any config as it changes the default one, unless the part it changes
    is another there already: Hydra composes each such choice once, and not every product of them.
    """
    *rest, last = choices or ("",)
    if rest and last.startswith((*INDEPENDENT, "scale=")):
        default, alone, base = _chosen(()), _chosen((last,)), _chosen(tuple(rest))
        changed = {last.partition("=")[0], *(key for key in alone if alone[key] != default.get(key))}
        untouched = alone.keys() <= base.keys() and all(base[key] == default.get(key) for key in changed)
        if untouched and (last.startswith(INDEPENDENT) or alone == default):
            return base | {key: alone[key] for key in changed}
    return _composed(choices)[0]


@functools.lru_cache(maxsize=1024)
def _composed(choices: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Hydra composes of these choices: our config and its own."""
    config = compose("config", list(choices), return_hydra_config=True)
    plain: Any = OmegaConf.to_container(config)
    hydra = plain.pop("hydra")
    if swept := config.hydra.sweeper.params:  # what is swept may depend on the scale
        hydra["sweeper"]["params"] = OmegaConf.to_container(swept, resolve=True)
    return plain, hydra


def _merged(old: Any, new: Any) -> Any:
    """A value in the place of another; mappings keep what the new one does not name."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merged(old[key], value) for key, value in new.items()}


def write_plan(figure: str, jobs: Sequence[Job], overrides: Sequence[str]) -> None:
    """Write down which cells a figure shows, and the command that asked for them, for `analysis` to read."""
    launch = jobs[0].launch
    elsewhere = ("experiment=", "scale=", "runs=", "hydra", "wandb.", "data=", "device=")
    changed = " ".join(word for word in overrides if not word.startswith(elsewhere))
    command = [f"make reproduce FIGURES={figure} SCALE={launch.scale}"]
    command += [f"RUNS={shlex.quote(launch.runs)}"] if launch.runs != "runs" else []
    command += [f"OVERRIDES={shlex.quote(changed)}"] if changed else []
    plan = Plan(
        figure=figure,
        scale=launch.scale,
        command=" ".join(command),
        cells={each.cell.key(): {"name": each.name, "choices": dict(each.choices)} for each in jobs},
        seeds=launch.seeds,
        first_seed=launch.first_seed,
        schema=SCHEMA,
        search=None if launch.search.key is None else dataclasses.asdict(launch.search),
    )
    path = plan_path(Path(launch.runs), launch.scale, figure)
    text = json.dumps(dataclasses.asdict(plan), indent=1, ensure_ascii=False)
    if not path.exists() or path.read_bytes() != text.encode():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


@contextmanager
def _hydra() -> Iterator[OverridesParser]:
    """Hydra's composer over conf/; what it refuses becomes a ConfigError."""
    load_extensions()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            yield OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def _groups() -> dict[str, list[str]]:
    """What can be chosen from: {group: its options}."""
    loader = GlobalHydra.instance().config_loader()
    names = [group for group in loader.list_groups("") if group != "hydra"]
    return {group: loader.get_group_options(group) for group in [*names, "hydra/launcher"]}


def _check_names(overrides: Sequence[Override]) -> None:
    """Unknown choices and unknown keys, with the nearest that exists."""
    groups = _groups()
    chosen = []
    for override in overrides:
        key = str(override.key_or_group)
        if key in groups:
            for value in _choices(override):
                if value not in groups[key] and not (key == "experiment" and value in ("None", "null")):
                    raise ConfigError(f"{key}={value}: no such {key}; {nearest(value, groups[key])}")
                chosen.append(f"{key}={value}")
    # Each choice brings keys of its own: a key is known if any of the configs chosen has it.
    known = [_chosen((choice,)) for choice in chosen if not choice.startswith("hydra/")] + [_chosen(())]
    for override in overrides:
        key = str(override.key_or_group)
        if key not in groups and not key.startswith("hydra."):
            content = override.value()
            for path in [f"{key}.{inner}" for inner in content] if isinstance(content, dict) else [key]:
                _check_key(path, known, groups)


def _choices(override: Override) -> list[str]:
    """The options of a group that an override names: one, a list to combine, or a sweep."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    value = override.value()
    return list(map(str, value)) if isinstance(value, list) else [str(value)]


def _check_key(key: str, known: Sequence[dict[str, Any]], groups: dict[str, list[str]]) -> None:
    parent, _, leaf = key.rpartition(".")
    nodes = [_select(config, parent) for config in known]
    if parent and not any(node is not None for node in nodes):
        _check_key(parent, known, groups)
    siblings = {str(name) for node in nodes if isinstance(node, dict) for name in node}
    if leaf not in siblings and leaf in groups.get(parent, ()):
        raise ConfigError(f"{key}: there only with {parent}={leaf}; add that")
    if leaf not in siblings:
        close = {f"{parent}.{name}" if parent else name for name in siblings}
        raise ConfigError(f"{key}: unknown key; {nearest(key, close)}")


def _select(config: Any, path: str) -> Any:
    """The node at a dotted path, None where there is none."""
    for name in path.split(".") if path else ():
        config = config.get(name) if isinstance(config, dict) else None
    return config


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
