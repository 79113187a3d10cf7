"""``max_lag=0``: nothing that the replica knows of is missing, and every answer says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.rows.sealing import seal
from raftstore.types import Seq
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

ROOT: Final = Path(__file__).parents[4]
PLACES: Final = (
    ("docs/queries.md", r"`max_lag=N`"),
    ("docs/guarantees.md", r"bounded \(`max_lag`\)"),
    ("README.md", r"`max_lag=N`"),
    ("docs/spark.md", r"`maxLagSeq`"),
    ("docs/http-api.md", r"`max_lag` \| query"),
    ("docs/cli.md", r"--max-lag"),
    ("raftstore/client/reads/read_spec.py", r'"""Rows a replica may be behind'),
)


def test_zero_lag_is_counted_from_what_the_replica_knows() -> None:
    """A follower that has not heard of a commit yet serves the state before it: its lag is 0."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    rows = encode_rows([(b"k", seal(b"k", b"new"))])
    acks = ask(cluster, leader, publish(cluster, leader, channel, 1, rows))
    while not acks:
        run(cluster, 0.1)
    assert isinstance(acks[0], PubAck)
    known = follower.runner.channels[channel].core.commit_seq
    assert known < acks[0].last_seq, "the follower has not heard of the commit"
    bounded = Get(1, channel, (b"k",), "bounded", 0, Seq(0), 1_000)
    newest = Get(2, channel, (b"k",), "bounded", 0, acks[0].last_seq, 1_000)
    answers = ask(cluster, follower, bounded, newest)
    run(cluster, 1_000)
    found = {answer.request_id: answer for answer in answers if isinstance(answer, GetAnswer)}
    assert found[1].served.lag == 0
    assert found[2].values[0] is not None, "with the position of the write it is there"


@pytest.mark.parametrize(("path", "names"), PLACES, ids=[path for path, _ in PLACES])
def test_descriptions_of_max_lag_say_what_zero_means(path: str, names: str) -> None:
    """The name suggests "equal to the leader", which it is not."""
    text = (ROOT / path).read_text()
    told = [
        " ".join(text[place.start() : place.start() + 500].split())
        for place in re.finditer(names, text)
    ]
    assert any("acknowledged a moment ago may be missing" in words for words in told)
