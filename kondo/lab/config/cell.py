"""A cell: one point of the suite, task × method × gate × friction, checked as a whole before any work starts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from kondo.gate import PRIORITIES, GateSettings
from kondo.gate import check as check_gate
from kondo.lab import studies  # noqa: F401  what it registers can be named as a task
from kondo.lab.actor import MISCOMPUTED
from kondo.lab.baselines import BASELINES
from kondo.lab.config import requirements
from kondo.lab.config.requirements import gated
from kondo.lab.frictions import FRICTIONS, Friction
from kondo.lab.optimizer import OptimizerSettings
from kondo.lab.probes import PROBES, ProbeSettings
from kondo.lab.records import key_of
from kondo.lab.screens import SCREENS, ScreenSettings
from kondo.lab.tasks import TASKS, Problem
from kondo.objectives import METHODS, settings
from kondo.schema import ConfigError, as_plain, build, check_keys, check_range, coerce, knob, nearest

SCHEMA = 2
"""Version of what a run folder's config means; a change of meaning raises it."""


@dataclass(frozen=True)
class ActorSettings:
    report_probabilities: bool = True
    """Whether the actor tells the learner its behaviour probabilities μ."""
    mode: str = knob("inline", choices=("inline", "lockstep", "async"), later=True)
    """inline: in the learner's process; lockstep: in others, on Ray, with parameters of a scripted age; async: in
    others, that take new parameters when they are ready for another batch: no two runs are alike."""
    count: int = knob(1, low=1, later=True)
    """Actor processes."""
    queue: int = knob(2, low=1, later=True)
    """async: how many batches may wait for the learner; then actors wait."""
    pace: float = knob(1.0, low=1, later=True)
    """inline, async: how many times as long as its computing takes an actor needs for a batch: a slow environment."""
    fault: str = knob("none", choices=("none", *MISCOMPUTED, "slow", "killed", "cut_off"), later=True)
    """async, and bf16, int8 and junk in lockstep, too: what is wrong with the first actor. bf16, int8: rounds its
    weights; junk: action 0 always, and sure of it; slow: takes four times as long; killed: in its third batch, again
    and again after a restart; cut_off: gets no new parameters after its third batch."""
    schedule: str = knob("", later=True)
    """number:version of the batch of each step, as an async run logged them; see experiments/replay.py."""


