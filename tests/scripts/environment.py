"""The little language of the script tests: commands on a hand-driven world, and what they print.

    add-nodes 3 [sync-records=1] [live-queue=2] [requests=1]
    elect 1 [voters=1,2]                    elect by history, with the votes of these nodes
    publish g4 1 2 [leader=1] [attempt=1]   a publisher's message reaches these nodes only
    deliver [2] [type=StoreRequest] [from=1] [first=1]
    drop [2] [type=StoreRequest] [from=1]
    persist 2 [1]                           make all (or the oldest 1) buffered writes durable
    fail-persist 3                          the disk refuses: the node stops, nothing more leaves it
    crash 2 [keep=1]      restart 2         a crash keeps a prefix of the buffered writes
    trim 2 5                                records up to there go, and a base stands for them
    tick 200                                let time pass
    read 1 r1             hand-over 1 [2]
    stabilize [ticks=1]                     deliver and persist everything until nothing moves
    state                 log 2             network

Every command prints what the nodes did about it, one effect a line. Records are written
``seq@term`` with the GUID's label, several rows as ``base..last@term``.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.config import ReplicationSettings
from raftstore.core.effects import (
    Append,
    CommitAdvanced,
    Effect,
    Halt,
    HandOverFailed,
    HistoriesDiffer,
    ModeChanged,
    PayloadEffect,
    ReadReady,
    ReadRefused,
    ReplicaSnapshotNeeded,
    Reply,
    Send,
    ServeSync,
    StepDown,
    StopServing,
    TransferLeadership,
    Truncate,
)
from raftstore.core.events import HandOverRequested, ReadRequested
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import (
    CaughtUp,
    CommitNotice,
    MsgSync,
    MsgSyncRequest,
    StoreAck,
    StoreReject,
    StoreRequest,
)
from raftstore.types import (
    NO_GUID,
    FollowerMode,
    Guid,
    NodeId,
    Role,
    guid_counter,
    node_id,
    node_name,
)
from tests.core_world import Node, World


class ScriptError(AssertionError):
    """A script says something that is not in its language."""


class Environment:
    """One script's world."""

    def __init__(self) -> None:
        self.world = World(())
        self._commands: dict[str, Callable[[list[str], dict[str, str]], list[str]]] = {
            name.removeprefix("_do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }

    def run(self, line: str) -> str:
        """Run one command; what it prints."""
        words = line.split()
        plain = [word for word in words[1:] if "=" not in word]
        named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if words[0] not in self._commands:
            raise ScriptError(f"unknown command {words[0]!r}")
        self.world.trace.clear()
        printed = self._commands[words[0]](plain, named)
        lines = [text for me, effect in self.world.trace for text in describe(me, effect)]
        if words[0] == "stabilize":  # the traffic of a whole conversation says nothing
            lines = [text for text in lines if " -> " not in text]
        return "\n".join([*lines, *printed]) or "ok"

    # --- commands ---------------------------------------------------------------------------------

    def _do_add_nodes(self, plain: list[str], named: dict[str, str]) -> list[str]:
        settings = ReplicationSettings(live_queue_messages_max=int(named.get("live-queue", "4096")))
        nodes = [node_id(f"n{i}", bytes([i] * 16)) for i in range(1, int(plain[0]) + 1)]
        requests = int(named.get("requests", "2"))
        self.world = World(nodes, settings=settings, inflight_requests=requests)
        self.world.sync_records_max = int(named.get("sync-records", "1000"))
        return []

    def _do_elect(self, plain: list[str], named: dict[str, str]) -> list[str]:
        voters = [self._id(word) for word in named["voters"].split(",")] if named else None
        self.world.elect(self._id(plain[0]), voters=voters)
        return []

    def _do_publish(self, plain: list[str], named: dict[str, str]) -> list[str]:
        fields: dict[str, object] = {"attempt": int(named.get("attempt", "0"))}
        if "leader" in named:
            addressed = self._node(named["leader"])
            fields |= {"leader": addressed.me, "term": addressed.term}
        self.world.publish(
            int(plain[0].removeprefix("g")), to=[self._id(word) for word in plain[1:]], **fields
        )
        return []

    def _do_deliver(self, plain: list[str], named: dict[str, str]) -> list[str]:
        first = int(named["first"]) if "first" in named else None
        count = self.world.deliver(*self._filter(plain, named), first=first)
        return [] if count else ["nothing to deliver"]

    def _do_drop(self, plain: list[str], named: dict[str, str]) -> list[str]:
        return [f"dropped {self.world.drop(*self._filter(plain, named))}"]

    def _do_persist(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self._node(plain[0]).persist(int(plain[1]) if len(plain) > 1 else None)
        return []

    def _do_fail_persist(self, plain: list[str], named: dict[str, str]) -> list[str]:
        node = self._node(plain[0])
        node.crash(keep=0)
        return [f"{node_name(node.me)} stops: its disk failed (S0.4)"]

    def _do_crash(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self._node(plain[0]).crash(keep=int(named.get("keep", "0")))
        return []

    def _do_restart(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self._node(plain[0]).boot()
        return []

    def _do_trim(self, plain: list[str], _: dict[str, str]) -> list[str]:
        node = self._node(plain[0])
        if node.is_up or int(plain[1]) > node.applied_seq:
            raise ScriptError("only what is applied is trimmed, and by a node that is down")
        node.disk.trim(int(plain[1]))
        return []

    def _do_tick(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self.world.tick(int(plain[0]))
        return []

    def _do_read(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self._node(plain[0]).step(ReadRequested(int(plain[1].removeprefix("r"))))
        return []

    def _do_hand_over(self, plain: list[str], named: dict[str, str]) -> list[str]:
        target = self._id(plain[1]) if len(plain) > 1 else None
        self._node(plain[0]).step(HandOverRequested(target, "script"))
        return []

    def _do_stabilize(self, plain: list[str], named: dict[str, str]) -> list[str]:
        self.world.settle(ticks=int(named.get("ticks", "0")))
        return []

    def _do_state(self, plain: list[str], named: dict[str, str]) -> list[str]:
        return [_state_of(node) for node in self.world.nodes.values()]

    def _do_log(self, plain: list[str], named: dict[str, str]) -> list[str]:
        node = self._node(plain[0])
        durable = node.disk.last_seq if node.writes else node.replica.last_seq
        kept = [_record(r) + ("" if r.last_seq <= durable else "*") for r in node.log]
        queue = [f"{base}" for base, _ in node.replica.live_queue()]
        return [f"store: {' '.join(kept) or '-'}", f"live queue: {' '.join(queue) or '-'}"]

    def _do_network(self, plain: list[str], named: dict[str, str]) -> list[str]:
        return [
            text for e in self.world.network for text in describe(e.sender, Send(e.to, e.message))
        ] or ["empty"]

    # --- words ------------------------------------------------------------------------------------

    def _id(self, word: str) -> NodeId:
        return list(self.world.nodes)[int(word) - 1]

    def _node(self, word: str) -> Node:
        return self.world[self._id(word)]

    def _filter(
        self, plain: list[str], named: dict[str, str]
    ) -> tuple[NodeId | None, str | None, NodeId | None]:
        to = self._id(plain[0]) if plain else None
        sender = self._id(named["from"]) if "from" in named else None
        return to, named.get("type"), sender


def _label(guid: Guid) -> str:
    return "start" if guid == NO_GUID else f"g{guid_counter(guid)}"


def _record(record: Record | RecordMeta) -> str:
    span = f"{record.base_seq}" if record.rows == 1 else f"{record.base_seq}..{record.last_seq}"
    return f"{span}@{record.term}({_label(record.guid)})"


def _records(records: tuple[Record, ...] | tuple[RecordMeta, ...]) -> str:
    return " ".join(_record(record) for record in records) or "none"


def _state_of(node: Node) -> str:
    replica, name = node.replica, node_name(node.me)
    if not node.is_up:
        return f"{name} down"
    mode = replica.mode.value if node.role is not Role.LEADER else FollowerMode.STEADY.value
    return (
        f"{name} {node.role.value} term={node.term} {mode} last={replica.last_seq} "
        f"durable={replica.durable_seq} commit={replica.commit_seq} applied={node.applied_seq}"
    )


def _message(message: object) -> str:
    match message:
        case StoreRequest():
            told = f"prev={message.prev_term} commit={message.commit_seq}"
            return f"StoreRequest {told} {_records(message.records)}"
        case StoreAck():
            return f"StoreAck match={message.match_seq} commit={message.commit_seq}"
        case StoreReject():
            return f"StoreReject {message.reason} seq={message.seq} {_label(message.guid)}"
        case CommitNotice():
            end = f"{message.last_seq}@{message.last_term}"
            return f"CommitNotice commit={message.commit_seq} end={end}"
        case MsgSyncRequest():
            runs = " ".join(f"{run.end_seq}@{run.term}" for run in message.lineage)
            asked = f"from={message.from_seq}" if message.from_seq else f"lineage={runs}"
            return f"MsgSyncRequest {asked}"
        case MsgSync():
            done = " done" if message.done else ""
            where = f"from={message.from_seq} prev={message.prev_term}"
            if message.from_seq < message.first_seq:
                return f"MsgSync {where} trimmed, first={message.first_seq}"
            return f"MsgSync {where} {_records(message.records)} commit={message.commit_seq}{done}"
        case CaughtUp():
            return f"CaughtUp seq={message.seq}"
        case _:
            return type(message).__name__


def _answer(answer: PubAck | PubReject) -> str:
    if isinstance(answer, PubReject):
        hint = "" if answer.leader_hint is None else f", leader {node_name(answer.leader_hint)}"
        return f"{_label(answer.guid)}: {answer.code}{hint}"
    where = f"{answer.base_seq}..{answer.last_seq}@{answer.record_term}"
    return f"{_label(answer.guid)}: ok {where} on {answer.replicas_acked} replicas"


def describe(me: NodeId, effect: Effect) -> list[str]:  # noqa: C901
    """An effect as lines of text (ServeSync shows as the MsgSync it becomes)."""
    name = node_name(me)
    match effect:
        case Send(to, message):
            return [f"{name} -> {node_name(to)} {_message(message)}"]
        case Append(records):
            return [f"{name} appends {_records(records)}"]
        case Truncate(from_seq):
            return [f"{name} truncates from {from_seq}"]
        case Reply(_, answer):
            return [f"{name} answers {_answer(answer)}"]
        case CommitAdvanced(commit_seq, apply_to):
            return [f"{name} commits {commit_seq}, applies up to {apply_to}"]
        case ServeSync(to, _, _, from_seq, _, _, _):
            return [f"{name} serves history from {from_seq} to {node_name(to)}"]
        case ReadReady(token, read_seq):
            return [f"{name} answers read r{token} at {read_seq}"]
        case ReadRefused(token, error, _):
            return [f"{name} refuses read r{token}: {error.code}"]
        case ModeChanged(mode, reason):
            return [f"{name} is {mode.value}: {reason}"]
        case ReplicaSnapshotNeeded(have, first):
            return [f"{name} needs a snapshot: it has {have}, the log begins at {first}"]
        case StepDown():
            return [f"{name} steps down"]
        case TransferLeadership(to):
            return [f"{name} asks {node_name(to)} to take over"]
        case HandOverFailed(reason):
            return [f"{name} hand-over failed: {reason}"]
        case HistoriesDiffer(whose, seq):
            return [f"{name} has another history than {node_name(whose)} at {seq}"]
        case StopServing():
            return [f"{name} stops serving"]
        case PayloadEffect():
            return []  # the nodes of scripts are of a level that knows no repairs
        case Halt(reason):
            return [f"{name} halts: {reason}"]
