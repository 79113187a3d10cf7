"""Rebalances in the catalog: their moves and how far they are, tags of nodes, and switches.

Rows are ``b/rebalance`` (the one that is open, or the last one), ``m/<channel id>`` (a move of it),
``g/<node id>`` (a tag), ``b/throttle`` and ``b/leaders`` (whether leaders are made even). There is
one rebalance at a time, with at most one move of a channel. Which replicas a channel has is decided
by its order and its log (M20): a move only says what is to be ordered, and what became of that. Its
state goes forward only, by a compare-and-set, so whichever leader of the metadata channel goes on
does no step twice (FIP-29).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from raftstore.protocol.rebalance import MoveState, NodeTag, WantedMove
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.base import NO_CHANGE
from raftstore.state_machines.catalog_entries import (
    MEMBERS_FORMAT,
    SWITCH_FORMAT,
    NodeEntry,
    decode_entry,
    node_key,
)
from raftstore.state_machines.catalog_members import TAG_PREFIX, row_of_left, tag_key
from raftstore.types import (
    ChangeNumber,
    ChannelId,
    Count63,
    NodeId,
    Seq,
    Small31,
    TimestampMs,
    node_name,
)

REBALANCE_PREFIX: Final = b"b/"
MOVE_PREFIX: Final = b"m/"
REBALANCE_KEY: Final = REBALANCE_PREFIX + b"rebalance"
THROTTLE_KEY: Final = REBALANCE_PREFIX + b"throttle"
LEADERS_KEY: Final = REBALANCE_PREFIX + b"leaders"
MOVES_MAX: Final = 1_000
"""Of one rebalance: they are one record. Those of a larger plan are done by several."""

Read = Callable[[bytes], Row | None]
_encode = msgspec.msgpack.Encoder().encode


class TagEntry(msgspec.Struct, frozen=True):
    """An operator's word about a node's near future."""

    node_tag: NodeTag
    format: Small31 = MEMBERS_FORMAT


class ThrottleEntry(msgspec.Struct, frozen=True):
    """No node sends more than so many bytes of tables a second."""

    bytes_per_s: Count63
    format: Small31 = MEMBERS_FORMAT


class SwitchEntry(msgspec.Struct, frozen=True):
    """Whether leaders are made even, whatever the settings of nodes say."""

    is_on: bool
    format: Small31 = SWITCH_FORMAT


class MoveEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A move, and how far it is."""

    rebalance: Seq
    """Number of the rebalance that it is of."""
    move: WantedMove
    state: MoveState = MoveState.NOT_STARTED
    reason: str = ""
    change: ChangeNumber = 0
    """The order by which it is carried out; 0: there is none yet."""
    ends_as: MoveState | None = None
    """Its order is being cancelled; if that is not too late, the move ends in this state."""
    begun_ms: TimestampMs = 0
    ended_ms: TimestampMs = 0
    format: Small31 = MEMBERS_FORMAT


class RebalanceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rebalance that is open, or the last one."""

    number: Seq
    guid: bytes
    """A request that is made again under the same one is the same rebalance."""
    reason: str
    channels: tuple[ChannelId, ...]
    """Those with a move."""
    begun_ms: TimestampMs
    ended_ms: TimestampMs = 0
    """0: it is open."""
    state: MoveState = MoveState.NOT_STARTED
    """In which it ended; while it is open, its moves say how far it is."""
    is_cancelled: bool = False
    replaces: str = ""
    """Id of the node whose replicas are replaced because it is gone; empty: an operator asked."""
    format: Small31 = MEMBERS_FORMAT

    @property
    def is_open(self) -> bool:
        """Moves of it may still be under way."""
        return self.ended_ms == 0


class TagNodeCommand(msgspec.Struct, frozen=True, tag_field="op", tag="tag_node"):
    """``entry``: the bytes of the TagEntry that are stored; empty: the node has no tag."""

    node: NodeId
    entry: bytes
    format: Small31 = MEMBERS_FORMAT


class SetThrottle(msgspec.Struct, frozen=True, tag_field="op", tag="set_throttle"):
    """``entry``: the bytes of the ThrottleEntry that are stored; empty: there is none."""

    entry: bytes
    format: Small31 = MEMBERS_FORMAT


class SetSwitch(msgspec.Struct, frozen=True, tag_field="op", tag="set_leaders"):
    """``entry``: the bytes of the SwitchEntry that are stored; empty: settings count."""

    entry: bytes
    format: Small31 = SWITCH_FORMAT


class BeginRebalance(msgspec.Struct, frozen=True, tag_field="op", tag="begin_rebalance"):
    """Begins these moves, if none are open."""

    guid: bytes
    reason: str
    moves: tuple[WantedMove, ...]
    replaces: str = ""
    format: Small31 = MEMBERS_FORMAT


class StepMove(msgspec.Struct, frozen=True, tag_field="op", tag="step_move"):
    """Says how far a move is, if it is still in the state ``before``."""

    rebalance: Seq
    channel: ChannelId
    before: MoveState
    state: MoveState
    reason: str = ""
    change: ChangeNumber = 0
    ends_as: MoveState | None = None
    format: Small31 = MEMBERS_FORMAT


class CancelMoves(msgspec.Struct, frozen=True, tag_field="op", tag="cancel_moves"):
    """Asks that no further move of the rebalance begins, and those under way end."""

    rebalance: Seq
    format: Small31 = MEMBERS_FORMAT


class EndRebalance(msgspec.Struct, frozen=True, tag_field="op", tag="end_rebalance"):
    """Ends a rebalance of which every move has ended."""

    rebalance: Seq
    format: Small31 = MEMBERS_FORMAT


RebalanceCommand = (
    TagNodeCommand
    | SetThrottle
    | SetSwitch
    | BeginRebalance
    | StepMove
    | CancelMoves
    | EndRebalance
)


@dataclass(slots=True)
class KnownRebalance:
    """The rows about rebalances, at one version of the catalog."""

    last: RebalanceEntry | None = None
    """The rebalance that is open, or the last one."""
    moves: dict[ChannelId, MoveEntry] = field(default_factory=dict)
    """Of that one."""
    tags: dict[NodeId, NodeTag] = field(default_factory=dict)
    """What operators say of the near future of nodes."""
    throttle: int = 0
    """Bytes of tables that a node may send in a second; 0: its setting counts."""
    leaders: bool | None = None
    """Whether leaders are made even; None: settings count."""
    seqs: dict[ChannelId, Seq] = field(default_factory=dict)
    """Per move the seq of the record that wrote its row."""

    @property
    def open(self) -> RebalanceEntry | None:
        """The rebalance of which moves may be under way; None: there is none."""
        return self.last if self.last is not None and self.last.is_open else None

    def take(self, key: bytes, value: bytes, seq: Seq, before: KnownRebalance) -> bool:
        """Read a row; False: it is about something else. ``before``: what was read earlier."""
        prefix, name = key[:2], key[2:]
        if prefix == MOVE_PREFIX:
            channel = ChannelId(name)
            is_known = before.seqs.get(channel) == seq
            known = before.moves[channel] if is_known else decode_entry(value, MoveEntry)
            self.moves[channel], self.seqs[channel] = known, seq
        elif prefix == TAG_PREFIX:
            self.tags[NodeId(name.decode())] = decode_entry(value, TagEntry).node_tag
        elif key == REBALANCE_KEY:
            self.last = decode_entry(value, RebalanceEntry)
        elif key == THROTTLE_KEY:
            self.throttle = decode_entry(value, ThrottleEntry).bytes_per_s
        elif key == LEADERS_KEY:
            self.leaders = decode_entry(value, SwitchEntry).is_on
        else:
            return False
        return True


def move_key(channel: ChannelId) -> bytes:
    """Key of the row of a channel's move."""
    return MOVE_PREFIX + channel


