"""The inbox of clients by itself: who gets which message, for how long, and what ends with one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import ATTEMPT_TTL_MS_MAX
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.client_inbox import ClientInbox
from raftstore.engine.meters import Meters
from raftstore.protocol.admin import Status, StepDown
from raftstore.protocol.batches import BeginBatch
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg, WriteFate
from raftstore.protocol.reads import (
    ChannelKeys,
    ClosePin,
    Count,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    RefusedKeys,
    Scan,
    Served,
)
from raftstore.types import NodeId, RecordKind, Seq, Term, channel_id, make_guid

ME = NodeId("n1@" + "1" * 32)
OTHER = NodeId("n2@" + "2" * 32)
CHANNEL = channel_id(b"orders-table-id!", 0)
STRANGER = channel_id(b"another-tables-!", 0)
CLIENT = 5
NOW_MS = 700
TIMEOUT_MAX_MS = 1_000
GUID = make_guid(b"session!", 1)


class Bench:
    """A node whose parts note what the inbox gives them; ``held`` is what each holds."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[tuple[int, Message]] = []
        self.ended: list[tuple[int, str]] = []
        self.held: dict[str, int] = {}
        self.error: Exception | None = None
        self.audited: list[tuple[Any, ...]] = []
        self.audit_forgot: list[int] = []
        self.active = ActiveChannels()
        self.meters = Meters()
        self.channels: Any = {CHANNEL: "orders/0"}
        reader = self._part("reader")
        reader.many = self._part("many")
        reader.write_outcomes = self._part("outcomes")
        reader.scans = self._part("scans")
        parts: Any = SimpleNamespace(
            me=ME,
            channels=self.channels,
            reader=reader,
            batches=self._part("batches"),
            healing=SimpleNamespace(checks=self._part("checks")),
            controller=SimpleNamespace(commands=self._part("commands")),
            meters=self.meters,
            audit=SimpleNamespace(
                read_began=lambda *of: self.audited.append(of), client_gone=self.audit_forgot.append
            ),
            settings=SimpleNamespace(
                transport=SimpleNamespace(request_timeout_max_ms=TIMEOUT_MAX_MS)
            ),
        )
        answers: Any = SimpleNamespace(answer=lambda *of: self.answers.append(of))
        self.inbox = ClientInbox(
            parts,
            self.active,
            answers,
            self._part("writes"),
            self._part("hashes"),
            self._requests(),
            lambda *of: self.ended.append(of),
            lambda name, **fields: self.calls.append((name, fields)),
        )

    def _requests(self) -> Any:
        requests = self._part("requests")
        requests.checkpoints = self._part("checkpoints")
        return requests

    def _part(self, name: str) -> Any:
        def noted(what: str) -> Any:
            def call(*of: Any) -> None:
                self.calls.append((f"{name}.{what}", *of))
                if self.error is not None:
                    raise self.error

            return call

        def amount_of(client: int) -> int:
            assert client == CLIENT
            return self.held.get(name, 0)

        shares = SimpleNamespace(amount_of=amount_of)
        return SimpleNamespace(
            on_request=noted("on_request"),
            on_publish=noted("on_publish"),
            on_close_pin=noted("on_close_pin"),
            on_client_gone=lambda client: self.calls.append((f"{name}.on_client_gone", client)),
            holds_for=lambda client: amount_of(client) > 0,
            waiting=SimpleNamespace(shares=shares),
            held=shares,
        )

    def take(self, message: Any) -> tuple[Any, ...]:
        """Where the message comes to, and with what."""
        self.inbox.on_message(CLIENT, message, NOW_MS)
        [call] = self.calls
        self.calls.clear()
        return call

    def totals(self) -> dict[str, float]:
        """Totals of the meters, by name and the values of the labels."""
        samples = self.meters.samples()
        return {" ".join((name, *(value for _, value in of))): total for name, of, total in samples}

    def timed(self, what: str) -> tuple[int, float]:
        """How many were timed and the seconds of all together."""
        shown = [each for each in self.meters.histograms() if each[0] == what]
        return sum(count for *_, count in shown), sum(seconds for *_, seconds, _ in shown)


def get(level: str = "any", timeout_ms: int = 100, request_id: int = 7) -> Get:
    """A read of one key."""
    return Get(request_id, CHANNEL, (b"k",), level, None, Seq(0), timeout_ms)


