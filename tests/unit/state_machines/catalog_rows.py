"""The rows of a metadata channel, as its machine makes them record by record."""

from __future__ import annotations

from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, DictView, Row
from raftstore.rows.sealing import unseal
from raftstore.state_machines.catalog import Catalog, register_node_command
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.types import NO_GUID, NodeId, RecordKind, Seq, Term

MACHINE = CatalogMachine()


class CatalogRows:
    """A metadata channel in which the given nodes are registered."""

    def __init__(self, *nodes: NodeId, now_ms: int = 0) -> None:
        self.rows: dict[bytes, Row] = {}
        self.seq = 0
        self.now_ms = now_ms
        """Timestamp of the next record."""
        for node in nodes:
            self.command(register_node_command(node, "h:1", 6))

    def apply(self, payload: bytes, kind: RecordKind = RecordKind.COMMAND) -> ApplyResult:
        """Commit and apply one record."""
        self.seq += 1
        record = Record(Term(1), Seq(self.seq), 1, NO_GUID, self.now_ms, bytes(16), kind, payload)
        result = MACHINE.apply(record, DictView(self.rows))
        result = ApplyResult(tuple(result.writes), result.conflict_seq)
        for key, sealed in result.writes:
            if sealed is None:
                del self.rows[key]
            else:
                self.rows[key] = Row(key, unseal(key, sealed), Seq(self.seq))
        return result

    def command(self, payload: bytes) -> int | None:
        """Commit and apply a command; the seq that a conflict names, None without one."""
        return self.apply(payload).conflict_seq

    @property
    def catalog(self) -> Catalog:
        """The view of the present rows."""
        return Catalog.from_rows(((r.key, r.value, r.seq) for r in self.rows.values()), self.seq)
