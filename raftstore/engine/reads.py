"""Answers reads: by level, with waits for a position or a confirmation, all bounded by deadlines.

A read never changes anything, so every refusal is safe to retry. Levels (S7):

* linearizable — the leader, after a ReadIndex round that started after the read arrived;
* leader — the leader once it has committed a record of its own term; may be stale if deposed;
* bounded — any replica whose lag is known, recent and within the bound (unknown = infinite);
* any — whatever this replica has applied.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Protocol

from raftstore.cluster.lag import known_lag
from raftstore.config import FRAME_BYTES_MAX, QuerySettings, ReadSettings
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.engine.scans import (
    ReadRequest,
    Scans,
    is_long,
    page_rows,
    sealed_rows,
)
from raftstore.messages import Message
from raftstore.ports import IdSource, ReadDone, TableStore
from raftstore.requests import ClosePin, Count, Failed, Get, GetAnswer, Scan, ScanAnswer, Served
from raftstore.rows.sealing import seal
from raftstore.types import ChannelId, Level, NodeId, Role, Seq, node_name

GET_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Keys and values of one answer to a Get; with the rest of the answer they fit into a frame."""


class ReadHost(Protocol):
    """What the reader needs of its node."""

    me: NodeId
    tables: TableStore
    ids: IdSource

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""

    def known_commit(self, runner: ChannelRunner) -> Seq:
        """Highest commit seq this node knows of for the channel."""


@dataclass(slots=True)
class _Waiting:
    """One read that cannot be answered yet."""

    client: int
    request: ReadRequest
    runner: ChannelRunner
    deadline_ms: int
    min_seq: Seq
    confirmed: bool
    proof_by_ms: int | None = None
    """Refused then, unless it is proven meanwhile how far the channel is committed (S7.3)."""


