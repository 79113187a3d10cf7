"""Sequential objects that a history is judged against, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jepsen_like.history import HistoryError, Operation
from raftstore.types import Outcome

State = Hashable
REFUSED: Final = object()
"""What a step gives when the operation cannot have happened in that state."""
ANY: Final = object()
"""A need: every state will do."""
KEEP: Final = object()
"""An effect: the state stays."""


class Entry(NamedTuple):
    """One operation as the searches see it."""

    action: str
    value: Any
    result: Any
    conflict: bool
    """A condition that did not hold, as was answered: nothing changed."""
    call: int
    returned: int | None
    """None: no answer is known; it may take effect at any time after the call, or never."""
    operation: Operation


class Shape(NamedTuple):
    """The states that an operation on a register needs and leaves; the values are hashable."""

    need: Any
    """The only state it can happen in, or ANY."""
    forbid: Any
    """The only state it cannot happen in, or ANY for none."""
    give: Any
    """The state after it, or KEEP."""


Step = Callable[[Any, Entry], Any]


@dataclass(frozen=True, slots=True)
class Model:
    """An object: its actions, its first state and its step.

    A model of one's own needs the fields up to ``reads``; the others make the searches faster.
    """

    name: str
    initial: Any
    actions: frozenset[str]
    step: Step
    """(state, entry) -> the state after it, or REFUSED."""
    reads: frozenset[str]
    """Actions that change nothing: without an answer they say nothing."""
    refusal: Callable[[Operation], str | None] = lambda _: None
    """Why the values of an operation are none of the model's; None: they are."""
    shape: Callable[[Entry], Shape] | None = None
    """For registers; ``step`` says the same."""
    leads_to: Callable[[Any, Any], bool] | None = None
    """(state, result of a read): whether writes that are no ``overwrites`` may lead there."""
    overwrites: frozenset[str] = frozenset()
    """Actions after which the state is their value, whatever it was."""
    blind: frozenset[str] = frozenset()
    """Actions whose answer says nothing about the state: a history of these alone always fits."""

    def is_pure(self, entry: Entry) -> bool:
        """Whether it changes nothing: it only shows what the state was, or what it was not."""
        return entry.conflict or entry.action in self.reads


def model_named(name: str, initial: Any = None) -> Model:
    """The model of that name; KeyError when there is none."""
    return _MODELS[name](frozen(initial))


def model_names() -> list[str]:
    """All names, sorted."""
    return sorted(_MODELS)


def entries_of(model: Model, operations: Iterable[Operation]) -> list[Entry]:
    """Operations that may have taken effect, in order of invocation.

    HistoryError names an action or a value that the model does not know, or a return before its
    invocation.
    """
    entries: list[Entry] = []
    actions, reads, refusal = model.actions, model.reads, model.refusal
    answered, refused = Outcome.OK, Outcome.NOT_APPLIED
    for operation in operations:
        action, outcome = operation.action, operation.outcome
        if action not in actions:
            raise HistoryError(_foreign(model, operation))
        reason = refusal(operation)
        if reason is not None:
            raise HistoryError(f"{_place(operation)} {reason}")
        call = operation.invoked
        returned = operation.returned if outcome is answered else None
        if returned is None:
            # It says nothing: certainly not done, or a read nobody heard the answer of.
            if outcome is refused or action in reads:
                continue
        elif returned < call:
            message = f"{_place(operation)} returned at {returned}, before it; repair its times"
            raise HistoryError(message)
        value, result, details = operation.value, operation.result, operation.details
        entries.append(
            Entry(
                action,
                value if type(value) in _ATOMS else frozen(value),
                result if type(result) in _ATOMS else frozen(result),
                returned is not None and bool(details) and bool(details.get("conflict")),
                call,
                returned,
                operation,
            )
        )
    entries.sort(key=_call_of)
    return entries


