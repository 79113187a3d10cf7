"""Leaderships of a node without space on its disk, offered to replicas that have some (S9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.types import ChannelId, NodeId, Role

HAND_OVER_INTERVAL_MS: Final = 10_000
"""Between two tries to give away the leadership of a channel, each to another voter."""


class SpaceHandOvers:
    """Hand-overs of one node whose disk is nearly full."""

    def __init__(self, me: NodeId, channels: Mapping[ChannelId, ChannelRunner]) -> None:
        self._me = me
        self._channels = channels
        self._tries: dict[ChannelId, tuple[int, int]] = {}
        """How often each leadership was offered, and when it may be again (ms)."""

    def offer(self, now_ms: int) -> None:
        """S9: offer each leadership to one voter after another; one without space declines."""
        for channel in [each for each in self._tries if each not in self._channels]:
            del self._tries[channel]
        for runner in tuple(self._channels.values()):
            # The catalog stays: its commands are small, and dropping a table frees space.
            if runner.elector.role is not Role.LEADER or runner.name == METADATA_NAME:
                continue
            tries, due_ms = self._tries.get(runner.channel, (0, now_ms))
            config = runner.config()
            voters = [each for each in config.voters if each != self._me]
            voters = [
                each for each in voters if not config.is_witness(each) and runner.parts.is_up(each)
            ]
            if due_ms <= now_ms and voters:
                self._tries[runner.channel] = (tries + 1, now_ms + HAND_OVER_INTERVAL_MS)
                target = voters[tries % len(voters)]
                runner.request_hand_over(target, "no space on the disk", now_ms)
