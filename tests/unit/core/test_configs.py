"""Configurations follow the log, and go back with it (S8)."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.core.configs import ConfigStack, encode_config
from raftstore.core.effects import Halt
from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, NodeId, RecordKind, Seq
from tests.core_world import N1, N2, TRIO, Bench, make_replica, record

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
