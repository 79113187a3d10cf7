"""The catalog's controller by itself: channels it opens and closes, nodes it knows and enters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import LEVEL
from raftstore.engine.catalog.controller import OPENED_AT_ONCE
from raftstore.engine.channel.runner import NO_BOUNDS
from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.errors import StoreTooOldError, UnavailableError
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.reads import Bounds
from raftstore.state_machines.catalog import (
    EDITED_FORMAT,
    NodeEntry,
    register_node_command,
)
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.catalog_members import (
    DrainingEntry,
    TicketEntry,
    draining_key,
    ticket_key,
)
from raftstore.state_machines.table import TableMachine
from raftstore.types import (
    ChannelConfig,
    NodeId,
    RecordKind,
    Role,
    Seq,
    Term,
    channel_id,
)
from tests.unit.engine.catalog.controller_bench import (
    GUID,
    INTERVAL_MS,
    ME,
    METADATA,
    NEWCOMER,
    NODES,
    OTHER,
    THIRD,
    UUID,
    Bench,
    table,
)

# --- channels -------------------------------------------------------------------------------------


def test_start_opens_the_metadata_and_every_channel_at_once() -> None:
    """S1.9: of the last committed catalog; a node that begins has no turns to spread them over."""
    bench = Bench()
    many = OPENED_AT_ONCE + 2
    bench.put(table(partitions=many, max_staleness_ms=9))
    controller = bench.start()
    name, how = bench.opened[0]
    assert (name, how["now_ms"], how["durability"], how["bounds"]) == (
        METADATA_NAME, 1, "fsync", NO_BOUNDS,
    )  # fmt: skip
    assert how["creation_config"] == ChannelConfig((NODES,))
    assert isinstance(bench.machines[METADATA], CatalogMachine)
    assert controller.metadata is bench.runners[METADATA]
    assert [name for name, _ in bench.opened[1:]] == [f"orders/{n}" for n in range(many)]
    how = bench.opened[-1][1]
    assert (how["now_ms"], how["durability"]) == (1, "fsync")
    assert how["bounds"] == Bounds(None, 9, None)
    assert how["creation_config"] == ChannelConfig((NODES,))
    assert isinstance(bench.machines[channel_id(UUID, 0)], TableMachine)
    assert controller.deadlines.next_ms == NEVER_MS


def test_start_knows_the_peers_before_it_opens_channels() -> None:
    """S1.9: electors of channels look at the peers."""
    bench = Bench()
    opened_after: list[int] = []
    open_channel = bench.open

    def noted(*of: Any, **how: Any) -> None:
        opened_after.append(sum(call[0] == "peer" for call in bench.calls))
        open_channel(*of, **how)

    bench.open = noted  # type: ignore[method-assign]
    bench.start()
    assert opened_after[0] == len(NODES)


def test_start_tells_how_many_channels_are_open() -> None:
    """It may take long: what each log holds is learnt."""
    bench = Bench()
    bench.put(table(partitions=2 * OPENED_AT_ONCE + 2))
    told: list[tuple[int, int]] = []
    bench.controller.start(1, lambda done, total: told.append((done, total)))
    total = 2 * OPENED_AT_ONCE + 3
    assert told == [(2 * OPENED_AT_ONCE + 1, total), (total, total)]


def test_channels_of_a_new_table_are_opened_a_few_in_each_turn() -> None:
    """The node is called again at once until all are open."""
    bench = Bench()
    controller = bench.start()
    bench.put(table(partitions=2 * OPENED_AT_ONCE + 1))
    controller.on_catalog_applied(2)
    assert len(bench.opened) == 1 + OPENED_AT_ONCE
    assert controller.deadlines.next_ms == 0
    controller.on_timer(3)
    assert len(bench.opened) == 1 + 2 * OPENED_AT_ONCE
    assert controller.deadlines.next_ms == 0
    controller.on_timer(4)
    assert len(bench.opened) == 2 + 2 * OPENED_AT_ONCE
    assert bench.opened[-1][1]["now_ms"] == 4
    assert controller.deadlines.next_ms == NEVER_MS
    assert len(controller.opening) == 0


def test_channel_that_waits_is_not_opened_when_its_table_goes_or_when_it_is_open() -> None:
    """The catalog of the moment counts."""
    bench = Bench()
    controller = bench.start()
    entry = table(partitions=OPENED_AT_ONCE + 2)
    bench.put(entry)
    controller.on_catalog_applied(2)
    bench.put(msgspec.structs.replace(entry, max_staleness_ms=5))
    controller.on_catalog_applied(3)
    names = [name for name, _ in bench.opened]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 1 + entry.partitions
    assert bench.runners[channel_id(UUID, 0)].bounds == Bounds(None, 5, None)
    other = table("other", b"another-tables-!", OPENED_AT_ONCE + 2)
    bench.put(other)
    controller.on_catalog_applied(4)
    bench.remove(other)
    controller.on_catalog_applied(5)
    assert [name for name, _ in bench.opened].count("other/0") == 1
    assert f"other/{OPENED_AT_ONCE}" not in [name for name, _ in bench.opened]
    assert controller.deadlines.next_ms == NEVER_MS


def test_channel_with_all_replicas_elsewhere_is_known_and_not_opened() -> None:
    """S0.8: it exists; what hints say of it is believed."""
    bench = Bench()
    bench.put(table(partitions=2, placement=((OTHER, THIRD), (THIRD, ME))))
    controller = bench.start()
    assert [name for name, _ in bench.opened] == [METADATA_NAME, "orders/1"]
    assert bench.opened[1][1]["creation_config"] == ChannelConfig(((THIRD, ME),))
    channel = channel_id(UUID, 0)
    assert controller.exists(channel)
    assert controller.exists(METADATA)
    assert not controller.exists(channel_id(b"another-tables-!", 0))
    assert controller.leader_of(channel) == (None, Term(0))
    bench.hints[channel] = SimpleNamespace(node=THIRD, term=Term(8))
    assert controller.leader_of(channel) == (THIRD, Term(8))
    assert controller.leader_of(channel_id(UUID, 1)) == (OTHER, Term(6))


def test_dropped_table_closes_its_channels_and_those_alone() -> None:
    """S0.8: the drop's own row proves it; a row that is absent may have been lost."""
    bench = Bench()
    gone, lost = table(), table("lost", b"a-lost-table-id!")
    bench.put(gone, lost)
    controller = bench.start()
    assert bench.named("forget") == []
    bench.calls.clear()
    bench.remove(gone)
    bench.remove(lost, is_told=False)
    controller.on_catalog_applied(9)
    assert bench.named("drop") == [("orders/0", 9)]
    assert bench.named("channel_closed") == [({"channel": "orders/0"},)]
    assert bench.named("forget") == [(controller.exists,)]
    assert set(bench.runners) == {METADATA, channel_id(lost.uuid, 0)}


