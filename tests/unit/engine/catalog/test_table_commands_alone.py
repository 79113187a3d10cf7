"""Commands on tables by themselves: which are proposed, which refused, when each is answered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.config import DROPPED_WRITERS_MAX, WAITING_COMMANDS_MAX
from raftstore.engine.catalog import table_commands
from raftstore.engine.catalog.table_definition import entry_of
from raftstore.engine.deadlines import NEVER_MS
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.protocol.admin import StepDown
from raftstore.protocol.message import Done
from raftstore.state_machines.batches.coordinator import CHECKPOINT_BYTES_MAX
from raftstore.state_machines.catalog import (
    TableEntry,
    create_table_command,
    drop_table_command,
    edit_table_command,
)
from raftstore.types import NodeId, Role, Seq, Term
from tests.unit.engine.commands_bench import (
    CLIENT,
    CREATE,
    DONE_DETAIL,
    DROP,
    EDIT,
    ME,
    METADATA,
    NEW_UUID,
    OTHER,
    THIRD,
    UUID,
    Bench,
)

# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [Bench.create, Bench.edit, Bench.drop])
def test_command_at_another_node_is_sent_to_the_leader(ask: Callable[[Bench], None]) -> None:
    """Before anything is counted or proposed (S1.9)."""
    bench = Bench()
    bench.elector = SimpleNamespace(role=Role.FOLLOWER, leader=OTHER)
    ask(bench)
    failed = bench.take()
    assert (failed.code, failed.leader_hint) == ("not_leader", OTHER)
    assert failed.message == "the catalog is led by n2, ask there"
    assert bench.commands_proposed == []


@pytest.mark.parametrize(
    ("role", "leader", "is_ready"),
    [(Role.FOLLOWER, None, True), (Role.FOLLOWER, ME, True), (Role.LEADER, ME, False)],
)
def test_command_without_a_leader_is_refused_for_now(
    role: Role, leader: NodeId | None, is_ready: bool
) -> None:
    """A leader that has not committed in its term does not know the catalog yet."""
    bench = Bench()
    bench.elector = SimpleNamespace(role=role, leader=leader)
    bench.core.leader_is_ready = is_ready
    bench.create()
    number, code, text = bench.refused()
    assert (number, code) == (1, "no_leader")
    assert "data channels go on" in text


@pytest.mark.parametrize("ask", [Bench.create, Bench.edit, Bench.drop])
def test_client_with_too_many_commands_is_refused(ask: Callable[[Bench], None]) -> None:
    """The bound is counted per client; the refusal takes nothing of what it holds."""
    bench = Bench()
    for number in range(WAITING_COMMANDS_MAX):
        bench.commands.held.take(CLIENT, 100 + number)
    ask(bench)
    [(_, failed)] = bench.answers
    assert failed.code == "overloaded"
    assert "holds 1024 table and leadership commands and wants 1 more" in failed.message
    assert (bench.commands_proposed, bench.commands.held.total) == ([], WAITING_COMMANDS_MAX)
    request = StepDown(4, METADATA)
    assert not bench.commands.await_step_down(CLIENT, request, SimpleNamespace(), 1_000)  # type: ignore[arg-type]
    assert bench.answers[1][1].request_id == 4
    assert bench.commands.waiting == []


# --- creating -------------------------------------------------------------------------------------


def test_new_table_is_proposed_with_its_place_and_answered_when_it_is_led() -> None:
    """S0.8: by every partition; the answer names the catalog that shows it."""
    bench = Bench(standby_reads=False)
    bench.create()
    entry = msgspec.structs.replace(
        entry_of(CREATE), uuid=NEW_UUID, standby_reads=False,
        placement=((OTHER, THIRD, ME), (THIRD, ME, OTHER)),
    )  # fmt: skip
    assert bench.commands_proposed == [create_table_command(entry)]
    table = bench.created()
    bench.commit(1_010)
    assert bench.applied_ms == [1_010]
    assert bench.answers == []
    assert bench.commands.deadlines.next_ms == 1_110
    bench.lead(table.channels[0])
    bench.commands.check_waiting(1_020)
    assert bench.answers == []
    bench.lead(table.channels[1])
    bench.commands.check_waiting(1_030)
    assert bench.take() == Done(1, DONE_DETAIL)
    assert (bench.commands.waiting, bench.commands.deadlines.next_ms) == ([], NEVER_MS)


def test_new_table_is_spread_over_failure_domains() -> None:
    """Those that the catalog has of the nodes."""
    bench = Bench()
    for name, domain in (("n1", "a"), ("n2", "b"), ("n3", "a")):
        node = bench.catalog.nodes[name]
        bench.catalog.nodes[name] = msgspec.structs.replace(node, failure_domain=domain)
    bench.commands.on_create_table(
        CLIENT, msgspec.structs.replace(CREATE, replicas=2, partitions=6), 1_000
    )
    [command] = bench.commands_proposed
    entry = msgspec.msgpack.decode(msgspec.msgpack.decode(command)["entry"], type=TableEntry)
    assert len(entry.placement) == 6
    assert all(OTHER in group for group in entry.placement)


def test_table_whose_channels_are_led_at_once_is_answered_at_once() -> None:
    """Within the answer of the log."""
    bench = Bench()
    bench.create()
    bench.lead(*bench.created().channels)
    bench.commit()
    assert bench.take() == Done(1, DONE_DETAIL)


def test_table_without_leaders_at_the_deadline_is_in_doubt() -> None:
    """S4.1: it exists, and its leaders come behind the deadline; the text counts them."""
    bench = Bench()
    bench.create()
    bench.lead(bench.created().channels[1])
    bench.commit(1_010)
    bench.commands.check_waiting(1_109)
    assert bench.answers == []
    bench.commands.check_waiting(1_110)
    assert bench.refused() == (
        1,
        "operation_in_doubt",
        "leaders of table 'new': 1 of 2 channels have no new leader yet; it goes on, and "
        "`raftstore channel ls` shows how it ended",
    )
    assert bench.commands.deadlines.next_ms == NEVER_MS


def test_leader_that_is_lost_while_others_are_awaited_counts_no_more() -> None:
    """The look goes on where it stopped, and begins anew where a leader went."""
    bench = Bench()
    bench.create()
    first, second = bench.created().channels
    bench.lead(first)
    bench.commit()
    bench.leaders.clear()
    bench.lead(second)
    bench.commands.check_waiting(1_020)
    assert bench.answers == []
    bench.commands.check_waiting(1_021)
    assert bench.answers == []
    bench.lead(first)
    bench.commands.check_waiting(1_022)
    assert bench.take() == Done(1, DONE_DETAIL)


def test_look_at_the_leaders_goes_on_where_it_stopped() -> None:
    """A table may have thousands of partitions, and the look comes with every turn."""
    bench = Bench()
    request = msgspec.structs.replace(CREATE, partitions=5)
    bench.create(request)
    channels = bench.created(request).channels
    bench.lead(*channels[:2], *channels[3:])
    bench.commit()
    bench.asked.clear()
    bench.commands.check_waiting(1_020)
    assert bench.asked == [channels[2]]
    bench.lead(channels[2])
    del bench.leaders[channels[1]]
    bench.commands.check_waiting(1_021)
    assert bench.asked == [channels[2], *channels[2:], *channels[:2]]
    bench.asked.clear()
    bench.commands.check_waiting(1_022)
    assert bench.asked == [channels[1]]


def test_commands_with_one_number_are_counted_and_answered_each() -> None:
    """Numbers are the client's; one that uses a number twice gets two answers."""
    bench = Bench()
    bench.create()
    bench.create()
    assert bench.commands.held.total == 2
    bench.commit()
    assert [answer.code for _, answer in bench.answers] == ["operation_in_doubt"]
    assert bench.commands.held.total == 1
    bench.commit()
    assert bench.commands.held.total == 0


