"""Channel sets from a client: what is sent, what comes back, and what is refused before it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import raftstore
from raftstore.aio import AsyncClient
from raftstore.client.machines.code import codecs_by_name, name_of
from raftstore.client.machines.json_values import from_json, to_json
from raftstore.errors import (
    ArgumentError,
    ConnectionInDoubtError,
    MachineStoppedError,
    OperationInDoubtError,
    PayloadTooLargeError,
    RejectedError,
    RequestError,
    SchemaError,
    StoreTooOldError,
    UnknownMachineError,
    UnknownTableError,
)
from raftstore.machine import COMMAND_BYTES_MAX
from raftstore.protocol.machines import decode_command
from raftstore.types import Level, Outcome, RecordKind, Seq
from tests.integration.client.fake_cluster import (
    FakeCluster,
    apply_and_lose,
    fail,
    lose,
    refuse,
    silence,
)
from tests.integration.client.fake_machines import REASON, Counter
from tests.integration.client.play import only_channel, play


class Named(msgspec.Struct):
    """A value with bytes in it."""

    name: str
    content: bytes = b""


NAME = "tests.integration.client.fake_machines:Counter"


def sets(cluster: FakeCluster, partitions: int = 1, machine: str = NAME) -> None:
    """Make the channel set "c"."""
    cluster.add_table("c", partitions, key=(), machine=machine)


def test_a_command_is_a_record_of_its_kind_at_every_replica() -> None:
    """Key and encoded command are the payload, one seq; the result is decoded."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c", machine=Counter)
        assert await counters.command("visits", 2) == 2
        done = await counters.command_result(b"visits", 3)
        nodes = list(cluster.nodes.values())
        await cluster.until(lambda: all(len(node.published) == 2 for node in nodes))
        message = nodes[0].published[1]
        assert (message.kind, message.rows) == (RecordKind.MACHINE_COMMAND, 1)
        assert decode_command(message.payload) == (b"visits", Counter.commands.encode(3))
        assert (done.result, done.seq, done.partition, done.replicas_acked) == (5, 2, 0, 2)
        assert done.guid == f"{message.channel.hex()}{message.guid.hex()}"

    play(test)


def test_attempts_of_a_command_have_one_guid_and_it_is_applied_once() -> None:
    """Lost answers and refusals are retried by the client; nothing is counted twice."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        cluster.nodes["n1"].publish_scripts.extend([refuse("overloaded"), apply_and_lose, lose])
        assert await client.channelset("c").command("k", 1) == 1
        assert len(only_channel(cluster, "c").applied) == 1
        guids = {message.guid for message in cluster.nodes["n1"].published}
        assert len(guids) == 1

    play(test)


def test_a_command_is_repeated_by_the_guid_of_its_error() -> None:
    """Its outcome was unknown; given again it has the result that it had, also from another
    client, and promises nothing that would make a second record of it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        await counters.command("k", 5)
        for node in cluster.nodes.values():
            node.publish_scripts.append(apply_and_lose if node.name == "n1" else silence)
            node.publish_scripts.extend([silence] * 100)
        with pytest.raises(RequestError) as caught:
            await counters.command("k", 7, timeout=0.3)
        assert caught.value.outcome is Outcome.UNKNOWN
        for node in cluster.nodes.values():
            node.publish_scripts.clear()
        assert await counters.command("k", 1) == 13
        sent = len(cluster.nodes["n1"].published)
        async with await raftstore.aio.connect(cluster.endpoints, timeout=5) as other:
            again = await other.channelset("c").command("k", 7, guid=caught.value.guid)
        assert again == 12
        message = cluster.nodes["n1"].published[sent]
        assert message.attempt > 0
        assert (message.after_seq, message.is_settled) == (0, False)
        assert len(only_channel(cluster, "c").applied) == 3

    play(test)


def test_a_repeated_command_that_is_not_answered_stays_unknown() -> None:
    """A refusal of this call says nothing of the attempts of the one before (S5.6)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        guid = (await counters.command_result("k", 1)).guid
        cluster.nodes["n1"].publish_scripts.extend([refuse("overloaded")] * 1_000)
        with pytest.raises(ConnectionInDoubtError, match="raftstore fate") as caught:
            await counters.command("k", 1, guid=guid, timeout=0.2)
        assert caught.value.guid == guid

    play(test)


def test_guid_of_another_partition_is_refused() -> None:
    """It names a command that went elsewhere: here it would be another one."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster, 4)
        counters = client.channelset("c")
        guid = (await counters.command_to_partition(2, 1, key="k")).guid
        with pytest.raises(ArgumentError, match="another partition"):
            await counters.command_to_partition(1, 1, key="k", guid=guid)
        with pytest.raises(SchemaError, match="hexadecimal"):
            await counters.command("k", 1, guid="nonsense")

    play(test)


