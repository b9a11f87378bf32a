"""What the parts of a cell need of each other: each declares it, and here a cell is held to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kondo.lab.actor import MISCOMPUTED, parse_schedule
from kondo.lab.baselines import BASELINES
from kondo.lab.capabilities import CAPABILITIES, declared
from kondo.lab.probes import PROBES, ProbeSettings
from kondo.lab.screens import SCREENS, ScreenSettings
from kondo.lab.tasks.base import TASKS, FiniteTask, Task
from kondo.objectives import METHODS, needs, whole_batch
from kondo.schema import ConfigError, as_plain

if TYPE_CHECKING:
    from kondo.lab.config.cell import Cell


def gated(method: str) -> bool:
    """Whether a method has a gate."""
    return "weight" in needs(METHODS[method])


def delighted(method: str) -> bool:
    """Whether a method uses delight, for its gate or as its weight."""
    return gated(method) or "delight" in needs(METHODS[method])


def idles(method: str) -> bool:
    """Whether a method has no gradient where no sample has an advantage."""
    return "advantage" in needs(METHODS[method]) and not whole_batch(METHODS[method])


HAS: dict[str, Callable[[Cell], bool]] = {
    "training": lambda cell: isinstance(cell.task, Task),
    "screen": lambda cell: isinstance(cell.task, Task) or bool(cell.task.screens),
    "batch": lambda cell: cell.task.batched,
    "gate": lambda cell: gated(cell.method),
    "delight": lambda cell: delighted(cell.method),
    "contexts": lambda cell: isinstance(cell.task, FiniteTask),
    "group": lambda cell: cell.task.group > 1,
}
"""Whether a cell has a capability."""
LACKS: dict[str, Callable[[Cell], str]] = {
    "training": lambda cell: f"task {_task(cell)!r} is not trained by the engine",
    "screen": lambda cell: f"task {_task(cell)!r} is not trained by the engine",
    "batch": lambda cell: f"task {_task(cell)!r} looks at one sample at a time",
    "gate": lambda cell: f"method {cell.method!r} has no gate; methods with one: {_methods(gated)}",
    "delight": lambda cell: f"method {cell.method!r} uses no delight; methods that do: {_methods(delighted)}",
    "contexts": lambda cell: f"task {_task(cell)!r} has none; tasks with one: {_tasks(FiniteTask)}",
    "group": lambda cell: f"task {_task(cell)!r} has one here, whose mean reward is the reward itself",
}
"""Why it has not, and what would do."""


ASKED = {
    "count": ("lockstep", "async"),
    "queue": ("async",),
    "pace": ("inline", "async"),
    "fault": ("async", "lockstep"),
    "schedule": ("inline", "lockstep"),
}
"""Settings of actors, and the modes they are for."""


def check(cell: Cell) -> None:
    """Refuse a cell in which a part lacks what it needs."""
    for what, capabilities, hint in _requirements(cell):
        for name in capabilities:
            if not HAS[name](cell):
                raise ConfigError(f"{what}: needs {CAPABILITIES[name]}; {LACKS[name](cell)}{hint}")
    _check_screen(cell)
    _check_actor(cell)
    _check_quantities(cell)
    _check_idle(cell)


def _requirements(cell: Cell) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """What was chosen, the capabilities it needs, and a hint at what else would do."""
    yield f"task.name={_task(cell)!r}", cell.task.needs, ""
    yield f"task.baseline={cell.task.baseline!r}", declared(BASELINES[cell.task.baseline]), ""
    if whole_batch(METHODS[cell.method]):
        yield f"method.name={cell.method!r}", ("batch",), ""
    if cell.gate is not None and cell.gate.rate is not None:
        yield f"gate.rate={cell.gate.rate}", ("batch",), "; set gate.price"
    if cell.frictions:
        yield "friction", ("training",), ""
    if (actor := as_plain(cell.actor)).keys() > {"report_probabilities"}:
        yield f"actor.{max(actor, key=lambda name: name == 'mode')}", ("training",), ""
    if cell.until is not None:
        yield f"until={cell.until}", ("training",), ""
    if cell.screen != ScreenSettings():
        yield "screen", ("screen", "delight"), ""
    if cell.probe != ProbeSettings():
        yield f"probe.name={cell.probe.name!r}", ("training", *declared(PROBES[cell.probe.name])), ""


def _check_screen(cell: Cell) -> None:
    """A screen is one that the task can have, its age for screens that have one, its layers fewer than the policy's."""
    source, possible = SCREENS[cell.screen.source], cell.task.screens
    if possible and (cell.screen.source not in possible or cell.screen.noise):
        asked = f"noise={cell.screen.noise}" if cell.screen.noise else f"source={cell.screen.source!r}"
        raise ConfigError(f"screen.{asked}: not for task {_task(cell)!r}, whose screens are {', '.join(possible)}")
    if cell.screen.age and not source.aged:
        others = ", ".join(sorted(name for name, each in SCREENS.items() if each.aged))
        what = f"screen.age={cell.screen.age}: screen.source={cell.screen.source!r} has no age"
        raise ConfigError(f"{what}; screens with one: {others}")
    if source.layers >= cell.task.layers:
        raise ConfigError(
            f"screen.source={cell.screen.source!r}: for policies of more than {source.layers} layers that can be cut "
            f"short; that of task {_task(cell)!r} has {cell.task.layers}"
        )


