"""Status: what nodes say of the cluster becomes true soon after healing, and never names two
leaders of one term."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.checker.verdict import Validity, Verdict

Views = Mapping[str, Mapping[str, Any] | None]
"""Node -> what it says (``raftstore.policy.status``); None: it did not answer."""


@dataclass(slots=True)
class StatusWatch:
    """Collects what nodes said during a run, and how long it took to become true at the end."""

    leaders: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(channel, term) -> nodes that said that they lead it."""
    observed: int = 0
    true_after_ms: float | None = None
    """From healing until everything said was true; None: it never was, or nobody looked."""
    last_untruths: tuple[str, ...] = ()

    def observe(self, views: Views) -> None:
        """Remember who claims to lead what."""
        for node, view in views.items():
            for channel in view["channels"] if view else ():
                self.observed += 1
                if channel["role"] == "leader":
                    key = (str(channel["channel"]), int(channel["term"]))
                    self.leaders.setdefault(key, set()).add(node)

    def verdict(self) -> Verdict:
        """INVALID when a term had two leaders, or what was said never became true."""
        figures = {"observed": self.observed, "terms": len(self.leaders)}
        doubled = [key for key, nodes in sorted(self.leaders.items()) if len(nodes) > 1]
        if doubled:
            channel, term = doubled[0]
            names = ", ".join(sorted(self.leaders[doubled[0]]))
            text = f"{names} all said that they lead channel {channel} in term {term}"
            return Verdict("status", Validity.INVALID, text, figures=figures)
        if self.last_untruths:
            text = f"after healing this did not become true: {'; '.join(self.last_untruths[:3])}"
            return Verdict("status", Validity.INVALID, text, figures=figures)
        if self.true_after_ms is None:
            text = "nobody looked at what nodes say"
            return Verdict("status", Validity.UNDECIDED, text, figures=figures)
        figures["true_after_ms"] = round(self.true_after_ms)
        text = (
            f"no term of {len(self.leaders)} had two leaders, and what nodes say was true "
            f"{self.true_after_ms:.0f} ms after all replicas were equal"
        )
        return Verdict("status", Validity.VALID, text, figures=figures)


def untruths(views: Views, running: Collection[str]) -> list[str]:
    """False statements of nodes about a cluster that is healed and idle with
    these nodes running.
    """
    found = [f"{node} says nothing" for node in running if views.get(node) is None]
    reported = {node: view for node, view in views.items() if view is not None and node in running}
    for node, view in reported.items():
        found += _of_nodes(node, view["nodes"], running)
    by_channel: dict[str, dict[str, Mapping[str, Any]]] = {}
    for node, view in reported.items():
        for channel in view["channels"]:
            by_channel.setdefault(str(channel["channel"]), {})[node] = channel
    for name, said in by_channel.items():
        found += _of_channel(name, said, running)
    return found


def _of_nodes(
    viewpoint: str, nodes: Sequence[Mapping[str, Any]], running: Collection[str]
) -> list[str]:
    return [
        f"{viewpoint} says that {node['name']} is {'up' if node['up'] else 'down'}"
        for node in nodes
        if node["up"] != (node["name"] in running)
    ]


def _of_channel(
    name: str, said: Mapping[str, Mapping[str, Any]], running: Collection[str]
) -> list[str]:
    found = []
    claims = {(channel["leader"], channel["term"]) for channel in said.values()}
    if len(claims) > 1:
        found.append(f"{name}: leaders and terms differ: {sorted(map(str, claims))}")
    leading = [node for node, channel in said.items() if channel["role"] == "leader"]
    if len(leading) != 1:
        found.append(f"{name}: {len(leading)} nodes say that they lead it")
    for node, channel in said.items():
        if channel["mode"] != "steady" and not _has_all_though_flapping(channel):
            found.append(f"{name}: {node} is {channel['mode']}")
        if channel["lag"] != 0:
            found.append(f"{name}: {node} says that it lags by {channel['lag']}")
        found += [
            f"{name}: {node} says that {replica['node']} lags by {replica['lag']}"
            for replica in channel["replicas"]
            if channel["role"] == "leader" and replica["node"] in running and replica["lag"] != 0
        ]
    return found


def _has_all_though_flapping(channel: Mapping[str, Any]) -> bool:
    """Whether it left steady state so often that it stays with history for a while, which lacks
    nothing (NATS-153); that it lags by nothing is looked at beside this."""
    catch_up = channel.get("catch_up")
    return (
        channel["mode"] == "catching_up"
        and bool(channel.get("flapping"))
        and catch_up is not None
        and catch_up["rows_left"] == 0
    )
