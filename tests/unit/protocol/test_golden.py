"""Bytes of every kind of message as version 1 writes them, kept in ``tests/data/wire_v1.json``.

A new kind is added with ``pytest tests/unit/protocol/test_golden.py --rewrite``, which never
touches what is there. What is there may change only together with ``PROTOCOL_VERSION`` (and a new
file).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from raftstore.config import PROTOCOL_VERSION
from raftstore.protocol.codec import MESSAGE_TYPES, decode, encode
from raftstore.protocol.message import Message

FILE = Path(__file__).parents[2] / "data" / f"wire_v{PROTOCOL_VERSION}.json"
GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}


PLAIN: dict[type, Callable[[str, int], Any]] = {
    msgspec.inspect.IntType: lambda _, number: number,
    msgspec.inspect.AnyType: lambda _, number: number,
    msgspec.inspect.FloatType: lambda _, number: number + 0.5,
    msgspec.inspect.BoolType: lambda _, number: number % 2 == 1,
    msgspec.inspect.StrType: lambda name, number: f"{name} {number}",
}


def sample(kind: msgspec.inspect.Type, name: str, numbers: count[int]) -> Any:
    """A value of a type in which every part is different, so that an exchange is noticed."""
    number = next(numbers)
    match kind:
        case msgspec.inspect.BytesType(min_length=shortest):
            return bytes([number]) * (shortest or 3)
        case msgspec.inspect.EnumType(cls):
            return list(cls)[number % len(cls)]
        case msgspec.inspect.UnionType(types):
            return sample(types[0], name, numbers)
        case msgspec.inspect.VarTupleType(item_type=item):
            return (sample(item, name, numbers), sample(item, name, numbers))
        case msgspec.inspect.TupleType(items):
            return tuple(sample(item, name, numbers) for item in items)
        case msgspec.inspect.DictType(value_type=value):
            return {f"{name} key": sample(value, name, numbers)}
        case msgspec.inspect.NamedTupleType(cls, fields) | msgspec.inspect.StructType(cls, fields):
            return cls(*(sample(each.type, each.name, numbers) for each in fields))
        case _:
            return PLAIN[type(kind)](name, number)


def shown(message: Message) -> dict[str, str]:
    """The fields by name; what is in them as Python writes it."""
    return {name: told(getattr(message, name)) for name in message.__struct_fields__}


def told(value: Any) -> str:
    """Like repr; of structs inside, fields that have their default are left out, because that is
    what a field appended later has in old bytes."""
    if isinstance(value, msgspec.Struct):
        parts = (
            f"{field.name}={told(getattr(value, field.name))}"
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != default_of(field)
        )
        return f"{type(value).__name__}({', '.join(parts)})"
    if type(value) is tuple:
        inner = ", ".join(told(each) for each in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """The value that old bytes give a field that they do not have."""
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def extends(now: Any, written: Any) -> bool:
    """Whether ``now`` is ``written`` with at most elements appended to its arrays."""
    if isinstance(now, list) and isinstance(written, list):
        return len(now) >= len(written) and all(
            extends(one, other) for one, other in zip(now, written, strict=False)
        )
    return bool(now == written)


@pytest.fixture(scope="module", autouse=True)
def _new_kinds(request: pytest.FixtureRequest) -> None:
    """Write down kinds that the file does not have yet, if asked to."""
    if not request.config.getoption("--rewrite"):
        return
    for kind in MESSAGE_TYPES:
        if kind.__name__ not in GOLDEN:
            message = sample(msgspec.inspect.type_info(kind), "", count(1))
            GOLDEN[kind.__name__] = {"body": encode(message).hex(), "fields": shown(message)}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(GOLDEN, indent=1) + "\n")


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
def test_stored_bytes_of_every_kind_mean_what_they_meant(kind: type[Message]) -> None:
    """An order, type or tag that changes is seen here; a field appended with a default is not."""
    assert kind.__name__ in GOLDEN, "add the new kind with --rewrite"
    stored = bytes.fromhex(GOLDEN[kind.__name__]["body"])
    message = decode(stored)
    assert type(message) is kind
    assert GOLDEN[kind.__name__]["fields"].items() <= shown(message).items()
    written, now_written = msgpack.unpackb(stored), msgpack.unpackb(encode(message))
    assert extends(now_written, written)


def test_no_kind_disappears() -> None:
    """Every kind of message has its stored sample: older nodes may still send it."""
    assert set(GOLDEN) == {kind.__name__ for kind in MESSAGE_TYPES}
