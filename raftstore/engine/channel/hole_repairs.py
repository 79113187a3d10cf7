"""Fills holes in the logs of this node from whichever node held the same records (S0.3).

A channel with a hole ignores its peers: it takes messages of no leader and no candidate, so it
neither votes nor acknowledges nor serves. Meanwhile its first hole is asked for, one node after the
other. No leader is needed for that, since nothing is decided: a node answers only if its log has
held a record that this log has held behind the hole, so by log matching (S2.4) both were equal
before it. When nothing is missing any more and everything is durable, the channel is opened again
as if nothing had been.

What no node holds stays missing, and is reported. Where the others trimmed it, it was committed:
then a base of another replica may stand for it, and no leader is needed for that, either
(``raftstore.engine.snapshots.receiver``). Only a leader that has committed in a term at least ours
may say that what is kept behind the hole is not part of the channel: it holds everything that was
acknowledged. Then that is given up, and the channel recovers from the leader (S0.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raftstore.config import ROWS_PER_RECORD_MAX
from raftstore.core.chain import digest_of
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import Tell
from raftstore.policy.levels import REFILL_LEVEL
from raftstore.ports.log import MessageLog
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hole, Refill, RefillRequest
from raftstore.protocol.records import Record
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, node_name

ANSWER_TIMEOUT_MS: Final = 1_000
PAUSE_MS: Final = 200
"""Before the next node is asked when one had nothing."""
TELL_INTERVAL_MS: Final = 60_000
"""How often a hole that no node fills is reported."""
HOLE_REMEDY: Final = (
    "start the nodes that hold it; if they cannot be started, stop this one and look with "
    "`raftstore log check DIR OTHER...` which directory holds it, then "
    "`raftstore log fill DIR --from OTHER`"
)


@dataclass(slots=True)
class _Repair:
    """One channel whose log has a hole."""

    runner: ChannelRunner
    hole: Hole
    tell_ms: int
    request_id: int = 0
    asked: NodeId | None = None
    turn: int = 0
    in_vain: int = 0
    """Answers since the last record that had none."""
    last_operation: int = 0
    """Of the last record that was filled in, or of giving up."""
    is_done: bool = False


class HoleRepairs:
    """All holes of one node."""

    def __init__(
        self,
        log: MessageLog,
        outbox: Outbox,
        channels: Mapping[ChannelId, ChannelRunner],
        tell: Tell,
        *,
        nodes_at_level: Callable[[int], tuple[NodeId, ...]],
        reopen: Callable[[ChannelRunner], None],
        bytes_max: int,
        first_request_id: int,
    ) -> None:
        """``nodes_at_level``: the other nodes that reported at least this level since the start, in
        a stable order; ``reopen``: open a channel again from what its log holds now;
        ``bytes_max`` is of one answer."""
        self._log = log
        self._outbox = outbox
        self._channels = channels
        self._tell_event = tell
        self._nodes_at_level = nodes_at_level
        self._reopen = reopen
        self._bytes_max = bytes_max
        self._request_id = first_request_id
        self.open: dict[ChannelId, _Repair] = {}
        self.deadlines: Deadlines[ChannelId] = Deadlines()
        """When the next node is to be asked, by channel."""
        self.on_unfilled: Callable[[ChannelRunner, int], None] = lambda _runner, _now_ms: None
        """Called when as many answers as there are nodes held nothing (now_ms)."""

    def opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened, maybe with a hole."""
        if runner.hole is not None:
            self.open[runner.channel] = _Repair(runner, runner.hole, now_ms + TELL_INTERVAL_MS)
            self.deadlines.push(runner.channel, now_ms)
            self._tell(runner, runner.hole)

    def closed(self, runner: ChannelRunner) -> None:
        """The channel is gone."""
        channel = runner.channel
        self.open.pop(channel, None)
        self.deadlines.cancel(channel)

    def _tell(self, runner: ChannelRunner, hole: Hole) -> None:
        self._tell_event(
            "hole",
            channel=runner.name,
            id=runner.channel.hex(),
            from_seq=hole.from_seq,
            to_seq=hole.to_seq,
            remedy=HOLE_REMEDY,
        )

    # --- asking -----------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Ask for what is due."""
        for channel in self.deadlines.due(now_ms):
            repair = self.open[channel]
            if repair.tell_ms <= now_ms:
                repair.tell_ms = now_ms + TELL_INTERVAL_MS
                self._tell(repair.runner, repair.hole)
            self._ask_next(repair, now_ms)

    def _ask_next(self, repair: _Repair, now_ms: int) -> None:
        others = self._nodes_at_level(REFILL_LEVEL)
        repair.asked = None
        self.deadlines.push(repair.runner.channel, now_ms + PAUSE_MS)
        if others:
            repair.asked = others[repair.turn % len(others)]
            repair.turn += 1
            self._ask(repair, now_ms)

    def _ask(self, repair: _Repair, now_ms: int) -> None:
        assert repair.asked is not None
        self._request_id += 1
        repair.request_id = self._request_id
        self.deadlines.push(repair.runner.channel, now_ms + ANSWER_TIMEOUT_MS)
        bytes_max = self._bytes_max
        channel = repair.runner.channel
        request = RefillRequest(channel, repair.request_id, repair.hole, bytes_max)
        self._send(repair.asked, request)

    def _send(self, to: NodeId, message: RefillRequest | Refill) -> None:
        """Send the message, unless the node came back as a version that does not know it since it
        spoke."""
        if to in self._nodes_at_level(REFILL_LEVEL):
            self._outbox.send(to, message, after_operation=0)

    def on_message(self, sender: NodeId, message: Message, now_ms: int) -> None:
        """A message between nodes that no other part of the node takes."""
        if isinstance(message, RefillRequest):
            self.on_request(sender, message)
        elif isinstance(message, Refill):
            self.on_refill(sender, message, now_ms)
        else:
            kind = type(message).__name__
            self._tell_event("unexpected_message", peer=node_name(sender), kind=kind)

    def on_request(self, sender: NodeId, request: RefillRequest) -> None:
        """Another node lost records: give what this log holds of them."""
        channel = request.channel
        bytes_max = min(request.max_bytes, self._bytes_max)
        # The bytes bound payloads only: with so many seqs the metadata fits into the frame, too.
        to_seq = min(request.hole.to_seq, request.hole.from_seq + ROWS_PER_RECORD_MAX - 1)
        hole = request.hole._replace(to_seq=Seq(to_seq))
        records = self._log.refill(channel, hole, bytes_max=bytes_max)
        runner = self._channels.get(channel)
        leads = (
            runner is not None
            and runner.elector.role is Role.LEADER
            and runner.core.leader_is_ready
        )
        leader_term = runner.core.term if runner is not None and leads else Term(0)
        answer = Refill(channel, request.request_id, tuple(records), leader_term)
        self._send(sender, answer)

    # --- answers ----------------------------------------------------------------------------------

    def on_refill(self, sender: NodeId, answer: Refill, now_ms: int) -> None:
        """The share of a hole that another node holds."""
        repair = self.open.get(answer.channel)
        if repair is None or repair.is_done or answer.request_id != repair.request_id:
            return  # late
        repair.request_id = 0
        runner = repair.runner
        if runner.is_paused:
            return  # its log is about to begin behind another base
        if not answer.records:
            # S0.3: who leads in our term or a later one holds everything that was acknowledged.
            if answer.leader_term and answer.leader_term >= runner.elector.term:
                self._give_up(repair, sender)
            else:
                self._in_vain(repair, now_ms)
            return
        repair.in_vain = 0
        fault = fault_of(answer.records, repair.hole)
        if fault is not None:
            self._tell_event("refill_refused", channel=runner.name, reason=fault)
            self.deadlines.push(repair.runner.channel, now_ms + PAUSE_MS)
            return
        repair.last_operation = self._log.fill(runner.channel, answer.records)
        hole = self._log.open_channel(runner.channel).hole
        if hole is None:
            self._filled(repair, sender)
        else:
            repair.hole = hole
            self._ask(repair, now_ms)

    def _in_vain(self, repair: _Repair, now_ms: int) -> None:
        self.deadlines.push(repair.runner.channel, now_ms + PAUSE_MS)
        repair.in_vain += 1
        if repair.in_vain >= len(self._nodes_at_level(REFILL_LEVEL)):
            repair.in_vain = 0
            self.on_unfilled(repair.runner, now_ms)

    def _filled(self, repair: _Repair, sender: NodeId) -> None:
        repair.is_done = True
        runner = repair.runner
        self.deadlines.cancel(runner.channel)
        self._tell_event("hole_filled", channel=runner.name, peer=node_name(sender))

    def _give_up(self, repair: _Repair, leader: NodeId) -> None:
        repair.is_done = True
        runner = repair.runner
        self.deadlines.cancel(runner.channel)
        repair.last_operation = self._log.give_up(runner.channel)
        self._tell_event("hole_given_up", channel=runner.name, leader=node_name(leader))

    def on_durable(self, operation: int) -> None:
        """S0.5: the channel takes part again when all that it stands on is durable."""
        done = [
            repair
            for repair in self.open.values()
            if repair.is_done and repair.last_operation <= operation
        ]
        for repair in done:
            del self.open[repair.runner.channel]
            if not repair.runner.is_paused:  # else who paused it opens it anew
                self._reopen(repair.runner)


def fault_of(records: tuple[Record, ...], hole: Hole) -> str | None:
    """Why these records cannot be what was lost; None: they are whole and in their place."""
    expected, term = hole.from_seq, hole.prev_term
    following = min((run.term for run in hole.runs if run.last > hole.to_seq), default=None)
    for record in records:
        if record.base_seq != expected or record.rows < 1 or record.last_seq > hole.to_seq:
            return f"a record at seq {record.base_seq} does not fit into the hole at {expected}"
        if record.term < term or (following is not None and record.term > following):
            return f"a record of term {record.term} does not fit between its neighbours"
        if digest_of(record.payload) != record.digest:
            return f"the payload at seq {record.base_seq} is not what its digest says"
        expected, term = Seq(record.last_seq + 1), record.term
    return None
