"""The table that a replica finds beside its log, and what that means for its part in the channel.

Three things may be missing: records that were acknowledged here, as the mark says (S0.3); records
that lead to where the table is, if that was copied from another replica (S6.4); rows of records
that are in no log any more (S6.5). In each case the replica is *recovering*: it serves, confirms
and acknowledges nothing, and stands in no election. In the second alone it votes: votes are judged
by the log (S1.1), which has everything that was acknowledged here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.ports.log import RecoveredChannel
from raftstore.types import EMPTY_HISTORY, History, Seq


class FoundTable(NamedTuple):
    """A table beside a log, where the log does not say enough about it."""

    ahead: History | None = None
    """Up to where it is applied, if the log does not hold that record, nor had it before its base:
    what the log holds may be no part of the channel."""
    is_copied: bool = False
    """It is another replica's as it was copied, so that nothing of it was ever in this log."""
    base_max: Seq | None = None
    """The highest base that a log may have beside it; None: the applied seq."""

    def lacks_rows(self, recovered: RecoveredChannel, applied_seq: Seq) -> bool:
        """Whether it lacks rows of records that the log does not hold any more, or refers to some
        of those: only another replica's table brings them back."""
        base_max = applied_seq if self.base_max is None else self.base_max
        return base_max < recovered.base.seq

    def recovering(self, recovered: RecoveredChannel) -> History | None:
        """Up to where the log has to come before the replica takes part again; None: it has."""
        if self.ahead is None:
            return recovered.shortfall
        return max(self.ahead, recovered.shortfall or EMPTY_HISTORY)

    def keeps_promises(self, recovered: RecoveredChannel) -> bool:
        """Whether the log has all that was acknowledged here. A table that is ahead of it proves
        that it has not, unless it was copied."""
        return recovered.shortfall is None and (self.ahead is None or self.is_copied)


FOUND_TABLE: Final = FoundTable()
"""A table that the log has come as far as, and that refers to no record of the log."""
