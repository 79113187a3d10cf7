"""Requests of clients by themselves: each to the part that answers it, and what is refused here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.reports.events import EVENTS_MAX, EventRing
from raftstore.engine.request_handler import RequestHandler
from raftstore.errors import LagExceededError, OverloadedError, Refusal, StoreTooOldError
from raftstore.protocol.admin import (
    ClusterInfo,
    ClusterView,
    ContentHash,
    CreateTable,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    Metrics,
    MetricsAnswer,
    SeenHeartbeat,
    SeenLags,
    Status,
    StatusAnswer,
    StepDown,
)
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.reads import Get
from raftstore.protocol.replica_checks import HashHistory, HashRange, PinState, RowExpiries
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.types import (
    SEQ_MAX,
    ChannelId,
    NodeId,
    RecordKind,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
)

ME = NodeId("n1@" + "1" * 32)
OTHER = NodeId("n2@" + "2" * 32)
UUID = b"orders-table-id!"
CHANNEL = channel_id(UUID, 0)
CATALOG = channel_id(b"the-catalogs-id!", 0)
STRANGER = channel_id(b"another-tables-!", 0)
REMOVED = channel_id(b"another-tables-!", 1)
CLIENT = 5
NOW_MS = 700


class Bench:
    """A node that hosts one partition and the catalog; every part notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[tuple[int, Message]] = []
        self.hint: NodeId | None = ME
        self.kind_refusal: Refusal | None = None
        self.lag_refusal: Refusal | None = None
        self.room_refusal: Refusal | None = None
        self.full_refusal: Refusal | None = None
        self.step_down_refusal: str | None = None
        self.awaits = True
        self.runner = self._runner(CHANNEL, "orders/0")
        self.catalog_runner = self._runner(CATALOG, "_metadata/0")
        self.table = SimpleNamespace(uuid=UUID, partitions=2, max_replica_lag=30)
        self.active = ActiveChannels()
        self.ring = EventRing()
        self.positions = SimpleNamespace(on_heartbeat=self._noted("heartbeat"))
        self.positions.on_positions = self._noted("positions")
        me: Any = self
        self.commands = self
        self.reports = self.http_reports = me
        self.handler = RequestHandler(self._parts(), self.active, me, me, me, me, self._tell)

    def _parts(self) -> Any:
        catalog = SimpleNamespace(tables={"orders": self.table}, table_of=self._table_of)
        controller = SimpleNamespace(
            metadata_channel=CATALOG,
            catalog=catalog,
            commands=self,
            refusal_of=self._refusal_of,
            quorum_room=SimpleNamespace(write_refusal=lambda _config_of: self.full_refusal),
            hosting=SimpleNamespace(last_term={REMOVED: Term(4)}.get),
            endpoints=lambda: {ME: "host-a:7100", OTHER: "host-b:7100"},
        )
        watch = SimpleNamespace(
            http_reports=self.positions,
            peer_of={"n2": OTHER}.get,
            reports=SimpleNamespace(http_of={ME: "host-a:7200", OTHER: "host-b:7200"}),
        )
        return SimpleNamespace(
            me=ME,
            channels={CHANNEL: self.runner, CATALOG: self.catalog_runner},
            controller=controller,
            watch=watch,
            lag_guard=SimpleNamespace(refusal=self._lag_of),
            step_downs=SimpleNamespace(refusal=self._step_down_of),
            ring=self.ring,
            audit=SimpleNamespace(on_report=self._noted("audit")),
            healing=SimpleNamespace(checks=SimpleNamespace(on_request=self._noted("check"))),
            leaders=SimpleNamespace(given_away=SimpleNamespace(asked=self._noted("given away"))),
        )

    def _runner(self, channel: Any, name: str) -> Any:
        return SimpleNamespace(
            channel=channel,
            name=name,
            table_settings=DEFAULT_SETTINGS,
            commands=None,
            elector=SimpleNamespace(role=Role.LEADER, leader=ME),
            config=None,
            on_publish=lambda *of, refusal: self.calls.append(("publish", name, *of, refusal)),
            reject=self._noted("reject"),
            request_hand_over=self._noted("hand over"),
        )

    def _noted(self, name: str) -> Any:
        return lambda *of: self.calls.append((name, *of))

    # --- what the handler works with --------------------------------------------------------------

    def _tell(self, name: str, **fields: object) -> None:
        self.calls.append((name, fields))

    def _table_of(self, channel: Any) -> Any:
        return self.table if channel == CHANNEL else None

    def _refusal_of(self, kind: RecordKind) -> Refusal | None:
        assert kind is RecordKind.ROWS
        return self.kind_refusal

    def _lag_of(self, runner: Any, rows: int, now_ms: int) -> Refusal | None:
        assert (runner, rows, now_ms) == (self.runner, 30, NOW_MS)
        return self.lag_refusal

    def _step_down_of(self, *of: Any) -> str | None:
        assert of == (CHANNEL, "orders/0", CLIENT, NOW_MS)
        return self.step_down_refusal

    def begin(self, client: int, message: PubMsg) -> Refusal | None:
        """Room for the write."""
        self.calls.append(("begin", client, message))
        return self.room_refusal

    def settled(self, client: int, message: PubMsg) -> None:
        """Its room is given back."""
        self.calls.append(("settled", client, message))

    def answer(self, client: int, message: Any) -> None:
        """An answer to a request."""
        self.answers.append((client, message))

    reply = answer

    def await_step_down(self, *of: Any) -> bool:
        """A client waits for a hand-over."""
        self.calls.append(("await", *of))
        return self.awaits

    def on_request(self, *of: Any) -> None:
        """A content hash."""
        self.calls.append(("hash", *of))

    def on_create_table(self, *of: Any) -> None:
        """A table."""
        self.calls.append(("create", *of))

    def on_drop_table(self, *of: Any) -> None:
        """No table."""
        self.calls.append(("drop", *of))

    def on_edit_table(self, *of: Any) -> None:
        """Another table."""
        self.calls.append(("edit", *of))

    @property
    def cluster_info(self) -> Any:
        """The report of the catalog."""
        return SimpleNamespace(answer=lambda message, now_ms: ("info", message, now_ms))

    @property
    def views(self) -> Any:
        """The report of the cluster."""
        return SimpleNamespace(answer=lambda message, now_ms: ("view", message, now_ms))

    def status(self) -> dict[str, Any]:
        """The report of the node."""
        return {"name": "n1"}

    def metrics(self) -> Any:
        """The counters of the node."""
        return (("writes", (), 1.0),), ()

    # --- asking -----------------------------------------------------------------------------------

    def publish(self, message: PubMsg) -> list[tuple[Any, ...]]:
        """Calls that a write leads to."""
        self.handler.on_publish(CLIENT, message, NOW_MS)
        return self.calls

    def ask(self, request: Any) -> Any:
        """The answer to a request; None: there was none."""
        self.handler.on_request(CLIENT, request, NOW_MS)
        if not self.answers:
            return None
        [(client, answer)] = self.answers
        self.answers.clear()
        assert client == CLIENT
        return answer

    def refused(self, request: Any) -> tuple[int, str, str]:
        """The request's number, the code and the text of a refusal."""
        answer = self.ask(request)
        assert isinstance(answer, Failed)
        return answer.request_id, answer.code, answer.message


