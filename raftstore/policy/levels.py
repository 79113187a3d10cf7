"""Protocol levels: what a node can read beyond the first version, and who may not be sent it yet.

Each node reports the newest ``raftstore.config.LEVEL`` that it knows. A kind of record, or a
command of the catalog, that came with a level is only sequenced when every node is at it: a node
below would stop at the first one that it meets. Nothing here is a vote: the levels are those that
nodes reported, and a node that never reported one is at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from raftstore.protocol.lifetimes import LIFETIME_KINDS
from raftstore.protocol.machines import TOGETHER_LIMITS
from raftstore.protocol.tags import LEVEL_OF_TAG, Tag
from raftstore.types import NodeId, RecordKind, node_name

LIFETIME_LEVEL: Final = 5
"""Nodes below it read no record about rows that expire."""

TRIM_LEVEL: Final = LEVEL_OF_TAG[Tag.AskTrimmed]
"""Nodes below it read no record by which outcomes are trimmed, and cannot be asked for theirs."""

MACHINE_LEVEL: Final = LEVEL_OF_TAG[Tag.CommandAck]
"""Nodes below it know of no state machines of users."""

SHARED_COMMANDS_LEVEL: Final = LEVEL_OF_TAG[Tag.CommandsAck]
"""Nodes below it read no record that several commands share."""

MACHINE_RESTORE_LEVEL: Final = LEVEL_OF_TAG[Tag.ReadEntries]
"""Nodes below it neither give the state of a channel set to a backup nor take one in."""

MACHINE_LIMITS_LEVEL: Final = 9
"""Nodes below it know one set of limits of commands, and none that comes into force."""

LEVEL_OF_KIND: Final = {
    RecordKind.STAGED: 1,
    RecordKind.BATCH_APPLY: 1,
    RecordKind.BATCH_MARK: 1,
    RecordKind.TXN: 1,
    **dict.fromkeys(LIFETIME_KINDS, LIFETIME_LEVEL),
    RecordKind.TRIM_OUTCOMES: TRIM_LEVEL,
    RecordKind.MACHINE_COMMAND: MACHINE_LEVEL,
    RecordKind.MACHINE_STEP: MACHINE_LEVEL,
    RecordKind.MACHINE_COMMANDS: SHARED_COMMANDS_LEVEL,
    RecordKind.MACHINE_RESTORE: MACHINE_RESTORE_LEVEL,
    RecordKind.MACHINE_LIMITS: MACHINE_LIMITS_LEVEL,
}
"""Kinds of records that not every version reads; the others are of the first."""

LEVEL_OF_BUNDLES: Final = LEVEL_OF_TAG[Tag.ReplicationBundle]
"""Nodes from this level on take the messages of many channels in one (``ReplicationBundle``)."""

LEVEL_OF_LIMITS: Final = {1: MACHINE_LIMITS_LEVEL, TOGETHER_LIMITS: 11}
"""Sets of limits of commands (``protocol.machines.LIMITS``): a node below stops where it comes into
force."""

REFILL_LEVEL: Final = LEVEL_OF_TAG[Tag.RefillRequest]
"""Nodes below it can neither ask for records that their log lost nor be asked."""

SNAPSHOT_LEVEL: Final = LEVEL_OF_TAG[Tag.AskReplicaSnapshot]
"""Nodes below it neither give replica snapshots nor take any."""

PAYLOAD_LEVEL: Final = LEVEL_OF_TAG[Tag.PayloadRequest]
"""Nodes below it are asked for no payload, and ask for none."""

GAP_REPORT_LEVEL: Final = LEVEL_OF_TAG[Tag.GapReport]
"""Nodes below it end the control connection that brings them a report of gaps."""

SNAPSHOT_REST_LEVEL: Final = LEVEL_OF_TAG[Tag.AskSnapshotRest]
"""Nodes from this level on give replica snapshots of channels that they do not lead, too, and the
rest of one that another replica began to send."""

TABLE_FILES_LEVEL: Final = LEVEL_OF_TAG[Tag.TableFilePart]
"""Nodes below it give and take replica snapshots in pairs alone."""

TABLE_SETTINGS_LEVEL: Final = 5
"""Nodes below it do not know that a table may have settings of its own."""

CHAIN_HASH_LEVEL: Final = LEVEL_OF_TAG[Tag.AskChainHash]
"""Nodes below it cannot be asked whose history is right."""

CHECK_LEVEL: Final = LEVEL_OF_TAG[Tag.PinState]
"""Nodes below it cannot be asked to compare replicas part by part, nor when rows expire."""

CONFIG_REPORT_LEVEL: Final = LEVEL_OF_TAG[Tag.ConfigReport]
"""Nodes below it take no report about the configuration of a channel, and put none in the
catalog."""

LEADER_MOVE_LEVEL: Final = LEVEL_OF_TAG[Tag.TakeLead]
"""Nodes below it are not asked to lead a channel so that leaders are even, nor to give one away."""

REBALANCE_LEVEL: Final = LEVEL_OF_TAG[Tag.StartRebalance]
"""Nodes below it know of no rebalance, and report nothing of the tables that they take."""

DURABILITY_LEVEL: Final = 6
"""Nodes below it know of no durability but ``fsync``, and cannot be asked by a replica in doubt."""

MEMBERS_LEVEL: Final = 6
"""Nodes below it read no command by which nodes join, drain or leave."""

RESTORE_LEVEL: Final = 6
"""Nodes below it do not know that a table may be on its way in from a backup."""

LEADER_SWITCH_LEVEL: Final = LEVEL_OF_TAG[Tag.SwitchLeaders]
"""Nodes below it know of no switch for even leaders, and go by their settings."""

WITNESS_BASE_LEVEL: Final = 8
"""A witness below it takes every base that it is given, whatever it holds for others (W6)."""

REPLACED_ONCE_LEVEL: Final = 10
"""Nodes below it enter a node in the place of another whose place was taken already."""

LEVEL_OF_FORMAT: Final = {
    2: 1,
    3: TABLE_SETTINGS_LEVEL,
    4: DURABILITY_LEVEL,
    5: MEMBERS_LEVEL,
    6: LEADER_SWITCH_LEVEL,
    7: MACHINE_LEVEL,
    8: MACHINE_RESTORE_LEVEL,
    9: REPLACED_ONCE_LEVEL,
}
"""Formats of catalog commands (``raftstore.state_machines.catalog``) likewise."""

AUDIT_LEVEL: Final = LEVEL_OF_TAG[Tag.ReportViolation]
"""Nodes below it take no report of what a client's audit found."""

