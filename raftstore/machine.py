"""State machines of your own: the contract between a deterministic class and raftstore.

::

    import raftstore


    class Counter(raftstore.StateMachine):
        commands = results = answers = raftstore.codec(int)

        def apply(self, command, context):
            total = self.total(context.state, context.key) + command
            context.state.put(context.key, b"%d" % total)
            return total

        def query(self, request, context):
            return self.total(context.state, context.key)

        @staticmethod
        def total(state, key):
            return int(state.get(key) or 0)

Every replica of a channel applies the same commands in the same order, so ``apply`` must lead to
the same state and the same result wherever and whenever it runs: time, chance and identity come
from its ``context`` and from nowhere else, and what it remembers is in ``context.state`` (or in the
object itself, for a ``MemoryMachine``). raftstore does the rest: each command is applied exactly
once, state, result and applied position are written in one atomic batch (S10), replicas that were
away get the state by replica snapshots, and queries are answered at every level of consistency.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from raftstore.errors import RejectedError, SchemaError
from raftstore.nesting import is_too_deep
from raftstore.types import Guid, Seq, Term

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Of an encoded command: one megabyte, so that a channel's turn stays short."""

RESULT_BYTES_MAX: Final = 64 * 1024
"""Of an encoded result or of the text of a rejection: results are kept for retries."""

STATE_KEY_BYTES_MAX: Final = 1024
"""Of a key of a machine's state; as of the keys of rows, it is on the way of each comparison."""

STATE_VALUE_BYTES_MAX: Final = 1024 * 1024
"""Of a value of a machine's state."""

COMMAND_WRITES_MAX: Final = 10_000
"""Keys that one command puts or deletes: they are one atomic batch."""

COMMAND_WRITE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all keys and values that a command puts or deletes, and of those of all commands that share a
record: one batch, for which everything else that the node applies waits."""

DEPTH_MAX: Final = 200
"""Of lists and objects in each other in a value of ``JSON`` or of a ``codec``; Python gives up at
about 900, less what its caller has used, which differs between replicas."""

ValueT = TypeVar("ValueT")
_is_depth_free: ContextVar[bool] = ContextVar("is_depth_free", default=False)
"""A command is applied for which no depth was in force (``protocol.machines.LIMITS``)."""
_NO_VALUE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""Raised by msgspec for values that are none."""
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Of JSON: texts, which may hold brackets, and brackets."""


class Codec(Protocol[ValueT]):
    """Bytes of values and back; the same bytes for equal values, or retries look like others."""

    def encode(self, value: ValueT) -> bytes:
        """The bytes of a value; raises SchemaError, naming it, where it is none of this codec."""

    def decode(self, data: bytes) -> ValueT:
        """The value of the bytes; raises SchemaError where they are none."""


class _Bytes:
    """Values that are bytes already."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            message = f"{type(value).__name__} is not bytes; declare a codec of the machine"
            raise SchemaError(message)
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return bytes(data)