def test_drop_that_the_log_remembers_is_believed_before_the_catalog() -> None:
    """S0.8: the catalog is applied again from an earlier position."""
    bench = Bench()
    bench.remembered.add(channel_id(UUID, 0))
    bench.put(table(partitions=2))
    bench.start()
    assert [name for name, _ in bench.opened] == [METADATA_NAME, "orders/1"]


def test_channel_is_opened_anew_from_the_catalog() -> None:
    """Its log is another one; that of a table which is gone stays closed."""
    bench = Bench()
    bench.put(table())
    controller = bench.start()
    channel = channel_id(UUID, 0)
    for runner in (bench.runners[METADATA], bench.runners[channel]):
        bench.opened.clear()
        controller.reopen(runner, 7)
        assert bench.calls[-1] == ("close", runner.name, 7)
        assert runner.is_reopened
        assert [(name, how["now_ms"]) for name, how in bench.opened] == [(runner.name, 7)]
    bench.remove(table(), is_told=False)
    controller.on_catalog_applied(8)
    bench.opened.clear()
    runner = bench.runners[channel]
    controller.reopen(runner, 9)
    assert (bench.opened, channel in bench.runners, runner.is_reopened) == ([], False, False)


def test_catalog_is_read_when_it_moved_and_waiting_clients_are_looked_at_always() -> None:
    """The notice of any other channel is none of its business."""
    bench = Bench()
    bench.put(table())
    controller = bench.start()
    looked: list[int] = []
    controller.commands.check_waiting = looked.append  # type: ignore[method-assign,assignment]
    scans = bench.scans
    controller.on_applied(bench.runners[METADATA], (), 5)
    assert (bench.scans, looked) == (scans, [5])
    controller.on_applied(bench.runners[channel_id(UUID, 0)], (), 6)
    assert looked == [5]
    bench.put(table("next", b"the-next-tables!"))
    controller.on_applied(bench.runners[METADATA], (), 7)
    assert (bench.scans, looked) == (scans + 1, [5, 7])
    assert "next/0" in [name for name, _ in bench.opened]
    controller.on_timer(8)
    assert looked == [5, 7]
    controller.commands.waiting.append(None)  # type: ignore[arg-type]
    controller.on_timer(9)
    assert looked == [5, 7, 9]


