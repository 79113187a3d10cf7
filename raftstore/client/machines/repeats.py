"""A command given again by its name, whose outcome was not known.

One that had a record of its own is published again under the same guid: the nodes recognise it. Of
one that shared a record the leader is asked for the outcome of that record first. Committed: the
command's end is in the answer. Not applied: that is final (N4), so from now on the command is a
record of its own, under the guid that it had in the shared one, which is recognised, too, however
often it is given; so it is with one that was crowded out of its record. Not known: nothing is sent.
"""

from __future__ import annotations

from msgspec.structs import astuple

from raftstore.client.requests.answers import expect
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.client.writes.kinds import Write
from raftstore.client.writes.publisher import Publisher
from raftstore.client.writes.write_outcomes import COMMITTED, NOT_APPLIED, parse_name
from raftstore.errors import ConnectionInDoubtError, GuidExpiredError, RequestError
from raftstore.policy.levels import SHARED_COMMANDS_LEVEL
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machines import CommandAck
from raftstore.protocol.publish import PubAck
from raftstore.protocol.shared_commands import (
    CommandFate,
    CommandFateAnswer,
    guid_of_place,
    is_crowded_out,
)
from raftstore.types import Guid, Outcome, Seq


class CommandRepeats:
    """See the module."""

    def __init__(self, publisher: Publisher, leaders: LeaderRequests) -> None:
        self._publisher = publisher
        self._leaders = leaders

    async def repeat(self, info: TableInfo, write: Write, name: str, deadline_ms: int) -> PubAck:
        """Have the command of this name applied if it was not; return its ack."""
        _, guid, place, _ = parse_name(name)
        try:
            if not place:
                return await self._publisher.publish(write, deadline_ms, repeats=guid)
            self._publisher.check_over(write.channel, guid)
            answer = await self._fate(info, write, name, deadline_ms)
            is_final = answer.end is not None and is_crowded_out(answer.end)
            if answer.fate == COMMITTED and not is_final:
                return _known(info, write, guid, answer)
            if answer.fate != NOT_APPLIED and not is_final:
                raise GuidExpiredError(
                    f"{info.name}: whether the command {name} was applied is not known: "
                    f"{answer.reason}"
                )
            own = guid_of_place(guid, place)
            return await self._publisher.publish(write, deadline_ms, repeats=own)
        except RequestError as error:
            error.guid = name
            raise

    async def _fate(
        self, info: TableInfo, write: Write, name: str, deadline_ms: int
    ) -> CommandFateAnswer:
        """The outcome of the record that the command was in, and its end in it."""
        _, guid, place, _ = parse_name(name)
        try:
            reported = await self._leaders.ask(
                write.channel,
                lambda request_id, left_ms: CommandFate(
                    request_id, write.channel, guid, left_ms, place
                ),
                deadline_ms,
                asked=Asked(
                    f"outcome of the command {name}", is_read=True, level=SHARED_COMMANDS_LEVEL
                ),
            )
        except RequestError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise
            # Of a question nothing is in doubt, but of the command that it was about.
            raise ConnectionInDoubtError(
                f"{info.name}: whether the command was applied before is not known, and it was "
                f"not sent again: {error}"
            ) from error
        return expect(CommandFateAnswer, reported)


def _known(info: TableInfo, write: Write, guid: Guid, answer: CommandFateAnswer) -> CommandAck:
    """The ack of a command whose record is committed."""
    if answer.end is None:
        raise GuidExpiredError(
            f"{info.name}: the command was applied at seq {answer.seq}, and its result is not kept "
            "any more; query the machine to see what it did"
        )
    quorum = info.replicas // 2 + 1
    return CommandAck(
        write.channel, answer.term, guid, answer.seq, answer.seq, answer.term, info.durability,
        quorum, False, Seq(0), *astuple(answer.end),
    )  # fmt: skip