def tag_node_command(node: NodeId, tag: NodeTag | None) -> bytes:
    """Payload that tags a node, or takes its tag away."""
    return _encode(TagNodeCommand(node, b"" if tag is None else _encode(TagEntry(tag))))


def throttle_command(bytes_per_s: int) -> bytes:
    """Payload that bounds the copies of tables; 0: the settings of the nodes count."""
    return _encode(SetThrottle(_encode(ThrottleEntry(bytes_per_s)) if bytes_per_s else b""))


def switch_command(is_on: bool | None) -> bytes:  # noqa: FBT001 - three states
    """Payload that turns even leaders on or off; None: the settings of the nodes count."""
    return _encode(SetSwitch(b"" if is_on is None else _encode(SwitchEntry(is_on))))


def rebalance_command(command: RebalanceCommand) -> bytes:
    """Payload of any of these commands."""
    return _encode(command)


def moves_problem(moves: Sequence[WantedMove]) -> str | None:
    """Why these can never be the moves of a rebalance; None: they can."""
    if not moves:
        return "a rebalance without moves does nothing; `raftstore rebalance plan` shows some"
    if len(moves) > MOVES_MAX:
        return f"{len(moves)} moves are more than {MOVES_MAX}; start with the first ones"
    if len({move.channel for move in moves}) < len(moves):
        return "a channel has two moves; give each channel one"
    for move in moves:
        after = (*move.voters, *move.learners)
        if not move.voters or len(set(after)) < len(after):
            return f"{move.channel.hex()} would have the replicas {after}; name each node once"
        if not move.targets and not move.sources:
            return f"the move of {move.channel.hex()} changes no replica; leave it out"
    return None


def apply_rebalance(command: RebalanceCommand, record: Record, read: Read) -> ApplyResult:
    """Compute the writes of one command; a lost condition is a conflict."""
    match command:
        case TagNodeCommand():
            return _tag(command, read)
        case SetThrottle():
            return _set(THROTTLE_KEY, command.entry, read)
        case SetSwitch():
            return _set(LEADERS_KEY, command.entry, read)
        case BeginRebalance():
            return _begin(command, record, read)
        case StepMove():
            return _step(command, record, read)
        case CancelMoves():
            return _cancel(command, read)
        case EndRebalance():
            return _end(command, record, read)


def overall_state(moves: Iterable[MoveState], *, is_cancelled: bool) -> MoveState:
    """The state of a whole rebalance by those of its moves.

    While some are not over: that of the one under way that is furthest behind, as long as there is
    one. At the end it failed if a move failed, and timed out if a move did and none failed.
    """
    states = tuple(moves)
    if any(not state.is_end for state in states):
        under_way = [state for state in states if state.is_under_way]
        return min(under_way, key=lambda state: state.rank, default=MoveState.NOT_STARTED)
    if is_cancelled and MoveState.CANCELED in states:
        return MoveState.CANCELED
    for bad in (MoveState.FAILED, MoveState.TIMEOUT):
        if bad in states:
            return bad
    return MoveState.COMPLETED


def _set(key: bytes, entry: bytes, read: Read) -> ApplyResult:
    if not entry and read(key) is None:
        return NO_CHANGE
    return ApplyResult(((key, seal(key, entry) if entry else None),))


def _write(key: bytes, entry: RebalanceEntry | MoveEntry) -> tuple[bytes, bytes]:
    return key, seal(key, _encode(entry))


def _tag(command: TagNodeCommand, read: Read) -> ApplyResult:
    row = read(node_key(node_name(command.node)))
    if row is None or decode_entry(row.value, NodeEntry).node != command.node:
        return ApplyResult((), conflict_seq=Seq(0) if row is None else row.seq)
    return _set(tag_key(command.node), command.entry, read)


