"""Checks of arguments before anything is done with them: ArgumentError names the value.

A wrong type found later is an error of Python about something inside, or of a node about a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from raftstore.errors import ArgumentError
from raftstore.protocol.lifetimes import TTL_MS_MAX

Item = TypeVar("Item")
Ttl = float | timedelta | None
"""How long a row lives: seconds, or a timedelta; 0: for ever; None: as the table says."""


def text(name: str, given: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(given, str) or not given:
        raise ArgumentError(f"{name}={given!r:.80} is no text; give a name, as in {name}='orders'")
    return given


def optional_function(name: str, given: Any) -> None:
    """Raise unless it is None or can be called."""
    if given is not None and not callable(given):
        raise ArgumentError(f"{name}={given!r:.80} cannot be called; give a function, or none")


def texts(name: str, given: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple, for calls that take a list of names."""
    found = (given,) if isinstance(given, str) else items(name, given)
    for each in found:
        if not isinstance(each, str):
            raise ArgumentError(
                f"{name}={given!r:.80} has {each!r:.80}, which is no text; give names"
            )
    return tuple(found)


def whole(name: str, given: Any, least: int, most: int = 2**63 - 1) -> int:
    """Return a whole number within its bounds."""
    if type(given) is not int or not least <= given <= most:
        is_above = type(given) is int and given > most
        upper = f" to {most}" if is_above or most < 2**63 - 1 else ""
        raise ArgumentError(
            f"{name}={given!r:.80} is no whole number from {least}{upper or ' on'}; give one"
        )
    return given


def encoded(name: str, given: Any) -> bytes:
    """Return an encoded key, or b""."""
    if not isinstance(given, bytes):
        raise ArgumentError(f"{name}={given!r:.80} is no encoded key; give bytes, or b''")
    return given


def flag(name: str, given: Any) -> bool:
    """Return True or False, and nothing that only counts as one of them."""
    if type(given) is not bool:
        raise ArgumentError(f"{name}={given!r:.80} is neither True nor False; give one of them")
    return given


def lifetime_ms(ttl: Any, name: str = "ttl") -> int | None:
    """Return a lifetime in seconds, or a timedelta, in milliseconds; 0: for ever; None: none is
    given, and the table's counts."""
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if type(seconds) not in (int, float):
        raise ArgumentError(f"{name}={ttl!r:.80} is no time; give seconds or a timedelta")
    if seconds != 0 and not 0.001 <= seconds <= TTL_MS_MAX / 1000:  # nor is a NaN
        raise ArgumentError(
            f"{name}={ttl!r:.80} is out of range; a row lives for 0.001 to {TTL_MS_MAX // 1000} "
            "seconds, or with 0 for ever"
        )
    return round(seconds * 1000)


def items(name: str, given: Iterable[Item]) -> Sequence[Item]:
    """Return the items of any iterable as a list. A text or a map is refused: it is meant as one
    value."""
    if isinstance(given, str | bytes | dict):
        raise ArgumentError(f"{name}={given!r:.80} is a single value and no list; put it into []")
    try:
        return list(given)
    except TypeError:
        raise ArgumentError(f"{name}={given!r:.80} is no list; give one, as in [...]") from None
