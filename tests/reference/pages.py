"""The reference pages of docs/, made from what they describe: they cannot drift from the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from raftstore import config, errors
from raftstore.audit import settings as audit_settings
from raftstore.cli.main import cli
from raftstore.http.metrics import HELP
from raftstore.node.setting_rules import format_number, range_of
from raftstore.node.settings import environment_variable, resolve_settings
from raftstore.protocol.codec import KINDS
from raftstore.protocol.tags import RETIRED
from raftstore.types import Outcome
from tests.reference.http_page import http_page
from tests.reference.requirements import requirements_page
from tests.reference.role_table import role_table

DOCS = Path(__file__).parents[2] / "docs"
GENERATED = "This page is made by `make docs`; a test compares it with the code.\n"
SECTION_OF = {
    "ReplicationSettings": "replication",
    "CatchUpSettings": "catchup",
    "MembershipSettings": "membership",
    "ElectionSettings": "election",
    "HeartbeatSettings": "heartbeat",
    "LagSettings": "lag",
    "BatchSettings": "batch",
    "SnapshotSettings": "snapshot",
    "QuerySettings": "query",
    "ReadSettings": "read",
    "StorageSettings": "storage",
    "RetentionSettings": "retention",
    "ScrubSettings": "scrub",
    "ExpirySettings": "expiry",
    "RebalanceSettings": "rebalance",
    "ReplicaSettings": "replica",
    "IssSettings": "iss",
    "TransportSettings": "transport",
    "HttpSettings": "http",
    "MachineSettings": "machines",
    "AuditSettings": "audit",
    "NodeSettings": "node",
}
_ASK_FATE = (
    "ask `client.fate` with the guid of the error, or read the row; the same call again is another "
    "write (a batch is known by its number, and may be committed again)"
)
REMEDIES = {
    "not_leader": "none needed: the client follows the hint and retries by itself",
    "page_token": "give the token back exactly as it came, to the same scan",
    "position": "give a position of this very table, as an acknowledgement or a read gave it",
    "guid_fenced": "none: the write was not applied; write again with a new call",
    "join_refused": "use a token that was made for this node and is not used up",
    "unknown_node": "look at the nodes there are: `raftstore status`",
    "change_done": "order the opposite, if it is to be taken back",
    "change_pending": "wait until the open order has ended, or cancel it",
    "still_member": "have the node drain first, and move its replicas",
    "store_too_old": "upgrade the nodes that the message names",
    "unauthenticated": "give the name and password of a user of the node's users file",
    "forbidden": "ask the owner of the users file for a role that allows it",
    "not_up_to_bound": "wait longer (timeout), or ask another replica",
    "page_expired": "start the scan again; see read.scan_pin_idle_ms",
    "invalid_state_store": "see the reason; include_stale_stores=True reads what restores",
    "no_leader": "retry; if it lasts, see `raftstore status`: a majority of replicas must be up",
    "overloaded": "slow down or retry later",
    "no_space": "retry later, or free space on the node that the message names",
    "unavailable": "retry; the message says what the node is waiting for",
    "timeout": "give more time, or see whether the nodes can be reached",
    "payload_too_large": "split the value, or store a reference to it",
    "unknown_table": "create the table; `raftstore table ls` lists them",
    "unknown_channel": "none needed: the client looks for the replicas again",
    "table_exists": "use the existing table, or another name",
    "schema": "correct the row, the key or the definition; the message names the column",
    "conflict": "read the row again and decide with what it holds now",
    "state_limit": "put smaller keys and values, or split the command into several",
    "rejected": "the machine's own reason is in the message; decide by it",
    "unknown_machine": "install the package with the machine on the node that the message names",
    "machine_stopped": "install a version that can apply the command, or have it skipped",
    "guid_reuse": "give each write a guid of its own",
    "quorum_timeout": _ASK_FATE,
    "leadership_lost": _ASK_FATE,
    "in_doubt": _ASK_FATE,
    "operation_in_doubt": "look (`raftstore table ls`, `raftstore channel ls`) before repeating it",
    "guid_expired": "read the row to see whether it was written",
    "writer_fenced": (
        "stop this writer: another one took over; `raftstore writer ls` shows its last batch"
    ),
    "batch_regression": "restore the checkpoint, `raftstore writer adopt`, or another writer id",
    "attempt_closed": "begin the batch again; give attempts more time (stagingTtl)",
    "batch_incomplete": "stage all rows, then commit what `stage` returned, of this attempt alone",
    "batch_pending": "repeat the same commit: it waits until every partition has applied it",
    "snapshot_expired": "read a new snapshot",
    "data_loss": "start from the oldest change kept (failOnDataLoss=false), or from a copy",
    "partial_write": "`applied`, `not_applied` and `unknown` name the rows; repeat what is missing",
    "query_error": "retry",
    "unsupported_request": "install the same raftstore version on both sides",
    "lag_unknown": "restore the network to the leader, ask another replica, or read at level `any`",
    "lag_exceeded": "retry, raise `max_lag`, or wait until the replica has caught up",
    "no_replica_available": "retry, raise `max_lag`, or start the nodes again; `hosts` says why",
}


def documented_fields(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """(field, its documentation); fields that share a docstring stand together above it."""
    waiting: list[str] = []
    found: dict[str, str] = {}
    for field in cls.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            waiting.append(field.target.id)
        elif isinstance(field, ast.Expr) and isinstance(field.value, ast.Constant) and waiting:
            found |= dict.fromkeys(waiting, inspect.cleandoc(str(field.value.value)))
            waiting = []
    return iter(found.items())


def setting_texts() -> dict[str, str]:
    """``section.key`` -> documentation."""
    sources = [inspect.getsource(module) for module in (config, audit_settings)]
    classes = [node for source in sources for node in ast.parse(source).body]
    return {
        f"{SECTION_OF[node.name]}.{name}": text
        for node in classes
        if isinstance(node, ast.ClassDef) and node.name in SECTION_OF
        for name, text in documented_fields(node)
    }


def configuration_page() -> str:
    """Every setting of a node."""
    texts = setting_texts()
    lines = [
        "# Configuration",
        "",
        GENERATED,
        "A flag wins over the environment, the environment over the file, the file over the "
        "default; `raftstore config show --origin` says where each value came from.",
        "In the file (TOML) a setting stands as `key = value` under its `[section]`; in the "
        "environment it is `RAFTSTORE_SECTION_KEY`.",
        'Durations are written `"2s"` and sizes `"64MiB"`; an unknown key is refused with the '
        "nearest known one.",
    ]
    section = ""
    for key, setting in resolve_settings().items():
        name, _, short = key.partition(".")
        if name != section:
            section = name
            lines += ["", f"## [{section}]", "", "| key | default | allowed | meaning |"]
            lines.append("|---|---|---|---|")
        value = setting.value
        allowed = ""
        if isinstance(value, int) and not isinstance(value, bool):
            limits = range_of(key)
            low, high = format_number(key, limits.low), format_number(key, limits.high)
            allowed = f"{low} to {high}"
        text = " ".join(texts[key].split())
        lines.append(f"| `{short}` | {setting.text() or '(none)'} | {allowed} | {text} |")
    example = environment_variable("heartbeat.window_ms")
    lines += ["", f"For example `[heartbeat] window_ms` is `{example}` in the environment.", ""]
    return "\n".join(lines)


def request_errors() -> list[type[errors.RequestError]]:
    """Every error a request can end with, in the order of their definition."""
    return [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type)
        and issubclass(cls, errors.RequestError)
        and cls is not errors.RequestError
    ]


def errors_page() -> str:
    """Every error of a request: code, outcome, what to do."""
    lines = [
        "# Errors",
        "",
        GENERATED,
        "Every error of a request says whether the request happened: NOT_APPLIED means that it "
        "did not and will not, UNKNOWN that it may have.",
        "`retriable` means that the same call may succeed later. The client retries by itself "
        "until its timeout; what you see is what was left.",
        "",
        "| code | Python | outcome | retriable | meaning | what to do |",
        "|---|---|---|---|---|---|",
    ]
    for cls in request_errors():
        meaning = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        outcome = "by row" if cls is errors.PartialWriteError else cls.outcome.name
        if issubclass(cls, errors.QueryError):
            outcome = "a read"
        retriable = "yes" if cls.retriable else "no"
        lines.append(
            f"| `{cls.code}` | `{cls.__name__}` | {outcome} | {retriable} | {meaning} "
            f"| {REMEDIES[cls.code]} |"
        )
    unknown = [c.code for c in request_errors() if c.outcome is Outcome.UNKNOWN]
    lines += [
        "",
        f"On the command line {', '.join(f'`{code}`' for code in unknown)} end with exit code 3.",
        "",
        "Besides these: `ConfigError` (a setting, nothing was started), its kind `ArgumentError` "
        "(what a call was given means nothing, nothing was sent; exit code 2), `StorageError` (the "
        "node stops with exit code 70), `TransportError` and `ProtocolError` (a connection; the "
        "client turns them into one of the above).",
        "",
    ]
    return "\n".join(lines)


MESSAGE_TITLES = {
    "publish": "Publishing",
    "replication": "Replication of a channel",
    "election": "Elections",
    "leader_moves": "Even leaders",
    "replica_snapshots": "Replica snapshots",
    "payload_repair": "Missing payloads",
    "healing": "Histories that differ",
    "replica_checks": "Comparing replicas",
    "trimming": "How far logs are trimmed",
    "log_ends": "Ends of logs, for a replica in doubt",
    "node": "Between nodes",
    "bootstrap": "Founding a cluster",
    "reads": "Reads",
    "snapshots": "Snapshots",
    "changes": "Changes",
    "batches": "Atomic micro-batches",
    "admin": "Tables, status, events",
    "machines": "State machines of users",
    "shared_commands": "Commands of state machines that share a record",
    "audit": "Audits of clients",
    "members": "Nodes that join and leave",
    "replica_orders": "Replicas that are ordered",
    "rebalance": "Replicas moved so that nodes hold even shares",
    "message": "Answers that every request can have",
}
"""Conversations by their module in ``raftstore.protocol``, in the order of the page."""


def messages_page() -> str:
    """Every message on the wire: tag, fields, meaning."""
    lines = [
        "# Messages",
        "",
        GENERATED,
        "A message is a tagged MessagePack array in a frame with length, version and CRC-32 "
        "(`raftstore/protocol/framing.py`).",
        "Fields are only ever appended; a reader ignores those it does not know. A tag is never "
        "given to another message (`raftstore/protocol/tags.py`).",
    ]
    tables: dict[str, list[str]] = {name: [] for name in MESSAGE_TITLES}
    for tag, cls in KINDS.items():
        fields = ", ".join(f"`{name}`" for name in cls.__struct_fields__)
        meaning = " ".join((inspect.getdoc(cls) or "").split()).replace("|", "\\|")
        rows = tables[cls.__module__.rpartition(".")[2]]
        rows.append(f"| {tag} | `{cls.__name__}` | {fields} | {meaning} |")
    for name, title in MESSAGE_TITLES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| tag | message | fields | meaning |",
            "|---|---|---|---|",
        ]
        lines += tables[name]
    if RETIRED:
        names = ", ".join(f"{tag.value} (`{tag.name}`)" for tag in sorted(RETIRED))
        lines += ["", f"No longer sent, and never used again: {names}."]
    return "\n".join([*lines, ""])


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below ``raftstore`` with its full name."""
    root = click.Context(cli, info_name="raftstore", **cli.context_settings)
    yield "raftstore", cli, root
    yield from _below(cli, root, "raftstore")


