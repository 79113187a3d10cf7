"""One channel whose changes are read: a log, tables that apply it, and what it should hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import replace

from raftstore.config import ReadSettings
from raftstore.engine.channel.apply_feed import ApplyFeed
from raftstore.engine.reads.changes import ChangeFeeds
from raftstore.errors import Refusal
from raftstore.protocol.batches import APPEND, TRUNCATE
from raftstore.protocol.changes import (
    ChangeEnds,
    ChangeEndsAnswer,
    ChangePiece,
    Changes,
    ChangesAnswer,
)
from raftstore.protocol.lifetimes import WITH_TTL, encode_expire, encode_with_ttl
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import decode_rows, encode_conditional, encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import BatchApply, ChunkHeader, encode_apply, encode_staged
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.rows.sealing import SEAL_BYTES, seal
from raftstore.state_machines.batches.staging import ChunkRef, part_of, read_head, seqs_of
from raftstore.state_machines.outcomes import is_set
from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_log import SimLog
from raftstore.types import RecordKind, Seq
from tests.piece_worlds import LevelDbWorld, SimWorld
from tests.storage_helpers import CHANNEL, record, rows_record

WRITER = "orders"
Rows = dict[bytes, bytes | None]
Chunk = tuple[int, Rows]


def cells(rows: Rows) -> bytes:
    """The payload of a ROWS record."""
    return encode_rows((k, None if v is None else seal(k, v)) for k, v in rows.items())


@dataclass
class ChangeWorld:
    """Records are made at the end of the log and applied at once."""

    store: LevelDbWorld | SimWorld
    settings: ReadSettings = field(default_factory=ReadSettings)
    log: Any = field(default_factory=SimLog.new)
    end: int = 0
    commits: int = 0
    later_ms: int = 0
    """EXPIRE records are stamped so much later than others."""
    refusal: Refusal | None = None
    answers: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """As at a start of the node."""
        tables = self.store.tables
        machine = TableMachine()
        applied = tables.open_channel(CHANNEL, machine)
        self.feed = ApplyFeed(
            self.log, tables, CHANNEL, applied, lambda reason: None, machine.pieces
        )
        host: Any = SimpleNamespace(
            channels={
                CHANNEL: SimpleNamespace(
                    channel=CHANNEL, name="t/0", table_settings=DEFAULT_SETTINGS, commands=None
                )
            },
            serving_refusal=lambda runner: self.refusal,
            answer=lambda client, message: self.answers.append(message),
        )
        self.feeds = ChangeFeeds(host.channels, self.log, tables, host, host, self.settings)
        self.apply()

    def apply(self) -> None:
        """Everything that is in the log."""
        self.feed.advance(Seq(self.end))
        while self.store.tables.applied_seq(CHANNEL) < self.end:
            before = len(self.store.completed)
            self.store.drain()
            for _ in range(len(self.store.completed) - before):
                self.feed.on_applied()

    # --- writing ----------------------------------------------------------------------------------

    def append(self, made: Record, *, applies: bool = True) -> Record:
        """Put a record where it belongs."""
        self.log.append(CHANNEL, [made])
        self.end = made.last_seq
        if applies:
            self.apply()
        return made

    def put(self, rows: Rows, ttl_ms: int = 0) -> Record:
        """An ordinary record, of rows that live for so long; None deletes."""
        return self.append(with_ttl(rows_record(self.end + 1, rows), ttl_ms))

    def put_if(self, key: bytes, value: bytes | None, expected: int, ttl_ms: int = 0) -> Record:
        """A write on the condition that the key's row has this seq (0: there is none)."""
        sealed = None if value is None else seal(key, value)
        payload = encode_conditional(key, sealed, Seq(expected))
        made = record(self.end + 1, payload=payload, kind=RecordKind.CONDITIONAL)
        return self.append(with_ttl(made, ttl_ms))

    def expire(self, until_ms: int, *keys: bytes) -> Record:
        """It is so late, and rows of these keys are due."""
        payload = encode_expire(until_ms, keys)
        made = record(self.end + 1, rows=len(keys), payload=payload, kind=RecordKind.EXPIRE)
        return self.append(replace(made, timestamp_ms=made.timestamp_ms + self.later_ms))

    def batch(
        self, *chunks: Chunk, truncate: bool = False, applies: bool = True, ttl_ms: int = 0
    ) -> Record:
        """Stage chunks as a task each, and apply the batch."""
        self.commits += 1
        refs = []
        for task, (mode, rows) in enumerate(chunks):
            header = ChunkHeader(WRITER, self.commits, task, task, 0, mode, ttl_ms)
            payload = encode_staged(header, cells(rows))
            kind = RecordKind.STAGED
            made = self.append(record(self.end + 1, rows=len(rows), payload=payload, kind=kind))
            refs.append(
                ChunkRef(
                    made.base_seq, made.last_seq, len(rows), len(payload), mode, made.digest,
                    WRITER, self.commits, task, task, 0,
                )
            )  # fmt: skip
        part = part_of(0, refs)
        apply = BatchApply(
            n=self.commits,
            prev=self.head,
            writer=WRITER,
            batch_id=self.commits + 100,
            attempt=self.commits,
            mode=TRUNCATE if truncate else APPEND,
            winners=tuple((task, task) for task in range(len(chunks))),
            part=part,
            vector=(self.commits,),
            decided_ms=5_000 + self.commits,
        )
        kind, rows_count = RecordKind.BATCH_APPLY, seqs_of(part.rows)
        payload = encode_apply(apply)
        made = record(self.end + 1, rows=rows_count, payload=payload, kind=kind)
        return self.append(made, applies=applies)

    @property
    def head(self) -> int:
        """The newest batch that is applied."""
        tables = self.store.tables
        reader: Any = SimpleNamespace(get=lambda key: tables.state_get(CHANNEL, key))
        return read_head(reader).n

    # --- reading ----------------------------------------------------------------------------------

    def ask(self, request: Message) -> Message:
        """The one answer to a request."""
        self.answers.clear()
        self.feeds.on_request(1, request)  # type: ignore[arg-type]
        [answer] = self.answers
        return answer

    def refused(self, **request: Any) -> Failed:
        """The refusal of a page."""
        answer = self.ask(changes(**request))
        assert isinstance(answer, Failed), answer
        return answer

    def page(self, **request: Any) -> ChangesAnswer:
        """One page."""
        answer = self.ask(changes(**request))
        assert isinstance(answer, ChangesAnswer), answer
        return answer

    def ends(self, *, after: int = 0, to_seq: int = 0, rows_max: int = 0) -> ChangeEndsAnswer:
        """Where changes begin and end."""
        request = ChangeEnds(1, CHANNEL, Seq(after), Seq(to_seq), rows_max, 1_000)
        answer = self.ask(request)
        assert isinstance(answer, ChangeEndsAnswer), answer
        return answer

    def pages(self, **request: Any) -> list[ChangePiece]:
        """All pieces, page by page."""
        found: list[ChangePiece] = []
        at = {"after": request.pop("after", 0), "sub": request.pop("sub", 0)}
        while True:
            page = self.page(**at, **request)
            found += page.pieces
            following = {"after": page.after, "sub": page.sub}
            if following == at:
                return found
            at = following

    def rows(self) -> dict[bytes, tuple[bytes, int]]:
        """Rows of the table, with the seq of each."""
        page = self.store.tables.scan(CHANNEL, b"", b"", 9_999)
        return {row.key: (row.value, row.seq) for row in page.rows}

    def restart(self) -> None:
        """The node stops in good order and starts."""
        self.store.restart()
        self.open()


