"""From the words of a command line to jobs that are known to be valid, through Hydra's own composer."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.extend import load_extensions
from experiments.jobs import CONF, Climb, Job, cell_name, checked, job, needed
from experiments.suggest import check_effect, check_names, check_swept, groups, is_hydra
from kondo.lab.config.cell import Cell, gated, parse
from kondo.lab.config.requirements import idles
from kondo.objectives import METHODS, needs
from kondo.schema import ConfigError, nearest

Words = Sequence[str]


@contextmanager
def session() -> Iterator[OverridesParser]:
    """Hydra's composer over conf/, the one of a running app if there is one; what it refuses becomes a ConfigError."""
    load_extensions()
    try:
        if GlobalHydra.instance().is_initialized():
            yield OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
            return
        with initialize_config_dir(str(CONF), version_base="1.3"):
            yield OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def split(config: DictConfig) -> tuple[DictConfig, Mapping[str, Any]]:
    """Our config and Hydra's own."""
    plain: Any = OmegaConf.to_container(config)
    hydra = plain.pop("hydra")
    if swept := config.hydra.sweeper.get("params"):
        hydra["sweeper"]["params"] = OmegaConf.to_container(swept, resolve=True)
    return OmegaConf.create(plain), hydra


def composed(words: Words) -> tuple[DictConfig, Mapping[str, Any]]:
    """What Hydra composes of these words: our config and its own."""
    return split(compose("config", list(words), return_hydra_config=True))


@functools.lru_cache(maxsize=1024)
def usual(task: str, method: str, scale: str) -> Cell:
    """The cell of a task and a method alone: what the names of others are the difference from."""
    with session():
        return checked(composed([f"task={task}", f"method={method}", f"scale={scale}"])[0], sweeping=True).cell


def check_words(words: Words) -> list[Override]:
    """The overrides of a command line, if their names exist and what is swept can be."""
    with session() as parser:
        parsed = parser.parse_overrides(list(words))
        options = groups(GlobalHydra.instance().config_loader())
        check_names(parsed, options, lambda choice: _plain(choice))
        check_swept(parsed)
        return parsed


@functools.lru_cache(maxsize=256)
def _plain(choice: str) -> Any:
    """The config of one choice, as plain data."""
    return OmegaConf.to_container(composed([choice] if choice else [])[0])


def single(words: Words) -> Job:
    """The job of a command line without sweeps."""
    with session():
        check_words(words)
        config, hydra = composed(words)
        return job(config, hydra["runtime"]["choices"], usual, sweeping=False)


def sweep(words: Words) -> list[Job]:
    """The jobs of a command line with -m, each cell once, as far as logs tell; a bad one is refused before any other
    is trained."""
    return needed(climbs(words))


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection: a fifth of the time that it takes to compose hundreds of configs, none of them a cycle
    worth finding before the last."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@uncollected()
def climbs(words: Words) -> list[Climb]:
    """Every cell of a sweep; where it searches, every value that may come to be tried."""
    with session() as parser:
        parsed = check_words(words)
        lines = [f"{key}={value}" for key, value in swept_by_experiment(parsed).items()]
        lines += [str(each.input_line) for each in parsed if each.input_line and not is_hydra(each)]
        chosen = composed([str(each.input_line) for each in parsed if not each.is_sweep_override()])[1]["runtime"][
            "choices"
        ]
        options = groups(GlobalHydra.instance().config_loader())
        grouped = functools.lru_cache(maxsize=None)(lambda *words: compose("config", list(words)))

        def config(cell: Words) -> DictConfig:
            """What Hydra composes of a cell. Groups first, values last is Hydra's own order: cells that differ in
            values share the groups, composed once."""
            if any(word[0] in "+~" or "@" in word.partition("=")[0] for word in cell):
                return compose("config", list(cell))
            last = [word for word in cell if word.partition("=")[0] not in options]
            whole = copy.deepcopy(grouped(*(word for word in cell if word not in last)))
            try:
                for each in parser.parse_overrides(last):
                    OmegaConf.update(whole, each.key_or_group, each.value(), merge=True)
            except OmegaConfBaseException:
                return compose("config", list(cell))  # which says what is wrong as Hydra's users know it
            return whole

        def made(cell: Words) -> Job:
            named = {key: value for key, _, value in (word.partition("=") for word in cell) if key in options}
            lists = [key for key, value in named.items() if value.startswith("[")]
            choices = {key: value for key, value in {**chosen, **named}.items() if key not in lists}
            return job(config(cell), choices, usual, sweeping=True)

        every = [climb(made(cell)) for cell in _cells(parser.parse_overrides(lines))]
        check_effect(parsed, [job for each in every for job in each])
    return unique(every)