# --- nodes ----------------------------------------------------------------------------------------


def test_newest_endpoint_of_each_node_counts() -> None:
    """S0.7: where it was seen or configured, then the catalog, then where it was founded."""
    bench = Bench(configured=((OTHER, "configured:1"),), advertise="mine:1")
    bench.put(
        NodeEntry(ME, "old:1"), NodeEntry(OTHER, "old:2"), NodeEntry(THIRD, "moved:3"),
        NodeEntry(NEWCOMER, "new:4"),
    )  # fmt: skip
    controller = bench.start()
    assert list(controller.endpoints().items()) == [
        (ME, "mine:1"), (OTHER, "configured:1"), (THIRD, "moved:3"), (NEWCOMER, "new:4"),
    ]  # fmt: skip
    controller.on_introduced(THIRD, "seen:3", 1)
    controller.on_introduced(OTHER, "", 1)
    assert controller.endpoints()[THIRD] == "seen:3"
    assert controller.endpoints()[OTHER] == "configured:1"
    assert Bench().controller.endpoints()[ME] == "n1:7100"


def test_retired_node_leaves_every_view() -> None:
    """M27: its address, its level, and the watch of it; what it says later brings nothing back."""
    bench = Bench()
    bench.put(NodeEntry(NEWCOMER, "new:4"))
    bench.register()
    controller = bench.start()
    controller.on_introduced(NEWCOMER, "new:5", 1)
    assert controller.levels()[NEWCOMER] == 0
    bench.retire(NEWCOMER, THIRD)
    controller.on_catalog_applied(2)
    assert list(controller.endpoints()) == list(controller.levels()) == [ME, OTHER]
    assert sorted(bench.named("gone")) == [(THIRD, 2), (NEWCOMER, 2)]
    controller.on_introduced(NEWCOMER, "new:5", 1)
    assert NEWCOMER not in controller.endpoints()
    bench.put(NodeEntry(OTHER, "moved:2"))
    controller.on_catalog_applied(3)
    assert len(bench.named("gone")) == 2
    assert bench.retirements == []


def test_node_that_finds_itself_retired_says_so() -> None:
    """M27: it was away, or was replaced; it never comes back, and must not go on either."""
    bench = Bench()
    bench.retire(ME)
    bench.start()
    [reason] = bench.retirements
    assert f"node {ME} was retired" in reason
    assert "empty --data-dir" in reason
    assert bench.named("gone") == []


def test_node_that_joined_begins_with_the_nodes_it_was_told_of() -> None:
    """M28: the founders may be long gone, and the catalog is not here yet."""
    bench = Bench(nodes=((OTHER, "now:2"), (NEWCOMER, "now:4")))
    assert bench.controller.endpoints() == {OTHER: "now:2", NEWCOMER: "now:4"}


