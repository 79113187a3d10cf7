"""Every number that comes from outside has a range in its type, and nothing outside it gets in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple, cast

import msgpack
import msgspec
import pytest
from msgspec import inspect

from raftstore.config import PARTITIONS_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import DecodeError
from raftstore.protocol.batches import CommitBatch
from raftstore.protocol.codec import MESSAGE_TYPES, decode, encode
from raftstore.protocol.message import Message, Request
from raftstore.protocol.records import Record
from raftstore.protocol.staged import ATTEMPT_MAX, NUMBER_MAX, BatchApply, ChunkHeader
from raftstore.state_machines import catalog, catalog_machine
from raftstore.state_machines.batches.txn_records import AnyStep, Verdict
from raftstore.storage.log.records import decode_record, encode_record
from raftstore.types import (
    BASE_SEQ_MAX,
    INT63_MAX,
    NO_GUID,
    PARTITION_MAX,
    SEQ_MAX,
    TERM_MAX,
    TIMEOUT_MS_MAX,
    WALL_MS_MAX,
    ChannelConfig,
    RecordKind,
    Seq,
    Term,
    channel_id,
)
from tests.unit.protocol.test_golden import sample

LOGGED: tuple[Any, ...] = (
    *cast(Any, AnyStep).__args__,
    BatchApply,
    ChunkHeader,
    ChannelConfig,
    Verdict,
    catalog.TableEntry,
    catalog.NodeEntry,
    catalog.DroppedEntry,
    catalog.TicketEntry,
    catalog.DrainingEntry,
    catalog.RetiredEntry,
    catalog.ReplicaEntry,
    *cast(Any, catalog_machine._Command).__args__,
)
"""What records hold besides rows."""
OF_64_BITS = {"check"}
"""Compared with another one, and as large as MessagePack has numbers: no bound above is needed."""
JUDGED = {"EditTable.changes", "Done.detail", "StatusAnswer.status", "EventsAnswer.events"}
"""Values of any type: judged by name before they are used, or shown to people only."""


class Leaf(NamedTuple):
    """A field without fields of its own, by the places that lead to it in an encoded body."""

    name: str
    path: tuple[int, ...]
    type: inspect.Type


def leaves(kind: inspect.Type, name: str, path: tuple[int, ...] = ()) -> Iterator[Leaf]:
    """All of a type, also in what it consists of."""
    match kind:
        case inspect.UnionType(types):
            for each in types:
                yield from leaves(each, name, path)
        case inspect.VarTupleType(item_type=item):
            yield from leaves(item, name, (*path, 0))
        case inspect.TupleType(items):
            for number, item in enumerate(items):
                yield from leaves(item, name, (*path, number))
        case inspect.DictType(value_type=value):
            yield from leaves(value, name, (*path, 0))
        case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields):
            first = 0 if getattr(kind, "tag", None) is None else 1
            for number, each in enumerate(fields, start=first):
                yield from leaves(each.type, f"{name}.{each.name}", (*path, number))
        case _:
            yield Leaf(name, path, kind)


def without_range(kind: type) -> list[str]:
    """Fields of a struct whose type leaves the number, or anything, open."""
    found = []
    for name, _, declared in leaves(inspect.type_info(kind), kind.__name__):
        last = name.rpartition(".")[2]
        if isinstance(declared, inspect.AnyType) and name not in JUDGED:
            found.append(f"{name} may be anything; give it a type")
        if isinstance(declared, inspect.IntType) and (
            declared.ge is None or (declared.le is None and last not in OF_64_BITS)
        ):
            found.append(f"{name} is an int without a range; use a type of raftstore.types")
    return found


class Inner(msgspec.Struct, array_like=True):
    """Nested in the one below."""

    deep: tuple[tuple[str, int], ...]


class Planted(msgspec.Struct, array_like=True):
    """A message with three holes."""

    plain: int
    inner: Inner | None
    anything: dict[str, Any]
    right: Seq


def test_number_without_a_range_is_found() -> None:
    """The rule sees a bare int wherever it is, and a value of any type."""
    assert [each.partition(" ")[0] for each in without_range(Planted)] == [
        "Planted.plain",
        "Planted.inner.deep",
        "Planted.anything",
    ]


@pytest.mark.parametrize("kind", [*MESSAGE_TYPES, *LOGGED], ids=lambda kind: kind.__name__)
def test_every_number_on_the_wire_and_in_the_log_has_a_range(kind: type) -> None:
    """S12: who adds a field says at the field what may be in it."""
    assert without_range(kind) == []


def test_ranges_leave_room_for_what_is_done_with_the_numbers() -> None:
    """One more, a sum, the bytes they are stored in: nothing of it overflows."""
    assert len((INT63_MAX + 1).to_bytes(8, "big")) == 8  # the attempt behind one
    assert len(channel_id(bytes(16), PARTITION_MAX)) == 18
    assert PARTITIONS_MAX <= PARTITION_MAX + 1
    assert max(ATTEMPT_MAX, SEQ_MAX) <= INT63_MAX
    assert max(NUMBER_MAX, TERM_MAX + 1, TIMEOUT_MS_MAX) < INT63_MAX
    assert WALL_MS_MAX + INT63_MAX < 2**64  # when a one-shot writer is forgotten
    last = Record(
        Term(TERM_MAX),
        Seq(BASE_SEQ_MAX),
        ROWS_PER_RECORD_MAX,
        NO_GUID,
        WALL_MS_MAX,
        bytes(16),
        RecordKind.ROWS,
        b"",
    )
    head, _ = encode_record(channel_id(bytes(16), 0), last, 0)
    assert decode_record(head) == last
    assert last.last_seq == SEQ_MAX
    assert len(last.last_seq.to_bytes(8, "big")) == 8


def beyond(declared: inspect.Type) -> Iterator[object]:
    """Values of the right type just outside its range."""
    if isinstance(declared, inspect.IntType):
        assert declared.ge is not None
        yield int(declared.ge) - 1
        if declared.le is not None:
            yield int(declared.le) + 1
            yield 2**64 - 1
    elif isinstance(declared, inspect.BytesType) and declared.min_length is not None:
        yield bytes(declared.min_length - 1)
        yield bytes((declared.max_length or 0) + 1)


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
def test_value_outside_its_range_is_refused_where_it_is_decoded(kind: type[Message]) -> None:
    """S12: of every field of every message, the first values below and above its range."""
    good = msgpack.unpackb(encode(sample(inspect.type_info(kind), "", count(1))))
    for name, path, declared in leaves(inspect.type_info(kind), kind.__name__):
        for value in beyond(declared):
            body = msgpack.unpackb(msgpack.packb(good))
            inner = body
            for place in path[:-1]:
                if not isinstance(inner, list):
                    break
                inner = inner[place]
            if not isinstance(inner, list):
                continue  # this choice of a union, or a map, is not what the sample has
            inner[path[-1]] = value
            with pytest.raises(DecodeError) as refused:
                decode(msgpack.packb(body))
            top = name.split(".")[1]
            assert f"{top}" in str(refused.value)
            assert f" of a {kind.__name__} " in str(refused.value)
            assert (refused.value.request_id is not None) == (
                issubclass(kind, Request) and top != "request_id"
            )


def test_refusal_of_a_nested_number_names_its_place() -> None:
    """Given a number out of range deep in a message, the refusal names its
    place among the others.
    """
    body = msgpack.unpackb(encode(sample(inspect.type_info(CommitBatch), "", count(1))))
    body[6][2][1][0] = 65_536
    with pytest.raises(DecodeError) as refused:
        decode(msgpack.packb(body))
    assert str(refused.value) == (
        "manifest.parts[1].partition of a CommitBatch is 65536, expected 0 to 65535; "
        "the sender is broken"
    )
    assert refused.value.request_id == body[1]
