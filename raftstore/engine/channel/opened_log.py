"""The log of a channel as it is found when the channel is opened."""

from __future__ import annotations

from raftstore.errors import StoreIdentityError
from raftstore.ports.log import MessageLog, RecoveredChannel
from raftstore.types import TERM_MAX, ChannelId, ReplicaNumber


def recovered_from(
    log: MessageLog, channel: ChannelId, name: str, number: ReplicaNumber
) -> RecoveredChannel:
    """The recovered state of the channel; StoreIdentityError when no election led to its term.

    Raises UnknownChannelError for a channel that was dropped, or a replica that was removed (M14).
    """
    recovered = log.open_channel(channel, number)
    if recovered.term > TERM_MAX:
        raise StoreIdentityError(
            f"channel {name} is in term {recovered.term} by this store, and no message "
            f"has room for one above {TERM_MAX}: no election leads there, so it was forged; "
            "move the data directory away and start the node with an empty one"
        )
    return recovered
