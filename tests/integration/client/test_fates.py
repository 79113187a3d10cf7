"""Fates of writes, edited tables and events, against scripted nodes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import (
    ArgumentError,
    ConfigError,
    ConflictError,
    GuidExpiredError,
    PartialWriteError,
    SchemaError,
    StoreTooOldError,
    UnknownTableError,
)
from raftstore.policy.levels import TABLE_SETTINGS_LEVEL
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import ChannelId, Guid, channel_id, guid_text, make_guid
from tests.integration.client.fake_cluster import FakeCluster, refuse
from tests.integration.client.play import QUICK, play


class SchemaText:
    """An object with a schema's JSON, like Spark's own schemas."""

    def __init__(self, **types: str) -> None:
        self._types = types

    def json(self) -> str:
        """Spark's text of it."""
        fields = [{"name": name, "type": kind} for name, kind in self._types.items()]
        return json.dumps({"type": "struct", "fields": fields})


def test_fate_of_a_write_is_asked_by_the_guid_of_its_ack() -> None:
    """N4: committed at its position, or not applied; a new leader is found like for any request."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        ack = await client.table("t").put({"id": 1})
        fate = await client.fate(ack.guid)
        assert (fate.fate, fate.seq, fate.position) == ("committed", 1, ack.position)
        assert (fate.partition, fate.node) == (0, "n1")
        channel, guid = parse_guid(ack.guid)
        other = guid_text(channel, make_guid(guid[:8], 99))
        cluster.elect(cluster.channels[channel], "n2")
        fate = await client.fate(other)
        assert (fate.fate, fate.seq, fate.position) == ("not_applied", None, None)
        assert fate.node == "n2"

    play(test)


def test_errors_of_writes_tell_their_guid() -> None:
    """A write without a good answer is the one whose fate is wanted."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        with pytest.raises(ConflictError) as conflict:
            await table.put({"id": 1}, if_absent=True)
        cluster.nodes["n1"].publish_scripts.append(refuse("guid_expired"))
        with pytest.raises(GuidExpiredError) as expired:
            await table.put({"id": 2})
        guids = [ack.guid, conflict.value.guid, expired.value.guid]
        assert len(set(guids)) == 3
        assert all(guid is not None and len(guid) == 68 for guid in guids)
        assert conflict.value.guid is not None
        assert (await client.fate(conflict.value.guid)).fate == "committed"

    play(test)


def test_partial_write_names_the_records_whose_outcome_is_unknown() -> None:
    """Each of them can be asked for; what was refused or applied needs no question."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.append(refuse("guid_expired"))
        with pytest.raises(PartialWriteError) as caught:
            await client.table("t").put_many([{"id": n} for n in range(50)])
        assert caught.value.unknown
        (guid,) = caught.value.guids
        assert (await client.fate(guid)).fate == "not_applied"

    play(test, partitions=3)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 33, "00" * 35, "0g" * 34, " " + "00" * 34, 7])
def test_text_that_names_no_write_is_refused(text: Any) -> None:
    """Before anybody is asked."""
    with pytest.raises(SchemaError, match="is not the guid of a write"):
        parse_guid(text)


def test_fate_of_a_write_of_a_dropped_table_is_that_there_is_none() -> None:
    """The table is gone, and with it what is known of its writes."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        gone = guid_text(ChannelId(channel_id(b"d" * 16, 0)), Guid(bytes(16)))
        with pytest.raises(UnknownTableError, match="is not in the catalog"):
            await client.fate(gone)

    play(test)


def test_table_is_edited_and_seen_as_edited() -> None:
    """Bounds in rows, seconds and micro-batches; None takes one away."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        changed = await client.edit_table("t", max_lag=5, max_staleness=1.5, standby_reads=False)
        assert (changed.max_lag, changed.max_staleness_ms) == (5, 1500)
        assert not changed.standby_reads
        assert (await client.edit_table("t", max_lag=None)).max_lag is None
        for wrong in ({"max_lag": -1}, {"max_staleness": True}, {"standby_reads": 1}, {"x": 1}, {}):
            with pytest.raises(ConfigError):
                await client.edit_table("t", **wrong)  # type: ignore[arg-type]

    play(test)


def test_settings_of_a_table_are_told_in_bytes_records_and_seconds() -> None:
    """When it is created and when it is altered; None gives the decision back to the nodes."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        made = await client.create_table(
            "kept", key="id", partitions=1, retention_bytes=2 << 20, retention_age=1.5
        )
        assert made.settings == TableSettings(2 << 20, None, 1_500)
        altered = await client.alter_table("kept", retention_age=None, retention_records=5_000)
        assert altered.settings == TableSettings(2 << 20, 5_000, None)
        assert (await client.table_info("kept")).settings == altered.settings
        for wrong, told in (
            ({"retention_bytes": 5}, "retention_bytes=5 is outside 1048576 to 1099511627776 bytes"),
            ({"retention_records": 1.5}, "retention_records=1.5 is outside 1000"),
            ({"retention_age": -1}, "retention_age=-1 is no number of seconds"),
            ({"retention_age": 0.0005}, "retention_age=0.0005 is less than a millisecond"),
            ({"retention_age": 1e9}, "retention_age_ms=1000000000000 is outside 0"),
        ):
            given: Any = wrong
            with pytest.raises(ArgumentError, match=told):
                await client.alter_table("kept", **given)
            with pytest.raises(ArgumentError, match=told):
                await client.create_table("no", key="id", **given)
        unknown: Any = {"retention": 1}
        with pytest.raises(ArgumentError, match="a new table takes no 'retention'; its settings"):
            await client.create_table("no", key="id", **unknown)
        with pytest.raises(ArgumentError, match="a table has no property 'retention'; there are"):
            await client.alter_table("kept", **unknown)

    play(test)