def write(channel: ChannelId = CHANNEL, leader: NodeId = ME) -> PubMsg:
    """A write of one row."""
    return PubMsg(
        channel, Term(3), leader, make_guid(b"session!", 1), b"d" * 16, 1, RecordKind.ROWS, b"x",
        attempt=2,
    )  # fmt: skip


# --- writes ---------------------------------------------------------------------------------------


def test_write_goes_to_its_channel_with_room_taken_for_it() -> None:
    """The channel is looked at again at the end of the turn."""
    bench, message = Bench(), write()
    assert bench.publish(message) == [
        ("begin", CLIENT, message),
        ("publish", "orders/0", CLIENT, message, NOW_MS, None),
    ]
    assert list(bench.active.touched) == [CHANNEL]


@pytest.mark.parametrize("which", ["kind_refusal", "lag_refusal", "room_refusal"])
def test_first_reason_against_a_write_goes_to_its_channel(which: str) -> None:
    """S9: the core says whether it still counts; a write that is refused takes no room."""
    bench, message = Bench(), write()
    refusal = Refusal(OverloadedError, "no")
    setattr(bench, which, refusal)
    *before, told = bench.publish(message)
    assert told == ("publish", "orders/0", CLIENT, message, NOW_MS, refusal)
    assert len(before) == (which == "room_refusal")


def test_kind_that_is_too_new_counts_before_the_lag() -> None:
    """One refusal: the one that is not over in a moment."""
    bench = Bench()
    bench.kind_refusal = Refusal(StoreTooOldError, "upgrade")
    bench.lag_refusal = Refusal(LagExceededError, "later")
    [(*_, refusal)] = bench.publish(write())
    assert refusal is bench.kind_refusal


def test_copy_of_a_write_to_another_leader_is_judged_there() -> None:
    """This node keeps the payload for the leader, and neither refuses nor answers it."""
    bench, message = Bench(), write(leader=OTHER)
    bench.kind_refusal = Refusal(StoreTooOldError, "upgrade")
    told = ("publish", "orders/0", CLIENT, message, NOW_MS, None)
    assert bench.publish(message) == [told]
    copy = write(CATALOG, OTHER)
    assert bench.publish(copy) == [told, ("publish", "_metadata/0", CLIENT, copy, NOW_MS, None)]


