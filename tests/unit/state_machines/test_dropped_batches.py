"""The rule for writers that begin in a table whose namesake was dropped: facts against facts,
without a cluster.
"""

from __future__ import annotations

import pytest

from raftstore.protocol.batches import BeginBatch
from raftstore.state_machines.batches.dropped_batches import judge_dropped
from raftstore.state_machines.batches.txn_records import Begin, Close
from raftstore.types import ChannelId
from tests.batch_bench import CoordinatorBench

GONE = frozenset({("counts", "ck"), ("other", "ck2")})


def begin(batch_id: int, writer: str = "counts", lineage: str = "ck") -> BeginBatch:
    """The BeginBatch that each task of a stream sends."""
    return BeginBatch(
        request_id=1,
        channel=ChannelId(bytes(18)),
        writer=writer,
        batch_id=batch_id,
        uuid=b"u" * 16,
        lineage=lineage,
        one_shot=False,
        ttl_ms=1_000,
        timeout_ms=1_000,
    )


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (begin(7), "unknown_table"),
        (begin(1), "unknown_table"),
        (begin(0), None),  # nothing can be missing
        (begin(7, lineage="new"), None),  # a new checkpoint, whatever its first batch here
        (begin(7, lineage=""), None),  # nobody reported it
        (begin(7, writer="counts-2"), None),  # the user's word, or a second sink
        (begin(7, writer="other"), None),
    ],
)
def test_only_a_writer_with_batches_in_a_dropped_table_is_refused(
    request_: BeginBatch, code: str | None
) -> None:
    """Anything that may be the first run of a stream, or of a sink of one, begins."""
    state = CoordinatorBench().state
    verdict = judge_dropped(request_, "t", state, GONE, is_current=True)
    assert (verdict.code if verdict else None) == code
    if verdict is not None:
        assert f"batch {request_.batch_id} of writer 'counts'" in verdict.message
        assert "new checkpoint" in verdict.message
        assert "writerId" in verdict.message
    assert judge_dropped(request_, "t", state, (), is_current=True) is None


def test_writer_that_began_in_this_table_goes_on() -> None:
    """It was let in at batch 0, and what the older table had is not asked for again."""
    bench = CoordinatorBench()
    bench.step(Begin("counts", 0, b"a" * 16, "ck", False, 1_000, 2))
    assert judge_dropped(begin(1), "t", bench.state, GONE, is_current=True) is None
    bench.step(Close("counts", 1))
    assert judge_dropped(begin(1), "t", bench.state, GONE, is_current=False) is None


def test_leader_that_has_not_applied_everything_does_not_call_a_writer_unknown() -> None:
    """Its batches in this very table may be in what is not applied yet: asked again later."""
    verdict = judge_dropped(begin(7), "t", CoordinatorBench().state, GONE, is_current=False)
    assert verdict is not None
    assert verdict.code == "no_leader"
