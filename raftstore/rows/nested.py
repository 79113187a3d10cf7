"""Checks of values that have parts: arrays, maps and structs of declared types.

Each part is checked, and becomes what its own type stores. A null is a part of any type; only keys
of maps are none. An error says where the part is, as in ``[3].price``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Check = Callable[[Any], Any]
"""Return the value as its type stores it; TypeError or ValueError say why not."""


class Part(NamedTuple):
    """The type of a part, by its name, and what checks a value of it."""

    name: str
    check: Check
    key_check: Check
    """Checks it as a key of a map, or in one: where Python cannot hash a value, a tuple stands for
    it (of an array its parts, of a struct pairs of name and value)."""


class PartError(ValueError):
    """A part does not fit; ``place`` says where it is in the value, from outside in."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"at {place}, {reason}")
        self.place: Final = place
        self.reason: Final = reason


def array_check(part: Part) -> Check:
    """Return the check of an array of such parts."""
    element = part.check

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError("use list")
        try:
            return [None if item is None else element(item) for item in value]
        except (TypeError, ValueError):
            for at, item in enumerate(value):
                if item is not None:
                    _checked(f"[{at}]", item, part.name, element)
            raise

    return check


def array_key_check(part: Part) -> Check:
    """Return the check of such an array where it is a key of a map."""
    check = array_check(part._replace(check=part.key_check))
    return lambda value: tuple(check(value))


def map_check(key: Part, item: Part) -> Check:
    """Return the check of a map."""

    def check(value: Any) -> dict[Any, Any]:
        given = mapping_of(value)
        checked = {}
        for name, content in given.items():
            stored = _checked(f"key {name!r:.40}", name, key.name, key.key_check)
            if content is not None:
                content = _checked(f"[{name!r:.40}]", content, item.name, item.check)
            checked[stored] = content
        if len(checked) != len(given):
            raise ValueError(f"several of its keys are one and the same {key.name}; leave one")
        return checked

    return check


def struct_check(fields: Mapping[str, Part]) -> Check:
    """Return the check of a struct: fields may be absent, and none may be unknown."""

    def check(value: Any) -> dict[str, Any]:
        given = mapping_of(value)
        checked = {}
        for name, content in given.items():
            part = fields.get(name)
            if part is None:
                known = ", ".join(fields) or "none"
                raise ValueError(f"the field {name!r:.40} is unknown; there are {known}")
            if content is not None:
                content = _checked(f".{name}", content, part.name, part.check)
            checked[name] = content
        return checked

    return check


def struct_key_check(fields: Mapping[str, Part]) -> Check:
    """Return the check of a struct where it is a key of a map."""
    check = struct_check({name: p._replace(check=p.key_check) for name, p in fields.items()})

    def pairs(value: Any) -> tuple[tuple[str, Any], ...]:
        return tuple(check(_struct_of_pairs(value)).items())

    return pairs


def no_key_check(name: str) -> Check:
    """Return the check of what is never a key of a map."""

    def check(_value: Any) -> Any:
        raise TypeError(f"a {name} cannot be a key of a map")

    return check


def mapping_of(value: Any) -> Mapping[Any, Any]:
    """Return a value of a map or struct as one; TypeError if it is none."""
    if isinstance(value, Mapping):
        return value
    for method in ("asDict", "_asdict"):
        if callable(as_dict := getattr(value, method, None)):
            found: Mapping[Any, Any] = as_dict()
            return found
    raise TypeError("use dict")


def _struct_of_pairs(value: Any) -> Any:
    """Take a struct as it is read back as a key of a map, or any other."""
    if type(value) is tuple and all(type(pair) is tuple and len(pair) == 2 for pair in value):
        return dict(value)
    return value


def _checked(place: str, value: Any, name: str, check: Check) -> Any:
    try:
        return check(value)
    except (TypeError, ValueError) as error:
        raise _wrong(place, value, name, error) from None


def _wrong(place: str, value: Any, name: str, error: Exception) -> PartError:
    if isinstance(error, PartError):
        return PartError(place + error.place, error.reason)
    given = "null" if value is None else f"{value!r:.60} of type {type(value).__name__}"
    return PartError(place, f"{given} is no {name}: {error}{_in_json(name, value)}")


def _in_json(name: str, value: Any) -> str:
    """How JSON says it, where text or a number was given that may have come from there."""
    tag = _TAGS.get(name.partition("(")[0])
    if name.startswith("interval"):
        tag = "$microseconds"
    return f' (in JSON {{"{tag}": …}})' if tag and isinstance(value, str | int | float) else ""


_TAGS: Final = {
    "decimal": "$decimal",
    "binary": "$binary",
    "date": "$date",
    "timestamp": "$timestamp",
    "timestamp_ntz": "$timestamp_ntz",
    "time": "$time",
    "variant": "$variant",
}
"""``rows.json_values`` reads them wherever they stand."""
