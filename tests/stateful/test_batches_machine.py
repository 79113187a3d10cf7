"""Micro-batches of three writers over four channels, with everything late, doubled or lost.

Requests, pushes, acknowledgements and floors are kept for ever and delivered again in any order.
Acknowledgements live in the memory of the coordinator's leader and are lost when it changes.
Writers leave gaps, come with other checkpoints, are adopted and removed; plain writes go between.

The truth is what drivers listed, folded by rules of its own. Asserted throughout: I1 pin, I2 batch
ids rise, I3 chain, I4 F never falls, I5 success, I6 whole snapshots, I7 sessions never go back; and
at the end that nothing staged stays and every decided batch is everywhere.
"""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftstore.protocol.batches import APPEND, TRUNCATE, BeginBatch, CommitBatch, Manifest
from raftstore.protocol.staged import BatchApply, ChunkHeader
from raftstore.record_machine import Row
from raftstore.state_machines.batches.coordinator import judge_begin, judge_commit
from raftstore.state_machines.batches.staging import ApplyPlan, Broken, part_of
from raftstore.state_machines.batches.txn_records import (
    Adopt,
    Begin,
    Close,
    Commit,
    Remove,
    Trim,
    Verdict,
)
from raftstore.state_machines.batches.txn_state import floor_for, outbox, read_writer, waiting_for
from raftstore.types import Seq
from tests.batch_bench import ChannelBench, CoordinatorBench
from tests.stateful.batches_drawn import (
    CHANNEL,
    CHANNELS,
    PENDING_MAX,
    PUT,
    WRITERS,
    Chunk,
    Decided,
    Sent,
    Table,
    Ticket,
    channels,
    folded,
    packed,
    ref_like,
    sent_chunks,
    some,
    writers,
)


