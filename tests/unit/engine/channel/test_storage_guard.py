"""A disk that hangs, by itself: what is reported, what is refused, and what may still leave
(S0.4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.storage_guard import CATALOG_BYTES, StorageGuard
from raftstore.errors import OverloadedError
from raftstore.protocol.election import TransferNow
from raftstore.protocol.message import Message
from raftstore.types import NodeId, Term, channel_id

ME, PEER = NodeId("n1@00"), NodeId("n2@00")
LIMIT = 100


class Bench:
    """A guard over a log of which the test says how much is not on the disk."""

    def __init__(self) -> None:
        self.unsynced = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.outbox = SimpleNamespace(is_stalled=False, dropped=3)
        log: Any = SimpleNamespace(unsynced_bytes=lambda: self.unsynced)
        outbox: Any = self.outbox
        self.space: Any = SimpleNamespace(is_exhausted=False, is_near=False, refusal=lambda: None)
        self.guard = StorageGuard(
            ME,
            log,
            outbox,
            self._tell,
            unsynced_bytes_max=LIMIT,
            space=self.space,
            stall=lambda: None,
        )

    def _tell(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def stall(self, reason: str | None) -> None:
        """The disk hangs, or goes on."""
        told: Any = SimpleNamespace(describe=lambda node: f"{reason} of {node}")
        self.guard.changed(None if reason is None else told)


def test_disk_that_hangs_and_goes_on_is_told_once_each() -> None:
    """With the same reason; what was dropped meanwhile is reported at the end."""
    bench = Bench()
    bench.stall(None)
    assert bench.events == []
    bench.stall("the sync")
    assert bench.guard.reason == "the sync of n1"
    assert bench.outbox.is_stalled
    bench.stall(None)
    assert bench.guard.reason is None
    assert not bench.outbox.is_stalled
    bench.stall(None)
    assert bench.events == [
        ("storage_stalled", {"reason": "the sync of n1"}),
        ("storage_resumed", {"reason": "the sync of n1", "dropped_messages": 3}),
    ]


@pytest.mark.parametrize(
    ("held", "more", "is_refused"),
    [(0, LIMIT + 1, False), (1, LIMIT - 1, False), (1, LIMIT, True), (LIMIT, 0, False),
     (LIMIT + 1, 0, True)],
)  # fmt: skip
def test_bytes_that_are_not_on_the_disk_are_bounded(held: int, more: int, is_refused: bool) -> None:
    """S0.4: up to the limit; one payload above it is taken when nothing waits, else none would."""
    bench = Bench()
    bench.unsynced = held
    refusal = bench.guard.refusal(more)
    assert (refusal is not None) is is_refused


def test_refusal_says_why_the_disk_is_behind() -> None:
    """The reason if it hangs; else it is busy, and a retry helps."""
    bench = Bench()
    bench.unsynced = LIMIT + 1
    text = "101 of 100 bytes are not on the disk of n1 yet"
    assert bench.guard.refusal(0) == (OverloadedError, f"{text}; retry later")
    bench.stall("the sync")
    assert bench.guard.refusal(0) == (OverloadedError, f"{text}; the sync of n1")


# --- what waits for the disk ----------------------------------------------------------------------


class Lanes:
    """An outbox over a log that is durable up to operation 5 of 9."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, NodeId, Message]] = []
        log: Any = SimpleNamespace(durable_operation=lambda: 5, last_operation=lambda: 9)
        transport: Any = SimpleNamespace(
            send=lambda to, message: self.sent.append(("bulk", to, message)),
            send_control=lambda to, message: self.sent.append(("control", to, message)),
        )
        self.outbox = Outbox(log, transport)


FIRST, SECOND, THIRD = (TransferNow(channel_id(b"t" * 16, 0), Term(term)) for term in (1, 2, 3))


def test_message_waits_for_its_operation_and_elections_leave_before_records() -> None:
    """S0.5: each lane in its order."""
    lanes = Lanes()
    lanes.outbox.send(PEER, FIRST, after_operation=5)
    assert lanes.sent == [("bulk", PEER, FIRST)]
    lanes.outbox.send(PEER, FIRST, after_operation=6)
    lanes.outbox.send_known(PEER, SECOND)
    assert lanes.outbox.waiting == 2
    lanes.outbox.release(5)
    assert lanes.outbox.waiting == 2
    lanes.sent.clear()
    lanes.outbox.release(9)
    assert lanes.sent == [("control", PEER, SECOND), ("bulk", PEER, FIRST)]
    assert lanes.outbox.waiting == 0


def test_term_is_told_when_it_is_durable_whatever_else_waits() -> None:
    """S0.4: a leader whose disk hangs gives its leadership away all the same; one whose term is
    not durable yet says nothing (S0.5)."""
    lanes = Lanes()
    lanes.outbox.send_known(PEER, FIRST)
    lanes.outbox.send_term(PEER, SECOND, term_operation=5)
    assert lanes.sent == [("control", PEER, SECOND)]
    lanes.outbox.send_term(PEER, THIRD, term_operation=6)
    assert len(lanes.sent) == 1
    lanes.outbox.release(9)
    assert [message for _, _, message in lanes.sent] == [SECOND, FIRST, THIRD]


def test_messages_that_would_wait_while_the_disk_hangs_are_dropped_and_counted() -> None:
    """S0.4: memory stays bounded; they are said again."""
    lanes = Lanes()
    lanes.outbox.is_stalled = True
    for _ in range(2):
        lanes.outbox.send(PEER, FIRST, after_operation=6)
    lanes.outbox.send(PEER, SECOND, after_operation=5)
    assert (lanes.outbox.waiting, lanes.outbox.dropped) == (0, 2)
    assert lanes.sent == [("bulk", PEER, SECOND)]


def test_catalog_is_taken_below_the_second_mark_while_it_fits() -> None:
    """Removing a table frees space; a disk that is full would end the node (GAP-13, S0.4)."""
    bench = Bench()
    assert bench.guard.takes_records(is_catalog=False)
    bench.space.is_exhausted = True
    claimed: list[int] = []
    bench.space.claim = lambda more: claimed.append(more) or len(claimed) == 1
    assert not bench.guard.takes_records(is_catalog=False)
    assert claimed == []
    assert bench.guard.takes_records(is_catalog=True)
    assert not bench.guard.takes_records(is_catalog=True)
    assert claimed == [CATALOG_BYTES, CATALOG_BYTES]
