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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from kondo.cell import SCHEMA, Cell, GateSettings, gated, parse
from kondo.frictions import FRICTIONS
from kondo.objectives import METHODS, settings
from kondo.runs import Block, blocks, finished, write_atomically
from kondo.schema import ConfigError, build, knob, nearest
from kondo.screens import ScreenSettings

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
SCIENCE = ("task", "method", "friction", "screen", "probe", "actor", "optimizer", "steps", "evals")
"""The keys of the config that say what a run is; the gate joins them where the method has one."""
INDEPENDENT = ("method=", "friction=")
"""Choices that leave every other choice as it is."""


def _level(intensity: Any) -> float:
    if isinstance(intensity, bool) or not isinstance(intensity, (int, float)) or not 0 <= intensity < 1:
        raise ConfigError(f"intensity={intensity!r}: expected null or a number in [0, 1)")
    return float(intensity)


def _dial(intensity: Any, full: float, default: float) -> float:
    """${dial:intensity,full,default}: that share of the full amount, or the default where no intensity is given."""
    return default if intensity is None else type(full)(round(_level(intensity) * full, 6))


def _crowd(intensity: Any, few: int, default: int) -> int:
    """${crowd:intensity,few,default}: so many arms that this share of them is beyond the few."""
    return default if intensity is None else round(few / (1 - _level(intensity)))


def _fade(intensity: Any, full: float, default: float) -> float:
    """${fade:intensity,full,default}: what that share leaves of the full amount."""
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

    def blocks(self) -> list[Block]:
        launch = self.launch
        return blocks(self.cell, launch.seeds, launch.block, Path(launch.runs), launch.first_seed)

    def describe(self) -> str:
        """The cell in a few words: bandit dgk ρ=0.03 staleness delay=100 delay_mode=fixed"""
        plain = self.cell.plain()
        words = [plain["task"]["name"], self.cell.method]
        if self.cell.gate is not None:
            words.append(f"λ={self.cell.gate.price:g}" if self.cell.gate.rate is None else f"ρ={self.cell.gate.rate:g}")
            usual = GateSettings()
            for name in ("priority", "alpha", "mode", "temperature", "unit", "history"):
                value = getattr(self.cell.gate, name)
                words += [f"{name}={value}"] if value not in (getattr(usual, name), "sequence") else []
        for name, friction in plain["friction"].items():
            words.append(name + "".join(f" {key}={value}" for key, value in friction.items()))
        for name, value in plain["screen"].items():
            words += [f"screen.{name}={value}"] if value != getattr(ScreenSettings(), name) else []
        return " ".join(words)


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


def job(config: DictConfig, sweeping: bool) -> Job:
    """A checked job from a composed config.

    A gate for a method without one is an error; in a sweep it only means that the axis is not for that method.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise (error.__cause__ if isinstance(error.__cause__, ConfigError) else ConfigError(str(error))) from None
    assert isinstance(plain, dict)
    for key in ("budget", "dials", "experiment", "intensity"):
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
        return job(compose("config", list(overrides)), sweeping=False)


def sweep(overrides: Sequence[str]) -> list[Job]:
    """The jobs of a command line with -m, each cell once: a bad one is refused before any other is trained."""
    with _hydra() as parser:
        parsed = parser.parse_overrides(list(overrides))
        _check_names(parsed)
        chosen = [o for o in parsed if o.key_or_group in ("experiment", "scale") and not o.is_sweep_override()]
        swept = _composed(tuple(str(o.input_line) for o in chosen))[1]["sweeper"]["params"] or {}
        lines = [f"{key}={value}" for key, value in swept.items()]
        lines += [o.input_line for o in parsed if o.input_line and not _is_hydra(o)]
        (cells,) = BasicSweeper.split_arguments(parser.parse_overrides(lines), None)
        groups = _groups()

        def made(cell: list[str]) -> Job:
            return job(_compose(parser.parse_overrides(cell), groups), sweeping=True)

        jobs = [each for cell in cells for each in _climbed(cell, made)]
    return list({each.cell.key(): each for each in jobs}.values())


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
    runs = Path(job.launch.runs)
    return all(finished(block, runs) for block in job.blocks()) and any(
        row.get("error") is not None and row["error"] <= level
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


def _compose(overrides: Sequence[Override], groups: Collection[str]) -> DictConfig:
    """What Hydra would compose, in a fraction of the time: choices of groups from `_chosen`, values set afterwards."""
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
    return OmegaConf.create(config)


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
        cells={each.cell.key(): {"name": each.describe(), "choices": {}} for each in jobs},
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
