"""Reports of the apply thread to the loop thread, and when they are told.

Waking the loop costs a turn of the node, and most of what is applied is awaited by nobody: a put
was acknowledged before. So plain rows are told in the next turn that anything else begins, before
whatever began it is looked at; only what somebody waits for wakes the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from raftstore.storage.worker import Post


class AppliedReports:
    """Between two threads: ``put`` belongs to the apply thread, all else to the loop thread.

    It holds what was handed to the apply thread and not reported: two steps a channel at most.
    """

    def __init__(self) -> None:
        self.post: Post = lambda call: call()
        """Runs ``tell`` on the loop thread."""
        self.is_awaited = True
        """Whether anything waits for what is being applied. An owner that sets it to False calls
        ``tell`` at the start of each of its turns, and sets it anew at their ends."""
        self.waiting: deque[Callable[[], None]] = deque()
        """Reports that were not told yet, the oldest first."""
        self._is_posted = False
        self._is_telling = False

    def put(self, reports: Iterable[Callable[[], None]], *, may_wait: bool) -> None:
        """These are to be told, in this order; unless they may wait, soon."""
        # In this order: the loop thread sets ``is_awaited`` first and then looks what there is.
        self.waiting.extend(reports)
        if may_wait and not self.is_awaited:
            return
        if not self._is_posted:
            self._is_posted = True
            self.post(self._told_soon)

    def tell(self) -> None:
        """Tell all there is. What is called may begin a turn, and call this again."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self.waiting:
                self.waiting.popleft()()
        finally:
            self._is_telling = False

    def _told_soon(self) -> None:
        # First: what comes from now on asks for a call of its own.
        self._is_posted = False
        self.tell()
