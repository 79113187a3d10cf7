"""Roles of users of the HTTP interface."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """A role; each may also do what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    NODE = "node"
    """Another node, by its token: never a user."""
