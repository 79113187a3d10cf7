"""Readers of histories that other projects recorded.

Times are positions in the file, so that no two events are at the same instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jepsen_like.explain import Clock
from jepsen_like.formats.edn import parse_edn
from jepsen_like.history import HistoryError, Operation, read_history
from raftstore.types import Outcome

_LOG_LINE = re.compile(r"^INFO\s+jepsen\.util - (\S+)\s+:(invoke|ok|fail|info)\s+:(\w+)\s+(.*)$")


def clock_of(path: Path) -> Clock:
    """The unit of the times that `read_any` reads from a file: only our own
    histories have times.
    """
    if path.suffix in {".edn", ".txt", ".json", ".log"} or _text(path).lstrip().startswith("INFO"):
        return Clock.EVENTS
    return Clock.NANOSECONDS


def read_any(path: Path) -> list[Operation]:
    """Read a history of any known format; HistoryError says why it is none."""
    text = _text(path)
    start = text.lstrip()
    if path.suffix == ".jsonl":
        return read_history(path)
    if path.suffix == ".json":
        return read_elle(path)
    if path.suffix == ".log" or start.startswith("INFO"):
        return read_jepsen_log(path)
    if path.suffix in {".edn", ".txt"}:
        return _pair(_edn_events(path), str(path), default="txn")
    return read_history(path)


def read_edn(path: Path) -> list[Operation]:
    """Maps in one vector, or one map after the other (knossos, porcupine-kv).

    A read that returned nil says nothing. A failed operation never took effect.
    """
    return _pair(_edn_events(path), str(path))


def read_elle(path: Path) -> list[Operation]:
    """Transactions of elle-cli, edn or json: action "txn", value [[f, k, v], ...]; or bank's."""
    if path.suffix != ".json":
        return _pair(_edn_events(path), str(path), default="txn")
    try:
        events = json.loads(_text(path))
    except ValueError as error:
        message = f"{path} is no json ({error}); repair the file"
        raise HistoryError(message) from error
    if not isinstance(events, list):
        message = f"{path} holds no list of events; wrap the events in [ and ]"
        raise HistoryError(message)
    return _pair(events, str(path), default="txn")


def read_jepsen_log(path: Path) -> list[Operation]:
    """Lines of jepsen's log (etcd of porcupine): a nil read saw no value, a failed cas compared.

    A read that timed out is unknown.
    """
    events: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        match = _LOG_LINE.match(line)
        if match is None:
            if "jepsen.util" not in line:
                continue
            message = f"line {number} of {path} is no event of a jepsen log; repair the line"
            raise HistoryError(message)
        process, kind, action, rest = match.groups()
        forms = parse_edn(rest, f"{path}:{number}")
        value = forms[0] if forms else None
        events.append({"process": process, "type": kind, "f": action, "value": value})
    if not events:
        message = f"{path} holds no event of a jepsen log; name a file of another format"
        raise HistoryError(message)
    return _pair(events, str(path), is_log=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read ({error}); name a text file"
        raise HistoryError(message) from error


def _edn_events(path: Path) -> list[Any]:
    forms = parse_edn(_text(path), str(path))
    if len(forms) == 1 and isinstance(forms[0], list):
        return list(forms[0])
    return forms


def _pair(
    events: Iterable[Any], source: str, *, default: str | None = None, is_log: bool = False
) -> list[Operation]:
    """Operations in order of invocation, from events in order of time."""
    operations: list[Operation] = []
    pending: dict[str, Operation] = {}
    for now, event in enumerate(events):
        if not isinstance(event, dict) or "process" not in event or "type" not in event:
            message = f"event {now + 1} of {source} lacks :process or :type; repair the event"
            raise HistoryError(message)
        process, kind = str(event["process"]), event["type"]
        action = event.get("f", default)
        if kind == "invoke" and action is not None:
            if process in pending:
                message = f"event {now + 1} of {source}: process {process} already has an operation"
                raise HistoryError(f"{message}; repair the event")
            operation = Operation(
                process, str(action), event.get("key"), event.get("value"), invoked=now
            )
            pending[process] = operation
            operations.append(operation)
        elif kind in {"ok", "fail", "info"}:
            open_one = pending.pop(process, None)
            if open_one is None:
                if kind == "info":
                    continue
                message = f"event {now + 1} of {source} ends an operation that never began"
                raise HistoryError(f"{message}; repair the event")
            _finish(open_one, kind, event.get("value"), now, is_log=is_log)
        else:
            what = "lacks :f" if kind == "invoke" else f"has the type {kind!r}"
            message = f"event {now + 1} of {source} {what}; types are invoke, ok, fail and info"
            raise HistoryError(message)
    return operations


def _finish(operation: Operation, kind: str, value: Any, now: int, *, is_log: bool) -> None:
    if kind == "info":
        return
    if kind == "fail":
        if is_log and operation.action == "cas" and value != "timed-out":
            operation.returned, operation.outcome = now, Outcome.OK
            operation.details["conflict"] = True
        elif not (is_log and value == "timed-out"):
            operation.returned, operation.outcome = now, Outcome.NOT_APPLIED
        return
    operation.returned, operation.outcome, operation.result = now, Outcome.OK, value
    if operation.action == "read" and value is None and not is_log:
        operation.outcome = Outcome.UNKNOWN
