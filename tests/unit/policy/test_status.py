"""The status snapshot: plain JSON values, ordered, with warnings a person can act on."""

from __future__ import annotations

import json
from dataclasses import replace

from raftstore.policy.status import (
    CatchUpStatus,
    ChannelFacts,
    FloorStatus,
    GapStatus,
    NodeFacts,
    ReplicaFacts,
    StatusFacts,
    build_status,
)
from raftstore.types import NodeId, Role, Seq, Term, channel_id

N1, N2 = NodeId("n1@01"), NodeId("n2@02")
FLOOR = FloorStatus(name="slow_replica", owner="n2", seq=4, bytes_max=1_000, is_given_up=False)
GAP = GapStatus(from_seq=12, to_seq=13, age_ms=250)
CHANNEL = ChannelFacts(
    channel=channel_id(b"t" * 16, 1),
    table="orders",
    partition=1,
    role=Role.LEADER,
    term=Term(3),
    leader=N1,
    mode="steady",
    applied_seq=Seq(9),
    commit_seq=Seq(10),
    last_seq=Seq(11),
    lag=1,
    leader_info_age_ms=0,
    replicas=(ReplicaFacts(N1, Seq(9), 1), ReplicaFacts(N2, None, None, cannot_complete=True)),
    base_seq=Seq(4),
    log_bytes=77,
    floors=(FLOOR,),
    gaps=(GAP,),
    end_seq=Seq(14),
)
NOTHING_LEFT = {
    "channels": 0, "waiting": 0, "rows_left": 0, "bytes_left": 0, "bytes_taken": 0,
    "rows_per_s": 0, "bytes_per_s": 0, "left_ms": None, "cannot_complete": 0, "flapping": 0,
}  # fmt: skip
TOLD = CatchUpStatus(
    reason="restart",
    for_ms=100,
    from_seq=2,
    verified_seq=5,
    end_seq=305,
    rows_left=300,
    bytes_left=3_000,
    bytes_taken=400,
    rows_per_s=30,
    bytes_per_s=600,
    written_per_s=10,
    left_ms=15_000,
    is_far=False,
    cannot_complete=False,
    waits=False,
)
FACTS = StatusFacts(
    viewpoint=N1,
    cluster_id=b"\xab" * 16,
    catalog_version=5,
    log_bytes=100,
    table_bytes=50,
    log_size_warning_bytes=100,
    nodes=(
        NodeFacts(N2, "host:2", up=True, state="up", last_heard_ms=30, clock_skew_ms=-7),
        NodeFacts(N1, "host:1", up=True, state="up", last_heard_ms=0),
    ),
    channels=(CHANNEL, replace(CHANNEL, partition=0)),
)


def test_status_has_the_documented_shape() -> None:
    """Golden JSON: scripts and the command line read these fields."""
    status = build_status(FACTS)
    assert json.loads(json.dumps(status)) == status
    assert status | {"nodes": [], "channels": []} == {
        "version": 1,
        "viewpoint": "n1",
        "cluster_id": "ab" * 16,
        "catalog_version": 5,
        "nodes": [],
        "channels": [],
        "catch_up": NOTHING_LEFT,
        "sizes": {"log_bytes": 100, "table_bytes": 50},
        "warnings": [],
    }
    assert status["nodes"][1] == {
        "id": "n2@02",
        "name": "n2",
        "endpoint": "host:2",
        "up": True,
        "state": "up",
        "last_heard_ms": 30,
        "clock_skew_ms": -7,
        "failure_domain": "",
    }
    assert status["channels"][1] == {
        "channel": "74" * 16 + "0001",
        "table": "orders",
        "partition": 1,
        "role": "leader",
        "member": "voter",
        "term": 3,
        "leader": "n1",
        "mode": "steady",
        "reason": "",
        "slow_machine": "",
        "applied_seq": 9,
        "commit_seq": 10,
        "last_seq": 11,
        "base_seq": 4,
        "log_bytes": 77,
        "lag": 1,
        "leader_info_age_ms": 0,
        "replicas": [
            {
                "node": "n1", "up": True, "is_leader": True, "applied_seq": 9, "lag": 1,
                "cannot_complete": False, "member": "voter",
            },
            {
                "node": "n2", "up": True, "is_leader": False, "applied_seq": None, "lag": None,
                "cannot_complete": True, "member": "voter",
            },
        ],
        "floors": [FLOOR],
        "catch_up": None,
        "flapping": False,
        "gaps": [GAP],
        "end_seq": 14,
        "record": None,
        "late_standbys": {},
    }  # fmt: skip


