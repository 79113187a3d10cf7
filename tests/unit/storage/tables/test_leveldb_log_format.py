"""LevelDB's own files, made here byte by byte: what is read of them before LevelDB may."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.storage.tables.leveldb_files import why_incomplete

BLOCK = 32_768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
COMPARATOR, LOG_NUMBER, NEXT_FILE, LAST_SEQUENCE, POINTER, DELETED, NEW, PREVIOUS = (
    *range(1, 8),
    9,
)


def fragment(kind: int, payload: bytes) -> bytes:
    """With a checksum that is not looked at."""
    return b"\xaa\xbb\xcc\xdd" + len(payload).to_bytes(2, "little") + bytes([kind]) + payload


def log_file(*payloads: bytes) -> bytes:
    """These payloads in LevelDB's log format: fragments that never cross a block of 32 KiB."""
    data = b""
    for payload in payloads:
        left, is_first = payload, True
        while True:
            room = BLOCK - len(data) % BLOCK
            if room < 7:
                data += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kinds = {(True, True): FULL, (True, False): FIRST, (False, True): LAST}
            data += fragment(kinds.get((is_first, not left), MIDDLE), part)
            is_first = False
            if not left:
                break
    return data


def batch(sequence: int, count: int, size: int = 100) -> bytes:
    """A batch of the write-ahead log that takes so many sequence numbers."""
    return sequence.to_bytes(8, "little") + count.to_bytes(4, "little") + b"\x01" * (size - 12)


def varint(number: int) -> bytes:
    """Seven bits a byte, lowest first."""
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def text(value: bytes) -> bytes:
    """With its length in front."""
    return varint(len(value)) + value


def edit(*fields: tuple[int, bytes]) -> bytes:
    """A version edit of the MANIFEST."""
    return b"".join(varint(tag) + value for tag, value in fields)


def log_number(number: int) -> tuple[int, bytes]:
    """The oldest write-ahead log that is still needed."""
    return LOG_NUMBER, varint(number)


def write(directory: Path, logs: dict[str, bytes], *edits: bytes) -> None:
    """A database of a MANIFEST and these write-ahead logs."""
    (directory / "CURRENT").write_bytes(b"MANIFEST-000002\n")
    (directory / "MANIFEST-000002").write_bytes(log_file(*edits))
    for name, data in logs.items():
        (directory / name).write_bytes(data)


# Lengths and numbers above 127 need two bytes; none of them is a tag by chance.
FIELDS = [
    (COMPARATOR, text(b"leveldb.BytewiseComparator" * 8)),
    (NEXT_FILE, varint(70_000)),
    (LAST_SEQUENCE, varint(2**40 + 77)),
    (PREVIOUS, varint(0)),
    (POINTER, varint(2) + text(b"\x4d" * 200)),
    (DELETED, varint(1) + varint(5_000)),
    (NEW, varint(0) + varint(5_001) + varint(2**21) + text(b"\x4d" * 150) + text(b"\x4e" * 3)),
]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: str(field[0]))
def test_log_number_is_found_behind_every_field(tmp_path: Path, field: tuple[int, bytes]) -> None:
    """Each has a form of its own, and may come several times."""
    write(tmp_path, {}, edit(field, field, log_number(300)))
    assert why_incomplete(tmp_path) == (
        "the write-ahead log 000300.log that its MANIFEST names is missing"
    )
    (tmp_path / "000300.log").write_bytes(log_file(batch(1, 1)))
    assert why_incomplete(tmp_path) is None


def test_newest_edit_with_a_log_number_counts(tmp_path: Path) -> None:
    """Edits without one leave it as it was; a MANIFEST goes on over many blocks."""
    edits = [
        edit(log_number(number), (POINTER, varint(0) + text(bytes(3_000))))
        for number in range(100, 130)
    ]
    write(tmp_path, {}, *edits, edit(FIELDS[1]))
    assert "000129.log that its MANIFEST names is missing" in str(why_incomplete(tmp_path))


@pytest.mark.parametrize("number", [1, 127, 128, 16_383, 16_384, 2**35 + 5])
def test_numbers_of_any_size_are_read(tmp_path: Path, number: int) -> None:
    """Seven bits a byte."""
    write(tmp_path, {}, edit(log_number(number)))
    assert f"{number:06d}.log that its" in str(why_incomplete(tmp_path))