def with_ttl(made: Record, ttl_ms: int) -> Record:
    """The same record, of rows that live for so long; 0: for ever."""
    if not ttl_ms:
        return made
    payload = encode_with_ttl(ttl_ms, made.payload)
    return replace(made, kind=WITH_TTL[made.kind], payload=payload)


def changes(
    after: int = 0, sub: int = 0, to_seq: int = 0, rows_max: int = 10**6, bytes_max: int = 2**30
) -> Changes:
    """A request for a page."""
    return Changes(1, CHANNEL, Seq(after), sub, Seq(to_seq), rows_max, bytes_max, 1_000)


def rows_of(piece: ChangePiece) -> list[tuple[bytes, bytes | None]]:
    """The rows that a piece changes, in order; None deletes."""
    if not piece.rows:
        return []
    flat = decode_rows(piece.rows)
    return [
        (key, None if sealed is None else sealed[SEAL_BYTES:])  # type: ignore[misc]
        for number, (key, sealed) in enumerate(zip(flat[::2], flat[1::2], strict=True))
        if not piece.bits or is_set(piece.bits, number)
    ]


def fold(pieces: list[ChangePiece]) -> dict[bytes, tuple[bytes, int]]:
    """The rows that the changes lead to, with the seq of the change that wrote each."""
    table: dict[bytes, tuple[bytes, int]] = {}
    for piece in pieces:
        if piece.truncate:
            table.clear()
        for key, value in rows_of(piece):
            if value is None:
                table.pop(key, None)
            else:
                table[key] = (value, piece.seq)
    return table


def columns(*values: object) -> bytes:
    """A row of a table with columns, as merging reads it."""
    return msgspec.msgpack.encode(values)