class BatchesMachine(RuleBasedStateMachine):
    """A coordinator, its channels, drivers, and a network that forgets nothing."""

    @initialize()
    def start(self) -> None:
        """Nothing has happened."""
        self.coordinator = CoordinatorBench(CHANNELS)
        self.channels = [ChannelBench(partition) for partition in range(CHANNELS)]
        self.checkpoint = dict.fromkeys(WRITERS, 0)
        self.generation = dict.fromkeys(WRITERS, 0)
        self.tickets: list[Ticket] = []
        self.begins: list[BeginBatch] = []
        self.pushes: dict[tuple[int, int], BatchApply] = {}
        self.acks: list[tuple[int, int]] = []
        self.floors: list[tuple[str, int, int]] = []
        self.heard: dict[int, int] = {}
        self.commits: dict[int, Decided] = {}
        self.lowest = {(writer, c): 0 for writer in WRITERS for c in range(CHANNELS)}
        # Per channel its states by batch: (n, V, rows that batches wrote).
        nothing: list[tuple[int, tuple[int, ...], Table]] = [(0, (0,) * CHANNELS, {})]
        self.versions = [list(nothing) for _ in range(CHANNELS)]
        self.session: tuple[int, tuple[int, ...]] = (0, (0,) * CHANNELS)

    # --- drivers ----------------------------------------------------------------------------------

    @rule(writer=writers, step=st.integers(-1, 3), is_other=st.booleans(), uuid=some)
    def begin(self, writer: str, step: int, is_other: bool, uuid: int) -> None:
        """A task asks for its attempt, now and then at an odd batch or from another checkpoint."""
        found = read_writer(writer, self.coordinator.state)
        last = 0 if found is None or found.last is None else found.last.batch_id
        lineage = f"c{self.checkpoint[writer] + (is_other and step == 3)}"
        request = BeginBatch(
            1,
            CHANNEL,
            writer,
            max(0, last + step),
            uuid.to_bytes(16, "big"),
            lineage,
            False,
            0,
            0,
        )
        self.begins.append(request)
        self._deliver_begin(request)

    @precondition(lambda self: self.begins)
    @rule(which=some)
    def begin_again(self, which: int) -> None:
        """A BEGIN comes late or twice."""
        self._deliver_begin(self.begins[which % len(self.begins)])

    def _deliver_begin(self, request: BeginBatch) -> None:
        state = self.coordinator.state
        before = read_writer(request.writer, state)
        verdict = judge_begin(
            request, state, partitions=CHANNELS, pending_max=PENDING_MAX, acked=self.heard
        )
        if verdict is None:
            assert len([e for e in outbox(state) if self._waits(e.n)]) < PENDING_MAX
            verdict = self.coordinator.step(
                Begin(
                    request.writer,
                    request.batch_id,
                    request.uuid,
                    request.lineage,
                    False,
                    0,
                    CHANNELS,
                )
            )
            assert verdict.name == "opened"
            is_past = before is not None and before.last is not None
            assert not is_past or request.batch_id > before.last.batch_id  # type: ignore[union-attr]
        if verdict.name in ("opened", "already"):
            assert before is None or before.lineage in (None, request.lineage)
        if verdict.name == "opened":
            known = [t for t in self.tickets if t.attempt == verdict.attempt]
            assert all((t.writer, t.batch) == (request.writer, request.batch_id) for t in known)
            if not known:
                mode = verdict.attempt % 3
                ticket = Ticket(request.writer, request.batch_id, verdict.attempt, mode)
                self.tickets.append(ticket)
        elif verdict.name == "already":
            self._tell_success(request.writer, verdict)
        elif before is not None and verdict.code == "batch_regression":
            last = before.last
            is_past = last is not None and request.batch_id < last.batch_id
            assert is_past or before.lineage != request.lineage

    @rule(
        writer=writers,
        sent=sent_chunks,
        uuid=some,
        commits=st.integers(0, 3),
        order=some,
        where=st.sets(channels),
    )
    def whole_attempt(
        self, writer: str, sent: Sent, uuid: int, commits: int, order: int, where: set[int]
    ) -> None:
        """A driver begins the next batch, its tasks stage, and mostly it commits at once."""
        self.begin(writer, 1, False, uuid)
        mine = [ticket for ticket in self.tickets if ticket.writer == writer]
        if not mine:
            return
        self._stage(mine[-1], sent)
        if commits:
            for chunk in mine[-1].chunks:
                self._deliver_chunk(chunk)
            first = mine[-1].chunks[0].header if mine[-1].chunks else None
            run = 0 if first is None else first.task_attempt_id
            self._commit(mine[-1], (run, order % 2), truncate=order % 8 == 7)
            self.push_next(where, acknowledges=bool(order % 3))

    @precondition(lambda self: self.tickets)
    @rule(which=some, sent=sent_chunks)
    def stage(self, which: int, sent: Sent) -> None:
        """Task attempts send chunks, which may not arrive yet; zombies do so long after."""
        self._stage(self.tickets[-1 - which % len(self.tickets)], sent)

    def _stage(self, ticket: Ticket, sent: Sent) -> None:
        for where, task, run, rows, arrives in sent:
            if ticket.sent is not None and (task, run) in ticket.sent[0].manifest.winners:
                continue  # who was listed has reported all that it sent; others may go on
            header = ChunkHeader(
                ticket.writer, ticket.attempt, task, run, len(ticket.chunks), ticket.mode
            )
            chunk = Chunk(where, header, rows)
            ticket.chunks.append(chunk)
            if arrives:
                self._deliver_chunk(chunk)

    @precondition(lambda self: any(ticket.chunks for ticket in self.tickets))
    @rule(which=some, chunk=some)
    def stage_again(self, which: int, chunk: int) -> None:
        """A STAGE comes late or twice, however old its attempt is."""
        staged = [ticket for ticket in self.tickets if ticket.chunks]
        ticket = staged[which % len(staged)]
        self._deliver_chunk(ticket.chunks[chunk % len(ticket.chunks)])

    def _deliver_chunk(self, chunk: Chunk) -> None:
        self.channels[chunk.channel].stage(chunk.header, chunk.rows)
        chunk.arrived = True

    @precondition(lambda self: self.tickets)
    @rule(which=some, runs=st.tuples(st.integers(0, 1), st.integers(0, 1)), truncate=st.booleans())
    def commit(self, which: int, runs: tuple[int, int], truncate: bool) -> None:
        """The driver lists the winners, once all their chunks are kept by quorums."""
        self._commit(self.tickets[-1 - which % min(3, len(self.tickets))], runs, truncate=truncate)

    def _commit(self, ticket: Ticket, runs: tuple[int, int], *, truncate: bool) -> None:
        winners = tuple(enumerate(runs))
        listed = [
            chunk
            for chunk in ticket.chunks
            if (chunk.header.partition_id, chunk.header.task_attempt_id) in winners
        ]
        if ticket.sent is not None or not all(chunk.arrived for chunk in listed):
            return
        parts = []
        for partition in range(CHANNELS):
            records = [ref_like(chunk) for chunk in listed if chunk.channel == partition]
            if records or truncate:
                bench = ChannelBench(partition)
                for header, rows in records:
                    bench.stage(header, rows)
                parts.append(part_of(partition, bench.all_chunks()))
        manifest = Manifest(
            TRUNCATE if truncate else APPEND,
            winners,
            tuple(parts),
            sum(part.rows for part in parts),
        )
        digest = blake2b(packed(manifest), digest_size=16).digest()
        request = CommitBatch(
            1, CHANNEL, ticket.writer, ticket.batch, ticket.attempt, manifest, digest, 0
        )
        ticket.sent = (request, listed)
        self._deliver_commit(ticket, rides=False)

    @precondition(lambda self: any(ticket.sent for ticket in self.tickets))
    @rule(which=some, rides=st.booleans())
    def commit_again(self, which: int, rides: bool) -> None:
        """A COMMIT comes late or twice, now and then with what channels acknowledged."""
        sent = [ticket for ticket in self.tickets if ticket.sent]
        self._deliver_commit(sent[which % len(sent)], rides=rides)

    def _deliver_commit(self, ticket: Ticket, *, rides: bool) -> None:
        assert ticket.sent is not None
        request, listed = ticket.sent
        verdict = judge_commit(request, self.coordinator.state)
        if verdict is None:
            acked = tuple(sorted(self.heard.items())) if rides else ()
            verdict = self.coordinator.step(
                Commit(
                    request.writer,
                    request.batch_id,
                    request.attempt,
                    request.manifest,
                    request.digest,
                    0,
                    acked,
                )
            )
            if verdict.name == "ok":
                self._decide(ticket, verdict, listed)
        if verdict.name == "ok":
            assert self.commits[verdict.n].attempt == ticket.attempt
            self._tell_success(ticket.writer, verdict)
        else:
            assert verdict.code == "writer_fenced", verdict

    def _decide(self, ticket: Ticket, verdict: Verdict, listed: list[Chunk]) -> None:
        assert ticket.sent is not None
        manifest = ticket.sent[0].manifest
        touched = tuple(part.partition for part in manifest.parts)
        assert verdict.n == len(self.commits) + 1
        self.commits[verdict.n] = Decided(
            ticket.writer,
            self.generation[ticket.writer],
            ticket.batch,
            ticket.attempt,
            ticket.mode,
            manifest.mode == TRUNCATE,
            touched,
            listed,
        )
        for partition in touched:
            self.pushes[verdict.n, partition] = self.coordinator.apply_of(verdict.n, partition)
        assert verdict.vector == self._vector(verdict.n)

    def _tell_success(self, writer: str, verdict: Verdict) -> None:
        """I5: reported only when every touched channel applied it, and it was committed once."""
        if self._waits(verdict.n):
            return
        made = self.commits[verdict.n]
        assert (made.writer, made.batch) == (writer, verdict.batch_id)
        same = [
            n
            for n, other in self.commits.items()
            if (other.writer, other.generation, other.batch)
            == (writer, made.generation, made.batch)
        ]
        assert same == [verdict.n]
        for partition in made.touched:
            assert verdict.n <= self.channels[partition].head.n

    def _waits(self, n: int) -> bool:
        return bool(waiting_for(n, self.coordinator.state, self.heard))

    # --- the store --------------------------------------------------------------------------------

    @precondition(lambda self: self.pushes)
    @rule(which=some)
    def push(self, which: int) -> None:
        """An APPLY comes, of whatever age."""
        n, partition = sorted(self.pushes)[which % len(self.pushes)]
        self._push(n, partition)

    def _push(self, n: int, partition: int) -> None:
        channel = self.channels[partition]
        before = channel.head.n
        plan = channel.apply(self.pushes[n, partition])
        assert not isinstance(plan, Broken), plan
        if not isinstance(plan, ApplyPlan):
            assert channel.head.n == before
            return
        # I3: exactly the next commit that touches the channel.
        chain = [m for m, made in self.commits.items() if partition in made.touched]
        assert n == min(m for m in chain if m > before)
        now = {key: row.value for key, row in channel.rows.items() if key != PUT}
        assert now == folded(self.commits, n, partition)
        assert channel.head.vector == self._vector(n)
        made = self.commits[n]
        assert channel.refs(made.writer, made.attempt) == [], "nothing up to the attempt stays"
        self.versions[partition].append((n, channel.head.vector, now))

    @rule(where=st.sets(channels, min_size=1), acknowledges=st.booleans(), jumps=st.booleans())
    def push_next(self, where: set[int], acknowledges: bool, jumps: bool = False) -> None:
        """Some channels are informed what is next, or what comes after it, and may say so."""
        for partition in sorted(where):
            done = self.channels[partition].head.n
            waiting = [n for n, c in sorted(self.pushes) if c == partition and n > done]
            if waiting:
                self._push(waiting[-1 if jumps else 0], partition)
            if acknowledges:
                self.acknowledge(partition)

    @precondition(lambda self: self.pushes)
    @rule(where=channels)
    def acknowledge(self, where: int) -> None:
        """A channel says how far it is; the leader remembers, the network keeps a copy."""
        n = self.channels[where].head.n
        if n:
            self.acks.append((where, n))
            self.heard[where] = max(n, self.heard.get(where, 0))

    @precondition(lambda self: self.acks)
    @rule(which=some)
    def acknowledge_late(self, which: int) -> None:
        """An old acknowledgement comes to the present leader."""
        where, n = self.acks[which % len(self.acks)]
        self.heard[where] = max(n, self.heard.get(where, 0))

    @precondition(lambda self: self.heard)
    @rule(is_written=st.booleans())
    def leader_ends(self, is_written: bool) -> None:
        """End the leadership; the acknowledgements it heard are written down
        first, or forgotten.
        """
        if is_written:
            self.coordinator.step(Trim(tuple(sorted(self.heard.items()))))
        self.heard.clear()

    @precondition(lambda self: self.tickets)
    @rule(which=some)
    def close(self, which: int) -> None:
        """An attempt's time is over, or its driver gave it up."""
        ticket = self.tickets[which % len(self.tickets)]
        self.coordinator.step(Close(ticket.writer, ticket.attempt))

    @rule(writer=writers, where=channels, is_late=st.booleans())
    def resolve(self, writer: str, where: int, is_late: bool) -> None:
        """A channel asks what is finished; the answer may stay on its way."""
        answer = floor_for(writer, where, self.coordinator.state)
        self.floors.append((writer, where, answer))
        if not is_late:
            self.channels[where].drop(writer, answer)

    @precondition(lambda self: self.floors)
    @rule(which=some)
    def resolve_late(self, which: int) -> None:
        """An old answer arrives."""
        writer, where, answer = self.floors[which % len(self.floors)]
        self.channels[where].drop(writer, answer)

    @precondition(lambda self: len(self.commits) > 2)
    @rule(writer=writers, is_removed=st.booleans(), is_known=st.booleans())
    def operator_steps_in(self, writer: str, is_removed: bool, is_known: bool) -> None:
        """A writer is adopted for its next checkpoint, or forgotten."""
        if read_writer(writer, self.coordinator.state) is None:
            return
        self.checkpoint[writer] += 1
        self.generation[writer] += 1
        lineage = f"c{self.checkpoint[writer]}" if is_known else None
        self.coordinator.step(Remove(writer) if is_removed else Adopt(writer, lineage))

    @rule(where=channels, value=st.binary(min_size=1, max_size=2))
    def put(self, where: int, value: bytes) -> None:
        """A plain write between batches."""
        channel = self.channels[where]
        channel.log.seq += 1
        channel.rows[PUT] = Row(PUT, value, Seq(channel.log.seq))

    # --- readers ----------------------------------------------------------------------------------

    @rule(lags=st.tuples(*[st.integers(0, 3)] * CHANNELS))
    def snapshot(self, lags: tuple[int, ...]) -> None:
        """I6, I7: one round over replicas that are behind, the late ones read again."""
        replies = [
            kept[max(0, len(kept) - 1 - lag)] for kept, lag in zip(self.versions, lags, strict=True)
        ]
        n, vector = max([(reply[0], reply[1]) for reply in replies] + [self.session])
        assert vector == self._vector(n)
        for partition, kept in enumerate(self.versions):
            assert replies[partition][0] <= vector[partition], "no reply lies above the vector"
            found = [table for m, _, table in kept if m == vector[partition]]
            if not found:
                return  # the channel has not applied it yet: the reader waits
            assert found[0] == folded(self.commits, n, partition)
        assert n >= self.session[0]
        assert all(new >= old for new, old in zip(vector, self.session[1], strict=True))
        self.session = (n, vector)

    # --- promises ---------------------------------------------------------------------------------

    @invariant()
    def decided_rows_are_pinned(self) -> None:
        """I1: what a commit lists is in the channel until the channel has applied it."""
        for (n, partition), batch in self.pushes.items():
            channel = self.channels[partition]
            if n > channel.head.n:
                listed = [
                    ref
                    for ref in channel.refs(batch.writer, batch.attempt)
                    if ref.attempt == batch.attempt
                    and (ref.partition_id, ref.task_attempt_id) in batch.winners
                ]
                assert part_of(partition, listed) == batch.part

    @invariant()
    def batches_of_a_writer_rise(self) -> None:
        """I2: each at most once, in the order of commits, as long as no operator steps in."""
        newest: dict[tuple[str, int], int] = {}
        for made in self.commits.values():
            writer = (made.writer, made.generation)
            assert made.batch > newest.get(writer, -1)
            newest[writer] = made.batch

    @invariant()
    def floors_never_fall(self) -> None:
        """I4, whatever else happens."""
        for (writer, where), before in self.lowest.items():
            now = floor_for(writer, where, self.coordinator.state)
            assert now >= before
            self.lowest[writer, where] = now

    def teardown(self) -> None:
        """L1: without drivers everything decided arrives, and nothing staged stays."""
        if not hasattr(self, "tickets"):
            return
        for ticket in self.tickets:
            self.coordinator.step(Close(ticket.writer, ticket.attempt))
        for n, partition in sorted(self.pushes):
            if n > self.channels[partition].head.n:
                self._push(n, partition)
        everything = tuple((c, channel.head.n) for c, channel in enumerate(self.channels))
        self.coordinator.step(Trim(everything))
        assert outbox(self.coordinator.state) == []
        for where, channel in enumerate(self.channels):
            for writer in WRITERS:
                channel.drop(writer, floor_for(writer, where, self.coordinator.state))
            assert channel.all_chunks() == []

    # --- the truth --------------------------------------------------------------------------------

    def _vector(self, n: int) -> tuple[int, ...]:
        return tuple(
            max((m for m, made in self.commits.items() if m <= n and c in made.touched), default=0)
            for c in range(CHANNELS)
        )


TestBatchesKeepI1ToI7 = pytest.mark.slow(BatchesMachine.TestCase)
