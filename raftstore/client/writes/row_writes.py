"""Drives the single-row writes of one channel: which of them share a record, and which outcome each
caller gets.

The rules of sharing are in ``row_gathering``, those of outcomes in ``publishing``; here are the
callers. A row that waits may be taken back, by its deadline or when its caller is cancelled; of a
record that was sent, all callers get one outcome at one moment, and from then on the client
begins no attempt with its guid: ``client.fate`` may have promised one of them that it was not
applied (N4). Rows of a record that certainly was not applied leave again in another one, with
another guid, as long as they have time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from raftstore.client.writes.kinds import RecordSender, RowWrite, Running, Write
from raftstore.client.writes.row_gathering import GatheredRow, RowGathering
from raftstore.client.writes.session import ProducerSession
from raftstore.errors import RequestError, RequestTimeoutError
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.types import Guid, Outcome, RecordKind, guid_text


@dataclass(slots=True, eq=False)
class _Row(GatheredRow):
    """A write and its caller."""

    write: RowWrite = field(kw_only=True)
    done: asyncio.Future[PubAck | RequestError] = field(kw_only=True)
    refusal: RequestError | None = None
    """Why a record that it was in was certainly not applied."""


@dataclass(slots=True, eq=False)
class _Record:
    """Rows under way together."""

    rows: list[_Row]
    running: Running


class RowWrites:
    """See the module; made by the publisher for each channel."""

    def __init__(
        self,
        name: Callable[[], str],
        session: ProducerSession,
        sender: RecordSender,
        now_ms: Callable[[], int],
        last_call_ms: int,
    ) -> None:
        self._name = name
        self._session = session
        self._sender = sender
        self._now_ms = now_ms
        self._last_call_ms = last_call_ms
        self._gathering = RowGathering()
        self._records: dict[_Row, _Record] = {}
        """Of each row that is in a record."""
        self._is_turn_awaited = False
        self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._reserving: asyncio.Task[None] | None = None

    async def write(self, write: RowWrite, deadline_ms: int) -> PubAck:
        """Write a row; raise the RequestError that states the outcome."""
        loop = asyncio.get_running_loop()
        row = _Row(
            write.key,
            write.size,
            deadline_ms,
            is_conditional=write.expected is not None,
            ttl_ms=write.ttl_ms,
            write=write,
            done=loop.create_future(),
        )
        self._gathering.add(row)
        if self._gathering.is_idle or row.is_conditional:
            self._send_ready()
        elif self._gathering.may_leave and not self._is_turn_awaited:
            # Something is under way already: writes that begin in this turn of the loop may join.
            self._is_turn_awaited = True
            loop.call_soon(self._end_turn)
        if row not in self._records and not row.done.done():
            self._look_at(deadline_ms)
        try:
            result = await row.done
        except asyncio.CancelledError:
            self._withdraw(row)
            raise
        if isinstance(result, RequestError):
            raise result
        return result

    def close(self, reason: RequestError) -> None:
        """End all rows that wait: they were not sent. Those under way the publisher ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reserving is not None:
            self._reserving.cancel()
        for row in self._waiting():
            self._refuse(row, reason)

    # --- sending ---------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        self._is_turn_awaited = False
        self._send_ready()

    def _send_ready(self) -> None:
        """Begin what may leave, as far as there are guids."""
        if self._is_sending:
            return  # a record that ends at once asks for the next: the loop below goes on
        self._is_sending = True
        try:
            while self._gathering.may_leave and self._reserving is None:
                guid = self._session.try_reserve(self._now_ms())
                if guid is None:  # its window is full (S4.5)
                    loop = asyncio.get_running_loop()
                    self._reserving = loop.create_task(self._wait_for_guid(), name="raftstore guid")
                    return
                self._begin(guid)
        finally:
            self._is_sending = False

    async def _wait_for_guid(self) -> None:
        try:
            guid = await self._session.reserve(self._now_ms())
        finally:
            self._reserving = None
        if self._gathering.may_leave and not self._sender.is_closed:
            self._begin(guid)
            self._send_ready()
        else:
            self._session.release(guid)

    def _begin(self, guid: Guid) -> None:
        rows = [row for row in self._gathering.take(self._now_ms()) if isinstance(row, _Row)]
        write = rows[0].write
        if write.expected is not None:
            kind = RecordKind.CONDITIONAL
            payload = encode_conditional(write.key, write.sealed, write.expected)
        else:
            kind = RecordKind.ROWS
            payload = encode_rows((row.key, row.write.sealed) for row in rows)
        running = self._sender.new_record(
            guid,
            Write.of_rows(write.channel, kind, payload, len(rows), write.ttl_ms),
            min(row.deadline_ms for row in rows),
            lambda result: self._ended(record, result),
        )
        record = _Record(rows, running)
        self._records.update(dict.fromkeys(rows, record))
        self._sender.start(running)

    # --- outcomes --------------------------------------------------------------------------------

    def _ended(self, record: _Record, result: PubAck | RequestError) -> None:
        """Report the outcome to all callers of a record, or let those that have time leave
        again."""
        put_back: list[_Row] = []
        if isinstance(result, RequestError):
            result.guid = guid_text(record.running.write.channel, record.running.state.guid)
            is_certain = result.outcome is Outcome.NOT_APPLIED
            if is_certain and result.retriable and not self._sender.is_closed:
                put_back = self._with_time(record)
        self._finish(record, put_back)
        back = dict.fromkeys(put_back)
        for row in record.rows:
            if row in back:
                assert isinstance(result, RequestError)
                row.refusal = result
            elif not row.done.done():
                outcome = result if isinstance(result, PubAck) else copy.copy(result)
                row.done.set_result(outcome)
        self._send_ready()

    def _with_time(self, record: _Record) -> list[_Row]:
        """Rows of which some attempt can still be answered before their own deadline."""
        until_ms = self._now_ms() + self._last_call_ms
        return [row for row in record.rows if row.deadline_ms > until_ms and not row.done.done()]

    def _finish(self, record: _Record, put_back: list[_Row]) -> None:
        for row in record.rows:
            del self._records[row]
        self._gathering.end([*record.rows], [*put_back])
        if put_back:
            self._look_at(min(row.deadline_ms for row in put_back))

    def _withdraw(self, row: _Row) -> None:
        """The caller is gone."""
        record = self._records.get(row)
        if record is None:
            self._gathering.remove(row)
            self._send_ready()
            return
        others = [other for other in record.rows if not other.done.done()]
        if others and not record.running.state.is_certainly_not_applied:
            return  # it was sent: the row may be applied, and the others wait for the outcome
        # Nothing of it is under way, or nobody is left who waits.
        self._sender.forget(record.running)
        self._finish(record, others)
        self._send_ready()

    # --- rows that wait --------------------------------------------------------------------------

    def _waiting(self) -> list[_Row]:
        return [row for row in self._gathering.waiting() if isinstance(row, _Row)]

    def _look_at(self, at_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(at_ms / 1000, self._end_late)

    def _end_late(self) -> None:
        """End the rows whose deadline passed before they left."""
        self._timer = None
        now_ms = self._now_ms()
        for row in self._waiting():
            if row.deadline_ms <= now_ms:
                self._refuse(row, row.refusal or self._timeout())
        left = [row.deadline_ms for row in self._waiting()]
        if left:
            self._look_at(min(left))
        self._send_ready()

    def _timeout(self) -> RequestTimeoutError:
        waiting = len(self._gathering.waiting())
        trouble = next(
            (record.running.state.trouble for record in self._records.values()), "no guid is free"
        )
        return RequestTimeoutError(
            f"{self._name()}: nothing was sent before the deadline, {waiting} writes wait until "
            f"those before them have their outcome: {trouble}; write less at once, or retry later"
        )

    def _refuse(self, row: _Row, error: RequestError) -> None:
        self._gathering.remove(row)
        if not row.done.done():
            row.done.set_result(copy.copy(error))
