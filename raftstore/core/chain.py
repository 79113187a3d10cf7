"""Chain hashes: one small number that stands for a whole log up to a record (S13).

``h_s = H(h_{s-1}, term, guid, digest)``, one per record, found by the record's last seq. Two
replicas that show different hashes at a committed seq hold different histories.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b
from typing import ClassVar

import msgspec

from raftstore.protocol.records import Record
from raftstore.types import DIGEST_BYTES, Digest, RecordKind, Seq

CHAIN_START = bytes(DIGEST_BYTES)
"""The hash of an empty log."""


def digest_of(payload: bytes) -> bytes:
    """Digest of a payload as publishers compute it."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A chain as a base keeps it: where it ends."""

    seq: Seq
    chain_hash: Digest


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class ChainHashes:
    """Hashes of the newest records: all above the commit seq, and ``committed_max`` below it."""

    NAME: ClassVar = "chain"
    FORMAT: ClassVar = 1
    KINDS: ClassVar = frozenset(RecordKind)
    HEEDS_COMMITS: ClassVar = True

    __slots__ = ("_committed_max", "_hashes", "_seqs")

    def __init__(self, committed_max: int) -> None:
        assert committed_max >= 1, f"{committed_max} hashes kept"
        self._committed_max = committed_max
        self._seqs: list[Seq] = [Seq(0)]
        self._hashes: list[bytes] = [CHAIN_START]

    @classmethod
    def behind(cls, seq: Seq, chain_hash: bytes) -> ChainHashes:
        """The chain of a log up to a record whose hash is known; it keeps the newest hash only."""
        chain = cls(1)
        chain._seqs, chain._hashes = [seq], [chain_hash]
        return chain

    def append(self, record: Record) -> None:
        """Extend the chain by the next record."""
        last_seq = Seq(record.base_seq + record.rows - 1)
        assert last_seq > self._seqs[-1], f"seq {last_seq} would follow {self._seqs[-1]} (S2.1)"
        link = self._hashes[-1] + record.term.to_bytes(8, "big") + record.guid + record.digest
        self._seqs.append(last_seq)
        self._hashes.append(blake2b(link, digest_size=DIGEST_BYTES).digest())

    def truncate(self, from_seq: Seq) -> None:
        """Forget the hashes of records from ``from_seq`` on; it is above the commit seq."""
        index = bisect_left(self._seqs, from_seq)
        assert index > 0, f"a cut at seq {from_seq} leaves no hash to go on from (S13)"
        del self._seqs[index:]
        del self._hashes[index:]

    def commit(self, commit_seq: Seq) -> None:
        """Keep the newest ``committed_max`` at or below ``commit_seq`` (in steps: amortised)."""
        if len(self._seqs) <= 2 * self._committed_max:
            return
        committed = bisect_left(self._seqs, commit_seq + 1)
        if committed > 2 * self._committed_max:
            del self._seqs[: committed - self._committed_max]
            del self._hashes[: committed - self._committed_max]
            assert self._seqs[0] <= commit_seq, f"no hash is kept at or below seq {commit_seq}"

    def at(self, seq: int) -> bytes | None:
        """Hash at the record that ends at ``seq``; None if no kept record ends there."""
        index = bisect_left(self._seqs, seq)
        if index < len(self._seqs) and self._seqs[index] == seq:
            return self._hashes[index]
        return None

    def may_end(self, seq: int, chain_hash: bytes) -> bool:
        """Whether a record may end at ``seq`` with this hash; older ones are not known any more."""
        return seq < self._seqs[0] or self.at(seq) == chain_hash

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def first_seq(self) -> Seq:
        """End of the oldest record whose hash is kept."""
        return self._seqs[0]

    @property
    def last_seq(self) -> Seq:
        """End of the newest record whose hash is known."""
        return self._seqs[-1]

    @property
    def last(self) -> bytes:
        """Hash of the whole log."""
        return self._hashes[-1]

    def encode(self) -> bytes:
        """The end of the chain: hashes before it are not asked for below a base."""
        return _encoder.encode(_State(self._seqs[-1], self._hashes[-1]))

    def restore(self, state: bytes, base_seq: Seq) -> None:
        """Become what was encoded. Raises ValueError for what no log has."""
        held = _decoder.decode(state)
        if held.seq != base_seq:
            raise ValueError(f"a hash at seq {held.seq} and not at {base_seq}")
        self._seqs, self._hashes = [held.seq], [held.chain_hash]