GET_MANY_LEVEL: Final = LEVEL_OF_TAG[Tag.GetMany]
"""Nodes below it do not know ``GetMany``: they are sent a ``Get`` for each channel."""

_WITHOUT_BATCHES: Final = (RecordKind.STAGED, RecordKind.BATCH_APPLY, RecordKind.TXN)


def lowest_level(levels: Iterable[int]) -> int:
    """The level that all nodes are at; 0 when none is known."""
    return min(levels, default=0)


def newest_limits(levels: Iterable[int]) -> int:
    """The newest set of limits of commands that every node knows; 0: they know of none."""
    level = lowest_level(levels)
    return max((limits for limits, needed in LEVEL_OF_LIMITS.items() if needed <= level), default=0)


def why_kind_is_too_new(kind: RecordKind, levels: Mapping[NodeId, int]) -> str | None:
    """Why a record of this kind must not be written yet; None: every node reads it."""
    remedy = ""
    if kind in _WITHOUT_BATCHES:
        remedy = ", or write from Spark with isolation=row"
    elif kind in LIFETIME_KINDS:
        remedy = ", or write without a lifetime (ttl)"
    return _why(f"records of kind {int(kind)}", LEVEL_OF_KIND.get(kind, 0), levels, remedy)


def why_format_is_too_new(number: int, levels: Mapping[NodeId, int]) -> str | None:
    """Why a catalog command of this format must not be proposed yet; None: every node reads it."""
    return _why(f"catalog commands of format {number}", LEVEL_OF_FORMAT.get(number, 0), levels, "")


def _why(what: str, needed: int, levels: Mapping[NodeId, int], remedy: str) -> str | None:
    if needed == 0 or lowest_level(levels.values()) >= needed:
        return None
    older = [
        f"{node_name(node)} is at level {level}" for node, level in levels.items() if level < needed
    ]
    return (
        f"{what} need level {needed} on every node, "
        f"but {', '.join(older) or 'no node has reported its level'}; upgrade these nodes{remedy}"
    )
