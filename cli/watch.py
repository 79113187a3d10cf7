"""``--watch``: show it again and again, with the time, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

from raftstore.cli.common import Context, now_text
from raftstore.errors import ConfigError, RaftstoreError

T = TypeVar("T")
INTERVAL_S: Final = 2.0


def watched(
    context: Context,
    look: Callable[[], T],
    show: Callable[[T], None],
    *,
    again: bool,
    until: Callable[[T], bool] = lambda _: False,
) -> None:
    """Show what ``look`` returns, with ``again`` every two seconds until Ctrl-C, or what is shown
    is the last of it.

    The first look fails as any command does. Later ones are reported and tried again: who watches a
    cluster wants to see it come back.
    """
    found = look()
    while True:
        if again and context.output == "table":
            click.clear()
            click.echo(f"{now_text()}  (every {INTERVAL_S:g} s, Ctrl-C ends it)\n")
        show(found)
        if not again or until(found):
            return
        found = _next(context, look)


def _next(context: Context, look: Callable[[], T]) -> T:
    while True:
        time.sleep(INTERVAL_S)
        try:
            return look()
        except ConfigError:
            raise
        except RaftstoreError as error:
            context.say(f"{now_text()} error: {error}")
