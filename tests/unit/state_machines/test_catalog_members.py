"""Nodes that join by a ticket, drain, and are retired, in the catalog's rows (M27, M28)."""

from __future__ import annotations

import pytest

from raftstore.state_machines.catalog import (
    NodeEntry,
    TableEntry,
    create_table_command,
    register_node_command,
)
from raftstore.state_machines.catalog_members import (
    RetiredEntry,
    TicketEntry,
    add_ticket_command,
    drain_node_command,
    join_node_command,
    remove_node_command,
)
from raftstore.types import NodeId, Seq, node_id
from tests.unit.state_machines.catalog_rows import CatalogRows

N1, N2, N3, N4 = (node_id(f"n{number}", bytes([number] * 16)) for number in (1, 2, 3, 4))
NEW_N3 = node_id("n3", b"\x33" * 16)
TICKET, OTHER = b"t" * 16, b"o" * 16
HOUR_MS = 3_600_000


class Store(CatalogRows):
    """The rows of a metadata channel with three founders."""

    def __init__(self) -> None:
        super().__init__(N1, N2, N3, now_ms=1_000)

    def ticket(self, ticket: bytes = TICKET, replaces: str = "") -> TicketEntry:
        """A ticket of one hour, entered."""
        entry = TicketEntry(b"key of " + ticket, self.now_ms + HOUR_MS, replaces)
        assert self.command(add_ticket_command(ticket, entry)) is None
        return entry

    def join(self, node: NodeId, ticket: bytes = TICKET, *, is_once: bool = True) -> int | None:
        """Ask as the leader does: by its copy of the ticket."""
        entry, new = self.catalog.tickets[ticket], NodeEntry(node, "h:2", level=6)
        return self.command(join_node_command(ticket, entry, new, is_once=is_once))


@pytest.fixture
def store() -> Store:
    """Three founders and nothing else."""
    return Store()


def table_on(*nodes: NodeId) -> TableEntry:
    """A table of one partition."""
    return TableEntry("t", b"u" * 16, ("id",), 1, len(nodes), "fsync", None, "", (nodes,))


def test_node_with_a_ticket_joins_and_its_number_is_the_seq_of_that_record(store: Store) -> None:
    """M28, M30: who joined is a node like the founders, with a number that no other has."""
    store.ticket()
    assert store.join(N4) is None
    joined_seq = store.seq
    catalog = store.catalog
    assert catalog.nodes["n4"].node == N4
    assert catalog.tickets[TICKET].used_by == N4
    assert catalog.numbers == {N4: joined_seq}


def test_ticket_admits_one_id_which_may_ask_again(store: Store) -> None:
    """M28: the answer may be lost; another id is refused."""
    store.ticket()
    store.join(N4)
    used_seq = store.seq
    assert store.join(N4) is None
    assert store.catalog.numbers == {N4: used_seq}
    other = node_id("n5", b"5" * 16)
    assert store.join(other) == used_seq
    assert "n5" not in store.catalog.nodes


def test_unused_ticket_expires_by_the_time_of_the_record(store: Store) -> None:
    """M28: what has expired admits nobody, and the row is named as what was in the way."""
    store.ticket()
    ticket_seq = store.seq
    store.now_ms += HOUR_MS
    assert store.join(N4) == ticket_seq
    assert "n4" not in store.catalog.nodes


def test_node_that_joined_may_ask_again_after_the_ticket_expired(store: Store) -> None:
    """B6: registered at minute 59, answer lost, asked again at minute 61: it is a member."""
    store.ticket()
    store.now_ms += HOUR_MS - 1
    assert store.join(N4) is None
    store.now_ms += HOUR_MS
    assert store.join(N4) is None


def test_name_of_a_node_is_taken_only_by_a_ticket_that_names_it(store: Store) -> None:
    """M27: a new store under an old name is another node, and has to be named as that."""
    store.ticket()
    assert store.join(NEW_N3) == 3
    assert store.catalog.nodes["n3"].node == N3
    store.ticket(OTHER, replaces=N3)
    assert store.join(NEW_N3, OTHER) is None
    catalog = store.catalog
    assert catalog.nodes["n3"].node == NEW_N3
    assert catalog.retired == {N3: RetiredEntry(replaced_by=NEW_N3)}


def test_node_may_be_replaced_by_one_of_another_name(store: Store) -> None:
    """One command retires the old one and enters the new one: there is no moment between."""
    store.ticket(replaces=N3)
    assert store.command(drain_node_command(N3, drains=True)) is None
    assert store.join(N4) is None
    assert sorted(store.catalog.nodes) == ["n1", "n2", "n4"]
    assert store.catalog.retired == {N3: RetiredEntry(replaced_by=N4)}
    assert store.catalog.draining == {}


def test_node_is_replaced_once_however_many_tickets_name_it(store: Store) -> None:
    """M29: two tokens were made for one lost node, and two nodes ask at once: the log decides which
    of them takes the place, and the other one is not one node more. The first may ask again."""
    store.ticket(replaces=N3)
    store.ticket(OTHER, replaces=N3)
    other = NodeEntry(node_id("n5", b"5" * 16), "h:3")
    late = join_node_command(OTHER, store.catalog.tickets[OTHER], other, is_once=True)
    assert store.join(N4) is None
    joined_seq = store.seq
    assert store.command(late) == joined_seq
    assert store.join(N4) is None, "the same again, after a kill"
    assert sorted(store.catalog.nodes) == ["n1", "n2", "n4"]
    assert store.catalog.retired == {N3: RetiredEntry(replaced_by=N4)}
    assert not store.catalog.tickets[OTHER].used_by


