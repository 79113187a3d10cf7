"""What the engine needs from the outside, and who promises what.

Every port is called from one thread (the node's loop, or the simulator). Ports never block on a
disk or a socket: they enqueue, and completion comes back through the NodeRunner's ``on_…`` methods.
The exceptions are reads, which are short. Any failure of a log or table operation is a StorageError
and stops the node (S0.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from raftstore.messages import ElectionMessage, Hole, Message, Record
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    History,
    LineageEntry,
    NodeId,
    Role,
    Seq,
    Term,
)


@dataclass(frozen=True, slots=True)
class RecoveredChannel:
    """What the log holds for a channel when it is opened.

    ``shortfall`` is (term, seq) of the mark (S0.3) when the log is shorter than what was
    acknowledged: the replica is *recovering*. ``hole``: the first one behind ``last_seq``.
    """

    channel: ChannelId
    term: Term
    voted_for: NodeId | None
    lineage: tuple[LineageEntry, ...]
    last_seq: Seq
    shortfall: History | None = None
    hole: Hole | None = None


class MessageLog(Protocol):
    """The node's replicated log: every channel's records, terms and votes, one fsync for all.

    Writes are buffered in call order and numbered; ``flush`` makes them durable in that order, so
    a crash leaves a prefix. Nothing written may be *revealed* before it is durable (S0.5); the
    engine keeps its outbox behind the numbers returned here.
    """

    def channels(self) -> tuple[ChannelId, ...]:
        """Channels the log knows, in a stable order."""

    def open_channel(self, channel: ChannelId) -> RecoveredChannel:
        """What is known of the channel; an empty state for a new one."""

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records contiguous with the channel's end; return the operation number."""

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer the removal of records with base_seq >= from_seq; return the operation number."""

    def fill(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records proven to be those that the channel lost; return the operation number."""

    def give_up(self, channel: ChannelId) -> int:
        """Buffer that what is behind the hole is forgotten; return the operation number."""

    def refill(self, channel: ChannelId, hole: Hole, *, bytes_max: int) -> list[Record]:
        """Records of another replica's hole, if this log is proven to hold the same (S2.4)."""

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """Buffer the term and vote; return the operation number."""

    def drop_channel(self, channel: ChannelId) -> int:
        """Buffer the removal of a dropped table's channel; its id is refused for ever after."""

    def last_operation(self) -> int:
        """Number of the newest buffered operation (0: none yet)."""

    def durable_operation(self) -> int:
        """Number of the newest durable operation."""

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Records from the one containing ``from_seq`` to ``to_seq``, verified by CRC; buffered
        ones too, one if any, then at most ``bytes_max`` of payload."""

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All records in order, for the start; payloads may be b"" but of CONFIG and BATCH_MARK."""

    def unsynced_bytes(self) -> int:
        """Bytes of memory in entries that are not durable yet."""

    def size_bytes(self) -> int:
        """Bytes on disk; shown in status (the log only grows until retention exists)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stored row: ``seq`` is the last_seq of the record that wrote it."""

    key: bytes
    value: bytes
    seq: Seq

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value)


class Page(NamedTuple):
    """Rows in key order, whether there are more behind them, and the applied seq they are of."""

    rows: list[Row]
    more: bool
    applied_seq: Seq


class SealedPage(NamedTuple):
    """The same as they are stored and sent: (key, sealed value, seq)."""

    rows: list[tuple[bytes, bytes, Seq]]
    more: bool


class FoundRows(NamedTuple):
    """The rows of some keys as they are stored and sent, in the order of the keys."""

    values: list[bytes | None]
    """Sealed, each seal checked; None: there is no such row."""
    seqs: list[Seq]
    """Of the records that wrote them; 0 where there is no row."""
    size: int
    """Bytes of keys and values of the rows, without their seals."""
    applied_seq: Seq


class Counted(NamedTuple):
    """Rows found, and the key to go on from; None: the whole range was counted."""

    rows: int
    resume: bytes | None


class TableSnapshot(Protocol):
    """One applied state of a channel, which stays as it is while records go on being applied.

    Made and closed on the node's thread, read on any, by one reader at a time or several. It keeps
    old files of the store until it is closed, at the latest with the store.
    """

    applied_seq: Seq

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """As ``TableStore.scan``, of this state."""

    def sealed_page(self, start: bytes, stop: bytes, limit: int, bytes_max: int) -> SealedPage:
        """The same page, each seal checked and left on: many rows cost half of it so."""

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them; values are not looked at."""

    def close(self) -> None:
        """Nobody reads it any more; closing it again does nothing."""


Conflicts = tuple[tuple[Seq, Seq], ...]
"""(seq of a conditional record that did not hold, seq of the row there is)."""
Answers = tuple[tuple[Seq, bytes], ...]
"""(seq of a record, what the machine answers whoever asked for it)."""

ReadDone = Callable[[int], None]
"""What a read away from the node's thread leads to there; it is given the time in ms."""


