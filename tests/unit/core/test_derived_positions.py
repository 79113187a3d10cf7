"""Positions derived from the log equal those of a log read anew, after any truncation (S2.5, S4.5).

Terms, chain hashes, micro-batches, configurations and the writes that are recognised are kept
beside the log and follow it. After any appends, commits and truncations they have to be what a
replica finds that starts on the same records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.config import ReplicationSettings
from raftstore.core.state import ChannelState
from raftstore.ports.log import RecoveredChannel
from raftstore.protocol.payload import encode_mark
from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, NodeId, RecordKind, Seq
from tests.core_bench import CHANNEL, N1, N2, N3, TRIO, guid, lineage_of, record, term_start

ENCODED_CONFIGS = [
    msgspec.msgpack.encode(ChannelConfig((voters,)))
    for voters in ((N1, N2), (N1, N2, N3), (N1, N2, N3, NodeId("n4")))
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["rows", "condition", "mark", "staged", "config", "commit", "cut", "term"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


def state_of(records: list[Record], applied_seq: Seq) -> ChannelState:
    """A replica that starts on these records."""
    lineage = lineage_of(records)
    recovered = RecoveredChannel(
        channel=CHANNEL,
        term=lineage.last.term,
        voted_for=None,
        lineage=tuple(reversed(lineage.newest())),
        last_seq=lineage.last_seq,
        shortfall=None,
    )
    return ChannelState(
        me=N1,
        channel=CHANNEL,
        creation_config=TRIO,
        settings=ReplicationSettings(),
        durability="fsync",
        recovered=recovered,
        records=records,
        applied_seq=applied_seq,
    )


@dataclass
class FollowedLog:
    """A replica's records, and the state that followed them step by step."""

    state: ChannelState = field(default_factory=lambda: state_of([], Seq(0)))
    records: list[Record] = field(default_factory=list)
    term: int = 1
    counter: int = 0

    def do(self, what: str, number: int) -> None:
        """Append, commit or truncate, as drawn."""
        if what == "commit":
            ends = [r.last_seq for r in self.records if r.last_seq > self.state.commit_seq]
            if ends:
                self.state.advance_commit(ends[min(number, len(ends) - 1)])
        elif what == "cut":
            starts = [r.base_seq for r in self.records if r.base_seq > self.state.commit_seq]
            if starts:
                self.cut(starts[-1 - min(number, len(starts) - 1)])
        elif what == "term":
            self.term += 1
            self.append(term_start(self.next_seq, self.term))
        else:
            self.append(self.record(what, number))
        self.state.take_effects()

    @property
    def next_seq(self) -> int:
        return self.state.last_seq + 1

    def record(self, what: str, number: int) -> Record:
        """A record of a kind that something is derived from."""
        # A retry after a cut has the GUID of before: it is in the log once at most.
        held = {r.guid for r in self.records}
        self.counter = next(n for n in range(1, 100) if guid(n, sessions(n)) not in held)
        kinds = {
            "rows": (RecordKind.ROWS, b"rows %d" % self.counter),
            "condition": (RecordKind.CONDITIONAL, b"condition"),
            "mark": (RecordKind.BATCH_MARK, encode_mark(f"w{number % 2}", number // 2)),
            "staged": (RecordKind.BATCH_APPLY, b"staged"),
            "config": (RecordKind.CONFIG, ENCODED_CONFIGS[number % 3]),
        }
        kind, payload = kinds[what]
        return record(
            self.next_seq,
            term=self.term,
            rows=1 + number if what == "rows" else 1,
            counter=self.counter,
            session=sessions(self.counter),
            payload=payload,
            kind=kind,
        )

    def append(self, made: Record) -> None:
        """The leader's next record, in its term."""
        self.state.term = made.term
        self.state.append(made)
        self.state.verified_seq = made.last_seq
        self.records.append(made)

    def cut(self, from_seq: Seq) -> None:
        """The next leader has other records from there on, of its own term."""
        self.term += 1
        assert self.state.truncate(from_seq)
        self.records = [r for r in self.records if r.base_seq < from_seq]


def sessions(counter: int) -> bytes:
    """Writes of three producers, in turn."""
    return b"session%d" % (counter % 3)


def derived(state: ChannelState, records: list[Record]) -> dict[str, object]:
    """Everything that is known of a log without reading it."""
    ends = [Seq(0), *(r.last_seq for r in records)]
    asked = [guid(n, sessions(n)) for n in range(1, 70)]
    found = [state.dedupe.find(known) for known in asked]
    return {
        "lineage": state.lineage.newest(),
        "terms": [state.lineage.term_at(seq) for seq in range(state.last_seq + 1)],
        "chain": [state.chain.at(end) for end in ends],
        "batches": [state.batches.at(end) for end in ends],
        "config": (state.configs.current, state.configs.current_seq),
        "uncommitted": (state.uncommitted_records, state.tail.bytes),
        "writes": [
            (w.base_seq, w.last_seq, w.term, w.digest, w.kind) if w else None for w in found
        ],
        "complete": [state.dedupe.is_complete_for(known) for known in asked],
        "counts": (state.dedupe.sessions, state.dedupe.outcomes),
        "commit": state.commit_seq,
        "timestamp": state.tail.last_timestamp_ms,
    }


@pytest.mark.slow
@settings(max_examples=150)
@given(STEPS)
def test_derived_positions_are_those_of_a_fresh_rebuild_after_each_cut(
    steps: list[tuple[str, int]],
) -> None:
    """After every truncation, and at the end, nothing remembers a record that went."""
    followed = FollowedLog()
    for what, number in [*steps, ("cut", 0), ("mark", 1), ("rows", 2)]:
        followed.do(what, number)
        if what == "cut":
            compare(followed)
    compare(followed)


def compare(followed: FollowedLog) -> None:
    """The state that followed its log, and one that starts on it."""
    state, records = followed.state, followed.records
    rebuilt = state_of(records, state.commit_seq)
    assert derived(state, records) == derived(rebuilt, records)