def scan(timeout_ms: int = 100) -> Scan:
    """A page of all rows."""
    return Scan(8, CHANNEL, b"", b"", 10, "leader", None, Seq(0), timeout_ms)


def count() -> Count:
    """A count of all rows."""
    return Count(9, CHANNEL, b"", b"", "bounded", None, Seq(0), 100)


def get_many(parts: int = 1) -> GetMany:
    """A read of as many channels."""
    return GetMany(10, (ChannelKeys(CHANNEL, (b"k",)),) * parts, "any", None, 100)


def begin_batch(ttl_ms: int) -> BeginBatch:
    """An attempt at a batch by a writer that waits for ever."""
    return BeginBatch(1, CHANNEL, "w", 1, b"u" * 16, "l", False, ttl_ms, 2**31)


def write(leader: NodeId = ME) -> PubMsg:
    """A write of one row."""
    return PubMsg(CHANNEL, Term(3), leader, GUID, b"d" * 16, 1, RecordKind.ROWS, b"x")


def served(staleness_ms: int | None = None, lag: int | None = None) -> Served:
    """How fresh an answer was."""
    return Served(ME, CHANNEL, Term(3), Seq(4), lag, None, "any", staleness_ms)


def ack() -> PubAck:
    """The write is committed."""
    return PubAck(CHANNEL, Term(3), GUID, Seq(4), Seq(4), Term(3), "fsync", 2)


# --- who gets it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [get(), scan(), count()])
def test_read_goes_to_the_reader_with_its_channel(read: Any) -> None:
    """None for a channel that is not here: the reader says so."""
    bench = Bench()
    assert bench.take(read) == ("reader.on_request", CLIENT, read, "orders/0", NOW_MS)
    bench.channels.clear()
    assert bench.take(read) == ("reader.on_request", CLIENT, read, None, NOW_MS)


def test_every_other_request_goes_to_the_part_that_answers_it() -> None:
    """With its client and the time."""
    bench = Bench()
    many, begin, pin = (
        get_many(),
        begin_batch(ttl_ms=5),
        ClosePin(2, CHANNEL, 3),
    )
    fate, status, message = WriteFate(4, CHANNEL, GUID, 100), Status(5), write(OTHER)
    assert bench.take(many) == ("many.on_request", CLIENT, many, bench.channels, NOW_MS)
    kept = msgspec.structs.replace(begin, timeout_ms=TIMEOUT_MAX_MS)
    assert bench.take(begin) == ("batches.on_request", CLIENT, kept, NOW_MS)
    assert bench.take(pin) == ("scans.on_close_pin", CLIENT, pin)
    assert bench.take(fate) == ("outcomes.on_request", CLIENT, fate, "orders/0", NOW_MS)
    assert bench.take(status) == ("requests.on_request", CLIENT, status, NOW_MS)
    assert bench.take(message) == ("requests.on_publish", CLIENT, message, NOW_MS)


def test_client_waits_at_most_as_long_as_the_node_lets_it() -> None:
    """A longer wait is cut, so all that is held has an end; a shorter one stays as it was."""
    bench = Bench()
    assert bench.take(get(timeout_ms=TIMEOUT_MAX_MS + 1))[2].timeout_ms == TIMEOUT_MAX_MS
    for fits in (get(timeout_ms=TIMEOUT_MAX_MS), scan(TIMEOUT_MAX_MS - 1)):
        assert bench.take(fits)[2] is fits
    assert bench.take(StepDown(1, CHANNEL, timeout_ms=5_000))[2].timeout_ms == TIMEOUT_MAX_MS


def test_attempt_of_a_writer_lives_at_most_a_week() -> None:
    """Its other time is that of any request."""
    bench = Bench()
    for asked, kept in ((5, 5), (ATTEMPT_TTL_MS_MAX + 1, ATTEMPT_TTL_MS_MAX)):
        _, _, message, _ = bench.take(begin_batch(asked))
        assert (message.ttl_ms, message.timeout_ms) == (kept, TIMEOUT_MAX_MS)


# --- what ends ------------------------------------------------------------------------------------


