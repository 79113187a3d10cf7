"""Records that remove outcomes of old writes: what they take away, and what they must not."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.errors import CorruptRecordError, DecodeError
from raftstore.protocol.records import Record
from raftstore.protocol.trimming import OUTCOMES_MAX, decode_trim, encode_trim
from raftstore.record_machine import DictView
from raftstore.state_machines.state_keys import (
    BATCH_HEAD,
    CHANNEL_TIME,
    TRIMMED,
    applied_batch_key,
    chunk_key,
    outcome_key,
)
from raftstore.state_machines.table import TableMachine
from raftstore.state_machines.trimmed_outcomes import (
    SCAN_PAIRS,
    SCANNED_BYTES_MAX,
    has_outcomes,
    old_outcomes,
    trimmed_to,
)
from raftstore.types import NO_GUID, RecordKind, Seq, Term


class State(dict[bytes, bytes]):
    """The state beside the rows."""

    scanned = 0

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Pairs of a range."""
        found = [(key, self[key]) for key in sorted(self) if start <= key < stop][:limit]
        self.scanned += sum(len(value) for _, value in found)
        return found

    def trim(self, to_seq: int, *keys: bytes, at: int = 100) -> None:
        """Apply one record as a store does."""
        self.apply(encode_trim(Seq(to_seq), keys), at)

    def apply(self, payload: bytes, at: int = 100) -> None:
        """The same of any payload."""
        record = Record(
            Term(1), Seq(at), 1, NO_GUID, 0, bytes(16), RecordKind.TRIM_OUTCOMES, payload
        )
        view = DictView()
        view.state = self
        result = TableMachine().kinds()[record.kind].apply(record, view)
        assert (list(result.writes), result.conflict_seq, result.answer) == ([], None, None)
        for key, value in result.state_writes:
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value


def filled() -> State:
    """Outcomes of a batch of seq 7 with two pieces, and of conditional writes of 9 and 12."""
    keys = (
        BATCH_HEAD, chunk_key("w", 1, 0, 0, 0), CHANNEL_TIME,
        applied_batch_key(7), outcome_key(7), outcome_key(7, 0, 1), outcome_key(9), outcome_key(12),
    )  # fmt: skip
    return State(dict.fromkeys(keys, b"kept"))


def test_named_outcomes_go_and_the_seq_is_remembered() -> None:
    """S6.7: a function of the record and the state; what is named twice or is not there is gone."""
    state = filled()
    assert trimmed_to(state.get) == 0
    gone = (applied_batch_key(7), outcome_key(7), outcome_key(7, 0, 1), outcome_key(9))
    state.trim(9, *gone, outcome_key(8), outcome_key(9))
    assert state == {key: state[key] for key in filled() if key not in gone} | {
        TRIMMED: state[TRIMMED]
    }
    assert trimmed_to(state.get) == 9


def test_seq_up_to_which_outcomes_are_trimmed_never_falls() -> None:
    """S6.6: a later leader may know a lower base; what is gone stays refused."""
    state = filled()
    state.trim(9)
    state.trim(7, applied_batch_key(7))
    assert trimmed_to(state.get) == 9
    state.trim(12, at=13)
    assert trimmed_to(state.get) == 12


@pytest.mark.parametrize(
    ("to_seq", "key"),
    [
        (9, outcome_key(12)),
        (9, applied_batch_key(10)),
        (9, BATCH_HEAD),
        (9, TRIMMED),
        (9, CHANNEL_TIME),
        (9, chunk_key("w", 1, 0, 0, 0)),
        (9, outcome_key(7)[:-1]),
        (9, outcome_key(7) + b"\0"),
        (9, applied_batch_key(7) + b"\0"),
        (9, b""),
        (100, outcome_key(7)),
    ],
)
def test_record_that_names_anything_else_is_refused_as_damaged(to_seq: int, key: bytes) -> None:
    """Nothing but outcomes of records in front of it: one bad record must not take a batch away."""
    state = filled()
    with pytest.raises(CorruptRecordError, match="record 100 of term 1 cannot be applied"):
        state.trim(to_seq, outcome_key(7), key)
    assert state == filled()


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x90", b"\x91\xa1a", b"\x92\x01\x02", b"\x91\xff", b"\x91\xc4\x01a"]
)
def test_payload_that_is_no_seq_and_keys_is_refused(value: bytes) -> None:
    """By the codec, and as a damaged record by the machine."""
    with pytest.raises(DecodeError, match="trims no outcomes"):
        decode_trim(value)
    with pytest.raises(CorruptRecordError):
        filled().apply(value)


def test_one_record_names_a_bounded_number() -> None:
    """The work of a replica for one record is bounded."""
    keys = [outcome_key(seq) for seq in range(OUTCOMES_MAX + 1)]
    assert decode_trim(encode_trim(Seq(9), keys[1:])) == (9, keys[1:])
    with pytest.raises(DecodeError, match=f"{OUTCOMES_MAX + 1} outcomes .* more than"):
        decode_trim(encode_trim(Seq(9), keys))


def test_old_outcomes_are_found_up_to_a_seq_and_behind_a_key() -> None:
    """Of both kinds, and nothing else."""
    scan: Any = filled().scan
    of_seven = [applied_batch_key(7), outcome_key(7), outcome_key(7, 0, 1)]
    assert old_outcomes(scan, Seq(6)) == []
    assert not has_outcomes(scan, Seq(6))
    assert old_outcomes(scan, Seq(7)) == of_seven
    assert has_outcomes(scan, Seq(7))
    assert old_outcomes(scan, Seq(11)) == [*of_seven, outcome_key(9)]
    for number in range(5):
        assert (
            old_outcomes(scan, Seq(12), after=([b"", *of_seven, outcome_key(9)])[number])
            == ([*of_seven, outcome_key(9), outcome_key(12)][number:])
        )
    assert has_outcomes(State({outcome_key(9): b""}).scan, Seq(9))
    assert not has_outcomes(State({outcome_key(9): b""}).scan, Seq(8))


def test_as_many_small_outcomes_are_named_as_a_record_takes() -> None:
    """The next record takes those behind them, until there are none."""
    state = State({outcome_key(seq): b"x" for seq in range(1, 2 * OUTCOMES_MAX + 2)})
    found: list[bytes] = []
    sizes = []
    while keys := old_outcomes(state.scan, Seq(10**6), after=found[-1] if found else b""):
        found += keys
        sizes.append(len(keys))
    assert sizes == [OUTCOMES_MAX, OUTCOMES_MAX, 1]
    assert found == sorted(state)


def test_large_outcomes_are_read_a_bounded_number_of_bytes_at_a_time() -> None:
    """Outcomes of a merge may have a MiB each."""
    state = State({outcome_key(seq): bytes(1 << 18) for seq in range(1, 100)})
    keys = old_outcomes(state.scan, Seq(10**6))
    assert len(keys) == SCANNED_BYTES_MAX >> 18
    assert state.scanned <= SCANNED_BYTES_MAX + (SCAN_PAIRS << 18)
