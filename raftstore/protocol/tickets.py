"""A join token, and how its secret is proven without being sent (M28).

The catalog keeps ``stored_key``, the hash of the secret; a copy of the catalog is not enough to
join. The proof hides the secret behind a code that only who has the stored key can make, over all
that the joining node says of itself: who listens learns nothing, and can change nothing of it
(the scheme of RFC 5802 with a random secret in the place of a password).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from raftstore.crc import crc32
from raftstore.errors import ConfigError
from raftstore.types import NodeId

SECRET_BYTES: Final = 32
ID_BYTES: Final = 16
"""Of a cluster's id, and of the random name of a ticket."""
Ticket = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
"""The random name of a ticket; a cluster's id is as long."""
Key = Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
"""A stored key, or a proof: as long as the secret."""
TOKEN_PREFIX: Final = "raftstore-join-1-"  # noqa: S105
"""Begins every token of this form: a person sees what it is, and newer forms are distinguished."""
TOKEN_CHARS_MAX: Final = 4_096
TICKET_LIFETIME_MS_MAX: Final = 30 * 24 * 3_600_000
SEEDS_MAX: Final = 16
"""Addresses in a token; one that answers is enough."""


class Token(NamedTuple):
    """All that a new node needs to know to join."""

    cluster_id: Ticket
    ticket: Ticket
    secret: Key
    seeds: tuple[str, ...]
    """host:port of nodes of the cluster."""


class JoinClaim(NamedTuple):
    """The facts that a joining node states of itself; the proof covers all of them."""

    cluster_id: bytes
    ticket: bytes
    node: NodeId
    endpoint: str
    level: int
    nonce: bytes
    """Of the node that is asked, so that a proof is of use on one connection only."""


def stored_key(secret: bytes) -> bytes:
    """The hash of a secret, which the catalog keeps."""
    return hashlib.sha256(secret).digest()


def join_proof(secret: bytes, claim: JoinClaim) -> bytes:
    """Sent by the joining node in the place of the secret."""
    return _mixed(secret, stored_key(secret), claim)


def is_proven(proof: bytes, key: bytes, claim: JoinClaim) -> bool:
    """Whether the proof was made by who has the secret of this stored key, over this claim."""
    return hmac.compare_digest(stored_key(_mixed(proof, key, claim)), key)


def _mixed(text: bytes, key: bytes, claim: JoinClaim) -> bytes:
    code = hmac.digest(key, msgspec.msgpack.encode(claim), "sha256")
    return bytes(one ^ other for one, other in zip(text, code, strict=True))


def token_text(token: Token) -> str:
    """The token as it is shown, and given to ``raftstore node --join``."""
    body = msgspec.msgpack.encode(token)
    whole = body + crc32(body).to_bytes(4, "big")
    return TOKEN_PREFIX + base64.urlsafe_b64encode(whole).decode().rstrip("=")


def parse_token(text: str) -> Token:
    """Read a token; ConfigError where a part of it is missing or it is something else.

    The message repeats nothing of it: it holds a secret.
    """
    text = text.strip()
    if not text.startswith(TOKEN_PREFIX) or len(text) > TOKEN_CHARS_MAX:
        raise ConfigError(
            f"--join takes a token that begins with {TOKEN_PREFIX}, as `raftstore cluster token` "
            f"prints it; what was given has {len(text)} characters and is none"
        )
    code = text.removeprefix(TOKEN_PREFIX)
    try:
        whole = base64.b64decode(code + "=" * (-len(code) % 4), altchars=b"-_", validate=True)
        body, check = whole[:-4], whole[-4:]
        if crc32(body).to_bytes(4, "big") != check:
            raise ConfigError(_damaged(text))
        token = msgspec.msgpack.decode(body, type=Token)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(_damaged(text)) from error
    if not 0 < len(token.seeds) <= SEEDS_MAX:
        raise ConfigError(_damaged(text))
    return token


def _damaged(text: str) -> str:
    return (
        f"the join token of {len(text)} characters is damaged: a part of it is missing or changed; "
        "copy it whole, or make a new one with `raftstore cluster token`"
    )
