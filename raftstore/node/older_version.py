"""A node that behaves as one of an older version, for tests of upgrades (``raftstore.faults``).

It reports that level, and reads no more than a version of it did: a newer message on a connection
or a newer record in its log is what it was to that version, unknown. What such a version did
otherwise is not imitated; a message that only a newer one sends is sent to peers alone that
reported its level.
"""

from __future__ import annotations

from raftstore.config import LEVEL
from raftstore.policy.levels import LEVEL_OF_KIND
from raftstore.protocol.codec import forget_newer
from raftstore.storage.log.records import forget_kinds


def act_as(level: int) -> int:
    """Read as a version of this level, and return it; nothing changes at this version's own."""
    if level < LEVEL:
        forget_newer(level)
        forget_kinds(kind for kind, needed in LEVEL_OF_KIND.items() if needed > level)
    return level
