"""The register of the numbers on the wire against the message classes that there are."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgpack
import pytest

from raftstore import protocol
from raftstore.config import PROTOCOL_VERSION
from raftstore.protocol.codec import KINDS, MESSAGE_TYPES
from raftstore.protocol.message import Message
from raftstore.protocol.tags import RETIRED, Tag, tag_of

GOLDEN = Path(__file__).parents[2] / "data" / f"wire_v{PROTOCOL_VERSION}.json"


def tagged_classes() -> Iterator[type[Message]]:
    """Every class of the room that has a number, whether or not a frame may hold it."""
    for found in pkgutil.iter_modules(protocol.__path__):
        module = import_module(f"{protocol.__name__}.{found.name}")
        for cls in vars(module).values():
            is_own = isinstance(cls, type) and cls.__module__ == module.__name__
            if is_own and issubclass(cls, Message) and cls.__struct_config__.tag is not None:
                yield cls


def test_every_message_class_has_its_registered_number_and_every_number_its_class() -> None:
    """A class that is removed leaves its number among the retired ones."""
    classes = list(tagged_classes())
    assert {cls.__name__: cls.__struct_config__.tag for cls in classes} == {
        tag.name: tag.value for tag in Tag if tag not in RETIRED
    }
    assert set(classes) == set(MESSAGE_TYPES)
    assert {cls.__struct_config__.tag: cls for cls in classes} == KINDS


def test_numbers_are_distinct() -> None:
    """An enumeration would take the second name of a number as an alias."""
    numbers = [tag.value for tag in Tag.__members__.values()]
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)


def test_number_that_is_retired_is_of_no_class() -> None:
    """An older node may still send it: it must not be read as something else."""
    assert not {tag.value for tag in RETIRED} & set(KINDS)


def test_registered_numbers_are_those_of_the_stored_bytes() -> None:
    """A kind keeps its number for as long as the version of the protocol stays."""
    stored = json.loads(GOLDEN.read_text())
    for name, written in stored.items():
        assert msgpack.unpackb(bytes.fromhex(written["body"]))[0] == Tag[name].value


def test_message_class_without_a_registered_number_cannot_be_made() -> None:
    """It fails when it is imported, not when it is first sent."""
    with pytest.raises(KeyError, match="Unregistered"):

        class Unregistered(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
            pass
