"""Reading a leader's log for a follower that catches up (S6.1)."""

from __future__ import annotations

from raftstore.config import ROWS_PER_RECORD_MAX, ReplicationSettings
from raftstore.core.effects import ServeSync
from raftstore.ports.log import MessageLog
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSync
from raftstore.types import ChannelId, Seq


def history_for(
    serve: ServeSync, channel: ChannelId, log: MessageLog, settings: ReplicationSettings
) -> MsgSync:
    """The records that the core orders to be sent: within the bounds of the settings, and in the
    bytes of payloads that the follower asks for.

    The bytes bound payloads only: with so many seqs the metadata fits into the frame, too. None of
    them when they begin below the log's base: then ``first_seq`` tells that history was trimmed.
    """
    bytes_max = min(serve.request.max_bytes, settings.sync_batch_bytes_max)
    records_max = settings.sync_batch_records_max

    def end_from(from_seq: int) -> Seq:
        """Where an answer ends that begins there."""
        to_seq = Seq(min(serve.last_seq, from_seq + ROWS_PER_RECORD_MAX - 1))
        return log.extent(channel).reach(
            Seq(from_seq), to_seq=to_seq, bytes_max=bytes_max, records_max=records_max
        )

    # S6.6: never records behind a gap.
    if serve.from_seq < serve.first_seq:
        return _answer(serve, channel, [])
    end = end_from(serve.from_seq)
    records = log.read(channel, serve.from_seq, to_seq=end, bytes_max=bytes_max)
    if end >= serve.last_seq:
        return _answer(serve, channel, records, done=True)
    # NATS-148: so that the follower can ask for what comes behind the answer that it asks next.
    return _answer(serve, channel, records, next_seq=Seq(end_from(end + 1) + 1))


def _answer(
    serve: ServeSync,
    channel: ChannelId,
    records: list[Record],
    *,
    done: bool = False,
    next_seq: Seq = Seq(0),
) -> MsgSync:
    return MsgSync(
        channel=channel,
        term=serve.term,
        request_id=serve.request.request_id,
        from_seq=serve.from_seq,
        prev_term=serve.prev_term,
        records=tuple(records),
        commit_seq=serve.commit_seq,
        last_seq=serve.last_seq,
        first_seq=serve.first_seq,
        done=done,
        next_seq=next_seq,
    )
