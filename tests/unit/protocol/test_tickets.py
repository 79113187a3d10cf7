"""Join tokens: what they hold, which are refused, and what a proof proves (M28, A13)."""

from __future__ import annotations

import hmac

import msgspec
import pytest

from raftstore.errors import ConfigError
from raftstore.protocol.tickets import (
    TOKEN_PREFIX,
    JoinClaim,
    Token,
    is_proven,
    join_proof,
    parse_token,
    stored_key,
    token_text,
)
from raftstore.types import node_id

SECRET = bytes(range(32))
TOKEN = Token(b"c" * 16, b"t" * 16, SECRET, ("127.0.0.1:4481", "n2.example.org:4481"))
CLAIM = JoinClaim(b"c" * 16, b"t" * 16, node_id("n4", b"4" * 16), "h:1", 6, b"n" * 16)


def test_token_is_read_as_it_was_written() -> None:
    """White space that a terminal puts around it does not matter."""
    text = token_text(TOKEN)
    assert text.startswith(TOKEN_PREFIX)
    assert parse_token(f" {text}\n") == TOKEN


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 characters and is none"),
        ("n1=127.0.0.1:4481", "begins with raftstore-join-1-"),
        (token_text(TOKEN)[:-3], "damaged"),
        (TOKEN_PREFIX + "%%%", "damaged"),
        (token_text(TOKEN._replace(ticket=b"short")), "damaged"),
        (token_text(TOKEN._replace(seeds=())), "damaged"),
        (TOKEN_PREFIX + "A" * 5_000, "5017 characters"),
    ],
)
def test_damaged_token_is_refused_without_repeating_it(text: str, why: str) -> None:
    """A token holds a secret; a mistake in it must not put it into a log."""
    with pytest.raises(ConfigError) as error:
        parse_token(text)
    assert why in str(error.value)
    assert "raftstore cluster token" in str(error.value)
    assert text[len(TOKEN_PREFIX) :][:20] not in str(error.value) or len(text) < 20


def test_any_changed_character_of_a_token_is_noticed() -> None:
    """It is copied by people."""
    text = token_text(TOKEN)
    for at in range(len(TOKEN_PREFIX), len(text)):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(ConfigError):
            parse_token(changed)


def test_proof_holds_for_its_claim_alone() -> None:
    """A13: over the cluster, the ticket, the id, the address, the level and the connection."""
    key = stored_key(SECRET)
    proof = join_proof(SECRET, CLAIM)
    assert is_proven(proof, key, CLAIM)
    for other in (
        CLAIM._replace(cluster_id=b"d" * 16),
        CLAIM._replace(ticket=b"u" * 16),
        CLAIM._replace(node=node_id("n5", b"4" * 16)),
        CLAIM._replace(endpoint="h:2"),
        CLAIM._replace(level=7),
        CLAIM._replace(nonce=b"m" * 16),
    ):
        assert not is_proven(proof, key, other)


def test_stored_key_is_not_enough_to_join() -> None:
    """A13: who reads a copy of the catalog has it."""
    key = stored_key(SECRET)
    assert not is_proven(join_proof(key, CLAIM), key, CLAIM)
    assert not is_proven(key, key, CLAIM)
    code = hmac.digest(key, msgspec.msgpack.encode(CLAIM), "sha256")
    forged = bytes(one ^ other for one, other in zip(key, code, strict=True))
    assert not is_proven(forged, key, CLAIM)
    assert SECRET not in join_proof(SECRET, CLAIM)
