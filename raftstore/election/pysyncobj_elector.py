"""pysyncobj as the keeper of term, vote and role: the only module that imports it.

How one ``SyncObj`` per channel is reduced to elections, without patching the package:

* A class-level property stands where pysyncobj stores its log, so the log it makes is ignored and
  ours is read. It always has one entry, whose *term* slot carries our ``History``: pysyncobj only
  compares that slot, so the comparison that decides a vote is ours (S1.1).
* It knows one virtual peer. It broadcasts one vote request to it, which the elector sends to the
  real voters, and needs exactly one reply, which the elector injects when its own quorum rule
  holds (S1.3). Hence pysyncobj counts no votes and knows no members.
* Only four kinds of message ever reach it, all made here. Nothing from the network is passed
  through; among what it would accept there is one kind that it unpickles.
* It has no thread, no socket, no file descriptor and no time of its own. It reads a clock and
  draws from the global random generator when it is created, votes or learns of a leader, but only
  to fill its election deadline, and that lies 30 billion years ahead (``_CONF``). The one tick
  per election follows a ``timeout_now``, which sets the deadline to zero. So neither clock nor
  random numbers can change what it does, and a simulation of it repeats exactly.

pysyncobj's names are camelCase and some are private; what is relied on is checked by
``raftstore.election.conformance`` at process start and by the guards here and in the elector.
"""

# ruff: noqa: N802 - pysyncobj calls these methods by its own names

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pysyncobj.journal
import pysyncobj.node
import pysyncobj.syncobj
import pysyncobj.transport
from pysyncobj.config import SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from raftstore.config import ElectionSettings
from raftstore.election.voting import VoteOwner
from raftstore.election.voting_elector import VotingElector
from raftstore.errors import ElectionError
from raftstore.ports.election import ElectionHost, Elector, ElectorFactory
from raftstore.types import ChannelId, History, NodeId, Role, Term

PYSYNCOBJ_VERSION: Final[str] = VERSION

_NO_OP: Final = b"\x01"
"""The only command pysyncobj may try to store: the empty entry of a new leader."""

_LAST_INDEX: Final = 1
"""Index of the one log entry. pysyncobj does arithmetic on it, so it cannot carry a History."""

_NEVER_S: Final = 1e18
"""Seconds. Timeouts that must not happen."""

_ROLES: Final = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)
"""By pysyncobj's state number."""

_VOTERS: Final = Node("*")
"""The virtual peer that stands for all voters."""

_NOBODY: Final = Node("?")
"""Sender of the vote request that only carries a term."""

_CONF: Final = SyncObjConf(
    autoTick=False,  # no thread
    appendEntriesUseBatch=True,  # False would open a pipe per channel
    dynamicMembershipChange=False,
    pollerType="select",  # holds no descriptor; replaced after construction
    raftMinTimeout=_NEVER_S,
    raftMaxTimeout=2 * _NEVER_S,
    connectionTimeout=2 * _NEVER_S,
    leaderFallbackTimeout=_NEVER_S,
    logCompactionMinTime=_NEVER_S,
)


def pysyncobj_hashes() -> dict[str, str]:
    """SHA-256 of the files of the installed pysyncobj that the adapter relies on, by file name."""
    modules = (pysyncobj.syncobj, pysyncobj.journal, pysyncobj.transport, pysyncobj.node)
    paths = [Path(module.__file__) for module in modules]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


class _HistorySlot:
    """A History in the place where pysyncobj keeps the term of the last log entry (S1.1).

    It is compared with other slots (``<``, ``==``), and once, at construction, with a plain term:
    ``max(term, slot)`` must keep the term, so a slot is never greater than an integer.
    """

    __slots__ = ("history",)
    __hash__ = None  # type: ignore[assignment]  # ordered, never a key

    def __init__(self, history: History) -> None:
        self.history = history

    def __lt__(self, other: _HistorySlot) -> bool:
        return self.history < other.history  # S1.1: (term of the last record, then its seq)

    def __gt__(self, other: object) -> bool:
        return isinstance(other, _HistorySlot) and self.history > other.history

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HistorySlot) and self.history == other.history