def test_client_that_is_gone_is_forgotten_everywhere() -> None:
    """All parts that hold anything for clients; its reads are timed no longer."""
    bench = Bench()
    bench.take(get())
    bench.inbox.on_gone(CLIENT)
    parts = ("reader", "batches", "hashes", "checks", "checkpoints", "commands", "writes")
    assert bench.calls == [(f"{part}.on_client_gone", CLIENT) for part in parts]
    assert (bench.meters._reads, bench.meters._reads_timed) == ({}, 0)


@pytest.mark.parametrize(
    "part", ["reader", "batches", "hashes", "checks", "checkpoints", "commands", "writes"]
)
def test_anything_under_way_is_held_for_the_client(part: str) -> None:
    """One part is enough."""
    bench = Bench()
    assert not bench.inbox.holds_for(CLIENT)
    bench.held[part] = 1
    assert bench.inbox.holds_for(CLIENT)


def test_value_that_nobody_judged_ends_its_client_and_not_the_node() -> None:
    """As long as nothing was done; the event says where it happened."""
    bench = Bench()
    bench.error = OverflowError("int too big")
    bench.inbox.on_message(CLIENT, get(), NOW_MS)
    text = "a value of this Get cannot be counted with (int too big); nothing was done"
    assert bench.answers == [(CLIENT, Failed(7, "schema", text, None, {}))]
    assert bench.ended == [(CLIENT, text)]
    _, (name, fields), *gone = bench.calls
    assert (name, fields["client"], fields["kind"]) == ("unexpected_message", CLIENT, "Get")
    assert fields["reason"] == "OverflowError('int too big')"
    assert fields["at"].startswith("test_client_inbox_alone.py:")
    assert gone[0] == ("reader.on_client_gone", CLIENT)
    assert len(gone) == 7


def test_value_that_fails_halfway_stops_the_node() -> None:
    """S0.4: something may have been done; of a write that is never known."""
    bench = Bench()
    bench.error = OverflowError("int too big")
    with pytest.raises(OverflowError):
        bench.inbox.on_message(CLIENT, write(), NOW_MS)
    bench.active.touch(CHANNEL)
    with pytest.raises(OverflowError):
        bench.inbox.on_message(CLIENT, get(), NOW_MS)
    assert (bench.answers, bench.ended) == ([], [])


def test_other_mistakes_stop_the_node_in_any_case() -> None:
    """They are about this node, not about what a client sent."""
    bench = Bench()
    bench.error = AssertionError("impossible")
    with pytest.raises(AssertionError):
        bench.inbox.on_message(CLIENT, get(), NOW_MS)
    assert bench.ended == []


# --- what is counted ------------------------------------------------------------------------------


def test_reads_are_timed_from_their_arrival() -> None:
    """By client and request; each part of a read of many channels counts."""
    bench = Bench()
    bench.take(get())
    bench.take(get_many(3))
    found = tuple(FoundKeys(part, (None,), (Seq(0),), served()) for part in range(2))
    refused = RefusedKeys(2, "unavailable", "later")
    bench.meters.answered(CLIENT, GetAnswer(7, (None,), (Seq(0),), served()), NOW_MS + 1_000)
    bench.meters.answered(CLIENT, GetManyAnswer(10, found, (refused,)), NOW_MS + 2_000)
    assert bench.totals() == {
        "raftstore_reads_total any ok": 3,
        "raftstore_reads_total any unavailable": 1,
    }
    assert bench.timed("raftstore_read_duration_seconds") == (4, 7.0)


def test_write_is_timed_by_the_node_that_sequences_it() -> None:
    """Its copies to other replicas are no writes here."""
    bench = Bench()
    bench.take(write(OTHER))
    bench.meters.write_ended(ack(), NOW_MS + 1_000)
    assert bench.timed("raftstore_write_duration_seconds") == (0, 0.0)
    bench.take(write())
    bench.meters.write_ended(ack(), NOW_MS + 1_000)
    assert bench.timed("raftstore_write_duration_seconds") == (1, 1.0)


def test_reads_and_their_ends_reach_the_audit() -> None:
    """N7: it sees what clients see."""
    bench = Bench()
    read, many = get(), get_many()
    bench.take(read)
    bench.take(many)
    assert bench.audited == [
        (CLIENT, read, bench.channels, NOW_MS),
        (CLIENT, many, bench.channels, NOW_MS),
    ]
    bench.inbox.on_gone(CLIENT)
    assert bench.audit_forgot == [CLIENT]
