"""An answer shows one state, and says which: records are applied by another thread meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get, GetAnswer, Scan, ScanAnswer
from raftstore.record_machine import Row
from raftstore.rows.sealing import seal, unseal
from raftstore.types import ChannelId, Seq
from tests.unit.engine.engine_world import calm_cluster

KEYS = (b"a", b"b", b"c")


class MovingTables:
    """Tables in which one more record is applied right before and right after every read.

    Each record writes ``KEYS`` with its seq as the value; the tenth and later ones delete them.
    """

    def __init__(self, tables: Any, channel: ChannelId) -> None:
        self._tables = tables
        self._table = tables._tables[channel]
        self.reads = 0
        self._move()

    def applied_seq(self, channel: ChannelId) -> Seq:
        """The position that reads see at least."""
        return Seq(self._tables.applied_seq(channel))

    def __getattr__(self, name: str) -> Any:
        def read(*arguments: Any) -> Any:
            self.reads += 1
            self._move()
            found = getattr(self._tables, name)(*arguments)
            self._move()
            return found

        return read

    def _move(self) -> None:
        seq = Seq(self._table.applied.seq + 1)
        self._table.applied = self._table.applied._replace(seq=seq)
        for key in KEYS:
            value = seal(key, b"%d" % seq)
            self._table.put(key, Row(key, value, seq) if self.reads < 9 else None)


def answer_of(request: Get | Scan, channel: ChannelId, tables: Any, node: Any) -> Message:
    """The one answer of the reader over these tables."""
    reader, runner = node.runner.reader, node.runner.channels[channel]
    answers: list[Message] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_tables", tables)
        patch.setattr(reader._answers, "answer", lambda _client, answer: answers.append(answer))
        reader.on_request(7, request, runner, node.clock.now_ms())
    [answer] = answers
    return answer


@pytest.mark.parametrize("keys", [KEYS, KEYS[:1], (b"absent", *KEYS)])
def test_rows_of_a_get_are_of_one_state_and_its_position_is_told(keys: tuple[bytes, ...]) -> None:
    """A record is made visible as a whole (S7.3): rows, position and lag are of one moment."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    tables = MovingTables(node.tables, channel)
    request = Get(1, channel, keys, "any", None, Seq(0), 5_000)
    answer = answer_of(request, channel, tables, node)
    assert isinstance(answer, GetAnswer)
    found = {
        unseal(key, value)
        for key, value in zip(keys, answer.values, strict=True)
        if value is not None
    }
    assert found == {b"%d" % answer.served.applied_seq}
    assert set(answer.seqs) - {0} == {answer.served.applied_seq}


def test_row_that_was_deleted_meanwhile_is_absent_at_the_position_that_is_told() -> None:
    """A reader that goes on from this position must not see the row come back elsewhere."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    tables = MovingTables(node.tables, channel)
    tables.reads = 8
    before = tables.applied_seq(channel)
    answer = answer_of(Get(1, channel, (b"a",), "any", None, Seq(0), 5_000), channel, tables, node)
    assert isinstance(answer, GetAnswer)
    assert answer.values == (None,)
    assert answer.served.applied_seq > before


def test_rows_of_a_page_are_of_one_state_and_its_position_is_told() -> None:
    """The page is read once, and its position with it."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    tables = MovingTables(node.tables, channel)
    request = Scan(1, channel, b"", b"", 10, "any", None, Seq(0), 5_000)
    answer = answer_of(request, channel, tables, node)
    assert isinstance(answer, ScanAnswer)
    assert [key for key, _, _ in answer.rows] == [*KEYS]
    assert {seq for _, _, seq in answer.rows} == {answer.served.applied_seq}
    assert tables.reads == 1
