"""A model of one replica that its leader's log does not help, searched through completely.

Four records are committed, one after the other: rows, staged rows, the batch that applies them, and
rows. The leader holds all that is committed, applies it and moves the base of its log.
The replica has a log (behind a base, with an end, and maybe a tail of another history), a table,
and the promise that its mark keeps. Its log and its table are replaced apart: the table by a
snapshot of the leader's (B), the base by the leader's base (A). In between the leader changes, its
base moves on, the process dies (what is not durable may be gone), and a table is lost, or the end
of a log, which its mark then states.

What must hold in every state that is reached:

* a replica that is whole has every record that it promised, in its log or in front of its base;
* no record of another history is applied, none is skipped, and none that is committed is cut;
* staged rows are in the log when the batch that applies them is;
* a table that serves has all its rows, also after a power cut;
* a position that was served is never left for an older one, and no power cut takes rows away that
  no log brings back.

``FAULTS`` are rules taken out, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

END = 4
STAGED, APPLIES = 2, 3
CRASHES_MAX = 1
TORN = -1
"""The barrier of a table that was switched to before it was durable."""

FAULTS = {
    "tail committed": "what a copied table has applied counts as committed in the log",
    "base above staged": "a base is taken above the oldest staged record of the table",
    "own base above staged": "a table is taken that refers to records below the log's own base",
    "older table": "a table is taken that has applied less than the one here",
    "records replaced": "a base that the log holds takes the records behind it away, too",
    "mark lowered": "what was promised is forgotten when the base replaces the log",
    "half a table": "a table is switched to before all of it was read back",
    "switch before barrier": "a table is switched to before it is durable",
    "trim above barrier": "the base moves up to what a power cut takes back",
}


class Transfer(NamedTuple):
    """A table on its way, or a base (``is_base``)."""

    seq: int
    base_max: int
    is_base: bool = False
    is_written: bool = False


class State(NamedTuple):
    """Of both nodes."""

    committed: int
    leader_applied: int
    leader_base: int
    base: int
    end: int
    """The log holds the records behind the base up to this one, of the committed history."""
    tail: int
    """So many records of another history behind them."""
    durable: tuple[int, int, int]
    """Base, end and tail that survive."""
    applied: int
    barrier: int
    """The table survives up to there."""
    is_whole: bool
    """The table has all rows of its position."""
    known: int
    """The commit position known here."""
    promised: int
    """The end of what was acknowledged."""
    recovering: int
    """Up to there, before it takes part again; 0: it does."""
    transfer: Transfer | None
    crashes: int
    losses: int
    broken: str


FIRST = State(1, 1, 0, 0, 1, 1, (0, 1, 1), 1, 1, True, 1, 1, 0, None, 0, 0, "")
"""The replica led once: behind the first record it has one that nobody else has."""


def base_max(applied: int) -> int:
    """The highest base that a log may have beside a table at this position."""
    return STAGED - 1 if STAGED <= applied < APPLIES else applied


def lacks_rows(state: State) -> bool:
    """No log brings the table to its log's base."""
    return state.applied < state.base


def violation(state: State) -> str:
    """The rule that does not hold in this state; empty: all of them do."""
    if state.broken:
        return state.broken
    if state.recovering or lacks_rows(state):
        return ""
    if state.end < state.promised:
        return f"record {state.end + 1} was promised and is gone"
    if state.base > base_max(state.applied):
        return "staged rows of the table are below the base"
    if not state.is_whole:
        return "half a table serves"
    return ""


