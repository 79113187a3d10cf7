"""Commands about nodes by themselves: which are proposed, which refused, how each is answered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import LEVEL
from raftstore.engine.catalog.node_commands import (
    TICKET_LIFETIME_MS_MAX,
    TICKETS_OPEN_MAX,
    NodeCommands,
)
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.policy.levels import REPLACED_ONCE_LEVEL
from raftstore.protocol.members import (
    AskJoin,
    Drain,
    Join,
    JoinAccepted,
    JoinNonce,
    MakeTicket,
    Retire,
)
from raftstore.protocol.message import Done
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.requests import MemberRequest
from raftstore.protocol.tickets import JoinClaim, join_proof, stored_key
from raftstore.record_machine import DictView, Row
from raftstore.rows.sealing import unseal
from raftstore.state_machines.catalog import Catalog, register_node_command
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT, REPLACED_ONCE_FORMAT
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.types import NO_GUID, NodeId, RecordKind, Role, Seq, Term, node_id
from tests.unit.engine.commands_bench import CLIENT, GUID, METADATA, Bench

N1, N2, N3, N4 = (node_id(f"n{number}", bytes([number] * 16)) for number in (1, 2, 3, 4))
N5 = node_id("n5", b"5" * 16)
NEW_N3 = node_id("n3", b"\x33" * 16)
CLUSTER, BOOT = b"the one cluster!", b"boot"
TICKET, OTHER, SECRET = b"t" * 16, b"o" * 16, bytes(range(32))
HOUR_MS = 3_600_000
FOUNDERS = ((N1, "h1:1"), (N2, "h2:1"), (N3, "h3:1"))


class NodeBench(Bench):
    """The leader of a metadata channel whose commands are applied by the real machine."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, Row] = {}
        self.up = {N1, N2, N3}
        self.wall = 1_000_000
        self.name = "_metadata/0"
        self.voters: tuple[NodeId, ...] = ()
        self.older: NodeId | None = None
        self.once_refusal: Refusal | None = None
        self.core.config = lambda: SimpleNamespace(voters=self.voters)
        self.core.last_timestamp_ms = 0
        self.elector = SimpleNamespace(role=Role.LEADER, leader=N1)
        self.seq = 0
        self.told: list[tuple[str, dict[str, object]]] = []
        for node, endpoint in FOUNDERS:
            self.apply(register_node_command(node, endpoint, 6))
        me: Any = self
        identity: Any = SimpleNamespace(boot_id=BOOT, cluster_id=CLUSTER, members=FOUNDERS)
        self.nodes = NodeCommands(
            identity, self.commands, me, me, lambda: self.wall, self.up.__contains__, self.tell
        )

    def tell(self, name: str, **fields: object) -> None:
        """A log line."""
        self.told.append((name, fields))

    def set_up(self, nodes: set[NodeId]) -> None:
        """These nodes are up, and no others."""
        self.up.clear()
        self.up |= nodes

    def apply(self, payload: bytes) -> bool:
        """Commit and apply a command; whether it was a conflict."""
        self.seq += 1
        kind = RecordKind.COMMAND
        time_ms = self.core.last_timestamp_ms = max(self.wall, self.core.last_timestamp_ms + 1)
        record = Record(Term(1), Seq(self.seq), 1, NO_GUID, time_ms, bytes(16), kind, payload)
        result = CatalogMachine().apply(record, DictView(self.rows))
        for key, sealed in tuple(result.writes):
            if sealed is None:
                del self.rows[key]
            else:
                self.rows[key] = Row(key, unseal(key, sealed), Seq(self.seq))
        rows = ((row.key, row.value, row.seq) for row in self.rows.values())
        tables = self.catalog.tables
        self.catalog = Catalog.from_rows(rows, self.seq)
        if self.seq > len(FOUNDERS):
            self.catalog.tables.update(tables)
        return result.conflict_seq is not None

    def refusal_of_format(self, number: int, gone: NodeId | None = None) -> Refusal | None:
        """Some node may be too old."""
        if number == REPLACED_ONCE_FORMAT:
            return self.once_refusal
        assert number == MEMBERS_FORMAT
        return None if gone is not None and gone == self.older else self.format_refusal

    def endpoints(self) -> dict[NodeId, str]:
        """Where nodes are."""
        return {entry.node: entry.endpoint for entry in self.catalog.nodes.values()}

    def ask(self, request: MemberRequest) -> Any:
        """Ask, have the log do its part, and return the answer."""
        self.nodes.on_request(CLIENT, request, 1_000)
        if self.commands_proposed:
            self.commit_proposed()
        return self.take()

    def commit_proposed(self) -> None:
        """The log commits what was proposed."""
        conflict = self.apply(self.commands_proposed.pop())
        ack = PubAck(METADATA, Term(3), GUID, Seq(5), Seq(5), Term(3), "fsync", 2, conflict)
        self.outcomes.pop()(ack, 1_010)

    def ticket(self, ticket: bytes = TICKET, **changes: Any) -> Any:
        """Ask for a ticket of an hour."""
        request = MakeTicket(1, ticket, stored_key(SECRET), HOUR_MS, 100)
        return self.ask(msgspec.structs.replace(request, **changes))

    def joining(
        self,
        node: NodeId = N4,
        secret: bytes = SECRET,
        *,
        by: bytes = TICKET,
        at_level: int = LEVEL,
        **changes: Any,
    ) -> Join:
        """The request of a new node that has asked for its nonce."""
        self.nodes.on_request(CLIENT, AskJoin(1), 1_000)
        nonce = self.take()
        assert isinstance(nonce, JoinNonce)
        claim = JoinClaim(CLUSTER, by, node, "h4:1", at_level, nonce.nonce)
        request = Join(2, by, node, "h4:1", at_level, join_proof(secret, claim), 100)
        return msgspec.structs.replace(request, **changes)


