"""Every choice of one simulated world, drawn from its seed ("swarm testing").

A seed and its options are printed before the world starts; the same pair replays it exactly.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Final, get_type_hints

from msgspec import Meta

from raftstore.config import REPLICAS_MAX
from raftstore.types import DURABILITIES, Durability

VALUE_BYTES: Final = 20
SAFETY_PHASE_MS_MAX: Final = 120_000
"""A world ends its fault phase after this time, whatever it has not done by then."""

Percent = Annotated[float, Meta(ge=0, le=100)]
WholePercent = Annotated[int, Meta(ge=0, le=100)]
Clients = Annotated[int, Meta(ge=0, le=64)]


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One world. Times are virtual milliseconds.

    With a value in its range, and the others as they are drawn, a healthy cluster keeps its
    promises within the times of the oracle, and the world ends within minutes (``check_options``).
    """

    seed: int
    nodes: Annotated[int, Meta(ge=3, le=32)] = 3
    replicas: Annotated[int, Meta(ge=3, le=REPLICAS_MAX)] = 3
    """Of each partition; at most ``nodes``."""
    partitions: Annotated[int, Meta(ge=1, le=128)] = 2
    keys: Annotated[int, Meta(ge=1, le=1_000_000)] = 24
    """Distinct keys; few, so that writes meet."""
    writers: Clients = 4
    readers: Clients = 3
    operations: Annotated[int, Meta(ge=0, le=1_000_000)] = 600
    """Client operations started before the world may end its fault phase."""
    rows_per_write_max: Annotated[int, Meta(ge=1, le=1_000)] = 5
    conditional_percent: WholePercent = 15
    duplicate_percent: Annotated[int, Meta(ge=0, le=90)] = 5
    """Writes sent again under the same GUID although they were answered."""
    fault_phase_ms: Annotated[int, Meta(ge=0, le=SAFETY_PHASE_MS_MAX)] = 14_000
    fault_interval_ms: Annotated[int, Meta(ge=50, le=10_000)] = 500
    """Mean time between faults."""
    faults: Annotated[int, Meta(ge=0, le=10_000)] = 10
    """At least this many faults are injected before healing."""
    delay_min_ms: Annotated[float, Meta(ge=0, le=20)] = 0.2
    delay_max_ms: Annotated[float, Meta(ge=0, le=300)] = 4.0
    loss_percent: Annotated[float, Meta(ge=0, le=40)] = 0.0
    duplicate_message_percent: Percent = 0.0
    late_percent: Annotated[float, Meta(ge=0, le=25)] = 0.0
    """Messages that arrive up to three seconds late."""
    sync_min_ms: Annotated[float, Meta(ge=0, le=100)] = 0.3
    sync_max_ms: Annotated[float, Meta(ge=0, le=300)] = 3.0
    slow_disk: bool = False
    write_error_percent: Percent = 0.0
    """Chance per fault that it is a disk write error on a random node."""
    damage_percent: Percent = 0.0
    """Chance per fault that one certain node crashes and loses durable records (S0.3)."""
    hang_percent: Percent = 0.0
    """Chance per fault that a disk hangs (S0.4): its syncs complete up to eight seconds later, or
    its node ends before."""
    flip_percent: Percent = 0.0
    """Chance per fault that a random node crashes and finds a record of its log damaged that
    another node holds (S0.3). Not together with ``damage_percent``: what one node lacks another may
    lose then, and a channel without an intact copy of a record rightly stands still."""
    flip_newest: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Only so many of the newest records of a channel are damaged: those that logs may differ in;
    0: any."""
    apply_max_ms: Annotated[float, Meta(ge=0, le=1_000)] = 4.0
    turn_max_ms: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """What arrives at a node within up to this time is one turn, as on a busy real node; 0: each
    call is one by itself."""
    clock_rate_spread: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    """Clocks run at a rate within 1 +- this."""
    encode_messages: bool = False
    """Pass every message through the wire codec."""
    evict_percent: WholePercent = 5
    """Chance per timer turn that an idle pysyncobj instance is evicted."""
    payload_loss_percent: Percent = 0.0
    """Chance that a publisher's payload misses one replica."""
    many_bounds: bool = False
    """Micro-batches are written, and bounded reads name time and micro-batches besides rows."""

    rolling_upgrades: bool = False
    """The cluster begins as an older version and rolls up and down between levels."""
    many_gets_percent: Percent = 25.0
    """Reads that ask one node for keys of all partitions in one request."""

    retention: bool = False
    """Logs are trimmed, to far less than the clients write in a world."""

    scrub: bool = False
    """Nodes read back all that they stored, and heal what they find."""

    live_flip_percent: Percent = 0.0
    """Chance per fault that a bit flips in a file of a node that runs: of a record or a row that
    another node has intact, or of one node's mark. With ``scrub``; not together with
    ``damage_percent``, as ``flip_percent``."""
    full_disk_percent: Percent = 0.0
    """Chance per fault that a disk fills up for seconds: its node has the space of some records
    above its marks left, and none of its writes may fail for that (GAP-13)."""
    value_bytes: Annotated[int, Meta(ge=0, le=100_000)] = VALUE_BYTES
    """Size of the values that clients write."""
    failpoint_percent: Percent = 0.0
    """Chance per fault that a node dies where it passes one of the named places next."""

    ttl_percent: Percent = 0.0
    """Chance per write that its rows live for moments only; then one node's clock is set wrong
    from time to time, too."""

    durability: str = "fsync"
    """Of the table. Below ``fsync`` processes are killed and machines lose their power, one, some
    or all at once, and the oracle knows what may be lost by that (S0.6)."""

    jobs: Annotated[int, Meta(ge=0, le=32)] = 0
    """Writers of atomic micro-batches over all partitions."""

    even_leaders: bool = False
    """Leaderships are moved so that every node leads its share, and are even after the healing."""

    member_changes: bool = False
    """Nodes join, leave and are replaced, and replicas move, all along (S8)."""

    member_witnesses: bool = False
    """Where members change, some of the voters that come are witnesses (W1 to W7)."""

    def as_dict(self) -> dict[str, Any]:
        """All options by name."""
        return asdict(self)


