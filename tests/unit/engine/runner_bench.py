"""One channel's runner between an elector and a core that say what a test wants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.config import (
    CatchUpSettings,
    ElectionSettings,
    MembershipSettings,
    ReadSettings,
    ReplicationSettings,
)
from raftstore.core import events
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.channel_parts import ChannelNotices
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import Refusal
from raftstore.protocol.election import RequestVote
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replication import CommitNotice, StoreAck
from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables
from raftstore.types import (
    EMPTY_HISTORY,
    ChannelConfig,
    History,
    NodeId,
    Role,
    Seq,
    Term,
    channel_id,
)

CHANNEL = channel_id(b"orders-table-id!", 0)
ME, PEER, THIRD, STRANGER = (NodeId(f"{name}@00") for name in ("n1", "n2", "n3", "x"))
TERM = Term(5)
NOW = 1_000


class Elector:
    """Takes what it is called with, and says what the test wants."""

    def __init__(self) -> None:
        self.term, self.role = TERM, Role.FOLLOWER
        self.leader: NodeId | None = PEER
        self.told: list[tuple[Any, ...]] = []
        self.follows = True
        self.due_ms: int | None = None

    def on_message(self, sender: NodeId, message: Message, now_ms: int) -> None:
        """An election message."""
        self.told.append(("message", sender, message, now_ms))

    def on_leader(self, leader: NodeId, term: Term, now_ms: int) -> bool:
        """A claim to lead; False: it is of the past."""
        self.told.append(("leader", leader, term, now_ms))
        return self.follows

    def observe_term(self, term: Term) -> None:
        """A higher term."""
        self.told.append(("term", term))

    def suspect(self, now_ms: int, delay_ms: int) -> None:
        """The leader is believed gone."""
        self.told.append(("suspect", now_ms, delay_ms))

    def step_down(self, reason: str) -> None:
        """Give up leading."""
        self.told.append(("step_down", reason))

    def poll(self, now_ms: int) -> None:
        """A deadline has come."""
        self.told.append(("poll", now_ms))

    def next_deadline_ms(self) -> int | None:
        """When to be polled."""
        return self.due_ms


class Core:
    """Notes the events it is stepped with; has no effects."""

    def __init__(self) -> None:
        self.stepped: list[tuple[Any, int]] = []
        self.is_trusting = True
        self.role, self.term, self.commit_seq = Role.FOLLOWER, TERM, Seq(3)
        self.due_ms: int | None = None
        self.wall_offset_ms = 0
        self.released = 0

    def step(self, event: Any, now_ms: int) -> list[Any]:
        """One event."""
        self.stepped.append((event, now_ms))
        return []

    members = (ME, PEER, THIRD)
    is_removed = False

    def may_stand(self) -> bool:
        """It is healthy."""
        return True

    def may_vote(self, candidate: History) -> bool:
        """It is healthy."""
        del candidate
        return True

    def config(self) -> ChannelConfig:
        """Three voters."""
        return ChannelConfig(((ME, PEER, THIRD),))

    def config_before(self) -> ChannelConfig:
        """Nothing changes."""
        return self.config()

    def next_deadline_ms(self) -> int | None:
        """When to be stepped."""
        return self.due_ms

    def release_payloads(self) -> None:
        """Give room back."""
        self.released += 1


class Bench:
    """One channel of a node, between a core and an elector that do nothing by themselves."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[tuple[str, NodeId, Message]] = []
        self.replies: list[tuple[int, PubReject]] = []
        self.refusal: Refusal | None = None
        self.judged: list[tuple[int, bool]] = []
        """Bytes of each write that the disk was asked about, and whether it is a client's."""
        self.staging: Refusal | None = None
        self.down: tuple[NodeId, ...] = ()
        self.notices = ChannelNotices()
        self.active = ActiveChannels()
        self.elector, self.core = Elector(), Core()
        self.log, self.drawn = SimLog.new(), 7
        self.clock = SimpleNamespace(now_ms=NOW, wall_ms=lambda: 1_700_000_000_000)
        settings = SimpleNamespace(
            replication=ReplicationSettings(),
            catchup=CatchUpSettings(),
            membership=MembershipSettings(),
            read=ReadSettings(),
            election=ElectionSettings(backoff_min_ms=20, backoff_max_ms=90),
        )
        me: Any = self
        parts: Any = SimpleNamespace(
            me=ME,
            boot_id=bytes(16),
            settings=settings,
            log=self.log,
            tables=SimTables(),
            ids=me,
            clock=self.clock,
            elector_factory=lambda *_: self.elector,
            outbox=me,
            guard=SimpleNamespace(
                write_refusal=self._write_refusal,
                takes_records=lambda is_catalog: self.refusal is None,
            ),
            active=self.active,
            catch_ups=SimpleNamespace(note=lambda *of: None),
            notices=self.notices,
            room=me,
            tell=lambda name, **fields: self.events.append((name, fields)),
            halt=lambda reason: None,
            reply=lambda client, message: self.replies.append((client, message)),
            is_up=lambda node: node not in self.down,
            stamp_ms=lambda config: self.clock.wall_ms(),
            heard_leader=lambda runner, leader: 77 if leader == PEER else None,
            stage_refusal=lambda runner, message: self.staging,
        )
        machine = TableMachine()
        self.runner = ChannelRunner(
            parts,
            channel=CHANNEL,
            name="orders/0",
            creation_config=self.core.config(),
            machine=machine,
            durability="fsync",
        )
        core: Any = self.core
        self.runner.core = core
        self.active.take_touched()

    def _write_refusal(self, more_bytes: int, *, is_client: bool) -> Refusal | None:
        self.judged.append((more_bytes, is_client))
        return self.refusal

    def below(self, number: int) -> int:
        """A random number below this one."""
        assert number == 71
        return self.drawn

    def send_known(self, to: NodeId, message: Message) -> None:
        """On the control lane, when all that is known by now is durable."""
        self.sent.append(("known", to, message))

    def send_term(self, to: NodeId, message: Message, *, term_operation: int) -> None:
        """On the control lane, when the term is durable."""
        self.sent.append((f"term {term_operation}", to, message))

    def stepped(self) -> list[tuple[Any, int]]:
        """Events of the core since this was asked last; the node looks at the channel again."""
        stepped, self.core.stepped = self.core.stepped, []
        assert list(self.active.take_touched()) == [CHANNEL]
        return stepped

    def awaits(self) -> bool:
        """Whether anything of the channel is not durable yet."""
        return self.runner.awaits_durability

    def heard_ms(self) -> int | None:
        """How old the leader's word is."""
        return self.runner.leader_info_heard_ms

    def is_untouched(self) -> bool:
        """Nothing at all happened to the channel."""
        nothing = not self.core.stepped and not self.elector.told and not self.sent
        return nothing and not self.active.take_touched()

    def moves(self, leader: NodeId | None = THIRD, role: Role = Role.FOLLOWER) -> None:
        """Have the elector change its mind with the next call that it gets."""
        runner, elector = self.runner, self.elector

        class Telling(list[Any]):
            def append(self, item: Any) -> None:
                super().append(item)
                elector.term, elector.role, elector.leader = Term(TERM + 1), role, leader
                runner.role_changed(elector.term, role, leader)

        elector.told = Telling()


CHANGED = events.RoleChanged(Term(TERM + 1), Role.FOLLOWER, THIRD)
VOTE = RequestVote(CHANNEL, TERM, EMPTY_HISTORY, transfer=False)


def notice(term: int = TERM, commit: int = 3) -> CommitNotice:
    """A leader's word."""
    return CommitNotice(CHANNEL, Term(term), Seq(commit), Seq(9), Term(term), b"")


def ack(term: int = TERM) -> StoreAck:
    """A follower's word."""
    return StoreAck(CHANNEL, Term(term), Seq(4))
