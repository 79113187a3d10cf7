"""Pulled plugs: nodes lose power under load, and every acknowledged write must be there after.

All nodes at once, which costs nothing that was synced. Of a table that acknowledges before that
(``buffered``, ``memory``) the loss of all nodes may cost acknowledged writes, at all replicas alike
and for good; so one node at a time loses its power there, which must cost nothing, and all of them
now and then.

Real processes. With root each node has an ext4 file system of its own that is shut down without
flushing; elsewhere what a node wrote and did not sync is taken back from its files.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jepsen_like.equal_replicas import difference
from jepsen_like.plan import Progress
from jepsen_like.target.processes import power
from jepsen_like.target.processes.target import ProcessTarget
from raftstore.client.blocking.client import Client
from raftstore.errors import RaftstoreError, RequestError, UnknownTableError
from raftstore.types import Durability, Outcome

TABLE: Final = "pulled"
PARTITIONS: Final = 2
WRITERS: Final = 4
LOAD_S: Final = (0.3, 1.5)
"""How long the cluster is under load before the plug is pulled, and then while nodes are left."""
ALL_EVERY: Final = 4
"""Below ``fsync``: one pull in so many is of all nodes."""
CALL_TIMEOUT_S: Final = 1.0
BACK_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.1


@dataclass(slots=True)
class PowerLossFigures:
    """The results of the pulls."""

    pulls: int = 0
    acknowledged: int = 0
    in_doubt: int = 0
    """Writes whose outcome no client knows: both are right, until a scan has shown them."""
    lost: int = 0
    """Acknowledged, and not there."""
    given_up: int = 0
    """The same where the durability of the table allows it: all nodes lost their power."""
    made_up: int = 0
    """There, and never written, or with another value."""
    different: int = 0
    """Pulls after which the replicas did not become equal."""
    mechanism: str = ""
    back_s: list[float] = field(default_factory=list)
    """From the start of the nodes to a complete scan."""
    violations: list[str] = field(default_factory=list)

    @property
    def too_little(self) -> str:
        """Why it proves nothing; empty when it does."""
        return "" if self.acknowledged else "no write was acknowledged, so none could be lost"


def run_power_losses(
    count: int,
    seed: int,
    directory: Path,
    on_progress: Progress = lambda _line: None,
    *,
    with_disks: bool | None = None,
    durability: Durability = Durability.FSYNC,
) -> PowerLossFigures:
    """Pull the plug ``count`` times below ``directory``; nothing is left running.

    ``with_disks``: real file systems (root), or not; None: if this machine can. ``durability``: of
    the table that is written to.
    """
    reason = power.why_unavailable()
    use_disks = reason is None if with_disks is None else with_disks
    figures = PowerLossFigures(
        mechanism="ext4 shut down" if use_disks else "unsynced writes taken back from files"
    )
    if not use_disks and with_disks is None:
        on_progress(str(reason))
    rng = random.Random(f"{seed} pulls")
    with ProcessTarget(directory, seed=seed, with_power=use_disks) as target:
        with target.cluster.connect(timeout=BACK_TIMEOUT_S) as client:
            client.create_table(TABLE, key="k", partitions=PARTITIONS, durability=durability.label)
        written = _Written()
        for number in range(count):
            is_of_all = durability is Durability.FSYNC or number % ALL_EVERY == ALL_EVERY - 1
            victims = target.nodes if is_of_all else (rng.choice(target.nodes),)
            _load(target, written, victims, rng)
            began = time.monotonic()
            target.start(victims)
            may_lose = is_of_all and durability is not Durability.FSYNC
            at = f"seed {seed} pull {number} of {', '.join(victims)}"
            _judge(target, written, figures, at, may_lose=may_lose)
            figures.back_s.append(time.monotonic() - began)
            figures.pulls += 1
            on_progress(
                f"{figures.pulls} pulls, {len(written.sure):,} writes acknowledged, "
                f"{figures.lost} lost"
                + (f", {figures.given_up} with all nodes" if figures.given_up else "")
            )
        figures.acknowledged = len(written.sure)
        figures.in_doubt = len(written.in_doubt | written.seen)
    return figures


@dataclass(slots=True)
class _Written:
    """Keys are never used twice, and a key's value follows from it."""

    sure: set[int] = field(default_factory=set)
    in_doubt: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    """Never acknowledged, and found after a pull: these stay, too."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _value(number: int) -> str:
    return f"value {number} " + "x" * (number % 300)


def _load(
    target: ProcessTarget, written: _Written, victims: Sequence[str], rng: random.Random
) -> None:
    """Writers work until the plug is pulled, and behind that while nodes are left; what they asked
    for meanwhile is in doubt."""
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_write, args=(target, written, is_over)) for _ in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    try:
        is_over.wait(rng.uniform(*LOAD_S))
        target.power_loss(victims)
        if len(victims) < len(target.nodes):
            is_over.wait(rng.uniform(*LOAD_S))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _write(target: ProcessTarget, written: _Written, is_over: threading.Event) -> None:
    with target.cluster.connect(timeout=CALL_TIMEOUT_S) as client:
        while not is_over.is_set():
            with written.lock:
                number = next(written.numbers)
            outcome = _put(client, number)
            with written.lock:
                if outcome is Outcome.OK:
                    written.sure.add(number)
                elif outcome is Outcome.UNKNOWN:
                    written.in_doubt.add(number)


def _put(client: Client, number: int) -> Outcome:
    try:
        client.table(TABLE).put({"k": number, "v": _value(number)})
    except RequestError as error:
        return error.outcome
    except (RaftstoreError, OSError, TimeoutError):
        return Outcome.UNKNOWN
    return Outcome.OK


def _judge(
    target: ProcessTarget, written: _Written, figures: PowerLossFigures, at: str, *, may_lose: bool
) -> None:
    """Scan everything, and compare; then the replicas with each other. ``may_lose``: what is lost
    is given up, and must not come back."""
    with target.cluster.connect(timeout=BACK_TIMEOUT_S) as client:
        found = _scan(client)
        kept = written.sure | written.seen
        lost = kept - found.keys()
        odd = [
            number
            for number, value in found.items()
            if value != _value(number) or number not in kept | written.in_doubt
        ]
        if may_lose:
            figures.given_up += len(lost)
            written.sure -= lost
            written.seen -= lost
            lost = set()
        figures.lost += len(lost)
        figures.made_up += len(odd)
        if lost or odd:
            figures.violations.append(f"{at}: lost {sorted(lost)[:10]}, made up {odd[:10]}")
        # What was in doubt is decided now, and stays so.
        written.seen |= written.in_doubt & found.keys()
        written.in_doubt -= found.keys()
        differs = difference(client, TABLE, target.nodes, BACK_TIMEOUT_S)
        if differs:
            figures.different += 1
            figures.violations.append(f"{at}: {differs}")


def _scan(client: Client) -> dict[int, str]:
    """A node that has not caught up with the catalog yet may not know the table."""
    end = time.monotonic() + BACK_TIMEOUT_S
    while True:
        try:
            return {row["k"]: row["v"] for row in client.table(TABLE).scan(timeout=BACK_TIMEOUT_S)}
        except UnknownTableError:
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_S)
