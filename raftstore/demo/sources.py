"""Real rows that are on (nearly) every machine, each with a key and something to count.

Debian's package index, the file lists of the installed packages, the interpreter's Unicode
database. Nothing is downloaded and nothing is made up.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

APT_LISTS: Final = Path("/var/lib/apt/lists")
DPKG: Final = Path("/var/lib/dpkg")
_APT_HELPER: Final = "/usr/lib/apt/apt-helper"

_COMPRESSED: Final = frozenset({".lz4", ".xz", ".gz", ".bz2", ".zst", ".lzma"})

_RELATIONS: Final = ("Depends", "Pre-Depends", "Recommends", "Suggests")
_INDEX_FIELDS: Final = frozenset({"Package", "Section", "Installed-Size", *_RELATIONS})
_EDGE: Final = re.compile(r"([^\s(:\[]+)[^(]*(?:\(([^)]*)\))?")


class Measure(msgspec.Struct, frozen=True):
    """One column of an aggregate: ``function`` is count, sum, min or max.

    All of them are exact and independent of order, so a stream and a batch give equal results.
    """

    name: str
    function: str
    column: str


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows, how to call them, and what to count: the input of the demo.

    ``columns`` is a pyarrow Table; ``key`` is unique in it.
    """

    source: str
    description: str
    table: str
    key: tuple[str, ...]
    columns: Any
    aggregate_table: str
    group_by: str
    measures: tuple[Measure, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.columns.num_rows)


@dataclass(frozen=True, slots=True)
class Edge:
    """One package naming another in one of its relations."""

    package: str
    relation: str
    target: str
    constraint: str | None
    alternative: int
    section: str
    installed_kib: int | None


def find_rows(rows_wanted: int, rows_min: int, source: str = "") -> SourceRows:
    """Return rows of the first source that has ``rows_min`` of them, about ``rows_wanted`` many.

    ``source`` picks one by name. The Unicode database is always there and always large enough.
    """
    readers = {source: SOURCES[source]} if source else SOURCES
    for reader in readers.values():
        found = reader(rows_wanted)
        if found is not None and found.count >= rows_min:
            return found
    return unicode_characters(rows_wanted)


