"""Between nodes: leaderships that are moved so that every node leads its share.

The leader of the metadata channel plans and asks the node that shall lead; that one asks the leader
of the channel, which hands it over (S9). Both may refuse, and say why. Which of them is asked for
what is only advice: no message of these gives anybody a role.

Nodes below the level that these came with are sent none of them.
"""

from __future__ import annotations

from raftstore.protocol.message import ChannelMessage
from raftstore.protocol.tags import tag_of


class TakeLead(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader of the metadata channel -> replica: have the leader of ``term`` hand its channel over
    to you, if you can lead."""


class AskLead(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Replica -> leader of ``term``: hand over to me, if I have nearly all that you have."""


class LeadRefused(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Replica or leader -> leader of the metadata channel: who leads in ``term`` stays, and why."""

    reason: str


LeaderMoveMessage = TakeLead | AskLead | LeadRefused