@pytest.mark.parametrize(
    "last",
    [b"\x08\x01", b"\x0a", varint(LOG_NUMBER), varint(LOG_NUMBER) + b"\x80"],
    ids=["tag 8", "tag 10", "no number", "half a number"],
)
def test_what_is_not_understood_is_left_to_leveldb(tmp_path: Path, last: bytes) -> None:
    """It knows what is wrong with its MANIFEST; nothing is built again for a guess."""
    write(tmp_path, {}, edit(log_number(300)) + last)
    assert why_incomplete(tmp_path) is None
    (tmp_path / "MANIFEST-000002").unlink()
    assert why_incomplete(tmp_path) is None
    (tmp_path / "CURRENT").unlink()
    assert why_incomplete(tmp_path) is None


def test_log_that_is_not_needed_is_not_missed(tmp_path: Path) -> None:
    """0: none is; older ones are on their way out, whatever is in them."""
    write(tmp_path, {}, edit(log_number(0)))
    assert why_incomplete(tmp_path) is None
    hole = bytes(7) + b"x" * 100
    write(
        tmp_path,
        {"000299.log": hole, "000300.log": log_file(batch(50, 1)), "notes.log": hole},
        edit(log_number(300)),
    )
    assert why_incomplete(tmp_path) is None


@pytest.mark.parametrize("size", [12, 100, BLOCK - 7, BLOCK - 6, BLOCK - 8, BLOCK - 14, 70_000])
def test_batches_of_any_size_follow_each_other(tmp_path: Path, size: int) -> None:
    """Within a block, up to its end, and over several."""
    sequences = [5, 6, 16, 1_016]
    counts = [1, 10, 1_000, 3]
    pairs = list(zip(sequences, counts, strict=True))
    write(
        tmp_path,
        {"000007.log": log_file(*(batch(first, count, size) for first, count in pairs))},
        edit(log_number(7)),
    )
    assert why_incomplete(tmp_path) is None
    for missing in (1, 2):
        left = [pair for pair in pairs if pair != pairs[missing]]
        (tmp_path / "000007.log").write_bytes(log_file(*(batch(*pair, size) for pair in left)))
        assert why_incomplete(tmp_path) == (
            f"its write-ahead log 000007.log lacks what came before {sequences[missing + 1]}"
        )


@pytest.mark.parametrize("byte", range(8))
def test_sequence_numbers_have_eight_bytes_and_counts_four(tmp_path: Path, byte: int) -> None:
    """Each byte counts."""
    first, count = 1 << 8 * byte, 1 << 8 * (byte % 4)
    two = log_file(batch(first, count), batch(first + count, 1))
    write(tmp_path, {"000007.log": two}, edit(log_number(7)))
    assert why_incomplete(tmp_path) is None
    for wrong in (first, first + count + 1):
        (tmp_path / "000007.log").write_bytes(log_file(batch(first, count), batch(wrong, 1)))
        assert f"before {wrong}" in str(why_incomplete(tmp_path))


def test_empty_fragment_at_the_very_end_ends_a_batch(tmp_path: Path) -> None:
    """It has a kind, so it is no zeros; LevelDB writes such a one in the last bytes of a block."""
    data = fragment(FULL, batch(1, 1)) + fragment(FIRST, batch(99, 1)) + fragment(LAST, b"")
    write(tmp_path, {"000007.log": data}, edit(log_number(7)))
    assert "before 99" in str(why_incomplete(tmp_path))


def test_logs_of_an_unreadable_manifest_are_left_to_leveldb(tmp_path: Path) -> None:
    """Without its number it is not known which of them are needed."""
    write(tmp_path, {"000007.log": bytes(7) + b"x"}, edit((8, b"")))
    assert why_incomplete(tmp_path) is None
    (tmp_path / "CURRENT").unlink()
    assert why_incomplete(tmp_path) is None


@pytest.mark.parametrize("other", [10, 12])
def test_next_log_continues_the_one_before(tmp_path: Path, other: int) -> None:
    """In the order of their numbers, not of their names."""
    write(
        tmp_path,
        {"999999.log": log_file(batch(1, 10)), "1000000.log": log_file(batch(other, 1))},
        edit(log_number(999_999)),
    )
    assert why_incomplete(tmp_path) == (
        f"its write-ahead log 1000000.log lacks what came before {other}"
    )
    (tmp_path / "1000000.log").write_bytes(log_file(batch(11, 1)))
    assert why_incomplete(tmp_path) is None


