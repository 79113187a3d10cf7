"""Notes what one client is answered for its audit, without waiting for anything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftstore.audit.observation import NO_ROW, Action, Observation, hash_of_key, hash_of_row
from raftstore.client.auditing.audit import Audit
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import Consistency, FoundKeys, GetAnswer
from raftstore.types import ChannelId, Durability, Seq, Term, node_name

FSYNC: Final = Durability.FSYNC.label
"""Tables below it may lose what was acknowledged (S0.6), so they are not judged."""
CANDIDATES_MAX: Final = 256
"""Rows that may be read again at another replica, the newest."""


class Asked(NamedTuple):
    """The request of a read of keys of one partition."""

    info: TableInfo
    partition: int
    keys: Sequence[bytes]
    wanted: Consistency
    began_ms: float


class Candidate(NamedTuple):
    """A row that another replica may be asked for."""

    info: TableInfo
    partition: int
    key: bytes
    seq: int
    """Of the state in which it was seen."""
    node: str
    """By whom it was answered; empty: an acknowledged write."""


class Recorder:
    """See the module."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self._candidates: OrderedDict[tuple[ChannelId, bytes], Candidate] = OrderedDict()

    def began(self, keys: Sequence[bytes]) -> float | None:
        """Return the moment at which an operation begins that names a watched key, else None."""
        watches = self.audit.watches
        for key in keys:
            if watches(key):
                return self.audit.now_ms()
        return None

    def read(
        self,
        asked: Asked,
        answer: GetAnswer | FoundKeys,
        first: int,
        action: Action = Action.GET,
    ) -> None:
        """Keys were read: those of ``answer`` from number ``first`` on."""
        info, wanted = asked.info, asked.wanted
        if wanted.pin or info.durability != FSYNC:
            return
        served, ended_ms = answer.served, self.audit.now_ms()
        channel = info.channels[asked.partition].channel
        name, node = f"{info.name}/{asked.partition}", node_name(served.node)
        for at, key in enumerate(asked.keys, first):
            if not self.audit.watches(key):
                continue
            seen = Observation(
                action,
                hash_of_key(key),
                asked.began_ms,
                ended_ms,
                served.applied_seq,
                answer.seqs[at],
                hash_of_row(answer.values[at]),
                node,
                served.term,
                wanted.level,
                served.staleness_ms,
                served.lag,
                wanted.min_seq,
                wanted.max_staleness_ms,
                wanted.max_lag,
            )
            self.audit.observe(channel, name, seen)
            if action is Action.GET:
                self._note(Candidate(info, asked.partition, key, served.applied_seq, node))

    def wrote(  # noqa: PLR0917 - what was written, and where it is
        self,
        info: TableInfo,
        partition: int,
        key: bytes,
        sealed: bytes | None,
        seq: Seq,
        term: Term,
        began_ms: float,
    ) -> None:
        """A put, or a delete (None), was acknowledged."""
        if not self.audit.watches(key) or info.durability != FSYNC:
            return
        seen = Observation(
            Action.DELETE if sealed is None else Action.PUT,
            hash_of_key(key),
            began_ms,
            self.audit.now_ms(),
            seq,
            0 if sealed is None else seq,
            NO_ROW if sealed is None else hash_of_row(sealed),
            term=term,
        )
        channel = info.channels[partition].channel
        self.audit.observe(channel, f"{info.name}/{partition}", seen)
        self._note(Candidate(info, partition, key, seq, ""))

    def take_candidate(self) -> Candidate | None:
        """Return a row to read again elsewhere, the newest, and forget it."""
        return self._candidates.popitem()[1] if self._candidates else None

    def _note(self, candidate: Candidate) -> None:
        if not self.audit.checks:
            return
        place = candidate.info.channels[candidate.partition].channel, candidate.key
        self._candidates[place] = candidate
        self._candidates.move_to_end(place)
        if len(self._candidates) > CANDIDATES_MAX:
            self._candidates.popitem(last=False)