@pytest.fixture
def bench() -> NodeBench:
    """Three founders, all up, and one table with a replica on each node of ``commands_bench``."""
    return NodeBench()


REQUESTS: tuple[MemberRequest, ...] = (
    MakeTicket(1, TICKET, stored_key(SECRET), HOUR_MS, 100),
    Join(1, TICKET, N4, "h4:1", 6, bytes(32), 100),
    Drain(1, "n1", drains=True, timeout_ms=100),
    Retire(1, "n1", 100),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_command_at_another_node_is_sent_to_the_leader(
    bench: NodeBench, request_: MemberRequest
) -> None:
    """Joining is decided where the catalog is led (S1.9)."""
    bench.elector = SimpleNamespace(role=Role.FOLLOWER, leader=N2)
    failed = bench.ask(request_)
    assert (failed.code, failed.leader_hint) == ("not_leader", N2)


def test_node_joins_by_its_token_and_learns_where_the_others_are(bench: NodeBench) -> None:
    """M28: the cluster's founders, its nodes, and the number of the newcomer."""
    assert isinstance(bench.ticket(), Done)
    answer = bench.ask(bench.joining())
    assert isinstance(answer, JoinAccepted)
    assert answer.founders == FOUNDERS
    assert answer.nodes == (*FOUNDERS, (N4, "h4:1"))
    assert answer.number == answer.version == bench.seq
    assert bench.told == [("node_joined", {"joiner": N4, "endpoint": "h4:1"})]


def test_node_that_joined_gets_the_same_answer_again(bench: NodeBench) -> None:
    """B6: the first answer may be lost, and the ticket expire before it asks again."""
    bench.ticket()
    first = bench.ask(bench.joining())
    bench.wall += 2 * HOUR_MS
    again = bench.ask(bench.joining())
    assert again.number == first.number


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"proof": bytes(32)}, "no such ticket"),
        ({"ticket": b"u" * 16}, "no such ticket"),
        ({"endpoint": "h5:1"}, "no such ticket"),
        ({"level": LEVEL - 1}, "no such ticket"),
    ],
)
def test_join_without_the_secret_is_refused(
    bench: NodeBench, change: dict[str, Any], why: str
) -> None:
    """A13: nothing of what was proven can be changed on the way, and an unknown ticket says no
    more than a wrong secret."""
    bench.ticket()
    failed = bench.ask(bench.joining(**change))
    assert failed.code == "join_refused"
    assert why in failed.message
    assert "n4" not in bench.catalog.nodes


