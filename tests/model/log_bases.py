"""A model of a log of segments with bases and a floor: one node, power cuts, one damaged entry.

Entries are written in order and synced together; a power cut leaves some prefix of those that were
not synced, the next one perhaps torn, and brings back some of the files whose removal was not
synced. A base entry has the base of its channel and the end of its log; one that replaces the log
is written twice, for without it the next record may seem to continue what was replaced. The floor
goes up in three steps: the mark, the removal of files, the sync of their directory.

After each power cut the start must find exactly what was written up to there, and whole; after
damage each channel is that, or recovering. ``FAULTS`` are rules taken out, each of which must show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, combinations
from typing import Final, NamedTuple

History = tuple[int, int]
"""(term, seq)."""
NONE: Final[History] = (0, 0)
DAMAGED: Final = ""
CHANNELS: Final = ("a", "b")
FAULTS: Final = {
    "floor before base": "the floor goes up while base entries are not synced",
    "unlink before mark": "files are removed before the mark tells the floor",
    "base not held": "a promise at or below the base counts as broken",
    "record below floor": "only the newest base entry of a channel holds the floor back",
    "torn base": "a torn base entry is believed",
    "front not settled": "records that meet no base entry count as a whole log",
    "end not told": "a base entry does not say where the log ended",
    "replaced once": "a base that replaces a log is written once",
}


class Entry(NamedTuple):
    """A record, or a base entry."""

    channel: str
    at: History
    """Of the record, or of the base."""
    is_base: bool = False
    end: History = NONE
    replaces: bool = False


class Log(NamedTuple):
    """One channel: its base and the records behind it."""

    base: History = NONE
    records: tuple[History, ...] = ()

    @property
    def end(self) -> History:
        return self.records[-1] if self.records else self.base


Logs = tuple[Log, ...]
"""By number of the channel."""


class World(NamedTuple):
    """The files, how much of them is on the disk, and the logs that a start has to find."""

    segments: tuple[tuple[int, tuple[Entry, ...]], ...] = ((1, ()),)
    removed: tuple[tuple[int, tuple[Entry, ...]], ...] = ()
    """Files whose removal is not synced."""
    truths: tuple[Logs, ...] = ((Log(), Log()),)
    """After all synced entries, then after each one that is not."""
    mark: tuple[History, ...] = (NONE, NONE)
    floor: int = 1
    raising: tuple[int, int] = (0, 0)
    """(steps that are done, the floor that is wanted)."""
    moves: int = 0
    cuts: int = 0


class Broken(Exception):
    """A start that found something else."""


class Model:
    """Moves of the world, and what a start makes of its files."""

    def __init__(self, fault: str = "", *, moves_max: int = 6, cuts_max: int = 1) -> None:
        self._fault = fault
        self._moves_max, self._cuts_max = moves_max, cuts_max

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Every step from here. Raises Broken after a power cut that the log does not survive."""
        if world.cuts < self._cuts_max:
            yield from self._power_cuts(world)
        if world.moves < self._moves_max:
            for name, after in chain(self._writes(world), self._floor_steps(world)):
                yield name, after._replace(moves=world.moves + 1)

    # --- writing ----------------------------------------------------------------------------------

    def _writes(self, world: World) -> Iterator[tuple[str, World]]:
        logs = world.truths[-1]
        for number, channel in enumerate(CHANNELS):
            log = logs[number]
            term, seq = log.end
            if seq < 3 and (number == 0 or seq == 0):
                record = Entry(channel, (max(term, 1), seq + 1))
                yield f"append {channel}", self._write(world, record)
            for at in log.records if number == 0 else (log.base, *log.records):
                if at != NONE:
                    end = NONE if self._fault == "end not told" else log.end
                    entry = Entry(channel, at, is_base=True, end=end)
                    yield f"rebase {channel} {at}", self._write(world, entry)
        if logs[0].end[0] == 1:
            base = (2, max(logs[0].base[1] + 1, 2))
            entry = Entry("a", base, is_base=True, end=base, replaces=True)
            after = self._write(world, entry)
            if self._fault != "replaced once":
                after = self._write(after, entry._replace(replaces=False))
            yield f"replace a {base}", after
            yield f"replace and sync a {base}", _synced(after, marks_now=True)
        if len(world.truths) > 1:
            yield "sync", _synced(world)
        elif world.mark != _ends(logs):
            yield "mark", world._replace(mark=_ends(logs))
        if world.segments[-1][1]:
            new = (world.segments[-1][0] + 1, ())
            yield "roll", _synced(world)._replace(segments=(*world.segments, new))

    def _write(self, world: World, entry: Entry) -> World:
        number, entries = world.segments[-1]
        logs = _applied(world.truths[-1], entry)
        segments = (*world.segments[:-1], (number, (*entries, entry)))
        return world._replace(segments=segments, truths=(*world.truths, logs))

    # --- the floor --------------------------------------------------------------------------------

    def _floor_steps(self, world: World) -> Iterator[tuple[str, World]]:
        done, wanted = world.raising
        if done == 0:
            is_ready = len(world.truths) == 1 or self._fault == "floor before base"
            wanted = self._live_from(world)
            if is_ready and wanted > world.floor:
                yield from self._floor_step(world._replace(raising=(1, wanted)))
        elif done == 1:
            yield from self._floor_step(world._replace(raising=(2, wanted)))
        else:
            yield "sync directory", world._replace(removed=(), raising=(0, 0))

    def _floor_step(self, world: World) -> Iterator[tuple[str, World]]:
        done, wanted = world.raising
        if (done == 1) != (self._fault == "unlink before mark"):
            mark = _ends(world.truths[0])
            yield f"floor {wanted}", world._replace(floor=wanted, mark=mark)
            return
        removed = tuple(segment for segment in world.segments if segment[0] < wanted)
        segments = tuple(segment for segment in world.segments if segment[0] >= wanted)
        yield f"unlink {wanted}", world._replace(segments=segments, removed=removed)

    def _live_from(self, world: World) -> int:
        """The oldest segment that the newest base entries and the records behind them are in."""
        bases: dict[str, int] = {}
        places: dict[tuple[str, History], int] = {}
        for number, entries in world.segments:
            for entry in entries:
                if entry.is_base:
                    bases[entry.channel] = number
                else:
                    places[entry.channel, entry.at] = number
        needed = [world.segments[-1][0], *bases.values()]
        for channel, log in zip(CHANNELS, world.truths[-1], strict=True):
            if self._fault != "record below floor" or channel not in bases:
                needed.extend(places[channel, at] for at in log.records)
        return min(needed)

    # --- power cuts -------------------------------------------------------------------------------

    def _power_cuts(self, world: World) -> Iterator[tuple[str, World]]:
        unsynced = len(world.truths) - 1
        back = chain.from_iterable(
            combinations(world.removed, size) for size in range(len(world.removed) + 1)
        )
        for files in back:
            for kept in range(unsynced + 1):
                segments, torn = _cut(world.segments, unsynced - kept)
                after = world._replace(
                    segments=(*files, *segments),
                    removed=(),
                    truths=world.truths[kept : kept + 1],
                    raising=(0, 0),
                    cuts=world.cuts + 1,
                )
                name = f"power cut: {kept} of {unsynced} entries, {len(files)} files are back"
                yield name, self._start(after, torn)
        if unsynced == 0 and world.mark == _ends(world.truths[0]):
            for number, (_, entries) in enumerate(world.segments):
                for at in range(len(entries)):
                    self._check_damaged(world, number, at)

    def _start(self, world: World, torn: Entry | None) -> World:
        if world.floor not in (number for number, _ in world.segments):
            raise Broken(f"segment {world.floor} is missing")
        found = self.found(world, torn)
        for channel, whole, log in zip(CHANNELS, world.truths[0], found, strict=True):
            if log != whole:
                raise Broken(f"channel {channel} came back as {log}, it held {whole}")
        segments = tuple(segment for segment in world.segments if segment[0] >= world.floor)
        return world._replace(segments=segments, mark=_ends(world.truths[0]))

    def _check_damaged(self, world: World, number: int, at: int) -> None:
        name, entries = world.segments[number]
        damaged = (*entries[:at], Entry(DAMAGED, NONE), *entries[at + 1 :])
        segments = (*world.segments[:number], (name, damaged), *world.segments[number + 1 :])
        found = self.found(world._replace(segments=segments), None)
        for channel, whole, log in zip(CHANNELS, world.truths[0], found, strict=True):
            if log is not None and not _is_as_good(log, whole):
                lost = entries[at]
                raise Broken(f"without {lost} channel {channel} is {log}, it held {whole}")

    def found(self, world: World, torn: Entry | None) -> list[Log | None]:
        """The logs as a start reads them from the files; None: the channel is recovering."""
        read = [
            entry
            for number, entries in sorted(world.segments)
            if number >= world.floor
            for entry in entries
        ]
        if torn is not None and torn.is_base and self._fault == "torn base":
            read.append(torn)
        return [self._channel(read, channel, world) for channel in CHANNELS]

    def _channel(self, read: list[Entry], channel: str, world: World) -> Log | None:
        base, held = NONE, {NONE}
        records: dict[int, int] = {}
        told = 0
        for entry in read:
            if entry.channel != channel:
                continue
            if not entry.is_base:
                term, seq = entry.at
                records = {s: t for s, t in records.items() if s < seq} | {seq: term}
                held.add(entry.at)
                continue
            if entry.replaces:
                held, records = {NONE}, {}
            base, (term, told) = entry.at, entry.end
            held |= {base, entry.end} if self._fault != "base not held" else set()
            if self._fault != "end not told":
                records = {s: t for s, t in records.items() if (s, t) == (told, term) or s < told}
            records = {s: t for s, t in records.items() if s > base[1]}
        seqs = sorted(records)
        if self._fault == "front not settled" and base == NONE and seqs and world.floor > 1:
            base = (records[seqs[0]], seqs[0] - 1)
        is_whole = seqs == list(range(base[1] + 1, max([base[1], told, *seqs]) + 1))
        promise = world.mark[CHANNELS.index(channel)]
        is_kept = promise in held or (promise <= base and self._fault != "base not held")
        if not (is_whole and is_kept):
            return None
        return Log(base, tuple((records[seq], seq) for seq in seqs))


