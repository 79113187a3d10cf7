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
    """Return the records that the core ordered to be sent: as many as the settings allow, with as
    many bytes of payloads as the follower asked for.

    Only payloads count for the bytes: the metadata of so many seqs always fits into the frame, too.
    There are no records when they would begin below the log's base; ``first_seq`` then says that
    history was trimmed.
    """
    bytes_max = min(serve.request.max_bytes, settings.sync_batch_bytes_max)
    records_max = settings.sync_batch_records_max

    def end_from(from_seq: int) -> Seq:
        """Last seq of an answer whose first seq is this one."""
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
    # NATS-148: where the answer after this one will end, so that the follower can ask for two at
    # a time.
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
