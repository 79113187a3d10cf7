"""Pages of changes by themselves: what each kind of record shows, where a page ends and goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import ReadSettings
from raftstore.core.chain import digest_of
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.engine.reads import changes
from raftstore.engine.reads.changes import PIECE_BITS, ChangeFeeds
from raftstore.errors import Refusal, UnavailableError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.batches import APPEND, TRUNCATE
from raftstore.protocol.changes import (
    ChangeEnds,
    ChangeEndsAnswer,
    ChangePiece,
    Changes,
    ChangesAnswer,
)
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import INSERT, MERGE, UPSERT, ChunkHeader, encode_staged
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.rows.sealing import seal
from raftstore.state_machines.batches.staging import AppliedBatch
from raftstore.state_machines.outcomes import HELD, NOT_HELD, Outcome
from raftstore.state_machines.state_keys import TRIMMED, applied_batch_key, outcome_key, packed
from raftstore.state_machines.trimmed_outcomes import Trimmed
from raftstore.types import ChannelId, RecordKind, Seq, Term, channel_id, make_guid

CHANNEL = channel_id(b"orders-table-id!", 0)
CATALOG = channel_id(b"the-catalogs-id!", 0)


def rows(*keys: bytes) -> bytes:
    """A payload that writes these rows."""
    return encode_rows([(key, seal(key, b"value")) for key in keys])


class Bench:
    """One channel whose log, applied position and kept outcomes the test writes itself."""

    def __init__(self, **settings: int) -> None:
        self.records: list[Record] = []
        self.state: dict[bytes, bytes] = {}
        self.applied = Seq(0)
        self.base_seq = Seq(0)
        self.refusal: Refusal | None = None
        self.answers: list[tuple[int, Message]] = []
        self.reads: list[tuple[int, int, int]] = []
        runner = SimpleNamespace(
            channel=CHANNEL, name="orders/0", table_settings=DEFAULT_SETTINGS, commands=None
        )
        catalog = SimpleNamespace(channel=CATALOG, name=METADATA_NAME)
        channels: Any = {CHANNEL: runner, CATALOG: catalog}
        me: Any = self
        self.feeds = ChangeFeeds(channels, me, me, me, me, ReadSettings(**settings))

    # --- what the feeds work with -----------------------------------------------------------------

    def serving_refusal(self, runner: Any) -> Refusal | None:
        """Why the channel serves nothing."""
        assert runner.name == "orders/0"
        return self.refusal

    def applied_seq(self, channel: ChannelId) -> Seq:
        """How far the channel is applied."""
        assert channel == CHANNEL
        return self.applied

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """One value beside the rows."""
        assert channel == CHANNEL
        return self.state.get(key)

    def base(self, channel: ChannelId) -> Base:
        """The base of the log."""
        assert channel == CHANNEL
        return msgspec.structs.replace(EMPTY_BASE, term=Term(1), seq=self.base_seq)

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Whole records of a stretch, the first whatever its size."""
        assert channel == CHANNEL
        assert bytes_max >= 1
        self.reads.append((from_seq, to_seq, bytes_max))
        found: list[Record] = []
        size = 0
        for record in self.records:
            if from_seq <= record.last_seq <= to_seq:
                size += len(record.payload)
                if found and size > bytes_max:
                    break
                found.append(record)
        return found

    def answer(self, client: int, message: Message) -> None:
        """An answer to a client."""
        self.answers.append((client, message))

    # --- what the test writes ---------------------------------------------------------------------

    def add(self, kind: RecordKind, payload: bytes = b"", count: int = 1) -> Record:
        """One more record, applied."""
        base = Seq(self.records[-1].last_seq + 1 if self.records else 1)
        record = Record(
            Term(1), base, count, make_guid(b"session!", base), 1_000 + base, digest_of(payload),
            kind, payload,
        )  # fmt: skip
        self.records.append(record)
        self.applied = record.last_seq
        return record

    def add_rows(self, *keys: bytes) -> Record:
        """A record of rows."""
        return self.add(RecordKind.ROWS, rows(*keys), len(keys))

    def add_conditional(self, outcome: Outcome | None) -> Record:
        """A conditional write, and whether it held."""
        payload = encode_conditional(b"k", seal(b"k", b"value"), Seq(4))
        record = self.add(RecordKind.CONDITIONAL, payload)
        if outcome is not None:
            self.state[outcome_key(record.last_seq)] = packed(outcome)
        return record

    def stage(self, mode: int, *keys: bytes) -> Record:
        """A staged chunk."""
        header = ChunkHeader("orders", 1, 0, 0, 0, mode=mode)
        return self.add(RecordKind.STAGED, encode_staged(header, rows(*keys)), len(keys))

    def apply(self, *chunks: Record, mode: int = APPEND, count: int | None = None) -> Record:
        """The decision over chunks."""
        record = self.add(RecordKind.BATCH_APPLY)
        places = tuple((chunk.base_seq, chunk.last_seq) for chunk in chunks)
        total = sum(chunk.rows for chunk in chunks) if count is None else count
        batch = AppliedBatch(1, "orders", 7, 1, mode, 555, total, places)
        self.state[applied_batch_key(record.last_seq)] = packed(batch)
        return record

    # --- asking -----------------------------------------------------------------------------------

    def take(self) -> Message:
        """The one answer."""
        [(client, message)] = self.answers
        self.answers.clear()
        assert client == 5
        return message

    def page(self, after: int = 0, sub: int = 0, to: int = 0, **most: int) -> ChangesAnswer:
        """One page."""
        self.feeds.on_request(5, request(after, sub, to, **most))
        answer = self.take()
        assert isinstance(answer, ChangesAnswer), answer
        assert answer.request_id == 9
        assert answer.applied == self.applied
        return answer

    def ends(self, after: int = 0, to: int = 0, rows_max: int = 1_000) -> ChangeEndsAnswer:
        """The answer about the ends."""
        self.feeds.on_request(5, ChangeEnds(9, CHANNEL, Seq(after), Seq(to), rows_max, 1_000))
        answer = self.take()
        assert isinstance(answer, ChangeEndsAnswer), answer
        assert (answer.request_id, answer.applied) == (9, self.applied)
        return answer

    def refused(self, message: Message) -> tuple[str, str]:
        """Code and text of a refusal; there is no second answer."""
        self.feeds.on_request(5, message)  # type: ignore[arg-type]
        answer = self.take()
        assert isinstance(answer, Failed)
        return answer.code, answer.message