def test_leader_of_the_catalog_works_towards_its_members() -> None:
    """M30: a node that joined is a learner by the number of that record; said once."""
    bench = Bench()
    bench.register()
    controller = bench.start()
    assert bench.named("inform") == []
    ticket = TicketEntry(b"k" * 32, 10**12, used_by=NEWCOMER)
    bench.put(NodeEntry(NEWCOMER, "new:4"))
    bench.rows[ticket_key(b"t" * 16)] = (msgspec.msgpack.encode(ticket), bench.version)
    controller.on_catalog_applied(2)
    [(event, _)] = bench.named("inform")
    assert event.target.learners == (NEWCOMER,)
    assert event.target.numbers == {NEWCOMER: bench.version}
    controller.on_timer(INTERVAL_MS)
    assert len(bench.named("inform")) == 1
    bench.config = ChannelConfig(
        (NODES,), (NEWCOMER,), event.target.numbers, event.target.change, ended=True
    )
    controller.on_timer(2 * INTERVAL_MS)
    assert [event.target for event, _ in bench.named("inform")[1:]] == [None]


def test_leader_of_the_catalog_moves_replicas_off_nodes_that_leave() -> None:
    """M29: once for each, and again where the log refused it."""
    bench = Bench()
    bench.register()
    bench.put(NodeEntry(NEWCOMER, "new:4", level=LEVEL), table())
    bench.rows[draining_key(THIRD)] = (msgspec.msgpack.encode(DrainingEntry()), bench.version)
    bench.controller.on_introduced(NEWCOMER, "new:4", LEVEL)
    controller = bench.start()
    orders = bench.orders()
    assert [order.channel for order in orders] == list(table().channels)
    assert {node for order in orders for node in order.voters} == {ME, OTHER, NEWCOMER}
    assert {(order.table, order.base_seq, order.reason) for order in orders} == {
        (table().name, 0, "its node drains")
    }
    controller.on_timer(INTERVAL_MS)
    assert len(bench.orders()) == len(orders)
    bench.outcomes[-1](PubReject(METADATA, Term(6), GUID, "quorum_timeout", "why"), 5)
    controller.on_timer(2 * INTERVAL_MS)
    assert len(bench.orders()) == len(orders) + 1


def test_catalog_does_not_go_back_with_a_table_that_does() -> None:
    """M12: a copy of another node's table replaced a damaged one; the log here had brought more,
    and brings it again. Meanwhile nothing is closed or deleted by what was true once."""
    bench = Bench()
    bench.put(table())
    before = dict(bench.rows), bench.version
    bench.put(table("late", b"late-table-id..!"))
    controller = bench.start()
    assert set(controller.catalog.tables) == {"orders", "late"}
    after = dict(bench.rows), bench.version
    bench.rows, bench.version = before
    controller.on_catalog_applied(2)
    assert set(controller.catalog.tables) == {"orders", "late"}
    assert controller.catalog.version == after[1]
    bench.rows, bench.version = after
    controller.on_catalog_applied(3)
    bench.put(table("last", b"last-table-id..!"))
    controller.on_catalog_applied(4)
    assert set(controller.catalog.tables) == {"orders", "late", "last"}


def test_node_that_came_up_takes_replicas_at_once() -> None:
    """One that was replaced waits for it with all its channels; the regular look comes too, but
    later."""
    bench = Bench()
    bench.register()
    bench.put(NodeEntry(NEWCOMER, "new:4", level=LEVEL), table())
    bench.rows[draining_key(THIRD)] = (msgspec.msgpack.encode(DrainingEntry()), bench.version)
    bench.controller.on_introduced(NEWCOMER, "new:4", LEVEL)
    bench.down = {NEWCOMER}
    controller = bench.start()
    assert bench.orders() == []
    controller.on_timer(1)
    bench.down = set()
    for notify in bench.on_up_changed:
        notify(NEWCOMER)
    assert controller.deadlines.next_ms == 0
    controller.on_timer(2)
    assert [order.channel for order in bench.orders()] == list(table().channels)
    assert controller.deadlines.next_ms == NEVER_MS


def test_follower_of_the_catalog_orders_nothing() -> None:
    """M30: only the leader changes members, and only when it knows the whole catalog."""
    for role, is_ready in ((Role.FOLLOWER, True), (Role.LEADER, False)):
        bench = Bench()
        bench.role, bench.is_ready = role, is_ready
        bench.retire(THIRD)
        bench.start()
        assert bench.named("inform") == []


