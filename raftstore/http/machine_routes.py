"""Users' state machines: list and look at channel sets, send commands, ask."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from raftstore.client.machines.channel_set import AsyncChannelSet
from raftstore.client.machines.json_values import from_json, to_json
from raftstore.client.machines.results import QueryResult
from raftstore.http.errors import bad_request
from raftstore.http.json_shapes import ChannelBody, channel_bodies, provenance_headers
from raftstore.http.queries import Freshness, Timed
from raftstore.http.roles import Role
from raftstore.http.routes import Answer, Call, Route
from raftstore.protocol.admin import TableInfo

Key = Annotated[str, Meta(description="By which the partition is chosen.", min_length=1)]
Partition = Annotated[int, Meta(ge=0, description="This partition, instead of that of a key.")]


class MachineBody(msgspec.Struct, frozen=True):
    """A channel set with its placement, as far as known."""

    name: str
    uuid: str
    machine: str
    """Its state machine: package.module:Class, or an entry point."""
    version: int
    """Of the machine, with which the channel set was created."""
    partitions: int
    replicas: int
    durability: str
    channels: list[ChannelBody]
    restoring: bool = False
    """It is being filled from a backup, and answers nobody yet."""


class MachinesBody(msgspec.Struct, frozen=True):
    """All channel sets in name order."""

    machines: list[MachineBody]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of :command."""

    command: Annotated[
        Any,
        Meta(
            description="As the machine's codec has it in JSON; where it has none, text, or "
            '{"$binary": base64}.'
        ),
    ]
    key: Key | None = None
    partition: Partition | None = None
    guid: (
        Annotated[
            str,
            Meta(
                description="Of an error whose outcome is unknown: the same command, applied once "
                "however often it is sent."
            ),
        ]
        | None
    ) = None


class CommandAnswer(msgspec.Struct, frozen=True):
    """The result of a command, which is durable on a quorum and applied at the leader."""

    result: Any
    position: str
    partition: int
    seq: int
    term: int
    durability: str
    replicas_acked: int
    guid: str


class Question(Freshness, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of :query; how fresh the state must be goes beside the question."""

    request: Annotated[Any, Meta(description="The question, like a command.")] = None
    key: Key | None = None
    partition: Partition | None = None


class QueryAnswer(msgspec.Struct, frozen=True):
    """An answer of a machine, by whom it was given and how fresh that was."""

    answer: Any
    partition: int
    served_by: str
    position: str
    """Give it as at_least for queries that never go back."""
    lag: int | None
    """Commands behind what the replica knew to be committed; null: unknown."""
    age_ms: int | None
    staleness_ms: int | None
    level: str
    term: int


async def machines(call: Call) -> Answer:
    """List the channel sets."""
    found = await (await call.client()).channelsets(timeout=call.left_s)
    return Answer(MachinesBody([_body(info) for info in found]))


async def machine(call: Call) -> Answer:
    """Look at one channel set."""
    client = await call.client()
    return Answer(_body(await client.channelset_info(call.path["machine"], timeout=call.left_s)))


async def command(call: Call) -> Answer:
    """Have a command applied, exactly once."""
    wanted: Command = call.body
    channelset = (await call.client()).channelset(call.path["machine"])
    codecs = await channelset.codecs(timeout=call.left_s)
    value = from_json(codecs.commands, wanted.command)
    if (wanted.key is None) == (wanted.partition is None):
        raise bad_request("give either a key or a partition")
    if wanted.key is not None:
        done = await channelset.command_result(
            wanted.key, value, guid=wanted.guid, timeout=call.left_s
        )
    else:
        assert wanted.partition is not None
        done = await channelset.command_to_partition(
            wanted.partition, value, guid=wanted.guid, timeout=call.left_s
        )
    body = CommandAnswer(
        result=to_json(done.result),
        position=str(done.position),
        partition=done.partition,
        seq=done.seq,
        term=done.term,
        durability=done.durability,
        replicas_acked=done.replicas_acked,
        guid=done.guid,
    )
    return Answer(body, headers={"X-Raftstore-Position": str(done.position)})


async def ask(call: Call) -> Answer:
    """Ask the machine of one partition."""
    wanted: Question = call.body
    channelset = (await call.client()).channelset(call.path["machine"])
    result = await _asked(call, channelset, wanted)
    body = QueryAnswer(
        answer=to_json(result.answer),
        partition=result.partition,
        served_by=result.node,
        position=str(result.applied_position),
        lag=result.lag,
        age_ms=result.leader_info_age_ms,
        staleness_ms=result.staleness_ms,
        level=result.level.value,
        term=result.term,
    )
    return Answer(body, headers=provenance_headers((result,), result.applied_position))


async def _asked(call: Call, channelset: AsyncChannelSet, wanted: Question) -> QueryResult:
    codecs = await channelset.codecs(timeout=call.left_s)
    request = from_json(codecs.queries, wanted.request)
    if (wanted.key is None) == (wanted.partition is None):
        raise bad_request("give either a key or a partition")
    options = wanted.options(call.left_s)
    if wanted.key is not None:
        return await channelset.query_result(wanted.key, request, **options)
    assert wanted.partition is not None
    return await channelset.query_partition(wanted.partition, request, **options)


def _body(info: TableInfo) -> MachineBody:
    return MachineBody(
        name=info.name,
        uuid=info.uuid.hex(),
        machine=info.machine,
        version=info.machine_version,
        partitions=info.partitions,
        replicas=info.replicas,
        durability=info.durability,
        channels=channel_bodies(info),
        restoring=info.settings.restoring is not None,
    )


ROUTES: Final = (
    Route(
        "GET",
        "/v1/machines",
        "All channel sets (state machines of users) in name order.",
        machines,
        Timed,
        MachinesBody,
    ),
    Route(
        "GET",
        "/v1/machines/{machine}",
        "One channel set: its machine, placement, leaders.",
        machine,
        Timed,
        MachineBody,
        errors=(404,),
    ),
    Route(
        "POST",
        "/v1/machines/{machine}:command",
        "Have a command applied, exactly once, and get its result. 409 with error_code rejected "
        "when the machine refused it: then it changed nothing.",
        command,
        Timed,
        CommandAnswer,
        body=Command,
        errors=(404, 409, 413, 429, 504),
        role=Role.WRITE,
        is_write=True,
    ),
    Route(
        "POST",
        "/v1/machines/{machine}:query",
        "Ask the machine of one partition, at any level of consistency.",
        ask,
        Timed,
        QueryAnswer,
        body=Question,
        errors=(404, 409),
        is_query=True,
    ),
)
