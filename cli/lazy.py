"""Commands imported when used, so that a node starts without what it never needs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are named as ``"module:attribute"``; absent modules are left out."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order given, what is at hand first: what is used first comes first."""
        del ctx
        return [*self.commands, *(name for name in self._lazy if self._is_present(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None if there is none with this name."""
        if cmd_name not in self._lazy or not self._is_present(cmd_name):
            return super().get_command(ctx, cmd_name)
        module_name, _, attribute = self._lazy[cmd_name].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the commands that were probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from error

    def _is_present(self, name: str) -> bool:
        try:
            return importlib.util.find_spec(self._lazy[name].partition(":")[0]) is not None
        except ModuleNotFoundError:  # not even its package
            return False
