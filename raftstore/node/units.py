"""Durations ("2s", "100ms", "10m") and sizes ("64MiB") as people write them.

Inside raftstore a duration is a whole number of milliseconds and a size a whole number of bytes;
only the edges (settings, command line) read and write the forms with units.
"""

from __future__ import annotations

import re
from typing import Final

DURATION_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
"""Those that are written; days are read, too."""
SIZE_UNITS_BYTES: Final = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}

_QUANTITY: Final = re.compile(r"\s*(?P<thousandths>\d+(?:\.\d{1,3})?)\s*(?P<unit>[A-Za-z]+)\s*\Z")


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``"2s"``, ``"1.5s"``, ``"100ms"``, ``"10m"``, ``"1h"`` or ``"7d"``; else
    ValueError."""
    units = {**DURATION_UNITS_MS, "d": 86_400_000}
    return _parse(text, units, what="a duration", example="100ms, 2s or 10m")


def parse_size_bytes(text: str) -> int:
    """Bytes of ``"64MiB"``, ``"4KiB"`` or ``"512B"`` (powers of 1024); else ValueError."""
    return _parse(text, SIZE_UNITS_BYTES, what="a size", example="512B, 4KiB or 64MiB")


def format_duration(duration_ms: int) -> str:
    """Write with the largest unit that keeps it whole: 2000 is ``"2s"``, 1500 is ``"1500ms"``."""
    return _format(duration_ms, DURATION_UNITS_MS)


def format_size(size_bytes: int) -> str:
    """Write with the largest unit that keeps it whole: 67108864 is ``"64MiB"``."""
    return _format(size_bytes, SIZE_UNITS_BYTES)


def _parse(text: str, units: dict[str, int], *, what: str, example: str) -> int:
    match = _QUANTITY.match(text)
    factor = units.get(match["unit"]) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {what}; write it like {example}")
    whole, _, fraction = match["thousandths"].partition(".")
    thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0"))
    amount, rest = divmod(thousandths * factor, 1000)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of {next(iter(units))}")
    return amount


def _format(amount: int, units: dict[str, int]) -> str:
    for unit, factor in sorted(units.items(), key=lambda item: -item[1]):
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return f"{amount}{next(iter(units))}"
