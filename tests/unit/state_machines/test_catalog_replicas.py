"""Orders for the replicas of channels, and reports of what became of them (M20, M21)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftstore.config import REPLICAS_MAX
from raftstore.state_machines.catalog import (
    Catalog,
    TableEntry,
    create_table_command,
    drop_table_command,
)
from raftstore.state_machines.catalog_members import (
    TicketEntry,
    add_ticket_command,
    drain_node_command,
    join_node_command,
)
from raftstore.state_machines.catalog_replicas import (
    CancelChange,
    ChangeReplicas,
    ReplicaEntry,
    ReportConfig,
    cancel_change_command,
    change_replicas_command,
    order_problem,
    report_config_command,
    rows_problem,
)
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    MemberRole,
    NodeId,
    ReplicaNumber,
    Seq,
    Term,
    channel_id,
    node_id,
)
from tests.unit.state_machines.catalog_rows import CatalogRows

N1, N2, N3, N4, N5 = (node_id(f"n{number}", bytes([number] * 16)) for number in range(1, 6))
UUID = b"u" * 16
CHANNEL, SECOND = channel_id(UUID, 0), channel_id(UUID, 1)
METADATA = channel_id(b"m" * 16, 0)
FOUNDERS = (N1, N2, N3)


class Store(CatalogRows):
    """The rows of a metadata channel with five nodes and a table of two partitions."""

    def __init__(self) -> None:
        super().__init__(N1, N2, N3, N4, N5, now_ms=1_000)
        self.create()

    def create(self, name: str = "t", uuid: bytes = UUID) -> None:
        """A table whose partitions are on the same three nodes."""
        entry = TableEntry(name, uuid, ("k",), 2, 3, "fsync", None, "", (FOUNDERS, FOUNDERS))
        assert self.command(create_table_command(entry)) is None

    def command(self, payload: bytes) -> int | None:
        """Ten milliseconds after the one before."""
        self.now_ms += 10
        return super().command(payload)

    def row_seq(self, channel: ChannelId = CHANNEL) -> Seq:
        """Seq of the channel's row; 0 without one."""
        return self.catalog.change_seqs.get(channel, Seq(0))

    def entry(self, channel: ChannelId = CHANNEL) -> ReplicaEntry:
        """Replicas of the channel as the catalog knows them."""
        found = self.catalog.entry_of(channel)
        assert found is not None
        return found

    def order(self, *voters: NodeId, **fields: Any) -> int | None:
        """Order these voters, by the present row unless ``base_seq`` says otherwise."""
        channel = fields.get("channel", CHANNEL)
        known = {
            "channel": channel,
            "table": "t",
            "base_seq": self.row_seq(channel),
            "guid": b"guid %d" % self.seq,
            "reason": "test",
        }
        return self.command(
            change_replicas_command(ChangeReplicas(voters=voters, **known | fields))
        )

    def ordered(self, *voters: NodeId, **fields: Any) -> int:
        """The number of an order that is taken."""
        assert self.order(*voters, **fields) is None
        return self.seq

    def report(self, seq: int, *voters: NodeId, **fields: Any) -> int | None:
        """A leader's report of a configuration with one voter set unless ``voter_sets`` says so."""
        channel, table = fields.pop("channel", CHANNEL), fields.pop("table", "t")
        config = ChannelConfig(fields.pop("voter_sets", (voters,)), **fields)
        report = ReportConfig(channel, table, Seq(seq), Term(1), config)
        return self.command(report_config_command(report))


def test_channel_without_a_row_has_the_replicas_of_its_creation() -> None:
    """A table that was never changed needs no rows; those of an unknown channel are none."""
    catalog = Store().catalog
    assert catalog.replicas_of(CHANNEL) == catalog.hosts_of(CHANNEL) == FOUNDERS
    assert catalog.entry_of(CHANNEL) == ReplicaEntry(ChannelConfig((FOUNDERS,)))
    unknown = channel_id(UUID, 2)
    assert catalog.replicas_of(unknown) == catalog.hosts_of(unknown) == ()
    assert catalog.entry_of(unknown) is None
    assert catalog.changes == {}


