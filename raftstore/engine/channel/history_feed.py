"""Reading a leader's log for a follower that catches up (S6.1)."""

from __future__ import annotations

from raftstore.config import ROWS_PER_RECORD_MAX
from raftstore.core.effects import ServeSync
from raftstore.ports.log import MessageLog
from raftstore.protocol.replication import MsgSync
from raftstore.types import ChannelId, Seq


def history_for(serve: ServeSync, channel: ChannelId, log: MessageLog, bytes_max: int) -> MsgSync:
    """The records that the core orders to be sent, at most ``bytes_max`` bytes of payloads.

    The bytes bound payloads only: with so many seqs the metadata fits into the frame, too. None of
    them when they begin below the log's base: then ``first_seq`` tells that history was trimmed.
    """
    # S6.6: never records behind a gap.
    is_held = serve.from_seq >= serve.first_seq
    to_seq = Seq(min(serve.last_seq, serve.from_seq + ROWS_PER_RECORD_MAX - 1))
    bytes_max = min(serve.request.max_bytes, bytes_max)
    records = (
        log.read(channel, serve.from_seq, to_seq=to_seq, bytes_max=bytes_max) if is_held else []
    )
    end = records[-1].last_seq if records else serve.from_seq - 1
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
        done=is_held and end >= serve.last_seq,
    )