def draw_options(seed: int) -> SimOptions:
    """Draw a world from its seed; same seed, same options, on every machine."""
    return _with_member_changes(_below_fsync(_with_full_disks(draw_surroundings(seed))))


def draw_surroundings(seed: int) -> SimOptions:
    """The same for worlds whose faults and tables come from elsewhere: tables at ``fsync``, and
    disks with space."""
    rng = random.Random(f"options {seed}")
    drawn = replace(_drawn(seed, rng), retention=_trims(seed), ttl_percent=_ttl_percent(seed))
    return _with_healing(drawn)


def _drawn(seed: int, rng: random.Random) -> SimOptions:
    slow = rng.random() < 0.25
    lossy = rng.random() < 0.5
    return SimOptions(
        seed=seed,
        partitions=rng.choice((1, 2, 2, 3)),
        keys=rng.choice((4, 12, 24)),
        writers=rng.choice((2, 4, 6)),
        readers=rng.choice((2, 3)),
        rows_per_write_max=rng.choice((1, 3, 8)),
        conditional_percent=rng.choice((0, 15, 40)),
        duplicate_percent=rng.choice((0, 5, 20)),
        fault_interval_ms=rng.choice((300, 500, 900)),
        delay_max_ms=rng.choice((2.0, 4.0, 30.0)),
        loss_percent=rng.choice((0.5, 5.0, 20.0)) if lossy else 0.0,
        duplicate_message_percent=rng.choice((0.0, 5.0, 30.0)),
        late_percent=rng.choice((0.0, 1.0, 2.0)),
        sync_min_ms=2.0 if slow else 0.3,
        sync_max_ms=rng.choice((60.0, 150.0)) if slow else rng.choice((1.0, 6.0)),
        slow_disk=slow,
        write_error_percent=rng.choice((0.0, 5.0)),
        apply_max_ms=rng.choice((1.0, 20.0)),
        clock_rate_spread=rng.choice((0.0, 0.02, 0.1)),
        encode_messages=rng.random() < 0.2,
        evict_percent=rng.choice((0, 5, 30)),
        payload_loss_percent=rng.choice((0.0, 2.0, 10.0)),
        damage_percent=rng.choice((0.0, 0.0, 8.0)),
        hang_percent=_hang_percent(seed),
        turn_max_ms=_turn_max_ms(seed),
        rolling_upgrades=_rolls(seed),
        many_gets_percent=random.Random(f"many gets {seed}").choice((10.0, 25.0, 60.0)),
    )


FULL_VALUE_BYTES = 2_000
"""Of values in worlds whose disks fill up: a disk with space for some seconds is full in them."""
PINNED_SEEDS_MAX = 30
"""Worlds up to this seed are named by tests and mutations for what happens in them."""


def _hang_percent(seed: int) -> float:
    """From a generator of its own: the other options of a seed stay what they were."""
    if seed <= PINNED_SEEDS_MAX:
        return 0.0
    return random.Random(f"hangs {seed}").choice((0.0, 0.0, 0.0, 8.0))


