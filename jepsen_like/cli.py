"""raftstore-jepsen: judge recorded histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jepsen_like.checker.linearizable import check_linearizable
from jepsen_like.checker.models import model_named, model_names
from jepsen_like.checker.race import DEFAULT_BUDGET
from jepsen_like.checker.verdict import Validity
from jepsen_like.formats import read_any
from jepsen_like.history import HistoryError

_EXIT = {Validity.VALID: 0, Validity.INVALID: 7, Validity.UNDECIDED: 4}


@click.group()
def main() -> None:
    """Judge histories of clients."""


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", required=True, type=click.Choice(model_names()), help="The object.")
@click.option("--init", "initial", default="nil", help="Its first state; nil for none.")
@click.option("--budget", default=DEFAULT_BUDGET, type=click.IntRange(min=1), help="Steps per key.")
def check(file: Path, model: str, initial: str, budget: int) -> None:
    """Exit 0 when FILE is linearizable, 7 when not, 4 when undecided, 2 when malformed."""
    try:
        verdict = check_linearizable(model_named(model, _value(initial)), read_any(file), budget)
    except HistoryError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{verdict.validity.name.lower()}: {verdict.summary}")
    for operation in verdict.evidence:
        click.echo(
            f"  {operation.process} {operation.action} {operation.value!r} -> "
            f"{operation.result!r} [{operation.invoked}, {operation.returned}]"
        )
    raise SystemExit(_EXIT[verdict.validity])


def _value(text: str) -> Any:
    if text == "nil":
        return None
    try:
        return int(text)
    except ValueError:
        return text