def request(after: int = 0, sub: int = 0, to: int = 0, **most: int) -> Changes:
    """A request for a page."""
    bounds = {"rows_max": 1_000, "bytes_max": 1 << 20, **most}
    return Changes(
        9, CHANNEL, Seq(after), sub, Seq(to), bounds["rows_max"], bounds["bytes_max"], 1_000
    )


def seqs(answer: ChangesAnswer) -> list[int]:
    """Of the records whose changes are in a page."""
    return [piece.seq for piece in answer.pieces]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [CATALOG, channel_id(b"another-table-id", 0)])
def test_channel_without_changes_is_refused_once(channel: ChannelId) -> None:
    """The catalog is no table, and another channel is not here."""
    bench = Bench()
    code, _ = bench.refused(Changes(9, channel, Seq(0), 0, Seq(0), 1, 1, 1_000))
    assert code == "unknown_channel"


def test_channel_that_serves_nothing_says_why() -> None:
    """S0.3, S13: it is asked like every read."""
    bench = Bench()
    bench.add_rows(b"a")
    bench.refusal = Refusal(UnavailableError, "it recovers")
    assert bench.refused(request()) == ("unavailable", "it recovers")


@pytest.mark.parametrize(("after", "to"), [(3, 0), (0, 3), (3, 1)])
def test_position_that_is_not_applied_here_is_refused_with_what_is(after: int, to: int) -> None:
    """S4.2: it may be committed, and its outcome is not known here."""
    bench = Bench()
    bench.add_rows(b"a", b"b")
    code, text = bench.refused(request(after, to=to))
    assert code == "not_up_to_bound"
    assert text == "channel orders/0 has applied seq 2, not 3; ask another replica"
    assert seqs(bench.page(0, to=2)) == [2]
    assert seqs(bench.page(2)) == []


