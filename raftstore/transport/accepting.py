"""Accepts connections of one listening socket, and leaves the node's last files to its storage.

A node that finds no number for a file of its store stops (S0.4), so clients that connect must
never be able to use the last one.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Callable
from typing import Final

from raftstore.transport.log_fields import fields

logger = logging.getLogger("raftstore.transport")

ACCEPT_RETRY_S: Final = 0.1
"""A port that has met the reserve, or the limit of the system, accepts nothing for this long."""
REPORT_EVERY_S: Final = 10.0
"""One log line in this time says so."""


class FileReserve:
    """The numbers of files that no connection may have.

    The system gives a new file the lowest number that is free. As long as no connection keeps one
    of the last numbers, so many files can be opened by everybody else, whatever connections do.
    """

    def __init__(self, limit: int, reserved: int) -> None:
        """``limit`` numbers are allowed, the last ``reserved`` of them not to connections."""
        self.reserved = reserved
        self.first_reserved = limit - reserved
        self.refused: dict[str, int] = {}
        """Port -> how often it stopped to accept. Each port counts its own: no lock."""

    @classmethod
    def of_process(cls, reserved: int) -> FileReserve:
        """Return that of this process, by the limit that is in force."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(sys.maxsize if soft == resource.RLIM_INFINITY else soft, reserved)

    def is_met_by(self, accepted: socket.socket) -> bool:
        """Whether the connection has a number of the reserve."""
        return accepted.fileno() >= self.first_reserved


class Acceptor:
    """Accepts on the running loop. ``name`` distinguishes the ports of a node in logs and
    metrics."""

    def __init__(
        self,
        listener: socket.socket,
        files: FileReserve,
        name: str,
        on_accepted: Callable[[socket.socket], None],
    ) -> None:
        self._listener = listener
        self._files = files
        self._name = name
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._reported_s = float("-inf")
        files.refused.setdefault(name, 0)
        self._listen()

    def close(self) -> None:
        """Stop listening; once more is fine."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() != -1:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _listen(self) -> None:
        self._retry = None
        # Not sock_accept: cancelled at the wrong moment, it loses a socket nobody closes.
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # it went away before we came
        except OSError as error:  # too many open files: let others close some
            self._pause(str(error))
            return
        if self._files.is_met_by(accepted):
            accepted.close()
            self._pause(
                f"the last {self._files.reserved} files are kept for the store "
                "(storage.files_reserved)"
            )
            return
        accepted.setblocking(False)
        self._on_accepted(accepted)

    def _pause(self, reason: str) -> None:
        self._files.refused[self._name] += 1
        now_s = self._loop.time()
        if now_s >= self._reported_s + REPORT_EVERY_S:
            self._reported_s = now_s
            logger.warning(
                "connections refused",
                extra=fields(
                    port=self._name,
                    reason=reason,
                    remedy="raise LimitNOFILE (ulimit -n) or allow fewer connections",
                ),
            )
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._listen)
