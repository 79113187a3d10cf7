"""Channel sets of fake nodes whose machines are real: states that are pinned, read entry by entry,
and filled portion by portion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from raftstore.protocol.machines import CommandAck
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.records import Record
from raftstore.protocol.replica_checks import (
    ROW_ENTRY,
    EntriesAnswer,
    PinState,
    PinStateAnswer,
    ReadEntries,
)
from raftstore.rows.sealing import seal
from raftstore.state_machines.machine_state import kept_ends

if TYPE_CHECKING:
    from tests.integration.client.fake_cluster import Channel, FakeNode

PAGE_ENTRIES = 3
"""Of one answer: a reader goes on behind it."""


def apply_really(channel: Channel, message: PubMsg, ack: PubAck) -> CommandAck:
    """Have the real machine of a channel apply a record with a command or a portion."""
    assert channel.bench is not None
    bench, payload = channel.bench, bytes(message.payload)
    record = Record(
        channel.term, ack.base_seq, message.rows, message.guid, channel.now_ms + ack.last_seq,
        bytes(16), message.kind, payload,
    )  # fmt: skip
    bench.user.check(message.kind, payload, message.rows)
    result = bench.apply(record)
    assert result.failure is None, result.failure
    assert result.answer is not None
    kept = kept_ends(result.answer)[0]
    return CommandAck(**structs.asdict(ack), **structs.asdict(kept))


def give_state(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> bool:
    """React to what is asked of states; False: it is something else."""
    if not isinstance(message, PinState | ReadEntries):
        return False
    node.states_asked.append(message)
    channel = node.cluster.channels[message.channel]
    assert channel.bench is not None
    if isinstance(message, PinState):
        if message.seq > channel.seq:
            reply(Failed(message.request_id, "not_up_to_bound", f"applied {channel.seq}"))
            return True
        node.pinned += 1
        bench = channel.bench
        entries = {ROW_ENTRY + key: seal(key, value) for key, value in bench.rows.items()}
        entries |= {key: seal(key, value) for key, value in bench.state.items()}
        node.states[node.pinned] = entries
        answer = PinStateAnswer(message.request_id, node.pinned, channel.seq, channel.term)
        reply(answer)
    elif message.pin not in node.states:
        reply(Failed(message.request_id, "page_expired", "the pinned state is gone"))
    else:
        found = sorted(
            (key, value)
            for key, value in node.states[message.pin].items()
            if key.startswith(message.prefix) and key > message.after
        )
        page = tuple(found[:PAGE_ENTRIES])
        reply(EntriesAnswer(message.request_id, page, len(found) > len(page)))
    return True
