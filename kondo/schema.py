"""Strict construction of settings from plain data: unknown keys, wrong types and values out of range are refused, each
with the key, the value, what is allowed and the nearest valid choice."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Limits = dict[str, Any]
SIGNS = {"low": ">=", "high": "<=", "above": ">", "below": "<"}


class ConfigError(ValueError):
    """A setting that cannot be: says which, and what would do."""


class Unavailable(ConfigError):
    """A setting that needs what is not installed: says what, and how to get it."""


def limits(
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] | None = None,
) -> Limits:
    """low ≤ value ≤ high, above < value < below, or one of the choices; for knob and Annotated[float, limits(…)]."""
    return {"low": low, "high": high, "above": above, "below": below, "choices": choices}


def knob(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] | None = None,
    later: bool = False,
) -> Any:
    """A dataclass field with its range: low ≤ value ≤ high, above < value < below, or one of the choices.

    Choices may be a registry: what joins it later is allowed too. later: a setting that joined when there were runs
    already; see `as_plain`.
    """
    metadata = {"limits": limits(low=low, high=high, above=above, below=below, choices=choices), "later": later}
    if isinstance(default, (list, dict)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def as_plain(settings: Any) -> dict[str, Any]:
    """Settings as plain data; one that joined later is left out at its default, so that older runs keep their hash."""
    plain = dataclasses.asdict(settings)
    later = [field for field in dataclasses.fields(settings) if field.metadata.get("later")]
    for field in later:
        if plain[field.name] == field.default:
            del plain[field.name]
    return plain


def register(registry: dict[str, Any], name: str, entry: T) -> T:
    """Add an entry under a name of its own."""
    if name in registry:
        raise ConfigError(f"{name}: there is one of that name already; take another")
    registry[name] = entry
    return entry


def nearest(name: str, allowed: Iterable[str]) -> str:
    """What is allowed, and the closest of it."""
    allowed = sorted(map(str, allowed))
    close = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    return f"allowed: {', '.join(allowed) or 'none'}" + (f"; did you mean {close[0]!r}?" if close else "")


def check_keys(data: Any, allowed: Iterable[str], where: str) -> Mapping[str, Any]:
    """The mapping itself, if it is one and has no other keys."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}={data!r}: expected a mapping of settings")
    allowed = list(allowed)
    for key in data:
        if key not in allowed:
            raise ConfigError(f"{_join(where, key)}: unknown key; {nearest(key, allowed)}")
    return data


def build(cls: type[T], data: Any, where: str = "") -> T:
    """Make a settings dataclass from plain data; `where` is its place in the config, for messages."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    data = check_keys(data, fields, where)
    values = {}
    for key, value in data.items():
        place = _join(where, key)
        values[key] = coerce(hints[key], value, place)
        check_range(values[key], fields[key].metadata.get("limits", {}), place)
    return cls(**values)


def coerce(hint: Any, value: Any, where: str) -> Any:
    """The value as the hinted type, where that loses nothing."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            return build(option, value, where)
        if typing.get_origin(option) is tuple and isinstance(value, (list, tuple)):
            (inner, _) = typing.get_args(option)
            return tuple(coerce(inner, item, f"{where}[{i}]") for i, item in enumerate(value))
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if option in (int, str, bool) and type(value) is option:
            return value
    names = " or ".join(getattr(o, "__name__", str(o)).replace("NoneType", "null") for o in options)
    raise ConfigError(f"{where}={value!r}: expected {names}, got {type(value).__name__}")


def check_range(value: Any, limits: Limits, where: str) -> None:
    if value is None or not limits:
        return
    if limits["choices"] is not None:
        if value not in limits["choices"]:
            raise ConfigError(f"{where}={value!r}: no such choice; {nearest(value, limits['choices'])}")
        return
    low, high, above, below = (limits[key] for key in SIGNS)
    bounded = any(x is not None for x in (low, high, above, below))
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, float) and math.isnan(item):
            raise ConfigError(f"{where}=nan: expected a number")
        if bounded and not (
            (low is None or item >= low)
            and (high is None or item <= high)
            and (above is None or item > above)
            and (below is None or item < below)
        ):
            raise ConfigError(f"{where}={value!r}: out of range; allowed: {_interval(limits)}")


def described(limits: Limits) -> str:
    """What a value must be, in words: "one of a, b", "in (0, 1]", "> 0"."""
    if limits["choices"] is not None:
        return f"one of {', '.join(sorted(limits['choices']))}"
    sides = [f"{sign} {limits[key]}" for key, sign in SIGNS.items() if limits[key] is not None]
    return f"in {_interval(limits)}" if len(sides) > 1 else sides[0] if sides else "a number, not NaN"


def _interval(limits: Limits) -> str:
    low, high, above, below = (limits[key] for key in SIGNS)
    left = f"[{low}" if low is not None else f"({above}" if above is not None else "(-inf"
    right = f"{high}]" if high is not None else f"{below})" if below is not None else "inf)"
    return f"{left}, {right}"


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
