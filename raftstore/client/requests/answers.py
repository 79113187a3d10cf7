"""Check that an answer is of the kind that was asked for; any other is not used."""

from __future__ import annotations

from typing import TypeVar

from raftstore.errors import DecodeError

Answer = TypeVar("Answer")


def expect(kind: type[Answer], answer: object) -> Answer:
    """Return the answer; DecodeError when it is of another kind."""
    if isinstance(answer, kind):
        return answer
    raise DecodeError(
        f"a node answered with {type(answer).__name__} where {kind.__name__} was expected; "
        "it is broken or speaks another version"
    )
