"""Which queued work is applied next."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import KIB, MIB
from raftstore.ports.tables import Piece
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.apply_queue import (
    LOOK_AHEAD_MAX,
    OVERTAKING_BYTES_MAX,
    TURN_BYTES_MAX,
    ApplyPiece,
    ApplyQueue,
    ApplyRecords,
    Job,
)
from raftstore.types import ChannelId, History, Seq, Term
from tests.storage_helpers import record

NOTHING = History(Term(0), Seq(0))


def channel(number: int) -> AppliedChannel:
    """A channel with nothing applied."""
    return AppliedChannel(ChannelId(bytes([number]) * 17), TableMachine(), NOTHING, NOTHING)


CHANNELS = [channel(number) for number in range(4)]
A, B, C, _ = CHANNELS


def records(state: AppliedChannel, size: int = 100) -> ApplyRecords:
    """One committed record."""
    return ApplyRecords(state, [record(1)], size)


def piece(state: AppliedChannel, size: int = 4 * MIB, *, last: bool = False) -> ApplyPiece:
    """A piece of a micro-batch."""
    return ApplyPiece(state, Piece(record(1), first=False, last=last), size)


def queue_of(*jobs: Job) -> ApplyQueue:
    """These jobs, queued in this order."""
    queue = ApplyQueue()
    for job in jobs:
        queue.put(job)
    return queue


def taken(queue: ApplyQueue) -> list[Job]:
    """Everything, in the order in which it is taken."""
    found = []
    while (job := queue.take()) is not None:
        found.append(job)
    return found


def barrier() -> Callable[[], None]:
    """Other work; no two are the same."""
    return lambda: None


_sizes = st.integers(0, 5 * MIB)
_jobs = st.one_of(
    st.builds(records, st.sampled_from(CHANNELS), _sizes),
    st.builds(piece, st.sampled_from(CHANNELS), _sizes, last=st.booleans()),
    st.builds(barrier),
)


@given(st.lists(_jobs, max_size=40))
def test_nothing_overtakes_within_its_channel_nor_other_work(jobs: list[Job]) -> None:
    """S10: every channel is applied in its order, and other work sees all that was before it."""
    found = taken(queue_of(*jobs))
    assert len(found) == len(jobs)
    for state in CHANNELS:

        def concerns(job: Job, state: AppliedChannel = state) -> bool:
            return not isinstance(job, ApplyRecords | ApplyPiece) or job.state is state

        assert list(map(id, filter(concerns, found))) == list(map(id, filter(concerns, jobs)))


def test_pieces_of_one_channel_follow_each_other() -> None:
    """Two batches of different channels are not mixed piece by piece."""
    jobs = [piece(state, MIB) for _ in range(3) for state in (A, B, C)]
    states = [job.state for job in taken(queue_of(*jobs)) if isinstance(job, ApplyPiece)]
    assert states == [A, A, A, B, B, B, C, C, C]


def test_turn_of_a_channel_ends_after_so_many_bytes() -> None:
    """A large batch does not hold up the batches of other channels until its end."""
    in_a_turn = TURN_BYTES_MAX // (4 * MIB)
    large = [piece(A) for _ in range(3 * in_a_turn)]
    found = taken(queue_of(*large, piece(B)))
    assert [job for job in found if isinstance(job, ApplyPiece)][in_a_turn].state is not B
    waiting = queue_of(large[0], piece(B), *large[1:])
    states = [job.state for job in taken(waiting) if isinstance(job, ApplyPiece)]
    assert states.index(B) == in_a_turn


def test_end_of_a_batch_ends_the_turn() -> None:
    """The next batch of the same channel takes its turn behind those that waited longer."""
    queue = queue_of(piece(A, last=True), piece(B), piece(A))
    assert [job.state for job in taken(queue) if isinstance(job, ApplyPiece)] == [A, B, A]


def test_records_go_before_the_pieces_of_other_channels() -> None:
    """A put does not wait for the rows of other channels' batches."""
    put = records(B)
    assert taken(queue_of(piece(A), piece(A), put))[0] is put


