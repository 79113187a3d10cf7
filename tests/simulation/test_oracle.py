"""The oracle itself: planted violations of O1-O6 are caught, and right histories pass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.core.configs import ConfigEntry
from raftstore.ports.log import EMPTY_BASE
from raftstore.protocol.lifetimes import encode_expire, encode_with_ttl
from raftstore.protocol.payload import encode_conditional, encode_mark, encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Served
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import InvariantError, Oracle
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_clock import WALL_START_MS, DriftingClock, Scheduler
from raftstore.testing.simulation import Simulation
from raftstore.types import (
    NO_GUID,
    ChannelConfig,
    Guid,
    NodeId,
    RecordKind,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
)

CHANNEL = channel_id(bytes(16), 1)
A, B = NodeId("a"), NodeId("b")


def rows(base_seq: int, key: bytes, value: bytes, *, term: int = 1, counter: int = 0) -> Record:
    """A record that writes one row."""
    return stored(base_seq, RecordKind.ROWS, encode_rows([(key, seal(key, value))]), term, counter)


def conditional(base_seq: int, key: bytes, value: bytes, expected: int) -> Record:
    """A record that writes one row if the key's seq is ``expected``."""
    payload = encode_conditional(key, seal(key, value), Seq(expected))
    return stored(base_seq, RecordKind.CONDITIONAL, payload, 1, 0)


def stored(base_seq: int, kind: RecordKind, payload: bytes, term: int, counter: int) -> Record:
    """A record with the digest of its payload."""
    digest = hashlib.blake2b(payload, digest_size=16).digest()
    return Record(
        Term(term), Seq(base_seq), 1, guid(counter or base_seq), base_seq, digest, kind, payload
    )


def guid(counter: int) -> Guid:
    """The guid of a publisher's write."""
    return make_guid(b"session1", counter)


@dataclass
class Replica:
    """The replica as the oracle sees it."""

    me: NodeId
    log: list[Record] = field(default_factory=list)
    commit: int = 0
    applied: int = 0
    time_ms: int = 0
    term: int = 1
    role: Role = Role.FOLLOWER
    core: SimpleNamespace = field(default_factory=SimpleNamespace)
    """Of one opening of the channel."""
    is_paused: bool = False
    """Another table is about to take the place of its own."""

    @property
    def runner(self) -> Any:
        """The runner the oracle would see."""

        def read(channel: Any, from_seq: int, *, to_seq: int, bytes_max: int) -> list[Record]:
            return [r for r in self.log if r.last_seq >= from_seq and r.last_seq <= to_seq]

        self.core.commit_seq = Seq(self.commit)
        self.core.is_recovering, self.core.base = False, EMPTY_BASE
        config = ChannelConfig((tuple(NodeId(f"n{number}@00") for number in (1, 2, 3)),))
        self.core.known_configs = lambda: (ConfigEntry(Seq(0), Term(0), config),)
        return SimpleNamespace(
            me=self.me,
            channel=CHANNEL,
            name="t/0",
            is_paused=self.is_paused,
            elector=SimpleNamespace(term=Term(self.term), role=self.role),
            core=self.core,
            parts=SimpleNamespace(
                log=SimpleNamespace(read=read),
                tables=SimpleNamespace(
                    applied_seq=lambda channel: Seq(self.applied),
                    channel_time=lambda channel: self.time_ms,
                    is_idle=lambda channel: True,
                ),
            ),
        )

    def seen_by(self, oracle: Oracle, incarnation: int = 1) -> None:
        """The oracle looks."""
        oracle.after_step(self.me, incarnation, [self.runner])


def ack(record: Record, *, at: int | None = None, conflict: bool = False) -> PubAck:
    """The leader's OK."""
    last_seq = record.last_seq if at is None else Seq(at)
    return PubAck(
        CHANNEL,
        Term(1),
        record.guid,
        last_seq,
        last_seq,
        record.term,
        "fsync",
        2,
        conflict=conflict,
        conflict_seq=Seq(0),
    )


def committed(*log: Record) -> tuple[Oracle, Replica]:
    """An oracle that saw ``a`` lead term 1 and commit these records."""
    oracle = Oracle()
    leader = Replica(A, role=Role.LEADER)
    leader.seen_by(oracle)
    leader.log, leader.commit = list(log), len(log)
    leader.seen_by(oracle)
    return oracle, leader


