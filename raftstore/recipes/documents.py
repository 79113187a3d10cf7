"""Small documents that are changed together on condition: the transaction of a configuration store.

::

    done = documents.command("shop", Change(puts={"stock/7": {"left": 4}, "orders/1": {"item": 7}}))
    documents.command(
        "shop",
        Change(
            expected={"stock/7": done.version, "orders/2": 0},  # 0: there is none
            puts={"stock/7": {"left": 3}, "orders/2": {"item": 7}},
        ),
    )
    documents.query("shop", Look(names=["stock/7"]))

The key of a command is a *space* of documents; all of a space change in one step. The version of a
document is the place of the command that wrote it, so it grows and is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

import raftstore
from raftstore.recipes.names import name_of

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
NAMES_MAX: Final = 1_000
"""In one change or look."""
DOCUMENT_BYTES_MAX: Final = 32 * 1024


class Change(msgspec.Struct, frozen=True):
    """Put and delete documents, if all the expected versions are in force."""

    expected: dict[Name, int] = {}
    """Name -> version; 0: there must be none."""
    puts: dict[Name, Any] = {}
    deletes: list[Name] = []


class Changed(msgspec.Struct, frozen=True):
    """The version that all written documents have."""

    version: int


class Look(msgspec.Struct, frozen=True):
    """Documents by name, or with neither: all whose names begin with ``prefix``."""

    names: list[Name] = []
    prefix: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=NAMES_MAX)] = 100


class Document(msgspec.Struct, frozen=True):
    """A JSON value and its version."""

    version: int
    value: Any


_DOCUMENT = raftstore.codec(Document)


class Documents(raftstore.StateMachine):
    """Command: Change, result: Changed. Query: Look, answer: documents by name."""

    commands = raftstore.codec(Change)
    results = raftstore.codec(Changed)
    queries = raftstore.codec(Look)
    answers = raftstore.codec(dict[str, Document])

    def apply(self, command: Change, context: raftstore.CommandContext) -> Changed:
        """Change the documents of a space; RejectedError names the version that is another."""
        start = _start(context)
        if len(command.expected) + len(command.puts) + len(command.deletes) > NAMES_MAX:
            raise raftstore.RejectedError(f"a change names more than {NAMES_MAX} documents")
        for name, version in command.expected.items():
            found = _document(context.state.get(start + name.encode()))
            if found.version != version:
                message = f"{name} has version {found.version}, not {version}; look again"
                raise raftstore.RejectedError(message)
        for name in command.deletes:
            context.state.delete(start + name.encode())
        for name, value in command.puts.items():
            data = _DOCUMENT.encode(Document(context.seq, value))
            if len(data) > DOCUMENT_BYTES_MAX:
                message = f"{name} has {len(data)} bytes; allowed are {DOCUMENT_BYTES_MAX}"
                raise raftstore.RejectedError(message)
            context.state.put(start + name.encode(), data)
        return Changed(context.seq)

    def query(self, request: Look, context: raftstore.QueryContext) -> dict[str, Document]:
        """The documents that there are, in the order of their names."""
        start = _start(context)
        if not request.names:
            return dict(self._under(context.state, start, request))
        looked = {name: context.state.get(start + name.encode()) for name in sorted(request.names)}
        return {name: _document(data) for name, data in looked.items() if data is not None}

    @staticmethod
    def _under(
        state: raftstore.StateView, start: bytes, request: Look
    ) -> Iterator[tuple[str, Document]]:
        first = start + request.prefix.encode()
        # Above all of UTF-8, and so behind all names with this prefix.
        for key, data in state.range(first, first + b"\xff", limit=request.limit):
            yield key[len(start) :].decode(), _document(data)


def _start(context: raftstore.CommandContext | raftstore.QueryContext) -> bytes:
    """All keys of a space begin so, and no others: its length comes first."""
    space = name_of(context)
    return len(space).to_bytes(2, "big") + space


def _document(data: bytes | None) -> Document:
    found: Document = Document(0, None) if data is None else _DOCUMENT.decode(data)
    return found
