"""``raftstore audit``: what nodes and clients found wrong with answers to real requests (N7)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from raftstore.audit.observation import hash_of_key
from raftstore.cli.common import Context, pass_context, rows_of
from raftstore.cli.events import event_row
from raftstore.client.results import NodeStatus
from raftstore.protocol.admin import TableInfo
from raftstore.rows.schema import TableSchema

EVENT: Final = "audit_violation"
EVIDENCE: Final = "evidence"
EXIT_VIOLATION: Final = 7
LIMIT: Final = 4_096


@click.command()
@click.option("--evidence", is_flag=True, help="Also print the operations that prove each of them.")
@click.option(
    "--key", nargs=2, metavar="TABLE KEY", help="Only print by which hash evidence names a key."
)
@pass_context
def audit(context: Context, *, evidence: bool, key: tuple[str, str] | None) -> int:
    """Answers to real requests that cannot be right, and how much was judged.

    Nodes judge what they answer of a share of all keys (audit.keys_per_million), clients what they
    are answered (connect(audit=...)) and report it to a node. Nodes remember what was found, also
    over restarts. Nothing found means that nothing was seen in what was watched, no more.

    Exit code 7 when something was found, however long ago.

    \b
    Example:
      raftstore audit
      raftstore audit --evidence
      raftstore audit --key orders 17
      raftstore audit -o json
    """
    with context.connect() as client:
        if key is not None:
            click.echo(_hash_of(client.table_info(key[0]), key[1]))
            return 0
        nodes = client.cluster_status().nodes
        events = client.events((EVENT,), {}, limit=LIMIT)
    counts, found = audit_rows(nodes), [with_operations(event) for event in events.events]
    if context.output != "table":
        context.show({"nodes": counts, "violations": found, "not_asked": dict(events.errors)})
    else:
        context.show(None, counts)
        _show_found(context, found, evidence=evidence)
    for name, reason in events.errors.items():
        context.say(f"{name} was not asked: {reason}")
    return EXIT_VIOLATION if found else 0


def _hash_of(info: TableInfo, key: str) -> str:
    schema = TableSchema(info.key_columns, info.schema_json)
    return hash_of_key(schema.key_of(rows_of(info).key_from_text(key))).hex()


def _show_found(context: Context, found: list[dict[str, Any]], *, evidence: bool) -> None:
    if not found:
        context.say("no answer was found wrong")
        return
    click.echo()
    for event in found:
        operations = event.pop(EVIDENCE, [])
        context.show(None, [event_row(event)])
        if evidence:
            context.show(None, operations)
            click.echo()
    context.say(
        "an answer that cannot be right is a mistake of raftstore, or of the machine it was given "
        "on: see docs/operations.md, An audit found something"
    )


def audit_rows(nodes: Iterable[NodeStatus]) -> list[dict[str, Any]]:
    """Counts of each node; of one of an older version, or one that is down, the name alone."""
    return [{"node": node.name, **((node.status or {}).get("audit") or {})} for node in nodes]


def with_operations(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with its evidence as what it is; text that is no JSON, of a client, stays."""
    text = event.get(EVIDENCE, "[]")
    try:
        operations = json.loads(text)
    except (TypeError, ValueError):
        operations = None
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        operations = [{"text": text}]
    return {**event, EVIDENCE: operations}
