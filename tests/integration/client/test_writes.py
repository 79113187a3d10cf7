"""Writes against nodes that fail in every way: real frames on loopback, scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from raftstore.aio import AsyncClient
from raftstore.client.cluster.topology import Leader
from raftstore.client.position import Position
from raftstore.client.writes.session import ProducerSession
from raftstore.config import KEY_BYTES_MAX, VALUE_BYTES_MAX
from raftstore.errors import (
    ConfigError,
    ConflictError,
    ConnectionInDoubtError,
    OverloadedError,
    PayloadTooLargeError,
    PositionError,
    QuorumTimeoutError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.types import Outcome, Seq, Term
from tests.integration.client.fake_cluster import (
    Answer,
    FakeCluster,
    FakeNode,
    apply_and,
    apply_and_lose,
    lose,
    publish,
    refuse,
    silence,
)
from tests.integration.client.play import PATIENT, QUICK, play


def test_put_sends_one_frame_to_every_replica() -> None:
    """The payload goes to all replicas, addressed to the leader; no relay is needed (NATS-004).

    Shows NATS-048.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        ack = await client.table("t").put({"id": 1, "v": "x"})
        nodes = list(cluster.nodes.values())
        await cluster.until(lambda: all(node.published for node in nodes))
        messages = [node.published[0] for node in nodes]
        assert messages[0] == messages[1] == messages[2]
        assert messages[0].leader == cluster.nodes["n1"].id
        assert messages[0].relay_to == ()
        assert (ack.seq, ack.term, ack.durability, ack.replicas_acked) == (1, 1, "fsync", 2)

    play(test)


def test_put_names_unreachable_replicas_for_relay() -> None:
    """A replica without a connection gets the payload by way of the leader."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await cluster.nodes["n3"].kill()
        await client.table("t").put({"id": 1})
        (message,) = cluster.nodes["n1"].published
        assert message.relay_to == (cluster.nodes["n3"].id,)

    play(test)


def test_put_goes_direct_again_when_the_replica_is_back() -> None:
    """A restarted replica is reconnected in the background and needs no relay any more."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n3"]
        await client.table("t").put({"id": 1})
        await node.kill()
        await node.start()
        await cluster.until(lambda: node.connections)
        async with asyncio.timeout(5):
            while (await client.table("t").put({"id": 2})) and node.published[-1:] != [
                cluster.nodes["n1"].published[-1]
            ]:
                pass
        assert cluster.nodes["n1"].published[-1].relay_to == ()

    play(test)


@pytest.mark.parametrize("script", [refuse("overloaded"), refuse("unavailable"), silence])
def test_put_is_retried_with_the_same_guid(script: Answer) -> None:
    """Refused or unanswered attempts are repeated under one guid, and applied once (S4.5)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        node.publish_scripts.append(script)
        await client.table("t").put({"id": 1})
        assert [message.attempt for message in node.published] == [0, 1]
        assert len({message.guid for message in node.published}) == 1
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        assert len(channel.applied) == 1

    play(test)


@pytest.mark.parametrize(
    ("script", "is_settled"), [(refuse("overloaded"), True), (refuse("quorum_timeout"), False)]
)
def test_retry_tells_how_old_the_write_is(script: Answer, is_settled: bool) -> None:
    """S4.5: nodes take no clock's word for it, only what was acknowledged before it began."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table, node = client.table("t"), cluster.nodes["n1"]
        acked = (await table.put({"id": 1})).seq
        node.publish_scripts.append(script)
        await table.put({"id": 1})
        first, again = node.published[-2:]
        assert (first.attempt, first.after_seq, again.attempt) == (0, acked, 1)
        assert (again.after_seq, again.is_settled) == (acked, is_settled)

    play(test)