def _turn_max_ms(seed: int) -> float:
    """From a generator of its own likewise."""
    if seed <= PINNED_SEEDS_MAX:
        return 0.0
    return random.Random(f"turns {seed}").choice((0.0, 0.5, 3.0))


def _rolls(seed: int) -> bool:
    """From a generator of its own likewise."""
    return seed > PINNED_SEEDS_MAX and random.Random(f"upgrades {seed}").random() < 0.2


def _trims(seed: int) -> bool:
    """From a generator of its own likewise."""
    return seed > PINNED_SEEDS_MAX and random.Random(f"retention {seed}").random() < 0.3


def _ttl_percent(seed: int) -> float:
    """From a generator of its own likewise."""
    if seed <= PINNED_SEEDS_MAX:
        return 0.0
    return random.Random(f"ttl {seed}").choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 40.0))


def _with_healing(drawn: SimOptions) -> SimOptions:
    """Bits that flip under running nodes and deaths in the middle of copies, mostly with trimmed
    logs and staged rows, from a generator of its own likewise."""
    rng = random.Random(f"healing {drawn.seed}")
    if drawn.seed <= PINNED_SEEDS_MAX or rng.random() >= 0.2:
        return drawn
    flips = rng.choice((0.0, 10.0, 30.0))
    return replace(
        drawn,
        scrub=True,
        retention=rng.random() < 0.75,
        live_flip_percent=flips,
        damage_percent=0.0 if flips else drawn.damage_percent,
        failpoint_percent=rng.choice((0.0, 10.0, 30.0)),
        jobs=rng.choice((0, 1)),
    )


def _with_full_disks(drawn: SimOptions) -> SimOptions:
    """Disks that fill up, and values of a size that is noticed there, likewise."""
    rng = random.Random(f"full disks {drawn.seed}")
    if drawn.seed <= PINNED_SEEDS_MAX or rng.random() >= 0.1:
        return drawn
    return replace(drawn, full_disk_percent=rng.choice((10.0, 25.0)), value_bytes=FULL_VALUE_BYTES)


def _below_fsync(drawn: SimOptions) -> SimOptions:
    """A table below ``fsync``, likewise.

    Without what takes more than such a table may lose: damage to what was synced takes a copy that
    the oracle counts on, and a disk that hangs ends nodes in a way that it does not know. Nodes of
    an older version know of no such table.
    """
    rng = random.Random(f"durability {drawn.seed}")
    if drawn.seed <= PINNED_SEEDS_MAX or drawn.rolling_upgrades or rng.random() >= 0.12:
        return drawn
    return replace(
        drawn,
        durability=rng.choice(("buffered", "memory")),
        # Stops of some and all nodes come beside the other faults: in between clients have to work.
        fault_interval_ms=3_000 if drawn.slow_disk or drawn.loss_percent > 5 else 1_500,
        damage_percent=0.0,
        flip_percent=0.0,
        live_flip_percent=0.0,
        hang_percent=0.0,
        # Together with those stops little is written: both are tried, each with its own worlds.
        full_disk_percent=0.0,
        value_bytes=VALUE_BYTES,
    )


MEMBERS_FROM: Final = 51
"""Worlds before this seed have the members that they began with: mutations name them."""
WITNESSES_FROM: Final = 401
"""Worlds before this seed have voters with rows alone, likewise."""


def _with_member_changes(drawn: SimOptions) -> SimOptions:
    """Members that change, likewise."""
    rng = random.Random(f"member changes {drawn.seed}")
    is_fit = drawn == _fit_for_members(drawn)
    if drawn.seed < MEMBERS_FROM or not is_fit or rng.random() >= 0.25:
        return drawn
    deaths = max(drawn.failpoint_percent, rng.choice((0.0, 10.0, 30.0)))
    witnesses = drawn.seed >= WITNESSES_FROM and random.Random(f"roles {drawn.seed}").random() < 0.5
    return replace(drawn, member_changes=True, failpoint_percent=deaths, member_witnesses=witnesses)


def _fit_for_members(drawn: SimOptions) -> SimOptions:
    """The same world without what takes copies that the oracle counts on: it reckons with a record
    on every node, of which some host no replica."""
    return replace(
        drawn,
        durability=Durability.FSYNC.label,
        flip_percent=0.0,
        live_flip_percent=0.0,
    )


SEEDS_MAX: Final = 1_000_000
"""Worlds of one range: some days of work for any machine."""


