"""Messages that nobody who means well would send, drawn from the declared types of all messages.

Each is the encoded form of a message of a kind that a connection of its purpose may carry, with
values at the edges: of the ranges of the fields, of 16, 32, 53, 63 and 64 bits, empty and huge
texts, ids that are known, wrong, or of nothing at all. ``is_wrong`` returns whether one value lies
outside its range, so that the message must be refused where it is decoded.

Nothing is listed by hand: a message that is added tomorrow is sent tomorrow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from raftstore.core.chain import digest_of
from raftstore.protocol.admin import DropTable
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubMsg
from raftstore.rows.sealing import seal
from raftstore.transport.handshake import TO_ACCEPTOR, Purpose
from raftstore.types import TERM_MAX, ChannelId, NodeId, RecordKind

EDGES: Final = tuple(
    sorted(
        {
            number + near
            for number in (0, 2**16, 2**31, 2**32, 2**48, 2**53, 2**62, 2**63)
            for near in (-1, 0, 1)
        }
        | {-(2**63), -(2**31), 2, 3, 7, 100, 2**64 - 1}
    )
)
"""Numbers at which some encoding, language or table ends."""
OUTSIDE: Final = (-1, -(2**31), -(2**63), 2**48, 2**62, 2**63, 2**64 - 1)
"""Numbers outside some range, and none that is a term: two might claim it (S13)."""
HUGE_BYTES: Final = 100_000
WORDS: Final = (
    "linearizable", "leader", "bounded", "any", "append", "adopt", "remove", "applied", "staged",
    "missing", "not_yet", "not_leader", "busy", "fsync", "gap", "missing_pubmsg", "schema",
    "max_lag", "standby_reads", "add_columns", "max_replica_lag", "opened", "ok",
)  # fmt: skip
"""Texts that mean something in some field."""
CLAIMS: Final = 1_000
"""Between two terms that are claimed, so that elections of the nodes themselves lie between."""
_encode: Final = msgspec.msgpack.Encoder().encode


class Sent(NamedTuple):
    """One message: its frame, the name of its kind, and whether a value is outside its range."""

    frame: bytes
    kind: str
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """Names that a real message may use: with them it is acted upon, without them refused."""

    cluster_id: bytes
    nodes: tuple[NodeId, ...]
    channels: tuple[ChannelId, ...]
    """Of the tables that the messages may harm."""
    names: tuple[str, ...]
    """Of tables, writers and keys."""


class HostileMessages:
    """Draws messages of one purpose from a seed; the same seed draws the same messages."""

    def __init__(self, truth: Truth, seed: str) -> None:
        self._truth = truth
        self._rng = random.Random(seed)
        self._term = CLAIMS
        self.may_end_terms = False
        """Whether a term at its bound is claimed, behind which no election leads."""

    def claim(self) -> None:
        """The messages that follow claim a term that nobody ever had.

        Two who claim one term would be distinguished from the truth by no node: S13 stops it then,
        and that is the contract and no fault of a value.
        """
        self._term += CLAIMS

    def draw(self, purpose: Purpose, request_id: int) -> Sent:
        """One message of a kind that the purpose allows; a request has this id, if it is right."""
        rng = self._rng
        kinds = sorted(TO_ACCEPTOR[purpose], key=lambda kind: kind.__name__)
        kind = rng.choice(kinds)
        found = inspect.type_info(kind)
        assert isinstance(found, inspect.StructType)
        values = [self._value(each.type, each.name) for each in found.fields]
        if found.fields and found.fields[0].name == "request_id":
            values[0] = request_id
        if kind is PubMsg and rng.random() < 0.8:
            self._make_publishable(values)
        if rng.random() < 0.5:
            self._spoil(values)
        if kind is DropTable:  # of a table that is gone nothing could be asked any more
            values[DropTable.__struct_fields__.index("uuid")] = rng.randbytes(16)
        body = _encode([found.tag, *values])
        return Sent(encode_frame(body), kind.__name__, not _is_read(body))

    def _make_publishable(self, values: list[Any]) -> None:
        """Give a PubMsg the right digest of a payload that is nearly right, too."""
        rng = self._rng
        key = rng.randbytes(4)
        rows = encode_rows([(key, seal(key, b"\x91\xa1x"))])
        kind, payload = rng.choice(
            (
                (RecordKind.ROWS, rows),
                (RecordKind.CONDITIONAL, _encode((key, seal(key, b"\x90"), rng.choice(EDGES)))),
                (RecordKind.BATCH_MARK, _encode((self._text()[:40], rng.choice(EDGES)))),
                (RecordKind.STAGED, self._staged(rng.choices(EDGES, k=5), rows)),
                (RecordKind.TXN, b"\x01" + _encode([3, "w", rng.choice(EDGES)])),
                (RecordKind.COMMAND, _encode({"op": "create_table", "entry": b""})),
            )
        )
        names = list(PubMsg.__struct_fields__)
        fields = {"kind": int(kind), "payload": payload, "digest": digest_of(payload)}
        if rng.random() < 0.9:
            fields |= {"rows": 1, "guid": rng.randbytes(8) + (1).to_bytes(8, "big")}
        if rng.random() < 0.8:
            fields |= {"term": rng.choice((1, 2, 3, 4)), "leader": rng.choice(self._truth.nodes)}
        for name, value in fields.items():
            values[names.index(name)] = value

    def _staged(self, numbers: list[int], rows: bytes) -> bytes:
        head = _encode(["w", *(max(0, each) for each in numbers)])
        return len(head).to_bytes(2, "big") + head + rows

    # --- values -----------------------------------------------------------------------------------

    def _value(self, declared: inspect.Type, name: str) -> Any:
        """A value in its range: at an edge, or one that means something."""
        rng = self._rng
        match declared:
            case inspect.UnionType(types):
                return self._value(rng.choice(types), name)
            case inspect.VarTupleType(item_type=item):
                return [self._value(item, name) for _ in range(rng.choice((0, 1, 1, 2, 3, 40)))]
            case inspect.TupleType(items):
                return [self._value(item, name) for item in items]
            case inspect.StructType(fields=fields, array_like=False):
                return {each.encode_name: self._value(each.type, each.name) for each in fields}
            case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields):
                tag = [] if getattr(declared, "tag", None) is None else [declared.tag]  # type: ignore[union-attr]
                return tag + [self._value(each.type, each.name) for each in fields]
            case inspect.DictType(value_type=value):
                return {
                    self._text(): self._value(value, name) for _ in range(rng.choice((0, 1, 3)))
                }
            case _:
                return self._plain(declared, name)

    def _plain(self, declared: inspect.Type, name: str) -> Any:
        rng = self._rng
        match declared:
            case inspect.IntType():
                return self._number(declared, name)
            case inspect.BytesType(min_length=shortest, max_length=longest):
                return self._bytes(shortest, longest)
            case inspect.StrType():
                return self._text()
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.FloatType():
                return rng.choice((0.0, -1.5, 1e308, 5e-324))
            case inspect.EnumType(cls):
                return rng.choice(list(cls)).value
            case inspect.AnyType():
                return rng.choice((None, True, rng.choice(EDGES), self._text(), [], {}))
            case _:
                return None

    def _number(self, declared: inspect.IntType, name: str) -> int:
        rng = self._rng
        least = -(2**63) if declared.ge is None else int(declared.ge)
        most = 2**64 - 1 if declared.le is None else int(declared.le)
        if most == TERM_MAX:
            highest = [TERM_MAX] if self.may_end_terms and rng.random() < 0.05 else []
            return rng.choice([self._term, self._term, self._term, 0, *highest])
        if name in ("base_seq", "from_seq") and rng.random() < 0.5:
            return 0  # what is below what is committed would be a lie, and stop a node (S13)
        inside = [each for each in (*EDGES, least, most) if least <= each <= most]
        low = [each for each in inside if each <= 100]
        if name == "base_seq":
            inside = [each for each in inside if each > 10**4 or each == 0]
        elif low and rng.random() < 0.5:
            inside = low
        return rng.choice(inside)

    def _bytes(self, shortest: int | None, longest: int | None) -> bytes:
        rng, truth = self._rng, self._truth
        if shortest is not None and shortest == longest:
            if shortest == len(truth.channels[0]) and rng.random() < 0.9:
                return self._channel()
            return rng.choice((bytes(shortest), rng.randbytes(shortest), b"\xff" * shortest))
        drawn = (b"", truth.cluster_id, rng.randbytes(16), b"\x90", rng.randbytes(64))
        return rng.choice(drawn) if rng.random() < 0.97 else bytes(HUGE_BYTES)

    def _channel(self) -> ChannelId:
        rng = self._rng
        channel = rng.choice(self._truth.channels)
        if rng.random() < 0.8:
            return channel
        uuid = rng.choice((channel[:16], rng.randbytes(16)))
        return ChannelId(uuid + rng.choice((b"\0\0", b"\0\1", b"\xff\xff")))

    def _text(self) -> str:
        rng, truth = self._rng, self._truth
        if rng.random() < 0.02:
            return rng.choice(("x", "\u00e9", "\U0001f512")) * (HUGE_BYTES // 4)
        odd = ("", "x", "n1", "\0", "n9@00", "../..", "127.0.0.1:1", "\u202e\x1b[2J\n", "-1")
        return rng.choice((*odd, *WORDS, *truth.names, *truth.names, *truth.nodes, *truth.nodes))

    def _spoil(self, values: list[Any]) -> None:
        """Put a number into some field that its type has no room for."""
        rng = self._rng
        places: list[tuple[list[Any], int]] = []

        def look(inside: list[Any]) -> None:
            for at, value in enumerate(inside):
                if isinstance(value, list):
                    look(value)
                elif type(value) in (int, bytes):
                    places.append((inside, at))

        look(values)
        if places:
            inside, at = rng.choice(places)
            if isinstance(inside[at], bytes):
                inside[at] = rng.choice((b"", inside[at][:-1], inside[at] + b"\0"))
            else:
                inside[at] = rng.choice(OUTSIDE)


def _is_read(body: bytes) -> bool:
    try:
        message: Message = decode(body)
    except Exception:  # noqa: BLE001 - whatever it is: a node must not read it either
        return False
    return encode(message) is not None