class _NeverSlot:
    """Below every history and equal to none: a vote request carrying it only raises the term."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return False


_NEVER: Final = _NeverSlot()


class _Journal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """pysyncobj's durable state, kept by the owner: term, vote and a log of one entry."""

    __slots__ = ("_owner",)

    def __init__(self, owner: VoteOwner) -> None:
        self._owner = owner

    def __len__(self) -> int:
        return 1

    def __getitem__(self, item: int | slice) -> Any:
        return [(_NO_OP, _LAST_INDEX, _HistorySlot(self._owner.own_history()))][item]

    def add(self, command: bytes, _index: int, _term: object) -> None:
        """A new leader's empty entry, which our term-start record replaces; else a bug."""
        if command != _NO_OP:
            raise ElectionError(f"pysyncobj tried to store {len(command)} bytes in a channel's log")

    def clear(self) -> None:
        """Never: our log is not pysyncobj's."""
        raise ElectionError("pysyncobj tried to clear a channel's log")

    def deleteEntriesFrom(self, first: int) -> None:
        """Never: our log is not pysyncobj's."""
        raise ElectionError(f"pysyncobj tried to truncate a channel's log from entry {first}")

    def deleteEntriesTo(self, last: int) -> None:
        """Never: our log is not pysyncobj's."""
        raise ElectionError(f"pysyncobj tried to compact a channel's log up to entry {last}")

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        """Term or vote changed; pysyncobj sends what reveals it only after this returned."""
        self._owner.persist(Term(term), None if voted_for is None else NodeId(voted_for))

    def getCurrentTerm(self) -> int:
        """The owner's term, which covers the term of its last record."""
        return self._owner.term

    def getVotedForNodeId(self) -> str | None:
        """Vote in the owner's term."""
        return self._owner.voted_for

    def setRaftCommitIndex(self, _index: int) -> None:
        """Commit positions are not pysyncobj's business."""

    def getRaftCommitIndex(self) -> int:
        """The one entry counts as committed, so pysyncobj never looks for more."""
        return _LAST_INDEX

    def onOneSecondTimer(self) -> None:
        """Nothing is buffered here."""

    def _destroy(self) -> None:
        """Nothing to close."""


_Deliver = Callable[[Node | None, dict[str, Any]], None]


class _Transport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """Carries vote requests and grants to the owner. The base class is not initialised: a dict
    of callbacks per channel is all it would add."""

    __slots__ = ("_owner", "connected", "deliver")

    def __init__(self, owner: VoteOwner) -> None:
        self._owner = owner
        self.deliver: _Deliver | None = None
        self.connected: Callable[[Node], None] | None = None

    def setOnMessageReceivedCallback(self, callback: _Deliver | None) -> None:
        """How messages made by this module are put in."""
        self.deliver = callback

    def setOnNodeConnectedCallback(self, callback: Callable[[Node], None] | None) -> None:
        """How the virtual peer is declared reachable."""
        self.connected = callback

    def setOnNodeDisconnectedCallback(self, callback: object) -> None:
        """The virtual peer never goes away."""

    def setOnReadonlyNodeConnectedCallback(self, callback: object) -> None:
        """There are no read-only nodes."""

    def setOnReadonlyNodeDisconnectedCallback(self, callback: object) -> None:
        """There are no read-only nodes."""

    def setOnUtilityMessageCallback(self, message: str, callback: object) -> None:
        """Remote administration of pysyncobj does not exist here."""

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        """Hand on what pysyncobj sends; anything unknown stops the node."""
        match message["type"]:
            case "request_vote":
                slot = message["last_log_term"]
                self._owner.vote_requested(Term(message["term"]), slot.history)
            case "response_vote":
                self._owner.vote_granted(NodeId(node.id), Term(message["term"]))
            case "append_entries":
                pass  # a new leader's greeting; ours is LeaderAnnounce
            case kind:
                raise ElectionError(f"pysyncobj {VERSION} sent an unexpected {kind!r} message")
        return True

    def destroy(self) -> None:
        """Break the reference cycle with the SyncObj, so that eviction frees it at once."""
        self.deliver = None
        self.connected = None


class _NullPoller:
    """Saves a system call per tick; there is nothing to wait for."""

    def poll(self, timeout: float) -> None:
        """Nothing can be ready."""

    def subscribe(self, *_arguments: object) -> None:
        """Watch no descriptor: there is none."""
        raise ElectionError("pysyncobj tried to watch a file descriptor")

    def unsubscribe(self, *_arguments: object) -> None:
        """Nothing was subscribed."""


class _Void:
    """Swallows a set of 60 names that pysyncobj keeps per instance for compacting its log."""

    def add(self, name: str) -> None:
        """Forget it."""

    def __contains__(self, name: object) -> bool:
        return True


_NULL_POLLER: Final = _NullPoller()
_VOID: Final = _Void()