def test_nonce_is_another_on_each_connection(bench: NodeBench) -> None:
    """A proof that somebody listened to is of no use on a connection of his own."""
    bench.ticket()
    request = bench.joining()
    bench.nodes.on_request(CLIENT + 1, request, 1_000)
    [(client, failed)] = bench.answers
    assert (client, failed.code) == (CLIENT + 1, "join_refused")


@pytest.mark.parametrize(
    "change", [{"node": NodeId("n4")}, {"node": NodeId("n4@" + "x" * 32)}, {"endpoint": "h4"}]
)
def test_join_under_no_id_or_address_is_refused(bench: NodeBench, change: dict[str, Any]) -> None:
    """It would be in every view for ever."""
    bench.ticket()
    assert bench.ask(bench.joining(**change)).code == "schema"


def _used(bench: NodeBench) -> Join:
    bench.ask(bench.joining())
    return bench.joining(node_id("n5", b"5" * 16))


def _expired(bench: NodeBench) -> Join:
    bench.wall += 2 * HOUR_MS
    return bench.joining()


@pytest.mark.parametrize(
    ("join", "why"),
    [
        (_used, f"was used by {N4}, and admits one node"),
        (_expired, "has expired; make a new one with `raftstore cluster token`"),
        (
            lambda bench: bench.joining(NEW_N3),
            f"has a node n3 already, {N3}; choose another --id and an empty --data-dir, or if "
            "that one's store is lost, make a token with `raftstore cluster token --replaces n3`",
        ),
        (lambda bench: bench.joining(N3), "has a node n3 already"),
    ],
)
def test_refused_node_is_told_the_remedy(
    bench: NodeBench, join: Callable[[NodeBench], Join], why: str
) -> None:
    """Each reason has its own."""
    bench.ticket()
    failed = bench.ask(join(bench))
    assert failed.code == "join_refused"
    assert why in failed.message


def test_ticket_lives_its_time_though_a_leader_before_had_a_clock_that_was_ahead(
    bench: NodeBench,
) -> None:
    """S10: the catalog judges by the time of its records, which never goes back: by the right clock
    alone such a ticket would have been refused for hours, as something to retry."""
    bench.core.last_timestamp_ms = bench.wall + 2 * HOUR_MS
    assert isinstance(bench.ticket(), Done)
    assert isinstance(bench.ask(bench.joining()), JoinAccepted)


def test_ticket_that_is_expired_by_the_log_alone_is_told_as_expired(bench: NodeBench) -> None:
    """Not as something that changed meanwhile."""
    bench.ticket()
    bench.core.last_timestamp_ms = bench.wall + 2 * HOUR_MS
    failed = bench.ask(bench.joining())
    assert failed.code == "join_refused"
    assert "has expired" in failed.message


def test_node_is_refused_while_some_node_is_too_old(bench: NodeBench) -> None:
    """It could not read who joins."""
    bench.format_refusal = Refusal(StoreTooOldError, "n2 is at level 5; upgrade it")
    bench.nodes.on_request(CLIENT, REQUESTS[0], 1_000)
    assert bench.refusals == [bench.format_refusal]


def lost_race(bench: NodeBench, first: Join, late: Join) -> Any:
    """Both ask before either is entered, and are committed in this order: the answer to the late
    one."""
    for request in (first, late):
        bench.nodes.on_request(CLIENT, request, 1_000)
    late_command, late_outcome = bench.commands_proposed.pop(), bench.outcomes.pop()
    bench.commit_proposed()
    bench.commands_proposed.append(late_command)
    bench.outcomes.append(late_outcome)
    bench.commit_proposed()
    (_, accepted), (_, failed) = bench.answers
    assert isinstance(accepted, JoinAccepted)
    return failed