@dataclass(frozen=True)
class Cell:
    task: Problem
    method: str
    options: Mapping[str, Any]
    """The method's own settings."""
    gate: GateSettings | None
    frictions: tuple[Friction, ...]
    screen: ScreenSettings
    probe: ProbeSettings
    actor: ActorSettings
    optimizer: OptimizerSettings
    steps: int
    evals: int
    until: float | None = None
    """Training ends before `steps` at an evaluation that finds no seed's error above this."""

    @property
    def error(self) -> str | None:
        """The log column that is the error of this task; a study has none."""
        return type(self.task).error

    def solved(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether an evaluation, a row per seed, finds all that training was to get to."""
        errors = [row[self.error or ""] for row in rows] if self.until is not None else []
        return bool(errors) and all(error is not None and error <= self.until for error in errors)

    def plain(self) -> dict[str, Any]:
        """As plain data, everything spelled out: what is saved, hashed, and parsed again."""
        return json.loads(self._text)

    def key(self) -> str:
        """Twelve hex digits that name the cell."""
        return self._key

    @functools.cached_property
    def _key(self) -> str:
        return key_of(self.plain())

    @functools.cached_property
    def _text(self) -> str:
        named = {_name(FRICTIONS, friction): dataclasses.asdict(friction) for friction in self.frictions}
        plain = {
            "schema": SCHEMA,
            "task": {"name": _name(TASKS, self.task), **dataclasses.asdict(self.task)},  # type: ignore[call-overload]
            "method": {"name": self.method, **self.options},
            "gate": None if self.gate is None else as_plain(self.gate),
            "friction": named,
            "screen": dataclasses.asdict(self.screen),
            "probe": dataclasses.asdict(self.probe),
            "actor": as_plain(self.actor),
            "optimizer": as_plain(self.optimizer),
            "steps": self.steps,
            "evals": self.evals,
        }
        if self.until is not None:
            plain["until"] = self.until
        if extensions := self._extensions():
            plain["extensions"] = extensions
        return json.dumps(plain)  # tuples become lists

    def _extensions(self) -> dict[str, str]:
        """Digests of the files of what is not kondo's own: another line in one of them is another cell."""
        return {name: hashlib.sha256(_source(code)).hexdigest()[:12] for name, code in self._foreign().items()}

    def foreign_files(self) -> dict[str, str]:
        """{module: file} of what is not kondo's own, for another process to import."""
        files = {code.__module__: inspect.getsourcefile(code) for code in self._foreign().values()}
        return {name: path for name, path in files.items() if path}

    def _foreign(self) -> dict[str, Any]:
        """What is not kondo's own, by what it is in this cell."""
        used: dict[str, Any] = {
            f"task.{_name(TASKS, self.task)}": type(self.task),
            f"method.{self.method}": METHODS[self.method],
            f"baseline.{self.task.baseline}": BASELINES[self.task.baseline],
            **({f"priority.{self.gate.priority}": PRIORITIES[self.gate.priority]} if self.gate else {}),
            **{f"friction.{_name(FRICTIONS, friction)}": type(friction) for friction in self.frictions},
            f"screen.{self.screen.source}": SCREENS[self.screen.source],
            f"probe.{self.probe.name}": PROBES[self.probe.name],
        }
        return {name: code for name, code in used.items() if not code.__module__.startswith("kondo.")}


def parse(data: Any) -> Cell:
    """A cell from plain data, or a ConfigError that says what would do."""
    top = (
        "schema",
        "task",
        "method",
        "gate",
        "friction",
        "screen",
        "probe",
        "actor",
        "optimizer",
        "steps",
        "evals",
        "until",
        "extensions",
    )
    data = check_keys(data, top, "")
    if data.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(f"schema={data['schema']!r}: written by another version of the config; this one is {SCHEMA}")
    for key in ("task", "method", "steps"):
        if key not in data:
            raise ConfigError(f"{key}: missing")

    name, rest = _named(data["task"], TASKS, "task")
    task = build(TASKS[name], rest, "task")
    method, rest = _named(data["method"], METHODS, "method")
    options = _options(method, rest)
    steps = coerce(int, data["steps"], "steps")
    evals = coerce(int, data.get("evals", 20), "evals")
    until = coerce(float | None, data.get("until"), "until")
    for key, value, limits in (
        ("steps", steps, knob(0, low=1)),
        ("evals", evals, knob(0, low=1)),
        ("until", until, knob(0.0, low=0, high=1)),
    ):
        check_range(value, limits.metadata["limits"], key)

    task, frictions = _applied(task, data.get("friction") or {})
    cell = Cell(
        task=task,
        method=method,
        options=options,
        gate=_gate(method, data.get("gate"), task),
        frictions=frictions,
        screen=build(ScreenSettings, data.get("screen") or {}, "screen"),
        probe=build(ProbeSettings, data.get("probe") or {}, "probe"),
        actor=build(ActorSettings, data.get("actor") or {}, "actor"),
        optimizer=_optimizer(method, data.get("optimizer") or {}),
        steps=steps,
        evals=evals,
        until=until,
    )
    requirements.check(cell)
    return cell


def _applied(task: Problem, data: Any) -> tuple[Problem, tuple[Friction, ...]]:
    """The task with what frictions change about it, and what is left of those frictions.

    A friction that does nothing (any more) is no part of a cell.
    """
    given = check_keys(data, FRICTIONS, "friction")
    left = []
    for name, cls in FRICTIONS.items():
        if name not in given:
            continue
        friction = build(cls, given[name] or {}, f"friction.{name}")
        for key in friction.replaces:
            if (value := getattr(friction, key)) is not None:
                task = _replaced(task, key, value, f"friction.{name}.{key}")
        friction = dataclasses.replace(friction, **dict.fromkeys(friction.replaces))
        if not friction.idle():
            left.append(friction)
    return task, tuple(left)


def _replaced(task: Problem, key: str, value: Any, by: str) -> Problem:
    """The task with a setting of a friction; refused where the task has none such, or another one was asked for."""
    name, fields = _name(TASKS, task), {field.name: field for field in dataclasses.fields(task)}  # type: ignore[arg-type]
    if key not in fields:
        raise ConfigError(f"{by}={value}: task {name!r} has no {key}")
    own = getattr(task, key)
    if own not in (fields[key].default, value):
        raise ConfigError(f"task.{key}={own} and {by}={value} exclude each other: the friction sets task.{key}")
    settings: dict[str, Any] = dataclasses.asdict(task)  # type: ignore[call-overload]
    return build(TASKS[name], settings | {key: value}, "task")


def _gate(method: str, data: Any, task: Problem) -> GateSettings | None:
    if not gated(method):
        if data is not None:
            others = sorted(name for name in METHODS if gated(name))
            raise ConfigError(f"gate: method {method!r} has no gate; methods with one: {', '.join(others)}")
        return None
    gate = build(GateSettings, data or {}, "gate")
    if gate.rate is None and gate.price is None:
        gate = dataclasses.replace(gate, **task.default_gate)
    check_gate(gate, "gate.{}".format, strict=True)
    if task.tokens == 1 and gate.unit in ("token", "sequence"):
        raise ConfigError(f"gate.unit={gate.unit!r}: this task makes one decision per sample; allowed: auto, sample")
    if task.tokens > 1 and gate.unit == "sample":
        raise ConfigError("gate.unit='sample': a sample is a sequence of decisions; allowed: auto, sequence, token")
    if task.tokens > 1 and gate.unit == "auto":
        gate = dataclasses.replace(gate, unit="sequence")
    return gate


def _optimizer(method: str, data: Any) -> OptimizerSettings:
    """The settings, without what the method does anyway with a batch that gives no gradient."""
    optimizer = build(OptimizerSettings, data, "optimizer")
    usual = "skip" if gated(method) else "step"
    return dataclasses.replace(optimizer, idle=None) if optimizer.idle == usual else optimizer


def _options(method: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The objective's keyword arguments: defaults, overridden by what is given."""
    options = settings(METHODS[method])
    hints = typing.get_type_hints(METHODS[method], include_extras=True)
    for key, value in check_keys(data, options, "method").items():
        hint = hints.get(key, type(options[key]))
        kind, *extras = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        options[key] = coerce(kind, value, f"method.{key}")
        for limits in extras:
            check_range(options[key], limits, f"method.{key}")
    return options


def _named(data: Any, registry: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """{name: …, settings…} → the name, which must be registered, and the settings."""
    if not isinstance(data, Mapping) or "name" not in data:
        raise ConfigError(f"{where}={data!r}: expected a mapping with a name; {nearest('', registry)}")
    rest = dict(data)
    name = rest.pop("name")
    if name not in registry:
        raise ConfigError(f"{where}.name={name!r}: no such {where}; {nearest(name, registry)}")
    return name, rest


def _source(code: Any) -> bytes:
    """The file that defines something, or as much of its source as can be had where there is none."""
    path = inspect.getsourcefile(code)
    return Path(path).read_bytes() if path and Path(path).is_file() else inspect.getsource(code).encode()


def _name(registry: Mapping[str, type], value: object) -> str:
    return next(name for name, cls in registry.items() if type(value) is cls)
