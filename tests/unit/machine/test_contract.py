"""Contract of state machines: codecs, and numbers that all replicas draw."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

import raftstore
from raftstore.machine import Chance


class Add(msgspec.Struct, tag=True):
    """A command of a test."""

    key: str
    amount: int


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (raftstore.BYTES, b"\x00anything"),
        (raftstore.JSON, {"b": [1, None], "a": 2.5}),
        (raftstore.codec(int), -7),
        (raftstore.codec(dict[str, int]), {"b": 1, "a": 2}),
        (raftstore.codec(Add), Add("clicks", 3)),
    ],
)
def test_a_codec_gives_back_what_it_was_given(codec: raftstore.Codec[Any], value: Any) -> None:
    """Values come back as they went in."""
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("codec", [raftstore.JSON, raftstore.codec(dict[str, int])])
def test_equal_values_have_equal_bytes_whatever_the_order_of_their_keys(
    codec: raftstore.Codec[Any],
) -> None:
    """Two programs that mean the same send the same bytes."""
    # A retry is recognised by the bytes of its payload (S4.6).
    assert codec.encode({"a": 1, "b": 2}) == codec.encode({"b": 2, "a": 1})


@pytest.mark.parametrize("codec", [raftstore.JSON, raftstore.codec(Any)])
def test_a_value_is_nested_so_deep_and_no_deeper(codec: raftstore.Codec[Any]) -> None:
    """One limit for all callers, however much of Python's stack they have used."""
    value: Any = None
    for _ in range(200):
        value = [value]
    for wide in (value, [[], value[0]]):  # what stands side by side is no deeper
        assert codec.decode(codec.encode(wide)) == wide
    with pytest.raises(raftstore.SchemaError, match="nested more than 200 deep"):
        codec.encode([value])


@pytest.mark.parametrize(
    ("codec", "value", "named"),
    [
        (raftstore.BYTES, "text", "str is not bytes"),
        (raftstore.JSON, {1, object()}, "is no JSON value"),
        (raftstore.codec(int), "seven", "'seven' is no"),
        (raftstore.codec(Add), {"key": "clicks"}, "clicks"),
        (raftstore.codec(int), 2**70, str(2**70)),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(
    codec: raftstore.Codec[Any], value: Any, named: str
) -> None:
    """The caller learns which value is wrong, before anything is sent."""
    with pytest.raises(raftstore.SchemaError, match=named):
        codec.encode(value)


@pytest.mark.parametrize("codec", [raftstore.JSON, raftstore.codec(Add)])
def test_bytes_that_are_no_value_are_refused(codec: raftstore.Codec[Any]) -> None:
    """A machine is never given what is no command of its type."""
    with pytest.raises(raftstore.SchemaError, match="2 bytes are no"):
        codec.decode(b"\xc1\xff")


class Tree(msgspec.Struct):
    """A type within itself."""

    below: list[Tree]
    named: dict[str, Tree]


class Numbered(msgspec.Struct):
    """Has numbers as keys."""

    below: list[Numbered]
    at: dict[int, str]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (dict[bytes, int], "keys of a dict have to be str, not bytes; give a list of pairs"),
        (list[dict[int, str]], "have to be str, not int"),
        (Numbered, "have to be str, not int"),
        (5, "5 is no type of values: Type '5' is not supported"),
    ],
)
def test_a_type_without_an_order_is_refused_where_it_is_declared(kind: Any, said: str) -> None:
    """The first result would be too late: it would stop the partition."""
    with pytest.raises(raftstore.SchemaError, match=said):
        raftstore.codec(kind)
    assert raftstore.codec(Tree).encode(Tree([], {"a": Tree([], {})}))


def test_an_untyped_value_says_which_keys_it_may_have() -> None:
    """Its type does not."""
    with pytest.raises(raftstore.SchemaError, match="keys of a dict have to be text"):
        raftstore.codec(Any).encode({1: "one"})


def test_replicas_draw_the_same_numbers_for_one_command_and_others_for_another() -> None:
    """Chance is a function of what names the command."""

    def drawn(seed: bytes) -> list[object]:
        chance = Chance(seed)
        return [chance.bytes(100), chance.below(6), chance.fraction()]

    assert drawn(b"one") == drawn(b"one")
    assert drawn(b"one") != drawn(b"another")


def test_numbers_below_a_bound_reach_all_of_them_and_no_other() -> None:
    """Every number of the range is drawn some time."""
    chance = Chance(b"dice")
    assert {chance.below(6) for _ in range(200)} == set(range(6))
    assert all(0 <= chance.fraction() < 1 for _ in range(200))
    with pytest.raises(ValueError, match="below 0"):
        chance.below(0)


def test_a_machine_without_queries_refuses_them_in_words() -> None:
    """An answer to its caller, not an error of the code."""

    class Silent(raftstore.StateMachine):
        def apply(self, command: Any, context: raftstore.CommandContext) -> Any:
            return command

    with pytest.raises(raftstore.RejectedError, match="Silent answers no queries"):
        Silent().query(b"?", cast("Any", None))
