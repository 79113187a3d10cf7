"""The sending side: snapshots of tables of this node, read a chunk at a time (S6.6).

Any replica that is whole gives its table, leader or not: what is applied was committed. So one that
has the same table gives the rest of what another began to send, or of what a receiver has of an
earlier life: it compares the first pairs, as its own snapshot of that position has them.

A receiver that knows how gets the files of the table (``ports.table_files``): nobody reads rows
here then. Each receiver has a snapshot of its own, which stays as it is while records go on being
applied, and asks for its chunks; the sender holds nothing of them but where each begins. A receiver
that asks for nothing for a while is forgotten, and with it the snapshot: old files are kept for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.snapshots.chunks import FileChunks, Made, PairChunks
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.policy.levels import TABLE_FILES_LEVEL, WITNESS_BASE_LEVEL
from raftstore.ports.log import BASE_BYTES_MAX, Base
from raftstore.ports.table_copy import ResumePoint
from raftstore.ports.table_files import TableFiles
from raftstore.ports.tables import Barrier, ReadDone, TableSnapshot
from raftstore.protocol.replica_snapshots import (
    CHUNKS_AHEAD,
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotChunk,
    AskSnapshotRest,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
    TableFilesRefused,
)
from raftstore.types import ChannelId, History, NodeId, Seq, Term, node_name

CHUNKS_ASKED_MAX: Final = 4
"""Chunks of one receiver that wait to be read or to leave; it asks for two at a time."""
IDS_OF_A_LIFE: Final = 2**32
"""A node asks fewer questions than that before it is started again."""
FULL: Final = "{} snapshots are served already; ask again later"
_SENDING: Final = 0
"""The key of the moment at which the next chunk may leave."""


def is_older(request_id: int, than: int) -> bool:
    """Whether one life of a node asked the first question before the second.

    Its ids go up one by one from a number drawn at its start, so that of two lives none is older.
    """
    return 0 < than - request_id < IDS_OF_A_LIFE


@dataclass(slots=True, eq=False)
class Session:
    """One receiver's snapshot."""

    number: int
    request_id: int
    to: NodeId
    channel: ChannelId
    chunks: PairChunks | FileChunks
    base_max: Seq
    wanted: deque[int] = field(default_factory=deque)
    under_way: set[int] = field(default_factory=set)
    """Numbers of chunks that were asked for and have not left."""
    rest: ResumePoint | None = None
    """What the receiver has already, while it is being compared."""
    is_reading: bool = False
    is_over: bool = False
    is_handed_on: bool = False
    """Another session reads its snapshot."""


