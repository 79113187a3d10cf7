"""Drives the commands of one channel: which of them share a record, and which outcome each caller
gets.

A command that finds nothing under way leaves at once, by itself; those that are begun while
``RECORDS_UNDER_WAY_MAX`` records are under way leave together, in the order in which they were
begun, when one of them has its outcome. As of rows that share, deadlines in one record are close.

A record is one write, with one guid and one outcome; in it each command has a guid of its own, by
which it is repeated. Commands of a record that certainly was not applied leave again, as long as
they have time: by themselves if it was refused for good, for what is wrong with one of them says
nothing of the others.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import astuple

from raftstore.client.settings import REQUEST_BYTES_MAX
from raftstore.client.writes.kinds import RecordSender, Running, Write
from raftstore.client.writes.row_gathering import DEADLINE_SHARE, RECORDS_UNDER_WAY_MAX
from raftstore.client.writes.session import ProducerSession
from raftstore.client.writes.write_outcomes import shared_name
from raftstore.errors import RequestError, RequestTimeoutError
from raftstore.protocol.machines import CommandAck
from raftstore.protocol.publish import PubAck
from raftstore.protocol.shared_commands import (
    COMMANDS_PER_RECORD_MAX,
    CommandsAck,
    encode_commands,
    is_crowded_out,
)
from raftstore.types import ChannelId, Guid, Outcome, RecordKind, Seq, guid_text

SHARED_BYTES_MAX: Final = 16 * 1024
"""A larger command has a record of its own, and is held up by nothing: sharing gains it little."""


@dataclass(slots=True, eq=False)
class _Command:
    """A command and its caller."""

    payload: bytes
    deadline_ms: int
    done: asyncio.Future[tuple[PubAck, str] | RequestError]
    is_alone: bool = False
    """It was in a record that was refused."""
    refusal: RequestError | None = None
    """Why a record that it was in was certainly not applied."""
    record: _Record | None = None
    """In which it is under way."""


@dataclass(slots=True, eq=False)
class _Record:
    """Commands under way together."""

    commands: list[_Command]
    running: Running


class CommandWrites:
    """See the module; made by the publisher for each channel."""

    def __init__(
        self,
        channel: ChannelId,
        name: Callable[[], str],
        session: ProducerSession,
        sender: RecordSender,
        now_ms: Callable[[], int],
        last_call_ms: int,
    ) -> None:
        self._channel = channel
        self._name = name
        self._session = session
        self._sender = sender
        self._now_ms = now_ms
        self._last_call_ms = last_call_ms
        self._waiting: deque[_Command] = deque()
        self._under_way: list[_Record] = []
        self._is_turn_awaited = False
        self._is_sending = False
        self._reserving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    async def write(self, payload: bytes, deadline_ms: int) -> tuple[PubAck, str]:
        """Have a command applied; return its ack and its name. Raise the RequestError that states
        the outcome."""
        loop = asyncio.get_running_loop()
        command = _Command(payload, deadline_ms, loop.create_future())
        self._waiting.append(command)
        if not self._under_way:
            self._send_ready()
        elif self._may_leave and not self._is_turn_awaited:
            # Something is under way already: commands begun in this turn of the loop may join.
            self._is_turn_awaited = True
            loop.call_soon(self._end_turn)
        if command.record is None and not command.done.done():
            self._look_at(deadline_ms)
        try:
            result = await command.done
        except asyncio.CancelledError:
            self._withdraw(command)
            raise
        if isinstance(result, RequestError):
            raise result
        return result

    def close(self, reason: RequestError) -> None:
        """End all that waits: it was not sent. What is under way the publisher ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reserving is not None:
            self._reserving.cancel()
        for command in list(self._waiting):
            self._refuse(command, reason)

    # --- sending ---------------------------------------------------------------------------------

    @property
    def _may_leave(self) -> bool:
        return bool(self._waiting) and len(self._under_way) < RECORDS_UNDER_WAY_MAX

    def _end_turn(self) -> None:
        self._is_turn_awaited = False
        self._send_ready()

    def _send_ready(self) -> None:
        """Begin what may leave, as far as there are guids."""
        if self._is_sending:
            return  # a record that ends at once asks for the next: the loop below goes on
        self._is_sending = True
        try:
            while self._may_leave and self._reserving is None:
                count = self._next_count()
                guid = self._session.try_reserve(self._now_ms(), _inner(count))
                if guid is None:  # its window is full (S4.5)
                    loop = asyncio.get_running_loop()
                    self._reserving = loop.create_task(self._wait_for_guid(), name="raftstore guid")
                    return
                self._begin(guid, count)
        finally:
            self._is_sending = False

    async def _wait_for_guid(self) -> None:
        try:
            guid = await self._session.reserve(self._now_ms(), COMMANDS_PER_RECORD_MAX)
        finally:
            self._reserving = None
        if self._may_leave and not self._sender.is_closed:
            self._begin(guid, self._next_count())
            self._send_ready()
        else:
            self._session.release(guid)

    def _next_count(self) -> int:
        """How many of the commands that wait longest leave together."""
        first = self._waiting[0]
        if first.is_alone:
            return 1
        now_ms, size, count = self._now_ms(), 0, 0
        earliest_ms = latest_ms = first.deadline_ms
        for command in self._waiting:
            size += len(command.payload)
            earliest_ms = min(earliest_ms, command.deadline_ms)
            latest_ms = max(latest_ms, command.deadline_ms)
            is_close = (latest_ms - earliest_ms) * DEADLINE_SHARE <= max(0, earliest_ms - now_ms)
            if count and (command.is_alone or size > REQUEST_BYTES_MAX or not is_close):
                break
            count += 1
            if count == COMMANDS_PER_RECORD_MAX:
                break
        return count

    def _begin(self, guid: Guid, count: int) -> None:
        commands = [self._waiting.popleft() for _ in range(count)]
        if count == 1:
            kind, payload = RecordKind.MACHINE_COMMAND, commands[0].payload
        else:
            kind = RecordKind.MACHINE_COMMANDS
            payload = encode_commands(command.payload for command in commands)
        running = self._sender.new_record(
            guid,
            Write(self._channel, kind, payload, count),
            min(command.deadline_ms for command in commands),
            lambda result: self._ended(record, result),
        )
        record = _Record(commands, running)
        for command in commands:
            command.record = record
        self._under_way.append(record)
        self._sender.start(running)

    # --- outcomes --------------------------------------------------------------------------------

    def _ended(self, record: _Record, result: PubAck | RequestError) -> None:
        """Report the outcome to all callers of a record, or let those that have time leave
        again."""
        put_back: list[_Command] = []
        is_shared = len(record.commands) > 1
        if isinstance(result, CommandsAck) and not self._sender.is_closed:
            put_back = self._crowded_out(record, result)
            for command in put_back:
                command.is_alone = True
        elif isinstance(result, RequestError) and not self._sender.is_closed:
            if result.outcome is Outcome.NOT_APPLIED and (result.retriable or is_shared):
                put_back = self._with_time(record)
            for command in put_back:
                command.refusal = result
                command.is_alone = command.is_alone or not result.retriable
        self._finish(record, put_back)
        of = guid_text(self._channel, record.running.state.guid)
        for place, command in enumerate(record.commands, start=1):
            if command.done.done() or command.record is not None or command in put_back:
                continue
            name = shared_name(of, place, command.payload) if is_shared else of
            command.done.set_result(_end_of(result, place if is_shared else 0, name))
        self._send_ready()

    def _crowded_out(self, record: _Record, ack: CommandsAck) -> list[_Command]:
        """Commands of an applied record which changed nothing for want of room in it."""
        if not any(map(is_crowded_out, ack.ends)):
            return []
        crowded = {
            id(command)
            for command, end in zip(record.commands, ack.ends, strict=False)
            if is_crowded_out(end)
        }
        return [command for command in self._with_time(record) if id(command) in crowded]

    def _with_time(self, record: _Record) -> list[_Command]:
        """Commands of which some attempt can still be answered before their own deadline."""
        until_ms = self._now_ms() + self._last_call_ms
        return [
            command
            for command in record.commands
            if command.deadline_ms > until_ms and not command.done.done()
        ]

    def _finish(self, record: _Record, put_back: list[_Command]) -> None:
        self._under_way.remove(record)
        for command in record.commands:
            command.record = None
        self._waiting.extendleft(reversed(put_back))
        if put_back:
            self._look_at(min(command.deadline_ms for command in put_back))

    def _withdraw(self, command: _Command) -> None:
        """The caller is gone."""
        record = command.record
        if record is None:
            if command in self._waiting:
                self._waiting.remove(command)
            self._send_ready()
            return
        others = [other for other in record.commands if not other.done.done()]
        if others and not record.running.state.is_certainly_not_applied:
            return  # it was sent: it may be applied, and the others wait for the outcome
        # Nothing of it is under way, or nobody is left who waits.
        self._sender.forget(record.running)
        self._finish(record, others)
        self._send_ready()

    # --- commands that wait ----------------------------------------------------------------------

    def _look_at(self, at_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(at_ms / 1000, self._end_late)

    def _end_late(self) -> None:
        """End the commands whose deadline passed before they left."""
        self._timer = None
        now_ms = self._now_ms()
        for command in [each for each in self._waiting if each.deadline_ms <= now_ms]:
            self._refuse(command, command.refusal or self._timeout())
        if self._waiting:
            self._look_at(min(command.deadline_ms for command in self._waiting))
        self._send_ready()

    def _timeout(self) -> RequestTimeoutError:
        trouble = next(
            (record.running.state.trouble for record in self._under_way), "no guid is free"
        )
        return RequestTimeoutError(
            f"{self._name()}: nothing was sent before the deadline, {len(self._waiting)} commands "
            f"wait until those before them have their outcome: {trouble}; send less at once, or "
            "retry later"
        )

    def _refuse(self, command: _Command, error: RequestError) -> None:
        self._waiting.remove(command)
        if not command.done.done():
            command.done.set_result(copy.copy(error))


def _inner(count: int) -> int:
    """Counters that a record takes besides its own: one for each command that shares it."""
    return count if count > 1 else 0


def _end_of(
    result: PubAck | RequestError, place: int, name: str
) -> tuple[PubAck, str] | RequestError:
    if isinstance(result, RequestError):
        error = copy.copy(result)
        error.guid = name
        return error
    if not place or not isinstance(result, CommandsAck) or len(result.ends) < place:
        return (
            result,
            name,
        )  # whose result it lacks judges the caller, as of one that shares nothing
    seq = Seq(result.base_seq + place - 1)
    ack = CommandAck(
        result.channel, result.term, result.guid, seq, seq, result.record_term, result.durability,
        result.replicas_acked, False, Seq(0), *astuple(result.ends[place - 1]),
    )  # fmt: skip
    return ack, name
