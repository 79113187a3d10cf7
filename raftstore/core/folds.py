"""Folds: what a replica derives from all records of a log, and keeps when the records are gone.

A log that is cut short has a *base* (S6.5): records up to ``base.seq`` were removed, and what they
added up to is kept with it. That is a function of the committed records alone (S6.7): ``advance``
makes it from the base before and the records in between, never from a running replica, whose folds
stand at another seq. Older folds would take a retry for new, newer ones count a batch twice.

Everything that follows the log is in the one list of ``Folds``. An encoding names each fold with
its format; whatever is damaged, of another log, or of a newer version is refused with that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec

from raftstore.config import GUID_WINDOW, PRODUCER_SESSIONS_MAX
from raftstore.core.batches import MARKS_MAX, WRITERS_MAX, BatchCounts
from raftstore.core.chain import ChainHashes
from raftstore.core.configs import ConfigStack
from raftstore.core.dedupe import OUTCOMES_MAX, DedupeTable
from raftstore.core.history import RUNS_MAX, Lineage
from raftstore.core.tail import UncommittedTail
from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.records import Record
from raftstore.types import ChannelConfig, RecordKind, Seq

FOLDS_FORMAT: Final = 1
"""Of the list of folds; each fold has a format of its own."""


class Fold(Protocol):
    """A function of the records of one log, followed record by record.

    ``encode`` and ``restore`` are of committed records only, and what is restored goes on exactly
    as what was encoded.
    """

    NAME: ClassVar[str]
    """In encodings, and in errors."""
    FORMAT: ClassVar[int]
    """Of its encoding."""
    KINDS: ClassVar[frozenset[RecordKind]]
    """Kinds of records that change it: others are not handed to it."""
    HEEDS_COMMITS: ClassVar[bool]
    """Whether it does anything at a commit; else commits are not handed to it."""

    def append(self, record: Record) -> None:
        """A record at the log's end; payloads may be empty but of CONFIG and BATCH_MARK."""

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone; none of them was committed (S2.5)."""

    def commit(self, commit_seq: Seq) -> None:
        """Everything up to ``commit_seq`` stays, however it was grouped into commits."""

    def encode(self) -> bytes:
        """The state; everything that was appended must be committed."""

    def restore(self, state: bytes, base_seq: Seq, /) -> None:
        """Become what was encoded, of a fold that was given nothing yet. Raises ValueError for what
        no log up to ``base_seq`` has."""


class FoldBounds(NamedTuple):
    """How much folds remember. Replicas come to the same only with the same bounds (S6.7)."""

    guid_window: int = GUID_WINDOW
    sessions_max: int = PRODUCER_SESSIONS_MAX
    outcomes_max: int = OUTCOMES_MAX
    marks_max: int = MARKS_MAX
    writers_max: int = WRITERS_MAX
    runs_max: int = RUNS_MAX


BOUNDS: Final = FoldBounds()
_NO_CREATION: Final = ChannelConfig(((),))
"""For folds that are only made to be encoded: a base does not hold the creation configuration."""


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """One fold as a base keeps it."""

    name: str
    format: int
    state: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_version_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(list[_Encoded])


class Folds:
    """All folds of one log: those of its base, then every record behind it."""

    def __init__(
        self,
        creation: ChannelConfig,
        *,
        base: Base = EMPTY_BASE,
        hashes_max: int = 1,
        bounds: FoldBounds = BOUNDS,
    ) -> None:
        """Raises CorruptRecordError or NewerFormatError when those of the base cannot be read.

        ``hashes_max``: chain hashes kept below the commit seq, which no base has.
        """
        self.lineage = Lineage(runs_max=bounds.runs_max)
        self.tail = UncommittedTail()
        self.chain = ChainHashes(hashes_max)
        self.batches = BatchCounts(bounds.marks_max, bounds.writers_max)
        self.dedupe = DedupeTable(
            window=bounds.guid_window,
            sessions_max=bounds.sessions_max,
            outcomes_max=bounds.outcomes_max,
        )
        self.configs = ConfigStack(creation)
        # The one list: whatever is derived from the log is in it.
        self.every: tuple[Fold, ...] = (
            self.lineage,
            self.tail,
            self.chain,
            self.batches,
            self.dedupe,
            self.configs,
        )
        self._appends: tuple[tuple[Callable[[Record], None], ...], ...] = tuple(
            tuple(fold.append for fold in self.every if kind in fold.KINDS)
            for kind in sorted(RecordKind)
        )
        self._commits = tuple(fold.commit for fold in self.every if fold.HEEDS_COMMITS)
        if base.seq:
            self._restore(base)

    def append(self, record: Record) -> None:
        """A record at the log's end. Raises MsgspecError when a configuration is none."""
        assert record.base_seq == self.lineage.last_seq + 1, (
            f"a record at seq {record.base_seq} would follow seq {self.lineage.last_seq} (S2.1)"
        )
        assert record.rows >= 1, f"the record at seq {record.base_seq} has {record.rows} rows"
        for append in self._appends[record.kind]:
            append(record)

    def truncate(self, from_seq: Seq) -> None:
        """Records from ``from_seq`` on are gone."""
        for fold in self.every:
            fold.truncate(from_seq)
        assert self.chain.last_seq == self.lineage.last_seq, (
            f"hashes end at seq {self.chain.last_seq}, terms at {self.lineage.last_seq} (S13)"
        )

    def commit(self, commit_seq: Seq) -> None:
        """Everything up to ``commit_seq`` stays."""
        for commit in self._commits:
            commit(commit_seq)

    # --- a base -----------------------------------------------------------------------------------

    def base(self) -> Base:
        """The base behind the last record; all records must be committed."""
        term, seq = self.lineage.last
        assert self.chain.last_seq == seq, (
            f"hashes end at seq {self.chain.last_seq}, terms at {seq} (S6.7)"
        )
        folds = [
            _Encoded(fold.NAME, fold.FORMAT, msgspec.Raw(fold.encode())) for fold in self.every
        ]
        return Base(term, seq, self.chain.last, _encoder.encode((FOLDS_FORMAT, folds)))

    def _restore(self, base: Base) -> None:
        states = _states(base)
        for fold in self.every:
            found = states.pop(fold.NAME, None)
            if found is None:
                raise _damaged(base, fold.NAME, "it is missing")
            if found.format > fold.FORMAT:
                raise _newer(base, f"{fold.NAME} has format {found.format}")
            try:
                fold.restore(bytes(found.state), base.seq)
            except ValueError as error:  # of msgspec, or of a fold
                raise _damaged(base, fold.NAME, str(error)) from error
        if states:
            raise _newer(base, f"{', '.join(sorted(states))} is not known")
        # Folds and base are of one log, or a retry would be taken for new.
        if self.lineage.last != base.history:
            raise _damaged(base, self.lineage.NAME, f"they end at {tuple(self.lineage.last)}")
        if self.chain.last != base.chain_hash:
            raise _damaged(base, self.chain.NAME, f"their hash is {self.chain.last.hex()}")


