"""Clients that send whatever can be decoded: any request, with any values, to any channel and node.

What a client may send was thought of by somebody; what it can send is more. No request stops a
node, breaks a channel, or changes the catalog by another way than the commands for it.
"""

from __future__ import annotations

import itertools
import types
import typing
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftstore.errors import DecodeError
from raftstore.protocol.admin import CreateTable, DropTable, EditTable
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.message import Request
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.rows.keys import encode_key
from raftstore.types import ChannelId, Level
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.engine_world import ask, run

pytestmark = pytest.mark.slow

NEEDS_ORDERS = (CreateTable, DropTable, EditTable)
"""Commands: what they may do is decided, and tested, elsewhere."""


def kinds_of_requests() -> list[type[Request]]:
    """Every request that a node answers."""
    found = [each for each in Request.__subclasses__() if each not in NEEDS_ORDERS]
    assert len(found) > 20
    return sorted(found, key=lambda each: each.__name__)


KINDS = kinds_of_requests()
WRITERS = map("polite {}".format, itertools.count())


@cache
def world() -> BatchWorld:
    """One for all examples: a cluster has many clients, and none of them begins it anew."""
    return BatchWorld.start()


def channels() -> list[ChannelId]:
    """Of the catalog, of the table, and of nothing."""
    catalog = world().leader().runner.metadata_channel
    return [catalog, *world().channels, ChannelId(bytes(18)), ChannelId(b"short")]


CHANNELS = st.deferred(lambda: st.sampled_from(channels()))
NODES = st.deferred(lambda: st.sampled_from(sorted(world().cluster.nodes)))
NUMBERS = st.integers(-2, 3) | st.sampled_from((2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1_000))
TEXTS = st.sampled_from(("", "w", "linearizable", "leader", "bounded", "any", "remove", "adopt"))
BYTES = st.sampled_from((b"", b"a" * 16, encode_key(("k",)), b"\xff" * 40)) | st.binary(max_size=20)
ATOMS: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    str: TEXTS | st.text(max_size=5),
    bytes: BYTES,
    bool: st.booleans(),
    float: st.floats(allow_nan=True),
    type(None): st.none(),
}


def values(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type, odd ones first."""
    if wanted in ATOMS:
        return ATOMS[wanted]
    if wanted is ChannelId:
        return CHANNELS
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if isinstance(wanted, typing.NewType):
        return values(wanted.__supertype__)
    if origin is typing.Annotated:
        return within(inner[0], inner[1])
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(values, inner))
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    if issubclass(wanted, Enum):
        return st.sampled_from(wanted)
    assert issubclass(wanted, msgspec.Struct), f"a new type of field: {wanted}; say what it may be"
    return structs(wanted)


def within(wanted: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Values in the range of a type: others are refused when they are decoded (S12)."""
    if wanted is int:
        # The form has signed and unsigned numbers of 64 bits.
        low = -(2**63) if meta.ge is None else int(meta.ge)
        high = 2**64 - 1 if meta.le is None else int(meta.le)
        edges = st.sampled_from((low, high))
        return edges | st.integers(low, min(high, low + 3)) | st.integers(low, high)
    least, most = meta.min_length or 0, meta.max_length
    fits = values(wanted).filter(lambda value: len(value) >= least)
    if wanted is bytes and least:
        return st.binary(min_size=least, max_size=most)
    return fits if most is None else fits.filter(lambda value: len(value) <= most)


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Messages, or parts of them, with any values in their fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: values(hints[name]) for name in kind.__struct_fields__}
    if kind is PubMsg:  # What has another length is refused before it comes to the engine.
        fields |= {name: st.binary(min_size=16, max_size=16) for name in ("guid", "digest")}
        fields["rows"] = st.sampled_from((1, 2, 65_536))
    return st.builds(kind, **fields)


MESSAGES = st.sampled_from([*KINDS, PubMsg]).flatmap(structs)


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(NODES, MESSAGES), min_size=1, max_size=20))
def test_no_request_stops_a_node(sent: list[tuple[str, Any]]) -> None:
    """Given any requests, no node stops, the catalog stays as it is, and the table serves."""
    cluster = world().cluster
    tables = {name: node.runner.controller.catalog.tables for name, node in cluster.nodes.items()}
    for name, message in sent:
        with suppress(DecodeError):  # what cannot be decoded never comes to the engine
            ask(cluster, cluster.nodes[name], decode(encode(message)))
    run(cluster, 3_000)
    for name, node in cluster.nodes.items():
        assert node.is_up
        assert node.runner.halt.reason is None
        assert node.runner.controller.catalog.tables == tables[name]
    assert world().begin(1, writer=next(WRITERS)).attempt > 0
    channel, level = world().channels[0], Level.LINEARIZABLE.value
    mine = 2**40  # what was sent before may still be answered
    answers = ask(cluster, world().leader(), Get(mine, channel, (b"k",), level, None, 0, 1_000))
    run(cluster, 1_000)
    [answer] = [answer for answer in answers if answer.request_id == mine]
    assert isinstance(answer, GetAnswer), answer
