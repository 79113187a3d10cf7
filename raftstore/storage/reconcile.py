"""The log and the tables of one node, compared at the start: the log is the authority (S10)."""

from __future__ import annotations

from typing import Protocol

from raftstore.errors import PromisesLostError
from raftstore.storage.identity import PROMISES_REMEDY
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.types import ChannelId, History


class StoredTables(Protocol):
    """The tables as they are compared with the log."""

    def stored_channels(self) -> tuple[ChannelId, ...]:
        """Channels that have rows or a position in the store, in a stable order."""

    def stored_position(self, channel: ChannelId) -> History:
        """(term, seq) of the last applied record found in the store."""

    def stored_marker(self, channel: ChannelId) -> History:
        """(term, seq) of the record that was being written in pieces; (0, 0): none was."""

    def copied_position(self, channel: ChannelId) -> History:
        """Up to where the table was copied from another replica; (0, 0): it was built here."""

    def begun_channels(self) -> tuple[ChannelId, ...]:
        """Channels that an earlier life of the node began to copy, in a stable order."""

    def forget_copy(self, channel: ChannelId) -> None:
        """Remove what an earlier life of the node copied of the channel."""

    def reset_channel(self, channel: ChannelId) -> None:
        """Forget everything of a channel, so that it is applied again from the log's beginning."""


def reconcile(log: SegmentLog, tables: StoredTables) -> list[str]:
    """Compare each channel's applied position with the log, which is the authority.

    Only durable, committed records are ever applied. An applied position beyond the log's end
    therefore proves that the log lost an acknowledged record, even one the mark did not cover yet:
    the channel is recovering (S0.3), and its rows are built again from what the log still holds. So
    does one of another term than the log holds there, if the log is known to lack records: a lost
    truncation brings back what it removed. In a whole log that cannot be explained and is refused.
    The same is true of a record that a crash left in pieces.

    A table that was copied from another replica may be ahead of its log, or of a tail of it that is
    no part of the channel: then it stays, and the replica is recovering until its log has come so
    far. The log promised nothing of that, so nothing is required of it, and the replica may vote.

    A table whose log begins behind a base stays, too, since no log could build it again; its state
    is one of committed records (S10).

    A replica that was removed from the node leaves its table behind if a crash came between (S0.1):
    it goes here.

    Returns the news for an operator. Raises PromisesLostError.
    """
    notes = []
    for channel in tables.begun_channels():
        if log.is_dropped(channel) or log.is_gone(channel):
            tables.forget_copy(channel)
    for channel in tables.stored_channels():
        if log.is_dropped(channel) or log.is_gone(channel):
            tables.reset_channel(channel)
            continue
        applied = max(tables.stored_position(channel), tables.stored_marker(channel))
        if applied.seq == 0:
            continue
        if log.may_hold(channel, applied):
            continue
        if applied == tables.copied_position(channel):
            notes.append(
                f"channel {channel.hex()} has a table copied up to {tuple(applied)}, which "
                "its log does not hold yet: it is recovering (S0.3)"
            )
            continue
        term = log.term_at(channel, applied.seq)
        if term is not None and log.open_channel(channel).shortfall is None:
            raise PromisesLostError(_divergence(channel, term, applied.term, applied.seq))
        log.require(channel, applied)
        if not log.holds_all(channel):
            notes.append(
                f"channel {channel.hex()} had applied up to {tuple(applied)}, which its log does "
                "not hold: it is recovering (S0.3)"
            )
            continue
        tables.reset_channel(channel)
        notes.append(
            f"channel {channel.hex()} had applied up to {tuple(applied)}, which its log does not "
            "hold: it is recovering (S0.3) and its rows are built again from the log"
        )
    return notes


def _divergence(channel: ChannelId, in_log: int, applied: int, seq: int) -> str:
    return (
        f"channel {channel.hex()} applied a record of term {applied} at seq {seq}, its log holds "
        f"term {in_log} there, so one of them is of another time; {PROMISES_REMEDY}"
    )