@pytest.mark.parametrize("ends", [True, False])
def test_changes_that_are_gone_are_refused_with_the_oldest_that_are_not(ends: bool) -> None:
    """A reader of changes never passes over a gap without knowing it."""
    bench = Bench()
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    del bench.records[0]
    asked = ChangeEnds(9, CHANNEL, Seq(0), Seq(0), 10, 1_000) if ends else request()
    code, text = bench.refused(asked)
    assert code == "data_loss"
    assert "behind seq 0 are gone, the oldest begin at seq 2" in text
    assert seqs(bench.page(1)) == [2, 3]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("held", [0, 2])
def test_s6_6_changes_below_the_base_are_refused_with_the_first_position(
    ends: bool, held: int
) -> None:
    """S6.6: also of a log with nothing behind its base: empty would mean that nothing changed."""
    bench = Bench()
    for key in (b"a", b"b", b"c", b"d"):
        bench.add_rows(key)
    bench.base_seq = Seq(4 - held)
    del bench.records[: 4 - held]
    for after in range(bench.base_seq):
        asked = ChangeEnds(9, CHANNEL, Seq(after), Seq(0), 10, 1_000) if ends else request(after)
        code, text = bench.refused(asked)
        assert code == "data_loss"
        assert f"behind seq {after} were trimmed, the oldest begin behind seq {4 - held};" in text
    assert seqs(bench.page(4 - held)) == [3, 4][:held]
    bench.feeds.on_request(1, ChangeEnds(9, CHANNEL, bench.base_seq, Seq(0), 0, 1_000))
    answer = bench.answers[-1][1]
    assert isinstance(answer, ChangeEndsAnswer)
    assert (answer.first, answer.applied) == (4 - held, 4)


@pytest.mark.parametrize("ends", [True, False])
def test_s6_6_changes_whose_outcomes_are_trimmed_are_refused_though_the_log_has_them(
    ends: bool,
) -> None:
    """S6.6: a log that is trimmed later than the leader's has batches of which nothing is known."""
    bench = Bench()
    bench.base_seq = Seq(1)
    for key in (b"a", b"b", b"c", b"d"):
        bench.add_rows(key)
    del bench.records[0]
    bench.state[TRIMMED] = packed(Trimmed(3))
    for after in range(3):
        asked = ChangeEnds(9, CHANNEL, Seq(after), Seq(0), 10, 1_000) if ends else request(after)
        code, text = bench.refused(asked)
        assert code == "data_loss"
        assert f"behind seq {after} were trimmed, the oldest begin behind seq 3;" in text
    assert seqs(bench.page(3)) == [4]
    assert bench.ends(rows_max=0).first == 3
    bench.base_seq = Seq(4)
    del bench.records[:]
    assert bench.ends(rows_max=0).first == 4


@pytest.mark.parametrize("kind", ["a batch", "a condition", "ends"])
def test_outcome_that_goes_while_it_is_looked_up_is_refused_as_trimmed(kind: str) -> None:
    """S6.6: records are applied meanwhile, and a batch without an outcome looks like none."""
    bench = Bench()
    if kind == "a condition":
        gone = outcome_key(bench.add_conditional(HELD).last_seq)
    else:
        gone = applied_batch_key(bench.apply(bench.stage(UPSERT, b"a")).last_seq)
    read = bench.state_get

    def state_get(channel: ChannelId, key: bytes) -> bytes | None:
        if key == gone and bench.state.pop(gone, None) is not None:
            bench.state[TRIMMED] = packed(Trimmed(bench.applied))
        return read(channel, key)

    bench.state_get = state_get  # type: ignore[method-assign]
    asked = request() if kind != "ends" else ChangeEnds(9, CHANNEL, Seq(0), Seq(0), 10, 1_000)
    code, text = bench.refused(asked)
    assert code == "data_loss"
    assert f"were trimmed, the oldest begin behind seq {bench.applied};" in text


