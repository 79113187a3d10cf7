"""Bulk messages of one turn: few frames per peer instead of one per channel and record.

What all channels say to one peer in a turn is put together. A message costs both sides a frame, a
checksum, a decoding and a step of the channel, whatever is in it.

* StoreRequests of one channel and term that follow each other become one with all their records.
* Of the StoreAcks of one channel and term the newest is left: a match point only moves forward.
* What is left of the kinds that a ReplicationBundle has room for travels in one. Each message keeps
  its own term and is fenced by itself (S1.4); all of them have arrived when their frame has (S7.3).

Everything here has passed the barrier of the outbox before (S0.5), and the network promises neither
order nor delivery (S12), so that only the order within a channel is kept, kind by kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

import msgspec

from raftstore.protocol.message import Message
from raftstore.protocol.replication import (
    CommitNotice,
    ReadIndexReply,
    ReadIndexRequest,
    ReplicationBundle,
    StoreAck,
    StoreRequest,
)
from raftstore.types import NodeId

HELD_MESSAGES_MAX: Final = 256
"""Messages that wait for the end of a turn, per peer; more of them leave at once."""
REQUEST_RECORDS_MAX: Final = 256
"""Records of one StoreRequest that was put together."""


class PeerMail:
    """Sends at once outside of turns, and at their end what was said in them."""

    def __init__(
        self,
        send: Callable[[NodeId, Message], None],
        takes_bundles: Callable[[NodeId], bool],
    ) -> None:
        """``takes_bundles``: whether the peer's version knows bundles."""
        self._send = send
        self._takes_bundles = takes_bundles
        self._held: defaultdict[NodeId, list[Message]] = defaultdict(list)
        self._is_held = False

    def hold(self) -> None:
        """A turn begins."""
        self._is_held = True

    def send(self, to: NodeId, message: Message) -> None:
        """Send this to the peer."""
        if not self._is_held:
            self._send(to, message)
            return
        held = self._held[to]
        held.append(message)
        if len(held) >= HELD_MESSAGES_MAX:
            del self._held[to]
            self._send_all(to, held)

    def flush(self) -> None:
        """The turn ends."""
        self._is_held = False
        if self._held:
            held, self._held = self._held, defaultdict(list)
            for to, messages in held.items():
                self._send_all(to, messages)

    def drop(self) -> None:
        """Nothing more may leave (S0.4)."""
        self._is_held = False
        self._held.clear()

    def _send_all(self, to: NodeId, messages: list[Message]) -> None:
        if len(messages) > 1:
            messages = merged(messages)
            if len(messages) > 1 and self._takes_bundles(to):
                messages = bundled(messages)
        for message in messages:
            self._send(to, message)


_MERGED: Final = (StoreRequest, StoreAck)


def merged(messages: list[Message]) -> list[Message]:
    """Put StoreRequests and StoreAcks of the same channel and term together."""
    found: list[Message] = []
    places: dict[tuple[type[Message], bytes, int], int] = {}
    for message in messages:
        kind = type(message)
        if kind is not StoreRequest and kind is not StoreAck:
            found.append(message)
            continue
        assert isinstance(message, _MERGED)
        key = (kind, message.channel, message.term)
        place = places.get(key)
        before = None if place is None else found[place]
        together = None if before is None else _together(before, message)
        if place is not None and together is not None:
            found[place] = together
        else:
            places[key] = len(found)
            found.append(message)
    return found


def _together(before: Message, message: Message) -> Message | None:
    """One message that says both; None: there is none."""
    if isinstance(message, StoreAck):
        assert isinstance(before, StoreAck)
        return message if message.match_seq >= before.match_seq else before
    assert isinstance(message, StoreRequest)
    assert isinstance(before, StoreRequest)
    last, first = before.records[-1], message.records[0]
    # S2.4: the follower takes the term of each record for the one before the next.
    follows = first.base_seq == last.last_seq + 1 and message.prev_term == last.term
    if not follows or len(before.records) + len(message.records) > REQUEST_RECORDS_MAX:
        return None
    return msgspec.structs.replace(
        before, records=before.records + message.records, commit_seq=message.commit_seq
    )


def bundled(messages: list[Message]) -> list[Message]:
    """Put all that a bundle has room for into one, unless it would be alone in it."""
    requests: list[StoreRequest] = []
    notices: list[CommitNotice] = []
    acks: list[StoreAck] = []
    questions: list[ReadIndexRequest] = []
    answers: list[ReadIndexReply] = []
    others: list[Message] = []
    for message in messages:
        match message:
            case StoreRequest():
                requests.append(message)
            case StoreAck():
                acks.append(message)
            case ReadIndexRequest():
                questions.append(message)
            case ReadIndexReply():
                answers.append(message)
            case CommitNotice():
                notices.append(message)
            case _:
                others.append(message)
    if len(messages) - len(others) < 2:
        return messages
    bundle = ReplicationBundle(
        tuple(requests), tuple(notices), tuple(acks), tuple(questions), tuple(answers)
    )
    return [bundle, *others]
