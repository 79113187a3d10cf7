"""Queries of users' state machines: a read like any other, answered by code of somebody else.

The reader decides when a query may be answered, by the rules of all reads. Then the machine is
asked away from the node's thread, however long it takes: one with its state on the disk on a
snapshot that is taken in that moment, on a thread of its own, while commands go on being
applied; one in memory on the apply thread, between two commands. What it raises is an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec

from raftstore.config import MIB, ReadSettings
from raftstore.engine.channel.applied_state import SnapshotState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.reads.read_rules import closing_refusal
from raftstore.engine.reads.scans import ReadRules
from raftstore.engine.shares import GIVEN_UP, TOTAL_PER_LIMIT, Shares, Waits
from raftstore.errors import OverloadedError, QueryError, Refusal, RequestError, StorageError
from raftstore.ports.tables import Page, ReadDone, TableSnapshot, TableStore
from raftstore.protocol.machines import CommandEnd, MachineAnswer, MachineQuery
from raftstore.protocol.reads import Served
from raftstore.record_machine import CommandMachine, StateReader
from raftstore.types import Seq

PAGE_ROWS = 1_000
"""Keys that a range reads at a time, whatever its limit is."""


class SnapshotView:
    """machine.StateView of a channel's rows as they were."""

    def __init__(self, snapshot: TableSnapshot) -> None:
        self._snapshot: TableSnapshot | None = snapshot
        self.broken: StorageError | None = None
        """What a read raised, whatever the machine made of it."""

    def end(self) -> None:
        """The query has ended, and its snapshot is about to be closed."""
        self._snapshot = None

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: it is not there."""
        rows = self._page(key, key + b"\0", 1).rows
        return rows[0].value if rows else None

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop) in the order of the keys."""
        while limit > 0:
            page = self._page(start, stop, min(limit, PAGE_ROWS))
            for row in page.rows:
                yield row.key, row.value
            if not page.more:
                return
            limit -= len(page.rows)
            start = page.rows[-1].key + b"\0"

    def _page(self, start: bytes, stop: bytes, limit: int) -> Page:
        if self._snapshot is None:
            raise RuntimeError(
                "this is the state of a query that has ended; use context.state of the query at "
                "hand, in the thread that answers it"
            )
        try:
            return self._snapshot.page(start, stop, limit, MIB)
        except StorageError as error:
            self.broken = error
            raise


@dataclass(slots=True, eq=False)
class _Asked:
    """A query that may be answered, and has no answer yet. ``served``: the state in the moment in
    which the rules allowed it."""

    client: int
    request: MachineQuery
    runner: ChannelRunner
    machine: CommandMachine
    served: Served