class Part(NamedTuple):
    """A piece of a record that is applied in several: a BATCH_APPLY and the rows it names.

    Its pieces are handed over in order, nothing else of the channel between them. The applied seq
    moves with the last one; until then reads see the state before the first. A record applied again
    after a crash is cut into the same rows in the same order, if maybe elsewhere.
    """

    record: Record
    first: bool
    last: bool
    chunks: Sequence[tuple[int, bytes | memoryview]] = ()
    """(mode, payload of rows as in a ROWS record), in the order in which they count."""
    first_chunk: int = 0
    """Number of the first of them in the whole batch."""
    truncate_from: bytes | None = None
    """Rows from this key on are removed, a bounded number of them; then such a piece has no
    chunks and is not the last, and ``TableStore.truncated`` tells where the next goes on."""
    state_writes: StateWrites = ()
    """With the last piece."""
    version: int = -1
    """With the first piece: the label under which the state before it is kept for readers that ask
    for it (``TableStore.snapshot``); -1: it is not kept."""


class TableStore(Protocol):
    """Applied state of every channel of a node. Reads see only applied (hence committed) records.

    ``apply`` is asynchronous: records are applied in seq order, exactly once, with the applied seq
    in the same atomic batch (S10); completion comes as ``NodeRunner.on_applied``, once per call.
    So does ``apply_part``, whose records are too large for one batch: all reads are of the state
    before the first piece until the last one is in, and if a crash comes between them, the channel
    serves nothing until they were all applied again (``unserved_until``).
    """

    def open_channel(self, channel: ChannelId, machine: StateMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""

    def apply_part(self, channel: ChannelId, part: Part) -> None:
        """Queue a piece of a committed record.

        The first one comes when all that was queued for the channel before is applied, the next
        after one that truncates when that one is.
        """

    def truncated(self, channel: ChannelId) -> bytes | None:
        """Where the truncating piece applied last ended; None: no row is left."""

    def unserved_until(self, channel: ChannelId) -> Seq:
        """Seq to be applied before anything is answered from this channel; 0: all may be.

        A crash left it with some pieces of that record and not the others.
        """

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows, of the applied state."""

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state in [start, stop), in key order."""

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""

    def get_many(self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int) -> FoundRows:
        """Several rows of one applied state, in the order of the keys, and the applied seq of it.

        Ends with the row that takes keys and values beyond ``bytes_max`` bytes, if one does.
        """

    def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int | None = None,
    ) -> Page:
        """Rows of [start, stop) in key order (b"" = open), all of one applied state.

        At most ``limit`` rows and ``bytes_max`` bytes of keys and values (None: no such bound),
        but a first row whatever its size. No more than one row beyond the page is read.
        """

    def snapshot(self, channel: ChannelId) -> TableSnapshot:
        """The applied state as it is now."""

    def snapshot_at(self, channel: ChannelId, version: int) -> TableSnapshot | None:
        """The kept state with this label (``Part.version``); None: it is not kept."""

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the kept states, oldest first; the one being replaced is not among them."""

    def release_version(self, channel: ChannelId, label: int) -> None:
        """Keep the state no longer; who holds a snapshot of it goes on reading."""

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Call ``read`` behind the others before it, away from the node's thread.

        What it returns comes back as ``NodeRunner.on_read``, unless the store is closed before. A
        read that raises stops the node (S0.4).
        """

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at."""

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same without blocking the node: ``done`` is called later on the node's thread."""

    def drop(self, channel: ChannelId) -> None:
        """Delete all rows of a dropped table's channel."""

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""


class Transport(Protocol):
    """Messages to other nodes and to clients: fire and forget, bounded, may lose (S12)."""

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk connection: replication. Dropped when the peer is away or its queue is full."""

    def send_control(self, to: NodeId, message: Message) -> None:
        """Control connection: elections and node-level messages; never behind bulk traffic."""

    def reply(self, client: int, message: Message) -> None:
        """Answer a client connection handle; dropped when it is gone."""

    def end_client(self, client: int, reason: str) -> None:
        """End a client's connection after what was sent to it."""


class IdSource(Protocol):
    """Randomness, injected so that simulations repeat."""

    def uuid(self) -> bytes:
        """16 random bytes."""

    def below(self, limit: int) -> int:
        """A random integer in [0, limit)."""


