"""Bases of everything that travels in a frame, and the two answers that every request can have.

All messages are msgspec Structs, encoded as tagged MessagePack arrays: the decoder checks types,
unknown trailing fields are ignored and new fields must be appended with a default, so that an older
node can read a newer one. The number of each kind: ``raftstore.protocol.tags``.

A request has a ``request_id`` chosen by the client, unique on its connection; the answer carries it
back. Publishing is correlated by guid instead (``raftstore.protocol.publish``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from raftstore.errors import RequestError
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, NodeId, RequestId, Term


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of everything that travels in a frame."""


class ChannelMessage(Message, frozen=True, array_like=True, gc=False):
    """Base of messages about one channel, fenced by the sender's term."""

    channel: ChannelId
    term: Term


class Request(Message, frozen=True, array_like=True, gc=False):
    """Base of requests."""

    request_id: RequestId


class Done(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Success without content."""

    request_id: RequestId
    detail: dict[str, Any] = {}


class Failed(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A RequestError by its code. ``hosts``: one reason per node, where that applies."""

    request_id: RequestId
    code: str
    message: str
    leader_hint: NodeId | None = None
    hosts: dict[str, str] = {}


def failed(
    request_id: RequestId,
    error: type[RequestError],
    text: str,
    *,
    leader_hint: NodeId | None = None,
    hosts: dict[str, str] | None = None,
) -> Failed:
    """The answer that raises this error at the caller."""
    return Failed(request_id, error.code, text, leader_hint, hosts or {})