def test_m20_order_names_new_replicas_by_its_own_seq() -> None:
    """Members keep their numbers; the placement of the creation stays what it was."""
    store = Store()
    change = store.ordered(N2, N3, N4)
    entry, catalog = store.entry(), store.catalog
    assert entry.config == ChannelConfig((FOUNDERS,))
    target = entry.target
    assert target is not None
    assert (target.change, target.voters, target.cancelled) == (change, (N2, N3, N4), False)
    assert target.numbers == {N4: change}
    assert entry.order is not None
    assert (entry.order.reason, entry.order.ordered_ms) == ("test", store.now_ms)
    assert catalog.replicas_of(CHANNEL) == FOUNDERS
    assert catalog.hosts_of(CHANNEL) == (N1, N2, N3, N4)
    assert catalog.founding_of(CHANNEL) == catalog.tables["t"].placement[0] == FOUNDERS
    assert CHANNEL in catalog.channels_of(N4)
    assert SECOND not in catalog.channels_of(N4)


def test_m20_order_is_a_compare_and_set_and_one_at_a_time() -> None:
    """It was judged by one state of the row: any other, and an open order, is a conflict."""
    store = Store()
    assert store.order(N2, N3, N4, base_seq=Seq(3)) == 0
    store.ordered(N2, N3, N4)
    seq = store.row_seq()
    assert store.order(N1, N2, N4) == seq
    assert store.order(N1, N2, N4, base_seq=Seq(0)) == seq
    assert store.ordered(N1, N2, N4, channel=SECOND)


def test_same_request_is_the_same_order() -> None:
    """A retry under the same guid changes nothing, also when the order has ended meanwhile."""
    store = Store()
    change = store.ordered(N2, N3, N4, guid=b"once")
    before = dict(store.rows)
    assert store.order(N2, N3, N4, guid=b"once", base_seq=Seq(0)) is None
    assert store.rows == before
    numbers = {N4: ReplicaNumber(change)}
    assert store.report(90, N2, N3, N4, numbers=numbers, change=change, ended=True) is None
    before = dict(store.rows)
    assert store.order(N2, N3, N4, guid=b"once", base_seq=Seq(0)) is None
    assert store.rows == before


def test_order_for_a_channel_that_is_none_is_a_conflict() -> None:
    """S0.8: another table of the name, a partition there is not, a table that was dropped."""
    store = Store()
    seq = store.catalog.seqs["t"]
    assert store.order(N2, N3, N4, channel=channel_id(UUID, 2)) == seq
    assert store.order(N2, N3, N4, channel=channel_id(b"o" * 16, 0)) == seq
    assert store.order(N2, N3, N4, table="other") == 0
    assert store.order(N2, N3, N4, table="", channel=METADATA) == 0
    assert store.report(5, N2, N3, N4, channel=channel_id(UUID, 2)) == seq
    assert store.catalog.changes == {}


def test_dropped_table_takes_its_orders_with_it() -> None:
    """A late report does not bring the row back."""
    store = Store()
    store.ordered(N2, N3, N4)
    assert store.command(drop_table_command("t", UUID)) is None
    assert store.catalog.changes == {}
    assert store.report(5, N2, N3, N4) == 0
    store.create("t", b"v" * 16)
    assert store.report(5, N2, N3, N4) == store.catalog.seqs["t"]
    assert store.catalog.changes == {}


def test_m27_order_never_places_a_replica_on_a_node_that_drains_or_has_left() -> None:
    """The one who ordered may have had an older copy; replicas that are there may stay."""
    store = Store()
    assert store.command(drain_node_command(N4, drains=True)) is None
    drains_seq = store.catalog.draining[N4]
    assert store.order(N2, N3, N4) == drains_seq
    assert store.command(drain_node_command(N1, drains=True)) is None
    store.ordered(N1, N2, N5)
    ticket = TicketEntry(b"key", store.now_ms + 1_000, N5)
    assert store.command(add_ticket_command(b"t" * 16, ticket)) is None
    newer = msgspec.structs.replace(store.catalog.nodes["n5"], node=node_id("n5", b"9" * 16))
    assert store.command(join_node_command(b"t" * 16, ticket, newer, is_once=True)) is None
    assert N5 in store.catalog.retired
    assert store.order(N1, N2, N5, channel=SECOND) is not None


