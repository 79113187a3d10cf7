"""The ledger of a campaign: one line of JSON a unit, appended and synced as it ends.

A line that was cut when the machine stopped is left out; its unit runs again. What was done on
other machines is carried along as sums (``summed``), so that nobody has to do it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEDGER_NAME = "campaign.jsonl"
LOCK_NAME = "campaign.lock"
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class LedgerError(ValueError):
    """The ledger cannot be read or is in use; the text names the place and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One unit that ended."""

    part: str
    key: str
    """Which unit of its part: a seed, a combination of workload and faults; "" of a sum."""
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
    keys: Sequence[str] = ()
    """Of a sum: the units that it stands for; "3..7" are those numbers."""

    @property
    def units(self) -> tuple[str, ...]:
        """The keys of all units in it."""
        return tuple(key for each in self.keys or (self.key,) for key in _unfolded(each))


class Ledger:
    """The entries of a campaign's directory."""

    def __init__(self, directory: Path, carried: Path | None = None) -> None:
        """``carried``: sums of what was done elsewhere."""
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / LEDGER_NAME
        elsewhere = [] if carried is None else list(_read(carried))
        there = {(entry.part, unit) for entry in elsewhere for unit in entry.units}
        # A sum may have been made of this very ledger.
        here = [entry for entry in _read(self._path) if (entry.part, entry.key) not in there]
        self._entries = elsewhere + here
        self._done = there | {(entry.part, entry.key) for entry in here}
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
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
        self._entries.append(entry)
        self._done.add((entry.part, entry.key))

    def _drop_cut_line(self) -> None:
        """Cut off half a line, so that the next one is not glued to it."""
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as file:
                file.truncate(whole)


def summed(entries: Iterable[Entry]) -> list[Entry]:
    """One entry for all that passed of a part on one state of the code; failures stay."""
    passed: dict[tuple[str, str], list[Entry]] = {}
    failed: list[Entry] = []
    for entry in entries:
        if entry.passed:
            passed.setdefault((entry.part, entry.code), []).append(entry)
        else:
            failed.append(entry)
    sums = [
        Entry(
            part=part,
            key="",
            passed=True,
            figures=add_up(each),
            code=code,
            keys=_folded([unit for entry in each for unit in entry.units]),
        )
        for (part, code), each in passed.items()
    ]
    return sums + failed


def add_up(entries: Iterable[Entry]) -> dict[str, Any]:
    """Sums of all figures; maps of numbers are summed name by name."""
    total: dict[str, Any] = {}
    for entry in entries:
        for name, value in entry.figures.items():
            if isinstance(value, Mapping):
                inner = total.setdefault(name, {})
                for key, number in value.items():
                    inner[key] = inner.get(key, 0) + number
            elif isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    return total


def save_sums(path: Path, entries: Iterable[Entry]) -> None:
    """Write the sums of all entries, for a campaign elsewhere to go on from."""
    path.write_text("".join(_line(entry) for entry in summed(entries)), encoding="utf-8")


def _line(entry: Entry) -> str:
    plain = {
        "part": entry.part, "key": entry.key, "passed": entry.passed,
        "figures": dict(entry.figures), "failure": entry.failure, "replay": entry.replay,
        "code": entry.code,
    }  # fmt: skip
    if entry.keys:
        plain["keys"] = list(entry.keys)
    return json.dumps(plain, ensure_ascii=False) + "\n"


def _folded(keys: Sequence[str]) -> tuple[str, ...]:
    """Numbers that follow each other as one "A..B", other keys as they are."""
    numbers = sorted({int(key) for key in keys if key.isdecimal()})
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    reported = [str(first) if first == last else f"{first}..{last}" for first, last in ranges]
    return (*reported, *dict.fromkeys(key for key in keys if not key.isdecimal()))


def _unfolded(key: str) -> Iterator[str]:
    found = _RANGE.fullmatch(key)
    if found is None:
        yield key
    else:
        yield from map(str, range(int(found[1]), int(found[2]) + 1))


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
