"""History that a leader serves fits into frames, however small the records are (S6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX, ReplicationSettings
from raftstore.core.effects import ServeSync
from raftstore.node.setting_rules import range_of
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSync, MsgSyncRequest
from raftstore.types import NO_GUID, ChannelId, Guid, RecordKind, Seq, Term
from tests.unit.engine.engine_world import calm_cluster, spy

LAST = Seq(2**40)
LARGEST_BATCH = range_of("replication.sync_batch_bytes_max").high
MOST_RECORDS = range_of("replication.sync_batch_records_max").high


def served(records_of: int, payload_bytes: int) -> MsgSync:
    """The answer of a leader with a log of equal records, at the largest batch that may be
    configured.

    ``records_of``: rows of each record.
    """
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    runner = node.runner.channels[channel]
    peer = next(other for other in cluster.node_ids if other != node.node)
    term = Term(2**40)

    def read(_: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int) -> Sequence[Record]:
        found: list[Record] = []
        size = 0
        while True:
            base = Seq(from_seq + len(found) * records_of)
            guid = Guid(NO_GUID[:8] + base.to_bytes(8, "big"))
            record = Record(
                term, base, records_of, guid, 2**41, bytes(16), RecordKind.ROWS, payload
            )
            size += payload_bytes
            if record.last_seq > to_seq or (found and size > bytes_max):
                return found
            found.append(record)

    payload = bytes(payload_bytes)

    class Extent:
        """Of that log."""

        def reach(self, from_seq: Seq, *, to_seq: Seq, bytes_max: int, records_max: int) -> Seq:
            """The end of what would be read."""
            found = read(channel, from_seq, to_seq=to_seq, bytes_max=bytes_max)
            return found[:records_max][-1].last_seq

    node.log.read = read  # type: ignore[method-assign, assignment]
    node.log.extent = lambda _: Extent()  # type: ignore[method-assign, assignment, return-value]
    replication = replace(
        ReplicationSettings(),
        sync_batch_bytes_max=LARGEST_BATCH,
        sync_batch_records_max=MOST_RECORDS,
    )
    settings = replace(runner.parts.settings, replication=replication)
    runner.parts = replace(runner.parts, settings=settings)
    seen = spy(cluster, node)
    request = MsgSyncRequest(channel, term, 1, Seq(1), (), LARGEST_BATCH)
    runner.execute(ServeSync(peer, request, term, Seq(1), Term(0), Seq(1), LAST))
    [(_, message)] = seen
    assert isinstance(message, MsgSync)
    return message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "payload_bytes"),
    [(1, 6), (1, LARGEST_BATCH // ROWS_PER_RECORD_MAX), (ROWS_PER_RECORD_MAX, PAYLOAD_BYTES_MAX)],
)
def test_batch_of_history_fits_into_a_frame(rows: int, payload_bytes: int) -> None:
    """A batch of history fits a frame: one that does not would stop this leader, and the next one
    that is asked (S0.4).
    """
    message = served(rows, payload_bytes)
    assert message.records
    assert not message.done
    encode_frame_of(message)
