"""``raftstore chaos campaign``: hours of proof that can be stopped and go on."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from jepsen_like.campaign.ledger import Entry, Ledger, LedgerError, save_sums
from jepsen_like.campaign.loop import run_campaign
from jepsen_like.campaign.parts import PARTS, Part, Settings
from jepsen_like.campaign.summary import markdown, replace_section

EXIT_VIOLATION: Final = 7
TELL_EVERY_S: Final = 5.0


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("chaos-campaign"),
    show_default=True,
    help="Where the ledger and failed runs are; go on there by naming it again.",
)
@click.option(
    "--hours", type=click.FloatRange(min=0.0), default=8.0, show_default=True, help="Stop after."
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([part.name for part in PARTS]),
    help="Only this part; may be repeated.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Worlds at once [default: one per core].")
@click.option(
    "--process-seconds",
    type=click.FloatRange(min=5.0),
    default=300.0,
    show_default=True,
    help="Length of the fault phase of a run on processes.",
)
@click.option(
    "--carried",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sums of what was done elsewhere: not done again, and among the figures.",
)
@click.option(
    "--sums",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Only write the sums of all into this file, for --carried.",
)
@click.option(
    "--write",
    "page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Only put the ledger's figures into this page, between its markers.",
)
def campaign(
    *,
    out: Path,
    hours: float,
    only: tuple[str, ...],
    jobs: int | None,
    process_seconds: float,
    carried: Path | None,
    sums: Path | None,
    page: Path | None,
) -> int:
    """Run worlds, runs on processes, power losses and damaged stores until the goals are reached.

    What ended is kept at once; stop it with Ctrl-C and start it again, it goes on from there. The
    sums of a ledger let it go on elsewhere. What could not take place here (a port was taken) is
    reported and not kept: it runs when the campaign is started again.

    Exit code 7 when anything was violated, now or earlier in this ledger.

    \b
    Example:
      raftstore chaos campaign --hours 2
      raftstore chaos campaign --hours 1 --only worlds --jobs 1
      raftstore chaos campaign --carried docs/campaign.jsonl --hours 2
      raftstore chaos campaign --carried docs/campaign.jsonl --sums docs/campaign.jsonl
      raftstore chaos campaign --carried docs/campaign.jsonl --write docs/campaign.md
    """  # noqa: D301 - click wants the character, not two
    try:
        ledger = Ledger(out, carried)
        if sums is not None:
            save_sums(sums, ledger.entries)
        if page is not None:
            _write(page, ledger)
        if sums is not None or page is not None:
            return 0
    except (LedgerError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    parts = [part for part in PARTS if not only or part.name in only]
    teller = _Teller(ledger)
    workers = jobs or os.cpu_count() or 1
    try:
        with ledger.claimed(), _stoppable():
            run_campaign(
                parts,
                ledger,
                Settings(out, process_seconds, workers),
                jobs=workers,
                until=time.monotonic() + hours * 3_600,
                tell=teller.tell,
            )
    except LedgerError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo(f"stopped; go on with: raftstore chaos campaign --out {out}", err=True)
    click.echo(_progress_of(ledger))
    failed = [entry for entry in ledger.entries if not entry.passed]
    for entry in failed:
        click.echo(f"VIOLATION {entry.part} {entry.key}: {entry.failure}\n  {entry.replay}")
    return EXIT_VIOLATION if failed else 0


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM stops it like Ctrl-C, and SIGINT does where a shell started it in the background."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Teller:
    """A line every few seconds, and at once for what failed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reported_at = 0.0

    def tell(self, part: Part, entry: Entry) -> None:
        """Say how it stands."""
        if entry.not_run:
            click.echo(f"not run: {part.name} {entry.key}: {entry.not_run}", err=True)
        elif not entry.passed:
            click.echo(f"VIOLATION {part.name} {entry.key}: {entry.failure}", err=True)
        now = time.monotonic()
        if now - self._reported_at >= TELL_EVERY_S or not part.is_parallel:
            self._reported_at = now
            click.echo(f"{_progress_of(self._ledger)}; last: {part.name} {entry.key}", err=True)


def _progress_of(ledger: Ledger) -> str:
    return ", ".join(f"{part.name} {ledger.count(part.name):,}/{part.goal:,}" for part in PARTS)


def _write(page: Path, ledger: Ledger) -> None:
    facts = (
        f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
    section = markdown(PARTS, ledger.entries, facts)
    page.write_text(replace_section(page.read_text(encoding="utf-8"), section), encoding="utf-8")