def test_table_that_exists_is_not_proposed() -> None:
    """``if_not_exists`` takes one of this definition, once it is led; nothing else is taken."""
    bench = Bench()
    entry = bench.created()
    bench.create()
    number, code, text = bench.refused()
    assert (number, code) == (1, "table_exists")
    assert "with this definition; if that is fine, give if_not_exists=True" in text
    bench.create(msgspec.structs.replace(CREATE, if_not_exists=True, partitions=1))
    assert "with another definition" in bench.refused()[2]
    bench.create(msgspec.structs.replace(CREATE, if_not_exists=True))
    assert bench.answers == []
    bench.lead(*entry.channels)
    bench.commands.check_waiting(1_001)
    assert bench.take() == Done(1, DONE_DETAIL)
    assert bench.commands_proposed == []


def test_table_that_cannot_be_is_refused_before_it_is_proposed() -> None:
    """A name that old tables may have is refused for new ones only."""
    bench = Bench()
    bench.create(msgspec.structs.replace(CREATE, name="a b"))
    assert bench.refused()[:2] == (1, "schema")
    bench.add(CREATE, "a b", NEW_UUID, partitions=2)
    bench.create(msgspec.structs.replace(CREATE, name="a b"))
    assert bench.refused()[:2] == (1, "table_exists")
    assert bench.commands_proposed == []


