"""The catalog machine: compare-and-set on names, dropped UUIDs, nodes; and the view of its rows."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.config import LEVEL
from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.protocol.table_settings import TableSettings
from raftstore.record_machine import Row
from raftstore.state_machines.catalog import (
    Catalog,
    NodeEntry,
    TableEntry,
    create_table_command,
    created_format,
    drop_table_command,
    edit_table_command,
    edited_format,
    register_node_command,
)
from raftstore.state_machines.catalog_entries import (
    CATALOG_FORMAT,
    DURABILITY_FORMAT,
    EDITED_FORMAT,
    FIRST_FORMAT,
    MACHINE_FORMAT,
    MEMBERS_FORMAT,
    SETTINGS_FORMAT,
    decode_entry,
)
from raftstore.types import NodeId, RecordKind, Seq, channel_id, node_id
from tests.unit.state_machines.catalog_rows import CatalogRows

REGISTER = register_node_command(NodeId("n1@00"), "h:1", 1)
NEWER = CATALOG_FORMAT + 1
N1, N2, N3 = (node_id(f"n{number}", bytes([number] * 16)) for number in (1, 2, 3))


def table(name: str = "orders", uuid: bytes = b"u" * 16, **changes: object) -> TableEntry:
    """A table of two partitions on three nodes."""
    entry = TableEntry(
        name=name,
        uuid=uuid,
        key_columns=("id",),
        partitions=2,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json="",
        placement=((N1, N2, N3), (N2, N3, N1)),
    )
    return msgspec.structs.replace(entry, **changes)


def test_create_table_stores_the_entry_with_its_placement_and_uuid() -> None:
    """The created table is stored as the proposer decided it, so every node reads the same."""
    store = CatalogRows()
    assert store.apply(create_table_command(table())).conflict_seq is None
    assert store.catalog.tables == {"orders": table()}
    assert store.catalog.version == 1
    assert set(store.rows) == {b"t/orders"}


def test_create_table_is_a_compare_and_set_on_the_name() -> None:
    """S0.8: of two tables with one name the first wins, the second is answered with its seq."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    other = table(uuid=b"v" * 16)
    assert store.apply(create_table_command(other)).conflict_seq == 1
    assert store.catalog.tables["orders"].uuid == b"u" * 16


def test_create_table_if_not_exists_is_ok_when_the_definition_is_the_same() -> None:
    """The same definition twice is one table, with the UUID and placement of the first."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    again = table(uuid=b"v" * 16, placement=((N3,),))
    result = store.apply(create_table_command(again, if_not_exists=True))
    assert (result.conflict_seq, result.writes) == (None, ())
    changed = table(uuid=b"v" * 16, schema_json="x")
    assert store.apply(create_table_command(changed, if_not_exists=True)).conflict_seq == 1
    assert store.catalog.tables == {"orders": table()}


def test_create_table_is_ok_when_the_same_command_is_applied_again() -> None:
    """A repeated proposal of one table is no conflict with itself."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    assert store.apply(create_table_command(table())).conflict_seq is None


def test_drop_table_remembers_the_uuid_for_ever() -> None:
    """S0.8: a dropped UUID is never accepted again, a new table of that name is another one."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    assert store.apply(drop_table_command("orders", b"u" * 16)).conflict_seq is None
    assert store.catalog.tables == {}
    assert store.catalog.dropped == {b"u" * 16: "orders"}
    assert store.apply(create_table_command(table())).conflict_seq == 2
    assert store.apply(create_table_command(table(uuid=b"v" * 16))).conflict_seq is None
    assert store.catalog.tables["orders"].uuid == b"v" * 16


def test_drop_table_remembers_who_had_batches_in_it() -> None:
    """By name, over all tables that had it; what an older version wrote names nobody, and it reads
    what is written now."""
    store = CatalogRows()
    for uuid, writers in ((b"u" * 16, (("w", "ck"),)), (b"v" * 16, (("w", "ck2"), ("x", "ck")))):
        store.apply(create_table_command(table(uuid=uuid)))
        store.apply(drop_table_command("orders", uuid, writers))
    expected = frozenset({("w", "ck"), ("w", "ck2"), ("x", "ck")})
    assert store.catalog.dropped_writers == {"orders": expected}
    older = msgspec.msgpack.encode({"name": "rows", "format": 1})
    store.rows[b"d/" + b"w" * 16] = Row(b"d/" + b"w" * 16, older, Seq(9))
    assert store.catalog.dropped_writers == {"orders": expected, "rows": frozenset()}
    row = msgspec.msgpack.decode(store.rows[b"d/" + b"u" * 16].value)
    assert (row["name"], row["format"]) == ("orders", 1)


def test_drop_table_is_a_conflict_when_the_table_is_another_or_gone() -> None:
    """A drop names the UUID it saw, so it never removes a table made since."""
    store = CatalogRows()
    assert store.apply(drop_table_command("orders", b"u" * 16)).conflict_seq == 0
    store.apply(create_table_command(table(uuid=b"v" * 16)))
    assert store.apply(drop_table_command("orders", b"u" * 16)).conflict_seq == 2
    assert "orders" in store.catalog.tables


def test_edit_table_replaces_the_entry_and_every_node_reads_the_same() -> None:
    """Properties travel with the catalog; identity and placement stay."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    edited = table(max_lag=5, max_staleness_ms=500, max_batches_behind=2, standby_reads=False)
    assert store.apply(edit_table_command(edited, Seq(1))).conflict_seq is None
    written = msgspec.structs.replace(edited, format=2, was_edited=True)
    assert store.catalog.tables == {"orders": written}
    assert store.catalog.seqs == {"orders": 2}


