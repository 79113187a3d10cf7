"""Asking what became of writes: of those in doubt in every workload, of any of them in this one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.workload.base import Client, Run, UniqueValues, read_each
from jepsen_like.workload.judging import judge_rows
from raftstore.types import Outcome

TABLE: Final = "fates"
KEYS: Final = 16
REMEMBERED_MAX: Final = 40


def asking_fates(client: Client) -> Client:
    """The same client, which asks what became of each write that it was left in doubt about (N4).

    The answers are for the judges alone: the client goes on as it would.
    """
    answer: Answer | None = None
    with contextlib.suppress(StopIteration):
        while True:
            call = next(client) if answer is None else client.send(answer)
            answer = yield call
            if answer.outcome is Outcome.UNKNOWN:
                for guid in answer.guids:
                    yield fate_of(call, guid)


def fate_of(call: Call, guid: str) -> Call:
    """The question what became of a record of the call."""
    return Call(Action.FATE, call.table, call.key, guid=guid)


class WriteFates(UniqueValues):
    """Plain and conditional writes, and questions for the fates of late and of early ones."""

    name = "write_fates"
    text = "what became of a write is asked by its guid, once and again; the committed log judges"
    tables: Mapping[str, int] = MappingProxyType({TABLE: 2})

    def client(self, index: int, rng: random.Random) -> Client:
        """Half writes, half questions about any of those that this client made."""
        del index
        names: list[str] = []
        while True:
            key = f"f{rng.randrange(KEYS)}"
            if not names or rng.random() < 0.5:
                answer = yield self._write(key, rng)
                names = [*names, *answer.guids][-REMEMBERED_MAX:]
            else:
                yield Call(Action.FATE, TABLE, key, guid=rng.choice(names))

    def _write(self, key: str, rng: random.Random) -> Call:
        self._last += 1
        if rng.random() < 0.7:
            return Call(Action.PUT, TABLE, key, self._last)
        return Call(Action.PUT_IF, TABLE, key, self._last, expected_seq=0)

    def final_client(self, rng: random.Random) -> Client:
        """Read every key at the leader."""
        del rng
        yield from read_each(TABLE, (f"f{number}" for number in range(KEYS)))

    def check(self, run: Run) -> list[Verdict]:
        """Every fate that was reported is true in the committed log, and stays so (N4)."""
        verdicts = judge_rows(run, self.tables)
        if not any(verdict.checker == "fates" for verdict in verdicts):
            doubt = "no fate was reported, so none was judged"
            verdicts.append(Verdict("fates", Validity.UNDECIDED, doubt))
        return verdicts
