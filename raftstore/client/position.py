"""Positions: opaque tokens that say "at least this new" (S7.3) or "exactly this version of a row".

A position holds, per table and partition, the term and seq of a record. Positions of several writes
merge into one; a read that is given one waits until its replica has applied that much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from raftstore.client.token_text import token_bytes, token_text
from raftstore.errors import PositionError
from raftstore.protocol.admin import TableInfo
from raftstore.types import CHANNEL_ID_BYTES, Seq, Term

_PREFIX: Final = "p1."
_Entry = tuple[bytes, int, Term, Seq]
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[_Entry, ...])


class Position:
    """Immutable; ``str(position)`` is the token that every other place takes, too.

    Positions are compared by seq: a committed seq is one record for ever, under each later leader.
    The term is reported for people.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[tuple[bytes, int], tuple[Term, Seq]] | None = None) -> None:
        """``entries``: (table UUID, partition) -> (term, seq)."""
        given = entries or {}
        # Nearly all have one entry, and a read of many keys makes one for each row.
        is_ordered = len(given) <= 1
        self._entries = dict(given) if is_ordered else dict(sorted(given.items()))

    @classmethod
    def at(cls, table_uuid: bytes, partition: int, term: Term, seq: Seq) -> Position:
        """Return the position of one record."""
        return cls({(table_uuid, partition): (term, seq)})

    @classmethod
    def parse(cls, token: str | Position) -> Position:
        """Read a token; PositionError when it is not one."""
        if isinstance(token, Position):
            return token
        try:
            entries = _DECODER.decode(token_bytes(_PREFIX, token))
            for uuid, partition, term, seq in entries:
                if len(uuid) != CHANNEL_ID_BYTES - 2 or min(partition, term, seq) < 0:
                    raise ValueError("it names no record")
        except (ValueError, msgspec.MsgspecError) as error:
            reason = "it is damaged" if isinstance(error, msgspec.MsgspecError) else error
            raise PositionError(
                f"{token!r:.80} is not a position ({reason}); give one that an answer contained"
            ) from error
        return cls({(uuid, partition): (term, seq) for uuid, partition, term, seq in entries})

    def merge(self, other: Position | str) -> Position:
        """Return the position that is at least as new as both."""
        merged = dict(self._entries)
        newer = Position.parse(other)
        for place, point in newer._entries.items():  # noqa: SLF001 - of our own class
            known = merged.get(place)
            if known is None or point[1] > known[1]:
                merged[place] = point
        return Position(merged)

    def __or__(self, other: Position | str) -> Position:
        return self.merge(other)

    def seq_of(self, table_uuid: bytes, partition: int) -> Seq | None:
        """Return the seq known for a partition, None if the position says nothing about it."""
        point = self._entries.get((table_uuid, partition))
        return None if point is None else point[1]

    def check_table(self, table: TableInfo) -> None:
        """Raise PositionError unless this may be said of the table: of one of its partitions.

        The position of nothing goes with every table, and one of several tables with each of them.
        """
        own = [partition for uuid, partition in self._entries if uuid == table.uuid]
        if self._entries and not own:
            raise PositionError(
                f"the position {self!r} is of another table than {table.name!r} (or of one of that "
                "name that was dropped); give one that an answer of this table contained"
            )
        if own and max(own) >= table.partitions:
            raise PositionError(
                f"the position {self!r} names partition {max(own)} of table {table.name!r}, which "
                f"has {table.partitions}; give one that an answer of this table contained"
            )

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._seqs() == other._seqs()

    def __hash__(self) -> int:
        return hash(self._seqs())

    def _seqs(self) -> tuple[tuple[tuple[bytes, int], Seq], ...]:
        return tuple((place, seq) for place, (_, seq) in self._entries.items())

    def __str__(self) -> str:
        packed = _ENCODER.encode(
            [(uuid, partition, *point) for (uuid, partition), point in self._entries.items()]
        )
        return token_text(_PREFIX, packed)

    def __repr__(self) -> str:
        points = ", ".join(
            f"{uuid.hex()[:8]}/{partition}: term {term} seq {seq}"
            for (uuid, partition), (term, seq) in self._entries.items()
        )
        return f"<Position {points or 'of nothing'}>"
