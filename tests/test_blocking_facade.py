"""The blocking client repeats the asyncio one by hand, so that readers, completion and type
checkers see plain methods. Here both are compared, so that the two cannot drift apart."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar
from unittest import mock

import pytest

import raftstore
from raftstore import aio
from raftstore.client import blocking
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.machines import ChannelSetState
from raftstore.client.blocking.snapshots import Snapshot
from raftstore.client.machines.channel_set_state import AsyncChannelSetState
from raftstore.client.scans.snapshots import AsyncSnapshot

PAIRS: dict[type, type] = {
    raftstore.Client: aio.AsyncClient,
    raftstore.Table: aio.AsyncTable,
    raftstore.ReadOnlyStore: aio.AsyncReadOnlyStore,
    raftstore.BulkWriter: aio.AsyncBulkWriter,
    raftstore.Stager: aio.AsyncStager,
    Snapshot: AsyncSnapshot,
    raftstore.ChannelSet: aio.AsyncChannelSet,
    ChannelSetState: AsyncChannelSetState,
}
ASYNCIO_ONLY = {
    (aio.AsyncClient, "connect"): "raftstore.connect makes the blocking client",
    (aio.AsyncClient, "on_publish_answer"): "called by connections",
    (aio.AsyncClient, "on_link_open"): "called by connections",
    (aio.AsyncClient, "on_link_lost"): "called by connections",
    (aio.AsyncClient, "on_link_dismissed"): "called by connections",
    (aio.AsyncClient, "on_query_link_lost"): "called by connections",
    (aio.AsyncReadOnlyStore, "check"): "client.store has called it",
}
BLOCKING_ONLY = {
    (Snapshot, "token"): "an attribute of the asyncio snapshot, set when it is made",
}


@dataclass(frozen=True)
class Shape:
    """All that a reader, a completion and a type checker see of a method."""

    parameters: tuple[tuple[str, str, object, str], ...]
    """Name, kind, default and annotation of each."""
    result: str
    first_line: str
    is_property: bool


def shape_of(member: Any) -> Shape:
    """The member as the blocking client has it, or would have it."""
    is_property = isinstance(member, property)
    function: Callable[..., Any] = member.fget if is_property else member
    signature = inspect.signature(function)
    return Shape(
        tuple(
            (each.name, each.kind.name, each.default, in_blocking_words(each.annotation))
            for each in signature.parameters.values()
        ),
        in_blocking_words(signature.return_annotation),
        (inspect.getdoc(function) or "").partition("\n")[0],
        is_property,
    )


def in_blocking_words(annotation: object) -> str:
    """An annotation of either client in words of the blocking one: what is awaited is the value."""
    if not isinstance(annotation, str):  # of ``self``: there is none
        return ""
    text = re.sub(
        r"\bAsync(Client|Table|ReadOnlyStore|BulkWriter|Stager|Snapshot|ChannelSetState|ChannelSet)\b",
        r"\1",
        annotation,
    )
    text = re.sub(r"^Coroutine\[Any, Any, (.*)\]$|^Awaitable\[(.*)\]$", r"\1\2", text)
    text = re.sub(r"^AsyncGenerator\[(.*), None\]$", r"Generator[\1, None, None]", text)
    return re.sub(r"^Async(Iterator|Iterable)\[", r"\1[", text)


def members(cls: type) -> dict[str, Any]:
    """Methods and properties for users."""
    return {
        name: member
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def drift(ours: type, theirs: type) -> Iterator[str]:
    """Report where a blocking class differs from its asyncio namesake."""
    here, there = members(ours), members(theirs)
    extra = {name for cls, name in BLOCKING_ONLY if cls is ours}
    left_out = {name for cls, name in ASYNCIO_ONLY if cls is theirs}
    for name in sorted((here.keys() - extra) ^ (there.keys() - left_out)):
        yield f"{name} is in one of both alone"
    for name in sorted(here.keys() & there.keys()):
        one, other = shape_of(here[name]), shape_of(there[name])
        for field in ("parameters", "result", "first_line", "is_property"):
            if getattr(one, field) != getattr(other, field):
                yield f"{name}: {field} is {getattr(one, field)!r}, not {getattr(other, field)!r}"
    for word in ("enter", "exit"):
        if hasattr(ours, f"__{word}__") != hasattr(theirs, f"__a{word}__"):
            yield f"one of both alone is a context manager (__{word}__)"


@pytest.mark.parametrize("ours", PAIRS, ids=lambda cls: cls.__name__)
def test_blocking_class_is_its_asyncio_namesake_without_await(ours: type) -> None:
    """Same methods, parameters, defaults, annotations and first lines of the docstrings."""
    assert PAIRS[ours].__name__ == f"Async{ours.__name__}"
    assert list(drift(ours, PAIRS[ours])) == []


def test_both_ways_to_connect_are_the_same() -> None:
    """Addresses, timeout and settings mean the same to both."""
    assert shape_of(raftstore.connect) == shape_of(aio.connect)


def test_every_blocking_class_is_compared() -> None:
    """A class that is added to the blocking client is compared, too."""
    found: set[type] = set()
    for module in iter_modules(blocking.__path__, f"{blocking.__name__}."):
        for member in vars(import_module(module.name)).values():
            if isinstance(member, type) and member.__module__ == module.name:
                found.add(member)
    parts = {base for cls in found for base in cls.__mro__[1:]}
    assert found - parts == {*PAIRS, BackgroundLoop}


class Recorder:
    """An asyncio object that remembers how it was called."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.calls: list[tuple[str, dict[str, object]]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            bound = inspect.signature(getattr(self._cls, name)).bind("self", *args, **options)
            self.calls.append((name, bound.arguments))
            return mock.Mock()

        return call