def _below(
    group: click.Group, context: click.Context, name: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        assert command is not None
        inner = click.Context(command, info_name=part, parent=context, max_content_width=100)
        yield f"{name} {part}", command, inner
        if isinstance(command, click.Group):
            yield from _below(command, inner, f"{name} {part}")


def cli_page() -> str:
    """Every command as its ``-h`` shows it."""
    lines = [
        "# The command line",
        "",
        GENERATED,
        "Data goes to stdout, progress and messages to stderr; `-o json` and `-o yaml` are for "
        "programs.",
        "Global options may stand anywhere on the line.",
        "",
        "Rows and keys are written and shown in the encoding of HTTP: "
        "[keys and values](http-api.md#keys-and-values).",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | there is no such row: an answer, no error |",
        "| 2 | wrong usage: an option or argument that cannot be read, or that makes no sense |",
        "| 3 | outcome unknown: the write or command may have happened |",
        "| 4 | unavailable: no leader, or no replica within the bound |",
        "| 5 | timeout before anything was sent |",
        "| 7 | a verification found a difference |",
        "| 8 | nothing could be compared: the replicas did not meet at one position |",
        "| 9 | refused: nothing was done, and the sentence on stderr says why |",
        "| 70 | storage failure (a node) |",
        "| 78 | bad configuration of a node |",
        "| 130 | stopped by Ctrl-C |",
        "",
        "## Completion",
        "",
        '`eval "$(_RAFTSTORE_COMPLETE=bash_source raftstore)"` in `~/.bashrc`; `zsh_source` and '
        "`fish_source` for the other shells.",
    ]
    for name, command, context in commands():
        lines += ["", f"## {name}", "", "```text", command.get_help(context), "```"]
    return "\n".join([*lines, ""])


def roles_page() -> str:
    """Every message in every state of a replica (NATS-038)."""
    head, *rows = role_table()
    lines = [
        "# What a replica does with each message\n",
        GENERATED,
        "Each cell was tried on the core: a replica was brought into the state, given the message "
        "as a healthy peer of the same term would send it, and what it did is written down, with "
        "what it sends once its log is durable. *Nothing* means: no effect outside; a payload may "
        "have been kept for the StoreRequest that names it.\n",
        "The term is looked at before the state (S1.4): a message of a **lower** term is answered "
        "with StaleTerm and has no other effect; a **higher** term is adopted first, which makes a "
        "leader of a lower one a follower. A replication message never makes a replica of the same "
        "term change its role: one that only another leader of the same term could have sent "
        "stops the node (S13).\n",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows]
    lines.append(
        "\n`PubMsg` stands for a write addressed to this replica in its term; a write addressed to "
        "another leader is kept, never sequenced (S5.6). Effects: `raftstore.core.effects`."
    )
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """The page of the metrics that a monitor may collect."""
    lines = [
        "# Metrics",
        "",
        GENERATED,
        "`GET /metrics` of each node, in the text format of Prometheus: counters, whose names end "
        "in `_total`, only grow from the start of the process; histograms have `_bucket`, `_sum` "
        "and `_count`; times are in seconds. Positions are given per partition while a node hosts "
        "at most 256 channels, and summed per table above that.",
        "",
        "| Name | Meaning |",
        "|---|---|",
    ]
    totals = exported_totals()
    for name, meaning in sorted(HELP.items()):
        shown = f"{name}_total" if f"{name}_total" in totals else name
        lines.append(f"| `{shown}` | {meaning} |")
    return "\n".join(lines) + "\n"


def exported_names() -> set[str]:
    """Every name of a metric in the rooms that measure."""
    package = Path(config.__file__).parent
    found: set[str] = set()
    for room in ("engine", "node", "transport"):
        for path in sorted((package / room).rglob("*.py")):
            found |= set(re.findall(r'"(raftstore_[a-z_]+)"', path.read_text(encoding="utf-8")))
    return found - {_LOG_FIELDS}


def exported_totals() -> set[str]:
    """Those that only grow."""
    return {name for name in exported_names() if name.endswith("_total")}


_LOG_FIELDS = "raftstore_fields"
"""An attribute of log records; no metric."""

PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "messages.md": messages_page,
    "roles.md": roles_page,
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "requirements.md": lambda: requirements_page(GENERATED),
    "http-api.md": lambda: http_page(GENERATED, request_errors()),
}
