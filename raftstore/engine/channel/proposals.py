"""Records that a leader makes itself: catalog commands, and the steps of micro-batches.

A channel's leader is its own publisher then (GAP-07, S5.6), so the payload reaches the followers by
relay. One answer per record: committed, refused by the machine (conflict), or unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import Refusal
from raftstore.ports.ids import IdSource
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import Guid, RecordKind, make_guid

OnOutcome = Callable[[PubAck | PubReject, int], None]


@dataclass(slots=True)
class _Proposal:
    payload: bytes
    on_outcome: OnOutcome


class Proposals:
    """Commands of this node waiting for their outcome, by guid."""

    def __init__(self, ids: IdSource) -> None:
        self._session = ids.uuid()[:8]
        self._counter = 0
        self._open: dict[Guid, _Proposal] = {}

    def propose(
        self,
        runner: ChannelRunner,
        payload: bytes,
        on_outcome: OnOutcome,
        now_ms: int,
        *,
        kind: RecordKind = RecordKind.COMMAND,
        rows: int = 1,
        refusal: Refusal | None = None,
    ) -> None:
        """Publish a record on a channel this node leads; the outcome comes exactly once.

        ``refusal``: why a leader must not sequence it; a follower refuses it anyway.

        The core answers every publish it accepted: OK, not applied, or unknown after the quorum
        timeout or a step-down; so nothing waits for ever.
        """
        self._counter += 1
        guid = make_guid(self._session, self._counter)
        self._open[guid] = _Proposal(payload, on_outcome)
        message = PubMsg(
            channel=runner.channel,
            term=runner.elector.term,
            leader=runner.me,
            guid=guid,
            digest=hashlib.blake2b(payload, digest_size=16).digest(),
            rows=rows,
            kind=kind,
            payload=payload,
            relay_to=tuple(n for n in runner.core.config().members if n != runner.me),
        )
        runner.on_publish(CLIENT_HANDLE_SELF, message, now_ms, refusal=refusal)

    def on_answer(self, message: PubAck | PubReject, now_ms: int) -> None:
        """The core's answer to one of our commands."""
        proposal = self._open.pop(message.guid, None)
        if proposal is not None:
            proposal.on_outcome(message, now_ms)

    @property
    def open(self) -> int:
        """Commands without an outcome."""
        return len(self._open)