def test_edit_table_is_a_conflict_when_the_entry_is_another_one_by_now() -> None:
    """S0.8: who edits what somebody else has just edited, dropped or replaced gets that answer."""
    store = CatalogRows()
    assert store.apply(edit_table_command(table(max_lag=1), Seq(1))).conflict_seq == 0
    store.apply(create_table_command(table()))
    assert store.apply(edit_table_command(table(max_lag=1), Seq(1))).conflict_seq == 2
    assert store.apply(edit_table_command(table(max_lag=1), Seq(2))).conflict_seq is None
    assert store.apply(edit_table_command(table(max_lag=2), Seq(2))).conflict_seq == 4
    other = table(uuid=b"v" * 16, max_lag=3)
    assert store.apply(edit_table_command(other, Seq(4))).conflict_seq == 4
    assert store.catalog.tables["orders"].max_lag == 1


def test_table_that_was_edited_is_still_the_one_that_is_created_if_it_does_not_exist() -> None:
    """An application that creates its table at each start does not mind an operator's bound."""
    store = CatalogRows()
    store.apply(create_table_command(table(max_lag=10)))
    store.apply(edit_table_command(table(max_lag=20, max_staleness_ms=5), Seq(1)))
    again = table(uuid=b"w" * 16, max_lag=10)
    assert store.apply(create_table_command(again, if_not_exists=True)).conflict_seq is None
    wider = table(uuid=b"w" * 16, partitions=3)
    assert store.apply(create_table_command(wider, if_not_exists=True)).conflict_seq == 2


def test_table_with_more_columns_is_another_one_unless_it_was_edited() -> None:
    """Columns that an operator appended are no difference; those of another creation are one."""
    field = '{{"name":"{}","type":"long","nullable":true,"metadata":{{}}}}'
    fields = [field.format(name) for name in ("id", "total")]
    narrow, wide = (
        f'{{"type":"struct","fields":[{",".join(fields[:count])}]}}' for count in (1, 2)
    )
    again = create_table_command(table(uuid=b"w" * 16, schema_json=narrow), if_not_exists=True)
    store = CatalogRows()
    store.apply(create_table_command(table(schema_json=wide)))
    assert store.apply(again).conflict_seq == 1
    store = CatalogRows()
    store.apply(create_table_command(table(schema_json=narrow)))
    store.apply(edit_table_command(table(schema_json=wide), Seq(1)))
    assert store.apply(again).conflict_seq is None


def test_kip_26_catalog_entries_of_the_previous_version_are_read() -> None:
    """Rows and commands without the properties of today mean tables that have none of them."""
    known = ("name", "uuid", "key_columns", "partitions", "replicas", "durability", "max_lag")
    fields = msgspec.structs.asdict(table())
    old = {name: fields[name] for name in (*known, "schema_json", "placement")} | {"format": 1}
    command = {"op": "create_table", "entry": msgspec.msgpack.encode(old), "format": 1}
    store = CatalogRows()
    store.apply(msgspec.msgpack.encode(command))
    assert store.catalog.tables == {"orders": table()}