def test_more_replicas_than_nodes_are_refused_for_good_or_for_now() -> None:
    """Founders that are not registered yet come in a moment."""
    bench = Bench()
    bench.create(msgspec.structs.replace(CREATE, replicas=4))
    assert bench.refused()[:2] == (1, "schema")
    del bench.catalog.nodes["n3"]
    bench.create()
    assert bench.refused()[:2] == (1, "unavailable")


def test_load_of_a_node_is_counted_with_its_metadata_channel() -> None:
    """One partition is here, two are to come, and the metadata: four fit into four."""
    bench = Bench(channels_max=4)
    bench.create()
    assert len(bench.commands_proposed) == 1
    bench = Bench(channels_max=3)
    bench.create()
    number, code, text = bench.refused()
    assert (number, code, bench.commands_proposed) == (1, "schema", [])
    assert "would have 4 channels, the limit is 3; use fewer partitions" in text
    assert "with table 'new' node n" in text


def test_node_with_the_most_channels_is_the_one_that_counts() -> None:
    """The table in its way is named by the node, wherever its name stands among the others."""
    request = msgspec.structs.replace(CREATE, partitions=1)
    for most in (ME, THIRD):
        bench = Bench(channels_max=4)
        crowded = bench.add(CREATE, "crowded", b"a-crowded-table!", partitions=3)
        crowded = msgspec.structs.replace(crowded, placement=((most,),) * 3)
        bench.catalog.tables["crowded"] = crowded
        bench.create(request)
        name = most.partition("@")[0]
        assert f"node {name} would have 6 channels, the limit is 4" in bench.refused()[2]


def test_size_of_the_catalog_is_counted_with_the_new_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the byte; the entry that is replaced does not count."""
    bench = Bench()
    bench.create()
    other = msgspec.structs.replace(bench.created(), placement=((OTHER, ME, THIRD),) * 2)
    size = len(msgspec.msgpack.encode((bench.orders, other)))
    for more, fits in ((0, True), (-1, False)):
        bench = Bench()
        monkeypatch.setattr(table_commands, "CATALOG_BYTES_MAX", size + more)
        bench.create()
        assert (len(bench.commands_proposed) == 1) == fits
    number, code, text = bench.refused()
    assert (number, code) == (1, "payload_too_large")
    assert f"with table 'new' the catalog has {size} bytes, the limit is {size - 1}" in text


@pytest.mark.parametrize("ask", [Bench.create, Bench.edit, Bench.drop])
def test_refusal_of_the_log_is_told_as_it_is(ask: Callable[[Bench], None]) -> None:
    """Its code says whether the command may still come."""
    bench = Bench()
    ask(bench)
    bench.reject("leadership_lost")
    _, code, text = bench.refused()
    assert (code, text) == ("leadership_lost", "why")
    assert bench.commands.waiting == []


def test_name_that_another_client_took_meanwhile_is_told_by_its_definition() -> None:
    """The compare-and-set was lost; ``if_not_exists`` takes the other's table."""
    bench = Bench()
    bench.create()
    bench.add(CREATE, "new", b"the-table-of-one", partitions=2)
    bench.commit(conflict=True)
    assert bench.refused()[:2] == (1, "table_exists")
    bench = Bench()
    bench.create(msgspec.structs.replace(CREATE, if_not_exists=True))
    table = bench.add(CREATE, "new", b"the-table-of-one", partitions=2)
    bench.lead(*table.channels)
    bench.commit(conflict=True)
    assert bench.take() == Done(1, DONE_DETAIL)


