"""States pinned at one position, hashes of their parts, and logs read again (S13)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.core.chain import CHAIN_START
from raftstore.engine.healing import history_walks, replica_checks
from raftstore.errors import QueryError, RequestError
from raftstore.protocol.lifetimes import encode_with_ttl
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import ClosePin
from raftstore.protocol.replica_checks import (
    HashHistory,
    HashHistoryAnswer,
    HashRange,
    HashRangeAnswer,
    PinState,
    PinStateAnswer,
    RowExpiries,
    RowExpiriesAnswer,
)
from raftstore.record_machine import Row
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import RecordKind, Role, Seq
from tests.unit.engine.engine_world import calm_cluster, publish, run

HOUR_MS = 3_600_000


class World:
    """Three calm nodes, one channel, and a client that asks one thing at a time."""

    def __init__(self) -> None:
        self.cluster, self.channel = calm_cluster()
        self.counter = 0
        self.answers: dict[int, list[Message]] = {}
        self.cluster.add_client("writer", 778, lambda _sender, _message: None)
        self.cluster.add_client("checker", 779, self._on_answer)

    def _on_answer(self, _sender: object, message: Message) -> None:
        self.answers[cast(Any, message).request_id].append(message)

    @property
    def nodes(self) -> list[SimNode]:
        """All of them, the channel's leader first."""
        found = list(self.cluster.nodes.values())
        return sorted(found, key=lambda node: self.runner(node).elector.role is not Role.LEADER)

    def runner(self, node: SimNode) -> Any:
        """The replica of the channel on a node."""
        assert node.runner is not None
        return node.runner.channels[self.channel]

    def write(self, rows: int = 1, ttl_ms: int = 0) -> None:
        """One record of so many rows, of keys that no record before had."""
        first, self.counter = self.counter, self.counter + rows
        keys = [b"key%04d" % number for number in range(first, first + rows)]
        payload = encode_rows([(key, seal(key, b"value of " + key)) for key in keys])
        kind = RecordKind.ROWS
        if ttl_ms:
            kind, payload = RecordKind.ROWS_WITH_TTL, encode_with_ttl(ttl_ms, payload)
        leader = self.nodes[0]
        message = publish(
            self.cluster, leader, self.channel, first + 1, payload, kind=kind, rows=rows
        )
        self.cluster.network.send("writer", leader.node, message)

    def applied(self, node: SimNode) -> Seq:
        """The node's applied seq."""
        return cast(Any, node).tables.applied_seq(self.channel)

    def asks(self, node: SimNode, kind: type[Any], *fields: Any, **more: Any) -> list[Message]:
        """Ask without waiting; the answer comes into the list."""
        number = len(self.answers) + 1
        self.answers[number] = []
        self.cluster.network.send("checker", node.node, kind(number, self.channel, *fields, **more))
        return self.answers[number]

    def told(self, node: SimNode, kind: type[Any], *fields: Any, **more: Any) -> Any:
        """Ask and wait for the answer."""
        answers = self.asks(node, kind, *fields, **more)
        run(self.cluster, 200)
        [answer] = answers
        return answer

    def pin(self, node: SimNode, seq: int = 0) -> PinStateAnswer:
        """Pin a state."""
        answer = self.told(node, PinState, Seq(seq), 5_000)
        assert isinstance(answer, PinStateAnswer), answer
        return answer

    def hashed(self, node: SimNode, pin: int, **more: Any) -> HashRangeAnswer:
        """Hash a part of a pinned state, the whole by default."""
        fields = {"after": b"", "last": b"", "entries_max": 10_000, "timeout_ms": 5_000, **more}
        answer = self.told(node, HashRange, pin, **fields)
        assert isinstance(answer, HashRangeAnswer), answer
        return answer

    def history(self, node: SimNode, seq: int) -> HashHistoryAnswer:
        """The chain hash at a seq."""
        answer = self.told(node, HashHistory, Seq(seq), 5_000)
        assert isinstance(answer, HashHistoryAnswer), answer
        return answer


@pytest.fixture
def world() -> World:
    """Some records of three rows each, on all nodes."""
    made = World()
    for _ in range(6):
        made.write(3)
    run(made.cluster, 1_000)
    return made


def test_replicas_pin_one_state_while_records_go_on_coming(world: World) -> None:
    """The position is in the middle of a record: all of them take the one that covers it."""
    end = world.applied(world.nodes[0])
    asked = [world.asks(node, PinState, Seq(end + 4), 5_000) for node in world.nodes]
    run(world.cluster, 100)
    assert asked == [[], [], []]
    for _ in range(5):
        world.write(3)
    run(world.cluster, 1_000)
    pins = [cast(PinStateAnswer, answers[0]) for answers in asked]
    assert [pin.applied_seq for pin in pins] == [end + 6] * 3
    assert {world.applied(node) for node in world.nodes} == {end + 15}
    hashes = {
        world.hashed(node, pin.pin).digest for node, pin in zip(world.nodes, pins, strict=True)
    }
    assert len(hashes) == 1