def test_only_the_edit_of_a_table_stops_a_node_of_the_previous_version() -> None:
    """A cluster that edits nothing can go back; the one that did says so with its format."""
    plain = (create_table_command(table()), drop_table_command("a", b"u"), REGISTER)
    assert {msgspec.msgpack.decode(command)["format"] for command in plain} == {1}
    edit = msgspec.msgpack.decode(edit_table_command(table(), Seq(1)))
    assert edit["format"] == msgspec.msgpack.decode(edit["entry"])["format"] == 2


def test_only_settings_of_its_own_give_a_table_the_format_that_knows_them() -> None:
    """Older nodes would skip them, so they stop at the command and at the row; a table without
    them, or whose settings were all taken back, is written as before."""
    own = table(settings=TableSettings(retention_records=5_000))
    for command, before in (
        (create_table_command(own), create_table_command(table())),
        (edit_table_command(own, Seq(1)), edit_table_command(table(), Seq(1))),
    ):
        told = msgspec.msgpack.decode(command)
        assert told["format"] == msgspec.msgpack.decode(told["entry"])["format"] == 3
        assert msgspec.msgpack.decode(before)["format"] < 3
    store = CatalogRows()
    store.apply(create_table_command(own))
    assert store.catalog.tables["orders"].settings == TableSettings(retention_records=5_000)
    store.apply(edit_table_command(table(), Seq(1)))
    assert store.catalog.tables["orders"].settings == TableSettings()


def test_table_with_other_settings_is_another_one_unless_it_was_edited() -> None:
    """A request to create it if it does not exist asks for these; what was edited since stays."""
    own = table(settings=TableSettings(retention_bytes=2 << 20))
    store = CatalogRows()
    store.apply(create_table_command(own))
    again = create_table_command(msgspec.structs.replace(own, uuid=b"v" * 16), if_not_exists=True)
    assert store.apply(again).conflict_seq is None
    plain = create_table_command(table(uuid=b"v" * 16), if_not_exists=True)
    assert store.apply(plain).conflict_seq == 1
    altered = table(settings=TableSettings(retention_bytes=3 << 20))
    store.apply(edit_table_command(altered, Seq(1)))
    assert store.apply(again).conflict_seq is None
    assert store.apply(plain).conflict_seq is None
    assert store.catalog.tables["orders"].settings == TableSettings(retention_bytes=3 << 20)


def test_register_node_enters_a_node_and_follows_its_address() -> None:
    """S0.7: an address is not an identity, it may change."""
    store = CatalogRows()
    store.apply(register_node_command(N1, "host:1", 1))
    store.apply(register_node_command(N2, "host:2", 1))
    assert store.apply(register_node_command(N1, "other:1", 1)).conflict_seq is None
    assert store.catalog.nodes == {
        "n1": NodeEntry(N1, "other:1", level=1),
        "n2": NodeEntry(N2, "host:2", level=1),
    }


def test_register_node_is_a_conflict_when_the_name_has_another_store_uuid() -> None:
    """S0.1: a node that lost its store does not take over its former identity by name."""
    store = CatalogRows()
    store.apply(register_node_command(N1, "host:1", 1))
    amnesiac = NodeId("n1@" + "ff" * 16)
    assert store.apply(register_node_command(amnesiac, "host:1", 1)).conflict_seq == 1
    assert store.catalog.nodes["n1"].node == N1


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        (RecordKind.ROWS, b"\x90", "is of kind 1, which a catalog of this version cannot apply"),
        (RecordKind.STAGED, b"", "is of kind 5"),
        (RecordKind.COMMAND, b"\xc1", "cannot be applied"),
        (RecordKind.COMMAND, msgspec.msgpack.encode({"op": "rename_table"}), "rename_table"),
        (
            RecordKind.COMMAND,
            msgspec.msgpack.encode({"op": "create_table", "entry": b"", "format": NEWER}),
            f"catalog format {NEWER} is newer than {CATALOG_FORMAT}; run a newer version on "
            "this node",
        ),
        (
            RecordKind.COMMAND,
            msgspec.msgpack.encode({"op": "register_node", "entry": b"\x80"}),
            "no NodeEntry",
        ),
        (
            RecordKind.COMMAND,
            create_table_command(table(format=NEWER)),
            f"catalog format {NEWER} is newer",
        ),
    ],
)
def test_record_that_cannot_be_understood_stops_the_node(
    kind: RecordKind, payload: bytes, text: str
) -> None:
    """A newer or damaged command is never skipped: that would part the replicas."""
    with pytest.raises((CorruptRecordError, NewerFormatError)) as error:
        CatalogRows().apply(payload, kind)
    assert text in str(error.value)
    # Damage has the tables built again; what is only newer must be left as it is.
    is_newer = "newer" in text or "of kind" in text
    assert isinstance(error.value, NewerFormatError) is is_newer


