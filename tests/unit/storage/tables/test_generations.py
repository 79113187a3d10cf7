"""Which of a channel's databases is its table, by their names alone (S6.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.storage.tables.generations import (
    COMPLETE_NAME,
    Generation,
    copied_position,
    encode_complete,
    generation_of,
    generations_in,
    is_complete,
    path_of,
    present,
)
from raftstore.types import History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER

COPIED = History(Term(3), Seq(70))


def make(tables: Path, number: int, *, whole: bool = False, channel: bytes = CHANNEL) -> Path:
    """The directory of a generation."""
    path = tables / Generation(CHANNEL if channel == CHANNEL else OTHER, number).name
    path.mkdir(parents=True)
    if whole:
        (path / COMPLETE_NAME).write_bytes(encode_complete(CHANNEL, COPIED))
    return path


@pytest.mark.parametrize("number", [0, 1, 2, 9, 10, 123])
def test_names_tell_channel_and_number(number: int) -> None:
    """A name is read as it was made."""
    generation = Generation(CHANNEL, number)
    assert generation.name == CHANNEL.hex() + (f".g{number}" if number else "")
    assert generation_of(Path("anywhere") / generation.name) == generation


@pytest.mark.parametrize(
    "name",
    ["", "LOCK", "x" * 36, "0" * 35, "0" * 38, "AB" * 18, CHANNEL.hex() + ".g0", "0" * 36 + ".g"],
)
def test_other_names_are_of_no_generation(name: str) -> None:
    """They are left alone; each generation has one name only."""
    assert generation_of(Path("tables") / name) is None


@pytest.mark.parametrize(
    ("numbers", "whole", "found"),
    [
        ([], [], None),
        ([0], [], 0),
        ([1], [], None),
        ([1], [1], 1),
        ([0, 1], [], 0),
        ([0, 1, 2], [1], 1),
        ([1, 2, 3], [1, 2], 2),
        ([2, 10], [2, 10], 10),
    ],
)
def test_highest_complete_generation_is_the_table(
    tmp_path: Path, numbers: list[int], whole: list[int], found: int | None
) -> None:
    """S6.4: one that was never completed counts for nothing, however new it is."""
    tables = tmp_path / "tables"
    tables.mkdir()
    for number in numbers:
        make(tables, number, whole=number in whole)
    assert present(tables, CHANNEL, numbers) == found
    assert path_of(tmp_path, CHANNEL) == tables / Generation(CHANNEL, found or 0).name
    complete = [number for number in numbers if is_complete(tables, Generation(CHANNEL, number))]
    assert complete == sorted({*whole, *(0 for number in numbers if number == 0)})


def test_generations_are_listed_by_channel_and_number(tmp_path: Path) -> None:
    """Files and directories of other names are no databases."""
    first, second = sorted((CHANNEL, OTHER))
    for number in (10, 2, 0):
        make(tmp_path, number, channel=second)
    make(tmp_path, 3, channel=first)
    (tmp_path / Generation(first, 1).name).write_bytes(b"a file")
    (tmp_path / "lost+found").mkdir()
    found = generations_in(tmp_path)
    assert list(found.items()) == [(first, [3]), (second, [0, 2, 10])]


def test_generations_of_another_channel_do_not_count(tmp_path: Path) -> None:
    """Names that only begin as those of the channel are of none."""
    tables = tmp_path / "tables"
    make(tables, 4, whole=True, channel=OTHER)
    stray = tables / f"{CHANNEL.hex()}.g5.old"
    stray.mkdir()
    (stray / COMPLETE_NAME).touch()
    assert path_of(tmp_path, CHANNEL) == tables / CHANNEL.hex()


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (None, (0, 0)),
        (encode_complete(CHANNEL, COPIED), COPIED),
        (b"", (0, 0)),
        (encode_complete(CHANNEL, COPIED)[:-1], (0, 0)),
        (encode_complete(OTHER, COPIED), (0, 0)),
    ],
)
def test_position_of_a_copy_is_in_its_file(
    tmp_path: Path, content: bytes | None, position: tuple[int, int]
) -> None:
    """A damaged file, or one of another channel, gives none: the log is asked then."""
    if content is not None:
        (tmp_path / COMPLETE_NAME).write_bytes(content)
    assert copied_position(tmp_path, CHANNEL) == position