def test_race_for_a_ticket_is_told_as_what_it_was(bench: NodeBench) -> None:
    """Two nodes ask at once: the log decides, and the second is answered who was first."""
    bench.ticket()
    first, late = bench.joining(), bench.joining(node_id("n5", b"5" * 16), request_id=3)
    failed = lost_race(bench, first, late)
    assert (failed.request_id, failed.code) == (3, "join_refused")
    assert f"used by {N4}" in failed.message


def test_rejected_command_is_answered_with_the_reason_of_the_log(bench: NodeBench) -> None:
    """Not applied, or unknown: the log knows."""
    bench.nodes.on_request(CLIENT, REQUESTS[0], 1_000)
    bench.outcomes.pop()(PubReject(METADATA, Term(3), GUID, "quorum_timeout", "why"), 1_010)
    assert bench.take().code == "quorum_timeout"


@pytest.mark.parametrize("lifetime_ms", [0, TICKET_LIFETIME_MS_MAX + 1])
def test_ticket_lives_for_a_bounded_time(bench: NodeBench, lifetime_ms: int) -> None:
    """A forgotten one must not be a door for ever."""
    assert bench.ticket(lifetime_ms=lifetime_ms).code == "schema"


def test_open_tickets_are_bounded_and_expired_ones_make_room(bench: NodeBench) -> None:
    """Each is a row of the catalog."""
    for number in range(TICKETS_OPEN_MAX):
        assert isinstance(bench.ticket(bytes([number]) * 16), Done)
    assert bench.ticket(b"z" * 16).code == "overloaded"
    assert isinstance(bench.ticket(bytes(16)), Done), "the same again"
    bench.wall += 2 * HOUR_MS
    assert isinstance(bench.ticket(b"z" * 16), Done)
    assert set(bench.catalog.tickets) == {b"z" * 16}


def test_lost_node_is_replaced_by_one_with_its_name(bench: NodeBench) -> None:
    """M29: a new store under the old name, by a ticket that names the old one."""
    bench.up.discard(N3)
    assert isinstance(bench.ticket(replaces="n3"), Done)
    assert isinstance(bench.ask(bench.joining(NEW_N3)), JoinAccepted)
    assert bench.catalog.nodes["n3"].node == NEW_N3
    assert set(bench.catalog.retired) == {N3}


def _two_tokens(bench: NodeBench) -> tuple[Join, Join]:
    """For the place of n3, and the nodes that come by them, under other names at one address."""
    bench.up.discard(N3)
    for ticket in (TICKET, OTHER):
        assert isinstance(bench.ticket(ticket, replaces="n3"), Done)
    return bench.joining(N4), bench.joining(N5, by=OTHER, request_id=3)


FURTHER = "a node that is to come besides takes a token of `raftstore cluster token`"
REPLACED = (
    f"{N3}, whose place the token is for, was replaced by {N4} meanwhile; if the store of that one "
    f"is lost, too, make a token with `raftstore cluster replace n4`; {FURTHER}"
)


def test_second_token_for_a_place_that_was_taken_is_refused(bench: NodeBench) -> None:
    """M29: with it the cluster would have a node more than before. Who has the place may ask again,
    also long after, and also when it died in between."""
    first, second = _two_tokens(bench)
    joined = bench.ask(first)
    bench.up.discard(N4)
    failed = bench.ask(second)
    assert (failed.code, failed.message) == ("join_refused", REPLACED)
    bench.wall += 2 * HOUR_MS
    assert bench.ask(first).number == joined.number
    assert sorted(bench.catalog.nodes) == ["n1", "n2", "n4"]


@pytest.mark.parametrize("is_forced", [False, True])
def test_race_of_two_tokens_for_one_place_is_decided_by_the_log(
    bench: NodeBench, *, is_forced: bool
) -> None:
    """M29: both nodes ask before either is entered. Force is about what is up, not about this."""
    bench.up.discard(N3)
    for ticket in (TICKET, OTHER):
        bench.ticket(ticket, replaces="n3", is_forced=is_forced)
    failed = lost_race(bench, bench.joining(N4), bench.joining(N5, by=OTHER, request_id=3))
    assert (failed.request_id, failed.code, failed.message) == (3, "join_refused", REPLACED)
    assert sorted(bench.catalog.nodes) == ["n1", "n2", "n4"]


