"""All faults by name, written over the methods of a target."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import Final

from jepsen_like.nemesis.fault import Fault, Heal
from jepsen_like.nemesis.members import MEMBER_FAULTS
from jepsen_like.target.base import FaultUnavailableError, Target
from raftstore.config import StorageSettings

CLIENTS: Final = "clients"
Links = list[tuple[str, str]]
Chooser = Callable[[Target, random.Random], tuple[str, ...]]
Cut = Callable[[Target, random.Random], Links]


# --- the nodes it hits ----------------------------------------------------------------------------


def _leader(target: Target, rng: random.Random) -> tuple[str, ...]:
    leaders = target.leaders()
    found = sorted(dict.fromkeys(leaders[channel] for channel in sorted(leaders)))
    return (rng.choice(found),) if found else (rng.choice(target.nodes),)


def _follower(target: Target, rng: random.Random) -> tuple[str, ...]:
    leading = target.leaders().values()
    idle = [node for node in target.nodes if node not in leading]
    return (rng.choice(idle or list(target.nodes)),)


def _anyone(target: Target, rng: random.Random) -> tuple[str, ...]:
    return (rng.choice(target.nodes),)


def _quorum(target: Target, rng: random.Random) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(target.nodes, len(target.nodes) // 2 + 1)))


def _everyone(target: Target, rng: random.Random) -> tuple[str, ...]:
    del rng
    return target.nodes


# --- how faults are made --------------------------------------------------------------------------


def _end_processes(choose: Chooser, how: str) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        nodes = choose(target, rng)
        getattr(target, how)(nodes)
        return lambda: target.start(nodes)

    return inject


def _pause(choose: Chooser) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        nodes = choose(target, rng)
        target.pause(nodes)
        return lambda: target.resume(nodes)

    return inject


def _partition(cut: Cut) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        target.block(cut(target, rng))
        return target.unblock

    return inject


def _weather(
    *,
    loss: float = 0.0,
    duplicate: float = 0.0,
    reorder: float = 0.0,
    delay_ms: tuple[float, float] = (0.0, 0.0),
    bytes_per_second: int = 0,
) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        del rng
        target.weather(
            loss=loss, duplicate=duplicate, reorder=reorder, delay_ms=delay_ms,
            bytes_per_second=bytes_per_second,
        )  # fmt: skip
        return target.weather

    return inject


def _disk(operation: str, *, sticky: bool) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        (node,) = _anyone(target, rng)
        target.fail_disk(node, operation=operation, sticky=sticky)

        def heal() -> None:
            try:
                target.mend_disk(node)
            finally:
                target.start((node,))

        return heal

    return inject


def _full_disk(target: Target, rng: random.Random) -> Heal:
    (node,) = _anyone(target, rng)
    target.fill_disk(node)
    # No start: a node that a full disk took out comes back by itself when space is back.
    return lambda: target.mend_disk(node)


def _crowded_disk(target: Target, rng: random.Random) -> Heal:
    (node,) = _anyone(target, rng)
    target.crowd_disk(node, int(rng.choice(LEFT_PARTS) * StorageSettings().min_free_bytes))
    return lambda: target.mend_disk(node)


def _hanging_disk(target: Target, rng: random.Random) -> Heal:
    (node,) = _leader(target, rng)
    target.hang_disk(node)

    def heal() -> None:
        try:
            target.mend_disk(node)
        finally:
            target.start((node,))  # it may have ended itself (S0.4)

    return heal


def _slow_disk(target: Target, rng: random.Random) -> Heal:
    (node,) = _anyone(target, rng)
    target.slow_disk(node, rng.uniform(100.0, 1_000.0))
    return lambda: target.slow_disk(node, 0.0)


def _damage(kind: str, files: Iterable[str]) -> Callable[[Target, random.Random], Heal]:
    choices = tuple(files)

    def inject(target: Target, rng: random.Random) -> Heal:
        # Always one node: with two damaged stores acknowledged data may rightly be gone (S0.3).
        node = target.nodes[0]
        target.damage(node, kind=kind, file=rng.choice(choices))
        return lambda: target.start((node,))

    return inject


def _wipe(target: Target, rng: random.Random) -> Heal:
    del rng
    node = target.nodes[0]
    target.wipe(node)
    return lambda: target.start((node,))


def _swap(target: Target, rng: random.Random) -> Heal:
    first, second = rng.sample(target.nodes, 2)
    target.swap_stores(first, second)
    target.start((first, second))

    def heal() -> None:
        target.swap_stores(first, second)
        target.start((first, second))

    return heal


def _clock(jump_ms: float, rate: float) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        (node,) = _anyone(target, rng)
        target.shift_clock(node, jump_ms=jump_ms, rate=rate)
        return lambda: target.shift_clock(node)

    return inject


def _strobe(target: Target, rng: random.Random) -> Heal:
    for node in target.nodes:
        target.shift_clock(node, jump_ms=rng.uniform(0.0, 400.0), rate=rng.uniform(0.7, 1.4))

    def heal() -> None:
        for node in target.nodes:
            target.shift_clock(node)

    return heal


def _reset(target: Target, rng: random.Random) -> Heal:
    target.reset_connections(rng.choice((None, *target.nodes)))
    return _nothing


def _step_down(target: Target, rng: random.Random) -> Heal:
    channels = sorted(target.leaders())
    if not channels:
        raise FaultUnavailableError("no channel has a leader that could step down")
    target.step_down(rng.choice(channels))
    return _nothing


def _restart_one(target: Target, rng: random.Random) -> Heal:
    (node,) = _anyone(target, rng)
    target.stop(node)
    return lambda: target.start((node,))


def _failpoint(target: Target, rng: random.Random) -> Heal:
    names = target.failpoints()
    if not names:
        raise FaultUnavailableError(f"target {target.name} has no failpoints")
    (node,) = _anyone(target, rng)
    target.crash_at(node, rng.choice(names))

    def heal() -> None:
        try:
            target.disarm(node)
        finally:
            target.start((node,))

    return heal


def _client(how: str) -> Callable[[Target, random.Random], Heal]:
    def inject(target: Target, rng: random.Random) -> Heal:
        client = rng.randrange(1_000)
        getattr(target, how)(client)
        return lambda: target.disarm_client(client)

    return inject


def _nothing() -> None:
    """Over at once."""


# --- shapes of partitions -------------------------------------------------------------------------


def _between(first: Collection[str], second: Collection[str]) -> Links:
    return [pair for a in first for b in second for pair in ((a, b), (b, a))]


def _around(choose: Chooser) -> Cut:
    def cut(target: Target, rng: random.Random) -> Links:
        inside = choose(target, rng)
        return _between(inside, [node for node in target.nodes if node not in inside])

    return cut


def _halves(target: Target, rng: random.Random) -> Links:
    shuffled = rng.sample(target.nodes, len(target.nodes))
    middle = len(shuffled) // 2
    return _between(shuffled[:middle], shuffled[middle:])


def _ring(target: Target, rng: random.Random) -> Links:
    """Everybody sees a majority, nobody the same; with three nodes one pair is cut."""
    ring = rng.sample(target.nodes, len(target.nodes))
    if len(ring) <= 3:
        return _between(ring[:1], ring[1:2])
    count = len(ring)
    reach = (count // 2 + 1) // 2  # with itself a majority
    near = {(a, (a + step) % count) for a in range(count) for step in range(-reach, reach + 1)}
    return [
        (ring[a], ring[b])
        for a in range(count)
        for b in range(count)
        if a != b and (a, b) not in near and (b, a) not in near
    ]


def _bridge(target: Target, rng: random.Random) -> Links:
    """Two halves that only one node sees both of."""
    _, *rest = rng.sample(target.nodes, len(target.nodes))
    middle = len(rest) // 2
    return _between(rest[:middle], rest[middle:])


def _one_way(*, inwards: bool) -> Cut:
    def cut(target: Target, rng: random.Random) -> Links:
        (node,) = _leader(target, rng) if rng.random() < 0.5 else _anyone(target, rng)
        others = [other for other in target.nodes if other != node]
        return [(other, node) if inwards else (node, other) for other in others]

    return cut


def _clients_only(target: Target, rng: random.Random) -> Links:
    (node,) = _leader(target, rng)
    return [(CLIENTS, node), (node, CLIENTS)]


def _half_open(target: Target, rng: random.Random) -> Links:
    """One side of one connection is deaf: it goes on sending."""
    first, second = rng.sample(target.nodes, 2)
    return [(first, second)]


HANGING: Final = (1_000.0, 6_000.0)
"""Less and more than the patience of a node with its disk (``storage.stall_handover_ms``)."""
LEFT_PARTS: Final = (0.6, 0.12, 0.0)
"""Of ``storage.min_free_bytes``: a node that takes no writes of clients, one that takes no records
at all, and one whose next write fails."""
CROWDED: Final = (2_500.0, 8_000.0)
"""Longer than a node looks away from its disk (``storage.free_check_ms``)."""
SHORT: Final = (150.0, 500.0)
LONG: Final = (500.0, 3_000.0)

_ALL: Final = (
    Fault("kill-leader", "SIGKILL of a leader", _end_processes(_leader, "kill")),
    Fault("kill-follower", "SIGKILL of a follower", _end_processes(_follower, "kill")),
    Fault("kill-quorum", "SIGKILL of a quorum at once", _end_processes(_quorum, "kill"), LONG,
          is_minority=False),
    Fault("kill-all", "SIGKILL of all nodes at once", _end_processes(_everyone, "kill"), LONG,
          is_minority=False),
    Fault("pause-leader", "SIGSTOP of a leader", _pause(_leader)),
    Fault("pause-follower", "SIGSTOP of a follower", _pause(_follower)),
    Fault("pause-short", "SIGSTOP of a leader, hardly noticed", _pause(_leader), SHORT),
    Fault("pause-all", "SIGSTOP of all nodes", _pause(_everyone), LONG, is_minority=False),
    Fault("isolate-leader", "a leader sees nobody", _partition(_around(_leader))),
    Fault("isolate-follower", "a follower sees nobody", _partition(_around(_follower))),
    Fault("partition-halves", "two groups that do not see each other", _partition(_halves)),
    Fault("partition-ring", "overlapping majorities", _partition(_ring)),
    Fault("partition-bridge", "one node sees both halves", _partition(_bridge)),
    Fault("one-way-in", "nothing reaches a node", _partition(_one_way(inwards=True))),
    Fault("one-way-out", "a node reaches no other", _partition(_one_way(inwards=False))),
    Fault("clients-cut", "clients cannot reach a leader", _partition(_clients_only)),
    Fault("flapping", "a leader comes and goes", _partition(_around(_leader)),
          repeats_ms=250.0),
    Fault("half-open", "a connection carries one way only", _partition(_half_open)),
    Fault("slow-link", "every message takes up to 250 ms", _weather(delay_ms=(20.0, 250.0))),
    Fault("narrow-link", "64 KiB a second", _weather(bytes_per_second=65_536)),
    Fault("loss", "three messages of ten are lost", _weather(loss=0.3)),
    Fault("duplicates", "every second message arrives twice", _weather(duplicate=0.5)),
    Fault("reorder", "late messages overtake", _weather(reorder=0.1)),
    Fault("reset", "RST on connections", _reset, SHORT),
    Fault("reset-storm", "RST on all connections again and again", _reset, repeats_ms=100.0,
          is_minority=False),
    Fault("clock-forward", "a clock jumps ten seconds ahead", _clock(10_000.0, 1.0)),
    Fault("clock-back", "a clock jumps ten seconds back", _clock(-10_000.0, 1.0)),
    Fault("clock-hour", "a clock jumps an hour ahead", _clock(3_600_000.0, 1.0)),
    Fault("clock-hour-back", "a clock jumps an hour back", _clock(-3_600_000.0, 1.0)),
    Fault("clock-slow", "a clock runs at half the rate", _clock(0.0, 0.5)),
    Fault("clock-fast", "a clock runs at twice the rate", _clock(0.0, 2.0)),
    Fault("clock-strobe", "all clocks jump and change their rates", _strobe, is_minority=False),
    Fault("sync-error", "one fsync fails with EIO", _disk("sync", sticky=False)),
    Fault("sync-error-sticky", "every fsync fails with EIO", _disk("sync", sticky=True)),
    Fault("write-error", "one write fails with EIO", _disk("write", sticky=False)),
    Fault("disk-full", "ENOSPC, then space is freed", _full_disk),
    Fault("disk-nearly-full", "another program takes most of a disk, or all of it, for a while",
          _crowded_disk, CROWDED, needs_root=True),
    Fault("disk-hang", "the disk of a leader finishes no fsync, without an error", _hanging_disk,
          HANGING),
    Fault("slow-disk", "each fsync takes up to a second longer", _slow_disk),
    Fault("power-loss-one", "one machine goes dark", _end_processes(_anyone, "power_loss")),
    Fault("power-loss-quorum", "a quorum goes dark", _end_processes(_quorum, "power_loss"), LONG,
          is_minority=False),
    Fault("power-loss-all", "all machines go dark", _end_processes(_everyone, "power_loss"), LONG,
          is_minority=False),
    Fault("torn-tail", "the end of a log is torn", _damage("torn", ("log",))),
    Fault("flip-log", "a bit of a log flips", _damage("flip", ("log",))),
    Fault("truncate-log", "a log is cut", _damage("truncate", ("log",))),
    Fault("flip-table", "a bit of a table file flips",
          _damage("flip", ("table", "wal", "manifest", "current"))),
    Fault("truncate-table", "a table file is cut",
          _damage("truncate", ("table", "wal", "manifest", "current"))),
    Fault("flip-mark", "a bit of the mark flips", _damage("flip", ("mark",))),
    Fault("flip-identity", "a bit of the identity flips", _damage("flip", ("identity",))),
    Fault("wipe", "a data directory is gone: refused until membership changes", _wipe),
    Fault("swap-stores", "two nodes have each other's store: both refuse", _swap, LONG,
          is_minority=False),
    Fault("rolling-restart", "a node is stopped and started", _restart_one, SHORT),
    Fault("step-down", "a leader hands over", _step_down, SHORT),
    Fault("crash-at-failpoint", "a node dies at a named place of the code", _failpoint),
    Fault("kill-client", "a client dies at work", _client("kill_client"), SHORT),
    Fault("publish-to-one", "a publisher dies when one replica has its payload",
          _client("publish_to_one")),
    Fault("publish-again", "an acknowledged write is sent again under its GUID",
          _client("publish_again"), SHORT),
    *MEMBER_FAULTS,
)  # fmt: skip

CATALOGUE: Final[dict[str, Fault]] = {fault.name: fault for fault in _ALL}
"""Name -> fault."""


def faults_named(names: Iterable[str]) -> list[Fault]:
    """These faults, ``all`` for every one; ValueError lists the known ones."""
    found: list[Fault] = []
    for name in names:
        if name == "all":
            found += CATALOGUE.values()
        elif name in CATALOGUE:
            found.append(CATALOGUE[name])
        else:
            raise ValueError(f"unknown nemesis {name!r}; known: all, {', '.join(CATALOGUE)}")
    return found