@pytest.mark.parametrize("ours", PAIRS, ids=lambda cls: cls.__name__)
def test_every_argument_reaches_the_asyncio_method(ours: type) -> None:
    """An argument that is taken and not passed on would silently be without effect."""
    loop = mock.Mock(call=lambda work: work, is_stopped=False)
    for name, member in members(ours).items():
        if isinstance(member, property):
            continue
        inner = Recorder(PAIRS[ours])
        made = ours(mock.Mock(), loop)
        (held,) = vars(made).keys() - {"name", "_loop"}
        setattr(made, held, inner)
        signature = inspect.signature(getattr(made, name))
        # Lists, since iterables are copied into lists before they go to the other thread.
        given: dict[str, Any] = {
            each.name: {"option": [name]} if each.kind is each.VAR_KEYWORD else [each.name]
            for each in signature.parameters.values()
        }
        bound = inspect.BoundArguments(signature, OrderedDict(given))
        getattr(made, name)(*bound.args, **bound.kwargs)
        assert inner.calls == [(name, {"self": "self", **given})]


# Broken on purpose: each differs in one thing from the method below.
class AsyncPlanted:
    """The asyncio client of the planted samples."""

    _snapshots: ClassVar[dict[int, AsyncSnapshot]] = {}

    async def get(self, key: int, *, limit: int = 5) -> AsyncSnapshot | None:
        """Return it."""
        return self._snapshots.get(key - limit)


class Planted:
    """The blocking clients of the planted samples."""

    _snapshots: ClassVar[dict[int, Snapshot]] = {}

    def same(self, key: int, *, limit: int = 5) -> Snapshot | None:
        """Return it.

        More may be reported.
        """
        return self._snapshots.get(key - limit)

    def other_default(self, key: int, *, limit: int = 6) -> Snapshot | None:
        """Return it."""
        return self._snapshots.get(key - limit)

    def other_name(self, key: int, *, most: int = 5) -> Snapshot | None:
        """Return it."""
        return self._snapshots.get(key - most)

    def other_kind(self, key: int, limit: int = 5) -> Snapshot | None:
        """Return it."""
        return self._snapshots.get(key - limit)

    def other_annotation(self, key: str, *, limit: int = 5) -> Snapshot | None:
        """Return it."""
        return self._snapshots.get(int(key) - limit)

    def other_result(self, key: int, *, limit: int = 5) -> Snapshot:
        """Return it."""
        return self._snapshots[key - limit]

    def other_first_line(self, key: int, *, limit: int = 5) -> Snapshot | None:
        """Return all."""
        return self._snapshots.get(key - limit)


def test_a_drift_of_any_kind_is_found() -> None:
    """A comparison that is blind for one kind would let both drift apart in it."""

    def drift_of(method: object, name: str = "get") -> list[str]:
        return list(drift(type("Sample", (), {name: method}), AsyncPlanted))

    assert drift_of(Planted.same) == []
    for field, wrong in (
        ("parameters", Planted.other_default),
        ("parameters", Planted.other_name),
        ("parameters", Planted.other_kind),
        ("parameters", Planted.other_annotation),
        ("result", Planted.other_result),
        ("first_line", Planted.other_first_line),
        ("is_property", property(Planted.same)),
    ):
        (found,) = drift_of(wrong)
        assert found.startswith(f"get: {field} is ")
    assert drift_of(Planted.same, "gets") == [
        "get is in one of both alone",
        "gets is in one of both alone",
    ]
