"""Ranges of keys as callers write them, and what becomes of the rows in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from raftstore.client.reads.key_reads import row_of
from raftstore.client.reads.projection import Projection
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.errors import ArgumentError
from raftstore.rows.schema import TableSchema


class Shape:
    """The shape of a scan's rows: which columns, and for which scan."""

    def __init__(self, schema: TableSchema, spec: ReadSpec, *, keys_only: bool) -> None:
        self._schema = schema
        self._columns = spec.columns
        self._projection = Projection(schema, spec.columns)
        self.keys_only = keys_only or self._projection.is_of_keys

    def row(self, key: bytes, sealed: bytes | None) -> dict[str, Any]:
        """Return a row as the caller wants it."""
        if self.keys_only:
            schema = self._schema
            row = dict(zip(schema.key_columns, schema.decode_key(key), strict=True))
        else:
            row = cast(dict[str, Any], row_of(self._schema, key, sealed))
        return self._projection.of(row)

    def digest(self, start: bytes, stop: bytes) -> bytes:
        """Distinguish scans: the pages of one have the same range and columns."""
        content = repr((start, stop, self._columns, self.keys_only)).encode()
        return hashlib.blake2b(content, digest_size=8).digest()


def check_range(start: Any, stop: Any, prefix: Any) -> None:
    """Raise ArgumentError for a range that is given in two ways."""
    if prefix is not None and (start is not None or stop is not None):
        raise ArgumentError("prefix and start or stop exclude each other; give one of them")


def bounds_of(schema: TableSchema, start: Any, stop: Any, prefix: Any) -> tuple[bytes, bytes]:
    """Return [start, stop) of encoded keys; b"" is open."""
    if prefix is not None:
        if isinstance(prefix, str | bytes):
            return schema.text_prefix((), prefix)
        return schema.key_prefix(_columns(schema, prefix))
    first = b"" if start is None else schema.key_prefix(_columns(schema, start))[0]
    last = b"" if stop is None else schema.key_prefix(_columns(schema, stop))[0]
    return first, last


def _columns(schema: TableSchema, given: Any) -> Sequence[Any]:
    if isinstance(given, Mapping):
        return schema.decode_key(schema.key_of(given))
    return given if isinstance(given, tuple | list) else (given,)
