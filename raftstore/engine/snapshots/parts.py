"""Parts of a node that its replica snapshots work with: one object for both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftstore.config import SnapshotSettings
from raftstore.core.folds import Folds
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import Tell
from raftstore.errors import StorageError
from raftstore.policy.levels import (
    SNAPSHOT_LEVEL,
    SNAPSHOT_REST_LEVEL,
    TABLE_FILES_LEVEL,
    WITNESS_BASE_LEVEL,
)
from raftstore.ports.log import Base, MessageLog
from raftstore.ports.tables import TableStore
from raftstore.protocol.message import Message
from raftstore.protocol.replica_snapshots import (
    AskSnapshotRest,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.types import ChannelId, NodeId, Seq, node_name


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """The parts of one node that replica snapshots work with."""

    log: MessageLog
    tables: TableStore
    outbox: Outbox
    channels: Mapping[ChannelId, ChannelRunner]
    settings: SnapshotSettings
    tell: Tell
    nodes_at_level: Callable[[int], tuple[NodeId, ...]]
    """The other nodes that reported at least this level."""
    reopen: Callable[[ChannelRunner], None]
    """Open a channel anew from what log and tables hold of it."""
    first_id: int
    """Ids go up from here; drawn at random, so that no other life of this node used them."""

    shortage: Callable[[int], str | None] = lambda _: None
    """Why so many bytes must not be copied to this node's disk now; None: there is room."""

    catch_ups: CatchUps | None = None
    """Where it is reported which channels catch up; None: nowhere."""

    throttle: Callable[[], int] = lambda: 0
    """Bytes that operators let a node send in a second; 0: the setting counts."""

    rows_seq: Callable[[ChannelRunner, Seq], Seq] = lambda _, limit: limit
    """Up to where, and not above the limit, voters with rows hold what a witness has (W6)."""

    is_up: Callable[[NodeId], bool] = lambda _: True
    """Whether a node is connected and heard: nobody else is asked for anything."""

    def why_not_behind(
        self, runner: ChannelRunner, base: Base, sender: NodeId, rows_seq: Seq
    ) -> str | None:
        """Why the log here must not begin behind this base; None: it may. ``rows_seq``: as the
        sender says (BaseOffer); an older version has no word for it, and gives a witness no base
        but one that enough voters with rows acknowledged."""
        is_newer = sender in self.nodes_at_level(WITNESS_BASE_LEVEL)
        reason = self.why_kept(runner, base.seq, rows_seq if is_newer else base.seq)
        if reason is None and runner.hole is not None:
            reason = self.log.why_hole_stays(runner.channel, base)
        if reason is None:
            try:
                Folds(runner.core.config(), base=base)
            except StorageError as error:
                reason = str(error)
        return reason

    @staticmethod
    def other_history(runner: ChannelRunner, base: Base, sender: NodeId) -> str | None:
        """S13: how a base differs from the history here; one of the two is not the channel's, and
        it cannot be known which."""
        ours = runner.core.chain_hash_at(base.history)
        if ours is None or ours == base.chain_hash:
            return None
        return (
            f"the chain hash at seq {base.seq} is {ours.hex()} here, but "
            f"{base.chain_hash.hex()} in the base of {node_name(sender)}"
        )

    def why_kept(self, runner: ChannelRunner, base_seq: Seq, rows_seq: Seq = Seq(0)) -> str | None:
        """W6: why the log here must not begin behind a base at this seq; None: it may. A witness
        lets go of nothing that it holds, or may have held, before enough voters with rows do, by
        their reports or as the leader knows (``rows_seq``)."""
        if runner.has_rows:
            return None
        most = runner.core.held_at_most
        held = base_seq if most is None else min(most, base_seq)
        rows = max(rows_seq, self.rows_seq(runner, held))
        if rows >= held:
            return None
        return f"voters with rows are known to have what is up to seq {rows}, the log here {held}"

    def knows(self, node: NodeId) -> bool:
        """Whether the node's version has replica snapshots."""
        return node in self.nodes_at_level(SNAPSHOT_LEVEL)

    def gives_rest(self, node: NodeId) -> bool:
        """Whether the node's version gives tables that it does not lead, and the rest of some."""
        return node in self.nodes_at_level(SNAPSHOT_REST_LEVEL)

    def gives_files(self, node: NodeId) -> bool:
        """Whether the node's version gives and takes tables in files."""
        return node in self.nodes_at_level(TABLE_FILES_LEVEL)

    def sources(self, runner: ChannelRunner, *, anywhere: bool = False) -> list[NodeId]:
        """Replicas to be asked for a table, one after the other: the leader last; no witness, and
        none that is down: no answer would be waited for as long as for a slow one.

        ``anywhere``: all nodes, for a hole that nobody fills. A witness has the base that stands
        for it, too, and the configuration in front of the hole may be an old one (S0.3)."""
        leader, config = runner.elector.leader, runner.core.config()
        nodes = sorted(self.nodes_at_level(SNAPSHOT_REST_LEVEL)) if anywhere else config.members
        found = [node for node in nodes if node != leader and self.gives_rest(node)]
        if leader is not None and self.knows(leader):
            found.append(leader)
        return [
            node for node in found if self.is_up(node) and (anywhere or not config.is_witness(node))
        ]

    def send(self, to: NodeId, message: Message) -> None:
        """Send the message, unless the node came back as a version that does not know it since it
        spoke.

        All of it is about committed records, which a quorum holds durably (S0.5).
        """
        knows = self.knows
        if isinstance(message, AskSnapshotRest):
            knows = self.gives_rest
        elif isinstance(message, TableFilePart | TableFilesRefused):
            knows = self.gives_files
        if knows(to):
            self.outbox.send(to, message, after_operation=0)