def test_a_rejected_command_raises_the_reason() -> None:
    """It is in the log and changed nothing; the error has its guid."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        with pytest.raises(RejectedError, match=REASON) as caught:
            await client.channelset("c").command("k", -1)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert caught.value.guid is not None
        assert only_channel(cluster, "c").rows == {}

    play(test)


@pytest.mark.parametrize(
    ("options", "level", "asked"),
    [
        ({}, Level.LINEARIZABLE, "n1"),
        ({"level": "leader"}, Level.LEADER, "n1"),
        ({"max_lag": 0, "replica": "n2"}, Level.BOUNDED, "n2"),
        ({"level": "any", "replica": "n3"}, Level.ANY, "n3"),
    ],
)
def test_queries_go_where_reads_of_their_level_go(
    options: dict[str, Any], level: Level, asked: str
) -> None:
    """The request says the level; the result says who answered, and of which state."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        done = await counters.command_result("k", 4)
        found = await counters.query_result("k", "total", **options)
        assert found.answer == {"total": 4}
        assert (found.level, found.node.partition("@")[0]) == (level, asked)
        assert found.applied_seq == done.seq
        (question,) = cluster.nodes[asked].queries
        assert (question.key, question.level) == (b"k", level.value)

    play(test)


def test_query_waits_for_a_position() -> None:
    """A command's position goes into the request, for its channel alone."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        done = await counters.command_result("k", 4)
        await counters.query("k", "x", at_least=done.position, replica="n2")
        assert cluster.nodes["n2"].queries[0].min_seq == done.seq
        assert cluster.nodes["n2"].queries[0].level == "any"

    play(test)


def test_query_of_all_partitions_answers_in_their_order() -> None:
    """Each partition is asked once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster, 3)
        counters = client.channelset("c")
        for partition in range(3):
            await counters.command_to_partition(partition, partition + 10)
        assert await counters.query_all("n") == [{"n": 10}, {"n": 11}, {"n": 12}]
        assert (await counters.query_partition(2, "n")).partition == 2
        with pytest.raises(ArgumentError, match="0 to 2"):
            await counters.query_partition(3, "n")

    play(test)


def test_a_refused_question_raises_the_reason() -> None:
    """As a rejected command does; no other replica is asked."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        with pytest.raises(RejectedError, match="c/0: not so"):
            await client.channelset("c").query("k", "refused", level="any")
        assert sum(len(node.queries) for node in cluster.nodes.values()) == 1

    play(test)


def test_values_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    """Keys, commands, questions and options, each by its name."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        for key in ("", 5, b"k" * 1_025, "half \udc80"):
            with pytest.raises(ArgumentError, match="key"):
                await counters.command(key, 1)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match=r"the command: 'one' is no .*nothing was sent"):
            await counters.command("k", "one")
        with pytest.raises(SchemaError, match="the question: 7"):
            await counters.query("k", 7)
        with pytest.raises(ArgumentError, match="columns"):
            await counters.query("k", "x", columns=["a"])
        large = client.channelset("c", codec=raftstore.BYTES)
        with pytest.raises(PayloadTooLargeError):
            await large.command("k", b"x" * (COMMAND_BYTES_MAX + 1))
        assert cluster.nodes["n1"].published == []

    play(test)


def test_a_result_that_cannot_be_read_here_is_of_a_command_that_was_applied() -> None:
    """The error cannot be taken for one of what was not sent; its guid leads to the result."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)

        class Other(Counter):
            """Code of another version, as far as results go."""

            results = raftstore.codec(str)

        with pytest.raises(OperationInDoubtError, match=r"c/0 has applied the command at") as seen:
            await client.channelset("c", machine=Other).command("k", 1)
        assert seen.value.outcome is Outcome.UNKNOWN
        assert await client.channelset("c").command("k", 1, guid=seen.value.guid) == 1
        assert len(only_channel(cluster, "c").applied) == 1

    play(test)


def test_a_module_that_ends_the_process_ends_no_client(tmp_path: Path) -> None:
    """Its codecs are not here, as with any other that cannot be imported."""
    (tmp_path / "my_exiting.py").write_text("raise SystemExit(3)")
    sys.path.append(str(tmp_path))
    try:
        assert "SystemExit: 3" in codecs_by_name("my_exiting:Counter").lacks
    finally:
        sys.path.remove(str(tmp_path))


def test_a_query_of_a_stopped_machine_says_so_however_its_last_attempt_ends() -> None:
    """No patience helps, and the last attempt's end, with its few milliseconds, says nothing."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        counters = client.channelset("c")
        await counters.command("k", 1)
        scripts = cluster.nodes["n1"].request_scripts
        scripts.append(fail("machine_stopped", "c/0: the state machine stopped at seq 4"))
        scripts.extend([fail("query_error", "no quorum confirmed the leader")] * 5_000)
        with pytest.raises(MachineStoppedError, match="stopped at seq 4"):
            await counters.query("k", "x", timeout=0.4)
        with pytest.raises(UnknownTableError, match="there is no channel set 'nix'"):
            await client.channelset_info("nix")

    play(test)


