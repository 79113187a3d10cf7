"""Configurations follow the log, and go back with it (S8)."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.core.configs import ConfigStack, decode_config, encode_config
from raftstore.core.effects import ConfigCommitted, Halt
from raftstore.core.events import TargetKnown
from raftstore.protocol.records import Record
from raftstore.protocol.replication import StoreAck
from raftstore.types import (
    ChangeTarget,
    ChannelConfig,
    NodeId,
    RecordKind,
    ReplicaId,
    ReplicaNumber,
    Seq,
    Term,
)
from tests.core_world import CHANNEL, N1, N2, N3, TRIO, Bench, make_replica, record

PAIR = ChannelConfig(((N1, N2),), learners=(NodeId("n4"),))


def config_record(seq: int, config: ChannelConfig, *, term: int = 1) -> Record:
    """A CONFIG record."""
    return record(seq, payload=encode_config(config), kind=RecordKind.CONFIG, term=term)


def test_newest_configuration_counts_from_its_append() -> None:
    """S8: a configuration is in force when it is appended."""
    stack = ConfigStack(TRIO)
    stack.append(config_record(4, PAIR))
    assert stack.current == PAIR
    assert stack.current_seq == 4


def test_configuration_rolls_back_with_truncation() -> None:
    """S8: what the log lost is not in force, down to the creation configuration."""
    stack = ConfigStack(TRIO)
    stack.append(config_record(4, PAIR))
    stack.truncate(Seq(5))
    assert stack.current == PAIR
    stack.truncate(Seq(4))
    assert stack.current == TRIO
    stack.truncate(Seq(1))
    assert stack.current == TRIO


def test_configurations_below_a_committed_one_are_forgotten() -> None:
    """The stack stays small: only the newest committed one and what follows are needed."""
    stack = ConfigStack(TRIO)
    stack.append(config_record(2, PAIR))
    stack.append(config_record(3, TRIO))
    stack.commit(Seq(2))
    stack.truncate(Seq(3))
    assert stack.current == PAIR


def test_undecodable_configuration_is_refused() -> None:
    """Bytes that are no configuration never become one."""
    with pytest.raises(msgspec.MsgspecError):
        ConfigStack(TRIO).append(record(1, payload=b"\xc1", kind=RecordKind.CONFIG))


def test_replica_reports_whether_its_configuration_is_committed() -> None:
    """A replica rebuilds the newest configuration from its log and says if it is committed."""
    records = [record(1), config_record(2, PAIR)]
    replica = make_replica(records=records, applied_seq=1)
    assert replica.config() == PAIR
    assert not replica.config_committed()
    assert make_replica(records=records, applied_seq=2).config_committed()
    assert make_replica().config_committed()


def test_replica_halts_on_a_configuration_nobody_can_read() -> None:
    """S0.4: going on with an unknown configuration could count the wrong voters."""
    bench = Bench(make_replica(N1))
    bench.steady()
    bad = record(1, payload=b"\xc1", kind=RecordKind.CONFIG)
    effects = bench.store_request(bad, prev_term=0, inlined=True)
    assert [type(effect) for effect in effects] == [Halt]


def test_creation_configuration_is_committed_from_the_start() -> None:
    """S8: it is in no record, so nothing of it can be taken back."""
    replica = make_replica(N1)
    assert replica.config_committed()
    stack = ConfigStack(TRIO)
    stack.truncate(Seq(1))
    assert (stack.current, stack.current_seq) == (TRIO, 0)


def test_configurations_of_earlier_versions_are_read() -> None:
    """M1: what was added has defaults, and its place is behind what was there."""
    old = msgspec.msgpack.encode([[[N1, N2]], ["n4"]])
    assert decode_config(old) == PAIR
    assert (PAIR.number_of(N1), PAIR.change, PAIR.ended) == (0, 0, False)


def test_replicas_are_members_by_node_and_number() -> None:
    """M4: an earlier life of a member's replica is no member, nor is a later one."""
    n4 = NodeId("n4")
    config = ChannelConfig(((N1, N2),), (n4,), {N2: ReplicaNumber(7), n4: ReplicaNumber(8)}, 8)
    assert decode_config(encode_config(config)) == config
    assert config.has_voter(ReplicaId(N1))
    assert config.has_voter(ReplicaId(N2, ReplicaNumber(7)))
    assert not config.has_voter(ReplicaId(N2))
    assert not config.has_voter(ReplicaId(n4, ReplicaNumber(8)))
    assert config.has_member(ReplicaId(n4, ReplicaNumber(8)))
    assert not config.has_member(ReplicaId(n4))
    assert not config.has_member(ReplicaId(N3))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (ChannelConfig(()), "0 voter sets"),
        (ChannelConfig(((N1,), (N2,), (N3,))), "3 voter sets"),
        (ChannelConfig(((N1,), ())), "an empty voter set"),
        (ChannelConfig(((N1, N2),), (N2,)), "n2.* as voter and as learner"),
    ],
)
def test_configuration_that_no_leader_writes_is_refused(config: ChannelConfig, told: str) -> None:
    """M1: no empty voter set, and no voter that is also a learner."""
    with pytest.raises(ValueError, match=told):
        ConfigStack(TRIO).append(config_record(1, config))


