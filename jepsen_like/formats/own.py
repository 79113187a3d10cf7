"""Histories of our own runs, in the words of the models that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from jepsen_like.checker.list_append import appends_and_gets
from jepsen_like.checker.rw_register import puts_and_gets
from jepsen_like.history import HistoryError, Operation
from jepsen_like.workload.judging import as_register
from raftstore.types import Outcome

_CALLS: Final = frozenset({"put", "put_if", "put_many", "delete", "get", "get_many", "scan"})
_REGISTERS: Final = ("register", "cas-register")
_LISTS: Final = ("list-append", "rw-register")


def in_words_of(model: str, history: Sequence[Operation]) -> Sequence[Operation]:
    """Puts and gets as the model's actions; a history of other actions is given back as it is.

    Reads of several keys, and reads that need not be linearizable, are left out. HistoryError: a
    write that cannot be expressed in the model's words, since all that comes after may depend on
    it.
    """
    if model not in (*_REGISTERS, *_LISTS):
        return history
    if not all(operation.action in _CALLS for operation in history):
        return history
    for operation in history:
        _refuse_foreign(model, operation)
    tables = {str(operation.details.get("table", "")) for operation in history}
    if len(tables) > 1:
        history = [
            replace(operation, key=[operation.details.get("table", ""), operation.key])
            for operation in history
        ]
    if model in _REGISTERS:
        return as_register(history)
    linearizable = [
        operation
        for operation in history
        if operation.action != "get" or operation.details.get("level") == "linearizable"
    ]
    if model == "rw-register":
        return puts_and_gets(linearizable)
    return appends_and_gets(linearizable)


def _refuse_foreign(model: str, operation: Operation) -> None:
    if operation.outcome is Outcome.NOT_APPLIED:
        return
    what = f"{operation.action} of process {operation.process} invoked at {operation.invoked}"
    if operation.action in ("put_many", "delete"):
        message = f"{what} is no action of the model {model}; judge the run by its own workload"
        raise HistoryError(message)
    if operation.action == "put_if":
        note = "append" if model == "list-append" else "from"
        if note not in operation.details:
            message = f"{what} does not say what it compared: details lack {note!r}; note it"
            raise HistoryError(message)
        if model == "register":
            message = f"{what} is no action of the model register; use cas-register"
            raise HistoryError(message)
    elif operation.action == "put" and model == "list-append":
        raise HistoryError(f"{what} is no action of the model {model}; use register")
