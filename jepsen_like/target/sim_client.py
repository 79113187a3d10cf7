"""A client of a simulated cluster: turns calls into requests, retries, and answers honestly.

Writes are those of the production publisher. What it reads, it asks of one node after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.target.sim_batches import BATCH_ACTIONS, SimBatches
from jepsen_like.target.sim_parts import CODEC, Part, divided, key_of
from jepsen_like.target.sim_talk import SimTalk
from raftstore.client.writes.kinds import Write
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg, WriteFate, WriteFateAnswer
from raftstore.protocol.reads import (
    Consistency,
    Get,
    GetAnswer,
    Scan,
    ScanAnswer,
    Served,
    row_read,
)
from raftstore.rows.keys import decode_key
from raftstore.rows.sealing import unseal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_publisher import OnEnd, SimPublisher
from raftstore.testing.sim_reads import Knew, check_lag, check_leader_read, knows
from raftstore.types import (
    ChannelId,
    Level,
    NodeId,
    Outcome,
    Seq,
    Term,
    guid_text,
)
from raftstore.types import node_name as name_of

ATTEMPT_MS: Final = 400.0
DEADLINE_MS: Final = 3_000.0
PAUSE_MS: Final = 30.0
FIRST_HANDLE: Final = 2_000
SCAN_ROWS_MAX: Final = 10_000

Done = Callable[[Answer], None]


class SimClient:
    """One process of a workload; one call at a time."""

    def __init__(
        self, cluster: SimCluster, index: int, tables: Mapping[str, Sequence[ChannelId]]
    ) -> None:
        self.name = f"c{index}"
        self._cluster = cluster
        self._rng = cluster.rng
        self._tables = tables
        self._lives = 0
        self._publisher = self._new_publisher()
        self._turn = 0
        """Rises with every request; timers and answers of older ones are void."""
        self._call: Call | None = None
        self._done: Done | None = None
        self._parts: list[Part] = []
        self._deadline = 0.0
        self._outcomes: list[Outcome] = []
        self._positions: list[tuple[int, int]] = []
        self._found: dict[bytes, tuple[Any, int]] = {}
        self._served: str | None = None
        self._term: Term | None = None
        self._answered_from: list[Served] = []
        """What the replicas said of the states they served, part by part."""
        self._knew: Knew | None = None
        self._token = ""
        self._guids: list[tuple[Outcome, str]] = []
        """The records of the call, and what came of each."""
        self._fate: dict[str, Any] = {}
        self._conflict = False
        self._error: str | None = None
        self.reaches_one = False
        """Its next payload goes to one follower, then the process dies (S5.5, S5.6)."""
        self._acknowledged: tuple[PubMsg, Seq] | None = None
        """The last write that was answered OK, and where."""
        self._published: PubMsg | None = None
        """The newest attempt."""
        self._acked: Mapping[Term, Seq] = {}
        """What each leader had acknowledged when this part began (S7.0)."""
        self._visible = Seq(0)
        """What a linearizable read that began with this part must include (O5)."""
        self._talk = SimTalk(cluster, self.name, self._publish_staged)
        self._batches = SimBatches(cluster, tables)
        cluster.add_client(self.name, FIRST_HANDLE + index, self._on_message)

    def ask(self, call: Call, done: Done) -> None:
        """Work on the call; ``done`` is called once, within the deadline."""
        self._call, self._done = call, done
        self._deadline = self._cluster.scheduler.now_ms + (call.patience_ms or DEADLINE_MS)
        self._outcomes, self._positions, self._found = [], [], {}
        self._served = self._error = self._term = None
        self._answered_from, self._token, self._guids, self._fate = [], "", [], {}
        self._conflict = False
        if call.action in BATCH_ACTIONS:
            self._parts = []
            self._talk.begin(self._batches.script(call), self._end_talk, self._deadline)
            return
        self._parts = divided(call, self._tables[call.table])
        self._attempt()

    # --- faults ---

    def die(self) -> None:
        """The process ends; the next one has a session of its own and knows nothing."""
        self._cluster.trace("client_died", client=self.name)
        self._publisher.end()
        self._publisher = self._new_publisher()
        self._acknowledged = None
        self.reaches_one = False
        self._turn += 1
        self._talk.stop()
        self._batches.forget()
        done, self._done = self._done, None
        if done is None:
            return
        assert self._call is not None
        if self._parts:
            is_read = self._parts[0].write is None
        else:
            is_read = self._call.action in (Action.STAGE, Action.SNAPSHOT)
        outcome = Outcome.NOT_APPLIED if is_read else Outcome.UNKNOWN
        self._parts = []
        done(Answer(outcome, error="client_died"))

    @property
    def is_at_work(self) -> bool:
        """A call is open."""
        return self._done is not None

    @property
    def has_acknowledged(self) -> bool:
        """This process got OK for a write."""
        return self._acknowledged is not None

    def repeat(self) -> None:
        """Send what was acknowledged last again: it must be answered with the same place (S4.5)."""
        assert self._acknowledged is not None
        message = self._acknowledged[0]
        found = self._cluster.believed_leader(message.channel)
        if found is not None:
            message = msgspec.structs.replace(message, leader=found[0], term=found[1])
        self._cluster.trace("published_again", client=self.name, guid=message.guid.hex())
        for node in self._cluster.node_ids:
            self._cluster.network.send(self.name, node, message)

    def _new_publisher(self) -> SimPublisher:
        self._lives += 1
        rng = random.Random(f"{self.name}, life {self._lives} of {self._cluster.options.seed}")
        return SimPublisher(self._cluster, rng, self._deliver)

    def _end_talk(self, answer: Answer) -> None:
        done, self._done = self._done, None
        assert done is not None
        done(answer)

    # --- attempts ---------------------------------------------------------------------------------

    def _attempt(self) -> None:
        part, cluster = self._parts[0], self._cluster
        self._turn += 1
        left_ms = self._deadline - cluster.scheduler.now_ms
        if left_ms <= 0:
            self._error = self._error or "timeout"
            self._end_part(Outcome.NOT_APPLIED)
        elif part.write is not None:
            self._publisher.publish(part.write, left_ms, self._on_published)
        else:
            pause = ATTEMPT_MS if self._read(part) else PAUSE_MS
            cluster.scheduler.after(pause, self._timed_out, self._turn)

    def _deliver(self, node: NodeId, message: PubMsg) -> None:
        """An attempt of the publisher leaves for one node."""
        self._published = message
        if not self.reaches_one:
            self._cluster.network.send(self.name, node, message)
            return
        others = [other for other in self._cluster.node_ids if other != message.leader]
        self._cluster.network.send(self.name, self._rng.choice(others), message)
        self.die()

    def _publish_staged(self, write: Write, within_ms: float, on_end: OnEnd) -> None:
        self._publisher.publish(write, within_ms, on_end)

    def _read(self, part: Part) -> bool:
        call = self._call
        assert call is not None
        node = self._reader(call, part)
        if node is None:
            return False
        self._visible = self._cluster.oracle.visible_end(part.channel)
        min_seq = Seq(dict(call.at_least).get(part.partition, 0))
        request = self._request(call, part, min_seq)
        self._knew = knows(self._cluster, node, part.channel)
        self._acked = dict(self._cluster.oracle.acknowledged_in.get(part.channel, {}))
        self._cluster.network.send(self.name, node, request)
        return True

    def _request(self, call: Call, part: Part, min_seq: Seq) -> Get | Scan | WriteFate:
        if part.asked_about is not None:
            return WriteFate(self._turn, part.channel, part.asked_about, int(ATTEMPT_MS))
        _, pin, start = _page(call.token)
        wanted = Consistency(
            level=call.level.value,
            min_seq=min_seq,
            max_lag=call.max_lag,
            max_staleness_ms=call.max_staleness_ms,
            max_batches_behind=call.max_batches_behind,
            pin=0 if part.keys is not None else pin,
        )
        common = (self._turn, part.channel, wanted, int(ATTEMPT_MS))
        if part.keys is not None:
            return row_read(Get, *common, keys=part.keys)
        limit, keep = call.limit or SCAN_ROWS_MAX, call.action is Action.PAGE
        return row_read(Scan, *common, start=start, stop=b"", limit=limit, keep=keep)

    def _reader(self, call: Call, part: Part) -> NodeId | None:
        for node in self._cluster.node_ids:
            if name_of(node) in (call.node, _page(call.token)[0]):
                return node
        if call.level in (Level.LINEARIZABLE, Level.LEADER):
            found = self._cluster.believed_leader(part.channel)
            return None if found is None else found[0]
        return self._rng.choice(self._cluster.replicas(part.channel))

    def _timed_out(self, turn: int) -> None:
        if turn == self._turn and self._done is not None:
            self._attempt()

    # --- answers ----------------------------------------------------------------------------------

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
            self._check_repeated(message)
        self._publisher.on_message(sender, message)
        if self._done is None:
            return
        if not self._parts:
            self._talk.on_message(sender, message)
            return
        part = self._parts[0]
        if part.write is None and getattr(message, "request_id", None) == self._turn:
            if isinstance(message, GetAnswer | ScanAnswer):
                self._on_rows(sender, part, message)
            elif isinstance(message, WriteFateAnswer):
                self._on_fate(message)
            elif isinstance(message, Failed):
                self._refused(message.code)

    def _on_published(self, result: PubAck | RequestError) -> None:
        part = self._parts[0]
        if isinstance(result, RequestError):
            self._error = result.code
            self._end_part(result.outcome, result.guid)
            return
        self._positions.append((part.partition, result.last_seq))
        self._term = result.record_term
        self._conflict |= result.conflict
        if self._published is not None and self._published.guid == result.guid:
            self._acknowledged = (self._published, result.last_seq)
        self._end_part(Outcome.OK, guid_text(part.channel, result.guid))

    def _check_repeated(self, ack: PubAck) -> None:
        known = self._acknowledged
        if known is not None and known[0].guid == ack.guid:
            self._cluster.oracle.check_same(ack.guid, known[1], ack.last_seq)

    def _on_rows(self, sender: NodeId, part: Part, message: GetAnswer | ScanAnswer) -> None:
        self._positions.append((part.partition, message.served.applied_seq))
        self._term = message.served.term
        self._served = name_of(sender)
        self._answered_from.append(message.served)
        check_lag(self._cluster, message.served, self._knew)
        rows: Iterable[tuple[bytes, bytes | None, Seq]]
        if isinstance(message, GetAnswer):
            rows = zip(part.keys or (), message.values, message.seqs, strict=True)
        else:
            rows = message.rows
            self._token = _token(sender, message)
        assert self._call is not None
        if not self._call.token:
            check_leader_read(self._call.level.value, message.served, self._acked)
        assert not self._token or self._call.action is Action.PAGE, "tables fit one scan"
        # A later page is of the state that the first one found.
        is_linearizable = self._call.level is Level.LINEARIZABLE and not self._call.token
        for key, sealed, seq in rows:
            plain = None if sealed is None else unseal(key, sealed)
            self._cluster.oracle.on_read(
                part.channel, key, plain, seq, message.served.applied_seq,
                must_include=self._visible if is_linearizable else None,
            )  # fmt: skip
            self._found[key] = (None if plain is None else CODEC.decode(plain)["v"], seq)
        self._end_part(Outcome.OK)

    def _on_fate(self, message: WriteFateAnswer) -> None:
        self._fate = {
            "fate": message.fate, "seq": message.seq, "condition": message.condition,
            "reason": message.reason,
        }  # fmt: skip
        self._end_part(Outcome.OK)

    def _refused(self, code: str) -> None:
        self._error = code
        self._turn += 1
        if ERRORS_BY_CODE[code].retriable:
            self._cluster.scheduler.after(PAUSE_MS, self._timed_out, self._turn)
        else:
            self._end_part(Outcome.NOT_APPLIED)

    def _end_part(self, outcome: Outcome, guid: str | None = None) -> None:
        """``guid``: the name of the write, if it got one."""
        part = self._parts.pop(0)
        if guid is not None:
            self._guids.append((outcome, guid))
            if outcome is Outcome.NOT_APPLIED:
                self._cluster.oracle.on_not_applied(*parse_guid(guid))
        self._outcomes.append(outcome)
        self._turn += 1
        is_failed_read = part.write is None and outcome is not Outcome.OK
        if self._parts and not is_failed_read:
            self._attempt()
            return
        done, self._done = self._done, None
        assert done is not None
        done(self._answer())

    def _answer(self) -> Answer:
        call = self._call
        assert call is not None
        outcome = self._outcomes[0]
        if any(other is not outcome for other in self._outcomes):
            # A read in parts is no answer; a write in parts took effect in part.
            is_read = call.action in (Action.GET, Action.GET_MANY, Action.SCAN)
            outcome = Outcome.NOT_APPLIED if is_read else Outcome.UNKNOWN
        guids = tuple(
            name for each, name in self._guids if each is outcome or outcome is Outcome.OK
        )
        if outcome is not Outcome.OK:
            return Answer(outcome, error=self._error, guids=guids)
        value: Any = None
        seqs: tuple[int, ...] = ()
        if call.action is Action.GET:
            value, seq = self._found[key_of(call.key)]
            seqs = (seq,)
        elif call.action is Action.GET_MANY:
            rows = [self._found[key_of(key)] for key in call.keys]
            value, seqs = [row[0] for row in rows], tuple(row[1] for row in rows)
        elif call.action is Action.FATE:
            value = self._fate
        elif call.action in (Action.SCAN, Action.PAGE):
            value = {decode_key(key)[0]: row[0] for key, row in self._found.items()}
        return Answer(
            outcome,
            value=value,
            seqs=seqs,
            conflict=self._conflict,
            positions=tuple(self._positions),
            term=self._term,
            served_by=self._served,
            lag=_most(served.lag for served in self._answered_from),
            leader_info_age_ms=_most(served.leader_info_age_ms for served in self._answered_from),
            staleness_ms=_most(served.staleness_ms for served in self._answered_from),
            batches_behind=_most(served.batches_behind for served in self._answered_from),
            token=self._token,
            guids=guids,
        )


def _most(reported: Iterable[int | None]) -> int | None:
    """The greatest of the answers to the parts of a read; None when one of them was not, or there
    is none."""
    most: int | None = None
    for each in reported:
        if each is None:
            return None
        most = each if most is None else max(most, each)
    return most


def _token(node: NodeId, page: ScanAnswer) -> str:
    """Where a scan goes on: the node, its pin, the key."""
    if not page.more:
        return ""
    return f"{name_of(node)} {page.pin} {(page.rows[-1][0] + bytes(1)).hex()}"


def _page(token: str) -> tuple[str | None, int, bytes]:
    """Read a token back; without one the scan begins."""
    if not token:
        return None, 0, b""
    node, pin, start = token.split(" ")
    return node, int(pin), bytes.fromhex(start)