class SnapshotSender:
    """All snapshots that this node serves."""

    def __init__(
        self, parts: SnapshotParts, is_damaged: Callable[[ChannelId], bool] = lambda _: False
    ) -> None:
        """``is_damaged``: whether a channel's table here must not be given to anybody."""
        self._is_damaged = is_damaged
        self._log = parts.log
        self._tables = parts.tables
        self._channels = parts.channels
        self._nodes_at_level = parts.nodes_at_level
        self._settings = parts.settings
        self._send = parts.send
        self._tell = parts.tell
        self._throttle = parts.throttle
        self._next_id = parts.first_id
        self._opening: dict[tuple[NodeId, ChannelId], AskReplicaSnapshot] = {}
        self.sessions: dict[int, Session] = {}
        self._leaving: deque[tuple[Session, Made]] = deque()
        """Chunks that wait for their share of the second."""
        self._free_ms = 0.0
        """When the next chunk may leave."""
        self.idle: Deadlines[int] = Deadlines()
        self.sending: Deadlines[int] = Deadlines()
        self.sent_bytes = self.sent_chunks = 0
        self.on_refused: Callable[[ChannelRunner, int], None] = lambda _runner, _now_ms: None
        """Called when a receiver could not read the files of a table (now_ms)."""

    @property
    def files_bytes(self) -> int:
        """Bytes of files that are kept for receivers, whether the tables need them still or not."""
        chunks = (session.chunks for session in self.sessions.values())
        return sum(each.bytes for each in chunks if isinstance(each, FileChunks))

    def pinned(self, channel: ChannelId) -> dict[NodeId, Seq]:
        """For each receiver of the channel, behind which seq its log needs records."""
        return {
            each.to: each.base_max for each in self.sessions.values() if each.channel == channel
        }

    # --- opening ----------------------------------------------------------------------------------

    def on_ask(self, sender: NodeId, request: AskReplicaSnapshot) -> None:
        """Another replica needs a table."""
        session = self._session_of(sender, request.channel)
        if session is not None:
            if session.request_id == request.request_id:
                self._offer(session)  # the answer was lost
                return
            if is_older(request.request_id, session.request_id):
                return  # it asked again since, and this came late
            self._end(session)
        reason = self._table_refusal(request.channel)
        place = sender, request.channel
        opening = self._opening.get(place)
        if opening is not None and is_older(request.request_id, opening.request_id):
            return
        if reason is None and opening is None and self._is_full():
            reason = FULL.format(self._settings.serve_max)
        if reason is not None:
            self._refuse(sender, request, reason)
            return
        self._opening[place] = request
        if opening is not None:
            return
        knows_files = sender in self._nodes_at_level(TABLE_FILES_LEVEL)
        if request.in_files and knows_files and not request.without_rows:
            self._tables.start_files(
                request.channel, partial(self._open_files, sender, request.channel)
            )
        else:
            done = partial(self._open, sender, request.channel)
            self._tables.start_barrier(request.channel, done)

    def _is_full(self) -> bool:
        return len(self.sessions) + len(self._opening) >= self._settings.serve_max

    def _refusal(self, channel: ChannelId) -> str | None:
        runner = self._channels.get(channel)
        if runner is None:
            return "the channel is not here"
        # Whether it leads, or has committed in its term, is no matter, for what is applied was
        # committed; and it may be that nobody can lead before this very receiver is whole again.
        is_lacking = runner.core.is_recovering or runner.ignores_peers or self._is_damaged(channel)
        if is_lacking or runner.unserved_until or runner.stopped_reason is not None:
            return "this replica does not serve the channel now"
        return None

    def _table_refusal(self, channel: ChannelId) -> str | None:
        refusal, runner = self._refusal(channel), self._channels.get(channel)
        if refusal is None and runner is not None and not runner.has_rows:
            return "this replica is a witness and has no rows"  # W7
        return refusal

    def _why_no_base_for(self, witness: NodeId, channel: ChannelId, base: Base) -> str | None:
        """W6: a witness that skips records holds them no longer, or never will; so there must be
        enough voters with rows that do. Only a leader knows, also that a channel's only witness
        never will hold what these voters committed without it; what it held it judges itself."""
        core = self._channels[channel].core
        if not core.config().is_witness(witness) or core.rows_seq() >= base.seq:
            return None
        judges_itself = witness in self._nodes_at_level(WITNESS_BASE_LEVEL)
        if judges_itself and core.is_only_witness(witness):
            return None
        return (
            f"too few voters with rows are known here to hold what is below seq {base.seq}; a "
            "witness may skip it when they do"
        )

    def _rows_seq_for(self, witness: NodeId, channel: ChannelId) -> Seq:
        """W6: spares a witness the reports of voters that acknowledged and are down since."""
        core = self._channels[channel].core
        return core.rows_seq() if core.config().is_witness(witness) else Seq(0)

    def _session_of(self, to: NodeId, channel: ChannelId) -> Session | None:
        found = (one for one in self.sessions.values() if (one.to, one.channel) == (to, channel))
        return next(found, None)

    def _open(self, sender: NodeId, channel: ChannelId, barrier: Barrier, now_ms: int) -> None:
        """The barrier is taken: offer the table in pairs."""
        self._open_files(sender, channel, None, barrier, now_ms)

    def _open_files(
        self,
        sender: NodeId,
        channel: ChannelId,
        files: TableFiles | None,
        barrier: Barrier,
        now_ms: int,
    ) -> None:
        """The same, in files if they could be had, and are asked for still."""
        request = self._opening.pop((sender, channel))
        reason = self._table_refusal(channel)
        if files is not None and (reason is not None or not request.in_files):
            self._close_files(channel, files)
            files = None
        if reason is None:
            seq = self._tables.applied_seq(channel) if files is None else files.applied.seq
            if seq <= request.have_seq:
                reason = f"nothing above seq {request.have_seq} is applied here"
        if reason is not None:
            self._refuse(sender, request, reason)
            if files is not None:
                self._close_files(channel, files)
            return
        # What this state may have beside it, any later one may: the snapshot is later.
        chunks: PairChunks | FileChunks
        if files is None:
            chunks = PairChunks(channel, self._tables.snapshot(channel))
            chunks.is_without_rows = request.without_rows
        else:
            chunks = FileChunks(
                channel, files, request.held, has_quick_digests=request.quick_digests
            )
        session = self._begin(sender, request, chunks, barrier.base_max)
        self._touch(session, now_ms)
        self._offer(session)

    def _close_files(self, channel: ChannelId, files: TableFiles) -> None:
        """Links to many files are removed away from the node's thread."""

        def close() -> ReadDone:
            files.close()
            return lambda _now_ms: None

        self._tables.start_copy_step(channel, close)

    def on_ask_rest(self, sender: NodeId, request: AskSnapshotRest, now_ms: int) -> None:
        """Another replica has the first pairs of a table, and needs the others."""
        channel, position = request.channel, History(request.term, request.seq)
        session = self._session_of(sender, channel)
        if session is not None:
            if session.request_id == request.request_id:
                self._offer(session)  # the answer was lost, or is not known yet
                return
            if is_older(request.request_id, session.request_id):
                return
        reason = self._table_refusal(channel)
        state = None
        if session is not None:
            state = self._hand_on(session, position)
        if reason is None and state is None:
            reason = self._why_not_at(channel, position)
        if reason is not None:
            self._refuse(sender, request, reason)
            return
        if state is None:
            state = self._tables.snapshot(channel), self._tables.base_max(channel)
        session = self._begin(sender, request, PairChunks(channel, state[0]), state[1])
        session.rest = ResumePoint(request.after, request.pairs, request.digest)
        self._touch(session, now_ms)
        self._offer(session)
        self._compare(session)

    def _hand_on(self, session: Session, position: History) -> tuple[TableSnapshot, Seq] | None:
        """End a session, and keep its snapshot if it is of this position: the table may have moved
        on, but what was begun with it is what is needed."""
        chunks = session.chunks
        is_given = chunks.applied == position and not chunks.is_without_rows
        is_refused = self._refusal(session.channel) is not None
        if is_refused or not is_given or not isinstance(chunks, PairChunks):
            self._end(session)
            return None
        session.is_handed_on = True
        self._forget(session)
        return chunks.snapshot, session.base_max

    def _why_not_at(self, channel: ChannelId, position: History) -> str | None:
        here = self._tables.applied_history(channel)
        if here != position:
            return f"the table here is at {tuple(here)}, not at {tuple(position)}"
        return FULL.format(self._settings.serve_max) if self._is_full() else None

    def _compare(self, session: Session) -> None:
        """Read on through what the receiver has."""
        rest, chunks = session.rest, session.chunks
        assert rest is not None, "nothing is to be compared"
        assert isinstance(chunks, PairChunks), "files are compared one by one"
        session.is_reading = True

        def read() -> ReadDone:
            page = chunks.snapshot.copy_page(chunks.starts[0], self._settings.chunk_bytes_max)
            same = [pair for pair in page.pairs if pair[0] <= rest.after]
            chunks.digest.add(same)
            is_done = len(same) < len(page.pairs) or not page.more
            after = same[-1][0] if same else b""
            return partial(self._compared, session, chunks, rest, after, is_done)

        self._tables.start_copy_step(session.channel, read)

    def _compared(
        self,
        session: Session,
        chunks: PairChunks,
        rest: ResumePoint,
        after: bytes,
        is_done: bool,  # noqa: FBT001 - what the other thread found
        now_ms: int,
    ) -> None:
        session.is_reading = False
        if session.is_over:
            self._close(session)
            return
        self._touch(session, now_ms)
        chunks.starts[0] = after or chunks.starts[0]
        if not is_done:
            self._compare(session)
            return
        digest = chunks.digest
        if ResumePoint(chunks.starts[0] or b"", digest.pairs, digest.digest()) == rest:
            session.rest = None
            self._offer(session)
            return
        self._end(session)
        request = AskReplicaSnapshot(session.channel, session.request_id, Seq(0), Seq(0))
        self._refuse(session.to, request, f"the table here begins otherwise at {rest.pairs} pairs")

    def _begin(
        self,
        sender: NodeId,
        request: AskReplicaSnapshot | AskSnapshotRest,
        chunks: PairChunks | FileChunks,
        base_max: Seq,
    ) -> Session:
        self._next_id += 1
        number, channel = self._next_id, request.channel
        session = Session(number, request.request_id, sender, channel, chunks, base_max)
        self.sessions[number] = session
        return session

    def _offer(self, session: Session) -> None:
        chunks = session.chunks
        position, size = chunks.applied, 0
        if isinstance(chunks, FileChunks):
            size = chunks.bytes
        elif not chunks.is_without_rows:
            size = self._tables.table_bytes(session.channel)
        self._send(
            session.to,
            ReplicaSnapshotOffer(
                session.channel,
                session.request_id,
                session.number if session.rest is None else 0,
                position.term,
                position.seq,
                session.base_max,
                size,
                files=chunks.files,
                quick_digests=chunks.has_quick_digests,
            ),
        )

    def _refuse(
        self, sender: NodeId, request: AskReplicaSnapshot | AskSnapshotRest, reason: str
    ) -> None:
        nothing = Term(0), Seq(0), Seq(0)
        offer = ReplicaSnapshotOffer(request.channel, request.request_id, 0, *nothing, 0, reason)
        self._send(sender, offer)

    # --- chunks -----------------------------------------------------------------------------------

    def on_ask_chunk(self, sender: NodeId, request: AskSnapshotChunk, now_ms: int) -> None:
        """A receiver goes on, or lost an answer."""
        session = self.sessions.get(request.snapshot_id)
        is_his = session is not None and (session.to, session.channel) == (sender, request.channel)
        if session is None or not is_his or session.rest is not None:
            gone = "the snapshot is not kept any more"
            number = request.snapshot_id, request.number
            self._send(sender, SnapshotChunk(request.channel, *number, (), b"", reason=gone))
            return
        if 0 <= session.chunks.last < request.number - CHUNKS_AHEAD:
            self._end(session)  # the receiver has all: nobody asks so far ahead
            return
        self._touch(session, now_ms)
        # A receiver repeats what was not answered in time; where chunks leave slowly, copies of
        # them would pile up in front of what it lacks.
        under_way = session.under_way
        if request.number not in under_way and len(under_way) < CHUNKS_ASKED_MAX:
            under_way.add(request.number)
            session.wanted.append(request.number)
            self._read_next(session)

    def _read_next(self, session: Session) -> None:
        if session.is_reading or not session.wanted:
            return
        number = session.wanted.popleft()
        chunks = session.chunks
        if number >= len(chunks.starts) or 0 <= chunks.last < number:
            # The one before was never asked for, or the last one was read: no such chunk.
            session.under_way.discard(number)
            self._read_next(session)
            return
        session.is_reading = True

        def read() -> ReadDone:
            made = chunks.read(session.number, number, self._settings.chunk_bytes_max)
            return partial(self._read_done, session, made)

        self._tables.start_copy_step(session.channel, read)

    def _read_done(self, session: Session, made: Made, now_ms: int) -> None:
        session.is_reading = False
        if session.is_over:
            self._close(session)
            return
        session.chunks.took(made)
        self._leaving.append((session, made))
        self._send_due(now_ms)
        self._read_next(session)

    def on_files_refused(self, sender: NodeId, refused: TableFilesRefused, now_ms: int) -> None:
        """S13: what was sent here cannot be read there: have the table here looked at."""
        session = self.sessions.get(refused.snapshot_id)
        if session is None or (session.to, session.channel) != (sender, refused.channel):
            return
        self._end(session)
        runner = self._channels.get(refused.channel)
        if runner is not None:
            self._tell(
                "replica_snapshot_refused",
                channel=runner.name,
                peer=node_name(sender),
                reason=refused.reason,
            )
            self.on_refused(runner, now_ms)

    def _send_due(self, now_ms: int) -> None:
        """Let chunks leave, no more bytes in a second than the settings allow."""
        while self._leaving and self._free_ms <= now_ms:
            session, made = self._leaving.popleft()
            if session.is_over:
                continue
            session.under_way.discard(made.message.number)
            self._send(session.to, made.message)
            self.sent_bytes += made.size
            self.sent_chunks += 1
            took_ms = made.size * 1_000 / self.second_bytes()
            self._free_ms = max(self._free_ms, float(now_ms)) + took_ms
        if self._leaving:
            self.sending.push(_SENDING, int(self._free_ms) + 1)

    def second_bytes(self) -> int:
        """Bytes that may leave in a second: an operator may throttle copies at any time."""
        most = self._settings.second_bytes_max
        return min(most, self._throttle() or most)

    # --- bases ------------------------------------------------------------------------------------

    def on_ask_base(self, sender: NodeId, request: AskBase) -> None:
        """Another replica's log ends below the base of this one."""
        reason = self._refusal(request.channel)
        base = self._log.base(request.channel)
        if reason is None and base.seq > request.base_max:
            reason = f"the log here begins behind seq {base.seq}, above {request.base_max}"
        if reason is None:
            reason = self._why_no_base_for(sender, request.channel, base)
        if reason is None and len(base.folds) > BASE_BYTES_MAX:
            size = len(base.folds)
            reason = f"the base here takes {size} bytes, messages hold {BASE_BYTES_MAX}"
        at = (Term(0), Seq(0)) if reason else (base.term, base.seq)
        offer = BaseOffer(
            request.channel,
            request.request_id,
            *at,
            base.chain_hash,
            b"" if reason else base.folds,
            reason or "",
            Seq(0) if reason else self._rows_seq_for(sender, request.channel),
        )
        self._send(sender, offer)

    # --- ending -----------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Send what may leave, and forget receivers that are gone."""
        for _ in self.sending.due(now_ms):
            self._send_due(now_ms)
        for number in self.idle.due(now_ms):
            self._end(self.sessions[number])

    def channel_closed(self, channel: ChannelId) -> None:
        """Its table was dropped, or it is opened anew."""
        for session in tuple(self.sessions.values()):
            if session.channel == channel:
                self._end(session)

    def _touch(self, session: Session, now_ms: int) -> None:
        self.idle.push(session.number, now_ms + self._settings.session_ms)

    def _forget(self, session: Session) -> None:
        self.idle.cancel(session.number)
        del self.sessions[session.number]
        session.is_over = True

    def _end(self, session: Session) -> None:
        self._forget(session)
        if not session.is_reading:
            self._close(session)

    def _close(self, session: Session) -> None:
        if isinstance(session.chunks, FileChunks):
            self._close_files(session.channel, session.chunks.kept)
        elif not session.is_handed_on:
            session.chunks.snapshot.close()
