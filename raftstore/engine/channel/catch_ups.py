"""Channels of a node that catch up: which of them fetch history now, and what is reported of them.

A channel that catches up is of no use to anybody before it is done, so it is better to finish one
after another than all of them late: only the nearest to their end fetch at a time (NATS-135). A
channel that is nearly there never waits, and neither does one whose distance nobody knows yet: the
first answer gives it. Requests that have to wait are kept and leave when a nearer channel is done.
The core repeats a request that gets no answer; a channel whose leader does not answer holds up no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from raftstore.config import SLOW_EXIT, SLOW_IGNORED, CatchUpSettings
from raftstore.core.effects import (
    CannotCatchUp,
    CatchUpNote,
    CatchUpPaced,
    ModeChanged,
    ReplicaCannotComplete,
    ReplicaFlapping,
)
from raftstore.engine.node_ports import Tell
from raftstore.protocol.replication import MsgSyncRequest
from raftstore.types import ChannelId, FollowerMode, RequestId, node_name

NEAR_BATCHES: Final = 8
"""A channel that lacks no more than so many full answers fetches them in any case."""

SendRequest = Callable[[MsgSyncRequest], None]


class Channel(Protocol):
    """A channel of this node."""

    channel: ChannelId


class _Waiting(NamedTuple):
    """Requests of a channel that were not sent, by id: as many as it may have under way."""

    send: SendRequest
    messages: dict[RequestId, MsgSyncRequest]


class CatchUps:
    """Orders the catching-up of one node's channels."""

    def __init__(
        self,
        settings: CatchUpSettings,
        batch_bytes_max: int,
        tell: Tell,
        give_up: Callable[[str], None],
    ) -> None:
        """``give_up`` ends the node in order."""
        assert settings.parallel >= 1, f"{settings.parallel} channels fetch at a time"
        self._settings = settings
        self._near_bytes = NEAR_BATCHES * batch_bytes_max
        self._tell = tell
        self._give_up = give_up
        self._left: dict[ChannelId, int] = {}
        """Bytes that channels lack which are not near."""
        self._sent: dict[ChannelId, RequestId] = {}
        """The newest request of each of them that was let pass."""
        self._silent: set[ChannelId] = set()
        """Those of them whose leader did not answer in time."""
        self._waiting: dict[ChannelId, _Waiting] = {}
        self.mode_changes = dict.fromkeys(FollowerMode, 0)
        """How often channels of this node came into each mode."""
        self.on_steady: Callable[[ChannelId], None] = _nothing
        """Called with each channel that is at its leader's end."""

    # --- the order --------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Channels whose requests are held back."""
        return len(self._waiting)

    def waits(self, channel: ChannelId) -> bool:
        """Whether this one is held back for nearer ones."""
        return channel in self._waiting

    def request(
        self, channel: ChannelId, message: MsgSyncRequest, left: int | None, send: SendRequest
    ) -> None:
        """Send the request of a channel that lacks so many bytes (None: not known), or keep it."""
        if left is None or left <= self._near_bytes:
            self.forget(channel)
            send(message)
            return
        self._left[channel] = left
        is_repeated = message.request_id <= self._sent.get(channel, 0)
        if is_repeated:
            self._silent.add(channel)
        else:
            self._silent.discard(channel)
        if is_repeated or self._is_next(channel):
            self._sent[channel] = max(message.request_id, self._sent.get(channel, 0))
            send(message)
        else:
            self._keep(channel, message, send)
        self._release()

    def _keep(self, channel: ChannelId, message: MsgSyncRequest, send: SendRequest) -> None:
        messages = self._waiting.setdefault(channel, _Waiting(send, {})).messages
        messages[message.request_id] = message
        while len(messages) > self._settings.inflight_requests:
            del messages[min(messages)]

    def forget(self, channel: ChannelId) -> None:
        """The channel fetches no history, or not much: it is in nobody's way."""
        self._waiting.pop(channel, None)
        self._sent.pop(channel, None)
        self._silent.discard(channel)
        if self._left.pop(channel, None) is not None:
            self._release()

    def channel_closed(self, runner: Channel) -> None:
        """Its table was dropped, or it is opened anew."""
        self.forget(runner.channel)

    def leader_changed(self, runner: Channel, _before: object, _now_ms: int) -> None:
        """The channel has another leader, or none: what it asked the other one counts no more."""
        self.forget(runner.channel)

    def _release(self) -> None:
        """Let the nearest of those pass that wait."""
        for channel in sorted(self._waiting, key=self._rank):
            if not self._is_next(channel):
                return
            send, messages = self._waiting.pop(channel)
            self._sent[channel] = max(messages)
            for message in messages.values():
                send(message)

    def _rank(self, channel: ChannelId) -> tuple[int, ChannelId]:
        return self._left[channel], channel

    def _is_next(self, channel: ChannelId) -> bool:
        """Whether it is among the nearest, of those that get answers."""
        mine = self._rank(channel)
        nearer = sum(
            each not in self._silent and (left, each) < mine for each, left in self._left.items()
        )
        return nearer < self._settings.parallel

    # --- reports ----------------------------------------------------------------------------------

    def cannot_complete(self, channel: ChannelId, name: str, note: CannotCatchUp) -> bool:
        """Copies of its table do not bring a replica to its leader's end either; return whether its
        leader should know, as of one that falls behind with history."""
        self.note(channel, name, note)
        return self._settings.slow_action != SLOW_IGNORED

    def note(self, channel: ChannelId, name: str, note: CatchUpNote) -> None:
        """Report it; a replica that cannot catch up may end its node (``catchup.slow_action``)."""
        match note:
            case ModeChanged(mode, reason):
                self.forget(channel)  # what it asked in the other mode counts no more
                self.mode_changes[mode] += 1
                if mode is FollowerMode.STEADY:
                    self.on_steady(channel)
                self._tell("mode", channel=name, mode=mode.value, reason=reason)
            case CatchUpPaced(view):
                self._tell("catch_up", channel=name, **view._asdict())
            case ReplicaFlapping(reason, stay_ms):
                self._tell("flapping", channel=name, reason=reason, stay_ms=stay_ms)
            case ReplicaCannotComplete(node, deltas):
                replica, behind = node_name(node), _text(deltas)
                self._tell(
                    "replica_cannot_complete", channel=name, replica=replica, rows_behind=behind
                )
            case CannotCatchUp(deltas, verified_seq):
                self._tell(
                    "cannot_complete",
                    channel=name,
                    verified_seq=verified_seq,
                    rows_behind=_text(deltas),
                    action=self._settings.slow_action,
                )
                if self._settings.slow_action == SLOW_EXIT:
                    self._give_up(
                        f"channel {name} falls further behind its leader all the time, by "
                        f"{_text(deltas)} rows, and catchup.slow_action is {SLOW_EXIT}: give the "
                        "node a faster disk or processor, or fewer channels"
                    )
            case _:
                raise AssertionError(f"{note} is not reported")


def _nothing(channel: ChannelId) -> None:
    """Let a channel be at its leader's end without anybody who waits for it."""


def _text(deltas: tuple[int, ...]) -> str:
    return ", ".join(map(str, deltas))