def test_write_to_a_channel_without_a_table_has_no_bound_of_lag() -> None:
    """Its table may have been dropped while the channel closes."""
    bench, message = Bench(), write()
    bench.lag_refusal = Refusal(LagExceededError, "later")
    bench.handler._controller.catalog.table_of = lambda _: None  # type: ignore[method-assign,assignment]
    assert bench.publish(message)[-1] == ("publish", "orders/0", CLIENT, message, NOW_MS, None)


def test_write_to_the_catalog_is_rejected_before_anything_is_counted() -> None:
    """The catalog is changed by table commands only."""
    bench, message = Bench(), write(CATALOG)
    [(name, client, told, error, text)] = bench.publish(message)
    assert (name, client, told, error.code) == ("reject", CLIENT, message, "schema")
    assert text == "the catalog is changed by table commands only"
    assert not bench.active.touched


def test_write_for_a_channel_that_is_not_here_is_refused_by_its_leader_alone() -> None:
    """Each replica gets a copy; the one that it is addressed to answers."""
    bench = Bench()
    assert bench.publish(write(STRANGER, OTHER)) == []
    assert bench.answers == []
    message = write(STRANGER)
    assert bench.publish(message) == []
    text = "this node does not host the channel"
    rejected = PubReject(STRANGER, Term(3), message.guid, "unknown_channel", text, attempt=2)
    assert bench.answers == [(CLIENT, rejected)]
    assert not bench.active.touched


@pytest.mark.parametrize(("term", "code"), [(4, "leadership_lost"), (5, "unknown_channel")])
def test_b5_write_for_a_replica_that_was_removed_is_in_doubt(term: int, code: str) -> None:
    """S4.1: a first copy of it may have been sequenced here before, in a term that it was in."""
    bench = Bench()
    message = msgspec.structs.replace(write(REMOVED), term=Term(term))
    assert bench.publish(message) == []
    ((client, rejected),) = bench.answers
    assert (client, rejected.code, rejected.attempt) == (CLIENT, code, 2)


# --- requests -------------------------------------------------------------------------------------

CREATE = CreateTable(1, "t", ("k",), 1, 3, "fsync", None, "", False, 100)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (ContentHash(1, CHANNEL), "hash"),
        (PinState(1, CHANNEL, Seq(9), 100), "check"),
        (HashRange(1, CHANNEL, 5, b"", b"", 10, 100), "check"),
        (HashHistory(1, CHANNEL, Seq(9), 100), "check"),
        (RowExpiries(1, CHANNEL, 5, b"", b"", 100), "check"),
        (CREATE, "create"),
        (DropTable(1, "t", 100), "drop"),
        (EditTable(1, "t", UUID, {}, 100), "edit"),
    ],
)
def test_request_goes_to_the_part_that_answers_it(request_: Any, part: str) -> None:
    """With its client and the time."""
    bench = Bench()
    assert bench.ask(request_) is None
    assert bench.calls == [(part, CLIENT, request_, NOW_MS)]


def test_reports_are_answered_at_once() -> None:
    """Each with the number of its request."""
    bench = Bench()
    info, view = ClusterInfo(1), ClusterView(2)
    assert bench.ask(info) == ("info", info, NOW_MS)
    assert bench.ask(view) == ("view", view, NOW_MS)
    assert bench.ask(Status(3)) == StatusAnswer(3, {"name": "n1"})
    assert bench.ask(Metrics(4)) == MetricsAnswer(4, (("writes", (), 1.0),), ())


def test_events_are_told_from_a_number_on_with_the_next_one() -> None:
    """At most so many as were asked for, and never more than are kept."""
    bench = Bench()
    for term in range(5):
        bench.ring.add("role" if term % 2 else "mode", {"term": term}, 10)
    answer = bench.ask(Events(6, since=1, types=("role",), limit=1))
    event = {"number": 2, "type": "role", "at_wall_ms": 10, "term": 1}
    assert answer == EventsAnswer(6, ME, 2, (event,))
    asked: list[int] = []

    def since(number: int, types: Any, limit: int) -> Any:
        asked.append(limit)
        return number, ()

    bench.ring.since = since  # type: ignore[method-assign]
    bench.ask(Events(7, limit=EVENTS_MAX + 1))
    assert asked == [EVENTS_MAX]


def test_request_of_an_unknown_kind_is_told_and_refused() -> None:
    """The operator finds the client in the events."""
    bench = Bench()
    get: Any = Get(7, CHANNEL, (b"k",), "any", None, Seq(0), 100)
    number, code, text = bench.refused(get)
    assert (number, code) == (7, "unsupported_request")
    assert text == ("this node answers no Get; install the same raftstore version on both sides")
    assert bench.calls == [("unexpected_message", {"client": CLIENT, "kind": "Get"})]