def _check_actor(cell: Cell) -> None:
    """What is said of actor processes is for a mode that has them; what looks at the next batch, for one that knows."""
    actor, stale = cell.actor, any(friction.longest_delay() for friction in cell.frictions)
    for name, modes in ASKED.items():
        field = type(actor).__dataclass_fields__[name]
        if getattr(actor, name) != field.default and actor.mode not in modes:
            what = f"actor.{name}={str(getattr(actor, name))[:40]}"
            raise ConfigError(f"{what}: not with actor.mode={actor.mode}; with: {', '.join(modes)}")
    if actor.mode == "lockstep" and actor.fault not in ("none", *MISCOMPUTED):
        raise ConfigError(f"actor.fault={actor.fault}: not with actor.mode=lockstep, which waits for every batch")
    if stale and (actor.mode == "async" or actor.schedule):
        other = "actor.schedule" if actor.schedule else "actor.mode=async"
        raise ConfigError(f"friction: simulated staleness and {other} exclude each other: both say how old a batch is")
    if actor.mode != "inline" and cell.probe != ProbeSettings():
        raise ConfigError(f"probe.name={cell.probe.name!r}: looks at the learner's next batch; with actor.mode=inline")
    if actor.schedule and len(actor.schedule.split()) < cell.steps:
        raise ConfigError(f"actor.schedule: {len(actor.schedule.split())} steps, of {cell.steps}")
    parse_schedule(actor.schedule)


def _check_quantities(cell: Cell) -> None:
    """A method gets the quantities it asks for: from the task, and from the actor."""
    asked = needs(METHODS[cell.method])
    if missing := [name for name in asked if name not in cell.task.quantities]:
        what = f"method.name={cell.method!r}: needs {', '.join(missing)}, and task {_task(cell)!r}"
        raise ConfigError(f"{what} knows of a sample only {', '.join(cell.task.quantities)}")
    if "actor_log_prob" in asked and not cell.actor.report_probabilities:
        raise ConfigError(
            f"actor.report_probabilities=False: method {cell.method!r} needs the actor's behaviour probabilities; "
            f"methods that do not: {_methods(lambda name: 'actor_log_prob' not in needs(METHODS[name]))}"
        )


def _check_idle(cell: Cell) -> None:
    """What is said of batches without a gradient is for methods that meet some, and an optimizer that moves then."""
    if cell.optimizer.idle is None:
        return
    what = f"optimizer.idle={cell.optimizer.idle}"
    if not idles(cell.method):
        raise ConfigError(
            f"{what}: method {cell.method!r} learns from every batch; methods that do not: {_methods(idles)}"
        )
    if cell.optimizer.name != "adam":
        raise ConfigError(f"{what}: a gradient of zero moves nothing with optimizer.name={cell.optimizer.name}")


def _task(cell: Cell) -> str:
    return next(name for name, cls in TASKS.items() if type(cell.task) is cls)


def _tasks(kind: type) -> str:
    return ", ".join(sorted(name for name, cls in TASKS.items() if issubclass(cls, kind)))


def _methods(has: Callable[[str], bool]) -> str:
    return ", ".join(sorted(filter(has, METHODS)))