def test_settings_are_not_sent_to_a_leader_that_would_skip_them() -> None:
    """A node of an older version leads the catalog: nothing is created, the text names it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.read_level = TABLE_SETTINGS_LEVEL - 1
        told = f"needs level 5, but the leader n1 is at level {TABLE_SETTINGS_LEVEL - 1}; upgrade"
        async with await aio.connect(cluster.endpoints, settings=QUICK) as late:
            with pytest.raises(StoreTooOldError, match=told):
                await late.create_table("kept", key="id", partitions=1, retention_bytes=2 << 20)
            with pytest.raises(StoreTooOldError, match="upgrade this node"):
                await late.alter_table("t", retention_bytes=2 << 20)
            assert list(cluster.tables) == ["t"]
            await late.create_table("plain", key="id", partitions=1)
            await late.alter_table("plain", max_lag=4)

    play(test)


def test_columns_are_appended_while_the_table_is_used() -> None:
    """Rows of before are null in them; a handle that was open writes and reads them at once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        before = SchemaText(id="long", a="string")
        await client.create_table("wide", key="id", partitions=1, replicas=1, schema=before)
        table = client.table("wide")
        await table.put({"id": 1, "a": "x"})
        after = SchemaText(id="long", a="string", b="long")
        await client.edit_table("wide", add_columns=after)
        await client.edit_table("wide", add_columns=after.json())
        assert await table.get(1) == {"id": 1, "a": "x", "b": None}
        await table.put({"id": 2, "a": "y", "b": 7})
        assert await table.get(2) == {"id": 2, "a": "y", "b": 7}
        for wrong in (None, 7):
            with pytest.raises(ConfigError, match="is no schema; give one of Spark's"):
                await client.edit_table("wide", add_columns=wrong)

    play(test)


def test_table_without_standby_reads_is_read_at_its_leader() -> None:
    """BLOG-18: unless the read itself says how old its answer may be."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        await client.edit_table("t", standby_reads=False)
        await table.get(1, at_least=ack.position)
        await table.get(1, level="any", at_least=ack.position)
        await table.get(1, max_lag=0)
        levels = [read.level for node in cluster.nodes.values() for read in node.reads]
        assert sorted(levels) == ["any", "bounded", "leader"]

    play(test)


def test_events_come_from_every_node_and_only_once() -> None:
    """``next`` is where to go on; a node that is away is named with its reason."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for number, node in enumerate(cluster.nodes.values()):
            node.events = [{"type": "role", "at_wall_ms": 9 - number}]
        cluster.nodes["n2"].events.append({"type": "failover", "at_wall_ms": 20})
        found = await client.events()
        assert [event["node"] for event in found.events] == ["n3", "n2", "n1", "n2"]
        assert found.next == {"n1": 1, "n2": 2, "n3": 1}
        assert [e["node"] for e in (await client.events("failover")).events] == ["n2"]
        await cluster.nodes["n3"].kill()
        cluster.nodes["n1"].events.append({"type": "role", "at_wall_ms": 30})
        found = await client.events(since=found.next)
        assert [event["at_wall_ms"] for event in found.events] == [30]
        assert set(found.errors) == {"n3"}
        assert found.next["n3"] == 1

    play(test)


CALLS: dict[str, Callable[[AsyncClient, str], Awaitable[object]]] = {
    "get": lambda client, _: client.table("t").get(1),
    "get_many": lambda client, _: client.table("t").get_many([1, 2], level="leader"),
    "page": lambda client, _: client.table("t").page(),
    "count": lambda client, _: client.count("t"),
    "put": lambda client, _: client.table("t").put({"id": 2}),
    "delete": lambda client, _: client.table("t").delete(2),
    "fate": lambda client, guid: client.fate(guid),
    "step_down": lambda client, _: client.step_down("t/0", target="n1"),
    "create_table": lambda client, _: client.create_table("new", key="id", partitions=1),
    "edit_table": lambda client, _: client.edit_table("t", max_lag=1),
    "drop_table": lambda client, _: client.drop_table("t"),
}


@pytest.mark.parametrize("call", CALLS)
def test_gap_08_refusal_of_who_does_not_lead_names_the_leader_and_is_followed(call: str) -> None:
    """GAP-08: whatever is asked of a leader that is none any more, its hint is where to go.

    All nodes report an old view of who leads, so only the hint can be what was followed.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        guid = (await client.table("t").put({"id": 1})).guid
        old = {name: cluster.info(1, node) for name, node in cluster.nodes.items()}
        (channel,) = (cluster.channels[c.channel] for c in cluster.tables["t"].channels)
        for led in (channel, cluster.metadata):
            cluster.elect(led, "n3")
        is_of_rows = call not in ("create_table", "edit_table", "drop_table", "step_down")
        for name, node in cluster.nodes.items():
            node.copy = old[name] if is_of_rows else None
        await CALLS[call](client, guid)

    play(test)