def test_token_for_the_place_of_a_node_that_was_removed_is_refused(bench: NodeBench) -> None:
    """M29: it drained and left in order, so nobody's place is free."""
    first, _ = _two_tokens(bench)
    bench.catalog.tables.clear()
    bench.ask(Drain(1, "n3", drains=True, timeout_ms=100))
    assert isinstance(bench.ask(Retire(1, "n3", 100)), Done)
    failed = bench.ask(first)
    assert (failed.code, failed.message) == (
        "join_refused",
        f"{N3}, whose place the token is for, was removed meanwhile; {FURTHER}",
    )


@pytest.mark.parametrize(
    ("level", "refusal"),
    [(LEVEL, Refusal(StoreTooOldError, "n2 is older")), (REPLACED_ONCE_LEVEL - 1, None)],
    ids=["a member", "the new node"],
)
def test_place_is_taken_beside_an_older_node_and_the_second_token_is_refused_all_the_same(
    bench: NodeBench, level: int, refusal: Refusal | None
) -> None:
    """A lost disk need not wait for the end of an upgrade, and no node is given what it would stop
    at."""
    bench.once_refusal = refusal
    _, second = _two_tokens(bench)
    bench.nodes.on_request(CLIENT, bench.joining(N4, at_level=level), 1_000)
    assert msgspec.msgpack.decode(bench.commands_proposed[-1])["format"] == MEMBERS_FORMAT
    bench.commit_proposed()
    assert isinstance(bench.take(), JoinAccepted)
    assert bench.ask(second).message == REPLACED


@pytest.mark.parametrize("is_up", [True, False])
def test_lost_node_of_an_older_version_is_replaced(bench: NodeBench, *, is_up: bool) -> None:
    """It can be upgraded no more, and will read nothing; while it is up it would."""
    bench.older = N3
    bench.format_refusal = Refusal(StoreTooOldError, "n3 is at level 5; upgrade it")
    (bench.up.add if is_up else bench.up.discard)(N3)
    bench.ticket(b"u" * 16)
    bench.ticket(replaces="n3", is_forced=True)
    bench.ask(bench.joining(NEW_N3))
    of_replacing = bench.format_refusal if is_up else None
    assert bench.refusals == [bench.format_refusal, of_replacing, of_replacing]


def test_node_that_is_up_is_not_replaced_without_force(bench: NodeBench) -> None:
    """A14: all its replicas would count as dead at once."""
    failed = bench.ticket(replaces="n3")
    assert failed.code == "still_member"
    assert "raftstore cluster drain n3" in failed.message
    assert isinstance(bench.ticket(replaces=N3, is_forced=True), Done)


def test_node_is_not_replaced_where_a_quorum_would_be_lost(bench: NodeBench) -> None:
    """A14: the operator may be wrong about which node is gone."""
    table = bench.catalog.tables["orders"] = msgspec.structs.replace(
        bench.orders, placement=((N1, N2, N3),)
    )
    bench.catalog._by_uuid[table.uuid] = table
    bench.up -= {N3, N2}
    failed = bench.ticket(replaces="n3")
    assert failed.code == "unavailable"
    assert "1 channels have no quorum of live replicas without n3" in failed.message
    bench.up.add(N2)
    assert isinstance(bench.ticket(replaces="n3"), Done)


def _tickets_of_n3(bench: NodeBench, *, is_forced: bool) -> None:
    table = bench.catalog.tables["orders"] = msgspec.structs.replace(
        bench.orders, placement=((N1, N2, N3),)
    )
    bench.catalog._by_uuid[table.uuid] = table
    bench.up.discard(N3)
    assert isinstance(bench.ticket(replaces="n3", is_forced=is_forced), Done)