def test_position_that_is_applied_already_is_answered_with_the_present(world: World) -> None:
    """The client sees it by the position, and asks for a later one."""
    end = world.applied(world.nodes[0])
    assert world.pin(world.nodes[0], end - 2).applied_seq == end


def test_position_that_does_not_come_is_refused_and_forgotten(world: World) -> None:
    """The next record is applied as if nobody had asked."""
    [leader, *_] = world.nodes
    asked = world.asks(leader, PinState, Seq(world.applied(leader) + 100), 300)
    run(world.cluster, 1_000)
    [refused] = asked
    assert isinstance(refused, Failed)
    assert refused.code == "not_up_to_bound"
    assert str(world.applied(leader)) in refused.message
    world.write(200)
    run(world.cluster, 1_000)
    assert len(asked) == 1


def test_no_more_clients_wait_for_states_than_the_bound_says(world: World) -> None:
    """Each costs the channel a step ahead."""
    [leader, *_] = world.nodes
    far = Seq(world.applied(leader) + 1_000)
    asked = [world.asks(leader, PinState, far, 60_000) for _ in range(replica_checks.HALTS_MAX + 1)]
    run(world.cluster, 200)
    [refused] = [answer for answers in asked for answer in answers]
    assert isinstance(refused, Failed)
    assert refused.code == "overloaded"


def test_parts_of_a_state_are_all_of_it(world: World) -> None:
    """Hashed part by part, each entry once, in an order that is the same everywhere."""
    [leader, follower, _] = world.nodes
    pin, other = world.pin(leader).pin, world.pin(follower).pin
    whole = world.hashed(leader, pin, lists=True)
    assert whole.entries == len(whole.listed) >= 18
    assert whole.resume == b""
    found: list[bytes] = []
    after = b""
    while True:
        part = world.hashed(leader, pin, after=after, entries_max=5, lists=True)
        assert part.entries <= 5
        same = world.hashed(follower, other, after=after, last=part.resume, lists=True)
        assert (same.digest, same.listed, same.resume) == (part.digest, part.listed, b"")
        found += [entry.key for entry in part.listed]
        after = part.resume
        if not after:
            break
    assert found == [entry.key for entry in whole.listed]


def test_one_other_value_makes_another_hash(world: World) -> None:
    """Of its part, and of no other."""
    [leader, follower, _] = world.nodes
    table = cast(Any, follower).tables._tables[world.channel]
    row = table.rows[b"key0007"]
    table.put(row.key, Row(row.key, seal(row.key, b"another"), row.seq))
    pins = [world.pin(node).pin for node in (leader, follower)]

    def digests(**more: Any) -> set[bytes]:
        nodes = zip((leader, follower), pins, strict=True)
        return {world.hashed(node, pin, **more).digest for node, pin in nodes}

    assert len(digests()) == 2
    assert len(digests(last=b"\x01key0006")) == 1
    assert len(digests(after=b"\x01key0007")) == 1
    assert len(digests(after=b"\x01key0006", last=b"\x01key0007")) == 2


def test_what_is_read_in_a_second_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps there is a pause, also for another request."""
    [leader, *_] = world.nodes
    checks = leader.runner.healing.checks
    pin = world.pin(leader).pin
    size = world.hashed(leader, pin).size_bytes
    monkeypatch.setattr(checks, "_second_bytes_max", 2 * size)
    answers = [world.asks(leader, HashRange, pin, b"", b"", 10_000, 60_000) for _ in range(4)]
    run(world.cluster, 700)
    done = sum(map(len, answers))
    assert 1 <= done <= 2
    run(world.cluster, 2_000)
    assert sum(map(len, answers)) == 4


def test_pin_that_is_gone_is_told(world: World) -> None:
    """A part of another state would be compared with the wrong one."""
    [leader, *_] = world.nodes
    pin = world.pin(leader).pin
    world.told(leader, ClosePin, pin)
    refused = world.told(leader, HashRange, pin, b"", b"", 10, 1_000)
    assert isinstance(refused, Failed)
    assert refused.code == "page_expired"


def test_log_is_read_again_from_its_base_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps, to the same hash that the replica remembers; with the record that ends there."""
    monkeypatch.setattr(history_walks, "STEP_RECORDS", 2)
    monkeypatch.setattr(history_walks, "MILESTONE_RECORDS", 3)
    for node in world.nodes:
        core = world.runner(node).core
        bounds = world.history(node, 0)
        assert (bounds.base_seq, bounds.commit_seq) == (core.base.seq, core.commit_seq)
        for seq in (core.commit_seq, core.commit_seq - 1, core.commit_seq - 4):
            told = world.history(node, seq)
            assert told.chain_hash == core.chain_hash_of(told.end_seq)
            assert told.record is not None
            assert told.record.last_seq == told.end_seq <= seq
            assert told.damage == ""
    assert world.history(node, 0).chain_hash == b""
    assert told.chain_hash != CHAIN_START


