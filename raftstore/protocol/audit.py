"""Reports of clients that audit their own operations to a node (features N7)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from raftstore.protocol.message import Request
from raftstore.protocol.tags import tag_of

CHANNEL_MAX: Final = 256
TEXT_MAX: Final = 1_024
EVIDENCE_MAX: Final = 4_096
Word = Annotated[str, Meta(max_length=CHANNEL_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Evidence = Annotated[str, Meta(max_length=EVIDENCE_MAX)]


class ReportViolation(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A client was given answers that cannot all be right; the node makes an event of it. It is
    what a client says, so nothing is done about it but to show it.

    ``kind`` is a ``raftstore.audit.finding.FindingKind``, ``channel`` the name of the partition,
    ``evidence`` the operations as JSON, without rows and with hashes of keys. Answered with Done.
    Nodes below ``raftstore.policy.levels.AUDIT_LEVEL`` do not know it.
    """

    kind: Word
    channel: Word
    text: Text
    evidence: Evidence