# --- what a record shows --------------------------------------------------------------------------


def test_rows_are_shown_as_they_were_written() -> None:
    """With the position and the time of their record."""
    bench = Bench()
    record = bench.add_rows(b"a", b"b")
    answer = bench.page()
    assert answer.pieces == (ChangePiece(Seq(2), 1_001, record.payload),)
    assert (answer.after, answer.sub) == (2, 0)


def test_conditional_write_is_shown_where_it_held() -> None:
    """S10: as the row it wrote; one that did not hold changed nothing."""
    bench = Bench()
    bench.add_conditional(NOT_HELD)
    bench.add_conditional(HELD)
    answer = bench.page()
    assert answer.pieces == (ChangePiece(Seq(2), 1_002, rows(b"k")),)
    assert answer.after == 2


def test_outcome_that_was_not_kept_is_told_and_not_guessed() -> None:
    """The version that applied the record did not write it down."""
    bench = Bench()
    bench.add_conditional(None)
    code, text = bench.refused(request())
    assert code == "data_loss"
    assert re.search("seq 1 of orders/0 was not written down", text)


@pytest.mark.parametrize("kind", [RecordKind.BATCH_MARK, RecordKind.TERM_START, RecordKind.STAGED])
def test_record_without_rows_of_its_own_is_passed_over(kind: RecordKind) -> None:
    """Staged rows are shown where they are applied, if ever."""
    bench = Bench()
    bench.add(kind)
    bench.add_rows(b"a")
    answer = bench.page()
    assert (seqs(answer), answer.after) == ([2], 2)
    assert bench.ends().rows == 1


def test_batch_is_shown_where_it_was_applied() -> None:
    """With its writer and number and the time of its decision."""
    bench = Bench()
    chunk = bench.stage(UPSERT, b"a", b"b")
    bench.apply(chunk)
    answer = bench.page()
    expected = ChangePiece(Seq(3), 555, rows(b"a", b"b"), writer="orders", batch_id=7)
    assert answer.pieces == (expected,)
    assert (answer.after, answer.sub) == (3, 0)


def test_decision_that_changed_nothing_shows_nothing() -> None:
    """It was applied before, or came too early."""
    bench = Bench()
    bench.add(RecordKind.BATCH_APPLY)
    answer = bench.page()
    assert (answer.pieces, answer.after) == ((), 1)
    assert bench.ends().rows == 0


def test_rows_to_insert_come_with_the_bits_of_those_that_were() -> None:
    """The others were there before and stayed as they were."""
    bench = Bench()
    decision = bench.apply(bench.stage(INSERT, b"a", b"b"))
    bench.state[outcome_key(decision.last_seq, 0)] = packed(Outcome(b"\x02"))
    [piece] = bench.page().pieces
    assert (piece.rows, piece.bits) == (rows(b"a", b"b"), b"\x02")


def test_merged_rows_are_shown_as_what_they_became_piece_by_piece() -> None:
    """Each chunk in as many pieces as were written down; a page may end behind any of them."""
    bench = Bench()
    decision = bench.apply(bench.stage(MERGE, b"a", b"b"), bench.stage(MERGE, b"c"))
    for chunk, number, key, more in ((0, 0, b"A", True), (0, 1, b"B", False), (1, 0, b"C", False)):
        made = Outcome(rows(key), more)
        bench.state[outcome_key(decision.last_seq, chunk, number)] = packed(made)
    whole = bench.page()
    assert [piece.rows for piece in whole.pieces] == [rows(b"A"), rows(b"B"), rows(b"C")]
    assert all(piece.bits == b"" for piece in whole.pieces)
    found: list[ChangePiece] = []
    positions: list[tuple[int, int]] = []
    after, sub = 0, 0
    while (after, sub) != (decision.last_seq, 0):
        part = bench.page(after, sub, rows_max=1)
        found += part.pieces
        after, sub = part.after, part.sub
        positions.append((after, sub))
    assert tuple(found) == whole.pieces
    staged = decision.last_seq - 1
    assert positions == [(staged, 1), (staged, 1 << PIECE_BITS), (decision.last_seq, 0)]