def test_m21_report_applies_only_if_it_is_newer() -> None:
    """Late and doubled ones change nothing, whichever leader they are of."""
    store = Store()
    change = store.ordered(N2, N3, N4)
    numbers = {N4: ReplicaNumber(change)}
    assert store.report(10, *FOUNDERS, learners=(N4,), numbers=numbers, change=change) is None
    entry = store.entry()
    assert (entry.config_seq, entry.config.learners) == (10, (N4,))
    for late in (10, 9):
        assert store.report(late, *FOUNDERS) is None
        assert store.entry() == entry
    both = (FOUNDERS, (N2, N3, N4))
    assert store.report(12, voter_sets=both, numbers=numbers, change=change) is None
    assert store.entry().target == entry.target
    assert store.catalog.replicas_of(CHANNEL) == (N1, N2, N3, N4)
    assert store.report(14, N2, N3, N4, numbers=numbers, change=change, ended=True) is None
    assert store.entry().target is None
    assert store.catalog.hosts_of(CHANNEL) == (N2, N3, N4)
    ended = store.entry().ended
    assert ended is not None
    assert (ended.change, ended.is_done) == (change, True)


def test_order_ends_by_the_record_that_says_so() -> None:
    """B3: neither the voters of a step nor an older order's end are taken for the end."""
    store = Store()
    change = store.ordered(N1, N4, N5)
    numbers = {N4: ReplicaNumber(change), N5: ReplicaNumber(change)}
    assert store.report(9, *FOUNDERS, change=change - 1, ended=True) is None
    assert store.report(10, N1, N3, N4, numbers={N4: numbers[N4]}, change=change) is None
    assert store.entry().target is not None
    assert store.report(11, N1, N4, N5, numbers=numbers, change=change) is None
    assert store.entry().target is not None
    assert store.report(12, N1, N4, N5, numbers=numbers, change=change, ended=True) is None
    assert store.entry().target is None


def test_cancelled_series_ends_where_it_is_and_the_next_order_is_taken() -> None:
    """B3: one of two replacements is done and reported; the record that ends it always applies."""
    store = Store()
    change = store.ordered(N1, N4, N5)
    numbers = {N4: ReplicaNumber(change)}
    assert store.report(10, N1, N3, N4, numbers=numbers, change=change) is None
    assert store.command(cancel_change_command(CHANNEL, change)) is None
    target = store.entry().target
    assert target is not None
    assert target.cancelled
    assert store.order(*FOUNDERS) is not None
    assert store.report(11, N1, N3, N4, numbers=numbers, change=change, ended=True) is None
    entry = store.entry()
    assert entry.ended is not None
    assert (entry.target, entry.ended.is_done) == (None, False)
    again = store.ordered(*FOUNDERS)
    target = store.entry().target
    assert target is not None
    # M14: node 2 left by the first order, and comes back under a number of its own.
    assert target.numbers == {N2: again}


def test_cancel_is_of_one_order_and_only_while_it_is_open() -> None:
    """Asked twice it changes nothing; another number, or none that is open, is a conflict."""
    store = Store()
    assert store.command(cancel_change_command(CHANNEL, 5)) == 0
    change = store.ordered(N2, N3, N4)
    assert store.command(cancel_change_command(CHANNEL, change + 1)) == store.row_seq()
    assert store.command(cancel_change_command(CHANNEL, change)) is None
    seq = store.row_seq()
    assert store.command(cancel_change_command(CHANNEL, change)) is None
    assert store.row_seq() == seq
    assert store.report(9, *FOUNDERS, change=change, ended=True) is None
    assert store.command(cancel_change_command(CHANNEL, change)) == store.row_seq()


def test_left_over_learner_keeps_its_number_and_a_later_order_gives_another() -> None:
    """A6: the order that names the node again names another replica than the one that is left."""
    store = Store()
    first = store.ordered(N2, N3, N4)
    assert store.command(cancel_change_command(CHANNEL, first)) is None
    assert store.report(9, *FOUNDERS, change=first, ended=True) is None
    second = store.ordered(N2, N3, N4)
    # A leader with an old copy added the first order's learner, and this was reported.
    late = {N4: ReplicaNumber(first)}
    assert store.report(11, *FOUNDERS, learners=(N4,), numbers=late, change=first) is None
    target = store.entry().target
    assert target is not None
    assert (target.change, target.numbers) == (second, {N4: second})
    assert store.entry().hosts[N4] == second