def test_put_follows_the_leader_hint() -> None:
    """A deposed leader's hint is followed within the same call."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        cluster.elect(channel, "n2")
        ack = await client.table("t").put({"id": 2})
        assert ack.term == 2
        assert cluster.nodes["n2"].published[-1].leader == cluster.nodes["n2"].id

    play(test)


def test_put_survives_a_killed_leader_when_another_is_elected() -> None:
    """The answer is lost with the leader; the retry at its successor is applied once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1})
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        node = cluster.nodes["n1"]
        node.publish_scripts.append(silence)
        put = asyncio.ensure_future(table.put({"id": 2}))
        await cluster.until(lambda: len(node.published) == 2)
        await node.kill()
        cluster.elect(channel, "n2")
        assert (await put).term == 2
        assert [message.guid for message in channel.applied].count(node.published[1].guid) == 1

    play(test)


def test_put_is_ok_once_when_only_the_answer_was_lost() -> None:
    """A committed write whose ack was lost is acknowledged by the retry, not applied again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.append(apply_and_lose)
        ack = await client.table("t").put({"id": 1})
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        assert len(channel.applied) == 1
        assert ack.seq == 1

    play(test)


def test_put_is_ok_when_the_quorum_timeout_was_too_early() -> None:
    """After "quorum timeout" the retry asks for the same guid and learns that it committed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.append(apply_and("quorum_timeout"))
        ack = await client.table("t").put({"id": 1})
        assert ack.seq == 1

    play(test)


def test_put_finds_the_successor_of_a_silent_leader() -> None:
    """A paused leader (connected, silent) is left as soon as another leader is known."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        (channel,) = [cluster.channels[info.channel] for info in cluster.tables["t"].channels]
        cluster.nodes["n1"].is_silent = True
        cluster.elect(channel, "n3")
        ack = await client.table("t").put({"id": 2})
        assert ack.term == 2

    play(test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scripts", "kind", "outcome"),
    [
        ([refuse("overloaded")], OverloadedError, Outcome.NOT_APPLIED),
        ([refuse("quorum_timeout")], QuorumTimeoutError, Outcome.UNKNOWN),
        ([silence], ConnectionInDoubtError, Outcome.UNKNOWN),
        ([lose, refuse("overloaded")], ConnectionInDoubtError, Outcome.UNKNOWN),
    ],
)
def test_put_at_its_deadline_tells_what_is_known(
    scripts: list[Answer], kind: type[RequestError], outcome: Outcome
) -> None:
    """NOT_APPLIED only while no attempt was ever in doubt (S5.6); never later than the deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.extend(scripts)
        with pytest.raises(kind) as caught:
            await client.table("t").put({"id": 1}, timeout=0.5)
        assert caught.value.outcome is outcome
        assert not cluster.nodes["n1"].publish_scripts

    # Pauses beyond the deadline: what is scripted happens once, however slow the machine is.
    play(test, replace(QUICK, retry_min_ms=60_000, retry_max_ms=60_000, resend_ms=60_000))


@pytest.mark.slow
def test_put_times_out_before_sending_when_there_is_no_leader() -> None:
    """Without a leader nothing is sent: RequestTimeoutError, NOT_APPLIED."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        (channel,) = cluster.add_table("leaderless")
        channel.leader = None
        with pytest.raises(RequestTimeoutError, match="leaderless/0") as caught:
            await client.table("leaderless").put({"id": 1}, timeout=0.5)
        assert caught.value.outcome is Outcome.NOT_APPLIED

    play(test)


def test_put_goes_on_as_soon_as_a_leader_is_elected() -> None:
    """A write that waits for a leader is sent when one appears."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        (channel,) = cluster.add_table("late")
        channel.leader = None
        put = asyncio.ensure_future(client.table("late").put({"id": 1}))
        await cluster.until(lambda: any(node.connections for node in cluster.nodes.values()))
        cluster.elect(channel, "n2")
        assert (await put).term == 2

    play(test)