def violates(rule: str) -> Any:
    """The oracle must object, by this rule."""
    return pytest.raises(InvariantError, match=f"^{rule}: ")


def test_right_history_passes() -> None:
    """Commit, ack, reads at several ages, a change of leader, the end: nothing to object."""
    one, two = rows(1, b"k", b"x"), rows(2, b"k", b"y")
    oracle, leader = committed(one, two)
    oracle.on_ack(CHANNEL, ack(two))
    oracle.check_same(two.guid, Seq(2), Seq(2))
    oracle.on_read(CHANNEL, b"k", b"x", Seq(1), Seq(1), must_include=None)
    oracle.on_read(CHANNEL, b"k", b"y", Seq(2), Seq(2), must_include=oracle.visible_end(CHANNEL))
    oracle.on_read(CHANNEL, b"other", None, Seq(0), Seq(2), must_include=None)
    follower = Replica(B, log=[one, two], commit=1, applied=1)
    follower.seen_by(oracle)
    follower.term, follower.role, follower.commit = 2, Role.LEADER, 2
    follower.seen_by(oracle)
    oracle.on_not_applied(CHANNEL, guid(77))
    oracle.check_final([leader.runner, follower.runner])


def test_two_leaders_in_one_term_are_caught() -> None:
    """O1."""
    oracle, _ = committed()
    with violates("O1"):
        Replica(B, role=Role.LEADER).seen_by(oracle)


def test_leader_without_a_committed_record_is_caught() -> None:
    """O2: looked at when it wins, not when it serves."""
    oracle, _ = committed(rows(1, b"k", b"x"))
    with violates("O2"):
        Replica(B, term=2, role=Role.LEADER).seen_by(oracle)


def test_leader_with_another_record_at_a_committed_seq_is_caught() -> None:
    """O2: the same seq with another content is not the same record."""
    oracle, _ = committed(rows(1, b"k", b"x"))
    with violates("O2"):
        Replica(B, log=[rows(1, b"k", b"y")], term=2, role=Role.LEADER).seen_by(oracle)


@pytest.mark.parametrize(
    "other", [rows(1, b"k", b"y"), rows(1, b"k", b"x", term=2), rows(1, b"k", b"x", counter=9)]
)
def test_different_commit_at_one_seq_is_caught(other: Record) -> None:
    """O3: digest, term and guid of a committed seq never differ between replicas."""
    oracle, _ = committed(rows(1, b"k", b"x"))
    with violates("O3"):
        Replica(B, log=[other], commit=1).seen_by(oracle)


def test_commit_that_moves_back_is_caught() -> None:
    """O3: while a node runs, its commit seq only rises."""
    oracle, leader = committed(rows(1, b"k", b"x"))
    leader.commit = 0
    with violates("O3"):
        leader.seen_by(oracle)


def test_commit_may_be_forgotten_in_a_restart() -> None:
    """A restarted node knows less of the commit; that is no violation."""
    oracle, leader = committed(rows(1, b"k", b"x"))
    leader.commit, leader.role = 0, Role.FOLLOWER
    leader.seen_by(oracle, incarnation=2)


def test_commit_may_be_forgotten_when_a_channel_is_opened_anew() -> None:
    """S6.4: with another replica's table nothing says what of the own log is committed."""
    oracle, leader = committed(rows(1, b"k", b"x"))
    leader.commit, leader.role, leader.core = 0, Role.FOLLOWER, SimpleNamespace()
    leader.seen_by(oracle)
    leader.commit = 1
    leader.seen_by(oracle)
    leader.commit = 0
    with violates("O3"):
        leader.seen_by(oracle)


def test_lower_term_is_caught() -> None:
    """S13: while a node runs, its term only rises."""
    oracle, leader = committed()
    leader.term = 0
    with violates("S13"):
        leader.seen_by(oracle)


def test_ack_of_what_is_not_committed_is_caught() -> None:
    """O4: OK means that it stands in the committed log, at that place."""
    record = rows(1, b"k", b"x")
    oracle, _ = committed(record)
    with violates("O4"):
        oracle.on_ack(CHANNEL, ack(rows(2, b"k", b"y")))
    with violates("O4"):
        oracle.on_ack(CHANNEL, ack(record, at=3))


