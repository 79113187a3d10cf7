"""Channels by the names that people give them, as the catalog has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raftstore import Client
from raftstore.errors import ArgumentError, SchemaError
from raftstore.protocol.admin import TableInfo

DIGITS_MAX: Final = 9
"""Of a partition's number; no table has as many."""


def placed_info(client: Client, name: str) -> TableInfo:
    """A table, or a channel set: both are channels to those who look after a cluster."""
    try:
        return client.table_info(name)
    except SchemaError:  # it has no rows
        return client.channelset_info(name)


def channels_named(client: Client, name: str) -> tuple[TableInfo, Sequence[int]]:
    """The table, and the partitions that ``table/partition`` or ``table`` names."""
    if "/" in name:
        table, number = named(client, name)
        return table, [number]
    table = placed_info(client, name)
    return table, range(table.partitions)


def named(client: Client, name: str) -> tuple[TableInfo, int]:
    """The table and the partition that ``table/partition`` names."""
    table, slash, number = name.rpartition("/")
    if not slash or not number.isdecimal() or len(number) > DIGITS_MAX:
        raise ArgumentError(f"{name!r} is no channel; write table/partition, as in orders/3")
    found = placed_info(client, table)
    if int(number) >= found.partitions:
        raise ArgumentError(f"table {table} has partitions 0 to {found.partitions - 1}")
    return found, int(number)
