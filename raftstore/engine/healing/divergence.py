"""Replicas whose histories differ where both are committed: who is wrong, and what becomes of it.

Each replica compares the chain hashes that others report with its own (S13), at the latest with the
next lag report. When two differ, nobody knows yet which one is wrong. So this replica serves
nothing and does not vote while it asks all other voters for their hash at that seq:

* a quorum has ours: another replica is wrong, this one goes on, and informs it;
* a quorum has another one: this replica is wrong. It steps down, serves nothing, neither votes nor
  acknowledges (*quarantined*), looks by bisection where the two histories part, puts its table and
  its log aside, and takes both from the leader like a replica that is new;
* neither: the channel stops here (S13) until enough voters answer.

A replica is not healed more often than ``HEALS_MAX`` times in one life of its node: what makes the
same history wrong again and again is no accident, and is left for somebody to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from raftstore.core.quorum import has_quorum
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.healing.chain_walks import ChainWalks
from raftstore.engine.healing.parts import HealingParts
from raftstore.engine.healing.replacing import Replacing
from raftstore.policy.levels import CHAIN_HASH_LEVEL
from raftstore.protocol.healing import AskChainHash, ChainHashAnswer, HealingMessage
from raftstore.types import ChannelId, NodeId, Seq, node_name

ASK_MS: Final = 500
"""A question without answer is asked again after this."""
JUDGE_MS: Final = 3_000
"""After this the channel stops here if no quorum has reported one hash; questions go on."""
BELIEVED_MS: Final = 10_000
"""So long a replica that was found to be wrong is not judged again."""
BISECT_MS: Final = 10_000
"""So long it is looked for where two histories part; the replica is healed in any case."""
HEALS_MAX: Final = 3


class Stage(Enum):
    """How far a dispute is."""

    ASKING = "comparing its history with the other voters'"
    LOCATING = "quarantined: looking where its history parts from the quorum's"
    REPLACING = "quarantined: its table and its log are put aside"
    REFETCHING = "quarantined: fetching table and log from the leader"


@dataclass(slots=True)
class Dispute:
    """Two histories of one channel that differ."""

    runner: ChannelRunner
    seq: Seq
    ours: bytes
    with_node: NodeId
    began_ms: int
    stage: Stage = Stage.ASKING
    request_id: int = 0
    hashes: dict[NodeId, bytes] = field(default_factory=dict)
    """What the voters said; empty: no record of theirs ends there."""
    is_stopped: bool = False
    witness: NodeId | None = None
    """One of the quorum that has another history than this replica."""
    equal_to: Seq = Seq(0)
    """Up to here the histories are known to be equal."""
    differs_at: Seq = Seq(0)
    """Here they are known to differ."""
    probe: Seq = Seq(0)
    ours_at_probe: bytes | None = None
    theirs_at_probe: bytes | None = None


class Divergences:
    """Disputes about the histories of one node's channels."""

    def __init__(self, parts: HealingParts, walks: ChainWalks, replacing: Replacing) -> None:
        self._me = parts.me
        self._channels = parts.channels
        self._log = parts.log
        self._outbox = parts.outbox
        self._walks = walks
        self._replacing = replacing
        self._tell = parts.tell
        self._levels = parts.levels
        self._reopen = parts.reopen
        self._request_id = parts.first_id
        self.open: dict[ChannelId, Dispute] = {}
        self._believed: dict[tuple[ChannelId, NodeId], int] = {}
        """Until when a replica is known to be wrong."""
        self._heals: dict[ChannelId, int] = {}
        self.found_total = 0
        self.healed_total = 0
        self.deadlines: Deadlines[ChannelId] = Deadlines()

    def stage(self, channel: ChannelId) -> str:
        """The stage of the channel's dispute, for people; empty: there is none."""
        dispute = self.open.get(channel)
        return "" if dispute is None else dispute.stage.value

    # --- two hashes differ ------------------------------------------------------------------------

    def differs(self, runner: ChannelRunner, whose: NodeId, seq: Seq, now_ms: int) -> None:
        """The core found that a peer has another hash at a committed seq."""
        channel, ours = runner.channel, runner.core.chain_hash_of(seq)
        before = self.open.get(channel)
        if ours is None or (before is not None and before.stage is not Stage.REFETCHING):
            return  # it is being dealt with
        if self._believed.get((channel, whose), now_ms) > now_ms:
            runner.end_dispute(now_ms)
            return
        reason = f"another chain hash at committed seq {seq} here than on {node_name(whose)} (S13)"
        older = self._levels.below(CHAIN_HASH_LEVEL)
        if any(node in older for node in runner.core.config().voters):
            runner.on_broken(f"{reason}; nodes below level {CHAIN_HASH_LEVEL} cannot judge", now_ms)
            return
        dispute = self.open[channel] = Dispute(runner, seq, ours, whose, now_ms)
        dispute.hashes[self._me] = ours
        self._tell("histories_differ", channel=runner.name, peer=node_name(whose), seq=seq)
        self._ask_voters(dispute, now_ms)
        self._judge(dispute, now_ms)  # a replica without another voter is its own quorum

    def _ask_voters(self, dispute: Dispute, now_ms: int) -> None:
        if not dispute.request_id:
            self._request_id += 1
            dispute.request_id = self._request_id
        question = AskChainHash(dispute.runner.channel, dispute.request_id, dispute.seq)
        for node in dispute.runner.core.config().voters:
            if node not in dispute.hashes:
                self._send(node, question)
        self.deadlines.push(dispute.runner.channel, now_ms + ASK_MS)

    def _send(self, to: NodeId, message: HealingMessage) -> None:
        """Send the message, unless the node came back as a version that does not know it."""
        if to in self._levels.at_least(CHAIN_HASH_LEVEL):
            self._outbox.send(to, message, after_operation=0)

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: HealingMessage, now_ms: int) -> None:
        """A question of another node, or an answer to one of this."""
        if isinstance(message, ChainHashAnswer):
            self._on_answer(sender, message, now_ms)
            return
        runner = self._channels.get(message.channel)

        def reply(is_known: bool, chain_hash: bytes) -> None:  # noqa: FBT001 - a message's field
            channel, request_id = message.channel, message.request_id
            answer = ChainHashAnswer(channel, request_id, message.seq, is_known, chain_hash)
            self._send(sender, answer)

        if runner is None:
            reply(False, b"")
        else:
            self._walks.find(runner, message.seq, now_ms, reply)

    def _on_answer(self, sender: NodeId, answer: ChainHashAnswer, now_ms: int) -> None:
        dispute = self.open.get(answer.channel)
        is_of_it = dispute is not None and answer.request_id == dispute.request_id
        if dispute is None or not is_of_it or not answer.is_known:
            return  # late, or not there yet: asked again
        if dispute.stage is Stage.ASKING and answer.seq == dispute.seq:
            dispute.hashes[sender] = answer.chain_hash
            self._judge(dispute, now_ms)
        elif dispute.stage is Stage.LOCATING and (sender, answer.seq) == (
            dispute.witness,
            dispute.probe,
        ):
            dispute.theirs_at_probe = answer.chain_hash
            self._compare_probe(dispute, now_ms)

    # --- the judgement ----------------------------------------------------------------------------

    def _judge(self, dispute: Dispute, now_ms: int) -> None:
        """Two of three equal against one: what a quorum has is the channel's history."""
        config = dispute.runner.core.config()
        for chain_hash in dict.fromkeys(dispute.hashes.values()):
            having = [node for node, theirs in dispute.hashes.items() if theirs == chain_hash]
            if not has_quorum(config, having):
                continue
            if chain_hash == dispute.ours:
                self._is_ours(dispute, now_ms)
            else:
                self._is_another(dispute, having[0], now_ms)
            return

    def _is_ours(self, dispute: Dispute, now_ms: int) -> None:
        runner = dispute.runner
        del self.open[runner.channel]
        self.deadlines.cancel(runner.channel)
        wrong = [node for node, theirs in dispute.hashes.items() if theirs != dispute.ours]
        for node in dict.fromkeys((*wrong, dispute.with_node)):
            self.found_total += 1
            self._believed[runner.channel, node] = now_ms + BELIEVED_MS
            self._tell(
                "replica_diverged",
                channel=runner.name,
                replica=node_name(node),
                seq=dispute.seq,
                quorum_hash=dispute.ours.hex(),
                replica_hash=dispute.hashes.get(node, b"").hex(),
            )
        if dispute.is_stopped:
            self._reopen(runner)
        else:
            runner.end_dispute(now_ms)

    def _is_another(self, dispute: Dispute, witness: NodeId, now_ms: int) -> None:
        runner = dispute.runner
        self.found_total += 1
        self._tell(
            "replica_diverged",
            channel=runner.name,
            replica=node_name(self._me),
            seq=dispute.seq,
            quorum_hash=dispute.hashes[witness].hex(),
            replica_hash=dispute.ours.hex(),
        )
        heals = self._heals[runner.channel] = self._heals.get(runner.channel, 0) + 1
        reason = (
            f"its history differs from a quorum's at committed seq {dispute.seq} or before (S13)"
        )
        # A leader steps down by this, first of all.
        runner.on_broken(reason, now_ms)
        if heals > HEALS_MAX:
            self.deadlines.cancel(runner.channel)
            return
        self._tell("replica_quarantined", channel=runner.name, seq=dispute.seq, reason=reason)
        dispute.stage, dispute.witness = Stage.LOCATING, witness
        dispute.began_ms = now_ms
        dispute.equal_to, dispute.differs_at = runner.core.base.seq, dispute.seq
        self._probe(dispute, now_ms)

    # --- where they part --------------------------------------------------------------------------

    def _probe(self, dispute: Dispute, now_ms: int) -> None:
        """Compare a record of ours in the middle, until one record is left."""
        runner = dispute.runner
        middle = self._log.extent(runner.channel).end_between(dispute.equal_to, dispute.differs_at)
        if middle is None:
            self._located(dispute, now_ms)
            return
        self._request_id += 1
        dispute.request_id, dispute.probe = self._request_id, middle
        dispute.ours_at_probe = dispute.theirs_at_probe = None

        def reply(is_known: bool, chain_hash: bytes) -> None:  # noqa: FBT001 - a message's field
            if is_known and dispute.probe == middle:
                dispute.ours_at_probe = chain_hash
                self._compare_probe(dispute, now_ms)

        self._walks.find(runner, middle, now_ms, reply)
        self._ask_witness(dispute, now_ms)

    def _ask_witness(self, dispute: Dispute, now_ms: int) -> None:
        channel = dispute.runner.channel
        if dispute.witness is not None:
            question = AskChainHash(channel, dispute.request_id, dispute.probe)
            self._send(dispute.witness, question)
        self.deadlines.push(channel, now_ms + ASK_MS)

    def _compare_probe(self, dispute: Dispute, now_ms: int) -> None:
        ours, theirs = dispute.ours_at_probe, dispute.theirs_at_probe
        if ours is None or theirs is None or dispute.stage is not Stage.LOCATING:
            return
        if ours == theirs:
            dispute.equal_to = dispute.probe
        else:
            dispute.differs_at = dispute.probe
        self._probe(dispute, now_ms)

    def _located(self, dispute: Dispute, now_ms: int) -> None:
        runner = dispute.runner
        self._tell(
            "divergence_located",
            channel=runner.name,
            equal_to=dispute.equal_to,
            differs_at=dispute.differs_at,
        )
        dispute.stage = Stage.REPLACING
        self._replacing.begin(runner, now_ms)
        self.deadlines.push(runner.channel, now_ms + ASK_MS)

    # --- time -------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Ask again, stop, or see whether a replica is whole again."""
        for channel in self.deadlines.due(now_ms):
            dispute = self.open.get(channel)
            if dispute is None:
                continue
            match dispute.stage:
                case Stage.ASKING:
                    self._stop_if_late(dispute, now_ms)
                    self._ask_voters(dispute, now_ms)
                case Stage.LOCATING:
                    if now_ms >= dispute.began_ms + BISECT_MS:
                        self._located(dispute, now_ms)
                    else:
                        self._ask_witness(dispute, now_ms)
                case Stage.REPLACING:
                    self.deadlines.push(channel, now_ms + ASK_MS)
                case Stage.REFETCHING:
                    self._end_if_whole(dispute, now_ms)

    def _stop_if_late(self, dispute: Dispute, now_ms: int) -> None:
        """Without a quorum for one history nothing is served, and it is said why."""
        if dispute.is_stopped or now_ms < dispute.began_ms + JUDGE_MS:
            return
        dispute.is_stopped = True
        heard = ", ".join(f"{node_name(n)}: {h.hex() or 'none'}" for n, h in dispute.hashes.items())
        dispute.runner.on_broken(
            f"no quorum has one chain hash at committed seq {dispute.seq} ({heard}); start the "
            "other replicas, or look at the stores of these with `raftstore log check`",
            now_ms,
        )

    def _end_if_whole(self, dispute: Dispute, now_ms: int) -> None:
        runner = self._channels.get(dispute.runner.channel)
        if runner is None:
            del self.open[dispute.runner.channel]
            return
        core = runner.core
        is_whole = not core.is_recovering and core.commit_seq >= dispute.seq
        if runner.ignores_peers or not is_whole or core.leader is None:
            self.deadlines.push(runner.channel, now_ms + ASK_MS)
            return
        del self.open[runner.channel]
        self.healed_total += 1
        took_ms = now_ms - dispute.began_ms
        self._tell("replica_healed", channel=runner.name, seq=dispute.seq, took_ms=took_ms)

    # --- channels come and go ---------------------------------------------------------------------

    def closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        dispute = self.open.get(runner.channel)
        if dispute is None or dispute.runner is not runner:
            return
        if dispute.stage is Stage.REPLACING:
            dispute.stage = Stage.REFETCHING
        elif dispute.stage is not Stage.REFETCHING:
            # What was known of it is of a replica that is no more; it is compared again.
            del self.open[runner.channel]
            self.deadlines.cancel(runner.channel)