def test_the_configuration_before_counts_again_until_the_newest_is_committed() -> None:
    """M3, M18: what a cut brings back is known, and what is committed cannot be cut."""
    stack = ConfigStack(TRIO)
    assert stack.before == TRIO
    stack.append(config_record(2, PAIR, term=3))
    assert (stack.before, stack.current, stack.current_term) == (TRIO, PAIR, 3)
    assert stack.committed.config == TRIO
    stack.commit(Seq(2))
    assert stack.before == PAIR
    assert stack.committed == (2, 3, PAIR)


def test_configuration_of_a_base_is_committed() -> None:
    """S6.5: only what was committed is in a base; older versions did not keep the term."""
    stack = ConfigStack(TRIO)
    assert msgspec.msgpack.decode(stack.encode()) == [0, None]
    stack.append(config_record(2, PAIR, term=3))
    stack.commit(Seq(2))
    found = ConfigStack(TRIO)
    found.restore(stack.encode(), Seq(5))
    assert found.committed == (2, 3, PAIR)
    old = ConfigStack(TRIO)
    old.restore(msgspec.msgpack.encode([2, PAIR]), Seq(5))
    assert old.committed == (2, 0, PAIR)


def test_replica_says_which_configuration_is_committed() -> None:
    """M21: each replica learns it, once, when the record is committed there."""
    bench = Bench(make_replica(N1))
    bench.steady()
    effects = bench.store_request(config_record(1, PAIR), prev_term=0, inlined=True, commit_seq=0)
    assert bench.of(ConfigCommitted, effects) == []
    bench.persist()
    effects = bench.store_request(record(2), prev_term=1, inlined=True, commit_seq=1)
    assert bench.of(ConfigCommitted, effects) == [ConfigCommitted(Seq(1), Term(1), PAIR)]
    effects = bench.store_request(record(3), prev_term=1, inlined=True, commit_seq=2)
    assert bench.of(ConfigCommitted, effects) == []


def test_leader_says_it_again_when_it_is_ready() -> None:
    """M22: the leader before may have died between the commit and its report."""
    bench = Bench(make_replica(N1, records=[config_record(1, PAIR)], applied_seq=1))
    bench.do(TargetKnown(ChangeTarget(5, (N1, N2)), Seq(0)))
    bench.lead(2)
    effects = bench.persist()
    assert bench.of(ConfigCommitted, effects) == []
    effects = bench.receive(StoreAck(CHANNEL, Term(2), bench.replica.last_seq), N2)
    assert bench.of(ConfigCommitted, effects) == [ConfigCommitted(Seq(1), Term(1), PAIR)]