def test_late_refusal_of_an_earlier_attempt_says_nothing_of_the_leader_of_now() -> None:
    """S12: a node that was deposed, and leads again, is not doubted for what it was before."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1})
        held: list[tuple[Message, Callable[[Message], None]]] = []

        def hold(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            held.append((message, reply))
            cluster.elect(channel, "n1")

        def answer_both(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            [(first, reply_first)] = held
            refuse("not_leader")(node, first, reply_first)
            publish(node, message, reply)

        (info,) = cluster.tables["t"].channels
        channel = cluster.channels[info.channel]
        node = cluster.nodes["n1"]
        node.publish_scripts.extend([hold, answer_both])
        await table.put({"id": 2})
        assert [message.attempt for message in node.published] == [0, 0, 1]
        leader = client._context.topology.leader_of(channel.channel)
        assert leader == Leader(node.id, channel.term)

    play(test)


def test_put_to_an_unknown_table_is_refused() -> None:
    """The error lists the tables that exist."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises(UnknownTableError, match=r"no table 'nope' \(there are: t\)"):
            await client.table("nope").put({"id": 1})

    play(test)


def test_put_to_a_dropped_table_ends_when_the_drop_is_known() -> None:
    """A handle of a dropped table does not retry until the deadline."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        cluster.drop_table("t")
        with pytest.raises(UnknownTableError, match=r"channel t/0 was dropped.*create it again"):
            await client.table("t").put({"id": 2})

    play(test)


def test_nothing_is_kept_of_a_dropped_table() -> None:
    """Given a dropped table, the client keeps nothing of it: programs that make and drop tables do
    not grow.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        writer = await client.table("t").bulk_writer()
        await client.table("t").put({"id": 1})
        cluster.drop_table("t")
        await client.tables()
        assert client._publisher._channels == {}
        await writer.add(0, encode_rows([]), 1)
        with pytest.raises(UnknownTableError, match="was dropped"):
            await writer.flush()
        assert client._publisher._channels == {}
        await writer.close()

    play(test)


def test_put_follows_a_table_that_was_made_again() -> None:
    """A table with the same name and another identity is found by a handle made before."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put({"id": 1})
        cluster.drop_table("t")
        (channel,) = cluster.add_table("t")
        await client.tables()
        await table.put({"id": 2})
        assert len(channel.applied) == 1

    play(test)


@pytest.mark.parametrize(
    ("row", "kind", "text"),
    [
        ({"v": 1}, SchemaError, "key column 'id' is missing"),
        ({"id": [1]}, SchemaError, "column 'id'"),
        ({"id": 1, "v": b"x" * (1 << 20)}, PayloadTooLargeError, "column 'v'"),
        ({"id": "k" * 5000}, PayloadTooLargeError, "more than 4096"),
    ],
)
def test_put_refuses_a_bad_row_before_sending(
    row: dict[str, object], kind: type[RequestError], text: str
) -> None:
    """Rows that cannot be stored name the column at fault and reach no node."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises(kind, match=text):
            await client.table("t").put(row)
        with pytest.raises(kind, match=r"row 1: .*nothing was written"):
            await client.table("t").put_many([{"id": 1}, row])
        assert not any(node.published for node in cluster.nodes.values())

    play(test)