def test_stored_bytes_are_those_of_the_command() -> None:
    """Fields this version does not know survive, so replicas of two versions store the same."""
    entry = msgspec.structs.asdict(table()) | {"colour": "red"}
    raw = msgspec.msgpack.encode(entry)
    command = msgspec.msgpack.encode({"op": "create_table", "entry": raw, "format": 1})
    store = CatalogRows()
    store.apply(command)
    assert store.rows[b"t/orders"].value == raw
    assert store.catalog.tables == {"orders": table()}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((b"?/1", b"\x80"), "unknown sort"),
        ((b"t/1", b"\x80"), "no TableEntry"),
        (
            (b"n/1", msgspec.msgpack.encode(NodeEntry(N1, "a", NEWER))),
            f"catalog format {NEWER} is newer",
        ),
    ],
)
def test_catalog_refuses_rows_that_this_version_cannot_read(
    row: tuple[bytes, bytes], text: str
) -> None:
    """A node does not serve from a catalog that it understands only in part."""
    with pytest.raises((CorruptRecordError, NewerFormatError), match=text):
        Catalog.from_rows([(*row, Seq(1))], 1)


def test_catalog_is_ordered_by_name_whatever_the_order_of_rows() -> None:
    """Everything derived from the catalog is the same on every node."""
    store = CatalogRows()
    for name in ("b", "a", "c"):
        store.apply(create_table_command(table(name, name.encode() * 16)))
    assert list(store.catalog.tables) == ["a", "b", "c"]
    backwards = Catalog.from_rows(
        [(r.key, r.value, r.seq) for r in reversed(store.rows.values())], 3
    )
    assert backwards == store.catalog


def test_catalog_answers_by_channel_and_by_node() -> None:
    """A channel's table and replicas, and the channels of a node, come from the committed rows."""
    store = CatalogRows()
    store.apply(create_table_command(table(placement=((N1, N2), (N2, N3)))))
    catalog = store.catalog
    first, second = catalog.tables["orders"].channels
    assert (first, second) == (channel_id(b"u" * 16, 0), channel_id(b"u" * 16, 1))
    assert catalog.table_of(first) == catalog.tables["orders"]
    assert catalog.replicas_of(second) == (N2, N3)
    assert catalog.channels_of(N2) == (first, second)
    assert catalog.channels_of(N3) == (second,)


def test_catalog_knows_no_channel_of_a_dropped_or_unknown_table() -> None:
    """S0.8: nothing is derived from a channel id that no committed table has."""
    store = CatalogRows()
    store.apply(create_table_command(table()))
    assert store.catalog.replicas_of(channel_id(b"u" * 16, 2)) == ()
    store.apply(drop_table_command("orders", b"u" * 16))
    channel = channel_id(b"u" * 16, 0)
    assert store.catalog.table_of(channel) is None
    assert store.catalog.replicas_of(channel) == ()
    assert Catalog.empty().channels_of(N1) == ()


def test_catalog_encodings_stay_as_they_are_stored() -> None:
    """Golden bytes: commands are in logs, rows in stores."""
    assert register_node_command(NodeId("n1@00"), "h:1", 1, "r1").hex() == (
        "83a26f70ad72656769737465725f6e6f6465"
        "a5656e747279c43a"
        "85a46e6f6465a56e31403030a8656e64706f696e74a3683a31a6666f726d617401a56c6576656c01"
        "ae6661696c7572655f646f6d61696ea27231"
        "a6666f726d617401"
    )


def test_entry_with_another_number_than_its_placement_is_for_newer_nodes() -> None:
    """They would take the number for that of the replicas there are, and end no resizing."""
    placed = ((N1, N2), (N2, N3))
    whole = table(placement=placed, replicas=2)
    assert edited_format(whole) == EDITED_FORMAT
    for each in (
        msgspec.structs.replace(whole, replicas=3),
        msgspec.structs.replace(whole, is_resizing=True),
    ):
        assert edited_format(each) == MEMBERS_FORMAT
        command = msgspec.msgpack.decode(edit_table_command(each, Seq(1)))
        assert command["format"] == MEMBERS_FORMAT
        assert msgspec.msgpack.decode(command["entry"])["format"] == MEMBERS_FORMAT