def _ends(logs: Logs) -> tuple[History, ...]:
    return tuple(log.end for log in logs)


def _is_as_good(log: Log, whole: Log) -> bool:
    """Whether it is the same log; with an older base it may hold more of it."""
    records = tuple(at for at in log.records if at[1] > whole.base[1])
    holds_base = whole.base in (log.base, *log.records)
    return holds_base and log.end == whole.end and records == whole.records


def _synced(world: World, *, marks_now: bool = False) -> World:
    """The mark lags one sync behind, but for what is urgent."""
    mark = _ends(world.truths[-1 if marks_now else 0])
    return world._replace(truths=world.truths[-1:], mark=mark)


def _applied(logs: Logs, entry: Entry) -> Logs:
    number = CHANNELS.index(entry.channel)
    log = logs[number]
    if not entry.is_base:
        log = log._replace(records=(*log.records, entry.at))
    elif entry.replaces:
        log = Log(entry.at)
    else:
        log = Log(entry.at, tuple(at for at in log.records if at[1] > entry.at[1]))
    return (*logs[:number], log, *logs[number + 1 :])


def _cut(
    segments: tuple[tuple[int, tuple[Entry, ...]], ...], lost: int
) -> tuple[tuple[tuple[int, tuple[Entry, ...]], ...], Entry | None]:
    """Without the last entries, all of the last segment; and the first of them, which is torn."""
    if not lost:
        return segments, None
    number, entries = segments[-1]
    kept = len(entries) - lost
    return (*segments[:-1], (number, entries[:kept])), entries[kept]


class Found(NamedTuple):
    """A finished search."""

    states: int
    names: frozenset[str]
    """First words of all moves."""
    broken: str | None
    path: tuple[str, ...]


def search(model: Model) -> Found:
    """Breadth-first through everything, to the first broken start or to the end."""
    first = World()
    came: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    names: dict[str, None] = {}
    while waiting:
        world = waiting.popleft()
        try:
            for name, after in model.moves(world):
                names[name.split()[0]] = None
                if after not in came:
                    came[after] = (world, name)
                    waiting.append(after)
        except Broken as broken:
            path = [str(broken)]
            while (origin := came[world]) is not None:
                world, name = origin
                path.append(name)
            return Found(len(came), frozenset(names), str(broken), tuple(reversed(path)))
    return Found(len(came), frozenset(names), None, ())
