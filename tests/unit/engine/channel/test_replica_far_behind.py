"""A replica that takes nothing from its leader still gets its heartbeats: no reason for an election
(S1.4)."""

from __future__ import annotations

import pytest

from raftstore.protocol.election import PreVote, RequestVote
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import MsgSync, StoreRequest
from raftstore.rows.sealing import seal
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run


@pytest.mark.slow
def test_replica_whose_appends_are_all_refused_or_lost_does_not_stand() -> None:
    """It asks for history again and again, and is equal soon after that arrives at last."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    behind = next(node for node in cluster.nodes.values() if node is not leader)
    assert leader.runner is not None
    assert behind.runner is not None
    led, followed = leader.runner.channels[channel], behind.runner.channels[channel]
    term = led.elector.term
    send = cluster.network.send
    asked: list[object] = []
    is_cut = True

    def without_records(sender: str, receiver: str, message: object) -> None:
        if isinstance(message, PreVote | RequestVote):
            asked.append(message)
        if is_cut and receiver == behind.node and isinstance(message, StoreRequest | MsgSync):
            return
        send(sender, receiver, message)  # type: ignore[arg-type]

    cluster.network.send = without_records  # type: ignore[method-assign]
    for counter in range(1, 41):
        payload = encode_rows([(b"k", seal(b"k", b"%d" % counter))])
        answers = ask(cluster, leader, publish(cluster, leader, channel, counter, payload))
        run(cluster, 250)
        [answer] = answers
        assert isinstance(answer, PubAck), answer
    end = led.core.commit_seq
    assert followed.core.last_seq < end, "nothing was kept from it"
    assert asked == [], "a refused record was taken for a dead leader"
    assert led.elector.term == term
    is_cut = False
    run(cluster, 3_000)
    assert followed.core.commit_seq == end
