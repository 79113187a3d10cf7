"""Rows and state between two commands of a record: those before, with what the first ones wrote."""

from __future__ import annotations

import random

from raftstore.record_machine import DictView, Row
from raftstore.rows.sealing import seal
from raftstore.state_machines.command_overlay import ViewOver
from raftstore.types import Seq

KEYS = [b"%02d" % number for number in range(12)]


def test_view_is_that_of_one_store_in_which_all_of_it_is_written() -> None:
    """S10: so commands lead to the same, together or one by one; whatever was removed takes no
    place of a range.
    """
    for number in range(200):
        draw = random.Random(number)
        rows = {key: Row(key, b"old " + key, Seq(1)) for key in draw.sample(KEYS, 6)}
        state = {key: b"old " + key for key in draw.sample(KEYS, 6)}
        over = ViewOver(DictView(dict(rows), dict(state), time_ms=7))
        for seq in (Seq(2), Seq(3)):
            values = {key: draw.choice([None, b"of %d" % seq]) for key in draw.sample(KEYS, 4)}
            sealed = {key: value and seal(key, value) for key, value in values.items()}
            over.take(seq, sealed.items(), values.items())
            for key, value in values.items():
                rows.pop(key, None)
                state.pop(key, None)
                if value is not None:
                    rows[key], state[key] = Row(key, value, seq), value
        expected = DictView(rows, state)
        for key in KEYS:
            assert over.row(key) == expected.row(key)
            assert over.state.get(key) == expected.state.get(key)
        start, stop, limit = draw.choice(KEYS), draw.choice(KEYS), draw.randint(1, 8)
        assert over.range(start, stop, limit) == expected.range(start, stop, limit)
        assert over.range(start, b"", limit) == expected.range(start, b"", limit)
        assert over.state.scan(start, stop, limit) == expected.state.scan(start, stop, limit)
        assert over.time_ms == 7
