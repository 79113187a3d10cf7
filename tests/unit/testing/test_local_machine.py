"""One partition of a machine in memory keeps the contract as replicas do."""

from __future__ import annotations

import pytest

import raftstore
from raftstore.machine import (
    COMMAND_WRITES_MAX,
    RESULT_BYTES_MAX,
    STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
)
from raftstore.testing import LocalMachine
from raftstore.testing.machines.memory_state import MemoryState


class Oversized(raftstore.StateMachine):
    """Puts a value that no replica keeps."""

    def apply(self, command: bytes, context: raftstore.CommandContext) -> bytes:
        context.state.put(b"small", b"")
        context.state.put(b"large", bytes(STATE_VALUE_BYTES_MAX + 1))
        return b""


class Writer(raftstore.StateMachine):
    """Puts what it is given under a name, then rejects, fails or answers as its command says."""

    commands = raftstore.codec(dict[str, str | int])

    def apply(self, command: dict[str, str | int], context: raftstore.CommandContext) -> bytes:
        context.state.put(b"written", b"%d" % context.seq)
        assert context.state.get(b"written") == b"%d" % context.seq
        if "reject" in command:
            raise raftstore.RejectedError(str(command["reject"]))
        if "fail" in command:
            raise ValueError(str(command["fail"]))
        return bytes(int(command.get("size", 0)))


def test_a_rejected_or_failed_command_leaves_nothing() -> None:
    """State is changed by commands that return, and by no others."""
    local = LocalMachine(Writer)
    local.command("k", {})
    with pytest.raises(raftstore.RejectedError, match="not now"):
        local.command("k", {"reject": "not now"})
    with pytest.raises(ValueError, match="no idea"):
        local.command("k", {"fail": "no idea"})
    with pytest.raises(raftstore.RejectedError, match=f"at most {RESULT_BYTES_MAX} are"):
        local.command("k", {"size": RESULT_BYTES_MAX + 1})
    assert local.pairs() == {b"written": b"1"}
    assert local.command("k", {"size": RESULT_BYTES_MAX}) == bytes(RESULT_BYTES_MAX)


def test_what_is_over_a_limit_is_rejected_and_not_raised() -> None:
    """Every replica does the same with it, so the partition goes on."""
    local = LocalMachine(Oversized)
    with pytest.raises(raftstore.RejectedError, match=f"allowed are {STATE_VALUE_BYTES_MAX}"):
        local.command("k", b"")
    assert local.pairs() == {}


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        (b"", b"", "the key is empty"),
        (b"k" * (STATE_KEY_BYTES_MAX + 1), b"", f"allowed are {STATE_KEY_BYTES_MAX}"),
        (b"k", bytes(STATE_VALUE_BYTES_MAX + 1), f"allowed are {STATE_VALUE_BYTES_MAX}"),
        ("k", b"", "is str; give bytes"),
        (b"k", 3, "is int; give bytes"),
    ],
)
def test_the_bounds_of_the_contract_hold(key: bytes, value: bytes, named: str) -> None:
    """A machine that passes its tests does not stop at a bound it never met."""
    with pytest.raises(raftstore.SchemaError, match=named):
        MemoryState().put(key, value)


def test_a_command_writes_so_many_keys_at_the_most() -> None:
    """They are one atomic batch; writing the same key again is not another one."""
    state = MemoryState()
    for at in range(COMMAND_WRITES_MAX):
        state.put(b"%d" % at, b"")
    state.delete(b"0")
    with pytest.raises(raftstore.SchemaError, match=f"more than {COMMAND_WRITES_MAX} keys"):
        state.delete(b"one more")


def test_ranges_are_in_order_and_see_what_the_command_wrote() -> None:
    """Committed and new keys are one space; deleted ones are gone and do not use up the limit."""
    state = MemoryState({b"a": b"1", b"c": b"3", b"e": b"5"})
    state.put(b"b", b"2")
    state.delete(b"c")
    assert list(state.range()) == [(b"a", b"1"), (b"b", b"2"), (b"e", b"5")]
    assert list(state.range(b"b", b"e")) == [(b"b", b"2")]
    assert list(state.range(b"b", limit=2)) == [(b"b", b"2"), (b"e", b"5")]
    state.take()
    view = state.view()
    state.put(b"z", b"9")
    assert list(view.range(b"b")) == [(b"b", b"2"), (b"e", b"5")]
    state.drop()
    assert state.pairs() == {b"a": b"1", b"b": b"2", b"e": b"5"}


def test_time_passes_as_a_test_says() -> None:
    """Leases can be tested without waiting."""

    class Clock(raftstore.StateMachine):
        results = raftstore.codec(int)

        def apply(self, command: bytes, context: raftstore.CommandContext) -> int:
            return context.time_ms

    local = LocalMachine(Clock)
    first = local.command("k", b"")
    local.time_ms += 60_000
    assert local.command("k", b"") - first >= 60_000