def test_ticket_for_the_place_of_a_node_that_was_removed_admits_nobody(store: Store) -> None:
    """M29: the operator found another way meanwhile, and there is no place to take."""
    store.ticket(replaces=N3)
    store.command(drain_node_command(N3, drains=True))
    store.command(remove_node_command(N3, Seq(store.seq)))
    removed_seq = store.seq
    assert store.join(N4) == removed_seq
    assert sorted(store.catalog.nodes) == ["n1", "n2"]


def test_second_ticket_in_a_log_of_before_leads_to_what_it_led_to(store: Store) -> None:
    """Replicas of older versions applied it so, and those that apply it now must be equal."""
    store.ticket(replaces=N3)
    store.ticket(OTHER, replaces=N3)
    assert store.join(N4, is_once=False) is None
    assert store.join(node_id("n5", b"5" * 16), OTHER, is_once=False) is None
    assert sorted(store.catalog.nodes) == ["n1", "n2", "n4", "n5"]


def test_retired_id_never_comes_back(store: Store) -> None:
    """S0.1: neither by the endpoint it reports nor by a ticket."""
    store.command(drain_node_command(N3, drains=True))
    store.command(remove_node_command(N3, Seq(store.seq)))
    removed_seq = store.seq
    assert store.command(register_node_command(N3, "h:9", 6)) == removed_seq
    store.ticket()
    assert store.join(N3) == removed_seq
    assert sorted(store.catalog.nodes) == ["n1", "n2"]


def test_removed_name_is_free_for_who_has_a_ticket(store: Store) -> None:
    """The name is a label; what left is the id."""
    store.command(drain_node_command(N3, drains=True))
    assert store.command(remove_node_command(N3, Seq(store.seq))) is None
    assert store.command(remove_node_command(N3, Seq(store.seq))) is None, "the same again"
    store.ticket()
    assert store.join(NEW_N3) is None
    assert store.catalog.nodes["n3"].node == NEW_N3


def test_node_is_removed_only_if_it_drained_since_the_proposer_looked(store: Store) -> None:
    """A table could have been placed there meanwhile."""
    assert store.command(remove_node_command(N3, Seq(3))) == 0
    store.command(drain_node_command(N3, drains=True))
    looked_seq = Seq(store.seq)
    store.command(drain_node_command(N3, drains=False))
    store.command(drain_node_command(N3, drains=True))
    assert store.command(remove_node_command(N3, looked_seq)) == store.catalog.draining[N3]
    assert N3 not in store.catalog.retired


def test_table_is_placed_on_no_node_that_drains_or_was_retired(store: Store) -> None:
    """M27: the proposer's copy may be of before."""
    store.command(drain_node_command(N3, drains=True))
    drains_seq = store.seq
    assert store.command(create_table_command(table_on(N1, N3))) == drains_seq
    store.command(remove_node_command(N3, Seq(drains_seq)))
    assert store.command(create_table_command(table_on(N1, N3))) == store.seq - 1
    assert store.command(create_table_command(table_on(N1, N2))) is None


def test_only_known_nodes_drain_and_the_same_again_changes_nothing(store: Store) -> None:
    """A row of a node that nobody knows would stay for ever."""
    assert store.command(drain_node_command(N4, drains=True)) == 0
    assert store.command(drain_node_command(NEW_N3, drains=True)) == 3
    store.command(drain_node_command(N3, drains=True))
    since = store.catalog.draining[N3]
    store.command(drain_node_command(N3, drains=True))
    assert store.catalog.draining == {N3: since}
    assert store.command(drain_node_command(N3, drains=False)) is None
    assert store.catalog.draining == {}


def test_ticket_is_entered_once_and_expired_ones_are_forgotten(store: Store) -> None:
    """An answer may be lost; used tickets are the memory of who joined how."""
    entry = store.ticket()
    assert store.command(add_ticket_command(TICKET, entry)) is None
    another = TicketEntry(b"another key", entry.expires_ms)
    assert store.command(add_ticket_command(TICKET, another)) == store.seq - 2
    store.join(N4)
    store.ticket(OTHER)
    third = b"3" * 16
    unknown = b"9" * 16
    early = add_ticket_command(third, another, forget=(unknown, third, TICKET, OTHER))
    assert store.command(early) is None
    assert set(store.catalog.tickets) == {TICKET, OTHER, third}, "not expired yet"
    store.now_ms += HOUR_MS
    late = add_ticket_command(b"4" * 16, another, forget=(TICKET, OTHER, third))
    assert store.command(late) is None
    assert set(store.catalog.tickets) == {TICKET, b"4" * 16}


def test_join_without_a_ticket_is_refused(store: Store) -> None:
    """It may be forgotten, or never have been."""
    entry = TicketEntry(b"key", HOUR_MS)
    command = join_node_command(TICKET, entry, NodeEntry(N4, "h:2", level=6), is_once=True)
    assert store.command(command) == 0
    assert "n4" not in store.catalog.nodes
