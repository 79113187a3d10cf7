"""Votes, announcements and transfers of leadership (S1)."""

from __future__ import annotations

from raftstore.protocol.message import ChannelMessage
from raftstore.protocol.replication import StaleTerm
from raftstore.protocol.tags import tag_of
from raftstore.types import FOUNDING_NUMBER, History, ReplicaNumber, Term


class PreVote(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Would you vote for me in ``proposed_term``? Changes nothing at the receiver."""

    proposed_term: Term
    history: History


class PreVoteReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """``term`` is the replier's own."""

    proposed_term: Term
    granted: bool
    replica: ReplicaNumber = FOUNDING_NUMBER


class RequestVote(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Candidate -> voters. ``transfer``: the leader asked for this election (S9)."""

    history: History
    transfer: bool


class VoteReply(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Voter -> candidate of ``vote_term``; ``term`` is the voter's own."""

    vote_term: Term
    granted: bool
    replica: ReplicaNumber = FOUNDING_NUMBER


class LeaderAnnounce(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader of ``term`` -> replicas; leaves only after its vote is durable."""


class TransferNow(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> the replica that shall take over at once (S9)."""


class StepDownNotice(ChannelMessage, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Leader -> replicas: I gave up leading ``term``; stand for election now (NATS-211)."""


ElectionMessage = (
    PreVote
    | PreVoteReply
    | RequestVote
    | VoteReply
    | LeaderAnnounce
    | TransferNow
    | StepDownNotice
    | StaleTerm
)
