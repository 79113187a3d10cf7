"""Pauses after failed logins, by source address and by user name.

A login is charged before its password is checked and refunded when it was right: who gives a short
timeout, or asks many times at once, is counted all the same. An address whose user has logged in
before is not held back by what others tried with that name or from there.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

ENTRIES_MAX: Final = 4_096
"""Addresses, names, and pairs of both that are remembered; beyond it the oldest is forgotten."""
FORGOTTEN_AFTER_S: Final = 900.0
"""Failures longer ago than this count no more."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How long a pause is after so many failures: doubled from the first to the longest."""

    free: int
    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """Return the pause after the last of them."""
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        doublings = min(beyond - 1, 30)
        return min(self.longest_s, self.first_s * (1 << doublings))


BY_ADDRESS: Final = Rule(free=5, first_s=1.0, longest_s=300.0)
BY_NAME: Final = Rule(free=20, first_s=0.5, longest_s=5.0)
"""Short: a user who comes from a new address while others guess must not be kept out."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0


class LoginPauses:
    """Failed logins, and the pauses that follow from them."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()
        self._by_name: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def left_s(self, address: str, name: str, now_s: float) -> float:
        """Return how long this login has to wait; 0: it may be tried now."""
        where = _network(address)
        if (where, name) in self._known:
            return 0.0
        return max(
            _left_s(self._by_address.get(where), BY_ADDRESS, now_s),
            _left_s(self._by_name.get(name), BY_NAME, now_s),
        )

    def charge(self, address: str, name: str, now_s: float) -> None:
        """Count a login that is about to be checked as failed."""
        where = _network(address)
        for table, key in ((self._by_address, where), (self._by_name, name)):
            failures = table.pop(key, None)
            if failures is None or now_s - failures.last_s > FORGOTTEN_AFTER_S:
                failures = _Failures()
            failures.count += 1
            failures.last_s = now_s
            table[key] = failures
            if len(table) > ENTRIES_MAX:
                table.popitem(last=False)
        self._known.pop((where, name), None)

    def refund(self, address: str, name: str) -> None:
        """Count an attempt no more whose password was right; the user who comes from there by this
        name is known."""
        where = _network(address)
        for table, key in ((self._by_address, where), (self._by_name, name)):
            failures = table.get(key)
            if failures is not None:
                failures.count -= 1
                if failures.count <= 0:
                    del table[key]
        self._known[where, name] = None
        if len(self._known) > ENTRIES_MAX:
            self._known.popitem(last=False)


def _left_s(failures: _Failures | None, rule: Rule, now_s: float) -> float:
    if failures is None or now_s - failures.last_s > FORGOTTEN_AFTER_S:
        return 0.0
    return max(0.0, failures.last_s + rule.pause_s(failures.count) - now_s)


def _network(address: str) -> str:
    """Return what one guesser has: an address, of IPv6 a /64."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(ip_network((found, 64), strict=False))
    return str(found)


def whole_seconds(seconds: float) -> str:
    """Return a pause as Retry-After says it: whole seconds, never too few."""
    return str(max(1, math.ceil(seconds)))