def test_table_that_is_dropped_before_its_answer_is_in_doubt() -> None:
    """It was created; nobody can wait for its leaders."""
    bench = Bench()
    bench.create()
    bench.commit()
    assert bench.refused() == (
        1,
        "operation_in_doubt",
        "table 'new' was created, and another client has dropped it since",
    )


def test_table_that_a_draining_node_was_to_host_is_placed_anew() -> None:
    """M27: the machine refused it, for the node began to drain before the record came; nothing was
    created, so nobody can have dropped it."""
    bench = Bench()
    bench.create()
    fourth = msgspec.structs.replace(bench.catalog.nodes["n3"], node=NodeId("n4"))
    bench.catalog.nodes["n4"] = fourth
    bench.catalog.draining[THIRD] = Seq(5)
    bench.commit(1_060, conflict=True)
    assert bench.answers == []
    entry = msgspec.msgpack.decode(
        msgspec.msgpack.decode(bench.commands_proposed[1])["entry"], type=TableEntry
    )
    assert all(THIRD not in group for group in entry.placement)
    assert bench.commands.held.total == 1
    bench.commit(1_100, conflict=True)
    text = (
        "nodes that were to host 'new' began to drain or left at each try; nothing was done, retry"
    )
    assert bench.refused() == (1, "unavailable", text)
    assert len(bench.commands_proposed) == 2


# --- dropping -------------------------------------------------------------------------------------


def test_drop_names_the_table_by_its_uuid_and_is_answered_when_applied() -> None:
    """The next table of the name is not touched."""
    bench = Bench()
    bench.drop()
    assert bench.commands_proposed == [drop_table_command("orders", UUID, ())]
    assert bench.answers == []
    bench.commit(1_010)
    assert bench.applied_ms == [1_010]
    assert bench.take() == Done(3, DONE_DETAIL)
    bench.drop(msgspec.structs.replace(DROP, uuid=UUID))
    assert len(bench.commands_proposed) == 2


def test_drop_of_a_table_that_is_not_there_or_is_another_one_is_refused() -> None:
    """The remedy is in the text."""
    bench = Bench()
    bench.drop(msgspec.structs.replace(DROP, name="others"))
    text = "there is no table 'others'; `raftstore table ls` lists them"
    assert bench.refused() == (3, "unknown_table", text)
    bench.drop(msgspec.structs.replace(DROP, uuid=NEW_UUID))
    text = "table 'orders' was dropped and created again; look at it and repeat"
    assert bench.refused() == (3, "unknown_table", text)
    assert bench.commands_proposed == []
    bench.drop()
    bench.commit(conflict=True)
    assert bench.refused() == (3, "unknown_table", "the table was dropped meanwhile")
    assert bench.applied_ms == []


