"""The state machine that fake nodes have: a counter for each key, which never falls below 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from raftstore.errors import RejectedError
from raftstore.machine import CommandContext, QueryContext, StateMachine, codec
from raftstore.protocol.machines import CommandAck, MachineAnswer, MachineQuery, decode_command
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubMsg
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.protocol.shared_commands import (
    CROWDED_OUT,
    CommandEnd,
    CommandsAck,
    decode_commands,
)
from raftstore.types import Seq

if TYPE_CHECKING:
    from tests.integration.client.fake_cluster import Channel, FakeNode

REASON = "a counter cannot fall below 0"
LARGE = 1_000
"""Commands to add so much or more leave no room for those behind them in their record."""


class Counter(StateMachine):
    """The code as clients know it; the fake nodes count by themselves."""

    commands = results = codec(int)
    queries = codec(str)
    answers = codec(dict[str, int])

    def apply(self, command: Any, context: CommandContext) -> Any:
        """Add to the total of a key."""
        total = int(context.state.get(context.key) or 0) + command
        if total < 0:
            raise RejectedError(REASON)
        context.state.put(context.key, b"%d" % total)
        return total

    def query(self, request: Any, context: QueryContext) -> Any:
        """The total of a key, under the name that the request gives it."""
        return {request: int(context.state.get(context.key) or 0)}


def count_all(channel: Channel, message: PubMsg, ack: PubAck) -> CommandsAck:
    """Apply the commands of a shared record."""
    ends: list[CommandEnd] = []
    is_full = False
    for payload in decode_commands(message.payload):
        if is_full:
            ends.append(CommandEnd(is_rejected=True, reason=CROWDED_OUT))
            continue
        is_full = Counter.commands.decode(decode_command(payload)[1]) >= LARGE
        end = count(channel, payload, ack)
        ends.append(CommandEnd(end.result, end.is_rejected, end.reason))
    return CommandsAck(**structs.asdict(ack), ends=tuple(ends))


def count(channel: Channel, payload: bytes, ack: PubAck) -> CommandAck:
    """Apply a command as a node does that acknowledged it."""
    key, command = decode_command(payload)
    stored, _ = channel.rows.get(key, (b"0", Seq(0)))
    total = int(stored) + Counter.commands.decode(command)
    fields = structs.asdict(ack)
    if total < 0:
        return CommandAck(**fields, is_rejected=True, reason=REASON)
    channel.rows[key] = (b"%d" % total, channel.seq)
    return CommandAck(**fields, result=Counter.results.encode(total))


def ask(
    node: FakeNode,
    message: MachineQuery,
    reply: Callable[[Message], None],
    read: Callable[[FakeNode, Message, Callable[[Message], None]], None],
) -> None:
    """Answer a query where a read of the same level would be answered."""

    def answer(message_read: Message) -> None:
        if not isinstance(message_read, GetAnswer):
            reply(message_read)
            return
        total = int(message_read.values[0] or 0)
        name = Counter.queries.decode(message.request)
        if name == "refused":
            rejected = MachineAnswer(
                message.request_id, b"", message_read.served, is_rejected=True, reason="not so"
            )
            reply(rejected)
            return
        said = Counter.answers.encode({name: total})
        reply(MachineAnswer(message.request_id, said, message_read.served))

    get = Get(
        message.request_id,
        message.channel,
        (message.key,),
        message.level,
        message.max_lag,
        message.min_seq,
        message.timeout_ms,
    )
    read(node, get, answer)
