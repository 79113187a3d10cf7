"""Decisions about replica snapshots, as pure functions of positions.

A replica is whole while the base of its log is at or below what its table has applied, and below
every staged record that the table still refers to; ``base_max`` is the highest such base. Log and
table are each a committed state at any time, so that either may be replaced by itself:

* the log, by another replica's base, when the table allows that base;
* the table, by another replica's, when it is newer, or when this one lacks rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.config import SnapshotSettings
from raftstore.types import History, Seq

OVERTAKEN: Final = "the log has brought the table here as far meanwhile"
DOUBLINGS_MAX: Final = 20
"""Of a pause; the settings bound it before."""


class Lacking(NamedTuple):
    """Positions of a replica that its leader's log does not help any more."""

    lacks_rows: bool
    """Its own log does not bring its rows back (S0.3)."""
    applied_seq: Seq
    base_seq: Seq
    """Of its own log."""
    base_max: Seq
    """Of its table, as it survives a power cut; 0 while it lacks rows."""
    trimmed_to: Seq
    """The first seq of the leader's log; 0: that is no reason."""
    is_unfilled: bool = False
    """Its log has a hole that nobody fills, and a base may stand for it; that is tried next."""


def takes_base(lacking: Lacking) -> bool:
    """Whether a base helps; else it is a table that is needed first (S6.6)."""
    is_reached = 0 < lacking.trimmed_to - 1 <= lacking.base_max
    return not lacking.lacks_rows and (is_reached or lacking.is_unfilled)


def retry_pause_ms(tries: int, settings: SnapshotSettings) -> int:
    """Pause behind so many attempts in vain: twice as long each time, as long as a session at most.

    A base that the leader cannot give stays one until the leader says something else, which is
    acted on at once.
    """
    longer = settings.retry_ms << min(tries - 1, DOUBLINGS_MAX)
    return min(longer, max(settings.retry_ms, settings.session_ms))


def why_no_table(lacking: Lacking, position: History, base_max: Seq) -> str | None:
    """Why a table at this position does not help; None: it does."""
    if not lacking.lacks_rows and position.seq <= lacking.applied_seq:
        return f"it is applied up to seq {position.seq}, the table here up to {lacking.applied_seq}"
    # Records that it refers to must be in this log, or they are nowhere.
    if base_max < lacking.base_seq:
        return (
            f"it needs records behind seq {base_max}, the log here begins behind {lacking.base_seq}"
        )
    # Nor is it of use when the leader's base cannot follow it.
    if base_max < lacking.trimmed_to - 1:
        first = lacking.trimmed_to
        return f"it needs records behind seq {base_max}, the leader's log begins with {first}"
    return None


def is_overtaken(position: History, applied_seq: Seq, *, lacks_rows: bool) -> bool:
    """Whether a copy that is whole is of no use any more: the table here has come as far by the
    log. What readers and the node itself have seen of it is not taken back (S6.4)."""
    return position.seq <= applied_seq and not lacks_rows


def why_no_base(lacking: Lacking, base_seq: Seq) -> str | None:
    """Why a base at this seq must not be taken; None: it may be."""
    if base_seq <= lacking.base_seq:
        return f"it is at seq {base_seq}, the log here begins behind {lacking.base_seq} already"
    if lacking.lacks_rows or base_seq > lacking.base_max:
        return f"it is at seq {base_seq}, the table here needs records behind {lacking.base_max}"
    return None
