"""Bytes that nodes have stored are added up while they write and remove files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stored import disk_bytes, file_bytes


def test_all_files_below_count_and_those_that_went_meanwhile_do_not(tmp_path: Path) -> None:
    """Tables are merged and dropped while one looks."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "000005.ldb").write_bytes(b"x" * 5_000)
    (tmp_path / "log").write_bytes(b"y" * 10)
    (tmp_path / "tables" / "gone").symlink_to(tmp_path / "nothing")
    assert file_bytes(tmp_path) == 5_010
    assert 5_010 <= disk_bytes(tmp_path) <= 5 * 8_192
    assert file_bytes(tmp_path / "dropped") == disk_bytes(tmp_path / "dropped") == 0