def test_truncation_is_told_with_the_first_piece_alone() -> None:
    """Before its rows every row of the partition was removed; a page that goes on says it not."""
    bench = Bench()
    chunks = [bench.stage(UPSERT, b"a"), bench.stage(UPSERT, b"b")]
    bench.apply(*chunks, mode=TRUNCATE)
    assert [piece.truncate for piece in bench.page().pieces] == [True, False]
    first = bench.page(rows_max=1)
    assert [piece.truncate for piece in bench.page(first.after, first.sub).pieces] == [False]


@pytest.mark.parametrize(("mode", "shown"), [(TRUNCATE, 1), (APPEND, 0)])
def test_batch_without_rows_shows_its_truncation_alone(mode: int, shown: int) -> None:
    """An empty batch that appends changed nothing."""
    bench = Bench()
    bench.apply(mode=mode)
    answer = bench.page()
    assert len(answer.pieces) == shown
    assert (answer.after, answer.sub) == (1, 0)
    for piece in answer.pieces:
        expected = ChangePiece(Seq(1), 555, b"", truncate=True, writer="orders", batch_id=7)
        assert piece == expected
    assert bench.ends().rows == 1, "a batch counts as a row at least: it is never cut in two"


@pytest.mark.parametrize("damage", ["gone", "another record", "another kind"])
def test_staged_rows_that_are_gone_are_told(damage: str) -> None:
    """The decision alone cannot say what they were."""
    bench = Bench()
    chunk = bench.stage(UPSERT, b"a", b"b")
    bench.apply(chunk)
    if damage == "gone":
        del bench.records[0]
    elif damage == "another record":
        bench.records[0] = chunk.__class__(
            chunk.term, Seq(2), 1, chunk.guid, 0, chunk.digest, RecordKind.STAGED, chunk.payload
        )
    else:
        bench.records[0] = chunk.__class__(
            chunk.term, Seq(1), 2, chunk.guid, 0, chunk.digest, RecordKind.ROWS, chunk.payload
        )
    code, text = bench.refused(request(2))
    assert code == "data_loss"
    assert "staged at seq 1 and are gone" in text


# --- where a page ends ----------------------------------------------------------------------------


def test_page_ends_where_it_was_asked_to() -> None:
    """An empty page stays where it is, without a look at the log."""
    bench = Bench()
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    assert seqs(bench.page(0, to=2)) == [1, 2]
    bench.reads.clear()
    answer = bench.page(2, to=2)
    assert (answer.pieces, answer.after, answer.sub) == ((), 2, 0)
    assert bench.reads == []


@pytest.mark.parametrize("name", ["rows_max", "changes_rows_max"])
def test_page_has_at_most_so_many_rows(name: str) -> None:
    """By the client's bound and by the node's; the first piece comes whatever its size."""
    node = name.startswith("changes")
    bench = Bench(**({name: 3} if node else {}))
    asked = {} if node else {name: 3}
    for keys in ((b"a", b"b"), (b"c",), (b"d",), (b"e", b"f", b"g", b"h"), (b"i",)):
        bench.add_rows(*keys)
    first = bench.page(**asked)
    assert (seqs(first), first.after) == ([2, 3], 3)
    second = bench.page(3, **asked)
    assert (seqs(second), second.after) == ([4], 4)
    assert seqs(bench.page(4, **asked)) == [8]


@pytest.mark.parametrize("name", ["bytes_max", "changes_bytes_max"])
def test_page_has_at_most_so_many_bytes(name: str) -> None:
    """By the client's bound and by the node's."""
    size = len(rows(b"a"))
    node = name.startswith("changes")
    bench = Bench(**({name: 2 * size} if node else {}))
    asked = {} if node else {name: 2 * size}
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    assert seqs(bench.page(**asked)) == [1, 2]
    assert bench.reads[0] == (1, 3, 2 * size), "and no more is read"
    # Rows that a batch shows were not read with its record: they count when they are taken.
    bench.apply(*(bench.stage(UPSERT, key) for key in (b"d", b"e", b"f")))
    batch = bench.page(6, **asked)
    assert [piece.rows for piece in batch.pieces] == [rows(b"d"), rows(b"e")]


