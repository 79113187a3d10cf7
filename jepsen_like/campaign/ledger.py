"""What a campaign has done so far: one line of JSON a unit, appended and synced as it ends.

A line that was cut when the machine stopped is left out; its unit runs again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEDGER_NAME = "campaign.jsonl"
LOCK_NAME = "campaign.lock"


class LedgerError(ValueError):
    """The ledger cannot be read or is in use; the text names the place and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One unit that ended."""

    part: str
    key: str
    """Which unit of its part: a seed, a combination of workload and faults."""
    passed: bool
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Numbers that add up over units; maps of numbers add up by name."""
    failure: str = ""
    """What was violated, in a sentence; empty when it passed."""
    replay: str = ""
    """The command that runs this unit again."""
    code: str = ""
    """Digest of the sources that ran."""
    not_run: str = ""
    """Why the machine did not let it take place: it is not kept, and runs another time."""


class Ledger:
    """The entries of a campaign's directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / LEDGER_NAME
        self._entries = list(_read(self._path))
        self._done = {(entry.part, entry.key) for entry in self._entries}
        self._drop_cut_line()

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the one campaign of this directory: two would run in each other's clusters.

        Raises LedgerError while another process is. The claim ends with the process, however that
        ends.
        """
        path = self._path.with_name(LOCK_NAME)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LedgerError(
                    f"another campaign runs in {path.parent}; wait for its end, stop it, or name "
                    "another directory with --out"
                ) from error
            yield

    @property
    def entries(self) -> list[Entry]:
        """In the order in which they ended."""
        return list(self._entries)

    def has(self, part: str, key: str) -> bool:
        """The unit ended already, on this code or an older one."""
        return (part, key) in self._done

    def count(self, part: str) -> int:
        """Units of a part that ended."""
        return sum(1 for named, _ in self._done if named == part)

    def add(self, entry: Entry) -> None:
        """Keep it; on return it is on the disk."""
        line = {
            "part": entry.part, "key": entry.key, "passed": entry.passed,
            "figures": dict(entry.figures), "failure": entry.failure, "replay": entry.replay,
            "code": entry.code,
        }  # fmt: skip
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._entries.append(entry)
        self._done.add((entry.part, entry.key))

    def _drop_cut_line(self) -> None:
        """What is appended must not be glued to half a line."""
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as file:
                file.truncate(whole)


def _read(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            plain = json.loads(line)
            yield Entry(**plain)
        except (ValueError, TypeError) as error:
            if number == len(lines):  # cut while it was written
                return
            raise LedgerError(
                f"{path}:{number} is no line of a campaign ({error}); "
                "remove that line, its unit will run again"
            ) from error
