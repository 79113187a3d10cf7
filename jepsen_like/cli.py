"""raftstore-jepsen: judge recorded histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from jepsen_like.checker.bank import check_bank
from jepsen_like.checker.facts import elements
from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.list_append import check_list_append
from jepsen_like.checker.models import model_named, model_names
from jepsen_like.checker.race import DEFAULT_BUDGET
from jepsen_like.checker.rw_register import check_rw_register
from jepsen_like.checker.sets import check_set
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.explain import explain
from jepsen_like.formats import clock_of, read_any
from jepsen_like.formats.own import in_words_of
from jepsen_like.history import HistoryError, Operation
from jepsen_like.timeline import timeline_html

_EXIT: Final = {Validity.VALID: 0, Validity.INVALID: 7, Validity.UNDECIDED: 4}


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of the models other than the linearizable ones."""

    is_realtime: bool
    is_whole: bool
    total: int | None


def _bank(history: Sequence[Operation], options: _Options) -> Verdict:
    total = options.total
    if total is None:
        total = _first_sum(history)
    return check_bank(history, total)


def _lists(history: Sequence[Operation], options: _Options) -> Verdict:
    return check_list_append(history, realtime=options.is_realtime)


def _registers(history: Sequence[Operation], options: _Options) -> Verdict:
    return check_rw_register(history, realtime=options.is_realtime, is_whole=options.is_whole)


def _set(history: Sequence[Operation], options: _Options) -> Verdict:
    del options
    return check_set(history)


_Checker = Callable[[Sequence[Operation], _Options], Verdict]
_OTHERS: Final[dict[str, tuple[_Checker, frozenset[str]]]] = {
    "bank": (_bank, frozenset({"read", "transfer"})),
    "list-append": (_lists, frozenset({"txn"})),
    "rw-register": (_registers, frozenset({"txn"})),
    "set": (_set, frozenset({"add", "read"})),
}
"""Models judged by checkers of their own, and their actions."""


@click.group()
def main() -> None:
    """Judge histories of clients."""


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model",
    required=True,
    type=click.Choice(sorted([*model_names(), *_OTHERS])),
    help="What the clients talked to.",
)
@click.option(
    "--init",
    "initial",
    default="nil",
    help="First state of a register, kv or mutex (free, held); nil for none.",
)
@click.option(
    "--budget",
    default=DEFAULT_BUDGET,
    show_default=True,
    type=click.IntRange(min=1),
    help="Steps of the search, for each key.",
)
@click.option(
    "--consistency",
    default="strict-serializable",
    show_default=True,
    type=click.Choice(["strict-serializable", "serializable"]),
    help="For list-append and rw-register: whether the order of time counts.",
)
@click.option(
    "--other-writers",
    is_flag=True,
    help="For rw-register: a value without a writer in the history proves nothing.",
)
@click.option("--total", type=int, help="For bank: the sum of all accounts; the first one read.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw what is wrong as a timeline into this file.",
)
def check(
    file: Path,
    model: str,
    initial: str,
    budget: int,
    consistency: str,
    html: Path | None,
    **more: Any,
) -> None:
    """Exit 0 when FILE is valid, 7 when not, 4 when undecided, 2 when it cannot be read.

    FILE is a history.jsonl of a run, or one of knossos, porcupine, jepsen or elle-cli (.edn,
    .json, .log, .txt).
    """
    options = _Options(
        is_realtime=consistency == "strict-serializable",
        is_whole=not more["other_writers"],
        total=more["total"],
    )
    try:
        history = in_words_of(model, read_any(file))
        verdict = _judged(file, model, _value(model, initial), budget, history, options)
    except HistoryError as error:
        raise click.UsageError(str(error)) from error
    clock = clock_of(file)
    click.echo(f"{verdict.validity.name.lower()}: {explain(verdict, clock)}")
    if html is not None:
        try:
            html.write_text(timeline_html(verdict, history, clock), encoding="utf-8")
        except OSError as error:
            message = f"{html} cannot be written ({error.strerror}); name a file elsewhere"
            raise click.UsageError(message) from error
        click.echo(f"timeline: {html}")
    raise SystemExit(_EXIT[verdict.validity])


def _judged(
    file: Path,
    model: str,
    initial: Any,
    budget: int,
    history: Sequence[Operation],
    options: _Options,
) -> Verdict:
    if not history:
        message = f"{file} holds no operation that the model {model} judges; name another file"
        raise HistoryError(message)
    if model not in _OTHERS:
        return check_linearizable(model_named(model, initial), history, budget)
    checker, actions = _OTHERS[model]
    for operation in history:
        if operation.action not in actions:
            message = (
                f"the action {operation.action!r} is unknown to the model {model}; "
                f"use one of {', '.join(sorted(actions))}, or another model"
            )
            raise HistoryError(message)
    return checker(history, options)


def _first_sum(history: Sequence[Operation]) -> int:
    """The sum of the accounts when they were read first; 0 if they never were."""
    for operation in history:
        if operation.action == "read" and operation.result:
            result = operation.result
            balances = elements(result.values() if isinstance(result, dict) else result) or []
            if all(isinstance(balance, int) for balance in balances):
                return sum(balances)
    return 0


def _value(model: str, text: str) -> Any:
    if text == "nil":
        return None
    if model == "mutex" and text not in ("free", "held"):
        message = f"--init {text!r} is no state of a mutex; use free or held"
        raise HistoryError(message)
    try:
        return int(text)
    except ValueError:
        return text
