"""The voters of each partition over the time of a run, for checkers that ask whether a majority was
whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

Channel = tuple[str, int]
"""(table, partition)."""
Group = frozenset[str]
"""The nodes of one set of voters."""


class VoterSets:
    """Sets of voters that may decide, since when: more than one while members change.

    A change is looked at now and then: it is taken for begun at the look before the one that saw
    it.
    """

    def __init__(self) -> None:
        self._looks: dict[Channel, list[tuple[int, frozenset[Group]]]] = {}
        """When another state was seen first, and the sets that may decide from there on."""
        self._last: dict[Channel, tuple[int, frozenset[Group]]] = {}
        """The look before the present one."""

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._looks

    def since(self, began: int) -> VoterSets:
        """The same on a clock that began at this moment of the present one."""
        found = VoterSets()
        for channel, looks in self._looks.items():
            found._looks[channel] = [(max(0, at - began), groups) for at, groups in looks]
        return found

    def note(self, channel: Channel, now: int, groups: Iterable[Group]) -> None:
        """A look at this moment saw these sets; none at all, when no replica answered, says
        nothing."""
        seen = frozenset(groups)
        if not seen:
            return
        looks = self._looks.setdefault(channel, [])
        before = self._last.get(channel)
        if before is None:
            looks.append((0, seen))
        elif before[1] != seen:
            _append(looks, before[0], before[1] | seen)
            _append(looks, now, seen)
        self._last[channel] = (now, seen)

    def deciding(self, channel: Channel, end: int) -> Iterator[tuple[Group, int, int]]:
        """Nodes that can decide alone as long as nothing touches them, from when to when: they hold
        a majority of each set of voters."""
        looks = self._looks[channel]
        nodes = sorted({node for _, groups in looks for group in groups for node in group})
        pieces = [
            (begin, until, groups)
            for (begin, groups), until in zip(
                looks, (*(at for at, _ in looks[1:]), end), strict=True
            )
        ]
        for count in range(1, len(nodes) + 1):
            for chosen in combinations(nodes, count):
                yield from _stretches(frozenset(chosen), pieces)


def _append(looks: list[tuple[int, frozenset[Group]]], at: int, groups: frozenset[Group]) -> None:
    """Another state from then on; what was to begin at the same moment or later never was."""
    while looks and looks[-1][0] >= at:
        groups |= looks.pop()[1]
    looks.append((at, groups))


def _stretches(
    chosen: Group, pieces: Iterable[tuple[int, int, frozenset[Group]]]
) -> Iterator[tuple[Group, int, int]]:
    """The longest stretches in which these nodes hold a majority of each set."""
    since: int | None = None
    until = 0
    for begin, end, groups in pieces:
        if all(2 * len(chosen & group) > len(group) for group in groups):
            since, until = begin if since is None else since, end
        elif since is not None:
            yield chosen, since, until
            since = None
    if since is not None:
        yield chosen, since, until