def parse_seeds(text: str) -> list[int]:
    """``1..200`` -> every seed of the range; ValueError says how a range is written."""
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        message = f"{text!r} is no range; write A..B, as in 1..200"
        raise ValueError(message)
    if int(last) - int(first) >= SEEDS_MAX:
        message = f"{text!r} is more than {SEEDS_MAX} seeds; give a shorter range"
        raise ValueError(message)
    return list(range(int(first), int(last) + 1))


def parse_change(text: str) -> tuple[str, str]:
    """``nodes=5`` -> the pair; ValueError says how a change is written."""
    name, equals, value = text.partition("=")
    if not equals:
        message = f"{text!r} is no option; write name=value, as in nodes=5"
        raise ValueError(message)
    return name, value


def own_options(seed: int, changes: dict[str, str]) -> SimOptions:
    """The world of a seed in which only its own clients work; ValueError as of ``override``, or
    where there would be none of them."""
    options = override(draw_options(seed), changes)
    for name in ("writers", "readers", "operations"):
        if not getattr(options, name):
            raise ValueError(f"{_given(options, name)} proves nothing; {_allowed(name, least=1)}")
    return options


def override(options: SimOptions, changes: dict[str, str]) -> SimOptions:
    """Apply ``name=value`` changes given as text.

    ValueError for a name that is unknown, with the known ones, and for a value that no world can
    have, with those that it may have.
    """
    values: dict[str, Any] = {}
    for name, text in changes.items():
        check_name(name)
        if name == "seed":
            raise ValueError(f"simulation option seed={text!r} is the world's; give --seed {text}")
        values[name] = _parsed(name, text, type(getattr(options, name)))
    changed = replace(options, **values)
    if changed.member_changes:
        changed = replace(_fit_for_members(changed), **values)
    # S0.6: below fsync damage and disks that hang take more than the oracle could allow for.
    if values.get("damage_percent") or values.get("hang_percent"):
        changed = replace(changed, durability=values.get("durability", Durability.FSYNC.label))
    check_options(changed)
    return changed


def check_options(options: SimOptions) -> None:
    """ValueError names an option whose value no world can have, and those that it may have."""
    for name, meta in _ranges().items():
        # Written so that a NaN is in no range.
        if not meta.ge <= getattr(options, name) <= meta.le:
            raise ValueError(f"{_given(options, name)} is out of range; {_allowed(name)}")
    for kind in ("delay", "sync"):
        least, most = (f"{kind}_{end}_ms" for end in ("min", "max"))
        if getattr(options, least) > getattr(options, most):
            raise ValueError(
                f"{_given(options, least)} is above {most}={getattr(options, most)}; give both, "
                "the first at most as large as the second"
            )
    if options.durability not in DURABILITIES:
        known = ", ".join(DURABILITIES)
        raise ValueError(f"{_given(options, 'durability')} is none; give one of {known}")
    if options.live_flip_percent and not options.scrub:
        raise ValueError(
            f"{_given(options, 'live_flip_percent')} needs scrub=yes: what is flipped under a node "
            "that runs is found by reading it back"
        )


def _given(options: SimOptions, name: str) -> str:
    return f"simulation option {name}={getattr(options, name)}"


def _allowed(name: str, *, least: int | None = None) -> str:
    meta = _ranges()[name]
    return f"allowed are {meta.ge if least is None else least} to {meta.le}"


@cache
def _ranges() -> dict[str, Any]:
    """The range of each option that has one, as it stands beside the option."""
    hints = get_type_hints(SimOptions, include_extras=True)
    return {
        name: meta
        for name, hint in hints.items()
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, Meta)
    }


def check_name(name: str) -> None:
    """ValueError with the known options when there is none of this name."""
    known = [field.name for field in fields(SimOptions)]
    if name not in known:
        message = f"unknown simulation option {name!r}; known: {', '.join(sorted(known))}"
        raise ValueError(message)


def is_drawn(options: SimOptions, name: str) -> bool:
    """Whether this world's option is another than the default: a switch that is on, a fault that
    may strike. ValueError as of ``check_name``."""
    check_name(name)
    return bool(getattr(options, name) != getattr(SimOptions(seed=options.seed), name))


def _parsed(name: str, text: str, kind: type) -> object:
    """The text as a value of the option's type; ValueError names the option."""
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            message = f"simulation option {name}={text!r} is neither true nor false"
            raise ValueError(message)
        return _BOOLEANS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        message = f"simulation option {name}={text!r} is no {kind.__name__}"
        raise ValueError(message) from None


_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