def test_node_opens_the_catalog_under_its_number() -> None:
    """B4: what it acknowledges counts under the number that the leader knows it by."""
    bench = Bench(number=Seq(17))
    bench.start()
    assert bench.opened[0][1]["number"] == 17


def test_lower_level_of_catalog_and_introduction_counts() -> None:
    """A node that is in no catalog may be of any version, whatever it reported."""
    bench = Bench(level=5)
    bench.put(NodeEntry(ME, "a", level=4), NodeEntry(OTHER, "b", level=3))
    controller = bench.start()
    assert controller.levels() == {ME: 4, OTHER: 3, THIRD: 0}
    controller.on_introduced(OTHER, "", 2)
    controller.on_introduced(THIRD, "", 9)
    assert controller.levels() == {ME: 4, OTHER: 2, THIRD: 0}


def test_kind_or_format_is_refused_while_a_node_cannot_read_it() -> None:
    """Kinds of the first version never are."""
    bench = Bench()
    bench.put(NodeEntry(ME, "a", level=LEVEL), NodeEntry(OTHER, "b", level=LEVEL))
    controller = bench.start()
    for refusal in (
        controller.refusal_of(RecordKind.BATCH_MARK),
        controller.refusal_of_format(EDITED_FORMAT),
    ):
        assert refusal is not None
        error, text = refusal
        assert error is UnavailableError, "it may come in a moment"
        assert "n3: not registered here yet" in text
    bench.put(NodeEntry(THIRD, "c", level=0))
    controller.on_catalog_applied(3)
    for refusal in (
        controller.refusal_of(RecordKind.BATCH_MARK),
        controller.refusal_of_format(EDITED_FORMAT),
    ):
        assert refusal is not None
        error, text = refusal
        assert error is StoreTooOldError
        assert "n3 is at level 0; upgrade" in text
    controller.on_introduced(THIRD, "", LEVEL)
    refusal = controller.refusal_of_format(EDITED_FORMAT)
    assert refusal is not None
    assert refusal[0] is UnavailableError, "n3 reported more, and is registered so in a moment"
    assert controller.refusal_of(RecordKind.ROWS) is None
    assert controller.refusal_of_format(1) is None
    bench.register()
    controller.on_catalog_applied(2)
    assert controller.refusal_of(RecordKind.BATCH_MARK) is None
    assert controller.refusal_of_format(EDITED_FORMAT) is None


def test_peers_come_from_the_catalog_and_from_the_seeds_again_and_again() -> None:
    """KLIP-20: with every interval, not with every timer."""
    bench = Bench()
    bench.put(NodeEntry(NEWCOMER, "new:4"))
    controller = bench.start()
    assert bench.named("peer") == [(node, 1) for node in (*NODES, NEWCOMER)]
    bench.calls.clear()
    for now_ms in (0, 1, INTERVAL_MS - 1):
        controller.on_timer(now_ms)
    assert bench.named("peer") == [(node, 0) for node in (*NODES, NEWCOMER)]
    controller.on_timer(INTERVAL_MS)
    assert len(bench.named("peer")) == 8


@pytest.mark.parametrize(("role", "is_ready"), [(Role.FOLLOWER, True), (Role.LEADER, False)])
def test_nodes_are_registered_by_a_leader_that_is_ready(role: Role, is_ready: bool) -> None:
    """Any other one does not know the catalog as it is."""
    bench = Bench()
    bench.role, bench.is_ready = role, is_ready
    bench.start().on_timer(2)
    assert bench.proposed == []


