"""Overrides that Hydra would refuse, or that would do only a part of what they say, with what would do instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override

from experiments.jobs import Job, Launch
from kondo.lab.config.cell import gated
from kondo.objectives import METHODS
from kondo.schema import ConfigError, nearest

LAUNCH = tuple(field.name for field in dataclasses.fields(Launch))
"""Keys that say where and how a run is trained, and for how many seeds."""
Plain = Mapping[str, Any]


def is_hydra(override: Override) -> bool:
    """Whether an override is Hydra's own."""
    return str(override.key_or_group).startswith(("hydra.", "hydra/"))


def groups(loader: ConfigLoader) -> dict[str, list[str]]:
    """What can be chosen from: {group: its options}."""
    names = [group for group in loader.list_groups("") if group != "hydra"]
    return {group: loader.get_group_options(group) for group in [*names, "hydra/launcher"]}


def check_names(
    overrides: Sequence[Override], options: Mapping[str, list[str]], config: Callable[[str], Plain]
) -> None:
    """Unknown choices and unknown keys are refused with the nearest that exists; `config` composes one choice."""
    chosen = [""]
    for override in overrides:
        key = str(override.key_or_group)
        for value in _choices(override) if key in options else ():
            if value not in options[key] and not (key == "experiment" and value == "null"):
                raise ConfigError(f"{key}={value}: no such {key}; {nearest(value, options[key])}")
            chosen += [f"{key}={value}"] if not key.startswith("hydra/") else []
    known: list[Plain] = []
    for override in overrides:
        key = str(override.key_or_group)
        if key not in options and not is_hydra(override):
            known = known or [config(choice) for choice in chosen]  # each choice brings keys of its own
            content = override.value()
            for path in [f"{key}.{inner}" for inner in content] if isinstance(content, dict) else [key]:
                _check_key(path, known, options)


def _choices(override: Override) -> list[str]:
    """The options of a group that an override names: one, a list to combine, or a sweep."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    value = override.value()
    return ["null" if each is None else str(each) for each in (value if isinstance(value, list) else [value])]


def _check_key(key: str, known: Sequence[Plain], options: Mapping[str, list[str]]) -> None:
    parent, _, leaf = key.rpartition(".")
    nodes = [_select(config, parent) for config in known]
    if parent and not any(node is not None for node in nodes):
        _check_key(parent, known, options)
    siblings = {str(name) for node in nodes if isinstance(node, dict) for name in node}
    if leaf not in siblings and leaf in options.get(parent, ()):
        raise ConfigError(f"{key}: there only with {parent}={leaf}; add that")
    if leaf not in siblings:
        close = {f"{parent}.{name}" if parent else name for name in siblings}
        raise ConfigError(f"{key}: unknown key; {nearest(key, close)}")


def _select(config: Any, path: str) -> Any:
    """The node at a dotted path, None where there is none."""
    for name in path.split(".") if path else ():
        config = config.get(name) if isinstance(config, dict) else None
    return config


def check_swept(overrides: Sequence[Override]) -> None:
    """Only what makes another cell can be swept."""
    for override in overrides:
        key = str(override.key_or_group)
        if override.is_sweep_override() and key == "experiment":
            raise ConfigError(f"{override.input_line}: one at a time; make reproduce FIGURES=… trains several")
        if override.is_sweep_override() and key.partition(".")[0] in LAUNCH:
            raise ConfigError(f"{override.input_line}: does not make another cell; give one value")


def check_effect(overrides: Sequence[Override], jobs: Sequence[Job]) -> None:
    """An axis that matters to none of the cells is refused."""
    for override in overrides:
        key = str(override.key_or_group)
        if key == "intensity" and override.value() is not None and all(j.choices["intensity"] is None for j in jobs):
            raise ConfigError(f"{override.input_line}: nothing follows it; choose a friction, say friction=staleness")
        if key.partition(".")[0] == "gate" and all(each.cell.gate is None for each in jobs):
            others = ", ".join(sorted(name for name in METHODS if gated(name)))
            raise ConfigError(f"{override.input_line}: no method here has a gate; methods with one: {others}")


def foreign_axes(overrides: Sequence[Override], own: Sequence[str]) -> list[str]:
    """What is swept beyond an experiment's own axes: its figure has no axis for it."""
    asked = [str(override.key_or_group) for override in overrides if override.is_sweep_override()]
    return [key for key in asked if not any(key == each or key.startswith(f"{each}.") for each in own)]
