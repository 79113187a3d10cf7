"""Values of machines as JSON: what the shell and HTTP have in hand.

``machine.JSON`` takes what JSON holds, and a codec of a type what JSON stands for: structs are
objects, and bytes within them base64. Where values are bytes, JSON has their text,
or ``{"$binary": "AQI="}`` for what is no text.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from raftstore.errors import SchemaError
from raftstore.machine import BYTES, Codec
from raftstore.rows.json_values import from_json as from_tagged

BINARY: Final = "$binary"


def from_json(codec: Codec[Any], given: Any) -> Any:
    """The value of a codec that JSON stands for."""
    if codec is not BYTES and getattr(codec, "kind", None) is not bytes:
        convert = getattr(codec, "from_json", None)
        return given if convert is None else convert(given)
    if given is None:
        return b""
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, dict) and list(given) == [BINARY]:
        return from_tagged(given, "binary")
    raise SchemaError(
        f"{given!r:.60} is no text, and the values of this channel set are bytes; give text, or "
        'bytes as {"$binary": "AQI="}'
    )


def to_json(value: Any) -> Any:
    """Return the JSON of a value."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        return text if text.isprintable() else {BINARY: b64encode(value).decode()}
    return msgspec.to_builtins(value, str_keys=True)
