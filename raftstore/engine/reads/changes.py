"""The changes of a table's channel, read from the log: what every applied record did to the rows.

Only applied records are shown (S4.2), and of each what really happened: a conditional write that
did not hold is none, of rows to insert those that were inserted, of merged rows what they became;
a micro-batch shows its rows where it was applied and not where they were staged. All of it is a
function of the log (``raftstore.state_machines.outcomes``), so every replica delivers the same at
the same position, now and whenever it is asked again.

A position is the last seq of the record read last. Inside a micro-batch, which may be of any size,
it is that of the record before and a number: the chunk and the piece of it to go on with.

Nothing is decoded here: pieces are payloads as the log has them. A page reads a bounded number of
bytes, as much as catching up or applying do in one turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from raftstore.config import KIB, ReadSettings
from raftstore.engine.channel.applied_state import AppliedState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.engine.reads.read_rules import restoring_refusal
from raftstore.engine.reads.reader import Reader
from raftstore.errors import (
    DataLossError,
    NotUpToBoundError,
    RequestError,
    UnknownChannelError,
)
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.protocol.batches import TRUNCATE
from raftstore.protocol.changes import (
    ChangeEnds,
    ChangeEndsAnswer,
    ChangePiece,
    Changes,
    ChangesAnswer,
)
from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_expire, decode_with_ttl
from raftstore.protocol.message import Message, failed
from raftstore.protocol.payload import decode_conditional, encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import INSERT, MERGE, decode_header
from raftstore.state_machines.batches.staging import AppliedBatch
from raftstore.state_machines.outcomes import HELD, Outcome, outcome_at
from raftstore.state_machines.state_keys import applied_batch_key, read_state
from raftstore.state_machines.trimmed_outcomes import trimmed_to
from raftstore.types import ChannelId, RecordKind, Seq

PIECE_BITS: Final = 24
"""``sub`` is a chunk's number and, in so many bits below it, the number of a piece."""
PIECES_MAX: Final = 1_000
"""Of one answer: records may be of one row each, and chunks, too."""
ROW_KINDS: Final = (*WITHOUT_TTL, *WITHOUT_TTL.values(), RecordKind.EXPIRE)
"""Kinds of records that occupy as many seqs as they may change rows."""
ENDS_BYTES_MAX: Final = 256 * KIB
"""Payload bytes that counting rows looks at in one request."""


class _Found(NamedTuple):
    """A piece, how many rows are in it, and what ``sub`` is behind it (0: the record is done)."""

    piece: ChangePiece
    rows: int
    sub: int