def test_second_place_of_one_guid_is_caught() -> None:
    """O4: a retry is answered with the first place, and a log holds each guid once."""
    oracle, _ = committed(rows(1, b"k", b"x"))
    with violates("O4"):
        oracle.check_same(guid(1), Seq(1), Seq(2))
    oracle, leader = committed(rows(1, b"k", b"x"), rows(2, b"k", b"x", counter=1))
    with violates("O4"):
        oracle.check_final([leader.runner])


def test_lost_acknowledged_write_is_caught_at_the_end() -> None:
    """O4: on every replica, not just on one."""
    one, two = rows(1, b"k", b"x"), rows(2, b"k", b"y")
    oracle, leader = committed(one, two)
    oracle.on_ack(CHANNEL, ack(two))
    oracle.check_final([leader.runner])
    leader.log = [one]
    with violates("O4"):
        oracle.check_final([leader.runner])


def test_write_that_was_called_not_applied_and_commits_is_caught() -> None:
    """S4, S5.6: in whichever order the two happen."""
    record = rows(1, b"k", b"x")
    oracle, _ = committed(record)
    with violates("S4"):
        oracle.on_not_applied(CHANNEL, record.guid)
    oracle = Oracle()
    oracle.on_not_applied(CHANNEL, record.guid)
    with violates("S4"):
        Replica(A, log=[record], commit=1).seen_by(oracle)


@pytest.mark.parametrize(
    ("value", "row_seq", "applied_seq"),
    [
        (b"x", 1, 2),  # an old value at a new position
        (b"y", 2, 1),  # a new value at an old position
        (b"y", 1, 2),  # the wrong seq
        (None, 0, 2),  # nothing where there is something
        (b"z", 3, 3),  # beyond what is committed
    ],
)
def test_read_that_shows_no_committed_prefix_is_caught(
    value: bytes | None, row_seq: int, applied_seq: int
) -> None:
    """O5: a read shows exactly the prefix it names."""
    oracle, _ = committed(rows(1, b"k", b"x"), rows(2, b"k", b"y"))
    with violates("O5"):
        oracle.on_read(CHANNEL, b"k", value, Seq(row_seq), Seq(applied_seq), must_include=None)


def served(applied: int, **fields: Any) -> Served:
    """The facts of an answer from the state at ``applied``."""
    return Served(A, CHANNEL, Term(1), Seq(applied), 0, 0, "bounded", **fields)


def marks() -> Oracle:
    """An oracle that saw a row and the end of a micro-batch commit at 1,000 ms; now is 2,000."""
    now = [1_000.0]
    oracle = Oracle(lambda: now[0])
    leader = Replica(A, role=Role.LEADER)
    leader.seen_by(oracle)
    leader.log = [rows(1, b"k", b"x"), stored(2, RecordKind.BATCH_MARK, encode_mark("w", 1), 1, 2)]
    leader.commit = 2
    leader.seen_by(oracle)
    now[0] = 2_000.0
    return oracle


def right_clock(age_ms: int) -> float:
    """When it was, at 2,000 ms, that many milliseconds ago."""
    return 2_000.0 - age_ms


def test_answer_that_calls_its_state_younger_than_it_is_is_caught() -> None:
    """S7.3: what had been committed at the moment that an answer names is in its state."""
    oracle = marks()
    oracle.on_served(CHANNEL, served(1, staleness_ms=None), right_clock)
    oracle.on_served(CHANNEL, served(1, staleness_ms=1_000), right_clock)
    oracle.on_served(CHANNEL, served(2, staleness_ms=0), right_clock)
    with violates("S7.3"):
        oracle.on_served(CHANNEL, served(1, staleness_ms=999), right_clock)


