"""Errors on the command line: one sentence on stderr and the documented exit code."""

from __future__ import annotations

import logging

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
    try:
        result = command.main(args=arguments, prog_name="raftstore", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        click.echo("stopped", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code if isinstance(error, click.UsageError) else EXIT_REFUSED
    except RaftstoreError as error:
        logging.getLogger("raftstore").debug("failed", exc_info=error)
        click.echo(f"error: {error}", err=True)
        if isinstance(error, UnknownTableError):
            click.echo("see `raftstore table ls` and `raftstore table create -h`", err=True)
        return exit_code(error)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return 130
    return result if isinstance(result, int) else 0
