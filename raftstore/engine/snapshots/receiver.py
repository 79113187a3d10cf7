"""The receiving side: a table or a base for each channel that its leader's log helps no more.

A table is built aside, chunk by chunk, read back as a whole, and only then switched to; a base is
taken in one message. At the end of either the channel is opened anew from what log and tables hold
of it then, as after a restart, and catches up like any other replica. Whatever goes wrong before
that leaves both as they were, and is tried again.

A copy whose sender goes away, or that an earlier life of this node began, is gone on with: what is
there is read back, and each replica is asked for the rest that has a table of the same position and
with the same first pairs. If none has, it is begun anew. Tables are asked of followers first, so
that the leader is spared, but evenly of all nodes; a base comes from the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, cast

from raftstore.config import MIB
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.snapshots.attempts import Attempts
from raftstore.engine.snapshots.copy_pauses import CopyPauses, say_in_vain
from raftstore.engine.snapshots.decisions import (
    OVERTAKEN,
    Lacking,
    is_overtaken,
    retry_pause_ms,
    takes_base,
    why_no_base,
    why_no_table,
)
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.engine.snapshots.places import Places
from raftstore.engine.snapshots.taking import ChunkTaking
from raftstore.engine.snapshots.transfer import Stage, Transfer
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.ports.log import Base
from raftstore.ports.table_copy import TableCopy
from raftstore.ports.table_files import FilesCopy, HeldFile
from raftstore.ports.tables import Barrier, ReadDone
from raftstore.protocol.replica_snapshots import (
    CHUNKS_AHEAD,
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotChunk,
    AskSnapshotRest,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.types import ChannelId, History, NodeId, Role, Seq, node_name

VERIFY_BYTES: Final = 2 * MIB
"""Bytes read back in one step, in which the thread may rest. Between two it does other steps, and
waits for the main loop, which on a busy machine takes longer than the step."""


class SnapshotReceiver:
    """All transfers to this node."""

    def __init__(self, parts: SnapshotParts) -> None:
        self._parts = parts
        self._log = parts.log
        self._tables = parts.tables
        self._channels = parts.channels
        self._settings = parts.settings
        self._send = parts.send
        self._tell = parts.tell
        self._next_id = parts.first_id
        self.transfers: dict[ChannelId, Transfer] = {}
        self._begun: dict[ChannelId, TableCopy] = {}
        """Copies that wait for somebody who sends the rest."""
        self._attempts = Attempts()
        self.deadlines: Deadlines[ChannelId] = Deadlines()
        """When something of a channel is to be asked for, again or at all."""
        self.places = Places(self.transfers, self.deadlines, self._settings)
        self._shortage = parts.shortage
        self.taking = ChunkTaking(parts, self.deadlines, self)
        self.pauses = CopyPauses(self._settings.retry_ms, self._settings.pause_ms_max)
        self._damaged: dict[ChannelId, None] = {}
        """Channels whose table is to be replaced although the log could build it again."""
        self.on_replaced: Callable[[ChannelRunner, int], None] = lambda _runner, _now_ms: None
        """Called when another replica's table is in the place of the one that was here (now_ms)."""

    # --- what is needed ---------------------------------------------------------------------------

    def needed(self, runner: ChannelRunner, now_ms: int) -> None:
        """The core said that a replica snapshot alone helps this channel."""
        if runner.channel not in self.transfers:
            self.deadlines.push(runner.channel, now_ms)

    def replace(self, runner: ChannelRunner, now_ms: int) -> None:
        """The table of this channel is damaged: take another one, whatever the log could do."""
        self._damaged[runner.channel] = None
        if runner.channel not in self.transfers and runner.channel not in self.deadlines:
            self.deadlines.push(runner.channel, now_ms)

    def hole_unfilled(self, runner: ChannelRunner, now_ms: int) -> None:
        """S0.3: the others trimmed what the log here lacks, so it was committed; a base stands for
        it where the table has come so far. A witness waits for a leader, who knows what of its
        records is needed (W6)."""
        channel = runner.channel
        if runner.has_rows:
            self._attempts.hole_unfilled(channel)
            if channel not in self.transfers and channel not in self.deadlines:
                self.deadlines.push(channel, now_ms)

    def channel_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """An earlier life of this node may have begun a copy; if it is not needed any more, it goes
        when the leader has had time to say so."""
        copy = self._tables.begun_copy(runner.channel)
        if copy is not None:
            self._begun[runner.channel] = copy
            self.deadlines.push(runner.channel, now_ms + self._settings.session_ms)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Its table was dropped, or it is opened anew."""
        channel = runner.channel
        self.deadlines.cancel(channel)
        self.places.leave(channel)
        self._attempts.closed(channel)
        self._damaged.pop(channel, None)
        transfer = self.transfers.pop(channel, None)
        self._abandon(self._begun.pop(channel, None))
        self._abandon(None if transfer is None else transfer.copy)

    def leader_changed(self, runner: ChannelRunner, now_ms: int) -> None:
        """S6.2: begin anew with the new leader, but for a table: that is of committed records, and
        who sends it need not lead."""
        transfer = self.transfers.get(runner.channel)
        if transfer is not None and transfer.stage in (Stage.LOOKING, Stage.ASKING):
            self.fail(transfer, "the leader changed", now_ms)

    def peer_lost(self, node: NodeId, now_ms: int) -> None:
        """The sender may be dead: another one is asked for the rest."""
        for transfer in tuple(self.transfers.values()):
            if transfer.source == node and transfer.awaits_source:
                self.fail(transfer, f"the connection to {node_name(node)} broke", now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Begin what is due, and repeat what got no answer."""
        for channel in self.deadlines.due(now_ms):
            transfer, runner = self.transfers.get(channel), self._channels.get(channel)
            if transfer is not None:
                self._repeat(transfer, now_ms)
            elif runner is not None:
                self.places.leave(channel)
                self._begin(runner, now_ms)

    def _leave(self, transfer: Transfer, now_ms: int) -> None:
        """A place is free, for which others may wait."""
        del self.transfers[transfer.runner.channel]
        self.places.wake(now_ms, for_base=transfer.is_for_base)

    def _begin(self, runner: ChannelRunner, now_ms: int) -> None:
        channel, core = runner.channel, runner.core
        is_damaged, is_unfilled = channel in self._damaged, self._attempts.is_unfilled(channel)
        if not (core.lacks_rows or core.trimmed_to or is_damaged or is_unfilled):
            self._not_needed(runner, now_ms)
            return
        if is_damaged and runner.elector.role is Role.LEADER:
            return  # reported again when another one leads
        sources = self._parts.sources(runner, anywhere=is_unfilled)
        for_base = self._is_base_enough(runner)
        if not sources or self.places.is_full(runner, now_ms, for_base=for_base):
            self.places.wait(channel, for_base=for_base)
            self.deadlines.push(channel, now_ms + self._settings.retry_ms)
            return
        pause_ms = 0 if for_base or channel in self._begun else self._pause_ms(runner, now_ms)
        if pause_ms:
            self.deadlines.push(channel, now_ms + pause_ms)
            return
        source = self._attempts.source(channel, sources, self.places.sending())
        self.transfers[channel] = transfer = Transfer(runner, source, for_base, started_ms=now_ms)
        self._await_disk(transfer, now_ms)
        self._tables.start_barrier(runner.channel, partial(self._on_barrier, transfer))

    def _is_base_enough(self, runner: ChannelRunner) -> bool:
        """Whether a base is what it asks for next, as far as can be said before the barrier."""
        channel, core = runner.channel, runner.core
        is_reached = 0 < core.trimmed_to - 1 <= self._tables.base_max(channel)
        lacks_rows = core.lacks_rows or channel in self._damaged
        return not lacks_rows and (is_reached or self._attempts.tries_base(channel))

    def _pause_ms(self, runner: ChannelRunner, now_ms: int) -> int:
        """How long a new copy waits: of those before it none brought this replica up to date."""
        pause_ms = self.pauses.left_ms(runner.channel, now_ms)
        if pause_ms:
            say_in_vain(self._parts, self.pauses, runner)
        return pause_ms

    def _not_needed(self, runner: ChannelRunner, now_ms: int) -> None:
        """The leader's log helps after all, if there is a leader who could have said otherwise."""
        channel = runner.channel
        if runner.elector.leader is None and channel in self._begun:
            self.deadlines.push(channel, now_ms + self._settings.session_ms)
            return
        self._attempts.begin_anew(channel)
        self._abandon(self._begun.pop(channel, None))

    def _on_barrier(self, transfer: Transfer, barrier: Barrier, now_ms: int) -> None:
        """The table here survives a power cut as it is: a log may be cut up to there."""
        if not self._is_current(transfer):
            return
        runner, channel = transfer.runner, transfer.runner.channel
        core, lacks_rows = runner.core, runner.core.lacks_rows or channel in self._damaged
        transfer.lacking = Lacking(
            lacks_rows=lacks_rows,
            applied_seq=self._tables.applied_seq(channel),
            base_seq=core.base.seq,
            base_max=Seq(0) if lacks_rows else barrier.base_max,
            trimmed_to=core.trimmed_to,
            is_unfilled=self._attempts.tries_base(channel),
        )
        if takes_base(transfer.lacking):
            if not transfer.lacking.is_unfilled:
                transfer.source = runner.elector.leader or transfer.source
            request = AskBase(channel, self._new_id(), transfer.lacking.base_max)
            self._ask(transfer, request, now_ms)
        elif transfer.is_for_base and self.places.is_full(runner, now_ms, for_base=False):
            self._leave(transfer, now_ms)
            self.places.wait(channel, for_base=False)
            self.deadlines.push(channel, now_ms + self._settings.retry_ms)
        else:
            transfer.is_for_base = False
            self._ask_table(transfer, now_ms)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _ask(
        self,
        transfer: Transfer,
        request: AskBase | AskReplicaSnapshot | AskSnapshotRest,
        now_ms: int,
    ) -> None:
        transfer.asked, transfer.request_id = request, request.request_id
        transfer.stage = Stage.ASKING
        self._send(transfer.source, request)
        self.deadlines.push(transfer.runner.channel, now_ms + self._settings.request_ms)

    def _repeat(self, transfer: Transfer, now_ms: int) -> None:
        if transfer.stage is Stage.ENDING:
            return  # the log and the applied rows are awaited by the whole node
        if transfer.give_up_ms <= now_ms:
            waits_for_disk = transfer.stage in (Stage.LOOKING, Stage.REREADING, Stage.VERIFYING)
            whose = "the disk here" if waits_for_disk else node_name(transfer.source)
            ms = self._settings.session_ms
            self.fail(transfer, f"{whose} did not answer for {ms} ms", now_ms)
        elif transfer.awaits_source and not self._parts.is_up(transfer.source):
            self.fail(transfer, f"{node_name(transfer.source)} is down", now_ms)
        elif transfer.stage is Stage.ASKING and transfer.asked is not None:
            self._ask(transfer, transfer.asked, now_ms)
        elif transfer.stage is Stage.COPYING:
            transfer.asked_chunks = transfer.taken_chunks
            self.taking.ask(transfer, now_ms)

    def _await_disk(self, transfer: Transfer, now_ms: int) -> None:
        """Wait for this node's own disk, which has to be done in time as well (S0.4)."""
        transfer.give_up_ms = now_ms + self._settings.session_ms
        self.deadlines.push(transfer.runner.channel, transfer.give_up_ms)

    # --- a table ----------------------------------------------------------------------------------

    def _ask_table(self, transfer: Transfer, now_ms: int) -> None:
        """Ask for a whole table, or for the rest of the copy that was begun."""
        channel = transfer.runner.channel
        copy = self._begun.pop(channel, None)
        if copy is not None:
            reason = self._why_begin_anew(transfer, copy)
            if reason is None:
                transfer.copy, transfer.position = copy, copy.position
                self._reread(transfer, copy, now_ms)
                return
            self._begin_anew(transfer, copy, reason)
        self._ask_whole(transfer, now_ms)

    def _why_begin_anew(self, transfer: Transfer, copy: TableCopy) -> str | None:
        """Why the copy that was begun is of no use; None: it is."""
        channel, lacking, source = transfer.runner.channel, transfer.lacking, transfer.source
        assert lacking is not None, "the barrier comes first"
        if copy.in_files:
            # Files that are there are of use for any sender, and at any position.
            return None if self._takes_files(transfer) else "the table is to come in pairs"
        position = copy.position
        reason = why_no_table(lacking, position, max(lacking.base_seq, lacking.trimmed_to))
        tries = self._attempts.failed(channel)
        if reason is None and tries > len(self._parts.sources(transfer.runner)):
            reason = f"nobody has the rest of the table at {tuple(position)}"
        if reason is None and not self._parts.gives_rest(source):
            reason = f"{node_name(source)} does not know how to go on with a table"
        return reason

    def _takes_files(self, transfer: Transfer) -> bool:
        """Whether to ask for the files of the table; a witness needs none."""
        may_be = self._attempts.may_be_in_files(transfer.runner.channel)
        return may_be and transfer.runner.has_rows and self._parts.gives_files(transfer.source)

    def _ask_whole(self, transfer: Transfer, now_ms: int) -> None:
        """Ask for a table, but for the files that are here."""
        lacking, held = transfer.lacking, tuple[HeldFile, ...]()
        assert lacking is not None, "the barrier comes first"
        if transfer.copy is not None:
            held = cast("FilesCopy", transfer.copy).held()
            transfer.held = {each.name: each.digest for each in held}
        transfer.give_up_ms = now_ms + self._settings.session_ms
        request = AskReplicaSnapshot(
            transfer.runner.channel,
            self._new_id(),
            Seq(0) if lacking.lacks_rows else lacking.applied_seq,
            lacking.base_seq,
            not transfer.runner.has_rows,
            in_files := self._takes_files(transfer),
            held,
            quick_digests=in_files,
        )
        self._ask(transfer, request, now_ms)

    def _begin_anew(self, transfer: Transfer, copy: TableCopy, reason: str) -> None:
        self._attempts.begin_anew(transfer.runner.channel)
        self._abandon(copy)
        self._tell("replica_snapshot_begun_anew", channel=transfer.runner.name, reason=reason)

    def _reread(self, transfer: Transfer, copy: TableCopy, now_ms: int) -> None:
        """Find out how much of the copy is there: of what was written last some may be lost."""
        transfer.stage = Stage.REREADING
        if copy.in_files:
            look = cast("FilesCopy", copy).look
            self._read_back(transfer, look, partial(self._ask_whole, transfer), now_ms)
        else:
            asking = partial(self._ask_rest, transfer, copy)
            self._read_back(transfer, copy.verify, asking, now_ms)

    def _read_back(
        self,
        transfer: Transfer,
        how: Callable[[int], bool],
        done: Callable[[int], None],
        now_ms: int,
    ) -> None:
        """Read the copy step by step, to its end."""
        self._await_disk(transfer, now_ms)
        read = list[bool]()

        def verified(now_ms: int) -> None:
            if read[0]:
                done(now_ms)
            else:
                self._read_back(transfer, how, done, now_ms)

        self.step(transfer, lambda: read.append(how(VERIFY_BYTES)), verified)

    def _ask_rest(self, transfer: Transfer, copy: TableCopy, now_ms: int) -> None:
        transfer.rest = rest = copy.resume_point()
        if not rest.pairs:
            transfer.copy = transfer.rest = None
            self._begin_anew(transfer, copy, "nothing of what was copied is there")
            self._ask_whole(transfer, now_ms)
            return
        channel = transfer.runner.channel
        term, seq = copy.position
        request = AskSnapshotRest(
            channel, self._new_id(), term, seq, rest.after, rest.pairs, rest.digest
        )
        transfer.give_up_ms = now_ms + self._settings.session_ms
        self._ask(transfer, request, now_ms)

    def on_offer(self, sender: NodeId, offer: ReplicaSnapshotOffer, now_ms: int) -> None:
        """A snapshot is there, or why there is none."""
        transfer = self._asking(sender, offer.channel, offer.request_id)
        if transfer is None or transfer.lacking is None:
            return
        position, rest = History(offer.term, offer.seq), transfer.rest
        reason = offer.reason or why_no_table(transfer.lacking, position, offer.base_max)
        if rest is not None and reason is None and not offer.snapshot_id:
            transfer.give_up_ms = now_ms + self._settings.session_ms
            return  # it compares what is here with its own table
        if rest is not None and reason is None and position != transfer.position:
            reason = (
                f"the table of {tuple(position)} was offered, not of {tuple(transfer.position)}"
            )
        # B8: a copy that does not fit fails a write of LevelDB, which ends the whole node.
        shortage = None if reason else self._shortage(offer.table_bytes)
        if not offer.snapshot_id or reason or shortage:
            why = reason or shortage or "there is none"
            self.fail(transfer, why, now_ms, is_copy_good=shortage is None)
            return
        transfer.stage = Stage.COPYING
        transfer.snapshot_id, transfer.position = offer.snapshot_id, position
        transfer.table_bytes, transfer.has_quick_digests = offer.table_bytes, offer.quick_digests
        if rest is None:
            self._begin_copy(transfer, in_files=offer.files > 0)
        else:
            transfer.pairs = rest.pairs
        self._tell(
            "replica_snapshot_resumed" if rest or transfer.held else "replica_snapshot_started",
            channel=transfer.runner.name,
            peer=node_name(sender),
            seq=offer.seq,
            table_bytes=offer.table_bytes,
            pairs=transfer.pairs,
        )
        self.places.moved(transfer, now_ms)
        self.taking.ask(transfer, now_ms)

    def _begin_copy(self, transfer: Transfer, *, in_files: bool) -> None:
        """Begin what was offered, or go on with its files."""
        channel, position = transfer.runner.channel, transfer.position
        begun, transfer.in_files = transfer.copy, in_files
        if begun is not None and not in_files:
            self._begin_anew(transfer, begun, "the table is offered in pairs")
            transfer.held.clear()
        if begun is None or not in_files:
            transfer.copy = self._tables.begin_copy(channel, position, in_files=in_files)
        if in_files:
            copy = cast("FilesCopy", transfer.copy)
            self.step(transfer, partial(copy.begin, position), lambda _now_ms: None)

    def have_all(self, transfer: Transfer, now_ms: int) -> None:
        """The last chunk is written: have it durable, and read back what there is."""
        copy, last = transfer.copy, transfer.last
        assert copy is not None, "chunks are of an offer"
        if isinstance(last, TableFilePart) and transfer.parts.digest() != last.all_digest:
            reason = f"the digest over {transfer.parts.parts} parts is not the sender's"
            self.fail(transfer, reason, now_ms, is_copy_good=False)
            return
        transfer.stage = Stage.VERIFYING
        self._await_disk(transfer, now_ms)
        read_back = partial(
            self._read_back, transfer, copy.verify, partial(self._verified, transfer)
        )
        self.step(transfer, copy.finish, read_back)

    def _verified(self, transfer: Transfer, now_ms: int) -> None:
        copy, last = transfer.copy, transfer.last
        assert copy is not None, "chunks are of an offer"
        found = copy.found()
        if isinstance(last, SnapshotChunk):
            # What is read back in the end has to be what the sender sent.
            expected = last.all_digest, last.all_pairs, transfer.position
            reason = f"{found} was read back, not {expected}" if found != expected else None
        else:
            # It was read here first: its files say how far it is, as far as was offered at least.
            _, transfer.pairs, position = found
            offered, transfer.position = transfer.position, position
            is_offered = position.seq > offered.seq or position == offered
            reason = None if is_offered else f"it is at {tuple(position)}, not {tuple(offered)}"
        if reason is not None:
            self.fail(transfer, reason, now_ms, is_copy_good=False)
            return
        self._pause(transfer, now_ms)

    # --- a base -----------------------------------------------------------------------------------

    def on_base(self, sender: NodeId, offer: BaseOffer, now_ms: int) -> None:
        """The leader's base, or why there is none."""
        transfer = self._asking(sender, offer.channel, offer.request_id)
        if transfer is None or transfer.lacking is None:
            return
        reason = offer.reason or why_no_base(transfer.lacking, offer.seq)
        base = Base(offer.term, offer.seq, offer.chain_hash, offer.folds)
        reason = reason or self._parts.why_not_behind(transfer.runner, base, sender, offer.rows_seq)
        if reason is not None:
            self.fail(transfer, reason, now_ms)
            return
        other = self._parts.other_history(transfer.runner, base, sender)
        if other is not None:
            self.fail(transfer, "its chain hash is another than here", now_ms)
            transfer.runner.on_broken(other, now_ms)
            return
        transfer.base = base
        self._pause(transfer, now_ms)

    # --- the end ----------------------------------------------------------------------------------

    def _pause(self, transfer: Transfer, now_ms: int) -> None:
        """Nothing of the channel goes on from here until it is opened anew."""
        transfer.stage = Stage.ENDING
        self.places.moved(transfer, now_ms)
        self.deadlines.cancel(transfer.runner.channel)
        transfer.runner.pause()
        transfer.operation = self._log.last_operation()
        self.advance(transfer.runner.channel, now_ms)

    def on_durable(self, now_ms: int) -> None:
        """The log is durable up to more than before."""
        for transfer in tuple(self.transfers.values()):
            if transfer.stage is Stage.ENDING:
                self.advance(transfer.runner.channel, now_ms)

    def advance(self, channel: ChannelId, now_ms: int) -> None:
        """S0.5: go on when all that was written is durable, and all that was queued applied."""
        transfer = self.transfers.get(channel)
        if transfer is None or transfer.stage is not Stage.ENDING or transfer.is_ending:
            return
        runner = transfer.runner
        is_quiet = runner.feed.is_idle and self._tables.is_idle(channel)
        if self._log.durable_operation() < transfer.operation or not is_quiet:
            return
        transfer.is_ending = True
        if transfer.base is not None:
            transfer.operation = self._log.rebase(channel, transfer.base)
            transfer.is_ending = False
            base, transfer.base = transfer.base, None
            transfer.position = base.history
            if self._log.durable_operation() >= transfer.operation:
                self._ended(transfer, now_ms)
        elif transfer.copy is None:
            self._ended(transfer, now_ms)
        elif is_overtaken(
            transfer.position,
            self._tables.applied_seq(channel),
            lacks_rows=runner.core.lacks_rows or channel in self._damaged,
        ):
            self.fail(transfer, OVERTAKEN, now_ms, is_copy_good=False)
            self._parts.reopen(runner)
        else:
            step = partial(self._complete, transfer, transfer.copy)
            self._tables.start_copy_step(channel, step)

    def _complete(self, transfer: Transfer, copy: TableCopy) -> ReadDone:
        # A failure here stops the node: which of the two tables it has is not known (S0.4).
        copy.complete()
        return partial(self._switched, transfer, copy)

    def _switched(self, transfer: Transfer, copy: TableCopy, now_ms: int) -> None:
        if self._is_current(transfer):
            self._tables.install(transfer.runner.channel, copy)
            self._ended(transfer, now_ms)

    def _ended(self, transfer: Transfer, now_ms: int) -> None:
        runner = transfer.runner
        self._leave(transfer, now_ms)
        self._attempts.ended(runner.channel)
        base_event = "base_taken" if runner.hole is None else "hole_covered"
        self._tell(
            "replica_snapshot_finished" if transfer.copy is not None else base_event,
            channel=runner.name,
            peer=node_name(transfer.source),
            seq=transfer.position.seq,
            pairs=transfer.pairs,
            table_bytes=transfer.bytes,
            took_ms=now_ms - transfer.started_ms,
        )
        if transfer.copy is not None:
            self.pauses.copied(runner.channel, now_ms - transfer.started_ms, now_ms)
            self._let_go(transfer)
            self.on_replaced(runner, now_ms)
        self._parts.reopen(runner)

    def _let_go(self, transfer: Transfer) -> None:
        """The sender's snapshot keeps files of its table, the more the more is written there."""
        assert transfer.last is not None, "a copy that is not whole was switched to"
        behind = transfer.last.number + CHUNKS_AHEAD + 1
        ended = AskSnapshotChunk(transfer.runner.channel, transfer.snapshot_id, behind)
        self._send(transfer.source, ended)

    def is_damaged(self, channel: ChannelId) -> bool:
        """Whether the table here is to be replaced, and must not be given to anybody."""
        return channel in self._damaged

    # --- inside -----------------------------------------------------------------------------------

    def progress(self, channel: ChannelId, now_ms: int) -> str:
        """How far the channel is, for people; empty: nothing is under way."""
        transfer = self.transfers.get(channel)
        if transfer is None:
            return self.pauses.described(channel, now_ms) if channel in self.deadlines else ""
        return transfer.described(now_ms)

    def step(
        self, transfer: Transfer, work: Callable[[], None], done: Callable[[int], None]
    ) -> None:
        """Do the work on a thread of copies, then go on here; a failure costs this copy."""

        def go_on(now_ms: int) -> None:
            if self._is_current(transfer):
                self.places.moved(transfer, now_ms)
                done(now_ms)

        def step() -> ReadDone:
            try:
                work()
            except StorageError as error:
                return partial(self._copy_failed, transfer, error)
            return go_on

        self._tables.start_copy_step(transfer.runner.channel, step)

    def _copy_failed(self, transfer: Transfer, error: StorageError, now_ms: int) -> None:
        if self._is_current(transfer):
            if transfer.in_files and isinstance(error, CorruptRecordError):
                self._refuse_files(transfer, str(error))
            self.fail(transfer, str(error), now_ms, is_copy_good=False)

    def _refuse_files(self, transfer: Transfer, reason: str) -> None:
        """S13: each part was what the sender has, so it had better look at its own table."""
        channel = transfer.runner.channel
        self._attempts.files_failed(channel)
        if transfer.stage is Stage.VERIFYING:
            refused = TableFilesRefused(channel, transfer.snapshot_id, reason)
            self._send(transfer.source, refused)

    def _asking(self, sender: NodeId, channel: ChannelId, request_id: int) -> Transfer | None:
        transfer = self.transfers.get(channel)
        is_answer = (
            transfer is not None
            and transfer.source == sender
            and transfer.stage is Stage.ASKING
            and transfer.request_id == request_id
        )
        return transfer if is_answer else None

    def _is_current(self, transfer: Transfer) -> bool:
        return self.transfers.get(transfer.runner.channel) is transfer

    def fail(
        self, transfer: Transfer, reason: str, now_ms: int, *, is_copy_good: bool = True
    ) -> None:
        """Give this attempt up; both sides stay as they were, and it is tried again in a while."""
        runner = transfer.runner
        self._leave(transfer, now_ms)
        self._attempts.fail(runner.channel)
        if transfer.copy is not None and is_copy_good:
            self._begun[runner.channel] = transfer.copy
        else:
            self._abandon(transfer.copy)
        self._tell(
            "replica_snapshot_failed",
            channel=runner.name,
            peer=node_name(transfer.source),
            reason=reason,
        )
        is_slower = type(transfer.asked) is AskBase or self._attempts.is_unfilled(runner.channel)
        tries = self._attempts.failed(runner.channel) if is_slower else 1
        self.deadlines.push(runner.channel, now_ms + retry_pause_ms(tries, self._settings))

    def _abandon(self, copy: TableCopy | None) -> None:
        if copy is not None:

            def abandon() -> ReadDone:
                copy.abandon()
                return lambda _now_ms: None

            self._tables.start_copy_step(copy.channel, abandon)