# --- hand-overs -----------------------------------------------------------------------------------


def test_hand_over_is_awaited_before_it_is_asked_for() -> None:
    """It may be refused, or be over, within the call."""
    bench, request = Bench(), StepDown(8, CHANNEL, OTHER)
    assert bench.ask(request) is None
    assert bench.calls == [
        ("await", CLIENT, request, bench.runner, NOW_MS),
        ("given away", bench.runner, NOW_MS + request.timeout_ms),
        ("hand over", OTHER, "asked by an operator", NOW_MS),
    ]
    assert list(bench.active.touched) == [CHANNEL]


def test_hand_over_that_nobody_can_wait_for_is_not_begun() -> None:
    """The client was informed that nothing was done."""
    bench = Bench()
    bench.awaits = False
    bench.ask(StepDown(8, CHANNEL))
    assert [name for name, *_ in bench.calls] == ["await"]


def test_hand_over_too_soon_after_another_is_refused_with_the_reason() -> None:
    """Before anybody waits for it."""
    bench = Bench()
    bench.step_down_refusal = "wait a second"
    assert bench.refused(StepDown(8, CHANNEL)) == (8, "overloaded", "wait a second")
    assert (bench.calls, bench.active.touched) == ([], {})


def test_hand_over_by_a_node_that_does_not_lead_names_the_leader() -> None:
    """None is known where the channel is not hosted."""
    bench = Bench()
    bench.runner.elector = SimpleNamespace(role=Role.FOLLOWER, leader=OTHER)
    text = "this node does not lead the channel"
    assert bench.ask(StepDown(8, CHANNEL)) == Failed(8, "not_leader", text, OTHER, {})
    assert bench.ask(StepDown(9, STRANGER)) == Failed(9, "not_leader", text, None, {})
    assert bench.calls == []


# --- what comes over HTTP -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n2", "host-b:7100", "host-b:7200"])
def test_node_of_a_report_is_known_by_name_and_by_each_address(name: str) -> None:
    """KLIP-19: of the interface for nodes and of the one for HTTP."""
    bench = Bench()
    assert bench.ask(SeenHeartbeat(10, name, 1)) == Done(10)
    assert bench.ask(SeenLags(11, name, 1, (("orders", 1, Seq(4), Seq(9)),))) == Done(11)
    said = [(channel_id(UUID, 1), 4, 9)]
    assert bench.calls == [("heartbeat", OTHER, NOW_MS), ("positions", OTHER, said, NOW_MS)]


def test_report_of_a_stranger_is_refused_and_counts_for_nobody() -> None:
    """The text names what was given, and where the names are."""
    bench = Bench()
    text = "node 'host-c:7100' is not of this cluster; `raftstore status` lists its nodes"
    assert bench.refused(SeenHeartbeat(10, "host-c:7100", 1)) == (10, "schema", text)
    assert bench.refused(SeenLags(11, "host-c:7100", 1, ())) == (11, "schema", text)
    assert bench.calls == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (("orders", -1, Seq(0), Seq(0)), "unknown_table"),
        (("orders", 2, Seq(0), Seq(0)), "unknown_table"),
        (("others", 0, Seq(0), Seq(0)), "unknown_table"),
        (("orders", 0, Seq(-1), Seq(0)), "schema"),
        (("orders", 0, Seq(SEQ_MAX + 1), Seq(0)), "schema"),
        (("orders", 0, Seq(0), Seq(-1)), "schema"),
        (("orders", 0, Seq(0), Seq(SEQ_MAX + 1)), "schema"),
    ],
)
def test_one_wrong_position_refuses_the_whole_report(said: Any, code: str) -> None:
    """KLIP-35: all of it counts, or nothing."""
    bench = Bench()
    right = ("orders", 0, Seq(0), Seq(SEQ_MAX))
    number, told, text = bench.refused(SeenLags(12, "n2", 1, (right, said)))
    assert (number, told) == (12, code)
    assert said[0] in text
    assert bench.calls == []
    assert bench.ask(SeenLags(12, "n2", 1, (right,))) == Done(12)


def test_positions_reach_from_nothing_to_the_last_seq() -> None:
    """The ends of the range are positions, too."""
    bench = Bench()
    lags = (("orders", 0, Seq(SEQ_MAX), Seq(0)), ("orders", 1, Seq(0), Seq(SEQ_MAX)))
    assert bench.ask(SeenLags(12, "n2", 1, lags)) == Done(12)


def test_report_of_a_clients_audit_goes_to_the_audit_and_is_done() -> None:
    """N7."""
    bench = Bench()
    report = ReportViolation(11, "stale_read", "orders/0", "a text", "[]")
    assert bench.ask(report) == Done(11)
    assert bench.calls == [("audit", report, NOW_MS)]