class _Msgpack(Generic[ValueT]):
    """Values of a type that msgspec knows, as MessagePack."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, value: ValueT) -> bytes:
        try:
            data = self._encoder.encode(value)
            _check_levels(data)
            self._decoder.decode(data)
        except _NO_VALUE as error:
            text = f"{value!r:.200} is no {self.kind!r:.200}: {error}"
            if "dicts with str keys" in text:
                text += "; keys of a dict have to be text, so that equal values are the same bytes"
            raise SchemaError(text) from error
        return data

    def from_json(self, value: Any) -> ValueT:
        """The value that JSON stands for: bytes are base64 there, moments are text."""
        try:
            converted: ValueT = msgspec.convert(value, self.kind, str_keys=True)
        except _NO_VALUE as error:
            raise SchemaError(f"{value!r:.200} is no {self.kind!r:.200}: {error}") from error
        return converted

    def decode(self, data: bytes) -> ValueT:
        _check_levels(data)
        try:
            decoded: ValueT = self._decoder.decode(data)
        except (ValueError, RecursionError) as error:
            message = f"{len(data)} bytes are no {self.kind!r:.200}: {error}"
            raise SchemaError(message) from error
        return decoded


class _Json:
    """Any JSON value, with the keys of objects in order."""

    def encode(self, value: Any) -> bytes:
        try:
            data = msgspec.json.encode(value, order="deterministic")
        except _NO_VALUE as error:
            raise SchemaError(f"{value!r:.200} is no JSON value: {error}") from error
        _check_depth(data)
        return data

    def decode(self, data: bytes) -> Any:
        _check_depth(data)
        try:
            return msgspec.json.decode(data)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"{len(data)} bytes are no JSON: {error}") from error


def _check_levels(data: bytes) -> None:
    if len(data) > DEPTH_MAX and is_too_deep(data, DEPTH_MAX) and not _is_depth_free.get():
        raise SchemaError(f"a value is nested more than {DEPTH_MAX} deep")


def _check_depth(data: bytes) -> None:
    # How deep Python can go differs between versions and callers: replicas need one limit.
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return
    depth = 0
    for mark in _MARKS.findall(data):
        if mark in b"[{":
            depth += 1
            if depth > DEPTH_MAX and not _is_depth_free.get():
                raise SchemaError(f"a JSON value is nested more than {DEPTH_MAX} deep")
        elif mark in b"]}":
            depth -= 1


@contextmanager
def any_depth() -> Iterator[None]:
    """Values may be nested as deep as Python can go, in this thread and for so long."""
    token = _is_depth_free.set(True)
    try:
        yield
    finally:
        _is_depth_free.reset(token)


BYTES: Final[Codec[bytes]] = _Bytes()
"""Values are bytes, and stay as they are."""

JSON: Final[Codec[Any]] = _Json()
"""Any JSON value. Slower than ``codec`` and unchecked, and anybody can read it."""


def codec(kind: Any) -> Codec[Any]:
    """A codec for a type: ``int``, ``str``, ``dict[str, int]``, a Struct of msgspec, a union of
    tagged structs, ... What does not fit the type is refused with a SchemaError on both sides.

    Values are MessagePack, and equal values are the same bytes. Therefore keys of a ``dict`` have
    to be ``str``: ``dict[bytes, int]`` and ``dict[int, str]`` are refused, as their order could not
    be fixed. Give ``list[tuple[bytes, int]]`` in their place, in an order of your own. Bytes within
    a value are base64 in the JSON of the shell and of HTTP.
    """
    try:
        found: Codec[Any] = _Msgpack(kind)
        _check_keys(msgspec.inspect.type_info(kind), set())
    except TypeError as error:
        raise SchemaError(f"{kind!r:.200} is no type of values: {error}") from error
    return found


def _check_keys(info: Any, seen: set[Any]) -> None:
    """Raise TypeError for a dict within a type whose keys are no text."""
    if isinstance(info, msgspec.inspect.DictType) and not isinstance(
        info.key_type,
        msgspec.inspect.StrType
        | msgspec.inspect.EnumType
        | msgspec.inspect.LiteralType
        | msgspec.inspect.AnyType,
    ):
        kind = type(info.key_type).__name__.removesuffix("Type").lower()
        raise TypeError(
            f"keys of a dict have to be str, not {kind}; give a list of pairs, in an order of "
            "your own"
        )
    # A type may be within itself.
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return
        seen.add(info.cls)
    for name in getattr(info, "__struct_fields__", ()):
        value = getattr(info, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, msgspec.inspect.Type):
                _check_keys(each, seen)
            elif isinstance(each, msgspec.inspect.Field):
                _check_keys(each.type, seen)


class StateView(Protocol):
    """One state of a machine in one partition: an ordered space of keys. It never changes while
    it is read."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: it is not there."""

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop) in the order of the keys; an empty
        ``stop`` is the end."""


class State(StateView, Protocol):
    """The state as the commands before the present one left it, and as the present one changes
    it: what was put is read back at once. It takes effect as a whole, if ``apply`` returns."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key. Raises SchemaError over ``STATE_KEY_BYTES_MAX``, ``STATE_VALUE_BYTES_MAX``,
        ``COMMAND_WRITES_MAX`` or ``COMMAND_WRITE_BYTES_MAX``, or where the key is empty."""

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""


class Chance:
    """Numbers that look random and are the same at every replica, made of what names a command."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._drawn = 0

    def bytes(self, count: int) -> bytes:
        """Give ``count`` bytes."""
        made = b""
        while len(made) < count:
            self._drawn += 1
            made += blake2b(self._seed + self._drawn.to_bytes(8, "big"), digest_size=64).digest()
        return made[:count]

    def below(self, bound: int) -> int:
        """A whole number of 0 <= number < ``bound``."""
        if bound < 1:
            raise ValueError(f"no number is below {bound} and not below 0")
        # 64 bits more than needed: the remainder favours nothing that anybody could notice.
        return int.from_bytes(self.bytes(bound.bit_length() // 8 + 9), "big") % bound

    def fraction(self) -> float:
        """A number of 0 <= number < 1, of 53 bits."""
        return (int.from_bytes(self.bytes(7), "big") >> 3) / 2**53


@dataclass(frozen=True, slots=True)
class CommandContext:
    """All that ``apply`` may know besides its command; the same at every replica."""

    state: State
    key: bytes
    """By which the command was sent to this partition."""
    seq: Seq
    """Grows with every command. It is the command's place in the channel's log; where the state
    came from a backup it is far above that, and above all that the source was given."""
    term: Term
    """The leader's; it never goes back, and it goes on above the source's, too."""
    time_ms: int
    """The leader's wall clock when it ordered the command, in milliseconds since 1970; it never
    goes back within a channel, nor behind a restore."""
    guid: Guid
    """Names the command: a retry has the same."""
    partition: int
    version: int
    """The machine's version that is in force at this place of the log."""
    chance: Chance

    def new_id(self) -> bytes:
        """16 bytes that no other command makes."""
        return self.chance.bytes(16)


@dataclass(frozen=True, slots=True)
class QueryContext:
    """All that ``query`` may know besides its request."""

    state: StateView
    """An immutable state; commands go on being applied meanwhile. A ``MemoryMachine`` finds its
    state in itself, and is not changed while it is asked."""
    key: bytes
    seq: Seq
    """Up to where commands are in this state."""
    time_ms: int
    """``CommandContext.time_ms`` of the last of them; 0: there was none."""
    partition: int
    version: int


class StateMachine(ABC):
    """Base of a machine whose state is an ordered space of keys on the disk of each replica.

    One object serves one replica of one partition. It keeps nothing of its own between calls:
    ``context.state`` does. What ``apply`` raises besides RejectedError stops the partition at this
    command on every replica alike, until there is a version that can apply it or an operator has
    it skipped.
    """

    version: ClassVar[int] = 1
    """To be raised with each change of what ``apply`` does. Commands behind the moment at which all
    nodes had it are applied by it, those before by the former one (``context.version``)."""
    oldest_version: ClassVar[int] = 1
    """``apply`` still does what this version did, where ``context.version`` says so."""

    commands: ClassVar[Codec[Any]] = BYTES
    results: ClassVar[Codec[Any]] = BYTES
    queries: ClassVar[Codec[Any]] = BYTES
    answers: ClassVar[Codec[Any]] = BYTES

    @abstractmethod
    def apply(self, command: Any, context: CommandContext) -> Any:
        """Change the state by one committed command and return its result.

        Raise RejectedError to refuse the command: then nothing of it is in the state, and its
        sender gets the error. Must be deterministic.
        """

    def query(self, request: Any, context: QueryContext) -> Any:
        """Answer a question by the state, without changing it. Raise RejectedError to refuse, as a
        machine without this method does with all of them."""
        del request, context
        raise RejectedError(f"{type(self).__name__} answers no queries: its class has no query()")


class MemoryMachine(StateMachine):
    """Base of a machine that keeps its state in the object: in attributes, as Python has them.

    Its commands are kept on the disk of each replica, with the applied position, until a snapshot
    holds what they led to. The state should take some tens of megabytes at the most: it is
    written as a whole now and then, and while it is, the partition applies nothing.
    ``context.state`` is empty and takes nothing.
    """

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """The whole state in chunks of at most ``STATE_VALUE_BYTES_MAX`` bytes; the same chunks
        wherever the same commands were applied, so nothing in the order of a set or of a hash."""

    @abstractmethod
    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what ``snapshot`` gave; called on a new object before anything else."""
