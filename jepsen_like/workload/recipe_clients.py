"""Clients of the state machines that we ship, as ``simulate_machine`` takes them.

Few keys, so that clients meet; what they ask depends on what they were answered where a lock is
given back, or documents are changed as they were read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, Final

from raftstore.recipes.documents import Change, Look
from raftstore.recipes.election import Campaign, Resign
from raftstore.recipes.lock import Acquire, Release, Renew
from raftstore.recipes.rate_limiter import Take
from raftstore.testing import Command, Operation, Query

Client = Generator[Command | Query, Operation, None]


def additions(rng: random.Random) -> Command | Query:
    """Additions to three counters, and questions for them."""
    key = rng.choice("abc")
    return Command(key, rng.randint(1, 9)) if rng.random() < 0.7 else Query(key)


def locking(rng: random.Random, name: str) -> Client:
    """A client that takes one of two locks, holds it for a while, and gives it back or forgets."""
    while True:
        lock = rng.choice("xy")
        taken = yield Command(lock, Acquire(name, rng.choice((50, 300, 2_000))))
        if taken.outcome != "ok":
            yield Query(lock)
            continue
        if rng.random() < 0.3:
            yield Command(lock, Renew(name, taken.result.token, 500))
        if rng.random() < 0.6:
            yield Command(lock, Release(name, taken.result.token))


def campaigning(rng: random.Random, name: str) -> Client:
    """A candidate that stands, and resigns now and then, also late from what it led before."""
    led = [0]
    while True:
        stood = yield Command("jobs", Campaign(name, rng.choice((100, 1_000))))
        if stood.outcome == "ok" and stood.result.leader == name:
            led.append(stood.result.term)
        if rng.random() < 0.3:
            yield Command("jobs", Resign(name, rng.choice(led[-3:])))
        elif rng.random() < 0.2:
            yield Query("jobs")


def taking(rng: random.Random) -> Command | Query:
    """More permits than there are, and questions whether there are any."""
    wanted = Take(limit=5, window_ms=1_000, permits=rng.choice((1, 1, 3)))
    return Command("api", wanted) if rng.random() < 0.8 else Query("api", wanted)


def numbering(rng: random.Random) -> Command | Query:
    """Blocks of numbers."""
    return Command("n", rng.randint(1, 50)) if rng.random() < 0.8 else Query("n")


def changing(rng: random.Random, name: str) -> Client:
    """Read two documents and change both, if nobody did meanwhile."""
    del name
    while True:
        names = rng.sample(["a", "b", "c", "d"], 2)
        looked = yield Query("space", Look(names=names))
        if looked.outcome != "ok":
            continue
        versions = {n: looked.result[n].version if n in looked.result else 0 for n in names}
        yield Command("space", Change(versions, dict.fromkeys(names, rng.randrange(100))))


_RECIPES: Final = "raftstore.recipes."
RECIPE_CLIENTS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType({
    f"{_RECIPES}counter:Counter": additions,
    f"{_RECIPES}lock:Lock": locking,
    f"{_RECIPES}election:Election": campaigning,
    f"{_RECIPES}rate_limiter:RateLimiter": taking,
    f"{_RECIPES}id_blocks:IdBlocks": numbering,
    f"{_RECIPES}documents:Documents": changing,
})  # fmt: skip
"""Name of a machine in the catalog -> its clients."""
