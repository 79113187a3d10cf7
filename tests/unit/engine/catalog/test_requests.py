"""Requests of clients, valid or not: the node answers each, and none of them stops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftstore.config import PAYLOAD_BYTES_MAX, ReadSettings
from raftstore.engine.catalog.table_commands import CATALOG_BYTES_MAX
from raftstore.engine.reads.read_rules import GET_BYTES_MAX
from raftstore.errors import RequestError
from raftstore.ports.tables import Page
from raftstore.protocol.admin import ContentHash, CreateTable, DropTable
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import ChannelPosition, LagReport
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubReject
from raftstore.protocol.reads import Get, GetAnswer, Scan, ScanAnswer
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_tables import SimSnapshot
from raftstore.types import ChannelId, Outcome, RecordKind, Seq, Term, channel_id
from tests.unit.engine.engine_world import ask, calm_cluster, error_class, publish, run

VALUE_BYTES = 1024 * 1024


def write_big_rows(cluster: SimCluster, leader: SimNode, channel: ChannelId, count: int) -> None:
    """Rows k0, k1, … of a mebibyte each."""
    for number in range(count):
        key = b"k%d" % number
        payload = encode_rows([(key, seal(key, bytes(VALUE_BYTES)))])
        ask(cluster, leader, publish(cluster, leader, channel, number + 1, payload))
        run(cluster, 500)


def test_command_published_on_a_table_is_refused_and_gets_no_seq() -> None:
    """S4.1: no table can apply it, so once committed it would stop every replica for ever."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    before = leader.runner.channels[channel].core.last_seq
    message = publish(cluster, leader, channel, 1, b"\x80", kind=RecordKind.COMMAND)
    [answer] = answers_after(cluster, 2_000, lambda: ask(cluster, leader, message))
    assert isinstance(answer, PubReject)
    assert answer.code == "schema"
    assert leader.runner.channels[channel].core.last_seq == before


