"""Notes the nodes that a fault hits while it is injected, for checkers of progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from jepsen_like.nemesis.fault import Fault
from jepsen_like.target.base import Target

_HITS: Final = frozenset({
    "kill", "stop", "pause", "power_loss", "crash_at", "slow_disk", "fail_disk", "fill_disk",
    "crowd_disk", "hang_disk", "damage", "wipe", "swap_stores", "shift_clock",
})  # fmt: skip
_STAYS: Final = frozenset({"damage", "wipe"})
"""A node that lost data may rightly stay away after the fault has ended (S0.1)."""
_CHANGES: Final = frozenset({"move_replicas", "drain_node"})
"""They hit no node: the runner watches who votes."""
_EVERYWHERE: Final = frozenset({"weather", "reset_connections"})


def witnessed(target: Target, fault: Fault, entry: dict[str, Any]) -> Target:
    """The target, to inject this fault through; what it does is noted in the fault's entry.

    ``is_minority``; ``nodes`` that were hit; ``links`` that were cut; ``is_everywhere``: all
    links suffer; ``stays``: the nodes may be away for good; ``where``: all that for people.
    """
    entry.setdefault("is_minority", fault.is_minority)
    for name in ("nodes", "links"):
        entry.setdefault(name, [])
    return cast(Target, _Witness(target, entry))


class _Witness:
    """Passes every call on; those that start a fault are noted first."""

    def __init__(self, target: Target, entry: dict[str, Any]) -> None:
        self._target = target
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "block" or name in _HITS or name in _EVERYWHERE or name in _CHANGES:
            return self._noting(name, found)
        return found

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            self._note(name, arguments)
            return call(*arguments, **options)

        return noted

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        entry = self._entry
        if name in _CHANGES:
            moved = arguments if name == "drain_node" else (arguments[0], "->", *arguments[1])
            entry["where"] = " ".join(moved)
            return
        if name in _EVERYWHERE:
            entry["is_everywhere"] = True
        elif name == "block":
            links = [list(link) for link in arguments[0]]
            entry["links"] += [link for link in links if link not in entry["links"]]
        else:
            reported = arguments if name == "swap_stores" else arguments[:1]
            nodes = [reported[0]] if isinstance(reported[0], str) else list(reported[0])
            nodes += reported[1:]
            entry["nodes"] += [node for node in nodes if node not in entry["nodes"]]
            if name in _STAYS:
                entry["stays"] = True
        cut = [f"{sender}-{receiver}" for sender, receiver in entry["links"]]
        entry["where"] = ", ".join([*entry["nodes"], *cut])