class MachineQueries:
    """The queries of one node that machines are asked."""

    def __init__(
        self, tables: TableStore, answers: ClientAnswers, rules: ReadRules, settings: ReadSettings
    ) -> None:
        self._tables = tables
        self._answers = answers
        self._rules = rules
        self._settings = settings
        self._tokens = count(1)
        self._waits: Waits[_Asked] = Waits(
            Shares("queries of state machines", "read.scans_queued_max", self._give_up)
        )
        self.deadlines = self._waits.deadlines
        self._under_way = 0
        """Queries that a machine is asked or will be, those included that nobody waits for."""

    def begin(
        self,
        client: int,
        request: MachineQuery,
        runner: ChannelRunner,
        deadline_ms: int,
    ) -> None:
        """Ask the machine of its present state; the reader has found that it may be answered."""
        full = self._waits.shares.refusal(client, self._settings.scans_queued_max)
        most = self._settings.scans_queued_max * TOTAL_PER_LIMIT
        if full is None and self._under_way >= most:
            full = (
                f"{self._under_way} queries of state machines are under way, some of which nobody "
                "waits for any more; the machine's query takes too long"
            )
        if full is not None:
            self._rules.fail(client, request, OverloadedError, full)
            return
        assert runner.commands is not None, "the reader refuses it at a table"
        machine = runner.commands.machine
        token, channel = next(self._tokens), runner.channel
        if machine.is_in_memory:
            served = self._rules.served(request, runner, self._tables.applied_seq(channel))
            asked = _Asked(client, request, runner, machine, served)
            self._tables.start_between(channel, partial(self._ask_memory, token, asked))
        else:  # or not known, for its code may have to be imported: who asks it then finds out
            snapshot = self._tables.snapshot(channel)
            served = self._rules.served(request, runner, snapshot.applied_seq)
            asked = _Asked(client, request, runner, machine, served)
            self._tables.start_query(partial(self._ask_disk, token, asked, snapshot))
        self._under_way += 1
        self._waits.add(client, token, asked, deadline_ms)

    def on_client_gone(self, client: int) -> None:
        """Forget the client's queries; those that a machine is asked by then end unheard."""
        self._waits.pop_all_of(client)

    def holds_for(self, client: int) -> bool:
        """Whether the client waits for an answer."""
        return self._waits.shares.amount_of(client) > 0

    def on_timer(self, now_ms: int) -> None:
        """Refuse the queries whose deadline has passed."""
        for token in self._waits.due(now_ms):
            asked = self._waits.of(token)
            text = (
                f"the state machine of {asked.runner.name} has not answered within "
                f"{asked.request.timeout_ms} ms; give it more time, or ask for less"
            )
            self._refuse(token, Refusal(QueryError, text))

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """Nothing of what was dropped is answered any more (S0.8), nor of what was replaced."""
        for token in self._waits:
            if self._waits.of(token).runner is runner:
                self._refuse(token, closing_refusal(runner))

    # --- on other threads -------------------------------------------------------------------------

    def _ask_disk(self, token: int, asked: _Asked, snapshot: TableSnapshot) -> ReadDone:
        """On the thread of users' queries: ask on a snapshot."""
        said: CommandEnd | Refusal | None = None
        if self._waits.get(token) is not None:
            request, view = asked.request, SnapshotView(snapshot)
            get = SnapshotState(snapshot).get
            try:
                said = asked.machine.query(request.key, request.request, view, get)
            except RequestError as error:  # its code is not here, or it is in memory after all
                said = Refusal(type(error), str(error))
            view.end()
            if view.broken is not None:  # S0.4: damage is no business of the machine
                raise view.broken
        return partial(self._on_asked, token, said, snapshot, Seq(0))

    def _ask_memory(self, token: int, asked: _Asked, state: StateReader, applied: Seq) -> ReadDone:
        """On the apply thread, between commands: ask a machine in memory."""
        said: CommandEnd | None = None
        if self._waits.get(token) is not None:
            request = asked.request
            said = asked.machine.query_memory(request.key, request.request, state)
        return partial(self._on_asked, token, said, None, applied)

    # --- answers ----------------------------------------------------------------------------------

    def _on_asked(
        self,
        token: int,
        said: CommandEnd | Refusal | None,
        snapshot: TableSnapshot | None,
        applied: Seq,
        now_ms: int,
    ) -> None:
        del now_ms
        self._under_way -= 1
        if snapshot is not None:
            snapshot.close()
        asked = self._waits.get(token)
        if asked is None or said is None:
            return
        # S0.3, S13: what stopped serving since then answers nothing.
        stopped = self._rules.serving_refusal(asked.runner)
        if stopped is None and snapshot is not None and asked.machine.is_in_memory:
            ask = partial(self._ask_memory, token, asked)
            self._tables.start_between(asked.runner.channel, ask)
            self._under_way += 1
            return
        refusal = stopped or (said if isinstance(said, Refusal) else None)
        if refusal is not None:
            self._refuse(token, refusal)
            return
        assert isinstance(said, CommandEnd)
        self._waits.pop(token)
        served = asked.served if applied == 0 else _of_later(asked.served, applied)
        answer = MachineAnswer(
            asked.request.request_id, said.result, served, said.is_rejected, said.reason
        )
        self._answers.answer(asked.client, answer)

    def _refuse(self, token: int, refusal: Refusal) -> None:
        asked = self._waits.pop(token)
        if asked is not None:
            leader = asked.runner.elector.leader
            self._rules.fail(asked.client, asked.request, *refusal, leader=leader)

    def _give_up(self, client: int, token: int) -> None:
        """Others need a place of the client that has most of them."""
        del client
        self._refuse(token, Refusal(OverloadedError, GIVEN_UP))


def _of_later(served: Served, applied: Seq) -> Served:
    """Describe a state that has more commands than the one that the rules looked at."""
    lag = served.lag
    if lag is not None:
        lag = max(0, lag - (applied - served.applied_seq))
    return msgspec.structs.replace(served, applied_seq=applied, lag=lag)
