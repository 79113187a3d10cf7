"""Sentences about the code of a user's machine: what it raised, and that it is of no use here."""

from __future__ import annotations

from typing import Any, Final

from raftstore.record_machine import MachineSource

REASON_CHARS_MAX: Final = 1_000
"""Of the text of what a machine raised."""


def what_of(error: BaseException) -> str:
    """The text about what was raised, and where."""
    text = f"{type(error).__name__}: {text_of(error)}"
    trace: Any = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return cut(text)
    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return cut(f"{text} ({file}:{trace.tb_lineno})")


def text_of(error: BaseException) -> str:
    """The text of what was raised."""
    try:
        return cut(str(error))
    except BaseException as broken:  # noqa: BLE001 - the text is of somebody else's class
        return f"(its text raised {type(broken).__name__})"


def cut(text: str) -> str:
    """The text, no longer than ``REASON_CHARS_MAX``."""
    # A text of the file system may have halves of characters, which nothing encodes.
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= REASON_CHARS_MAX else f"{text[:REASON_CHARS_MAX]}…"


def version_lacking(machine: MachineSource, version: int) -> str:
    """Why code that has not the version in force applies nothing."""
    text = f"version {version} is in force, and this node has {machine.version}"
    if machine.oldest_version > version:
        text = f"{text}, which goes back to {machine.oldest_version} and no further"
    return f"{text}; install code that has it, and restart the node"
