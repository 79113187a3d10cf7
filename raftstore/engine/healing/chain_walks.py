"""Chain hashes of committed records at any seq that the log still holds (S13).

A running replica keeps those of its newest records (``ReplicationSettings.chain_hashes_max``). An
older one is computed again, from the base or from the nearest one that is known, some records in
each turn; of every ``MILESTONE_RECORDS`` the hash is kept, so that a bisection walks a log once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from raftstore.core.chain import ChainHashes
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.ports.log import Base, MessageLog
from raftstore.types import ChannelId, Digest, Seq

RECORDS_PER_TURN: Final = 512
"""Heads that one turn takes in."""
TURN_PAUSE_MS: Final = 5
MILESTONE_RECORDS: Final = 1_024
WAITING_MAX: Final = 256
"""Questions that wait for a walk; of more the oldest gets the answer that nothing is known."""

OnHash = Callable[[bool, bytes], None]
"""Called with whether the log can say, and the hash; empty: no record ends there."""


@dataclass(slots=True)
class _Milestones:
    """Known hashes of one channel's log behind one base, in ascending order."""

    base: Base
    seqs: list[Seq]
    hashes: list[bytes]


@dataclass(slots=True)
class _Walk:
    """A hash that is being computed."""

    runner: ChannelRunner
    seq: Seq
    done: OnHash
    chain: ChainHashes | None = None
    records: int = 0
    milestones: _Milestones | None = field(default=None)


class ChainWalks:
    """Walks through the logs of one node, one at a time."""

    def __init__(self, channels: Mapping[ChannelId, ChannelRunner], log: MessageLog) -> None:
        self._channels = channels
        self._log = log
        self._known: dict[ChannelId, _Milestones] = {}
        self._waiting: deque[_Walk] = deque()
        self.deadlines: Deadlines[int] = Deadlines()

    def find(self, runner: ChannelRunner, seq: Seq, now_ms: int, done: OnHash) -> None:
        """Call ``done`` with the hash at ``seq``, at once or in a later turn."""
        core = runner.core
        if not core.base.seq <= seq <= core.commit_seq or runner.ignores_peers:
            done(False, b"")
            return
        if seq == core.base.seq:
            done(True, core.base.chain_hash)
            return
        if seq >= core.chain_hashes_from:
            done(True, core.chain_hash_of(seq) or b"")
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft().done(False, b"")
        self._waiting.append(_Walk(runner, seq, done))
        self.deadlines.push(0, now_ms)

    def closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        self._known.pop(runner.channel, None)
        gone = [walk for walk in self._waiting if walk.runner is runner]
        self._waiting = deque(walk for walk in self._waiting if walk.runner is not runner)
        for walk in gone:
            walk.done(False, b"")

    def on_timer(self, now_ms: int) -> None:
        """Go on with the walk that is under way."""
        for _ in self.deadlines.due(now_ms):
            if self._waiting:
                self._go_on(self._waiting[0])
            if self._waiting:
                self.deadlines.push(0, now_ms + TURN_PAUSE_MS)

    def _go_on(self, walk: _Walk) -> None:
        base = walk.runner.core.base
        if walk.seq < base.seq:
            # Its log was trimmed meanwhile. That no record ends there would be another history.
            self._waiting.popleft()
            walk.done(False, b"")
            return
        if walk.chain is None or walk.milestones is None or walk.milestones.base is not base:
            self._begin(walk, base)
        chain, milestones = walk.chain, walk.milestones
        assert chain is not None, "a walk has begun"
        assert milestones is not None, "a walk has begun"
        channel = walk.runner.channel
        heads = self._log.heads(channel, chain.last_seq, to_seq=walk.seq, limit=RECORDS_PER_TURN)
        for record in heads:
            chain.append(record)
            walk.records += 1
            is_new = chain.last_seq > milestones.seqs[-1]
            if is_new and walk.records % MILESTONE_RECORDS == 0:
                milestones.seqs.append(chain.last_seq)
                milestones.hashes.append(chain.last)
        chain.commit(chain.last_seq)
        if len(heads) < RECORDS_PER_TURN:
            self._waiting.popleft()
            ends_there = chain.last_seq == walk.seq
            walk.done(True, chain.last if ends_there else b"")

    def _begin(self, walk: _Walk, base: Base) -> None:
        """From the nearest hash that is known, in front of the one that is wanted."""
        known = self._known.get(walk.runner.channel)
        if known is None or known.base is not base:
            known = _Milestones(base, [base.seq], [base.chain_hash])
            self._known[walk.runner.channel] = known
        at = bisect_right(known.seqs, walk.seq) - 1
        walk.milestones, walk.records = known, 0
        walk.chain = ChainHashes.behind(known.seqs[at], Digest(known.hashes[at]))