def test_conditional_put_and_delete_apply_only_to_their_version() -> None:
    """A lost race is ConflictError, NOT_APPLIED, with the position of the row that won."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        first = await table.put({"id": 1, "v": 1}, if_absent=True)
        with pytest.raises(ConflictError, match="the row exists, in the version") as caught:
            await table.put({"id": 1, "v": 2}, if_absent=True)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert caught.value.position is not None
        second = await table.put({"id": 1, "v": 3}, if_position=caught.value.position)
        lost = f"written since: it has the version of seq {second.seq}.* that of seq {first.seq},"
        with pytest.raises(ConflictError, match=lost):
            await table.put({"id": 1, "v": 4}, if_position=first.position)
        with pytest.raises(ConflictError):
            await table.delete(1, if_position=first.position)
        read = await table.get_result(1)
        assert read.value == {"id": 1, "v": 3}
        assert read.position == second.position
        await table.delete(1, if_position=str(read.position))
        with pytest.raises(ConflictError, match="does not exist") as gone:
            await table.delete(1, if_position=second.position)
        assert gone.value.position is None

    play(test)


def test_conditions_must_make_sense() -> None:
    """Contradicting conditions and positions of other partitions are refused."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1})
        with pytest.raises(ConfigError, match="exclude each other"):
            await table.put({"id": 1}, if_absent=True, if_position=ack.position)
        other = (ack.partition + 1) % 2
        with pytest.raises(SchemaError, match=f"says nothing about partition {ack.partition} of"):
            await table.put({"id": 1}, if_position=position_in(cluster, "t", other))
        cluster.add_table("other")
        with pytest.raises(PositionError, match="is of another table than 'other'"):
            await client.table("other").put({"id": 1}, if_position=ack.position)

    play(test, partitions=2)


def position_in(cluster: FakeCluster, table: str, partition: int) -> Position:
    """A position of that partition alone."""
    return Position.at(cluster.tables[table].uuid, partition, Term(1), Seq(1))


def test_guids_are_released_with_the_outcome_of_their_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4.5: only unfinished writes count against the window, so more than it holds may follow."""
    monkeypatch.setattr(
        "raftstore.client.writes.publisher.ProducerSession", partial(ProducerSession, window=4)
    )

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.append(refuse("schema"))
        with pytest.raises(SchemaError):
            await client.table("t").put({"id": 0})
        for n in range(1, 9):
            await client.table("t").put({"id": n}, timeout=1)

    play(test)


def test_close_ends_running_writes_with_what_is_known() -> None:
    """Closing the client leaves no write hanging: what was sent is UNKNOWN."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        node = cluster.nodes["n1"]
        node.publish_scripts.extend([silence] * 100)
        put = asyncio.ensure_future(client.table("t").put({"id": 1}))
        await cluster.until(lambda: node.published)
        await client.close()
        with pytest.raises(ConnectionInDoubtError, match="closed"):
            await put
        with pytest.raises(UnavailableError, match="connect again"):
            await client.table("t").put({"id": 2})
        with pytest.raises(UnavailableError, match="connect again"):
            await client.table("t").get(1)
        with pytest.raises(UnavailableError, match="connect again"):
            await client.table("t").get(1, level="any")

    play(test)


def test_put_gives_up_its_guid_before_nodes_forget_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the deadline, a guid is retried only while nodes can recognize it (S4.5)."""
    monkeypatch.setattr("raftstore.client.writes.publisher.GUID_LIFE_MS", 50)

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.nodes["n1"].publish_scripts.append(silence)
        with pytest.raises(ConnectionInDoubtError, match="before the deadline"):
            await client.table("t").put({"id": 1}, timeout=3_600)

    play(test)


def test_put_needs_a_positive_timeout() -> None:
    """A timeout of nothing is refused."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        with pytest.raises(ConfigError, match="timeout=0 is not positive"):
            await client.table("t").put({"id": 1}, timeout=0)

    play(test)


def test_row_or_key_over_its_limit_is_refused_before_anything_is_sent() -> None:
    """A row of 1 MiB and a key of 4 KiB are taken, the next byte is not, and no node sees it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        room = VALUE_BYTES_MAX - 100
        await table.put({"id": 1, "text": "x" * room})
        await table.put({"id": "k" * (KEY_BYTES_MAX - 3)})
        sent = sum(len(node.published) for node in cluster.nodes.values())
        for row in ({"id": 2, "text": "x" * VALUE_BYTES_MAX}, {"id": "k" * (KEY_BYTES_MAX - 2)}):
            with pytest.raises(PayloadTooLargeError) as refused:
                await table.put(row)
            assert refused.value.outcome is Outcome.NOT_APPLIED
        assert sum(len(node.published) for node in cluster.nodes.values()) == sent

    play(test, PATIENT)