def test_age_is_counted_by_the_clock_that_the_node_had_meanwhile() -> None:
    """S7.3: a clock that is slowed down counts few milliseconds, and one that jumps many."""
    scheduler = Scheduler()
    clock = DriftingClock(scheduler, start_ms=500.0, rate=1.0)
    scheduler.run_until(1_000.0)  # it shows 1,500
    clock.shift(jump_ms=0.0, rate=0.5)
    scheduler.run_until(2_000.0)  # 2,000
    clock.shift(jump_ms=4_000.0, rate=2.0)
    scheduler.run_until(3_000.0)  # 6,000, then 8,000
    assert [clock.showed_ms(local_ms) for local_ms in (8_000, 6_000)] == [3_000.0, 2_000.0]
    assert clock.showed_ms(4_000) == 2_000.0, "it never showed that: it jumped over it"
    assert [clock.showed_ms(local_ms) for local_ms in (1_999, 1_500)] == [1_998.0, 1_000.0]
    assert [clock.showed_ms(local_ms) for local_ms in (1_400, 400)] == [900.0, -100.0]
    assert clock.showed_ms(9_000) == 3_000.0, "nothing of the past is later than now"


def test_answer_that_counts_other_batches_is_caught() -> None:
    """S10, S7.3: those of its state, and those that it is behind."""
    oracle = marks()
    oracle.on_served(CHANNEL, served(1, batches=0, batches_behind=0), right_clock)
    oracle.on_served(CHANNEL, served(2, batches=1), right_clock)
    with violates("S10"):
        oracle.on_served(CHANNEL, served(2, batches=0), right_clock)
    behind = msgspec.structs.replace(served(1, batches_behind=0), lag=1)
    with violates("S7.3"):
        oracle.on_served(CHANNEL, behind, right_clock)


def test_stale_linearizable_read_is_caught() -> None:
    """O5: it must include what was acknowledged, or shown by another read, before it began."""
    one, two = rows(1, b"k", b"x"), rows(2, b"k", b"y")
    oracle, _ = committed(one, two)
    oracle.on_ack(CHANNEL, ack(two))
    begun = oracle.visible_end(CHANNEL)
    with violates("O5"):
        oracle.on_read(CHANNEL, b"k", b"x", Seq(1), Seq(1), must_include=begun)
    oracle, _ = committed(one, two)
    oracle.on_read(CHANNEL, b"k", b"y", Seq(2), Seq(2), must_include=Seq(0))
    begun = oracle.visible_end(CHANNEL)
    with violates("O5"):
        oracle.on_read(CHANNEL, b"k", b"x", Seq(1), Seq(1), must_include=begun)


def test_applying_beyond_the_commit_is_caught() -> None:
    """O5: uncommitted records are invisible."""
    oracle, leader = committed(rows(1, b"k", b"x"))
    leader.applied = 2
    with violates("O5"):
        leader.seen_by(oracle)


def test_channel_time_that_the_log_does_not_tell_is_caught() -> None:
    """S10: rows expire by the log's time and by no replica's clock."""
    oracle, leader = committed(rows(1, b"k", b"x"))
    leader.applied = 1
    leader.seen_by(oracle)
    leader.time_ms = 1_700_000_000_000
    leader.is_paused = True
    leader.seen_by(oracle)
    leader.is_paused = False
    with violates("S10"):
        leader.seen_by(oracle)


def test_wrong_word_about_a_condition_is_caught() -> None:
    """S10: the publisher is informed what every replica decides."""
    held, failed = conditional(1, b"k", b"x", 0), conditional(2, b"k", b"y", 0)
    oracle, _ = committed(held, failed)
    oracle.on_ack(CHANNEL, ack(failed, conflict=True))
    oracle.on_read(CHANNEL, b"k", b"x", Seq(1), Seq(2), must_include=None)
    with violates("S10"):
        oracle.on_ack(CHANNEL, ack(held, conflict=True))
    with violates("S10"):
        oracle.on_ack(CHANNEL, ack(failed))


def living(base_seq: int, key: bytes, ttl_ms: int) -> Record:
    """A record of a row that expires so long after its timestamp, which is its seq."""
    payload = encode_with_ttl(ttl_ms, encode_rows([(key, seal(key, b"x"))]))
    return stored(base_seq, RecordKind.ROWS_WITH_TTL, payload, 1, 0)


def telling(base_seq: int, until_ms: int) -> Record:
    """A record that says how late it is."""
    made = stored(base_seq, RecordKind.EXPIRE, encode_expire(until_ms, [b"k"]), 1, 0)
    return msgspec.structs.replace(made, timestamp_ms=until_ms)


