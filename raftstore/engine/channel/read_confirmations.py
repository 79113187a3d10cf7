"""Continuations of linearizable reads: called when the core confirms or refuses them (S7.1).

The core knows a read by a number only. Whatever needs a leader that a quorum confirms, reads of
rows, questions for the outcome of a write, checks before a batch is decided, asks here with what is
to be done then, so the core's answer finds its owner by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from raftstore.errors import RequestError
from raftstore.types import Seq

OnConfirmed = Callable[[Seq], None]
"""The leader was confirmed by a round that began after the question; its state must hold this seq,
and does."""
OnRefused = Callable[[type[RequestError], str], None]
"""Nobody confirmed it: the error and a sentence."""


class _Continuation(NamedTuple):
    on_confirmed: OnConfirmed
    on_refused: OnRefused


class ReadConfirmations:
    """The open questions of one channel: as many as its core lets wait
    (``replication.read_index_reads_max``), for the core answers each of them once."""

    def __init__(self) -> None:
        self._tokens = 0
        self._open: dict[int, _Continuation] = {}

    def __len__(self) -> int:
        """Questions without an answer."""
        return len(self._open)

    def add(self, on_confirmed: OnConfirmed, on_refused: OnRefused) -> int:
        """The token by which the core knows the question; it is never used again."""
        self._tokens += 1
        self._open[self._tokens] = _Continuation(on_confirmed, on_refused)
        return self._tokens

    def drop(self, tokens: Iterable[int]) -> None:
        """Nothing goes on with these any more."""
        for token in tokens:
            self._open.pop(token, None)

    def clear(self) -> None:
        """The channel is closed."""
        self._open.clear()

    def confirm(self, token: int, read_seq: Seq) -> None:
        """The core's answer; nothing happens if the question was dropped meanwhile."""
        found = self._open.pop(token, None)
        if found is not None:
            found.on_confirmed(read_seq)

    def refuse(self, token: int, error: type[RequestError], text: str) -> None:
        """The same."""
        found = self._open.pop(token, None)
        if found is not None:
            found.on_refused(error, text)