def package_dependencies(rows_wanted: int, lists: Path = APT_LISTS) -> SourceRows | None:
    """Dependency edges of Debian's package index: who names whom, with libc6 as the hot key."""
    packages = _read_indexes(sorted(lists.glob("*Packages*")) if lists.is_dir() else [])
    relations = [fields[name] for fields in packages for name in _RELATIONS if name in fields]
    named = sum(1 + text.count(",") + text.count("|") for text in relations)
    # Whole packages are left out, not single edges, so that each package's edges are complete.
    step = max(1, named // rows_wanted)
    taken = [edge for fields in packages[::step] for edge in _edges_of(fields)]
    if not taken:
        return None
    which = "" if step == 1 else f"one in {step} of "
    return SourceRows(
        source="packages",
        description=f"Debian package index: the dependencies of {which}{len(packages):,} packages",
        table="dependencies",
        key=("package", "relation", "target"),
        columns=pa.table(
            {
                "package": [edge.package for edge in taken],
                "relation": [edge.relation for edge in taken],
                "target": [edge.target for edge in taken],
                "constraint": [edge.constraint for edge in taken],
                "alternative": [edge.alternative for edge in taken],
                "section": [edge.section for edge in taken],
                "installed_kib": [edge.installed_kib for edge in taken],
            }
        ),
        aggregate_table="reverse_dependencies",
        group_by="target",
        measures=(
            Measure("dependents", "count", "package"),
            Measure("dependents_kib", "sum", "installed_kib"),
            Measure("first_dependent", "min", "package"),
            Measure("last_dependent", "max", "package"),
        ),
    )


def _read_indexes(files: Iterable[Path]) -> list[dict[str, str]]:
    """Wanted fields of each package of the index files; the first entry of a name wins."""
    packages: dict[str, dict[str, str]] = {}
    for file in files:
        fields: dict[str, str] = {}
        for line in _lines(file):
            if line in {"", "\n"}:
                packages.setdefault(fields.get("Package", ""), fields)
                fields = {}
                continue
            name, colon, value = line.partition(": ")
            if colon and name in _INDEX_FIELDS:
                fields[name] = value.rstrip("\n")
        packages.setdefault(fields.get("Package", ""), fields)
    packages.pop("", None)
    return list(packages.values())


def _lines(file: Path) -> Iterator[str]:
    """Lines of an index; apt's own helper knows every compression apt uses."""
    if file.suffix not in _COMPRESSED:
        with file.open(encoding="utf-8", errors="replace") as text:
            yield from text
        return
    helper = shutil.which(_APT_HELPER)
    if helper is None:
        return
    with subprocess.Popen(
        [helper, "cat-file", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        yield from process.stdout


def _edges_of(fields: dict[str, str]) -> Iterator[Edge]:
    """Edges of one package, each (relation, target) once."""
    seen: set[tuple[str, str]] = set()
    size = fields.get("Installed-Size", "")
    for relation in _RELATIONS:
        for group in fields.get(relation, "").split(","):
            for alternative, text in enumerate(group.split("|")):
                match = _EDGE.match(text.strip())
                if match is None or (relation, match[1]) in seen:
                    continue
                seen.add((relation, match[1]))
                yield Edge(
                    package=fields["Package"],
                    relation=relation.lower(),
                    target=match[1],
                    constraint=match[2],
                    alternative=alternative,
                    section=fields.get("Section", ""),
                    installed_kib=int(size) if size.isdigit() else None,
                )


def installed_files(rows_wanted: int, dpkg: Path = DPKG) -> SourceRows | None:
    """Every path of every installed Debian package; the hot key is a directory many write to."""
    packages = {
        fields["Package"]: fields
        for fields in _read_indexes(file for file in [dpkg / "status"] if file.is_file())
    }
    rows: list[tuple[str, str, str, str, int]] = []
    for file in sorted((dpkg / "info").glob("*.list")):
        package = file.name.removesuffix(".list")
        section = packages.get(package.partition(":")[0], {}).get("Section", "")
        for path in dict.fromkeys(file.read_text(errors="replace").split("\n")):
            if path and path != "/.":
                directory = path.rpartition("/")[0] or "/"
                rows.append((package, path, directory, section, path.count("/")))
    if not rows:
        return None
    taken = rows[:: max(1, len(rows) // rows_wanted)]
    columns = map(list, zip(*taken, strict=True))
    names = ("package", "path", "directory", "section", "depth")
    return SourceRows(
        source="files",
        description=f"{len(taken):,} of the {len(rows):,} paths of the installed Debian packages",
        table="package_files",
        key=("package", "path"),
        columns=pa.table(dict(zip(names, columns, strict=True))),
        aggregate_table="directories",
        group_by="directory",
        measures=(
            Measure("paths", "count", "path"),
            Measure("first_package", "min", "package"),
            Measure("last_package", "max", "package"),
        ),
    )


def unicode_characters(rows_wanted: int) -> SourceRows:
    """Every character that has a name; the hot key is a script with tens of thousands."""
    named = [
        (code, name)
        for code in range(sys.maxunicode + 1)
        if (name := unicodedata.name(chr(code), ""))
    ]
    taken = named[:: max(1, len(named) // rows_wanted)]
    characters = [chr(code) for code, _ in taken]
    return SourceRows(
        source="characters",
        description=f"{len(taken):,} of the {len(named):,} named characters of "
        f"Unicode {unicodedata.unidata_version}",
        table="characters",
        key=("code_point",),
        columns=pa.table(
            {
                "code_point": [code for code, _ in taken],
                "character": characters,
                "name": [name for _, name in taken],
                "script": [re.split(r"[ -]", name, maxsplit=1)[0] for _, name in taken],
                "category": [unicodedata.category(character) for character in characters],
                "mirrored": [bool(unicodedata.mirrored(character)) for character in characters],
                "numeric": [unicodedata.numeric(character, None) for character in characters],
                "utf8": [character.encode() for character in characters],
            }
        ),
        aggregate_table="scripts",
        group_by="script",
        measures=(
            Measure("characters", "count", "code_point"),
            Measure("first_code_point", "min", "code_point"),
            Measure("last_code_point", "max", "code_point"),
        ),
    )


SOURCES: Final[dict[str, Callable[[int], SourceRows | None]]] = {
    "packages": package_dependencies,
    "files": installed_files,
    "characters": unicode_characters,
}
"""In the order in which they are tried."""
