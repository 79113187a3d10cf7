"""Where a simulated node can be made to die: the names of ``raftstore.faults`` that exist here."""

from __future__ import annotations

from typing import Final

FAILPOINTS: Final = (
    "log.before-write",
    "log.before-sync",
    "log.after-sync",
    "vote.before-sync",
    "vote.after-sync",
    "mark.before-write",
    "mark.after-sync",
    "log.before-truncate",
    "table.before-apply",
    "table.after-apply",
    "ack.before-send",
    "ack.after-send",
    "catch-up.before-store",
    "catch-up.after-store",
    "batch.after-begin",
    "batch.before-decide",
    "batch.after-decide",
    "batch.first-slice",
    "batch.mid-slice",
    "batch.before-last-slice",
    "batch.after-apply",
    "batch.before-ack",
    "files.before-link",
    "files.after-link",
    "copy.before-write",
    "copy.after-file",
    "copy.before-sync",
    "copy.after-sync",
    "copy.before-switch",
    "copy.after-switch",
)

MEMBER_FAILPOINTS: Final = (
    "replica.after-open",
    "replica.before-delete",
    "replica.before-drop",
)
"""Those that exist where replicas move."""


def unwatched(failpoint: str) -> None:
    """Receiver of a log's failpoints where no node looks."""
    del failpoint


def nobody_dies(failpoint: str) -> bool:
    """Ignore a failpoint: no node looks."""
    del failpoint
    return False