class _Page:
    """Room that is left in one answer."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.pieces: list[ChangePiece] = []
        self.bytes_left = bytes_max
        self._rows_left = rows_max

    def take(self, found: _Found) -> bool:
        """Take a piece in if it fits; the first one does."""
        size = len(found.piece.rows)
        is_over = found.rows > self._rows_left or size > self.bytes_left
        if self.pieces and (is_over or len(self.pieces) >= PIECES_MAX):
            return False
        self.pieces.append(found.piece)
        self._rows_left -= found.rows
        self.bytes_left -= size
        return True


class ChangeFeeds:
    """Answers what changed in the channels of one node. It keeps nothing and changes nothing."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        log: MessageLog,
        tables: TableStore,
        reader: Reader,
        answers: ClientAnswers,
        settings: ReadSettings,
    ) -> None:
        """``channels`` are those of tables and that of the catalog, which has no changes."""
        self._channels = channels
        self._log = log
        self._tables = tables
        self._reader = reader
        self._answers = answers
        self._settings = settings

    def on_request(self, client: int, request: Changes | ChangeEnds) -> None:
        """Answer at once: a replica that is behind says so, and the client asks another."""
        runner = self._channels.get(request.channel)
        if runner is None or runner.name == METADATA_NAME:
            text = "this node does not host the channel; refresh the table's placement"
            self._fail(client, request, UnknownChannelError, text)
            return
        refusal = self._reader.serving_refusal(runner) or restoring_refusal(runner)
        if refusal is not None:
            self._fail(client, request, *refusal)
            return
        applied = self._tables.applied_seq(request.channel)
        # S4.2: what is not applied here is not delivered, however well its fate is known.
        if applied < max(request.after, request.to_seq):
            wanted = max(request.after, request.to_seq)
            text = f"channel {runner.name} has applied seq {applied}, not {wanted}"
            self._fail(client, request, NotUpToBoundError, f"{text}; ask another replica")
            return
        try:
            if isinstance(request, Changes):
                answer: Message = self._changes(runner, request, applied)
            else:
                answer = self._ends(runner, request, applied)
        except DataLossError as error:
            self._fail(client, request, type(error), str(error))
            return
        self._answers.answer(client, answer)

    # --- pages ------------------------------------------------------------------------------------

    def _changes(self, runner: ChannelRunner, request: Changes, applied: Seq) -> ChangesAnswer:
        settings = self._settings
        page = _Page(
            max(1, min(request.rows_max, settings.changes_rows_max)),
            max(1, min(request.bytes_max, settings.changes_bytes_max)),
        )
        after, sub = request.after, request.sub
        to_seq = request.to_seq or applied
        records = self._records(runner, after, to_seq, page.bytes_left)
        after, sub = self._fill(runner, page, records, (after, sub))
        if records:
            # S6.6: outcomes may go while they are looked up, and then look like no changes.
            self._check_first(runner, request.after)
        return ChangesAnswer(request.request_id, tuple(page.pieces), after, sub, applied)

    def _fill(
        self, runner: ChannelRunner, page: _Page, records: list[Record], at: tuple[Seq, int]
    ) -> tuple[Seq, int]:
        """Take in what there is room for, and return the place behind it."""
        after, sub = at
        for record in records:
            for found in self._pieces(runner, record, sub):
                if not page.take(found):
                    return after, sub
                sub = found.sub
            after, sub = record.last_seq, 0
        return after, sub

    def _records(
        self, runner: ChannelRunner, after: Seq, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Records behind a position; a position inside a record is the one before it."""
        if after >= to_seq:
            return []
        self._check_first(runner, after)
        first = Seq(after + 1)
        found = self._log.read(runner.channel, first, to_seq=to_seq, bytes_max=bytes_max)
        if found and found[0].base_seq > first:
            raise DataLossError(
                f"the changes of {runner.name} behind seq {after} are gone, the oldest begin at "
                f"seq {found[0].base_seq}; start from there, or from a copy of the table"
            )
        return found

    def _check_first(self, runner: ChannelRunner, after: Seq) -> None:
        """Raise DataLossError unless there is everything behind a position."""
        # S6.6: an empty answer would be taken for "nothing changed".
        first_seq = self._first(runner)
        if after < first_seq:
            raise DataLossError(
                f"the changes of {runner.name} behind seq {after} were trimmed, the oldest begin "
                f"behind seq {first_seq}; start from there, or from a copy of the table"
            )

    def _first(self, runner: ChannelRunner) -> Seq:
        """The position behind which there are records, and what became of each of them."""
        state = AppliedState(self._tables, runner.channel)
        return max(self._log.base(runner.channel).seq, trimmed_to(state.get))

    def _pieces(self, runner: ChannelRunner, record: Record, sub: int) -> Iterator[_Found]:
        kind, ttl_ms, payload = record.kind, 0, record.payload
        if kind in WITHOUT_TTL:
            ttl_ms, rest = decode_with_ttl(payload)
            kind, payload = WITHOUT_TTL[kind], bytes(rest)
        expires_ms = record.timestamp_ms + ttl_ms if ttl_ms else 0
        if kind is RecordKind.ROWS:
            piece = ChangePiece(
                record.last_seq, record.timestamp_ms, payload, expires_ms=expires_ms
            )
            yield _Found(piece, record.rows, 0)
        elif kind is RecordKind.CONDITIONAL:
            outcome = self._outcome(runner, record)
            # S10: decided when it was applied, by the rows of then.
            if outcome == HELD:
                key, sealed, _ = decode_conditional(payload)
                rows = encode_rows(((key, sealed),))
                piece = ChangePiece(
                    record.last_seq, record.timestamp_ms, rows, expires_ms=expires_ms
                )
                yield _Found(piece, 1, 0)
        elif kind is RecordKind.BATCH_APPLY:
            yield from self._batch(runner, record, sub)
        elif kind is RecordKind.EXPIRE:
            yield from self._expired(runner, record)

    def _expired(self, runner: ChannelRunner, record: Record) -> Iterator[_Found]:
        """Rows that an EXPIRE record removed; of some keys it names there was another row."""
        until_ms, keys = decode_expire(record.payload)
        if not keys:
            return
        # Where nothing is written down, all that it names had expired
        # (``state_machines.expiry.expire``).
        outcome = outcome_at(AppliedState(self._tables, runner.channel), record.last_seq)
        piece = ChangePiece(
            record.last_seq,
            record.timestamp_ms,
            encode_rows((key, None) for key in keys),
            bits=b"" if outcome is None else outcome.data,
            expired=True,
            expires_ms=until_ms,
        )
        yield _Found(piece, len(keys), 0)

    # --- micro-batches ----------------------------------------------------------------------------

    def _batch(self, runner: ChannelRunner, record: Record, sub: int) -> Iterator[_Found]:
        """Pieces of a micro-batch from ``sub`` on, in the order in which its rows were written."""
        batch = self._applied(runner.channel, record)
        if batch is None:
            return  # it was applied before, or came too early: the record changed nothing
        number, piece = sub >> PIECE_BITS, sub & (1 << PIECE_BITS) - 1
        truncates = batch.mode == TRUNCATE and sub == 0
        if truncates and not batch.chunks:
            yield _Found(self._piece(record, batch, b"", truncate=True), 1, 0)
        while number < len(batch.chunks):
            chunk = self._chunk(runner, record, batch.chunks[number])
            header, rows = decode_header(chunk.payload)
            payload, bits, more = bytes(rows), b"", False
            if header.mode in (INSERT, MERGE):
                outcome = self._outcome(runner, record, number, piece)
                bits = outcome.data if header.mode == INSERT else b""
                payload = payload if header.mode == INSERT else outcome.data
                more = outcome.more
            expires_ms = record.timestamp_ms + header.ttl_ms if header.ttl_ms else 0
            made = self._piece(
                record, batch, payload, bits, truncate=truncates, expires_ms=expires_ms
            )
            number, piece = (number, piece + 1) if more else (number + 1, 0)
            is_over = number == len(batch.chunks)
            yield _Found(made, chunk.rows, 0 if is_over else number << PIECE_BITS | piece)
            truncates = False

    def _applied(self, channel: ChannelId, record: Record) -> AppliedBatch | None:
        state = AppliedState(self._tables, channel)
        return read_state(state, applied_batch_key(record.last_seq), AppliedBatch)

    def _chunk(self, runner: ChannelRunner, record: Record, place: tuple[int, int]) -> Record:
        base, last = Seq(place[0]), Seq(place[1])
        found = self._log.read(runner.channel, base, to_seq=last, bytes_max=1)
        if not found or found[0].base_seq != base or found[0].kind is not RecordKind.STAGED:
            raise DataLossError(
                f"rows of the batch at seq {record.last_seq} of {runner.name} were staged at seq "
                f"{base} and are gone; start behind it, or from a copy of the table"
            )
        return found[0]

    @staticmethod
    def _piece(
        record: Record,
        batch: AppliedBatch,
        rows: bytes,
        bits: bytes = b"",
        *,
        truncate: bool,
        expires_ms: int = 0,
    ) -> ChangePiece:
        return ChangePiece(
            record.last_seq,
            batch.decided_ms,
            rows,
            bits=bits,
            truncate=truncate,
            writer=batch.writer,
            batch_id=batch.batch_id,
            expires_ms=expires_ms,
        )

    def _outcome(
        self, runner: ChannelRunner, record: Record, chunk: int = 0, piece: int = 0
    ) -> Outcome:
        state = AppliedState(self._tables, runner.channel)
        outcome = outcome_at(state, record.last_seq, chunk, piece)
        if outcome is None:
            self._check_first(runner, Seq(record.base_seq - 1))
            raise DataLossError(
                f"what became of the write at seq {record.last_seq} of {runner.name} was not "
                "written down by the version that applied it here; start behind it, or have this "
                "node rebuild its tables from its log"
            )
        return outcome

    # --- ends -------------------------------------------------------------------------------------

    def _ends(self, runner: ChannelRunner, request: ChangeEnds, applied: Seq) -> ChangeEndsAnswer:
        channel, log = runner.channel, self._log
        oldest = log.read(channel, Seq(self._first(runner) + 1), to_seq=applied, bytes_max=1)
        first = Seq(oldest[0].base_seq - 1) if oldest else applied
        to_seq = request.to_seq or applied
        reached, rows, more = request.after, 0, False
        if request.rows_max > 0 and reached < to_seq:
            found = self._records(runner, reached, to_seq, ENDS_BYTES_MAX)
            for record in found:
                changed = self._rows_of(channel, record)
                if rows and rows + changed > request.rows_max:
                    break
                reached, rows = record.last_seq, rows + changed
            else:
                # Behind the last record that ends before ``to_seq`` there is nothing to ask for.
                more = bool(found) and reached < to_seq and rows < request.rows_max
            self._check_first(runner, request.after)
        return ChangeEndsAnswer(request.request_id, first, applied, reached, rows, more)

    def _rows_of(self, channel: ChannelId, record: Record) -> int:
        """Rows that a record may have changed; a micro-batch is never cut in two."""
        if record.kind in ROW_KINDS:
            return record.rows
        if record.kind is RecordKind.BATCH_APPLY:
            batch = self._applied(channel, record)
            return 0 if batch is None else max(1, batch.rows)
        return 0

    def _fail(
        self, client: int, request: Changes | ChangeEnds, error: type[RequestError], text: str
    ) -> None:
        self._answers.answer(client, failed(request.request_id, error, text))
