"""An error that no command expects: a code of its own, since 1 says that there is no such row."""

from __future__ import annotations

import errno
import os

import click
import pytest

from raftstore.cli.errors import EXIT_REFUSED, EXIT_STORAGE, run_guarded


def command(error: Exception) -> click.Command:
    """A command that raises."""

    @click.command()
    def failing() -> None:
        raise error

    return failing


def test_mistake_of_raftstore_is_said_and_is_no_missing_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With all that helps to find it."""
    assert run_guarded(command(OverflowError("too large")), []) == EXIT_STORAGE
    said = capsys.readouterr().err
    assert "OverflowError: too large" in said
    assert said.endswith("error: this is a mistake of raftstore, please report it\n")


def test_output_that_cannot_be_written_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk behind `>`."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert run_guarded(command(full), []) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("error: [Errno 28] No space left on device; what is printed")
    assert said.count("\n") == 1