class ElectionHost(Protocol):
    """What one channel's elector needs from its replica and node. Implemented by the engine."""

    me: NodeId

    def history(self) -> History:
        """ACCEPTED history: everything that may still be acknowledged (S1.2)."""

    def config(self) -> ChannelConfig:
        """The newest configuration in the log, else the creation configuration."""

    def config_committed(self) -> bool:
        """False while the newest configuration is not known to be committed."""

    def may_vote(self) -> bool:
        """False while recovering (S0.3): neither vote, nor pre-vote, nor candidacy."""

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Write term and vote into the node's log. Raises StorageError: the node stops."""

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Send once everything persisted before this call is durable (S0.5)."""

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Called after every change of role, leader or term; the engine queues a RoleChanged."""

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """When the node of this leader was last known alive *and* claiming this channel and term
        (node heartbeat with a matching digest, or any of its channel messages); None = never, or
        its connection is known to be dead."""

    def backoff_ms(self) -> int:
        """Random delay after a failed round (default range 150-450 ms)."""


class Elector(Protocol):
    """One channel's elector on one node: owns term, vote and role, and nothing else (S1)."""

    @property
    def term(self) -> Term:
        """Current term (already handed to persist_vote)."""

    @property
    def voted_for(self) -> NodeId | None:
        """Vote in the current term."""

    @property
    def role(self) -> Role:
        """Role now."""

    @property
    def leader(self) -> NodeId | None:
        """Leader of the current term, as far as known."""

    @property
    def is_standing(self) -> bool:
        """Whether it asks for votes, or whether others would vote, and awaits answers."""

    def suspect(self, now_ms: int, delay_ms: int) -> None:
        """The leader is suspected dead or unknown: stand after ``delay_ms`` unless one is heard."""

    def on_message(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """Process an election message."""

    def on_leader(self, leader: NodeId, term: Term, now_ms: int) -> bool:
        """A message of an elected leader arrived. False: stale, tell the sender (StaleTerm)."""

    def observe_term(self, term: Term) -> None:
        """Adopt a higher term without voting."""

    def poll(self, now_ms: int) -> None:
        """Timers; call at or after next_deadline_ms."""

    def next_deadline_ms(self) -> int | None:
        """When poll must be called; None while nothing is armed (steady state)."""

    def step_down(self, reason: str) -> None:
        """Leader: keep the term, drop the role, tell the replicas (StepDownNotice)."""

    def transfer(self, to: NodeId) -> None:
        """Leader: send TransferNow (the engine has checked S9's conditions)."""

    def evict(self) -> bool:
        """Free the pysyncobj instance; True if there was one to free. Never changes behaviour."""


ElectorFactory = Callable[[ElectionHost, ChannelId, Term, NodeId | None], Elector]
"""Build an elector from the durable (term, vote) of a channel."""


StateWrites = Sequence[tuple[bytes, bytes | None]]
"""Keys and values of a channel's state beside its rows (None deletes), in the order of writing."""


class StateReader(Protocol):
    """A channel's state beside its rows, as it was before the record that is being applied.

    Keys begin with the byte 02 (staged rows) or 03 (coordinator): ``machines.state_keys``.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""


class StateMachine(Protocol):
    """Deterministic state behind a channel, over the rows of its table store (S10).

    ``apply`` sees the state through ``read`` and returns what to write; it must not use clocks,
    randomness, or anything but its arguments.
    """

    def apply(self, record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Compute the writes of one committed record."""


@runtime_checkable
class BatchMachine(StateMachine, Protocol):
    """A state machine that also takes part in micro-batches; others are never sent any."""

    def apply_state(
        self, record: Record, read: Callable[[bytes], Row | None], state: StateReader
    ) -> ApplyResult:
        """Compute the writes of a committed STAGED or TXN record."""

    def rows_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        read: Callable[[bytes], Row | None],
        state_get: Callable[[bytes], bytes | None],
    ) -> Sequence[tuple[bytes, bytes | None]]:
        """The writes of staged rows that become visible: of the record ending at a seq, the chunk
        of this number.

        A row that has this seq already is the batch's own, written before a crash or by a piece
        before: computing it again must lead to the same. What ``outcomes_of`` gave of the chunk is
        in the state by then.
        """

    def outcomes_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        written: Sequence[tuple[bytes, bytes | None]],
        state_get: Callable[[bytes], bytes | None],
    ) -> StateWrites:
        """What is written down of a chunk for readers of the changes: of the record ending at a
        seq, the chunk of this number.

        ``written`` is what ``rows_of`` made of it. It goes into the state before any of these rows.
        """


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """``writes``: key -> sealed value (``raftstore.rows.sealing``; None deletes), last one per key
    wins. ``conflict_seq``: not None when a condition did not hold; it is the seq of the key's
    present row, 0 if absent. ``state_writes`` go into the state beside the rows, in the same
    atomic batch; ``answer`` is what the leader tells whoever had the record made."""

    writes: Iterable[tuple[bytes, bytes | None]]
    conflict_seq: Seq | None = None
    state_writes: StateWrites = ()
    answer: bytes | None = None
