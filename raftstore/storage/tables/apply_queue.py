"""Records that wait to be applied, and which of them is next.

Within a channel nothing overtakes (S10), and nothing overtakes other work, which relies on all that
was queued before it. Between channels two things are better than the order of arrival:

* Committed records go before pieces of micro-batches, or one put would wait for many megabytes of
  other channels' rows. Never without a piece in between, or batches would wait for ever.
* Pieces of one channel follow each other for a while. LevelDB then writes files that hold one
  channel's keys, and hardly merges them again; files of many channels it merges two or three times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from raftstore.config import MIB
from raftstore.ports.tables import Piece
from raftstore.protocol.records import Record
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.types import ChannelId

TURN_BYTES_MAX: Final = 32 * MIB
"""Payload bytes of pieces of one channel in a row, while others have pieces waiting."""
OVERTAKING_BYTES_MAX: Final = 4 * MIB
"""Payload bytes of records that go before a waiting piece, until one is applied again."""
LOOK_AHEAD_MAX: Final = 256
"""Queued jobs looked at for the next one."""
_PIECE_BYTES_MIN: Final = 1 * MIB
"""What a piece counts at least: one that removes rows has no payload."""
_RECORD_BYTES_MIN: Final = 4096
"""What the records of a job count at least."""


class ApplyRecords(NamedTuple):
    """Committed records of one channel, and their payload bytes."""

    state: AppliedChannel
    records: Sequence[Record]
    size: int


class ApplyPiece(NamedTuple):
    """A piece of a micro-batch in one channel, and its payload bytes."""

    state: AppliedChannel
    piece: Piece
    size: int


Job = ApplyRecords | ApplyPiece | Callable[[], None]


class ApplyQueue:
    """Not safe for threads: the applier holds a lock."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._turn: AppliedChannel | None = None
        """The channel of the last piece, unless that piece was its batch's last one."""
        self._turn_bytes = 0
        self._overtaking_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> None:
        """Queue a job behind the others."""
        self._jobs.append(job)

    def take(self) -> Job | None:
        """The next job; None when there is none."""
        if not self._jobs:
            return None
        if not isinstance(self._jobs[0], ApplyPiece):
            return self._jobs.popleft()
        at = self._place()
        job = self._jobs[at]
        del self._jobs[at]
        if isinstance(job, ApplyPiece):
            self._count_piece(job)
        elif isinstance(job, ApplyRecords):
            self._overtaking_bytes += max(job.size, _RECORD_BYTES_MIN)
        return job

    def _place(self) -> int:
        """Where the next job stands, while a piece is the first."""
        of_turn = 0
        blocked: set[ChannelId] = set()
        may_overtake = self._overtaking_bytes < OVERTAKING_BYTES_MAX
        for at, job in enumerate(islice(self._jobs, LOOK_AHEAD_MAX)):
            if not isinstance(job, ApplyRecords | ApplyPiece):
                break
            # S10: what is queued for a channel is applied in its order.
            is_first = job.state.channel not in blocked
            blocked.add(job.state.channel)
            if isinstance(job, ApplyRecords):
                if is_first and may_overtake:
                    return at
            elif is_first and job.state is self._turn and self._turn_bytes < TURN_BYTES_MAX:
                of_turn = at
        return of_turn

    def _count_piece(self, job: ApplyPiece) -> None:
        if job.state is not self._turn:
            self._turn_bytes = 0
        self._turn = None if job.piece.last else job.state
        self._turn_bytes += max(job.size, _PIECE_BYTES_MIN)
        self._overtaking_bytes = 0