def test_metadata_channel_says_itself_how_it_began() -> None:
    """Its founders are in no row of a table (M30)."""
    store = Store()
    fields = {"channel": METADATA, "table": "", "founding": FOUNDERS}
    change = store.ordered(N2, N3, N4, **fields)
    entry = store.entry(METADATA)
    assert entry.config == ChannelConfig((FOUNDERS,))
    assert entry.target is not None
    assert entry.target.numbers == {N4: change}


@pytest.mark.parametrize(
    ("voters", "learners", "told"),
    [
        ((), (), "a channel without voters keeps nothing"),
        ((), (N1,), "a channel without voters keeps nothing"),
        ((N1, N2, N1), (), "n1@01010101010101010101010101010101 is named twice"),
        ((N1, N2), (N2,), "is named twice; name each node once"),
        (
            tuple(NodeId(f"n{n}@00") for n in range(REPLICAS_MAX + 1)),
            (),
            "8 voters are more than 7",
        ),
    ],
)
def test_order_that_can_never_be_carried_out_is_told_why(
    voters: tuple[NodeId, ...], learners: tuple[NodeId, ...], told: str
) -> None:
    """Neither does it change anything if it is in the log all the same."""
    problem = order_problem(voters, learners)
    assert problem is not None
    assert told in problem
    store = Store()
    assert store.order(*voters, learners=learners) == 0
    assert store.catalog.changes == {}


def test_catalog_that_is_read_again_keeps_entries_and_tells_what_changed() -> None:
    """Rows of the same seq are not read again: a catalog may have thousands."""
    store = Store()
    store.ordered(N2, N3, N4)
    before = store.catalog
    store.ordered(N1, N2, N4, channel=SECOND)
    rows = [(row.key, row.value, row.seq) for row in store.rows.values()]
    after = Catalog.from_rows(rows, store.seq, before=before)
    assert after.changes[CHANNEL] is before.changes[CHANNEL]
    assert after.replicas_changed_since(before) == (SECOND,)
    assert before.replicas_changed_since(Catalog.empty()) == (CHANNEL,)


def test_commands_are_of_a_format_that_older_nodes_refuse() -> None:
    """GAP-15: they would count voters that are none any more."""
    config = ChannelConfig((FOUNDERS,))
    commands = (
        ChangeReplicas(CHANNEL, "t", FOUNDERS, Seq(0), b"", ""),
        CancelChange(CHANNEL, 5),
        ReportConfig(CHANNEL, "t", Seq(1), Term(1), config),
    )
    assert {command.format for command in commands} == {5}
    assert ReplicaEntry(config).format == 5


def test_w1_order_that_leans_on_witnesses_is_refused_with_their_number() -> None:
    """Of four voters one has rows."""
    voters, witnesses = (N1, N2, N3, N4), dict.fromkeys((N1, N5), MemberRole.WITNESS)
    assert rows_problem(voters, witnesses) is None
    witnesses |= dict.fromkeys((N2, N3), MemberRole.WITNESS)
    assert str(rows_problem(voters, witnesses)).startswith("3 of 4 voters would be witnesses;")


def test_w3_witness_is_led_by_and_leads_nothing() -> None:
    """The leaders that are planned are voters with rows."""
    store = Store()
    assert store.catalog.leaders_of(CHANNEL) == FOUNDERS
    seq = store.ordered(N1, N2, N4, witnesses=(N4,))
    roles = {N4: MemberRole.WITNESS}
    numbers = {N4: ReplicaNumber(seq)}
    store.report(9, N1, N2, N4, numbers=numbers, change=seq, ended=True, roles=roles)
    assert store.catalog.leaders_of(CHANNEL) == (N1, N2)
    assert store.catalog.roles_of(CHANNEL) == roles
    assert store.catalog.roles_of(SECOND) == {}
