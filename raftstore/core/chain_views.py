"""A replica's chain hashes, by which replicas compare their histories (S13)."""

from __future__ import annotations

from raftstore.core.state import ChannelState
from raftstore.types import History, Seq


class ChainViews:
    """The part of a ``Replica`` that says what its history hashes to."""

    _state: ChannelState

    def chain_hash_at_commit(self) -> tuple[Seq, bytes]:
        """Commit seq and the chain hash there; b"" if the log does not reach it (S13)."""
        commit_seq = self._state.commit_seq
        return commit_seq, self._state.chain.at(commit_seq) or b""

    def chain_hash_at(self, history: History) -> bytes | None:
        """The chain hash at a record (S13); None: the log does not hold it, or its hash is not kept
        any more."""
        held = self._state.lineage.holds(history.term, history.seq)
        return self._state.chain.at(history.seq) if held else None

    @property
    def is_disputed(self) -> bool:
        """S13: another replica has another history, and no quorum has shown which is wrong."""
        return self._state.is_disputed

    @property
    def chain_hashes_from(self) -> Seq:
        """The first record whose chain hash is kept."""
        return self._state.chain.first_seq

    def chain_hash_of(self, seq: Seq) -> bytes | None:
        """The chain hash at a seq; None: no record ends there, or its hash is not kept."""
        return self._state.chain.at(seq)