def test_record_that_is_not_what_its_digest_tells_ends_the_walk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum may be right all the same."""
    [leader, *_] = world.nodes
    commit = world.runner(leader).core.commit_seq
    monkeypatch.setattr(history_walks, "digest_of", lambda payload: b"another")
    told = world.history(leader, commit)
    assert "is not what its digest tells" in told.damage
    assert told.end_seq < commit


def test_seq_that_is_not_committed_is_refused(world: World) -> None:
    """A record that may be cut again is compared with nothing."""
    [leader, *_] = world.nodes
    commit = world.runner(leader).core.commit_seq
    refused = world.told(leader, HashHistory, Seq(commit + 1), 1_000)
    assert isinstance(refused, Failed)
    assert refused.code == "not_up_to_bound"


def test_expiries_are_those_of_the_pinned_state(world: World) -> None:
    """Rows without a lifetime are none of them; a channel without any says so."""
    [leader, *_] = world.nodes
    none = world.told(leader, RowExpiries, world.pin(leader).pin, b"", b"", 1_000)
    assert none == RowExpiriesAnswer(none.request_id, (), has_any=False)
    world.write(2, ttl_ms=HOUR_MS)
    run(world.cluster, 500)
    pin = world.pin(leader).pin
    told = world.told(leader, RowExpiries, pin, b"", b"", 1_000)
    assert [key for key, _ in told.expiries] == [b"key0018", b"key0019"]
    rows = cast(Any, leader).tables._tables[world.channel].rows
    assert dict(told.expiries) == {key: rows[key].expires_ms for key, _ in told.expiries}
    part = world.told(leader, RowExpiries, pin, b"key0019", b"", 1_000)
    assert [key for key, _ in part.expiries] == [b"key0019"]


def test_client_that_is_gone_holds_nothing(world: World) -> None:
    """Its wait for a state ends with it."""
    [leader, *_] = world.nodes
    checks = leader.runner.healing.checks
    world.asks(leader, PinState, Seq(world.applied(leader) + 100), 60_000)
    run(world.cluster, 50)
    [client] = {checks.waiting.of(token).client for token in checks.waiting}
    assert checks.holds_for(client)
    checks.on_client_gone(client)
    assert not checks.holds_for(client)
    assert world.runner(leader).feed._halts == []


def test_s13_replica_that_serves_nothing_answers_no_question(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.3: also where it stopped serving while somebody waited, or while it was read."""
    node = world.nodes[1]
    pin, end = world.pin(node), world.applied(node)
    waits = world.asks(node, PinState, Seq(end + 1), 5_000)
    run(world.cluster, 50)
    answers: list[tuple[type[RequestError], str] | None] = [None]
    reading = {"after": b"", "last": b"", "entries_max": 10, "timeout_ms": 5_000}

    def refusal(_: object) -> tuple[type[RequestError], str] | None:
        return answers.pop() if answers else (QueryError, "it serves nothing")

    monkeypatch.setattr(replica_checks, "serving_refusal", refusal)
    refused = [world.told(node, HashRange, pin.pin, **reading)]
    world.write(3)
    run(world.cluster, 1_000)
    refused += waits
    refused.append(world.told(node, PinState, Seq(0), 5_000))
    refused.append(world.told(node, HashHistory, Seq(end), 5_000))
    refused.append(world.told(node, HashRange, pin.pin, **reading))
    assert [(type(answer), answer.message) for answer in refused] == [
        (Failed, "it serves nothing")
    ] * 5


def test_step_for_a_client_that_is_gone_ends_unused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is given back all the same, and the next one is read for others."""
    node = world.nodes[1]
    pin = world.pin(node)
    reads: list[Any] = []
    own = cast(Any, node).runner.healing.checks
    monkeypatch.setattr(own, "_tables", SimpleNamespace(start_read=reads.append))
    reading = {"after": b"", "last": b"", "entries_max": 10, "timeout_ms": 5_000}
    waits = world.asks(node, HashRange, pin.pin, **reading)
    run(world.cluster, 50)
    [read] = reads
    done = read()
    for token, check in list(
        own.waiting.pop_all_of(own.waiting.of(next(iter(own.waiting))).client)
    ):
        assert (token, check.request.pin) == (own._tokens, pin.pin)
    done(0)
    run(world.cluster, 50)
    assert (waits, own._is_reading) == ([], False)