class Reader:
    """All reads of one node."""

    def __init__(self, host: ReadHost, settings: ReadSettings, query: QuerySettings) -> None:
        self._host = host
        self._settings = settings
        self._query = query
        self._tokens = 0
        self._waiting: dict[int, _Waiting] = {}
        self._by_channel: dict[ChannelId, dict[int, None]] = {}
        self._waiting_bytes = 0
        self._deadlines: list[tuple[int, int]] = []
        self._now_ms = 0
        self.scans = Scans(host, self, settings)

    # --- inputs -----------------------------------------------------------------------------------

    def on_request(
        self, client: int, request: ReadRequest, runner: ChannelRunner | None, now_ms: int
    ) -> None:
        """A client's read; answered now or when it may be."""
        self._now_ms = now_ms
        if runner is None:
            self.fail(
                client,
                request,
                "unknown_channel",
                "this node does not host the channel; refresh the table's placement",
            )
            return
        deadline_ms = now_ms + max(1, request.timeout_ms)
        if not isinstance(request, Get) and request.pin:
            self.scans.on_pinned(client, request, runner, deadline_ms, now_ms)
            return
        refusal = self._refusal(request, runner)
        if refusal is not None and not _may_be_proven(refusal, runner):
            self.fail(client, request, *refusal, leader=runner.elector.leader)
            return
        linearizable = request.level == Level.LINEARIZABLE.value
        applied = self._host.tables.applied_seq(runner.channel)
        if not linearizable and applied >= request.min_seq and refusal is None:
            self._answer(client, request, runner, deadline_ms)
            return
        full = self._overload(request)
        if full is not None:
            self.fail(client, request, "overloaded", full)
            return
        token = self._wait(client, request, runner, deadline_ms, confirmed=not linearizable)
        if linearizable:
            runner.request_read(token, now_ms)
        elif refusal is not None:
            self._await_proof(token, self._waiting[token])

    def on_confirmed(self, token: int, read_seq: Seq, now_ms: int) -> None:
        """The core confirmed leadership for this read (S7.1)."""
        self._now_ms = now_ms
        waiting = self._waiting.get(token)
        if waiting is None:
            return
        waiting.confirmed = True
        waiting.min_seq = Seq(max(waiting.min_seq, read_seq))
        self._try_answer(token, waiting)

    def on_read(self, done: ReadDone, now_ms: int) -> None:
        """A long read was done on the other thread."""
        self._now_ms = now_ms
        done(now_ms)

    def on_close_pin(self, client: int, request: ClosePin) -> None:
        """A scan needs the state that it pinned no longer."""
        self.scans.on_close_pin(client, request)

    def on_refused(self, token: int, code: str, message: str) -> None:
        """The core could not confirm leadership."""
        waiting = self._forget(token)
        if waiting is not None:
            leader = waiting.runner.elector.leader
            self.fail(waiting.client, waiting.request, code, message, leader=leader)

    def on_freshness(self, runner: ChannelRunner, now_ms: int) -> None:
        """How far the channel is committed was proven anew: answer who waited for that."""
        self._now_ms = now_ms
        for token in tuple(self._by_channel.get(runner.channel, ())):
            waiting = self._waiting[token]
            waiting.proof_by_ms = None
            self._try_answer(token, waiting)

    def on_applied(self, runner: ChannelRunner, now_ms: int) -> None:
        """The channel's applied seq moved: answer who waited for it."""
        self._now_ms = now_ms
        for token in tuple(self._by_channel.get(runner.channel, ())):
            self._try_answer(token, self._waiting[token])

    def on_timer(self, now_ms: int) -> None:
        """Refuse the reads whose deadline has passed."""
        self._now_ms = now_ms
        self.scans.on_timer(now_ms)
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, token = heapq.heappop(self._deadlines)
            waiting = self._waiting.get(token)
            if waiting is None or self._refuse_unproven(token, waiting):
                continue
            if waiting.deadline_ms > now_ms:
                continue  # proven in time
            self._forget(token)
            applied = self._host.tables.applied_seq(waiting.runner.channel)
            what = (
                f"applied seq {applied} has not reached {waiting.min_seq}"
                if waiting.confirmed
                else "no quorum confirmed the leader"
            )
            self.fail(
                waiting.client,
                waiting.request,
                "query_error",
                f"channel {waiting.runner.name}: {what} within {waiting.request.timeout_ms} ms",
                leader=waiting.runner.elector.leader,
            )

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped."""
        for token in tuple(self._by_channel.get(runner.channel, ())):
            self.on_refused(token, "unknown_channel", "the table was dropped")
        self.scans.on_channel_closed(runner.channel)

    def next_deadline_ms(self) -> int | None:
        """Deadline of the next read under way, or of a pin."""
        scans = self.scans.next_deadline_ms()
        if not self._deadlines:
            return scans
        return self._deadlines[0][0] if scans is None else min(self._deadlines[0][0], scans)

    @property
    def waiting(self) -> int:
        """Reads not answered yet."""
        return len(self._waiting)

    # --- rules ------------------------------------------------------------------------------------

    def lag(
        self, runner: ChannelRunner, now_ms: int, applied: Seq | None = None
    ) -> tuple[int | None, int | None]:
        """(lag in rows, age of the leader's position in ms); None = unknown (S7.3).

        ``applied``: lag of that state instead of the newest.
        """
        if applied is None:
            applied = self._host.tables.applied_seq(runner.channel)
        age_max = self._settings.leader_info_age_max_ms
        if runner.elector.role is Role.LEADER and runner.core.knows_position:
            return known_lag(runner.core.commit_seq, applied, 0, age_max), 0
        heard = runner.leader_info_heard_ms
        age = None if heard is None else max(0, now_ms - heard)
        if not runner.core.is_trusting:  # S7.3: it stood still, and all it knows may be old
            return None, age
        return known_lag(self._host.known_commit(runner), applied, age, age_max), age

    def serving_refusal(self, runner: ChannelRunner) -> tuple[str, str] | None:
        """Why the channel serves nothing here now, whatever the level: code and text."""
        name = runner.name
        if runner.stopped_reason is not None:
            return "unavailable", f"channel {name} stopped serving: {runner.stopped_reason}"
        if runner.core.is_recovering:  # S0.3
            return "unavailable", f"channel {name} is recovering on this node; ask another replica"
        return None

    def _refusal(self, request: ReadRequest, runner: ChannelRunner) -> tuple[str, str] | None:
        name, elector = runner.name, runner.elector
        limit = self.serving_refusal(runner) or self._size_refusal(request)
        if limit is not None:
            return limit
        if request.level in (Level.LINEARIZABLE.value, Level.LEADER.value):
            if elector.role is not Role.LEADER:
                if elector.leader is None:
                    return "no_leader", f"channel {name} has no leader known to this node; retry"
                leader = node_name(elector.leader)
                return "not_leader", f"channel {name} is led by {leader}, ask there"
            if request.level == Level.LEADER.value and not runner.core.leader_is_ready:
                return "no_leader", f"the leader of {name} has not committed in its term yet; retry"
            return None
        if request.level == Level.BOUNDED.value:
            return self._bound_refusal(request, runner)
        if request.level == Level.ANY.value:
            return None
        levels = ", ".join(level.value for level in Level)
        return "schema", f"unknown read level {request.level!r}; use one of {levels}"

    def _bound_refusal(self, request: ReadRequest, runner: ChannelRunner) -> tuple[str, str] | None:
        bound = request.max_lag if request.max_lag is not None else runner.bounds.max_lag
        if bound is None:
            bound = self._query.max_lag
        if bound < 0:
            return "schema", f"max_lag {bound} is negative; use 0 or more rows"
        lag, age = self.lag(runner, self._now_ms)
        if lag is None:
            known = "never heard of a leader" if age is None else f"last heard {age} ms ago"
            if not runner.core.is_trusting:
                known = "this node stood still, and no leader has proven its position since"
            return "lag_exceeded", f"lag of {runner.name} is unknown here ({known})"
        if lag > bound:  # KLIP-39: served iff lag <= limit
            return "lag_exceeded", f"lag {lag} > {bound} rows in {runner.name}"
        return None

    def _overload(self, request: ReadRequest) -> str | None:
        """Why the request may not wait here, or None."""
        settings = self._settings
        if len(self._waiting) >= settings.waiting_reads_max:
            return (
                f"{len(self._waiting)} reads are waiting, the limit is "
                f"{settings.waiting_reads_max}; retry later or lower the load"
            )
        size = self._waiting_bytes + _key_bytes(request)
        if size > settings.waiting_reads_bytes_max:
            return (
                f"the keys of all waiting reads would have {size} bytes, the limit is "
                f"{settings.waiting_reads_bytes_max}; retry later or ask for fewer keys at a time"
            )
        return None

    def _size_refusal(self, request: ReadRequest) -> tuple[str, str] | None:
        if isinstance(request, Get) and len(request.keys) > self._settings.get_keys_max:
            return (
                "payload_too_large",
                f"{len(request.keys)} keys in one request, the limit is "
                f"{self._settings.get_keys_max}; split it",
            )
        return None

    # --- answering --------------------------------------------------------------------------------

    def _try_answer(self, token: int, waiting: _Waiting) -> None:
        applied = self._host.tables.applied_seq(waiting.runner.channel)
        if not waiting.confirmed or applied < waiting.min_seq:
            return
        client, request, runner = waiting.client, waiting.request, waiting.runner
        # S7.3, S13: the wish holds for the moment of the answer, however long the read has waited.
        refusal = self._refusal(request, runner)
        if refusal is not None and _may_be_proven(refusal, runner):
            if waiting.proof_by_ms is None:
                self._await_proof(token, waiting)
            return
        self._forget(token)
        if refusal is None:
            self._answer(client, request, runner, waiting.deadline_ms)
        else:
            self.fail(client, request, *refusal, leader=runner.elector.leader)

    def _await_proof(self, token: int, waiting: _Waiting) -> None:
        """S7.3: this node stood still; one round trip tells what it may serve."""
        wait_ms = self._settings.freshness_wait_ms
        waiting.proof_by_ms = min(waiting.deadline_ms, self._now_ms + wait_ms)
        heapq.heappush(self._deadlines, (waiting.proof_by_ms, token))
        waiting.runner.request_proof(waiting.proof_by_ms, self._now_ms)

    def _refuse_unproven(self, token: int, waiting: _Waiting) -> bool:
        """Refuse a read that waited long enough for a proof; False if it does not wait for one."""
        if waiting.proof_by_ms is None or waiting.proof_by_ms > self._now_ms:
            return False
        waiting.proof_by_ms = None
        refusal = self._refusal(waiting.request, waiting.runner)
        if refusal is None:
            return False
        self._forget(token)
        leader = waiting.runner.elector.leader
        self.fail(waiting.client, waiting.request, *refusal, leader=leader)
        return True

    def _answer(
        self, client: int, request: ReadRequest, runner: ChannelRunner, deadline_ms: int
    ) -> None:
        if isinstance(request, Get):
            self._answer_get(client, request, runner)
        elif isinstance(request, Count) or is_long(request):
            self.scans.begin(client, request, runner, deadline_ms, self._now_ms)
        else:
            self._answer_page(client, request, runner)

    def _answer_page(self, client: int, request: Scan, runner: ChannelRunner) -> None:
        limit, bytes_max = page_rows(request, self._settings), self._settings.scan_bytes_max
        page = self._host.tables.scan(runner.channel, request.start, request.stop, limit, bytes_max)
        rows = sealed_rows(page.rows, keys_only=request.keys_only)
        served = self.served(request, runner, page.applied_seq)
        self._host.answer(client, ScanAnswer(request.request_id, rows, page.more, served))

    def _answer_get(self, client: int, request: Get, runner: ChannelRunner) -> None:
        rows, applied = self._host.tables.get_many(runner.channel, request.keys, GET_BYTES_MAX)
        size = 0
        for row in rows:  # a loop: most requests have one key, and a generator costs more than it
            size += 0 if row is None else row.size
        if size > GET_BYTES_MAX:
            text = (
                f"the first {len(rows)} of {len(request.keys)} rows have more than the "
                f"{GET_BYTES_MAX} bytes that one answer may have; ask for fewer keys at a time"
            )
            self.fail(client, request, "payload_too_large", text)
            return
        answer = GetAnswer(
            request.request_id,
            tuple(None if row is None else seal(row.key, row.value) for row in rows),
            tuple(Seq(0) if row is None else row.seq for row in rows),
            self.served(request, runner, applied),
        )
        self._host.answer(client, answer)

    def served(self, request: ReadRequest, runner: ChannelRunner, applied: Seq) -> Served:
        """S7.3: the state that the rows are of, and how far that is behind."""
        lag, age = self.lag(runner, self._now_ms, applied)
        return Served(
            node=self._host.me,
            channel=runner.channel,
            term=runner.elector.term,
            applied_seq=applied,
            lag=lag,
            leader_info_age_ms=age,
            level=request.level,
        )

    def _wait(
        self,
        client: int,
        request: ReadRequest,
        runner: ChannelRunner,
        deadline_ms: int,
        *,
        confirmed: bool,
    ) -> int:
        self._tokens += 1
        self._waiting[self._tokens] = _Waiting(
            client, request, runner, deadline_ms, request.min_seq, confirmed
        )
        self._waiting_bytes += _key_bytes(request)
        self._by_channel.setdefault(runner.channel, {})[self._tokens] = None
        heapq.heappush(self._deadlines, (deadline_ms, self._tokens))
        return self._tokens

    def _forget(self, token: int) -> _Waiting | None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            self._waiting_bytes -= _key_bytes(waiting.request)
            tokens = self._by_channel[waiting.runner.channel]
            del tokens[token]
            if not tokens:
                del self._by_channel[waiting.runner.channel]
        # Cancelled deadlines are dropped lazily; keep the heap from outgrowing the live ones.
        if len(self._deadlines) > 64 + 2 * len(self._waiting):
            self._deadlines = [e for e in self._deadlines if e[1] in self._waiting]
            heapq.heapify(self._deadlines)
        return waiting

    def fail(
        self,
        client: int,
        request: ReadRequest,
        code: str,
        message: str,
        *,
        leader: NodeId | None = None,
    ) -> None:
        """Refuse a read."""
        hosts = {node_name(self._host.me): message}
        self._host.answer(
            client, Failed(request.request_id, code, message, leader_hint=leader, hosts=hosts)
        )


def _may_be_proven(refusal: tuple[str, str], runner: ChannelRunner) -> bool:
    """Whether the lag is unknown only because the node stood still (S7.3)."""
    return refusal[0] == "lag_exceeded" and not runner.core.is_trusting


def _key_bytes(request: ReadRequest) -> int:
    if isinstance(request, Get):
        return sum(map(len, request.keys))
    return len(request.start) + len(request.stop)
