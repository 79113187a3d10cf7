"""What a user of the HTTP interface may do."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a user may do; each role may also do what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    NODE = "node"
    """Another node, by its token: never a user."""