def test_row_is_expected_until_the_time_that_the_log_tells() -> None:
    """O5: neither a row that has expired may be shown, nor one be missing that has not."""
    oracle, leader = committed(living(1, b"k", 9), telling(2, 9), telling(3, 10))
    assert oracle.overdue(CHANNEL) == []
    for seq, row in ((1, (b"x", 1)), (2, (b"x", 1)), (3, (None, 0))):
        value, row_seq = row
        oracle.on_read(CHANNEL, b"k", value, Seq(row_seq), Seq(seq), must_include=None)
    with violates("O5"):
        oracle.on_read(CHANNEL, b"k", None, Seq(0), Seq(2), must_include=None)
    with violates("O5"):
        oracle.on_read(CHANNEL, b"k", b"x", Seq(1), Seq(3), must_include=None)
    assert committed(living(1, b"k", 9))[0].overdue(CHANNEL) == [b"k"]
    for time_ms, applied in ((9, 2), (10, 3), (1, 2)):
        leader.time_ms, leader.applied = time_ms, applied
        leader.seen_by(oracle)
    leader.time_ms = 11
    with violates("S10"):
        leader.seen_by(oracle)


def test_leader_that_tells_a_time_that_nobody_has_is_caught() -> None:
    """S10: the faults of a world leave a quorum's clocks right."""
    with violates("S10"):
        committed(telling(1, WALL_START_MS + 10_000))
    committed(telling(1, WALL_START_MS + 900))


def test_records_of_a_leader_itself_have_no_guid_to_check() -> None:
    """Term-start records share the empty guid; that is no second application."""
    start = Record(Term(1), Seq(1), 1, NO_GUID, 1, bytes(16), RecordKind.TERM_START, b"")
    again = Record(Term(1), Seq(2), 1, NO_GUID, 2, bytes(16), RecordKind.TERM_START, b"")
    oracle, leader = committed(start, again)
    oracle.check_final([leader.runner])


def short_world(**changes: Any) -> Simulation:
    """A world that ends its faults soon."""
    fields = {"seed": 5, "operations": 20, "faults": 1, "fault_phase_ms": 500, **changes}
    return Simulation(SimOptions(**fields))


@pytest.mark.slow
def test_world_without_a_leader_after_healing_is_caught() -> None:
    """O6: a connected quorum has a leader within the bound; a world that stays cut has none."""
    world = short_world()
    nodes = list(world.cluster.node_ids)

    def heal_nothing() -> None:
        world.nemesis.is_stopped = True
        for node in nodes:
            world.cluster.network.cut_groups([node], [n for n in nodes if n != node])
        # Leaders of before notice within this that they reach nobody.
        world.cluster.scheduler.run_until(world.cluster.scheduler.now_ms + 3_000)

    world.nemesis.heal = heal_nothing  # type: ignore[method-assign]
    violation = world.run().violation
    assert violation is not None
    assert "O6: a channel has no leader" in violation


@pytest.mark.slow
def test_replica_that_stays_down_is_caught() -> None:
    """O6: after healing every replica has everything; one that never came back has not."""
    world = short_world()
    heal = world.nemesis.heal

    def heal_but_one() -> None:
        heal()
        last = world.cluster.nodes[world.cluster.node_ids[-1]]
        last.crash("stays down")
        # A restart may be on its way since before the healing.
        last.boot = lambda: None  # type: ignore[method-assign]

    world.nemesis.heal = heal_but_one  # type: ignore[method-assign]
    violation = world.run().violation
    assert violation is not None
    assert "O6: replicas are not equal" in violation


@pytest.mark.slow
def test_error_raised_by_the_code_under_test_is_a_violation() -> None:
    """Nothing may be raised in a world, and what is raised names its place."""
    world = short_world()
    node = world.cluster.nodes[world.cluster.node_ids[0]]

    def broken(*arguments: Any) -> None:
        message = "broken on purpose"
        raise OSError(message)

    node.sync_completed = broken  # type: ignore[method-assign]
    violation = world.run().violation
    assert violation is not None
    assert "OSError" in violation
    assert "test_oracle.py" in violation