def test_writers_of_a_dropped_table_are_remembered_if_they_can_be_named() -> None:
    """Those that no BEGIN can name are left out, and what is over the bound."""
    longest = "l" * CHECKPOINT_BYTES_MAX
    nameless = (("", "l"), ("w", ""), ("w", longest + "l"), ("w", "ü" * CHECKPOINT_BYTES_MAX))
    named = (("w", "l"), ("w", longest))
    bench = Bench()
    bench.drop(msgspec.structs.replace(DROP, writers=(*nameless, *named)))
    assert bench.commands_proposed == [drop_table_command("orders", UUID, named)]
    many = tuple((f"w{number}", "l") for number in range(DROPPED_WRITERS_MAX + 1))
    bench.drop(msgspec.structs.replace(DROP, writers=many))
    assert bench.commands_proposed[1] == drop_table_command("orders", UUID, many[:-1])


# --- editing --------------------------------------------------------------------------------------


def test_edit_is_proposed_on_the_entry_it_was_made_from() -> None:
    """A compare-and-set on the seq of the row; older nodes are asked about its format."""
    bench = Bench()
    bench.format_refusal = Refusal(StoreTooOldError, "upgrade")
    bench.edit()
    edited = msgspec.structs.replace(bench.orders, max_lag=7)
    assert bench.commands_proposed == [edit_table_command(edited, Seq(9))]
    assert bench.refusals == [bench.format_refusal]
    bench.commit(1_010)
    assert bench.applied_ms == [1_010]
    assert bench.take() == Done(2, DONE_DETAIL)


def test_edit_that_changes_nothing_is_answered_without_a_record() -> None:
    """At once."""
    bench = Bench()
    bench.edit(msgspec.structs.replace(EDIT, changes={"max_lag": None}))
    assert (bench.take(), bench.commands_proposed) == (Done(2, DONE_DETAIL), [])


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"changes": {}}, "schema", "no property to change"),
        ({"changes": {}, "name": "others"}, "schema", "no property to change"),
        ({"changes": {"add_columns": "[]"}}, "schema", "table 'orders': "),
        ({"name": "others"}, "unknown_table", "table 'others' was dropped; see `raftstore table"),
        ({"uuid": NEW_UUID}, "unknown_table", "table 'orders' was dropped; see `raftstore table"),
    ],
)
def test_edit_that_cannot_be_is_refused(change: dict[str, Any], code: str, text: str) -> None:
    """Before it is proposed; a table that is not there is no mistake in what was asked."""
    bench = Bench()
    bench.edit(msgspec.structs.replace(EDIT, **change))
    number, told, message = bench.refused()
    assert (number, told, bench.commands_proposed) == (2, code, [])
    assert message.startswith(text)