class Model:
    """All moves there are, with at most one rule taken out."""

    def __init__(self, fault: str = "") -> None:
        assert not fault or fault in FAULTS
        self._fault = fault

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next."""
        yield from self._leader(state)
        yield from self._log(state)
        yield from self._table(state)
        yield from self._transfer(state)
        yield from self._trouble(state)

    def _leader(self, state: State) -> Iterator[tuple[str, State]]:
        if state.committed < END:
            yield "commit", state._replace(committed=state.committed + 1)
        if state.leader_applied < state.committed:
            yield "leader applies", state._replace(leader_applied=state.leader_applied + 1)
        # A transfer holds the base back, unless its receiver was forgotten in between.
        for base in range(state.leader_base + 1, base_max(state.leader_applied) + 1):
            yield f"leader trims to {base}", state._replace(leader_base=base)

    def _log(self, state: State) -> Iterator[tuple[str, State]]:
        """Match and fetch, flush, and trim."""
        if state.end >= state.leader_base:
            yield from self._catch_up(state)
        log = (state.base, state.end, state.tail)
        if log != state.durable:
            yield "flush", state._replace(durable=log)
        elif not state.tail:
            yield from self._promise(state)
        limit = state.applied if self._fault == "trim above barrier" else state.barrier
        if not state.recovering:
            for base in range(state.base + 1, min(base_max(limit), state.known) + 1):
                yield f"trim to {base}", state._replace(base=base)

    def _catch_up(self, state: State) -> Iterator[tuple[str, State]]:
        if state.tail:
            broken = "a committed record is cut" if state.known > state.end else state.broken
            yield "cut the tail", state._replace(tail=0, broken=broken)
            return
        if state.end < state.committed:
            yield "fetch", state._replace(end=state.end + 1)
        if state.known < state.end:
            yield "learn commit", state._replace(known=state.end)

    def _promise(self, state: State) -> Iterator[tuple[str, State]]:
        if state.recovering:
            if not lacks_rows(state) and state.end >= state.recovering:
                yield "recovered", state._replace(recovering=0)
        elif state.promised < state.end:
            yield "promise", state._replace(promised=state.end)

    def _table(self, state: State) -> Iterator[tuple[str, State]]:
        if state.applied < state.known and not lacks_rows(state):
            seq = state.applied + 1
            broken = ""
            if seq > state.end:
                broken = "a record of another history is applied"
            elif seq <= state.base:
                broken = "a record is skipped"
            elif seq == APPLIES and not state.base < STAGED <= state.end:
                broken = "staged rows are not in the log"
            yield "apply", state._replace(applied=seq, broken=state.broken or broken)
        if state.barrier < state.applied:
            yield "barrier", state._replace(barrier=state.applied)

    def _transfer(self, state: State) -> Iterator[tuple[str, State]]:
        transfer = state.transfer
        if transfer is None:
            yield from self._open(state)
        elif transfer.is_base:
            if self._takes_base(state, transfer.seq):
                yield "take base", self._with_base(state, transfer.seq)
            yield "give up", state._replace(transfer=None)
        else:
            is_due = transfer.is_written or self._fault == "half a table"
            if not transfer.is_written:
                yield "copy", state._replace(transfer=transfer._replace(is_written=True))
            if is_due and self._takes_table(state, transfer):
                yield "switch", self._with_table(state, transfer)
            yield "give up", state._replace(transfer=None)

    def _open(self, state: State) -> Iterator[tuple[str, State]]:
        is_trimmed = state.end < state.leader_base
        if is_trimmed or lacks_rows(state):
            table = Transfer(state.leader_applied, base_max(state.leader_applied))
            yield "open table", state._replace(transfer=table)
        if is_trimmed or self._fault == "records replaced":
            base = Transfer(state.leader_base, 0, is_base=True)
            yield "ask base", state._replace(transfer=base)

    def _takes_base(self, state: State, seq: int) -> bool:
        if seq <= state.base or state.durable != (state.base, state.end, state.tail):
            return False
        if lacks_rows(state):
            return False
        if self._fault == "base above staged":
            return seq <= state.barrier
        return seq <= base_max(state.barrier)

    def _with_base(self, state: State, seq: int) -> State:
        """The log begins behind it: the channel is opened anew."""
        end, tail = (state.end, state.tail) if state.end >= seq else (seq, 0)
        if self._fault == "records replaced":
            end, tail = seq, 0
        taken = state._replace(base=seq, end=end, tail=tail, durable=(seq, end, tail))
        if self._fault == "mark lowered":
            taken = self._opened(taken._replace(promised=min(state.promised, end)))
            return taken._replace(promised=state.promised)
        if self._fault == "records replaced":
            return self._opened(taken)._replace(recovering=0)
        return self._opened(taken)

    def _takes_table(self, state: State, transfer: Transfer) -> bool:
        if state.durable != (state.base, state.end, state.tail):
            return False
        is_newer = transfer.seq > state.applied or self._fault == "older table"
        if not (is_newer or lacks_rows(state)):
            return False
        if self._fault == "own base above staged":
            return transfer.seq >= state.base
        return transfer.base_max >= state.base

    def _with_table(self, state: State, transfer: Transfer) -> State:
        is_durable = self._fault != "switch before barrier"
        goes_back = transfer.seq < state.applied and not lacks_rows(state)
        return self._opened(
            state._replace(
                applied=transfer.seq,
                barrier=transfer.seq if is_durable else TORN,
                is_whole=transfer.is_written,
                broken="a position that was served is left" if goes_back else state.broken,
            )
        )

    def _opened(self, state: State) -> State:
        """A channel is opened from what its log and its table hold."""
        holds = state.applied <= state.end
        known = state.applied if holds else state.base
        if self._fault == "tail committed":
            known = min(state.applied, state.end + state.tail)
        known = max(state.base, known)
        lacking = [state.promised] if state.end < state.promised else []
        lacking += [] if holds else [state.applied]
        lacking += [state.base] if lacks_rows(state) else []
        return state._replace(known=known, recovering=max(lacking, default=0), transfer=None)

    def _trouble(self, state: State) -> Iterator[tuple[str, State]]:
        if state.transfer is not None:
            yield "leader changes", state._replace(transfer=None)
        if state.crashes < CRASHES_MAX:
            base, end, tail = state.durable
            is_torn = state.barrier == TORN
            for applied in {state.applied, state.applied if is_torn else state.barrier}:
                fallen = state._replace(
                    base=base,
                    end=end,
                    tail=tail,
                    applied=applied,
                    barrier=applied,
                    is_whole=state.is_whole and not is_torn,
                    crashes=state.crashes + 1,
                )
                if lacks_rows(fallen) and not lacks_rows(state):
                    fallen = fallen._replace(broken="a power cut took rows that no log has")
                yield f"crash to {applied}", self._opened(fallen)
        if not state.losses:
            lost = state._replace(applied=0, barrier=0, is_whole=True, losses=1)
            yield "the table is lost", self._opened(lost)
            if state.end > state.base and (state.base, state.end, state.tail) == state.durable:
                log = (state.base, state.base, 0)
                cut = state._replace(end=state.base, tail=0, durable=log, losses=1)
                yield "the log's end is lost", self._opened(cut)


class Found(NamedTuple):
    """The outcome of a search."""

    states: int
    healed: int
    """States in which a replica whose table was lost is whole again, behind a base."""
    violation: str
    path: tuple[str, ...]


def search(fault: str = "") -> Found:
    """Breadth-first through all states, to the first that must not be, or to the end."""
    model = Model(fault)
    before: dict[State, tuple[State, str] | None] = {FIRST: None}
    waiting, healed = deque([FIRST]), 0
    while waiting:
        state = waiting.popleft()
        wrong = violation(state)
        if wrong:
            return Found(len(before), healed, wrong, _path(before, state))
        is_up = state.base and not lacks_rows(state) and not state.recovering
        healed += bool(state.losses and is_up and state.applied == END)
        for name, after in model.moves(state):
            if after not in before:
                before[after] = (state, name)
                waiting.append(after)
    return Found(len(before), healed, "", ())


def _path(before: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names: list[str] = []
    while (step := before[state]) is not None:
        state, name = step
        names.append(name)
    return tuple(reversed(names))
