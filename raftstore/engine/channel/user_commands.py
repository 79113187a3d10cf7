"""Commands of users in a channel with their state machine: what is taken in, how it is answered,
and what becomes of the channel when the machine cannot apply one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import asdict, replace

from raftstore.engine.channel.applied_state import AppliedState
from raftstore.engine.channel.apply_feed import APPLY_BYTES_PER_STEP, ApplyFeed
from raftstore.engine.channel.channel_parts import ChannelParts
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import (
    DecodeError,
    GuidExpiredError,
    MachineStoppedError,
    QuorumTimeoutError,
    Refusal,
    SchemaError,
)
from raftstore.ports.machine import MachineStop
from raftstore.ports.tables import Answers
from raftstore.protocol.machine_restore import token_of_portion
from raftstore.protocol.machines import (
    CommandAck,
    CommandEnd,
    MachineStep,
    Step,
    decode_step,
)
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.shared_commands import CommandsAck
from raftstore.protocol.table_settings import TableSettings
from raftstore.record_machine import CommandMachine, QueryAtWork, RecordMachine
from raftstore.types import ChannelId, RecordKind, Seq, guid_text

SLOW_MS: Final = 2_000
"""A command, or a query between commands, that takes longer is an event: all that the node applies
waits for it, and nobody can end it but a restart."""


class JudgedChannel(Protocol):
    """The channel of a judge (``ChannelRunner``)."""

    commands: UserCommands | None
    table_settings: TableSettings


class PublishJudge:
    """Says whether records may be sequenced in one channel, by the machine behind it."""

    def __init__(
        self,
        machine: RecordMachine,
        of: JudgedChannel,
        stage_refusal: Callable[[Any, PubMsg], Refusal | None],
    ) -> None:
        self._machine = machine
        self._kinds = machine.kinds()
        self._of = of
        self._stage_refusal = stage_refusal

    def judged(
        self, message: PubMsg, refusal: Refusal | None, *, is_client: bool
    ) -> Refusal | None:
        """Why a message must not be sequenced; ``refusal`` is what is known already. Raises
        DecodeError or CorruptRecordError where it is nothing that this channel takes from a client,
        or from its own node."""
        kind = message.kind
        if not is_client:
            # A record that no machine takes would end every node that hosts the channel.
            if self._kinds and kind not in self._kinds:
                raise DecodeError(f"a {self._machine.LABEL} takes no records of kind {kind:d}")
            return refusal
        self._machine.check(kind, message.payload, message.rows)
        if refusal is None and kind is RecordKind.MACHINE_RESTORE:
            return self._restore_refusal(message)
        if refusal is None and self._of.commands is not None:
            return self._of.commands.refusal()
        if refusal is None and kind is RecordKind.STAGED:
            return self._stage_refusal(self._of, message)
        return refusal

    def _restore_refusal(self, message: PubMsg) -> Refusal | None:
        """Why a portion of a state from a backup is not taken: of a channel set that is served, or
        that another restore fills, nothing is overwritten."""
        if token_of_portion(message.payload) == self._of.table_settings.restoring:
            return None
        return Refusal(
            SchemaError,
            "the channel set is not being filled by this restore; restore the backup under another "
            "name, or drop the channel set first",
        )


class UserCommands:
    """The part of a ``ChannelRunner`` that is of channel sets alone."""

    def __init__(
        self,
        machine: CommandMachine,
        parts: ChannelParts[Any],
        channel: ChannelId,
        name: str,
        feed: ApplyFeed,
    ) -> None:
        self._parts = parts
        self._channel = channel
        self._name = name
        self._feed = feed
        self.machine = machine
        self._fresh: dict[Seq, bytes] = {}
        """What the machine made of the commands that were applied last, by seq."""
        self.stop: MachineStop | None = None
        """The record that the machine cannot apply; None: it goes on."""
        self._is_taken_back = False
        self._looked_to = Seq(0)
        self._is_whole = False
        self.is_slow = False
        """What the machine is at takes longer than ``SLOW_MS``."""
        self._seen: Record | QueryAtWork | None = None
        """What it was at when it was looked at last."""
        self._seen_ms = 0
        """When that was seen first."""

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, client: int, message: PubAck | PubReject) -> PubAck | PubReject:
        """The answer to a command in the place of what the core has to say about its record."""
        if type(message) is PubReject and message.code == QuorumTimeoutError.code and self.stop:
            # It is committed and stays so; its caller learns what it waits for.
            return replace(message, message=f"{message.message}; {self._stopped(self.stop)}")
        if type(message) is PubReject and message.code == QuorumTimeoutError.code and self.is_slow:
            waits = self.slowness(self._parts.clock.now_ms)
            return replace(message, message=f"{message.message}; {waits}")
        if client == CLIENT_HANDLE_SELF or type(message) is not PubAck:
            return message  # of the leader's own step, a refusal, or answered by the leader
        kept = self._ends(message.base_seq, message.last_seq)
        if kept is None:
            text = (
                f"the command was applied at seq {message.last_seq}, and its result is not kept "
                "any more; query the machine to see what it did"
            )
            return PubReject(self._channel, message.term, message.guid, GuidExpiredError.code, text)
        if message.last_seq > message.base_seq:
            return CommandsAck(**asdict(message), ends=tuple(kept))
        return CommandAck(**asdict(message), **asdict(kept[0]))

    def _ends(self, base_seq: Seq, last_seq: Seq) -> Sequence[CommandEnd] | None:
        """The ends of the commands of a record that is applied; None: they are kept no more."""
        fresh = self._fresh.get(last_seq)
        if fresh is not None:
            return self.machine.ends_of(fresh, last_seq - base_seq + 1)
        return self.machine.kept_ends(base_seq, last_seq, self._applied())

    def kept_end(self, seq: Seq) -> CommandEnd | None:
        """The end of the command at a seq, as it is stored; None: it is kept no more."""
        return self.machine.kept_end(seq, self._applied())

    def _applied(self) -> AppliedState:
        return AppliedState(self._parts.tables, self._channel)

    @property
    def is_whole(self) -> bool:
        """Whether what is applied here has all of the state that the channel set began with."""
        if not self._is_whole:
            get = partial(self._parts.tables.state_get, self._channel)
            self._is_whole = self.machine.is_whole(get)
        return self._is_whole

    # --- code that does not end -------------------------------------------------------------------

    def watch(self, now_ms: int) -> None:
        """Look what the machine is at, on the node's thread: an event when that takes long, and one
        when it has ended after all."""
        at = self.machine.at_work
        if at is not self._seen:
            if self.is_slow:
                self._parts.tell(
                    "machine_slow_ended", channel=self._name, for_ms=now_ms - self._seen_ms
                )
            self._seen, self._seen_ms, self.is_slow = at, now_ms, False
        elif at is not None and not self.is_slow and now_ms - self._seen_ms >= SLOW_MS:
            self.is_slow = True
            fields: dict[str, Any] = {"channel": self._name, "for_ms": now_ms - self._seen_ms}
            if isinstance(at, Record):
                fields |= {"seq": at.last_seq, "command": guid_text(self._channel, at.guid)}
            self._parts.tell("machine_slow", reason=self.slowness(now_ms), **fields)

    def slowness(self, now_ms: int) -> str:
        """A sentence on what the partition waits for, and what to do; empty: for nothing long."""
        at = self._seen
        if not self.is_slow or at is None:
            return ""
        what = "a query"
        if isinstance(at, Record):
            what = f"seq {at.last_seq} (command {guid_text(self._channel, at.guid)})"
        return (
            f"{self._name}: the state machine has been at {what} for "
            f"{(now_ms - self._seen_ms) // 1000} s, and all that this node applies waits for it; "
            "if it never ends, install code in which it does, and restart the nodes"
        )

    # --- stops ------------------------------------------------------------------------------------

    def refusal(self) -> Refusal | None:
        """Why no new command is taken; None: they are."""
        if self.stop is None:
            return None
        return Refusal(MachineStoppedError, self._stopped(self.stop))

    def _stopped(self, stop: MachineStop) -> str:
        channelset, _, partition = self._name.rpartition("/")
        return (
            f"{self._name}: the state machine stopped at seq {stop.seq} "
            f"(command {guid_text(self._channel, stop.guid)}): {stop.reason}; install "
            "code that can apply it and restart the nodes, or have it skipped (raftstore machine "
            f"skip {channelset} {partition} {stop.seq})"
        )

    def on_applied(self, answers: Answers) -> MachineStop | None:
        """Records were applied; the stop, if the machine stopped behind them."""
        self._fresh = dict(answers)
        stop = self._parts.tables.stoppable(self._channel).stop
        if stop is None or self.stop is not None:
            return None
        self.stop, self._is_taken_back, self._looked_to = stop, False, stop.record_seq
        self._feed.stop(self.look)
        self._parts.tell(
            "machine_stopped",
            channel=self._name,
            seq=stop.seq,
            command=guid_text(self._channel, stop.guid),
            reason=stop.reason,
        )
        return stop

    def look(self) -> None:
        """While the machine is stopped: look whether what is committed behind skips the command."""
        if self.stop is None or not self._feed.is_idle:
            return
        if not self._is_taken_back:
            tables = self._parts.tables
            tables.stoppable(self._channel).take_back()
            self._feed.take_back(tables.applied_seq(self._channel))
            self._is_taken_back = True
        if self._finds_skip(self.stop.seq):
            self._resume(self.stop)

    def _finds_skip(self, seq: Seq) -> bool:
        while self._looked_to < self._feed.target:
            records = self._parts.log.read(
                self._channel,
                Seq(self._looked_to + 1),
                to_seq=self._feed.target,
                bytes_max=APPLY_BYTES_PER_STEP,
            )
            assert records, "committed records are missing from the log"
            self._looked_to = records[-1].last_seq
            if any(_skips(record, seq) for record in records):
                return True
        return False

    def _resume(self, stop: MachineStop) -> None:
        # S10: whether it is skipped is decided by the log alone, so alike wherever it stands.
        self.stop = None
        self._parts.tell("machine_resumed", channel=self._name, seq=stop.seq)
        self._parts.tables.stoppable(self._channel).resume(stop.seq)
        self._feed.resume()


def commands_of(
    machine: RecordMachine,
    parts: ChannelParts[Any],
    channel: ChannelId,
    name: str,
    feed: ApplyFeed,
) -> UserCommands | None:
    """The part of a channel with a user's machine; None: it is a table's, or the catalog's."""
    host = machine.commands
    return None if host is None else UserCommands(host, parts, channel, name, feed)


def _skips(record: Record, seq: Seq) -> bool:
    if record.kind is not RecordKind.MACHINE_STEP:
        return False
    try:
        return decode_step(record.payload) == MachineStep(Step.SKIP, seq)
    except DecodeError:
        return False  # it is judged when it is applied
