"""Requests for rows: one description of how fresh the answer must be, spread into three kinds."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import fields

from raftstore.protocol.codec import decode, encode
from raftstore.protocol.reads import Consistency, Count, Get, ReadRequest, Scan, row_read
from raftstore.types import ChannelId, Seq

CHANNEL = ChannelId(b"c" * 18)
WANTED = Consistency("bounded", Seq(11), 12, 13, 14, 15)
WHAT = {
    Get: {"keys": (b"a", b"b")},
    Scan: {"start": b"a", "stop": b"b", "limit": 9, "keys_only": True, "keep": True},
    Count: {"start": b"a", "stop": b"b"},
}


@pytest.mark.parametrize("kind", get_args(ReadRequest), ids=lambda kind: kind.__name__)
def test_request_for_rows_has_every_field_of_consistency(
    kind: type[Get | Scan | Count],
) -> None:
    """Types are equal; defaults too, of those that were appended later and have one on the wire."""
    own = {field.name: field for field in fields(kind)}
    for field in fields(Consistency):
        assert own[field.name].type == field.type
        assert own[field.name].required or own[field.name].default == field.default
    common = {field.name for field in fields(Consistency)} | {"request_id", "channel", "timeout_ms"}
    assert set(own) - common == set(WHAT[kind])


@pytest.mark.parametrize("kind", get_args(ReadRequest), ids=lambda kind: kind.__name__)
def test_request_asks_exactly_as_fresh_as_its_consistency_says(
    kind: type[Get | Scan | Count],
) -> None:
    """Each value arrives under its own name, however the kind orders its fields on the wire."""
    request = decode(encode(row_read(kind, 7, CHANNEL, WANTED, 500, **WHAT[kind])))  # type: ignore[type-var]
    assert type(request) is kind
    sent = {name: getattr(request, name) for name in kind.__struct_fields__}
    assert (
        sent
        == {
            "request_id": 7,
            "channel": CHANNEL,
            "timeout_ms": 500,
            "level": "bounded",
            "min_seq": 11,
            "max_lag": 12,
            "max_staleness_ms": 13,
            "max_batches_behind": 14,
            "pin": 15,
        }
        | WHAT[kind]
    )