def test_bounds_of_nothing_let_one_piece_through() -> None:
    """A client that asks for no rows at all gets on all the same."""
    bench = Bench()
    bench.add_rows(b"a", b"b")
    bench.add_rows(b"c")
    answer = bench.page(rows_max=0, bytes_max=0)
    assert (seqs(answer), answer.after) == ([2], 2)


def test_conditional_write_and_truncation_count_as_a_row_each() -> None:
    """Of what a page may have."""
    bench = Bench()
    for _ in range(3):
        bench.add_conditional(HELD)
    for _ in range(3):
        bench.apply(mode=TRUNCATE)
    assert seqs(bench.page(rows_max=2)) == [1, 2]
    assert seqs(bench.page(3, rows_max=2)) == [4, 5]


def test_page_has_a_bounded_number_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are."""
    monkeypatch.setattr(changes, "PIECES_MAX", 2)
    bench = Bench()
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    answer = bench.page()
    assert (seqs(answer), answer.after) == ([1, 2], 2)


# --- ends -----------------------------------------------------------------------------------------


def ends_of(bench: Bench, **asked: int) -> Sequence[object]:
    """Reached, rows, more."""
    answer = bench.ends(**asked)
    return answer.reached, answer.rows, answer.more


def test_ends_tell_what_there_is() -> None:
    """The position before the oldest record and the one behind the newest."""
    bench = Bench()
    assert (bench.ends().first, *ends_of(bench)) == (0, 0, 0, False)
    bench.applied = Seq(4)
    assert bench.ends(after=4).first == 4, "nothing is left of what was applied"
    bench.applied = Seq(0)
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    assert bench.ends().first == 0
    del bench.records[0]
    assert bench.ends(after=1).first == 1


def test_ends_count_rows_in_whole_records() -> None:
    """So many at most, but a first record in any case."""
    bench = Bench()
    bench.add_rows(b"a", b"b")
    bench.add_conditional(NOT_HELD)
    bench.apply(bench.stage(UPSERT, b"c", b"d", b"e"))
    assert ends_of(bench, rows_max=1) == (2, 2, False)
    assert ends_of(bench, rows_max=2) == (2, 2, False)
    assert ends_of(bench, rows_max=3) == (6, 3, False)
    assert ends_of(bench, rows_max=5) == (6, 3, False)
    assert ends_of(bench, rows_max=6) == (7, 6, False)
    assert ends_of(bench, after=6, rows_max=1) == (7, 3, False)
    assert ends_of(bench, to=2, rows_max=100) == (2, 2, False)
    assert ends_of(bench, after=7) == (7, 0, False)


def test_ends_count_nothing_unless_they_are_asked_to() -> None:
    """A look at the ends alone does not read the records between them."""
    bench = Bench()
    bench.add_rows(b"a")
    bench.add_rows(b"b")
    assert ends_of(bench, rows_max=0) == (0, 0, False)
    assert bench.reads == [(1, 2, 1)]


def test_ends_say_when_more_is_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request looks at a bounded number of bytes; the next goes on where it ended."""
    monkeypatch.setattr(changes, "ENDS_BYTES_MAX", 2 * len(rows(b"a")))
    bench = Bench()
    for key in (b"a", b"b", b"c"):
        bench.add_rows(key)
    assert ends_of(bench) == (2, 2, True)
    assert ends_of(bench, rows_max=3) == (2, 2, True)
    assert ends_of(bench, rows_max=2) == (2, 2, False), "that is all that was asked for"
    assert ends_of(bench, to=2) == (2, 2, False)
    assert ends_of(bench, after=2) == (3, 1, False)
