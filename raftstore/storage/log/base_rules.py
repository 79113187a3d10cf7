"""When the log of a channel may begin behind a base, and what it keeps then (S0.3, S6.5)."""

from __future__ import annotations

from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.records import Based
from raftstore.types import EMPTY_HISTORY, ChannelId


def refusal_of(index: ChannelIndex, base: Base) -> str | None:
    """Why the log must never begin behind this base; None: it may."""
    known, is_held = index.base, index.holds(base)
    if index.is_doubted and base == EMPTY_BASE:
        return None
    if base.seq < 1 or base.seq < known.seq:
        return f"its base is {tuple(known.history)} and never goes down (S6.5)"
    if base.seq == known.seq and (not is_held or base.chain_hash != known.chain_hash):
        return f"another base is known there: {tuple(known.history)} (S13)"
    if is_held and index.kept:
        return f"records behind seq {index.last_seq} are missing (S0.3)"
    if base.term < known.term:
        return f"its base is {tuple(known.history)}, of another history (S13)"
    if not continues(index, base) and index.term_known(base.seq) == base.term:
        # Of another term there it would be a tail that was never committed, whatever its end.
        return f"its records of term {base.term} are of another history (S13)"
    return None


def continues(index: ChannelIndex, base: Base) -> bool:
    """Whether the log holds the last record of the base, or held it and lost it with a hole, and
    what is held behind it is proven to follow it (S2.4): that stays."""
    return index.holds(base) or (
        not any(part.is_suspect for part in index.kept)
        and any(part.holds(base) or part.before == base.history for part in index.kept)
    )


def entry_of(channel: ChannelId, index: ChannelIndex, base: Base) -> Based:
    """The entry by which the log begins behind this base.

    S1.5: no term is below that of a record; this replica has voted in none above its own (S1.3).
    """
    replaces = not continues(index, base)
    end = base.history if replaces else max(base.history, index.last_part.end)
    is_newer = base.term > index.term
    voted_for = None if is_newer else index.voted_for
    return Based(channel, base, end, max(base.term, index.term), voted_for, replaces)


def why_hole_stays(index: ChannelIndex, base: Base) -> str | None:
    """Why this base cannot stand for what the log lacks; None: it can.

    A base is of committed records alone. So it does if the hole is in front of it, and everything
    behind it that was acknowledged here stays, or there is none (S0.3, S6.4).
    """
    hole = index.hole()
    if hole is None:
        return "nothing is missing in the log here"
    if base.seq < hole.to_seq:
        return f"it is at seq {base.seq}, the log here lacks records up to {hole.to_seq}"
    promised = max(*(part.end for part in (index, *index.kept)), index.shortfall or EMPTY_HISTORY)
    if continues(index, base) or base.history >= promised:
        return refusal_of(index, base)
    return (
        f"it is at {tuple(base.history)}, the log here went on to {tuple(promised)}, and nothing "
        "proves that this follows it"
    )