def test_node_is_registered_once_for_each_change_of_address_or_level() -> None:
    """A command under way is not proposed again; a refusal is tried again with the next timer."""
    bench = Bench()
    bench.register()
    controller = bench.start()
    controller.on_timer(2)
    assert bench.proposed == []
    controller.on_introduced(THIRD, "moved:3", LEVEL)
    controller.on_timer(3)
    controller.on_timer(4)
    assert bench.proposed == [register_node_command(THIRD, "moved:3", LEVEL)]
    controller.on_introduced(THIRD, "moved:3", 0)
    controller.on_timer(5)
    assert bench.proposed[1:] == [register_node_command(THIRD, "moved:3", 0)]
    bench.outcomes[-1](PubReject(METADATA, Term(6), GUID, "unavailable", "why"), 6)
    controller.on_timer(7)
    assert bench.proposed[2:] == [register_node_command(THIRD, "moved:3", 0)]
    ack = PubAck(METADATA, Term(6), GUID, Seq(5), Seq(5), Term(6), "fsync", 2)
    bench.outcomes[-1](ack, 8)
    controller.on_timer(9)
    assert len(bench.proposed) == 3


def test_node_is_registered_anew_with_another_failure_domain() -> None:
    """It is changed by a restart; while nothing is heard of a node it keeps its own."""
    bench = Bench(failure_domain="rack-1")
    bench.register()
    controller = bench.start()
    controller.on_timer(2)
    mine = register_node_command(ME, "n1:7100", LEVEL, "rack-1")
    assert bench.proposed == [mine]
    bench.put(NodeEntry(ME, "n1:7100", level=LEVEL, failure_domain="rack-1"))
    bench.put(NodeEntry(OTHER, "n2:7100", level=LEVEL, failure_domain="rack-1"))
    bench.put(NodeEntry(THIRD, "n3:7100", level=LEVEL, failure_domain="rack-2"))
    controller.on_introduced(OTHER, "n2:7100", LEVEL, "rack-1")
    controller.on_introduced(THIRD, "n3:7100", LEVEL, "rack-3")
    controller.on_catalog_applied(3)
    assert controller.catalog.domains() == {ME: "rack-1", OTHER: "rack-1", THIRD: "rack-2"}
    controller.on_timer(4)
    controller.on_timer(5)
    assert bench.proposed[1:] == [register_node_command(THIRD, "n3:7100", LEVEL, "rack-3")]
    again = Bench(failure_domain="rack-1")
    again.rows = dict(bench.rows)
    again.version = bench.version
    again.start().on_timer(6)
    assert again.proposed == []  # nothing was heard of the third one yet


def test_node_is_registered_while_the_command_of_another_is_under_way() -> None:
    """Each waits for its own outcome."""
    bench = Bench()
    bench.register()
    controller = bench.start()
    for node in (OTHER, THIRD):
        controller.on_introduced(node, "moved:1", LEVEL)
        controller.on_timer(2)
    commands = [register_node_command(node, "moved:1", LEVEL) for node in (OTHER, THIRD)]
    assert bench.proposed == commands


def test_new_leadership_of_the_metadata_registers_again_what_it_may_have_undone() -> None:
    """That of another channel changes nothing."""
    bench = Bench()
    bench.register()
    bench.put(table())
    controller = bench.start()
    controller.on_introduced(THIRD, "moved:3", LEVEL)
    controller.on_timer(3)
    before = (Term(1), Role.FOLLOWER, None)
    controller.leader_changed(bench.runners[channel_id(UUID, 0)], before, 4)
    controller.on_timer(5)
    assert len(bench.proposed) == 1
    controller.leader_changed(bench.runners[METADATA], before, 6)
    controller.on_timer(7)
    assert len(bench.proposed) == 2


def test_node_that_told_nothing_keeps_its_level_and_a_new_one_has_none() -> None:
    """It is away, and not of the first version."""
    bench = Bench()
    bench.put(NodeEntry(ME, "n1:7100", level=LEVEL), NodeEntry(OTHER, "elsewhere:2", level=4))
    controller = bench.start()
    bench.controller._seen[OTHER] = "n2:7100"
    controller.on_timer(2)
    assert bench.proposed == [
        register_node_command(OTHER, "n2:7100", 4),
        register_node_command(THIRD, "n3:7100", 0),
    ]
    bench = Bench()
    same_name = NodeId("n3@" + "9" * 32)
    bench.register()
    bench.put(NodeEntry(same_name, "n3:7100", level=LEVEL))
    bench.start().on_timer(2)
    assert register_node_command(THIRD, "n3:7100", LEVEL) in bench.proposed
