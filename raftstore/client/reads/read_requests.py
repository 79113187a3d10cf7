"""What every request for rows has in common: said in one place, whoever sends it."""

from __future__ import annotations

from typing import Any

from raftstore.client.reads.read_spec import ReadWish
from raftstore.client.requests.leader_requests import BuildRequest
from raftstore.protocol.reads import Count, Get, Scan
from raftstore.types import ChannelId, Seq


def row_read(
    kind: type[Get | Scan | Count], channel: ChannelId, wish: ReadWish, min_seq: Seq, **what: Any
) -> BuildRequest:
    """Return what builds the request for a channel as it is wished for; ``what`` is read there."""

    def build(request_id: int, left_ms: int) -> Get | Scan | Count:
        return kind(
            request_id=request_id,
            channel=channel,
            level=wish.level.value,
            max_lag=wish.max_lag,
            min_seq=min_seq,
            timeout_ms=left_ms,
            max_staleness_ms=wish.max_staleness_ms,
            max_batches_behind=wish.max_batches_behind,
            **what,
        )

    return build
