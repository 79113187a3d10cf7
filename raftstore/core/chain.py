"""Chain hashes: one small number that stands for a whole log up to a record (S13).

``h_s = H(h_{s-1}, term, guid, digest)``, one per record, found by the record's last seq. Two
replicas that show different hashes at a committed seq hold different histories.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b

from raftstore.protocol.records import Record
from raftstore.types import DIGEST_BYTES, Seq

CHAIN_START = bytes(DIGEST_BYTES)
"""The hash of an empty log."""


def digest_of(payload: bytes) -> bytes:
    """Digest of a payload as publishers compute it."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


class ChainHashes:
    """Hashes of the newest records: all above the commit seq, and ``committed_max`` below it."""

    __slots__ = ("_committed_max", "_hashes", "_seqs")

    def __init__(self, committed_max: int) -> None:
        assert committed_max >= 1
        self._committed_max = committed_max
        self._seqs: list[Seq] = [Seq(0)]
        self._hashes: list[bytes] = [CHAIN_START]

    def append(self, record: Record) -> None:
        """Extend the chain by the next record."""
        last_seq = record.last_seq
        assert last_seq > self._seqs[-1]
        link = self._hashes[-1] + record.term.to_bytes(8, "big") + record.guid + record.digest
        self._seqs.append(last_seq)
        self._hashes.append(blake2b(link, digest_size=DIGEST_BYTES).digest())

    def truncate(self, from_seq: Seq) -> None:
        """Forget the hashes of records from ``from_seq`` on; it is above the commit seq."""
        index = bisect_left(self._seqs, from_seq)
        assert index > 0, "the hash before a truncation point is always kept"
        del self._seqs[index:]
        del self._hashes[index:]

    def prune(self, commit_seq: Seq) -> None:
        """Keep the newest ``committed_max`` at or below ``commit_seq`` (in steps: amortised)."""
        if len(self._seqs) <= 2 * self._committed_max:
            return
        committed = bisect_left(self._seqs, commit_seq + 1)
        if committed > 2 * self._committed_max:
            del self._seqs[: committed - self._committed_max]
            del self._hashes[: committed - self._committed_max]

    def at(self, seq: int) -> bytes | None:
        """Hash at the record that ends at ``seq``; None if no kept record ends there."""
        index = bisect_left(self._seqs, seq)
        if index < len(self._seqs) and self._seqs[index] == seq:
            return self._hashes[index]
        return None

    def __len__(self) -> int:
        return len(self._seqs)