def test_without_the_code_values_are_bytes_and_errors_say_why() -> None:
    """A machine that is not installed here still takes bytes, and values of a codec given."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster, machine="not_here:Counter")
        with pytest.raises(SchemaError, match=r"not_here:Counter cannot be loaded here.*codec="):
            await client.channelset("c").command("k", 1)
        done = await client.channelset("c").command("k", Counter.commands.encode(1))
        assert done == Counter.results.encode(1)
        assert await client.channelset("c", codec=raftstore.codec(int)).command("k", 1) == 2
        with pytest.raises(UnknownMachineError, match="not_here:Other"):
            client.channelset("c", machine="not_here:Other")
        with pytest.raises(ArgumentError, match="both given"):
            client.channelset("c", machine=Counter, codec=raftstore.JSON)
        with pytest.raises(ArgumentError, match="is no codec"):
            client.channelset("c", codec="json")  # type: ignore[arg-type]

    play(test)


def test_channel_sets_are_created_listed_and_dropped_apart_from_tables() -> None:
    """Each list has its own kind, and each kind its own way to be removed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        made = await client.create_channelset("c", Counter, partitions=2)
        assert (made.machine, made.partitions, made.key_columns) == (NAME, 2, ())
        assert [info.name for info in await client.tables()] == ["t"]
        assert [info.name for info in await client.channelsets()] == ["c"]
        assert (await client.channelset_info("c")).machine == NAME
        with pytest.raises(SchemaError, match="drop_channelset"):
            await client.drop_table("c")
        with pytest.raises(SchemaError, match="no channel set"):
            await client.drop_channelset("t")
        await client.drop_channelset("c")
        assert await client.channelsets() == ()
        with pytest.raises(UnknownTableError, match="no channel set 'c'"):
            await client.channelset("c").command("k", 1)

    play(test)


def test_a_table_and_a_channel_set_are_not_taken_for_each_other() -> None:
    """Rows of a channel set and commands to a table are refused with what to do."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster)
        table = client.table("c")
        with pytest.raises(SchemaError, match="channel set of the machine"):
            await table.put({"id": 1})
        with pytest.raises(SchemaError, match="no rows"):
            await table.get(1)
        with pytest.raises(SchemaError, match="no rows"):
            [row async for row in table.scan()]
        with pytest.raises(SchemaError, match="no rows"):
            await client.table_info("c")
        with pytest.raises(SchemaError, match="is a table"):
            await client.channelset("t").command("k", 1)
        assert all(not node.published for node in cluster.nodes.values())

    play(test)


def test_an_older_leader_is_not_asked_for_a_channel_set() -> None:
    """It would make a table of it: nothing is sent to it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.read_level = 6
        async with await raftstore.aio.connect(cluster.endpoints, timeout=5) as later:
            with pytest.raises(StoreTooOldError, match="level 7"):
                await later.create_channelset("c", Counter)
        assert "c" not in cluster.tables

    play(test)


def test_a_stopped_command_is_skipped_at_the_leader() -> None:
    """The request names channel and seq."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        sets(cluster, 2)
        await client.skip_command("c", 1, 9)
        channel = cluster.tables["c"].channels[1].channel
        assert cluster.skipped == [(channel, Seq(9))]

    play(test)


def test_a_class_that_no_node_can_import_is_refused() -> None:
    """Its name in the catalog would be of nothing."""

    class Local(Counter):
        """In a function."""

    with pytest.raises(ArgumentError, match="no node can import it"):
        name_of(Local)
    with pytest.raises(ArgumentError, match="is no state machine"):
        name_of(dict)
    assert name_of(Counter) == NAME


def test_json_of_values() -> None:
    """Bytes are text where they are text; a codec's own values go as they are."""
    assert to_json(b"text") == "text"
    assert to_json(b"\xff") == {"$binary": "/w=="}
    assert from_json(raftstore.BYTES, {"$binary": "/w=="}) == b"\xff"
    assert from_json(raftstore.BYTES, "text") == b"text"
    assert from_json(raftstore.BYTES, None) == b""
    assert from_json(raftstore.JSON, {"a": 1}) == {"a": 1}
    assert from_json(raftstore.codec(bytes), "text") == b"text"
    assert from_json(raftstore.codec(Named), to_json(Named("a", b"\xff"))) == Named("a", b"\xff")
    with pytest.raises(SchemaError, match=r"Expected `str`, got `int` - at `\$.name`"):
        from_json(raftstore.codec(Named), {"name": 5})
    with pytest.raises(SchemaError, match="5 is no text"):
        from_json(raftstore.BYTES, 5)