def test_request_to_create_a_table_means_the_one_whose_number_was_edited() -> None:
    """A deployment that creates what is missing does not fail because an operator made it safer."""
    whole = table(placement=((N1, N2),), replicas=2)
    asked = msgspec.structs.replace(whole, uuid=b"", placement=())
    edited = msgspec.structs.replace(whole, replicas=3, was_edited=True, is_resizing=True)
    assert edited.same_definition(asked)
    assert not msgspec.structs.replace(whole, replicas=3).same_definition(asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2, "placement": ((N1, N2), (N2, N3))},
        {"max_lag": 7},
        {"settings": TableSettings(ttl_ms=9)},
        {"schema_json": "{}"},
        {"partitions": 1},
    ],
)
def test_table_that_was_not_edited_is_the_same_only_as_it_was_asked_for(
    changes: dict[str, object],
) -> None:
    """Properties that operators may change count for an edited one no more; its columns do, but
    for those that were appended.
    """
    whole, other = table(), table(**changes)
    assert not whole.same_definition(other)
    assert not other.same_definition(whole)
    edited = msgspec.structs.replace(whole, was_edited=True)
    is_operators = not {"schema_json", "partitions"}.intersection(changes)
    older = msgspec.structs.replace(whole, format=EDITED_FORMAT)
    assert older.same_definition(other) is is_operators
    assert edited.same_definition(other) is is_operators
    assert other.same_definition(edited) is is_operators


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({}, FIRST_FORMAT),
        ({"settings": TableSettings(ttl_ms=9)}, SETTINGS_FORMAT),
        ({"durability": "memory"}, DURABILITY_FORMAT),
        ({"settings": TableSettings(restoring="0a" * 16)}, DURABILITY_FORMAT),
        ({"replicas": 2}, MEMBERS_FORMAT),
        ({"is_resizing": True, "durability": "memory"}, MEMBERS_FORMAT),
        ({"machine": "orders:Orders", "replicas": 2}, MACHINE_FORMAT),
    ],
)
def test_command_has_the_lowest_format_that_can_say_it_and_is_read(
    changes: dict[str, object], number: int
) -> None:
    """Nodes of an older version refuse what they cannot keep, and only that (S0.8)."""
    entry = table(**changes)
    assert created_format(entry) == number
    assert CatalogRows().apply(create_table_command(entry)).conflict_seq is None
    stored = msgspec.msgpack.encode(msgspec.structs.replace(entry, format=number))
    assert decode_entry(stored, TableEntry).format == number


def test_node_that_an_older_version_entered_has_no_failure_domain() -> None:
    """The stored bytes of level 5 have none; a node of the catalog that has one fails with it."""
    store = CatalogRows()
    store.apply(
        bytes.fromhex(
            "83a26f70ad72656769737465725f6e6f6465"
            "a5656e747279c428"
            "84a46e6f6465a56e31403030a8656e64706f696e74a3683a31a6666f726d617401a56c6576656c01"
            "a6666f726d617401"
        )
    )
    assert store.catalog.nodes == {"n1": NodeEntry(NodeId("n1@00"), "h:1", level=1)}
    assert store.catalog.domains() == {}
    store.apply(register_node_command(NodeId("n1@00"), "h:1", 1, "r1"))
    assert store.catalog.domains() == {NodeId("n1@00"): "r1"}


def test_node_that_an_older_version_entered_is_at_level_0() -> None:
    """The stored bytes of the first version have no level."""
    store = CatalogRows()
    store.apply(
        bytes.fromhex(
            "83a26f70ad72656769737465725f6e6f6465"
            "a5656e747279c421"
            "83a46e6f6465a56e31403030a8656e64706f696e74a3683a31a6666f726d617401"
            "a6666f726d617401"
        )
    )
    assert store.catalog.nodes == {"n1": NodeEntry(NodeId("n1@00"), "h:1", level=0)}


def test_older_version_reads_the_entry_of_a_node_with_a_level() -> None:
    """The first version knows three fields and skips what follows them."""

    class FirstEntry(msgspec.Struct, frozen=True):
        node: str
        endpoint: str
        format: int = 1

    stored = msgspec.msgpack.encode(NodeEntry(N1, "h:1", level=LEVEL))
    assert msgspec.msgpack.decode(stored, type=FirstEntry) == FirstEntry(N1, "h:1")