class BaseMaker:
    """Makes a base of the one before it and of the records behind that, some at a time.

    All of them are committed, so what comes out is a pure function of them (S6.7).
    """

    def __init__(self, base: Base, *, bounds: FoldBounds = BOUNDS) -> None:
        """Raises CorruptRecordError or NewerFormatError when the folds of ``base`` cannot be
        read."""
        self._folds = Folds(_NO_CREATION, base=base, bounds=bounds)
        self._before = base

    @property
    def seq(self) -> Seq:
        """The last one that was taken in."""
        return self._folds.lineage.last_seq

    def add(self, record: Record) -> None:
        """Take in the next record; its payload may be empty unless it is CONFIG or BATCH_MARK."""
        self._folds.append(record)
        # One by one: what is uncommitted takes memory, and there may be millions.
        self._folds.commit(record.last_seq)

    def base(self) -> Base:
        """The base behind the record that was taken in last."""
        return self._folds.base() if self.seq > self._before.seq else self._before


def advance(base: Base, records: Iterable[Record], *, bounds: FoldBounds = BOUNDS) -> Base:
    """The base behind the last of ``records``, which follow ``base`` (``BaseMaker``)."""
    maker = BaseMaker(base, bounds=bounds)
    for record in records:
        maker.add(record)
    return maker.base()


def _states(base: Base) -> dict[str, _Encoded]:
    try:
        version, rest = _version_decoder.decode(base.folds)
        if version > FOLDS_FORMAT:
            raise _newer(base, f"they have format {version}")
        found = _decoder.decode(rest)
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        raise _damaged(base, "folds", str(error)) from error
    states = {one.name: one for one in found}
    if len(states) < len(found):
        raise _damaged(base, "folds", "one of them comes twice")
    return states


def _damaged(base: Base, name: str, reason: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{name} of the log's base {tuple(base.history)} cannot be used: {reason}; the node stops, "
        "and another replica has to give it the channel again"
    )


def _newer(base: Base, what: str) -> NewerFormatError:
    return NewerFormatError(
        f"the log's base {tuple(base.history)} was written by a newer version: {what}; start the "
        "newer raftstore that wrote it"
    )
