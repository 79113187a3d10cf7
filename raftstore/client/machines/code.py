"""A machine's code at a client: its name for the catalog, and the codecs of its values.

A client needs no code: bytes go to any machine. With the class, given or importable, values are
what the class says.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from raftstore.errors import ArgumentError, SchemaError, UnknownMachineError
from raftstore.machine import BYTES, Codec, StateMachine

ENTRY_POINTS: Final = "raftstore.machines"
"""Group of the entry points that name machines."""


class Codecs(NamedTuple):
    """How the values of a channel set are encoded."""

    commands: Codec[Any]
    results: Codec[Any]
    queries: Codec[Any]
    answers: Codec[Any]
    lacks: str = ""
    """Why they are not those of the machine's class; empty: they are, or were given."""

    def encode(self, codec: Codec[Any], what: str, value: Any) -> bytes:
        """The bytes of a value; SchemaError says what it is, and what would take it."""
        try:
            return codec.encode(value)
        except SchemaError as error:
            hint = f" ({self.lacks})" if self.lacks else ""
            raise SchemaError(f"the {what}: {error}{hint}; nothing was sent") from error


def codecs_of(machine: type[StateMachine]) -> Codecs:
    """The codecs that a class declares."""
    return Codecs(machine.commands, machine.results, machine.queries, machine.answers)


def same_codec(codec: Any) -> Codecs:
    """One codec for all values; ArgumentError for what is none."""
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise ArgumentError(
            f"codec={codec!r:.80} is no codec; give raftstore.BYTES, raftstore.JSON or "
            "raftstore.codec(int)"
        )
    return Codecs(codec, codec, codec, codec)


def codecs_by_name(name: str) -> Codecs:
    """The codecs of a machine that is named in the catalog, as far as its code is here."""
    try:
        return codecs_of(load(name))
    except UnknownMachineError as error:
        return same_codec(BYTES)._replace(
            lacks=f"{error}, so values are bytes; give machine= or codec= to channelset"
        )


def name_of(machine: Any) -> str:
    """How the catalog names a machine; ArgumentError for a class that nodes cannot import."""
    if isinstance(machine, str) and machine:
        return machine
    if not isinstance(machine, type) or not issubclass(machine, StateMachine):
        raise ArgumentError(
            f"machine={machine!r:.80} is no state machine; give a subclass of "
            "raftstore.StateMachine, or its name as in 'mypkg.counters:Counter'"
        )
    if machine.__module__ == "__main__" or "<locals>" in machine.__qualname__:
        raise ArgumentError(
            f"machine={machine.__qualname__} is defined in {machine.__module__}, where no node "
            "can import it; put the class into a module that is installed on every node"
        )
    return f"{machine.__module__}:{machine.__qualname__}"


def load(name: str) -> type[StateMachine]:
    """Import a machine by its name; UnknownMachineError says why it is not here."""
    module, _, path = name.partition(":")
    try:
        if path:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        else:
            [entry] = entry_points(group=ENTRY_POINTS, name=name)
            found = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a foreign module raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        if not path:
            reason = f"no entry point of the group {ENTRY_POINTS} has this name"
        raise UnknownMachineError(
            f"the machine {name} cannot be loaded here ({reason:.300})"
        ) from error
    if not isinstance(found, type) or not issubclass(found, StateMachine):
        raise UnknownMachineError(f"{name} is no subclass of raftstore.StateMachine")
    return found


def codecs_given(machine: Any, codec: Any) -> Codecs | None:
    """The codecs that a caller asks for; None: those of the machine that the catalog names."""
    if machine is not None and codec is not None:
        raise ArgumentError("machine and codec are both given; a machine has its own codecs")
    if codec is not None:
        return same_codec(codec)
    if machine is None:
        return None
    if isinstance(machine, str):
        return codecs_of(load(machine))
    if isinstance(machine, type) and issubclass(machine, StateMachine):
        return codecs_of(machine)
    raise ArgumentError(f"machine={machine!r:.80} is neither a state machine nor the name of one")