def test_payload_over_the_bound_is_refused_by_leader_and_follower() -> None:
    """S12: the node itself enforces it, answers that one write, keeps nothing and goes on."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    message = publish(cluster, leader, channel, 1, b"\x80" * (PAYLOAD_BYTES_MAX + 1))
    before = leader.runner.channels[channel].core.last_seq
    for node in (leader, follower):
        [answer] = answers_after(cluster, 500, lambda node=node: ask(cluster, node, message))  # type: ignore[misc]
        assert isinstance(answer, PubReject)
        assert answer.code == "payload_too_large"
        assert "8388609 bytes is over the limit of 8388608" in str(answer.message)
        core = node.runner.channels[channel].core
        assert core.statistics().pending_payloads.messages == 0
        assert core.last_seq == before
        assert node.runner.halt.reason is None


def answers_after(
    cluster: SimCluster, ms: float, asking: Callable[[], list[Message]]
) -> list[Message]:
    """Ask, let time pass, and return what was answered."""
    answers = asking()
    run(cluster, ms)
    return answers


@pytest.mark.slow
def test_answer_that_fits_no_frame_is_refused_with_the_remedy() -> None:
    """A client cannot know how large the rows are that it asks for; the node must say so."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    count = GET_BYTES_MAX // VALUE_BYTES + 1
    write_big_rows(cluster, leader, channel, count)
    keys = tuple(b"k%d" % number for number in range(count))

    def get(keys: tuple[bytes, ...]) -> list[Message]:
        return ask(cluster, leader, Get(1, channel, keys, "leader", None, Seq(0), 1_000))

    [refused] = answers_after(cluster, 500, lambda: get(keys))
    assert isinstance(refused, Failed)
    assert refused.code == "payload_too_large"
    assert "fewer keys" in refused.message
    [answer] = answers_after(cluster, 500, lambda: get(keys[: count // 2]))
    assert isinstance(answer, GetAnswer)
    assert None not in answer.values


@pytest.mark.slow
def test_page_of_large_rows_is_read_once_and_not_beyond_what_is_answered() -> None:
    """The limit counts rows, the answer bytes: a page must not cost a thousand times its size."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    bytes_max = ReadSettings().scan_bytes_max
    write_big_rows(cluster, leader, channel, bytes_max // VALUE_BYTES + 2)
    read: list[Page] = []
    take = leader.tables.snapshot

    def counted(of: ChannelId) -> SimSnapshot:
        snapshot = take(of)
        page = snapshot.page

        def noted(*arguments: Any) -> Page:
            read.append(page(*arguments))
            return read[-1]

        snapshot.page = noted  # type: ignore[method-assign]
        return snapshot

    leader.tables.snapshot = counted  # type: ignore[method-assign]
    request = Scan(1, channel, b"", b"", 1_000, "leader", None, Seq(0), 1_000)
    [answer] = answers_after(cluster, 500, lambda: ask(cluster, leader, request))
    assert isinstance(answer, ScanAnswer)
    assert answer.more
    [page] = read
    assert len(page.rows) == len(answer.rows)
    assert bytes_max - 2 * VALUE_BYTES < sum(row.size for row in page.rows) <= bytes_max


def test_scan_returns_every_row_once_and_in_order() -> None:
    """However long a page is, its rows are those of the range, and ``more`` is right."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    for number in range(30):
        key = b"%02d" % number
        payload = encode_rows([(key, seal(key, b"v"))])
        ask(cluster, leader, publish(cluster, leader, channel, number + 1, payload))
    run(cluster, 1_000)
    for limit in (1, 7, 8, 9, 29, 30, 31):
        request = Scan(1, channel, b"02", b"", limit, "leader", None, Seq(0), 1_000)
        [answer] = answers_after(
            cluster, 500, lambda request=request: ask(cluster, leader, request)
        )
        assert isinstance(answer, ScanAnswer)
        expected = [b"%02d" % number for number in range(2, 30)]
        assert [key for key, _, _ in answer.rows] == expected[:limit]
        assert answer.more == (limit < len(expected))


def test_content_hash_of_a_table_that_is_dropped_meanwhile_is_refused() -> None:
    """The hash is taken on a snapshot; by the time it is there the table may be gone (S0.8)."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    later: list[Callable[[], None]] = []

    def start(of: ChannelId, done: Callable[[bytes, int, Seq], None]) -> None:
        digest = node.tables.content_hash(of)
        later.append(lambda: done(*digest))

    node.tables.start_content_hash = start  # type: ignore[method-assign]
    answers = ask(cluster, node, ContentHash(1, channel))
    run(cluster, 100)
    ask(cluster, node, DropTable(2, "t", 1_000))
    run(cluster, 1_000)
    assert channel not in node.runner.channels
    answers = ask(cluster, node)
    [finish] = later
    finish()
    run(cluster, 100)
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["unknown_channel"]


def test_write_pending_when_its_table_is_dropped_is_in_doubt_at_once() -> None:
    """S4.3: it may have been committed; nobody is left who could know, so nobody waits."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    others = [node for node in cluster.node_ids if node != leader.node]
    runner = leader.runner.channels[channel]
    cluster.network.cut_groups([leader.node], others)
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    answers = ask(cluster, leader, publish(cluster, leader, channel, 1, payload))
    run(cluster, 200)
    assert not answers
    assert runner.core.last_seq > runner.core.commit_seq
    leader.runner.registry.drop(channel, leader.clock.now_ms())
    run(cluster, 50)
    [answer] = answers
    assert isinstance(answer, PubReject)
    assert error_class(answer.code).outcome is Outcome.UNKNOWN
    assert issubclass(error_class(answer.code), RequestError)


def test_table_that_makes_the_catalog_too_large_for_discovery_is_refused() -> None:
    """Every client asks for the whole catalog in one answer: a table too many would hide all."""
    cluster, _ = calm_cluster()
    metadata = cluster.nodes[cluster.node_ids[0]].runner.metadata_channel
    leader = cluster.leaders()[metadata]
    comment = "x" * (CATALOG_BYTES_MAX - 1_000)
    column = '{"name":"k","type":"long","nullable":false,"metadata":{"comment":"%s"}}'
    schema = '{"type":"struct","fields":[' + column % comment + "]}"
    create = CreateTable(1, "big", ("k",), 8, 3, "fsync", None, schema, False, timeout_ms=1_000)
    answers = answers_after(cluster, 500, lambda: ask(cluster, leader, create))
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == [
        "payload_too_large"
    ]
    assert "big" not in leader.runner.controller.catalog.tables


@pytest.mark.slow
def test_table_that_brings_a_node_more_channels_than_it_has_files_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each channel's LevelDB keeps files open: a node without any left would stop."""
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    controller = leader.runner.controller
    here = sum(len(table.placement) for table in controller.catalog.tables.values())
    monkeypatch.setattr(controller.commands, "_channels_max", 1 + here + 4)
    create = CreateTable(1, "fits", ("k",), 4, 3, "fsync", None, "", False, timeout_ms=1_000)
    too_many = msgspec.structs.replace(create, name="too_many", request_id=2, partitions=1)
    answers = answers_after(cluster, 1_000, lambda: ask(cluster, leader, create))
    assert not [answer for answer in answers if isinstance(answer, Failed)]
    answers = answers_after(cluster, 500, lambda: ask(cluster, leader, too_many))
    (refused,) = (answer for answer in answers if isinstance(answer, Failed))
    assert refused.code == "schema"
    assert "storage.channels_max" in refused.message
    assert set(controller.catalog.tables) >= {"fits"}
    assert "too_many" not in controller.catalog.tables


@pytest.mark.parametrize(
    ("replicas", "registered", "code"), [(5, 3, "schema"), (3, 2, "unavailable")]
)
def test_table_with_more_replicas_than_nodes_is_refused_for_good(
    monkeypatch: pytest.MonkeyPatch, replicas: int, registered: int, code: str
) -> None:
    """Given fewer registered nodes than replicas, the table is refused: for good if the founders
    are all registered, as retriable if one is still to come.
    """
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    nodes = leader.runner.controller.catalog.nodes
    for node in list(nodes)[registered:]:
        monkeypatch.delitem(nodes, node)
    create = CreateTable(1, "n", ("k",), 1, replicas, "fsync", None, "", False, timeout_ms=1_000)
    answers = ask(cluster, leader, create)
    run(cluster, 20)
    [failed] = [answer for answer in answers if isinstance(answer, Failed)]
    assert failed.code == code
    assert error_class(code).retriable == (code == "unavailable")
    assert f"{replicas} replicas need {replicas} nodes, but {registered} are" in failed.message


def test_table_that_exists_as_defined_names_the_option_that_takes_it() -> None:
    """Given a table that exists, creating it again is refused; the message names if_not_exists, or
    says that the definition is another one.
    """
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    create = CreateTable(1, "new", ("k",), 1, 3, "fsync", None, "", False, timeout_ms=1_000)
    other = msgspec.structs.replace(create, partitions=2)
    ask(cluster, leader, create)
    run(cluster, 2_000)
    for request, told in ((create, "if_not_exists=True"), (other, "another definition")):
        answers = ask(cluster, leader, request)
        run(cluster, 100)
        [failed] = [answer for answer in answers if isinstance(answer, Failed)]
        assert (failed.code, told in failed.message) == ("table_exists", True)


def test_hints_about_channels_of_dropped_tables_are_forgotten() -> None:
    """Tables come and go for years; what was heard of the leaders of gone ones must not stay."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    position = ChannelPosition(channel, Term(1), True, Seq(1), Seq(1), Seq(1), b"")
    gone = msgspec.structs.replace(position, channel=channel_id(b"g" * 16, 0))
    peer = next(other for other in cluster.node_ids if other != node.node)
    watch = node.runner.watch
    del node.runner.channels[channel]  # as if it were hosted elsewhere
    node.on_message(peer, LagReport(0, (position, gone)))
    assert channel in watch.reports.hints
    assert gone.channel not in watch.reports.hints
    watch.forget_hints(lambda _: False)
    assert watch.reports.hints == {}


def test_request_that_no_one_answers_is_refused_by_its_kind() -> None:
    """A client of another version gets a sentence; silence would cost it the whole timeout."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    heard: list[object] = []
    node.runner.answers.answer = lambda client, message: heard.append(message)  # type: ignore[method-assign]
    node.runner.requests.on_request(1, Get(7, channel, (b"k",), "any", None, Seq(0), 100), 0)
    [refused] = heard
    assert isinstance(refused, Failed)
    assert (refused.request_id, refused.code) == (7, "unsupported_request")
    assert "install the same raftstore version" in refused.message