def climb(first: Job) -> Climb:
    """A job; or, where it asks for a search, one for each value that may be tried, from easy to hard."""
    search = first.launch.search
    if search.key is None:
        return [first]
    if not search.values:
        raise ConfigError(f"search.key={search.key}: search.values is empty; give some, from easy to hard")
    other = usual(first.choices["task"], first.choices["method"], first.launch.scale)
    cells = [parse(with_value(first.cell.plain(), search.key, value)) for value in search.values]
    return [replace(first, cell=cell, name=cell_name(cell, other, first.choices)) for cell in cells]


def with_value(plain: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A cell as plain data, with another value at a dotted key that it has."""
    *path, leaf = key.split(".")
    node = functools.reduce(lambda node, name: node.get(name) or {}, path, plain)
    if leaf not in node:
        raise ConfigError(f"search.key={key}: no key of this cell; {nearest(leaf, node)}")
    node[leaf] = value
    return plain


def unique(every: Sequence[Climb]) -> list[Climb]:
    """Each cell once, under a name that no other has."""
    seen: dict[str, str] = {}
    kept = []
    for each in every:
        if each[0].cell.key() not in seen:
            kept.append(each)
            seen |= {job.cell.key(): job.name for job in each}
    names = Counter(seen.values())
    assert max(names.values()) == 1, f"two cells share a name: {names.most_common(1)}"
    return kept


def swept_by_experiment(parsed: Sequence[Override]) -> Mapping[str, Any]:
    """{key: values} of the sweep that the chosen experiment brings."""
    return _sweep(*(str(each.input_line) for each in parsed if each.key_or_group in ("experiment", "scale")))[0]


@functools.lru_cache(maxsize=256)
def _sweep(*words: str) -> tuple[Mapping[str, Any], str | None]:
    """The sweep that a choice of experiment and scale brings, and the task of its smoke test."""
    config, hydra = composed(words)
    return hydra["sweeper"]["params"] or {}, config.get("small")


def small_task(figure: str) -> str | None:
    """The task that a smoke test of a figure trains in the place of the figure's own."""
    with session():
        return _sweep(f"experiment={figure}", "scale=smoke")[1]


def launcher_settings(words: Words) -> tuple[str, dict[str, Any]]:
    """Which launcher a command line asks for, and its settings: hydra/launcher=…, hydra.launcher.…"""
    with session() as parser:
        asked = [str(each.input_line) for each in parser.parse_overrides(list(words)) if is_hydra(each)]
        hydra = composed(asked)[1]
        return hydra["runtime"]["choices"]["hydra/launcher"], dict(hydra["launcher"])


def _cells(parsed: Sequence[Override]) -> list[tuple[str, ...]]:
    """The product of all that is swept, without what says nothing about a cell: a gate for a method that has none, an
    intensity where nothing is to be turned, DG's delight for a method that does not weigh by it, batches without a
    gradient for a method that learns from all."""
    axes: dict[str, list[str]] = {}
    for each in parsed:
        key = each.get_key_element()
        if each.is_sweep_override() and not each.is_discrete_sweep():
            raise ConfigError(f"{each.input_line}: an interval is for sweepers that choose from it, hydra/sweeper=…")
        values = each.sweep_string_iterator() if each.is_sweep_override() else [each.get_value_element_as_str()]
        axes[key] = [f"{key}={value}" for value in values]
    thin = [tuple(word for word in cell if _matters(word, cell)) for cell in itertools.product(*axes.values())]
    return list(dict.fromkeys(thin))


def _matters(word: str, cell: Words) -> bool:
    methods = [each.partition("=")[2] for each in cell if each.startswith("method=")]
    if word.startswith(("gate=", "gate.")) and methods and methods[-1] in METHODS:
        return gated(methods[-1])
    if word.startswith("task.delight=") and methods and methods[-1] in METHODS:
        return "delight" in needs(METHODS[methods[-1]])
    if word.startswith("optimizer.idle=") and methods and methods[-1] in METHODS:
        return idles(methods[-1])
    return not (word.startswith("intensity=") and "friction=none" in cell)