def _open(number: Seq, read: Read) -> tuple[RebalanceEntry, Seq] | ApplyResult:
    """The open rebalance of this number; a conflict if it is not open (any more)."""
    row = read(REBALANCE_KEY)
    if row is None:
        return ApplyResult((), conflict_seq=Seq(0))
    entry = decode_entry(row.value, RebalanceEntry)
    if entry.number != number or not entry.is_open:
        return ApplyResult((), conflict_seq=row.seq)
    return entry, row.seq


def _begin(command: BeginRebalance, record: Record, read: Read) -> ApplyResult:
    row = read(REBALANCE_KEY)
    last = None if row is None else decode_entry(row.value, RebalanceEntry)
    if last is not None and last.guid == command.guid:
        return NO_CHANGE
    # One at a time: two plans, each made without the other, would fill the same node twice.
    if row is not None and last is not None and last.is_open:
        return ApplyResult((), conflict_seq=row.seq)
    if moves_problem(command.moves) is not None:
        return ApplyResult((), conflict_seq=Seq(0))
    targets = dict.fromkeys(node for move in command.moves for node in move.targets)
    # M27: a copy of the catalog that does not know yet who drains or has left may have planned it.
    if (left := row_of_left(targets, read, drains=True)) is not None:
        return ApplyResult((), conflict_seq=left.seq)
    number = record.base_seq
    channels = tuple(move.channel for move in command.moves)
    old = () if last is None else last.channels
    gone = tuple((move_key(each), None) for each in old if each not in set(channels))
    moves = tuple(_write(move_key(m.channel), MoveEntry(number, m)) for m in command.moves)
    entry = RebalanceEntry(
        number, command.guid, command.reason, channels, max(1, record.timestamp_ms),
        replaces=command.replaces,
    )  # fmt: skip
    return ApplyResult((*gone, *moves, _write(REBALANCE_KEY, entry)))


def _step(command: StepMove, record: Record, read: Read) -> ApplyResult:
    found = _open(command.rebalance, read)
    if isinstance(found, ApplyResult):
        return found
    key = move_key(command.channel)
    row = read(key)
    if row is None:
        return ApplyResult((), conflict_seq=Seq(0))
    entry = decode_entry(row.value, MoveEntry)
    # A compare-and-set, and never back: a step of an earlier leader that comes late is none.
    is_on = command.state.rank > entry.state.rank or (
        command.state is entry.state and command.ends_as is not None and entry.ends_as is None
    )
    if entry.rebalance != command.rebalance or entry.state is not command.before or not is_on:
        return ApplyResult((), conflict_seq=row.seq)
    now_ms = max(1, record.timestamp_ms)
    entry = msgspec.structs.replace(
        entry,
        state=command.state,
        reason=command.reason or entry.reason,
        change=command.change or entry.change,
        ends_as=command.ends_as or entry.ends_as,
        begun_ms=entry.begun_ms or now_ms,
        ended_ms=now_ms if command.state.is_end else 0,
    )
    return ApplyResult((_write(key, entry),))


def _cancel(command: CancelMoves, read: Read) -> ApplyResult:
    found = _open(command.rebalance, read)
    if isinstance(found, ApplyResult):
        return found
    entry, seq = found
    if entry.is_cancelled:
        return ApplyResult((), conflict_seq=seq)
    entry = msgspec.structs.replace(entry, is_cancelled=True)
    return ApplyResult((_write(REBALANCE_KEY, entry),))


def _end(command: EndRebalance, record: Record, read: Read) -> ApplyResult:
    found = _open(command.rebalance, read)
    if isinstance(found, ApplyResult):
        return found
    entry, seq = found
    states: list[MoveState] = []
    for channel in entry.channels:
        row = read(move_key(channel))
        if row is not None:
            states.append(decode_entry(row.value, MoveEntry).state)
    state = overall_state(states, is_cancelled=entry.is_cancelled)
    if not state.is_end:  # what is under way is never forgotten
        return ApplyResult((), conflict_seq=seq)
    entry = msgspec.structs.replace(entry, state=state, ended_ms=max(1, record.timestamp_ms))
    return ApplyResult((_write(REBALANCE_KEY, entry),))