def test_edit_that_makes_the_catalog_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new table is."""
    bench = Bench()
    edited = msgspec.structs.replace(bench.orders, max_lag=7)
    size = len(msgspec.msgpack.encode((edited,)))
    monkeypatch.setattr(table_commands, "CATALOG_BYTES_MAX", size)
    bench.edit()
    assert len(bench.commands_proposed) == 1
    bench = Bench()
    monkeypatch.setattr(table_commands, "CATALOG_BYTES_MAX", size - 1)
    bench.edit()
    assert bench.refused()[:2] == (2, "payload_too_large")
    assert bench.commands_proposed == []


def test_edit_that_another_one_outran_is_made_again_on_the_new_entry() -> None:
    """Each property by itself, so nothing is undone; the deadline stays the first one."""
    bench = Bench()
    bench.edit()
    bench.catalog.tables["orders"] = msgspec.structs.replace(bench.orders, max_staleness_ms=5)
    bench.catalog.seqs["orders"] = Seq(10)
    bench.commit(1_060, conflict=True)
    both = msgspec.structs.replace(bench.orders, max_staleness_ms=5, max_lag=7)
    assert bench.commands_proposed[1:] == [edit_table_command(both, Seq(10))]
    assert bench.commands.held.total == 1
    bench.edit()
    bench.outcomes.pop()
    assert bench.commands.held.total == 2
    bench.commit(1_099, conflict=True)
    assert bench.commands.held.total == 2
    bench.commands.held.give(CLIENT, 2, 1)
    assert len(bench.commands_proposed) == 4
    bench.commit(1_100, conflict=True)
    text = "others changed table 'orders' at each try; nothing was done, retry"
    assert bench.refused() == (2, "unavailable", text)
    assert len(bench.commands_proposed) == 4


# --- hand-overs -----------------------------------------------------------------------------------


def test_hand_over_is_done_when_the_leader_is_another_or_of_another_term() -> None:
    """While nobody leads it is not."""
    for leader in ((OTHER, Term(3)), (ME, Term(4))):
        bench = Bench()
        runner = bench.step_down()
        bench.commands.check_waiting(1_001)
        bench.leaders[runner.channel] = (None, Term(4))
        bench.commands.check_waiting(1_002)
        assert bench.answers == []
        bench.leaders[runner.channel] = leader
        bench.commands.check_waiting(1_003)
        assert bench.take() == Done(4, DONE_DETAIL)


def test_hand_over_at_its_deadline_is_in_doubt() -> None:
    """It may still happen."""
    bench = Bench()
    bench.step_down(timeout_ms=50)
    assert bench.commands.deadlines.next_ms == 1_050
    bench.commands.check_waiting(1_049)
    assert bench.answers == []
    bench.commands.check_waiting(1_050)
    number, code, text = bench.refused()
    assert (number, code) == (4, "operation_in_doubt")
    assert text.startswith("hand-over of orders/0: 1 of 1 channels have no new leader yet")


def test_hand_over_that_is_refused_is_told_with_the_reason() -> None:
    """S9: only to those who asked this channel in this term; the others wait on."""
    bench = Bench()
    runner = bench.step_down()
    later = SimpleNamespace(channel=runner.channel, me=ME, elector=SimpleNamespace(term=Term(4)))
    other = SimpleNamespace(channel=METADATA, me=ME, elector=runner.elector)
    for stranger in (later, other):
        bench.commands.step_down_refused(stranger, "no voter")  # type: ignore[arg-type]
        assert bench.answers == []
        assert bench.commands.deadlines.next_ms == 1_100
    bench.commands.step_down_refused(runner, "no voter")
    assert bench.refused() == (4, "unavailable", "hand-over of orders/0: no voter")
    assert (bench.commands.waiting, bench.commands.deadlines.next_ms) == ([], NEVER_MS)


def test_next_deadline_is_that_of_the_client_that_waits_least_long() -> None:
    """Whichever came first; it moves when that one is answered, or is gone."""
    bench = Bench()
    bench.step_down(timeout_ms=100, request_id=4)
    assert bench.commands.deadlines.next_ms == 1_100
    bench.step_down(timeout_ms=50, request_id=5)
    assert bench.commands.deadlines.next_ms == 1_050
    bench.step_down(timeout_ms=200, request_id=6)
    assert bench.commands.deadlines.next_ms == 1_050
    bench.commands.check_waiting(1_050)
    assert [answer.request_id for _, answer in bench.answers] == [5]
    assert bench.commands.deadlines.next_ms == 1_100


# --- clients that go ------------------------------------------------------------------------------


def test_client_that_is_gone_waits_for_nothing() -> None:
    """Its places are free at once; another's are kept, and what it proposed goes on unanswered."""
    bench = Bench()
    bench.create()
    bench.step_down()
    waiting = bench.commands.waiting
    bench.commands.held.take(6, 9)
    bench.commands.on_client_gone(CLIENT)
    assert bench.commands.waiting is waiting
    assert (bench.commands.waiting, bench.commands.deadlines.next_ms) == ([], NEVER_MS)
    assert (bench.commands.held.amount_of(CLIENT), bench.commands.held.total) == (0, 1)
    bench.created()
    bench.commit()
    assert (bench.commands.waiting, bench.answers) == ([], [])


def test_clients_that_stay_go_on_waiting() -> None:
    """One connection that ends is not the end of another's command."""
    bench = Bench()
    bench.step_down()
    bench.commands.on_client_gone(6)
    assert len(bench.commands.waiting) == 1
    assert bench.commands.deadlines.next_ms == 1_100