def test_channels_that_catch_up_are_told_each_and_together() -> None:
    """NATS-140, NATS-153: how much is left, how fast it goes and when it is done; a replica that
    never gets there or that flaps is warned of.
    """
    first = replace(CHANNEL, catch_up=TOLD)
    slow: CatchUpStatus = {**TOLD, "rows_left": 50, "cannot_complete": True, "waits": True}
    second = replace(CHANNEL, partition=0, catch_up=slow, flapping=True)
    status = build_status(replace(FACTS, channels=(first, second)))
    assert [channel["catch_up"] for channel in status["channels"]] == [slow, TOLD]
    assert status["catch_up"] == {
        "channels": 2,
        "waiting": 1,
        "rows_left": 350,
        "bytes_left": 6_000,
        "bytes_taken": 800,
        "rows_per_s": 60,
        "bytes_per_s": 1_200,
        "left_ms": 8_750,
        "cannot_complete": 1,
        "flapping": 1,
    }
    assert [warning.partition(";")[0] for warning in status["warnings"]] == [
        "channel orders/0 falls further behind its leader all the time, 50 rows by now",
        "channel orders/0 left steady state five times within ten minutes, see `raftstore events "
        "--type flapping`",
    ]


def test_time_left_is_not_known_while_no_channel_comes_nearer() -> None:
    """Given as many rows written as stored, it never ends."""
    calm: CatchUpStatus = {**TOLD, "rows_per_s": 10, "written_per_s": 10}
    status = build_status(replace(FACTS, channels=(replace(CHANNEL, catch_up=calm),)))
    assert status["catch_up"]["left_ms"] is None


def test_status_is_ordered_by_name_and_partition() -> None:
    """The same state gives the same text, whatever order it was gathered in."""
    status = build_status(FACTS)
    assert [node["name"] for node in status["nodes"]] == ["n1", "n2"]
    assert [channel["partition"] for channel in status["channels"]] == [0, 1]


def test_status_warns_when_the_log_is_over_its_limit() -> None:
    """Something keeps it from being trimmed: status says so with both sizes."""
    (warning,) = build_status(replace(FACTS, log_bytes=101))["warnings"]
    assert warning.startswith("the log takes 101 bytes, more than 100; retention.enabled is")


def test_status_warns_of_dead_nodes_leaderless_and_stopped_channels() -> None:
    """Each condition that an operator has to act on is a sentence with names."""
    dead = NodeFacts(N2, "host:2", up=False, state="down", last_heard_ms=None)
    stopped = replace(CHANNEL, leader=None, mode="stopped", reason="hashes differ at seq 9")
    facts = replace(FACTS, nodes=(dead,), channels=(stopped,), warnings=("the disk is slow",))
    status = build_status(facts)
    assert status["warnings"] == [
        "node n2 at host:2 is down; start it again",
        "channel orders/1 has no leader known here; check that a majority of its replicas is up",
        "channel orders/1 is stopped: hashes differ at seq 9",
        "the disk is slow",
    ]
    assert status["channels"][0]["leader"] is None
    assert status["channels"][0]["replicas"][0] == {
        "node": "n1", "up": False, "is_leader": False, "applied_seq": 9, "lag": 1,
        "cannot_complete": False, "member": "voter",
    }  # fmt: skip