def frozen(value: Any) -> Any:
    """A hashable value, equal for equal JSON values and for nothing else (true is not 1)."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, dict):
        pairs = [(repr(key), frozen(item)) for key, item in value.items()]
        return ("{}", *sorted(pairs, key=lambda pair: pair[0]))
    if isinstance(value, float):
        # Not-a-number is the same value wherever it is read.
        return value if value == value else ("float", "nan")  # noqa: PLR0124
    return value if isinstance(value, Hashable) else repr(value)


_ATOMS: Final = frozenset({int, str, type(None)})
_TRUE: Final = ("bool", "true")
_FALSE: Final = ("bool", "false")


def _call_of(entry: Entry) -> int:
    return entry.call


def _place(operation: Operation) -> str:
    return f"{operation.action} of process {operation.process} invoked at {operation.invoked}"


def _foreign(model: Model, operation: Operation) -> str:
    return (
        f"the action {operation.action!r} is unknown to the model {model.name}; "
        f"use one of {', '.join(sorted(model.actions))}, or another model"
    )


def _register_shape(entry: Entry) -> Shape:
    if entry.action == "read":
        return Shape(entry.result, ANY, KEEP)
    if entry.action == "write":
        return Shape(ANY, ANY, entry.value)
    expected, new = entry.value
    # A conditional write that answered with a conflict saw that its condition did not hold. One
    # without an answer may have found it true and written, or never took effect.
    return Shape(ANY, expected, KEEP) if entry.conflict else Shape(expected, ANY, new)


def _mutex_shape(entry: Entry) -> Shape:
    before, after = ("free", "held") if entry.action == "acquire" else ("held", "free")
    return Shape(ANY, before, KEEP) if entry.conflict else Shape(before, ANY, after)


def _step_of(shape: Callable[[Entry], Shape]) -> Step:
    def step(state: Any, entry: Entry) -> Any:
        need, forbid, give = shape(entry)
        if (need is not ANY and state != need) or (forbid is not ANY and state == forbid):
            return REFUSED
        return state if give is KEEP else give

    return step


def _kv_step(state: Any, entry: Entry) -> Any:
    if entry.action == "get":
        return state if state == entry.result else REFUSED
    return entry.value if entry.action == "put" else state + entry.value


def _register_refusal(operation: Operation) -> str | None:
    value = operation.value
    if operation.action == "cas":
        if not isinstance(value, list | tuple) or len(value) != 2:
            return f"has the value {value!r}; give a pair of expected and new"
    elif operation.action == "write" and operation.details.get("conflict"):
        return "has no condition that a conflict could come from; call it cas"
    return None


def _kv_refusal(operation: Operation) -> str | None:
    is_get = operation.action == "get"
    text = operation.result if is_get else operation.value
    if isinstance(text, str) or (is_get and operation.outcome is not Outcome.OK):
        return None
    return f"has the value {text!r}; the model kv knows strings, '' for none"


def _register(name: str, *more: str) -> Callable[[Any], Model]:
    def model(initial: Any) -> Model:
        actions, step = frozenset({"read", "write", *more}), _step_of(_register_shape)
        reads = frozenset({"read"})
        return Model(
            name, initial, actions, step, reads, _register_refusal, _register_shape,
            blind=frozenset({"write"}),
        )  # fmt: skip

    return model


def _kv(initial: Any) -> Model:
    actions = frozenset({"get", "put", "append"})
    first = "" if initial is None else str(initial)
    return Model(
        "kv",
        first,
        actions,
        _kv_step,
        frozenset({"get"}),
        _kv_refusal,
        leads_to=lambda state, result: result.startswith(state),
        overwrites=frozenset({"put"}),
        blind=frozenset({"put", "append"}),
    )


def _mutex(initial: Any) -> Model:
    actions = frozenset({"acquire", "release"})
    step = _step_of(_mutex_shape)
    first = "held" if initial == "held" else "free"
    return Model("mutex", first, actions, step, frozenset(), shape=_mutex_shape)


_MODELS: Final[dict[str, Callable[[Any], Model]]] = {
    "cas-register": _register("cas-register", "cas"),
    "kv": _kv,
    "mutex": _mutex,
    "porcupine-kv": _kv,
    "register": _register("register"),
}
