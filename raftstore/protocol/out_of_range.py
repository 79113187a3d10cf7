"""Values outside their range in a body that could not be decoded: field, value, range.

The words come from the declared types, so that every number and every identity of every message is
reported alike. Nothing here runs for a body that is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from raftstore.protocol.framing import Body
from raftstore.protocol.message import Message

_anything: Final = msgspec.msgpack.Decoder(list[Any])


def fields_of(body: Body) -> list[Any] | None:
    """The values of a body in their order, the kind first; None: it is no array at all."""
    try:
        return _anything.decode(body)
    except (ValueError, OverflowError, RecursionError):
        return None


def out_of_range(kind: type[Message], values: list[Any]) -> str | None:
    """Name the first value that its type has no room for; None: something else is wrong.

    ``values`` are those of the body, without its kind.
    """
    fault = next(_faults(kind, values, ""), None)
    return None if fault is None else f"{fault[0]} of a {kind.__name__} {fault[1]}"


def _faults(kind: type, values: list[Any], path: str) -> Iterator[tuple[str, str]]:
    for (name, declared), value in zip(_fields(kind), values, strict=False):
        yield from _faults_in(declared, value, f"{path}.{name}" if path else name)


def _faults_in(declared: inspect.Type, value: Any, path: str) -> Iterator[tuple[str, str]]:
    fault = _fault(declared, value)
    if fault is not None:
        yield path, fault
        return
    match declared:
        case inspect.UnionType(types):
            for each in types:
                yield from _faults_in(each, value, path)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _faults_in(item, each, f"{path}[{number}]")
        case inspect.TupleType(items) if isinstance(value, list):
            for number, (item, each) in enumerate(zip(items, value, strict=False)):
                yield from _faults_in(item, each, f"{path}[{number}]")
        case inspect.NamedTupleType(cls) if isinstance(value, list):
            yield from _faults(cls, value, path)
        case inspect.StructType(cls, tag=tag) if isinstance(value, list):
            # A message inside of another has the number of its kind in front, too.
            yield from _faults(cls, value if tag is None else value[1:], path)
        case _:
            return


def _fault(declared: inspect.Type, value: Any) -> str | None:
    """The fault of a plain value; None: there is none, or it is not plain."""
    match declared:
        case inspect.IntType(ge=least, le=most) if type(value) is int:
            first, last = -(2**63) if least is None else least, 2**64 - 1 if most is None else most
            return None if first <= value <= last else f"is {value}, expected {first} to {last}"
        case inspect.BytesType(min_length=least, max_length=most) if isinstance(value, bytes):
            if (least or 0) <= len(value) and (most is None or len(value) <= most):
                return None
            allowed = least if least == most else f"{least or 0} to {most}"
            return f"has {len(value)} bytes, expected {allowed}"
        case _:
            return None


@cache
def _fields(kind: type) -> tuple[tuple[str, inspect.Type], ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType | inspect.NamedTupleType)
    return tuple((each.name, each.type) for each in found.fields)
