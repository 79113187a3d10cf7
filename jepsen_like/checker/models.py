"""What the objects do that a history is judged against: one sequential step at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from jepsen_like.history import HistoryError, Operation
from raftstore.types import Outcome

State = Hashable
REFUSED = object()
"""What a step gives when the operation cannot have happened in that state."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation as the searches see it."""

    action: str
    value: Any
    result: Any
    known: bool
    """Its answer is known, so the result must fit."""
    conflict: bool
    call: int
    returned: int | None
    """None: it may take effect at any time after the call, or never."""
    operation: Operation

    @property
    def kind(self) -> tuple[str, Any]:
        """Never-returned operations of one kind can stand for each other."""
        return self.action, self.value


Step = Callable[[Any, Entry], Any]


@dataclass(frozen=True, slots=True)
class Model:
    """An object: its actions, its first state and its step."""

    name: str
    initial: Any
    actions: frozenset[str]
    step: Step
    reads: frozenset[str]
    """Actions that change nothing: without an answer they say nothing."""


def model_named(name: str, initial: Any = None) -> Model:
    """The model of that name; KeyError when there is none."""
    return _MODELS[name](initial)


def model_names() -> list[str]:
    """All names, sorted."""
    return sorted(_MODELS)


def entries_of(model: Model, operations: list[Operation]) -> list[Entry]:
    """What may have taken effect, in order of invocation; HistoryError names a foreign action."""
    entries = []
    for operation in operations:
        if operation.action not in model.actions:
            message = (
                f"the action {operation.action!r} is unknown to the model {model.name}; "
                f"use one of {', '.join(sorted(model.actions))}, or another model"
            )
            raise HistoryError(message)
        if operation.action == "cas" and not _is_pair(operation.value):
            message = f"cas has the value {operation.value!r}; give a pair of expected and new"
            raise HistoryError(message)
        known = operation.outcome is Outcome.OK and operation.returned is not None
        if operation.outcome is Outcome.NOT_APPLIED or (
            not known and operation.action in model.reads
        ):
            continue
        entries.append(_entry(operation, known=known))
    entries.sort(key=lambda entry: entry.call)
    return entries


def _entry(operation: Operation, *, known: bool) -> Entry:
    return Entry(
        operation.action,
        _frozen(operation.value),
        _frozen(operation.result),
        known,
        bool(operation.details.get("conflict")) and known,
        operation.invoked,
        operation.returned if known else None,
        operation,
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((repr(key), _frozen(item)) for key, item in value.items()))
    return value


def _register_step(state: Any, entry: Entry) -> Any:
    if entry.action == "read":
        return state if state == entry.result else REFUSED
    if entry.action == "write":
        return REFUSED if entry.conflict else entry.value
    expected, new = entry.value
    if entry.conflict:
        return REFUSED if state == expected else state
    return new if state == expected else REFUSED


def _kv_step(state: Any, entry: Entry) -> Any:
    if entry.action == "get":
        return state if state == entry.result else REFUSED
    return entry.value if entry.action == "put" else state + entry.value


def _mutex_step(state: Any, entry: Entry) -> Any:
    taking = entry.action == "acquire"
    return taking if state is not taking else REFUSED


def _register(initial: Any) -> Model:
    actions = frozenset({"read", "write"})
    return Model("register", initial, actions, _register_step, frozenset({"read"}))


def _cas_register(initial: Any) -> Model:
    actions = frozenset({"read", "write", "cas"})
    return Model("cas-register", initial, actions, _register_step, frozenset({"read"}))


def _kv(initial: Any) -> Model:
    actions = frozenset({"get", "put", "append"})
    first = "" if initial is None else initial
    return Model("kv", first, actions, _kv_step, frozenset({"get"}))


def _mutex(initial: Any) -> Model:
    actions = frozenset({"acquire", "release"})
    return Model("mutex", initial == "held", actions, _mutex_step, frozenset())


_MODELS: dict[str, Callable[[Any], Model]] = {
    "cas-register": _cas_register,
    "kv": _kv,
    "multi-register": _cas_register,
    "mutex": _mutex,
    "porcupine-kv": _kv,
    "register": _register,
}
