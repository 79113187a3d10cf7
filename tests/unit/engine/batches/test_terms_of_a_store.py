"""A term of the store that no message has room for is reported when the channel is opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import ConfigError, StoreIdentityError
from raftstore.ports.log import RecoveredChannel
from raftstore.storage.log.mark import MarkRow, _decode_rows, _encode_rows
from raftstore.types import EMPTY_HISTORY, TERM_MAX, ChannelConfig, ChannelId, Seq, Term

CHANNEL = ChannelId(bytes(18))


def opened(term: int) -> None:
    """Open a channel that a store remembers in this term."""
    recovered = RecoveredChannel(CHANNEL, Term(term), None, (), Seq(0))
    host = SimpleNamespace(me="n1@00", log=SimpleNamespace(open_channel=lambda *_: recovered))
    ChannelRunner(
        cast(Any, host),
        channel=CHANNEL,
        name="orders/0",
        creation_config=ChannelConfig((("n1@00",),)),  # type: ignore[arg-type]
        machine=cast(Any, None),
        durability="fsync",
    )


def test_term_above_all_that_can_be_told_is_refused_with_its_channel() -> None:
    """Such a node would end every connection it speaks on; its start says so and changes nothing
    (exit code 78)."""
    with pytest.raises(StoreIdentityError, match="channel orders/0 is in term 281474976710656"):
        opened(TERM_MAX + 1)
    assert issubclass(StoreIdentityError, ConfigError)
    with pytest.raises(AttributeError):  # it goes on to what this test does not have
        opened(TERM_MAX)


@pytest.mark.parametrize("term", [0, TERM_MAX, TERM_MAX + 1, 2**64 - 1])
def test_mark_is_read_whatever_its_terms_are(term: int) -> None:
    """Ranges are for what comes from outside; a store's own memory is read as it was written."""
    rows = {CHANNEL: MarkRow(Term(term), None, EMPTY_HISTORY)}
    assert _decode_rows(_encode_rows(rows), 1) == rows
