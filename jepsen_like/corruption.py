"""A campaign of random damage to stores: every one must be noticed, or be without effect.

Each trial takes a copy of a store whose content is known (``corruption_model``), damages one file,
opens it as a node does at its start and compares everything it says with the model:

* refused: the store does not open; the node stops and says so;
* recovering: a channel knows that it lost what it had promised: no vote, no ack, no serving (S0.3);
* rebuilt: the tables were put aside and are filled again from the log;
* stopped: a read or a write raised, after which the node stops (S0.4);
* harmless: everything is there and equal.

Anything else is a violation: a wrong answer (a record, row, vote or identity unlike the model's) or
an undetected loss. No process and no cluster is needed: hundreds of trials a minute.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jepsen_like.corruption_model import (
    ChannelModel,
    StoreModel,
    apply_rest,
    attach,
    make_store,
    open_model_store,
    rows_of,
    settings_of,
)
from jepsen_like.plan import Progress
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.damage import KINDS, PATTERNS, damage_file
from raftstore.config import StorageSettings
from raftstore.errors import StorageError
from raftstore.protocol.records import Record
from raftstore.storage.store import Store
from raftstore.types import ChannelId, Seq

TRIALS_PER_STORE: Final = 20
OPENINGS: Final = 3
"""A store that stopped is opened again, as a supervisor would."""
PROGRESS_EVERY: Final = 100
OUTCOMES: Final = ("refused", "recovering", "rebuilt", "stopped", "harmless")


class ViolationError(Exception):
    """Damage led to a wrong answer, or was not noticed; the text says what."""


@dataclass(slots=True)
class CorruptionFigures:
    """The results of a campaign."""

    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """One of ``OUTCOMES`` each."""
    struck: Counter[str] = field(default_factory=Counter)
    """``kind of file`` -> how often."""
    violations: list[str] = field(default_factory=list)
    """Seed, trial, what was damaged and what was wrong: enough to run it again."""


def run_corruptions(
    count: int, seed: int, directory: Path, on_progress: Progress = lambda _line: None
) -> CorruptionFigures:
    """Run ``count`` trials below ``directory``; a violation is counted, never raised."""
    figures = CorruptionFigures()
    for number in range(count):
        try:
            did, outcome = run_corruption(seed, number, directory)
        except ViolationError as error:
            figures.violations.append(f"seed {seed} trial {number}: {error}")
            on_progress(figures.violations[-1])
        else:
            figures.outcomes[outcome] += 1
            figures.struck[did] += 1
        figures.trials += 1
        if figures.trials % PROGRESS_EVERY == 0:
            said = ", ".join(f"{figures.outcomes[name]} {name}" for name in OUTCOMES)
            on_progress(
                f"{figures.trials} corruptions: {said}, {len(figures.violations)} violations"
            )
    shutil.rmtree(directory / "store", ignore_errors=True)
    shutil.rmtree(directory / "trial", ignore_errors=True)
    return figures


def run_corruption(seed: int, number: int, directory: Path) -> tuple[str, str]:
    """One trial: return what was damaged (``kind file``) and its outcome; or ViolationError."""
    origin, model, settings = _origin(seed, number // TRIALS_PER_STORE, directory)
    rng = random.Random(f"{seed} corruption {number}")
    trial = directory / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(origin, trial)
    while True:
        kind, file = rng.choice(KINDS), rng.choice(tuple(PATTERNS))
        try:
            did = damage_file(trial, kind=kind, file=file, rng=rng)
        except FaultUnavailableError:
            continue  # This store has no such file.
        break
    try:
        return f"{kind} {file}", _outcome(trial, model, settings)
    except ViolationError as error:
        raise ViolationError(f"{did}: {error}") from error


_made: dict[Path, tuple[tuple[int, int], StoreModel, StorageSettings]] = {}
"""The store that is in a directory now: making one takes longer than damaging it."""


def _origin(seed: int, number: int, directory: Path) -> tuple[Path, StoreModel, StorageSettings]:
    origin = directory / "store"
    if directory not in _made or _made[directory][0] != (seed, number) or not origin.exists():
        shutil.rmtree(origin, ignore_errors=True)
        rng = random.Random(f"{seed} store {number}")
        settings = settings_of(rng)
        _made[directory] = ((seed, number), make_store(origin, rng, settings), settings)
    _, model, settings = _made[directory]
    return origin, model, settings


def _outcome(trial: Path, model: StoreModel, settings: StorageSettings) -> str:
    """Open, compare, go on as a node would; the worst that was noticed."""
    noticed = "harmless"
    for _ in range(OPENINGS):
        try:
            store = open_model_store(trial, settings)
        except StorageError:
            return "refused"
        try:
            found = _judge(store, model)
            return found if found != "harmless" else noticed
        except StorageError:
            noticed = "stopped"
        finally:
            store.close(is_clean=False)
    return noticed


def _judge(store: Store, model: StoreModel) -> str:
    """Raise ViolationError, or the StorageError a node would stop with."""
    identity = store.identity
    if (identity.store_uuid, identity.cluster_id) != (model.store_uuid, model.cluster_id):
        raise ViolationError("it opened as another store")
    if model.dropped is not None and not store.log.is_dropped(model.dropped):
        raise ViolationError("a dropped channel is back (S0.8)")
    is_recovering = [_judge_log(store, of, each) for of, each in model.channels.items()]
    is_rebuilt = store.tables.rebuilt_because is not None
    for (channel, of), is_short in zip(model.channels.items(), is_recovering, strict=True):
        _judge_rows(store, of, channel, is_short=is_short)
    if any(is_recovering):
        return "recovering"
    return "rebuilt" if is_rebuilt else "harmless"


def _judge_log(store: Store, channel: ChannelId, model: ChannelModel) -> bool:
    """Whether the channel is recovering; its records and its vote are right in any case."""
    if store.log.is_dropped(channel):
        raise ViolationError(f"channel {channel.hex()} is dropped, and never was")
    state = store.log.open_channel(channel)
    found = store.log.read(channel, Seq(1), to_seq=Seq(2**62), bytes_max=1 << 40)
    for record in found:
        if model.ever.get((record.term, record.base_seq)) != record:
            raise ViolationError(f"the record at seq {record.base_seq} was never written")
    heads = [(head.term, head.base_seq) for head in store.log.records(channel)]
    if heads != [(record.term, record.base_seq) for record in found]:
        raise ViolationError("the fields of records differ from the records")
    if (state.term, state.voted_for) != (model.term, model.voted_for):
        raise ViolationError(
            f"term and vote are {state.term} {state.voted_for}, "
            f"not {model.term} {model.voted_for} (S0.3)"
        )
    if state.shortfall is None and not _holds(found, model):
        raise ViolationError(f"channel {channel.hex()} lost records and does not know (S0.3)")
    return state.shortfall is not None


def _holds(found: list[Record], model: ChannelModel) -> bool:
    """Every record; a truncated one that is back again behind them was never promised gone."""
    return found[: len(model.records)] == model.records


def _judge_rows(store: Store, model: ChannelModel, channel: ChannelId, *, is_short: bool) -> None:
    """The applied rows are those of the log, and so are the rows once the rest of it is applied."""
    applied = attach(store, channel)
    if applied not in model.rows or rows_of(store, channel) != model.rows[applied]:
        raise ViolationError(f"the rows at applied seq {applied} are not those of the log (S10)")
    if is_short:
        return
    apply_rest(store, channel, model)
    if rows_of(store, channel) != model.rows[model.applied]:
        raise ViolationError("the rows after applying the rest of the log are wrong (S10)")
