"""Hypothesis strategies for every message, built from the declared types of their fields."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from raftstore.protocol.codec import MESSAGE_TYPES
from raftstore.protocol.message import Message

_UNSIGNED = st.integers(0, 2**64 - 1)
_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    msgspec.inspect.StrType: st.text(max_size=12),
    msgspec.inspect.FloatType: st.floats(allow_nan=False),
    msgspec.inspect.BoolType: st.booleans(),
    msgspec.inspect.NoneType: st.none(),
    msgspec.inspect.AnyType: st.none() | st.booleans() | _UNSIGNED | st.text(max_size=8),
}


def of_type(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type as msgspec sees it."""
    match kind:
        case msgspec.inspect.IntType(ge=least, le=most):
            return st.integers(least, 2**64 - 1 if most is None else most)
        case msgspec.inspect.BytesType(min_length=shortest, max_length=longest):
            return st.binary(min_size=shortest or 0, max_size=longest or 24)
        case msgspec.inspect.UnionType(types):
            return st.one_of([of_type(member) for member in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(of_type(item), max_size=3).map(tuple)
        case msgspec.inspect.TupleType(items):
            return st.tuples(*(of_type(item) for item in items))
        case msgspec.inspect.NamedTupleType(cls, fields):
            return st.tuples(*(of_type(each.type) for each in fields)).map(
                lambda values: cls(*values)
            )
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(of_type(key), of_type(value), max_size=3)
        case msgspec.inspect.EnumType(cls):
            return st.sampled_from(list(cls))
        case msgspec.inspect.StructType(cls, fields):
            return st.builds(cls, **{each.name: of_type(each.type) for each in fields})
        case _:
            return _PLAIN[type(kind)]


def messages_of(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Instances of one message type."""
    return of_type(msgspec.inspect.type_info(kind))


any_message = st.sampled_from(MESSAGE_TYPES).flatmap(messages_of)