def test_records_wait_for_the_pieces_of_their_own_channel() -> None:
    """S10: a put behind a batch of its channel is applied behind it."""
    put = records(A)
    assert taken(queue_of(piece(A), piece(B), put)).index(put) > 0


def test_pieces_are_applied_however_many_records_come() -> None:
    """A batch goes on while others write as fast as they can."""
    queue = queue_of(piece(A))
    before = 0
    while before <= OVERTAKING_BYTES_MAX:
        queue.put(records(B, MIB))
        if isinstance(queue.take(), ApplyPiece):
            break
        before += MIB
    assert before == OVERTAKING_BYTES_MAX


def test_records_far_behind_wait_until_they_are_nearer() -> None:
    """Choosing looks at a bounded number of jobs."""
    put = records(B)
    found = taken(queue_of(*(piece(A) for _ in range(LOOK_AHEAD_MAX)), put))
    assert found.index(put) == 1


def test_queue_counts_its_jobs() -> None:
    """The apply thread sleeps while there are none."""
    queue = queue_of()
    assert len(queue) == 0
    for job in (piece(A), records(B), barrier()):
        queue.put(job)
    assert len(queue) == 3
    taken(queue)
    assert len(queue) == 0


def test_turn_of_a_channel_is_counted_from_its_own_first_piece() -> None:
    """To the byte, whatever another channel had before."""
    turn = [piece(A, TURN_BYTES_MAX - 1), piece(A)]
    before = piece(C, last=True)
    assert taken(queue_of(before, *turn[:1], piece(B), *turn[1:]))[:3] == [before, *turn]
    full = [piece(A, TURN_BYTES_MAX), piece(A)]
    other = piece(B)
    assert taken(queue_of(full[0], other, full[1])) == [full[0], other, full[1]]


def test_pieces_without_rows_end_a_turn_too() -> None:
    """One that removes rows has no payload: each counts as one MiB."""
    in_a_turn = TURN_BYTES_MAX // MIB
    waiting = queue_of(piece(A, 0), piece(B, 0), *(piece(A, 0) for _ in range(2 * in_a_turn)))
    states = [job.state for job in taken(waiting) if isinstance(job, ApplyPiece)]
    assert states.index(B) == in_a_turn


def test_small_records_are_counted_with_what_they_cost() -> None:
    """Thousands of empty records hold up a piece no longer than four MiB of large ones."""
    queue = queue_of(piece(A))
    overtaken = 0
    while True:
        queue.put(records(B, 0))
        if isinstance(queue.take(), ApplyPiece):
            break
        overtaken += 1
    assert overtaken == OVERTAKING_BYTES_MAX // (4 * KIB)


def test_records_may_overtake_again_after_each_piece() -> None:
    """The count begins anew behind the last piece."""
    queue = queue_of(piece(A), piece(A), piece(A))
    for _ in range(2):
        put = records(B, OVERTAKING_BYTES_MAX)
        queue.put(put)
        assert queue.take() is put
        queue.put(records(B))
        assert isinstance(queue.take(), ApplyPiece)
        assert isinstance(queue.take(), ApplyRecords)


def test_records_in_front_are_not_counted_as_overtaking() -> None:
    """They pass no piece."""
    large = [records(B, OVERTAKING_BYTES_MAX) for _ in range(3)]
    put = records(C)
    assert taken(queue_of(*large, piece(A), put))[:4] == [*large, put]


def test_turn_goes_to_the_first_piece_where_its_channel_has_none() -> None:
    """A turn without work holds nobody up."""
    first, other = piece(A, MIB), piece(B, MIB)
    queue = queue_of(first)
    assert queue.take() is first
    queue.put(other)
    queue.put(piece(C, MIB))
    assert queue.take() is other
