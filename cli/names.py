"""Names of tables and channels as arguments: a shell completes them by asking the cluster."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import CompletionItem

import raftstore
from raftstore.cli.common import DEFAULT_ENDPOINTS
from raftstore.errors import RaftstoreError

COMPLETION_TIMEOUT_S: Final = 1.0
"""Somebody waits at a prompt: a cluster that answers later completes nothing."""


class ClusterName(click.types.StringParamType):
    """The name of a table, or of one of its channels (``table/partition``), taken as it is."""

    def __init__(self, name: str, *, tables: bool, channels: bool) -> None:
        self.name = name
        self._tables = tables
        self._channels = channels

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so; none when the cluster does not answer."""
        del param
        try:
            with raftstore.connect(_endpoints(ctx), timeout=COMPLETION_TIMEOUT_S) as client:
                found = {info.name: info.partitions for info in client.tables()}
        except RaftstoreError:
            return []
        names = list(found) if self._tables else []
        if self._channels:
            names += [f"{name}/{number}" for name in found for number in range(found[name])]
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _endpoints(ctx: click.Context) -> str:
    """The value of ``--endpoints`` or of its environment variable, or the default."""
    root = ctx.find_root()
    given = root.params.get("endpoints")
    return given if isinstance(given, str) else DEFAULT_ENDPOINTS


TABLE: Final = ClusterName("table", tables=True, channels=False)
CHANNEL: Final = ClusterName("channel", tables=False, channels=True)
CHANNEL_OR_TABLE: Final = ClusterName("channel or table", tables=True, channels=True)
