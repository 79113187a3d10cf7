"""The leader's view of one follower."""

from __future__ import annotations

from raftstore.core.progress import RESEND_BACKOFF_MAX, Progress
from raftstore.protocol.replication import StoreAck
from raftstore.types import Seq, Term
from tests.core_world import CHANNEL


def ack(match_seq: int, commit_seq: int = 0) -> StoreAck:
    """An ack of term 1."""
    return StoreAck(CHANNEL, Term(1), Seq(match_seq), Seq(0), Seq(commit_seq))


def test_match_is_a_maximum_so_late_acks_change_nothing() -> None:
    """S3.4: duplicated and reordered acks are harmless."""
    progress = Progress()
    assert progress.on_ack(ack(5), last_seq=Seq(9), now_ms=1)
    assert not progress.on_ack(ack(3), last_seq=Seq(9), now_ms=2)
    assert not progress.on_ack(ack(5), last_seq=Seq(9), now_ms=3)
    assert progress.view() == (5, 0, 3, True, False)


def test_applied_and_commit_positions_are_maxima_too() -> None:
    """S3.4: a late ack takes nothing back; what is applied there may be trimmed here."""
    progress = Progress()
    for applied, commit, expected in ((3, 4, (3, 4)), (2, 6, (3, 6)), (5, 5, (5, 6))):
        late = StoreAck(CHANNEL, Term(1), Seq(9), Seq(applied), Seq(commit))
        progress.on_ack(late, last_seq=Seq(9), now_ms=1)
        assert (progress.applied_seq, progress.commit_seq) == expected


def test_match_never_exceeds_the_leaders_log() -> None:
    """S3.4: nobody can have verified what this leader does not have."""
    progress = Progress()
    progress.on_ack(ack(50), last_seq=Seq(9), now_ms=1)
    assert progress.match_seq == 9


def test_progress_needs_reminding_until_end_and_commit_are_known() -> None:
    """S3.5: a follower is done when it has our end and knows our commit."""
    progress = Progress()
    assert progress.needs(Seq(3), Seq(3))
    progress.on_ack(ack(3), last_seq=Seq(3), now_ms=1)
    assert progress.needs(Seq(3), Seq(3))
    progress.on_ack(ack(3, commit_seq=3), last_seq=Seq(3), now_ms=1)
    assert not progress.needs(Seq(3), Seq(3))


def test_reminders_in_silence_grow_rare_and_any_word_resets_that() -> None:
    """A dead follower costs little; one that speaks again is reminded at the usual pace."""
    progress = Progress()
    for _ in range(10):
        progress.arm_resend(0, 100, again=True)
    assert progress.resend_at_ms == 100 * RESEND_BACKOFF_MAX
    progress.on_heard(5)
    progress.arm_resend(5, 100)
    assert progress.resend_at_ms == 105
