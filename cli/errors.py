"""Errors on the command line: one sentence on stderr and the documented exit code."""

from __future__ import annotations

import io
import logging
import sys
import traceback
from typing import Final

import click

from raftstore.errors import (
    ArgumentError,
    ConfigError,
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    QueryError,
    RaftstoreError,
    RequestError,
    RequestTimeoutError,
    StorageError,
    TransportError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.node.line_stream import LineStream
from raftstore.types import Outcome

EXIT_NO_ROW = 1
"""There is no such row: an answer, as of grep, and no error."""
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
EXIT_UNAVAILABLE = 4
EXIT_TIMEOUT = 5
EXIT_REFUSED = 9
EXIT_DIFFERENCE = 7
EXIT_NOT_COMPARED = 8
EXIT_STORAGE = 70
EXIT_CONFIG = 78

LAST_WORDS_S: Final = 2.0
"""How long a node that ends waits for the reader of its stderr."""

_UNAVAILABLE = (
    NoLeaderError,
    NotLeaderError,
    QueryError,
    OverloadedError,
    UnavailableError,
    TransportError,
)


def exit_code(error: RaftstoreError) -> int:
    """The exit code of an error; docs/cli.md has the table."""
    if isinstance(error, ArgumentError):
        return EXIT_USAGE
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    if isinstance(error, StorageError):
        return EXIT_STORAGE
    if isinstance(error, RequestTimeoutError):
        return EXIT_TIMEOUT
    if isinstance(error, RequestError) and error.outcome is Outcome.UNKNOWN:
        return EXIT_UNKNOWN
    if isinstance(error, _UNAVAILABLE):
        return EXIT_UNAVAILABLE
    return EXIT_REFUSED


def run_guarded(command: click.Command, arguments: list[str]) -> int:
    """Run a command; turn every expected error into a sentence and a code."""
    # A refused node must end although nobody reads why: its supervisor waits for the exit code.
    say = say_in_time if arguments[:1] == ["node"] else _say
    try:
        result = command.main(args=arguments, prog_name="raftstore", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        say("stopped")
        return 130
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        say(shown.getvalue().rstrip("\n"))
        return error.exit_code if isinstance(error, click.UsageError) else EXIT_REFUSED
    except RaftstoreError as error:
        logging.getLogger("raftstore").debug("failed", exc_info=error)
        say(f"error: {error}")
        if isinstance(error, UnknownTableError):
            say("see `raftstore table ls` and `raftstore table create -h`")
        return exit_code(error)
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except OSError as error:
        # Nothing else is left to the commands' own words: what a shell gave them does not work.
        logging.getLogger("raftstore").debug("failed", exc_info=error)
        say(f"error: {error}; what is printed, or a file that was named, cannot be written or read")
        return EXIT_REFUSED
    except Exception:  # noqa: BLE001 - code 1, Python's own, would say "no such row"
        say(f"{traceback.format_exc()}error: this is a mistake of raftstore, please report it")
        return EXIT_STORAGE
    return result if isinstance(result, int) else 0


def _say(text: str) -> None:
    click.echo(text, err=True)


def say_in_time(text: str) -> None:
    """Write the line to stderr, but wait for its reader a bounded time only."""
    stream = LineStream(sys.stderr, lambda _: "")
    stream.write(f"{text}\n")
    stream.end(LAST_WORDS_S)
