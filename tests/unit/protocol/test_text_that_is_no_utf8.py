"""S12: bytes of a text that are no UTF-8 are refused like any others that cannot be read.

The decoder has another error for them than for everything else that is malformed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from raftstore.core.folds import Folds
from raftstore.errors import CorruptRecordError, DecodeError
from raftstore.ports.log import Base
from raftstore.protocol.payload import decode_mark, encode_mark
from raftstore.record_machine import DictView
from raftstore.state_machines.batches.txn_records import Remove, decode_step, encode_step
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.state_keys import packed, unpacked
from raftstore.types import Digest, RecordKind, Seq, Term
from tests.core_bench import TRIO, record

NAME = "writer"


def spoiled(encoded: bytes) -> bytes:
    """The same bytes, but one of the name's is no UTF-8."""
    assert NAME.encode() in encoded
    return encoded.replace(NAME.encode(), b"wr\x80ter")


def command(payload: bytes) -> None:
    """Apply it to the catalog."""
    CatalogMachine().apply(record(1, kind=RecordKind.COMMAND, payload=payload), DictView())


def folds(encoded: bytes) -> None:
    """Read what a base says of its log."""
    Folds(TRIO, base=Base(Term(1), Seq(1), Digest(bytes(20)), encoded))


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (decode_mark, encode_mark(NAME, 1)),
        (decode_step, encode_step(Remove(NAME))),
        (lambda stored: unpacked(stored, Remove), packed(Remove(NAME))),
        (command, msgspec.msgpack.encode({"op": "drop_table", "name": NAME})),
        (folds, msgspec.msgpack.encode((1, [(NAME, 1, 0)]))),
    ],
)
def test_text_that_is_no_utf8_is_refused(read: Callable[[bytes], object], encoded: bytes) -> None:
    """Each place where texts of the log or of a table's state are read, by the error it names."""
    with pytest.raises((DecodeError, CorruptRecordError), match=r"UTF-8|utf-8"):
        read(spoiled(encoded))
