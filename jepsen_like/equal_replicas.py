"""Waits until all replicas of a table hold the same rows: followers apply a moment later what was
acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError

POLL_S: Final = 0.1
CALL_TIMEOUT_S: Final = 2.0


def difference(client: Client, table: str, nodes: Sequence[str], patience_s: float) -> str:
    """Return why the table is not the same at all nodes, "" as soon as it is.

    A node that cannot be asked is asked again, as long as there is time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            contents = {
                str(client.content_hash(table, node, timeout=CALL_TIMEOUT_S).content())
                for node in nodes
            }
            if len(contents) == 1:
                return ""
            found = f"the replicas of {table} differ: {sorted(contents)}"
        except RaftstoreError as error:
            found = f"a replica of {table} cannot be asked: {error}"
        if time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)