def test_page_of_zeros_hides_the_rest_of_its_block(tmp_path: Path) -> None:
    """As LevelDB passes over it; what the next block holds must then continue."""
    sizes = (BLOCK - 7) // 2 - 4
    data = log_file(*(batch(number, 1, sizes) for number in range(1, 7)))
    whole = bytearray(data)
    write(tmp_path, {"000007.log": data}, edit(log_number(7)))
    assert why_incomplete(tmp_path) is None
    second = 7 + sizes
    whole[second : second + 7] = bytes(7)
    (tmp_path / "000007.log").write_bytes(whole)
    assert "lacks what came before" in str(why_incomplete(tmp_path))
    # Zeros up to the end are space that was never written.
    (tmp_path / "000007.log").write_bytes(data[:second] + bytes(3 * BLOCK))
    assert why_incomplete(tmp_path) is None


@pytest.mark.parametrize("end", [1, 6, 7, 8, 50, 106])
def test_torn_end_is_passed_over(tmp_path: Path, end: int) -> None:
    """The applied position is lost with it."""
    data = log_file(batch(1, 1)) + log_file(batch(99, 1))[:end]
    write(tmp_path, {"000007.log": data}, edit(log_number(7)))
    assert why_incomplete(tmp_path) is None
    assert "before 99" in str(
        (tmp_path / "000007.log").write_bytes(log_file(batch(1, 1), batch(99, 1)))
        and why_incomplete(tmp_path)
    )


def test_fragment_that_leaves_its_block_ends_what_is_read(tmp_path: Path) -> None:
    """A damaged length: LevelDB reports it."""
    data = bytearray(log_file(batch(1, 1), batch(2, 1), batch(99, 1, 40_000)))
    data[4:6] = (BLOCK - 6).to_bytes(2, "little")
    data += bytes(BLOCK)
    write(tmp_path, {"000007.log": bytes(data)}, edit(log_number(7)))
    assert why_incomplete(tmp_path) is None


def test_batch_that_is_too_small_ends_what_is_read(tmp_path: Path) -> None:
    """LevelDB says that it is."""
    write(
        tmp_path,
        {"000007.log": log_file(batch(1, 1), b"x" * 11, batch(99, 1))},
        edit(log_number(7)),
    )
    assert why_incomplete(tmp_path) is None
    (tmp_path / "000007.log").write_bytes(log_file(batch(1, 1), batch(2, 1, 12), batch(99, 1)))
    assert "before 99" in str(why_incomplete(tmp_path))


def test_first_fragment_begins_anew(tmp_path: Path) -> None:
    """The rest that a crash left of the batch in front of it is no part of it."""
    data = fragment(FIRST, batch(1, 1)) + log_file(batch(5, 2), batch(7, 1))
    write(tmp_path, {"000007.log": data}, edit(log_number(7)))
    assert why_incomplete(tmp_path) is None
    data = fragment(FIRST, batch(5, 2, 50)) + fragment(MIDDLE, b"x" * 9) + fragment(LAST, b"y")
    (tmp_path / "000007.log").write_bytes(data + log_file(batch(7, 1)))
    assert why_incomplete(tmp_path) is None
    (tmp_path / "000007.log").write_bytes(data + log_file(batch(8, 1)))
    assert "before 8" in str(why_incomplete(tmp_path))


def test_hole_at_the_start_is_told(tmp_path: Path) -> None:
    """A file of zeros alone was never written, and an empty one only matters in front."""
    hole = bytes(7) + b"\x00\x01" * 30
    write(tmp_path, {"000007.log": hole}, edit(log_number(7)))
    assert why_incomplete(tmp_path) == "its write-ahead log 000007.log has a hole at its start"
    (tmp_path / "000007.log").write_bytes(bytes(6) + b"\x01" + hole)
    assert "hole" not in str(why_incomplete(tmp_path))
    (tmp_path / "000007.log").write_bytes(bytes(500))
    assert why_incomplete(tmp_path) is None
    (tmp_path / "000007.log").write_bytes(log_file(batch(1, 1)))
    (tmp_path / "000009.log").write_bytes(b"")
    assert why_incomplete(tmp_path) is None
    (tmp_path / "000011.log").write_bytes(log_file(batch(2, 1)))
    assert why_incomplete(tmp_path) == (
        "its write-ahead log 000009.log is empty, and another one follows"
    )
