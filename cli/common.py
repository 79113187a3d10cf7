"""Shared by all commands: global options, the client, printing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

import raftstore
from raftstore.client.cluster.discovery import split_endpoints
from raftstore.errors import ArgumentError, ConfigError, UnavailableError
from raftstore.protocol.admin import TableInfo
from raftstore.rows.key_text import JsonRows

DEFAULT_ENDPOINTS: Final = "127.0.0.1:4481"
"""A node that was started without --listen."""
PIPE_COLUMNS = 100_000
"""Width of tables that no terminal shows: wide enough never to wrap a row."""
_TWO_ESCAPES: Final = re.compile(r"\\u(d[89ab]..)\\u(d[c-f]..)|\\.")
"""A surrogate pair; and any other escape, so that none begins in the middle of one."""
_PLAIN_NAME: Final = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z_]\w*", re.ASCII | re.IGNORECASE
)
"""Names that YAML takes for text without quotes."""


@dataclass(slots=True)
class Context:
    """The global options of one invocation."""

    output: str = "table"
    endpoints: str = DEFAULT_ENDPOINTS
    timeout_ms: int = 5_000
    yes: bool = False

    @property
    def timeout_s(self) -> float:
        """``--timeout`` in seconds."""
        return self.timeout_ms / 1000

    def connect(self) -> raftstore.Client:
        """A blocking client."""
        try:
            split_endpoints(self.endpoints)
        except ConfigError as error:
            raise click.UsageError(f"--endpoints: {error}.") from error
        settings = raftstore.ClientSettings(is_operator=True)
        try:
            return raftstore.connect(self.endpoints, timeout=self.timeout_s, settings=settings)
        except UnavailableError as error:
            if self.endpoints != DEFAULT_ENDPOINTS:
                raise
            text = f"{error}, or name a node with --endpoints or RAFTSTORE_ENDPOINTS"
            raise UnavailableError(text) from error

    def confirm(self, question: str) -> None:
        """Ask before something that cannot be undone; without a terminal --yes is needed."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Pass --yes to do it without being asked.")
        click.confirm(question, abort=True, err=True)

    def show(self, value: Any, rows: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Print a value as asked for; ``rows`` is how it looks as a table."""
        if self.output == "json":
            click.echo(json_text(value))
        elif self.output == "yaml":
            click.echo("\n".join(_yaml(value)))
        else:
            listed = list(rows if rows is not None else [value])
            _print_table(listed)

    def say(self, message: str) -> None:
        """A message for people, on stderr."""
        click.echo(message, err=True)


pass_context = click.make_pass_decorator(Context)


def rows_of(info: TableInfo) -> JsonRows:
    """Reads and writes a table's rows and keys as text, in the one encoding that HTTP has too.

    A row goes through it before it is shown in any shape: what it holds comes back as what it was.
    """
    return JsonRows(info.key_columns, info.schema_json)


def parse_columns(text: str) -> list[tuple[str, str]]:
    """``id:long,name`` -> [("id", "long"), ("name", "")]."""
    columns = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(":")
        if not name:
            raise ArgumentError(f"--key {text!r} names an empty column; give id or id:long,name")
        columns.append((name, kind))
    return columns


def _print_table(rows: list[Mapping[str, Any]]) -> None:
    if not rows:
        return
    # Cells are data: no markup and no emoji in them, and nothing is cut where a program reads.
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(plain_text(row.get(name)) for name in columns))
    console.print(shown)


def json_text(value: Any) -> str:
    """JSON of a value: of a row what ``rows_of`` makes of it, of anything else as it is."""
    return json.dumps(value, default=str)


def plain_text(value: Any) -> str:
    """A value for people: text as it is, nothing for null, everything else as JSON has it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def now_text() -> str:
    """The time, for people and for what is collected from them."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _yaml(value: Any, indent: str = "") -> Iterable[str]:
    """Plain YAML of JSON-shaped values; scalars are written as JSON, which YAML contains."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            if isinstance(item, (Mapping, list, tuple)) and item:
                yield f"{indent}{_yaml_name(name)}:"
                yield from _yaml(item, indent + "  ")
            else:
                yield f"{indent}{_yaml_name(name)}: {_yaml_scalar(item)}"
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            lines = list(_yaml(item, indent + "  "))
            yield f"{indent}- {lines[0].lstrip()}"
            yield from lines[1:]
    else:
        yield f"{indent}{_yaml_scalar(value)}"


def _yaml_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _yaml_scalar(name)


def _yaml_scalar(value: Any) -> str:
    """JSON, but for characters that it writes as two: YAML has one escape for each."""
    return _TWO_ESCAPES.sub(_one_escape, json_text(value))


def _one_escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    high, low = int(found[1], 16), int(found[2], 16)
    return f"\\U{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:08x}"
