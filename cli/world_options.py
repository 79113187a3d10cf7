"""Options of the commands that run simulated worlds: which seeds, and what is changed in them."""

from __future__ import annotations

import click

from raftstore.testing.options import parse_change, parse_seeds


def seeds_of(seed: int | None, seeds: str | None) -> list[int]:
    """Return the seeds of ``--seed N`` or ``--seeds A..B``, of which exactly one is given."""
    if (seed is None) == (seeds is None):
        raise click.UsageError("give --seed N or --seeds A..B")
    if seed is not None:
        return [seed]
    try:
        return parse_seeds(seeds or "")
    except ValueError as error:
        raise click.UsageError(f"--seeds {error}") from error


def change_of(change: str) -> tuple[str, str]:
    """Return name and value of one ``--set NAME=VALUE``."""
    try:
        return parse_change(change)
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from error
