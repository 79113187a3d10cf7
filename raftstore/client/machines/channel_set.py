"""A channel set as users see it: commands, which name their outcome, and queries at every level."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from raftstore.client.arguments import whole
from raftstore.client.context import Context
from raftstore.client.machines.code import Codecs, codecs_by_name
from raftstore.client.machines.repeats import CommandRepeats
from raftstore.client.machines.results import CommandResult, QueryResult
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.key_reads import gather_or_cancel
from raftstore.client.reads.read_spec import ReadOptions, ReadSpec, spec_of
from raftstore.client.settings import ANSWERS_AT_ONCE
from raftstore.client.writes.kinds import Write
from raftstore.client.writes.publisher import Publisher
from raftstore.client.writes.write_outcomes import parse_name
from raftstore.errors import (
    ArgumentError,
    ConnectionInDoubtError,
    DecodeError,
    GuidExpiredError,
    GuidReuseError,
    OperationInDoubtError,
    PayloadTooLargeError,
    PositionError,
    RejectedError,
    RequestError,
    SchemaError,
    UnknownTableError,
)
from raftstore.machine import BYTES, COMMAND_BYTES_MAX, STATE_KEY_BYTES_MAX
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machines import CommandAck, MachineAnswer, encode_command
from raftstore.protocol.publish import PubAck
from raftstore.rows.partitioner import partition_of
from raftstore.types import Level, RecordKind, channel_table, node_name

Key = str | bytes
"""By which a command or query comes to its partition; text stands for its UTF-8."""


class AsyncChannelSet:
    """A channel set by name; made by ``client.channelset(name)``, which asks nobody.

    Values are encoded by the codecs of the machine's class, where that was given or can be
    imported; else they are bytes.
    """

    def __init__(
        self,
        name: str,
        context: Context,
        publisher: Publisher,
        channel_reads: ChannelReads,
        codecs: Codecs | None,
        repeats: CommandRepeats,
    ) -> None:
        self.name = name
        self._context = context
        self._publisher = publisher
        self._channel_reads = channel_reads
        self._given = codecs
        self._repeats = repeats
        self._found: tuple[str, Codecs] | None = None
        """Those of the machine with this name."""

    def __repr__(self) -> str:
        info = self._context.topology.table(self.name)
        known = "" if info is None else f": {info.machine}, {info.partitions} partitions"
        return f"<{type(self).__name__} {self.name!r}{known}>"

    async def definition(self, *, timeout: float | None = None) -> TableInfo:
        """Return the definition as it is known here; asks only when it is not."""
        return await self._open(self._context.deadline_ms(timeout))

    async def codecs(self, *, timeout: float | None = None) -> Codecs:
        """Return how values are encoded."""
        return self._codecs(await self._open(self._context.deadline_ms(timeout)))

    # --- commands --------------------------------------------------------------------------------

    async def command(
        self, key: Key, command: Any, *, guid: str | None = None, timeout: float | None = None
    ) -> Any:
        """Have a command applied, exactly once, and return its result.

        It goes to the partition of ``key``. It is retried until ``timeout``, over failures of
        leaders, too; every attempt has the same guid, so it is applied once however often it
        arrives. RejectedError when the machine refused it: then it changed nothing. An error with
        ``outcome`` UNKNOWN has its ``guid``: the same command given again with it is the same
        command, and answered with the result that it had.
        """
        return (await self.command_result(key, command, guid=guid, timeout=timeout)).result

    async def command_result(
        self, key: Key, command: Any, *, guid: str | None = None, timeout: float | None = None
    ) -> CommandResult:
        """The same; return the result with its place."""
        deadline_ms = self._context.deadline_ms(timeout)
        encoded = key_bytes(key)
        if not encoded:
            raise ArgumentError("the key is empty; give a text or bytes")
        info = await self._open_of(guid, deadline_ms)
        partition = partition_of(encoded, info.partitions)
        return await self._command(info, partition, encoded, command, guid, deadline_ms)

    async def command_to_partition(
        self,
        partition: int,
        command: Any,
        *,
        key: Key = b"",
        guid: str | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Have a command applied by the machine of one partition, whatever its key is."""
        deadline_ms = self._context.deadline_ms(timeout)
        encoded = key_bytes(key)
        info = await self._open_of(guid, deadline_ms)
        whole("partition", partition, 0, info.partitions - 1)
        return await self._command(info, partition, encoded, command, guid, deadline_ms)

    async def _command(
        self,
        info: TableInfo,
        partition: int,
        key: bytes,
        command: Any,
        guid_given: str | None,
        deadline_ms: int,
    ) -> CommandResult:
        codecs = self._codecs(info)
        data = codecs.encode(codecs.commands, "command", command)
        if len(data) > COMMAND_BYTES_MAX:
            raise PayloadTooLargeError(
                f"a command of {len(data)} bytes is over the limit of {COMMAND_BYTES_MAX}; send "
                "less at once",
                size=len(data),
                limit=COMMAND_BYTES_MAX,
            )
        channel = info.channels[partition].channel
        payload = encode_command(key, data)
        if guid_given is None:
            ack, guid = await self._publisher.command(channel, payload, deadline_ms)
            return _result(info, partition, ack, guid, codecs)
        name = parse_name(guid_given)
        if name.channel != channel:
            raise ArgumentError(
                f"guid={guid_given!r:.80} is of a command to another partition than {info.name}/"
                f"{partition}; repeat it with the key that it had"
            )
        if not name.is_of(payload):  # S4.6: the nodes find that of one with a record of its own
            reused = GuidReuseError(
                f"guid {guid_given} was used before with another command or key; repeat a command "
                "as it was, and give each its own"
            )
            reused.guid = guid_given
            raise reused
        write = Write(channel, RecordKind.MACHINE_COMMAND, payload, 1)
        ack = await self._repeats.repeat(info, write, guid_given, deadline_ms)
        return _result(info, partition, ack, guid_given, codecs)

    # --- queries ---------------------------------------------------------------------------------

    async def query(self, key: Key, request: Any = None, **options: Unpack[ReadOptions]) -> Any:
        """Ask the machine of a key's partition; linearizable by default.

        Takes the options of ``table.get``: level, max_lag, max_staleness, at_least, replica, ...
        RejectedError when the machine refused the question.
        """
        return (await self.query_result(key, request, **options)).answer

    async def query_result(
        self, key: Key, request: Any = None, **options: Unpack[ReadOptions]
    ) -> QueryResult:
        """The same; return the answer with who gave it and how fresh the state was."""
        spec = query_spec(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        encoded = key_bytes(key)
        info = await self._open(deadline_ms, spec)
        partition = partition_of(encoded, info.partitions)
        return await self._query(info, partition, encoded, request, spec, deadline_ms)

    async def query_partition(
        self, partition: int, request: Any = None, **options: Unpack[ReadOptions]
    ) -> QueryResult:
        """Ask the machine of one partition."""
        spec = query_spec(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info = await self._open(deadline_ms, spec)
        whole("partition", partition, 0, info.partitions - 1)
        return await self._query(info, partition, b"", request, spec, deadline_ms)

    async def query_all(self, request: Any = None, **options: Unpack[ReadOptions]) -> list[Any]:
        """Ask the machine of every partition; return the answers in the order of partitions.

        Each is of one state of its partition, which obeys the level; together they are no snapshot.
        """
        spec = query_spec(options)
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        info = await self._open(deadline_ms, spec)
        slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

        async def asked(partition: int) -> QueryResult:
            async with slots:
                return await self._query(info, partition, b"", request, spec, deadline_ms)

        answers = await gather_or_cancel([asked(each) for each in range(info.partitions)])
        return [each.answer for each in answers]

    async def _query(
        self,
        info: TableInfo,
        partition: int,
        key: bytes,
        request: Any,
        spec: ReadSpec,
        deadline_ms: int,
    ) -> QueryResult:
        codecs, spec = self._codecs(info), spec.for_table(info)
        if request is None and codecs.queries is BYTES:
            request = b""
        data = codecs.encode(codecs.queries, "question", request)
        answer = await self._channel_reads.ask_machine(
            info.channels[partition].channel,
            (key, data),
            spec,
            deadline_ms,
            spec.min_seq(info, partition),
        )
        if answer.is_rejected:
            raise RejectedError(f"{info.name}/{partition}: {answer.reason}")
        return _answer(info, partition, answer, codecs)

    # --- inside ----------------------------------------------------------------------------------

    async def _open_of(self, guid: str | None, deadline_ms: int) -> TableInfo:
        """The channel set for a command; of one that is given again only the one that it was to.

        Its results, and what was seen of it, are with the log of that one, so it is unknown where
        another one has the name by now, or none.
        """
        if guid is None:
            return await self._open(deadline_ms)
        table = channel_table(parse_name(guid).channel)
        try:
            info = await self._open(deadline_ms)
            if info.uuid != table:
                # It may be of a newer channel set than the catalog known here.
                await self._context.discovery.refresh(deadline_ms)
                info = await self._open(deadline_ms)
        except RequestError as error:
            # What hinders this call says nothing of the attempts before (S5.6).
            kind = ConnectionInDoubtError if error.retriable else GuidExpiredError
            doubt = kind(
                f"{error}; whether the command with guid={guid!r:.80} was applied before is not "
                "known, and it was not sent again (if its channel set was dropped, all that it did "
                "went with that)"
            )
            doubt.guid = guid
            raise doubt from error
        if info.uuid != table:
            expired = GuidExpiredError(
                f"guid={guid!r:.80} is of a command to another channel set than today's "
                f"{info.name!r}: an earlier one of the name, or the one that a backup was taken "
                "of; whether its effect is in the state here is not known, and it was not sent: "
                "query the machine to see, and give the command without the guid if it is not"
            )
            expired.guid = guid
            raise expired
        return info

    async def _open(self, deadline_ms: int, spec: ReadSpec | None = None) -> TableInfo:
        info = self._context.topology.table(self.name)
        if info is None:
            try:
                info = await self._context.discovery.table(self.name, deadline_ms)
            except UnknownTableError as error:
                raise UnknownTableError(
                    f"there is no channel set {self.name!r}; correct the name, or create it "
                    "(create_channelset)"
                ) from error
        at_least = None if spec is None else spec.at_least
        if at_least is not None:
            try:
                at_least.check_table(info)
            except (PositionError, UnknownTableError):
                # It may be of a newer channel set than the catalog known here.
                await self._context.discovery.refresh(deadline_ms)
                info = await self._context.discovery.table(self.name, deadline_ms)
                at_least.check_table(info)
        if not info.machine:
            raise SchemaError(
                f"{self.name!r} is a table, which has no state machine: it takes rows "
                "(client.table) and no commands or queries"
            )
        return info

    def _codecs(self, info: TableInfo) -> Codecs:
        if self._given is not None:
            return self._given
        if self._found is None or self._found[0] != info.machine:
            self._found = (info.machine, codecs_by_name(info.machine))
        return self._found[1]


def key_bytes(key: Any) -> bytes:
    """A key as machines get it; ArgumentError for what is none."""
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"the key {key!r:.80} is no UTF-8; give bytes ({error})") from error
    if not isinstance(key, bytes):
        raise ArgumentError(f"the key {key!r:.80} is neither text nor bytes; give one of them")
    if len(key) > STATE_KEY_BYTES_MAX:
        raise ArgumentError(
            f"a key of {len(key)} bytes is over the limit of {STATE_KEY_BYTES_MAX}; give a "
            "shorter one"
        )
    return key


def query_spec(options: ReadOptions) -> ReadSpec:
    """Check the options of a query: those of a read of rows, without columns."""
    if options.get("columns") is not None:
        raise ArgumentError("a query has no columns; what it asks for is in the request")
    return spec_of(options)


def _result(
    info: TableInfo, partition: int, ack: PubAck, guid: str, codecs: Codecs
) -> CommandResult:
    if not isinstance(ack, CommandAck):
        raise DecodeError(
            f"{info.name}/{partition} acknowledged a command without its result; install the same "
            "raftstore version on both sides"
        )
    if ack.is_rejected or ack.is_skipped:
        error = RejectedError(f"{info.name}/{partition}: {ack.reason}")
        error.guid = guid
        raise error
    try:
        result = codecs.results.decode(ack.result)
    except Exception as error:
        # Not SchemaError, by which nothing was sent.
        applied = OperationInDoubtError(
            f"{info.name}/{partition} has applied the command at seq {ack.last_seq}, and its "
            f"result cannot be read here: {error}; use the machine's code that the nodes have, or "
            "codec=raftstore.BYTES, and repeat it with this guid to get the result"
        )
        applied.guid = guid
        raise applied from error
    return CommandResult(
        result=result,
        position=Position.at(info.uuid, partition, ack.record_term, ack.last_seq),
        partition=partition,
        seq=ack.last_seq,
        term=ack.record_term,
        durability=ack.durability,
        replicas_acked=ack.replicas_acked,
        guid=guid,
    )


def _answer(info: TableInfo, partition: int, answer: MachineAnswer, codecs: Codecs) -> QueryResult:
    served = answer.served
    return QueryResult(
        answer=codecs.answers.decode(answer.answer),
        applied_position=Position.at(info.uuid, partition, served.term, served.applied_seq),
        applied_seq=served.applied_seq,
        partition=partition,
        term=served.term,
        node=node_name(served.node),
        level=Level(served.level),
        lag=served.lag,
        leader_info_age_ms=served.leader_info_age_ms,
        staleness_ms=served.staleness_ms,
    )