@pytest.mark.parametrize(
    ("up", "why"),
    [
        ({N1, N2, N3}, "n3 is up again"),
        ({N1}, "no quorum of live replicas without n3"),
    ],
)
def test_node_that_is_needed_again_is_not_replaced_by_an_earlier_token(
    bench: NodeBench, up: set[NodeId], why: str
) -> None:
    """A14: an hour may lie between the token and its use. The new node waits, and goes on."""
    _tickets_of_n3(bench, is_forced=False)
    bench.set_up(up)
    failed = bench.ask(bench.joining(NEW_N3))
    assert (failed.code, N3 in bench.catalog.retired) == ("unavailable", False)
    assert why in failed.message
    bench.set_up({N1, N2})
    assert isinstance(bench.ask(bench.joining(NEW_N3)), JoinAccepted)
    bench.set_up(up)
    assert isinstance(bench.ask(bench.joining(NEW_N3)), JoinAccepted)  # it asks once more


def test_forced_token_replaces_whatever_has_happened_since(bench: NodeBench) -> None:
    """It was asked for with those very words."""
    _tickets_of_n3(bench, is_forced=True)
    bench.set_up({N1, N3})
    assert isinstance(bench.ask(bench.joining(NEW_N3)), JoinAccepted)
    assert set(bench.catalog.retired) == {N3}


def test_address_of_a_node_that_is_up_is_not_taken_by_another(bench: NodeBench) -> None:
    """Its peers would dial the one for the other. A dead node's address may be used again."""
    bench.ticket()
    bench.nodes.on_request(CLIENT, AskJoin(1), 1_000)
    claim = JoinClaim(CLUSTER, TICKET, N4, "h2:1", 6, bench.take().nonce)
    request = Join(2, TICKET, N4, "h2:1", 6, join_proof(SECRET, claim), 100)
    failed = bench.ask(request)
    assert failed.code == "join_refused"
    assert "h2:1 is the address of n2, which is up" in failed.message
    bench.up.discard(N2)
    assert isinstance(bench.ask(request), JoinAccepted)


def test_unknown_node_is_named_with_those_there_are(bench: NodeBench) -> None:
    """A typing error must not cost a look elsewhere."""
    for request in (
        MakeTicket(1, TICKET, stored_key(SECRET), HOUR_MS, 100, "n9"),
        Drain(1, "n9", drains=True, timeout_ms=100),
        Retire(1, "n9", 100),
    ):
        failed = bench.ask(request)
        assert failed.code == "unknown_node"
        assert failed.message == "the cluster has no node 'n9'; it has n1, n2, n3"


def test_node_drains_and_leaves(bench: NodeBench) -> None:
    """M27: first no further replicas, then the end."""
    failed = bench.ask(Retire(1, "n3", 100))
    assert failed.code == "still_member"
    assert "raftstore cluster drain n3" in failed.message
    assert isinstance(bench.ask(Drain(1, "n3", drains=True, timeout_ms=100)), Done)
    assert bench.catalog.placeable() == [N1, N2]
    assert isinstance(bench.ask(Retire(1, "n3", 100)), Done)
    assert set(bench.catalog.retired) == {N3}
    assert "n3" not in bench.catalog.nodes


def test_node_with_replicas_does_not_leave(bench: NodeBench) -> None:
    """M27: those of tables, and of the catalog itself, are named."""
    bench.ask(Drain(1, "n3", drains=True, timeout_ms=100))
    table = bench.catalog.tables["orders"] = msgspec.structs.replace(
        bench.orders, placement=((N1, N3),)
    )
    bench.catalog._by_uuid[table.uuid] = table
    bench.voters = (N1, N2, N3)
    failed = bench.ask(Retire(1, "n3", 100))
    assert failed.code == "still_member"
    assert "replicas of 2 channels (orders/0, _metadata/0)" in failed.message
    bench.catalog.tables.clear()
    assert "replicas of 1 channels (_metadata/0)" in bench.ask(Retire(1, "n3", 100)).message


def test_drained_node_may_stay_after_all(bench: NodeBench) -> None:
    """Draining is an intention, not an end."""
    bench.ask(Drain(1, "n3", drains=True, timeout_ms=100))
    bench.ask(Drain(1, "n3", drains=False, timeout_ms=100))
    assert bench.catalog.placeable() == [N1, N2, N3]