class _Raft(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """A SyncObj that is only an election: cheap to make, without log, socket, thread and time."""

    def __init__(self, owner: VoteOwner) -> None:
        self._journal = _Journal(owner)
        self._journal_assignments = 0
        self.transport = _Transport(owner)
        super().__init__(Node(owner.me), [_VOTERS], _CONF, transport=self.transport)
        if self._journal_assignments != 1 or "_SyncObj__raftLog" in self.__dict__:
            raise ElectionError(f"pysyncobj {VERSION} no longer keeps its log where it is replaced")
        self._poller = _NULL_POLLER
        assert self.transport.connected is not None, "pysyncobj registered no callback"
        self.transport.connected(_VOTERS)  # it elects only while it sees a peer

    def __dir__(self) -> tuple[str, ...]:
        """Nothing: the constructor walks it twice, looking for methods to replicate."""
        return ()

    @property
    def _SyncObj__raftLog(self) -> _Journal:
        return self._journal

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, _journal: object) -> None:
        self._journal_assignments += 1

    @property
    def _SyncObj__properies(self) -> _Void:
        return _VOID

    @_SyncObj__properies.setter
    def _SyncObj__properies(self, _names: object) -> None:
        """Dropped."""

    @property
    def role(self) -> Role:
        """Role by pysyncobj's state number."""
        return _ROLES[self._SyncObj__raftState]

    @property
    def leader_node(self) -> Node | None:
        """The leader as pysyncobj holds it: what ``timeout_now`` must come from."""
        return self._getLeader()

    def receive(self, sender: Node | None, message: dict[str, Any]) -> None:
        """Put a message in."""
        assert self.transport.deliver is not None, "an evicted instance was used"
        self.transport.deliver(sender, message)


class PySyncObjMachine:
    """``voting.VoteMachine`` over one SyncObj."""

    __slots__ = ("_raft",)

    def __init__(self, owner: VoteOwner) -> None:
        self._raft = _Raft(owner)
        if self.term != owner.term or self.role is not Role.FOLLOWER:
            raise ElectionError(
                f"pysyncobj {VERSION} started as {self.role.value} in term {self.term} where term "
                f"{owner.term} is on disk"
            )

    @property
    def term(self) -> Term:
        """Term as pysyncobj has it."""
        return Term(self._raft.raftCurrentTerm)

    @property
    def role(self) -> Role:
        """State as pysyncobj has it."""
        return self._raft.role

    @property
    def leader(self) -> NodeId | None:
        """Leader as pysyncobj has it."""
        node = self._raft.leader_node
        return None if node is None else NodeId(node.id)

    def request_vote(self, candidate: NodeId, term: Term, history: History) -> None:
        """Inject a candidate's request with its history in the term slot."""
        self._inject_vote_request(Node(candidate), term, _HistorySlot(history))

    def observe_term(self, term: Term) -> None:
        """Inject a request that nobody could vote for."""
        self._inject_vote_request(_NOBODY, term, _NEVER)

    def learn_leader(self, leader: NodeId, term: Term) -> None:
        """Inject an append_entries without entries: sets term and leader, is not answered."""
        assert term >= self.term, f"the leader of {term} is followed in term {self.term} (S1.4)"
        message = {"type": "append_entries", "term": term, "commit_index": _LAST_INDEX}
        self._raft.receive(Node(leader), message)

    def start_election(self) -> None:
        """Let the known leader (if any) make pysyncobj stand, then tick once."""
        message = {"type": "timeout_now", "term": self._raft.raftCurrentTerm}
        self._raft.receive(self._raft.leader_node, message)
        self._raft.doTick(0)

    def grant_majority(self) -> None:
        """One reply of the virtual peer is a majority of two."""
        assert self.role is Role.CANDIDATE, f"the role {self.role} is given a majority (S1.3)"
        message = {"type": "response_vote", "term": self._raft.raftCurrentTerm}
        self._raft.receive(_VOTERS, message)

    def close(self) -> None:
        """Let the SyncObj go."""
        self._raft.destroy()

    def _inject_vote_request(
        self, sender: Node, term: Term, slot: _HistorySlot | _NeverSlot
    ) -> None:
        message = {
            "type": "request_vote",
            "term": term,
            "last_log_index": _LAST_INDEX,
            "last_log_term": slot,
        }
        self._raft.receive(sender, message)


class PySyncObjElector(VotingElector):
    """The production elector: the guarded rules over one lazily created SyncObj per channel."""

    __slots__ = ()

    def __init__(
        self,
        host: ElectionHost,
        channel: ChannelId,
        term: Term,
        voted_for: NodeId | None,
        *,
        settings: ElectionSettings,
    ) -> None:
        super().__init__(
            host, channel, term, voted_for, settings=settings, make_machine=PySyncObjMachine
        )


def pysyncobj_elector_factory(settings: ElectionSettings) -> ElectorFactory:
    """Make electors with these times; the durable (term, vote) comes with each channel."""

    def make(
        host: ElectionHost, channel: ChannelId, term: Term, voted_for: NodeId | None
    ) -> Elector:
        return PySyncObjElector(host, channel, term, voted_for, settings=settings)

    return make
