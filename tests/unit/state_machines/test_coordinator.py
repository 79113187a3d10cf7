"""The coordinator of micro-batches: one row per guard of the protocol, and what steps leave."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.config import MANIFEST_BYTES_MAX
from raftstore.protocol.batches import TRUNCATE, BeginBatch, ChannelPart, CommitBatch, Manifest
from raftstore.state_machines.batches import coordinator, txn_state
from raftstore.state_machines.batches.coordinator import judge_begin, judge_commit, manifest_fault
from raftstore.state_machines.batches.txn_records import Adopt, Close, Commit, Remove, Trim, Verdict
from raftstore.state_machines.batches.txn_state import (
    apply_for,
    floor_for,
    outbox,
    read_decided,
    read_table,
    read_writer,
    view_of,
)
from raftstore.state_machines.state_keys import outbox_key, packed, writer_key
from raftstore.types import ChannelId
from tests.batch_bench import CoordinatorBench, committed, manifest_of, opened

CHANNEL = ChannelId(bytes(18))


def shown(verdict: Verdict) -> tuple[str, int, int]:
    """A verdict in short: its error's code or its name, attempt, n."""
    return (verdict.code or verdict.name, verdict.attempt, verdict.n)


# --- BEGIN ----------------------------------------------------------------------------------------

BEGIN_TABLE = [
    # Each row also matches guards further down: the first one wins.
    ("other lineage, last batch", {"batch_id": 5, "lineage": "x"}, ("batch_regression", 0, 0)),
    ("other lineage, lower", {"batch_id": 4, "lineage": "x"}, ("batch_regression", 0, 0)),
    (
        "other lineage, open uuid",
        {"batch_id": 7, "uuid": 2, "lineage": "x"},
        ("batch_regression", 0, 0),
    ),
    ("other lineage, new", {"batch_id": 9, "lineage": "x"}, ("batch_regression", 0, 0)),
    ("last batch", {"batch_id": 5, "uuid": 9}, ("already", 1, 1)),
    ("last batch, open uuid", {"batch_id": 5, "uuid": 2}, ("already", 1, 1)),
    ("lower batch", {"batch_id": 4, "uuid": 9}, ("batch_regression", 0, 0)),
    ("lower batch, open uuid", {"batch_id": 4, "uuid": 2}, ("batch_regression", 0, 0)),
    ("open uuid", {"batch_id": 7, "uuid": 2}, ("opened", 2, 0)),
    ("open uuid at another batch", {"batch_id": 8, "uuid": 2}, ("opened", 3, 0)),
    ("new uuid, same batch", {"batch_id": 7, "uuid": 3}, ("opened", 3, 0)),
    ("new uuid, gap", {"batch_id": 99, "uuid": 3}, ("opened", 3, 0)),
    ("new writer", {"writer": "v", "batch_id": 1, "lineage": "x"}, ("opened", 3, 0)),
]


@pytest.mark.parametrize(
    ("asked", "expected"), [row[1:] for row in BEGIN_TABLE], ids=[row[0] for row in BEGIN_TABLE]
)
def test_begin_table(asked: dict[str, object], expected: tuple[str, int, int]) -> None:
    """First matching line wins; what opens nothing also changes nothing and needs no record."""
    bench = opened()
    before = bench.state.items()
    request = begin_request(**asked)
    judged = judge_begin(request, bench.state, partitions=2, pending_max=64)
    verdict = bench.begin(**asked)  # type: ignore[arg-type]
    assert shown(verdict) == expected
    if expected[:2] == ("opened", 3):
        assert judged is None
    else:
        assert judged == verdict
        assert bench.state.items() == before


def begin_request(
    writer: str = "w",
    batch_id: int = 1,
    uuid: int = 1,
    lineage: str = "c",
) -> BeginBatch:
    """The request behind CoordinatorBench.begin."""
    return BeginBatch(
        1, CHANNEL, writer, batch_id, uuid.to_bytes(16, "big"), lineage, False, 9_000, 1_000
    )


def test_begin_of_another_number_of_partitions_is_refused_first() -> None:
    """The chain of commits is kept per partition; a table never gets others."""
    bench = opened()
    judged = judge_begin(begin_request(batch_id=5), bench.state, partitions=3, pending_max=64)
    assert judged is not None
    assert shown(judged) == ("schema", 0, 0)
    bench.partitions = 3
    assert bench.begin(batch_id=5) == judged


def test_begin_is_refused_while_too_many_commits_wait_and_known_ones_are_not() -> None:
    """BUSY bounds the outbox; a question about the fate of a batch is still answered."""
    bench = opened()
    request = begin_request(batch_id=8, uuid=3)
    busy = judge_begin(request, bench.state, partitions=2, pending_max=1)
    assert busy is not None
    assert (busy.code, "limit is 1" in busy.message) == ("overloaded", True)
    last = judge_begin(begin_request(batch_id=5), bench.state, partitions=2, pending_max=1)
    assert last is not None
    assert last.name == "already"
    acked = {0: 1, 1: 1}
    assert judge_begin(request, bench.state, partitions=2, pending_max=1, acked=acked) is None


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("writer", "", "1 to 256 bytes"),
        ("writer", "x" * 257, "1 to 256 bytes"),
        ("uuid", b"short", "5 bytes, expected 16"),
        ("batch_id", -1, "must not be negative"),
        ("batch_id", 2**63, "must not be negative or over"),
        ("ttl_ms", -1, "must not be negative"),
        ("lineage", "x" * 257, "over 256 bytes"),
    ],
)
def test_malformed_begin_is_refused_before_it_is_a_record(
    field: str, value: object, text: str
) -> None:
    """Given a malformed BeginBatch, its sender is refused before a record is made."""
    asked = {name: getattr(begin_request(), name) for name in BeginBatch.__struct_fields__}
    request = BeginBatch(**(asked | {field: value}))
    verdict = judge_begin(request, CoordinatorBench().state, partitions=2, pending_max=64)
    assert verdict is not None
    assert verdict.code == "schema"
    assert text in verdict.message


def test_attempts_are_table_wide_and_never_used_again() -> None:
    """A number names one attempt for ever, whatever became of it (rule 1)."""
    bench = CoordinatorBench()
    numbers = [bench.begin(writer, 1, uuid).attempt for uuid, writer in enumerate("vwvwv")]
    bench.step(Close("v", 5))
    numbers.append(bench.begin("u", 1, 9).attempt)
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_attempt_is_fenced_by_the_next_one() -> None:
    """Of two live drivers of a writer only the one that began last can commit (rule 1)."""
    bench = CoordinatorBench()
    bench.begin(uuid=1)
    bench.begin(uuid=2)
    assert bench.commit(1).code == "writer_fenced"
    assert bench.commit(2).name == "ok"


# --- COMMIT ---------------------------------------------------------------------------------------

COMMIT_TABLE = [
    ("last attempt", (1, 5, b"d"), ("ok", 1, 1)),
    ("last attempt, other digest", (1, 5, b"x"), ("guid_reuse", 0, 0)),
    ("last batch, other attempt", (2, 5, b"d"), ("writer_fenced", 0, 0)),
    ("lower batch, open attempt", (2, 4, b"d"), ("writer_fenced", 0, 0)),
    ("committed attempt at another batch", (1, 7, b"d"), ("writer_fenced", 0, 0)),
    ("open attempt at another batch", (2, 8, b"d"), ("writer_fenced", 0, 0)),
    ("open attempt", (2, 7, b"d"), ("ok", 2, 2)),
]


@pytest.mark.parametrize(
    ("asked", "expected"), [row[1:] for row in COMMIT_TABLE], ids=[row[0] for row in COMMIT_TABLE]
)
def test_commit_table(asked: tuple[int, int, bytes], expected: tuple[str, int, int]) -> None:
    """First matching line wins; what decides nothing also changes nothing and needs no record."""
    bench = opened()
    before = bench.state.items()
    attempt, batch_id, digest = asked
    judged = judge_commit(commit_request(attempt, batch_id, digest=digest), bench.state)
    verdict = bench.commit(attempt, batch_id=batch_id, digest=digest)
    assert shown(verdict) == expected
    if expected[2] == 2:
        assert judged is None
    else:
        assert judged == verdict
        assert bench.state.items() == before


def commit_request(
    attempt: int,
    batch_id: int = 1,
    *,
    manifest: Manifest | None = None,
    digest: bytes = b"d",
    writer: str = "w",
) -> CommitBatch:
    """The request behind CoordinatorBench.commit."""
    content = manifest or manifest_of((0, 1))
    return CommitBatch(1, CHANNEL, writer, batch_id, attempt, content, digest, 1_000)


def test_commit_of_an_attempt_in_the_outbox_is_ok_after_later_batches() -> None:
    """A lost answer is asked for again, and heard as long as the commit is under way."""
    bench = opened()
    bench.commit(2, batch_id=7)
    assert shown(bench.commit(1, batch_id=5)) == ("ok", 1, 1)
    assert bench.commit(1, batch_id=5, digest=b"x").code == "guid_reuse"
    bench.step(Trim(((0, 1), (1, 1))))
    assert bench.commit(1, batch_id=5).code == "writer_fenced"
    assert shown(bench.commit(2, batch_id=7)) == ("ok", 2, 2)


def test_commit_with_its_own_acknowledgement_is_judged_by_the_state_before() -> None:
    """The record that trims a commit may be the one that asks for it."""
    bench = opened()
    bench.commit(2, batch_id=7)
    acks = ((0, 1), (1, 1))
    again = Commit("w", 5, 1, manifest_of((0, 1)), b"d", 5_000, acks)
    verdict = bench.step(again)  # retried by a driver that lost the answer
    assert shown(verdict) == ("ok", 1, 1)
    assert bench.pending() == [(2, (0, 1))]


def test_commit_of_an_attempt_not_heard_of_here_needs_a_record() -> None:
    """A leader that has not applied its BEGIN yet must not call it fenced."""
    bench = committed()
    assert judge_commit(commit_request(9, 9), bench.state) is None
    assert judge_commit(commit_request(1), CoordinatorBench().state) is None
    assert bench.commit(9, batch_id=9).code == "writer_fenced"
    assert CoordinatorBench().commit(1).code == "writer_fenced"


def test_commit_publishes_the_vector_and_the_chain() -> None:
    """V has per channel the newest commit that touches it, prev the one before (rules 3, 4)."""
    bench = CoordinatorBench(3)
    assert [bench.begin(w, 1, 1).attempt for w in "uvw"] == [1, 2, 3]
    first = bench.commit(1, "u", parts=(0, 2))
    second = bench.commit(2, "v", parts=(1, 2))
    third = bench.commit(3, "w", parts=(0,))
    assert [each.n for each in (first, second, third)] == [1, 2, 3]
    assert [each.vector for each in (first, second, third)] == [(1, 0, 1), (1, 2, 2), (3, 2, 2)]
    told = [(n, c, bench.apply_of(n, c).prev) for n, c in [(1, 0), (1, 2), (2, 1), (2, 2), (3, 0)]]
    assert told == [(1, 0, 0), (1, 2, 0), (2, 1, 0), (2, 2, 1), (3, 0, 1)]
    again = bench.commit(2, "v", parts=(1, 2))
    assert again.vector == (1, 2, 2), "the vector of the commit, not the newest one"


def test_empty_commit_is_decided_and_waits_for_nobody() -> None:
    """A micro-batch without rows counts, touches no channel and leaves the outbox empty."""
    bench = CoordinatorBench()
    bench.begin()
    verdict = bench.commit(1, parts=())
    assert (verdict.n, verdict.vector) == (1, (0, 0))
    assert bench.pending() == []
    assert bench.begin().name == "already"


def test_replacing_commit_touches_every_channel() -> None:
    """A commit that replaces the table reaches channels without rows, too (rule 4)."""
    bench = CoordinatorBench()
    bench.begin()
    verdict = bench.commit(1, manifest=manifest_of((1,), mode=TRUNCATE))
    assert verdict.vector == (1, 1)
    assert bench.pending() == [(1, (0, 1))]
    assert bench.apply_of(1, 0).part.chunks == 0


PART = ChannelPart(0, 1, 1, 50, 5)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (Manifest(2, (), (), 0), "mode 2"),
        (Manifest(0, ((0, 7),), (ChannelPart(2, 1, 1, 50, 5),), 1), "partitions 0 to 1"),
        (Manifest(0, ((0, 7),), (PART, PART), 2), "in order"),
        (Manifest(0, ((0, 7), (0, 8)), (PART,), 1), "one for each"),
        (Manifest(0, ((1, 7), (0, 8)), (PART,), 1), "order of their tasks"),
        (Manifest(0, ((0, 7),), (ChannelPart(0, 0, 0, 0, 0),), 0), "0 chunks"),
        (Manifest(0, ((0, 7),), (ChannelPart(0, 2, 1, 50, 5),), 1), "2 chunks"),
        (Manifest(0, ((0, 7),), (ChannelPart(0, 1, 65_537, 50, 5),), 65_537), "65537 rows"),
        (Manifest(0, ((0, 7),), (ChannelPart(0, 1, 1, 0, 5),), 1), "0 bytes"),
        (Manifest(1, ((0, 7),), (PART,), 1), "all of its 2 partitions"),
        (Manifest(0, ((0, 7),), (PART,), 2), "another number"),
    ],
)
def test_malformed_manifest_is_refused_and_decides_nothing(manifest: Manifest, text: str) -> None:
    """Once decided, a manifest that no channel can apply would stop them all."""
    bench = CoordinatorBench()
    bench.begin()
    judged = judge_commit(commit_request(1, manifest=manifest), bench.state)
    verdict = bench.commit(1, manifest=manifest)
    assert judged == verdict
    assert verdict.code == "schema"
    assert text in verdict.message
    assert bench.commit(1).name == "ok", "the attempt stays open"


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(0, ((0, 7),), (ChannelPart(-1, 1, 1, 50, 5),), 1),
        Manifest(0, ((0, 7),), (ChannelPart(2**16, 1, 1, 50, 5),), 1),
        Manifest(0, ((-1, 7),), (PART,), 1),
        Manifest(0, ((0, 2**63),), (PART,), 1),
        Manifest(0, ((0, 7),), (PART,), 2**63),
    ],
)
def test_number_outside_its_range_decides_nothing_and_stops_no_replica(manifest: Manifest) -> None:
    """Logs of before the ranges may hold it: a client's number was written down as it came."""
    bench = CoordinatorBench()
    bench.begin()
    judged = judge_commit(commit_request(1, manifest=manifest), bench.state)
    verdict = bench.commit(1, manifest=manifest)
    assert judged is not None
    assert judged.code == verdict.code == "schema"
    assert "outside its range" in verdict.message
    assert bench.commit(1).name == "ok", "the attempt stays open"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"digest": bytes(65)}, "65 bytes, allowed are 64"),
        ({"writer": ""}, "1 to 256 bytes"),
        ({"writer": "x" * 257}, "1 to 256 bytes"),
    ],
)
def test_malformed_commit_is_refused_before_it_is_a_record(
    asked: dict[str, object], text: str
) -> None:
    """The coordinator keeps a digest for each writer: neither may be of any length."""
    request = commit_request(9, **asked)  # type: ignore[arg-type]
    verdict = judge_commit(request, CoordinatorBench().state)
    assert verdict is not None
    assert verdict.code == "schema"
    assert text in verdict.message


@pytest.mark.slow
def test_manifest_over_its_limit_is_refused_before_it_is_a_record() -> None:
    """One batch never makes a record that travels badly."""
    tasks = tuple((number, 2**40) for number in range(MANIFEST_BYTES_MAX // 12))
    manifest = Manifest(0, tasks, (PART,), 1)
    verdict = judge_commit(commit_request(1, manifest=manifest), CoordinatorBench().state)
    assert verdict is not None
    assert verdict.code == "payload_too_large"
    assert manifest_fault(manifest, 2) is None


def test_commit_that_is_fenced_says_why() -> None:
    """Whether the batch is in by another attempt, or nobody has it yet."""
    bench = opened()
    assert "batch 5 is committed already" in bench.commit(2, batch_id=5).message
    assert "the attempt was closed" in bench.commit(1, batch_id=7).message


# --- F --------------------------------------------------------------------------------------------


def test_floor_has_two_terms() -> None:
    """Attempts that may still commit, and decided ones that the channel has not applied (I1)."""
    bench = CoordinatorBench()
    assert floor_for("w", 0, bench.state) == 0
    bench.begin()
    assert [floor_for("w", c, bench.state) for c in (0, 1)] == [0, 0], "attempt 1 is open"
    assert floor_for("v", 0, bench.state) == 1, "others have none"
    bench.commit(1, parts=(1,))
    assert [floor_for("w", c, bench.state) for c in (0, 1)] == [1, 0], "1 has to apply it"
    bench.begin(batch_id=2, uuid=2)
    assert [floor_for("w", c, bench.state) for c in (0, 1)] == [1, 0]
    bench.step(Close("w", 2))
    assert [floor_for("w", c, bench.state) for c in (0, 1)] == [2, 0]
    bench.step(Trim(((1, 1),)))
    assert [floor_for("w", c, bench.state) for c in (0, 1)] == [2, 2]


WRITERS = st.sampled_from(["u", "v"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), WRITERS, st.integers(1, 4), st.integers(1, 6)),
        st.tuples(st.just("commit"), WRITERS, st.integers(1, 4), st.integers(1, 6)),
        st.tuples(st.just("close"), WRITERS, st.integers(1, 6), st.just(0)),
        st.tuples(st.just("ack"), WRITERS, st.integers(0, 1), st.integers(1, 6)),
        st.tuples(st.just("adopt"), WRITERS, st.just(0), st.just(0)),
        st.tuples(st.just("remove"), WRITERS, st.just(0), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    steps=STEPS, parts=st.lists(st.sampled_from([(), (0,), (1,), (0, 1)]), min_size=25, max_size=25)
)
def test_f_never_decreases(
    steps: list[tuple[str, str, int, int]], parts: list[tuple[int, ...]]
) -> None:
    """I4: so late, doubled and old answers are harmless, whatever steps come in whatever order."""
    bench = CoordinatorBench()
    floors = {(writer, partition): 0 for writer in "uv" for partition in (0, 1)}
    for (kind, writer, one, two), touched in zip(steps, parts, strict=False):
        do: dict[str, Callable[[], object]] = {
            "begin": lambda: bench.begin(writer, one, two),  # noqa: B023 - called at once
            "commit": lambda: bench.commit(two, writer, one, touched),  # noqa: B023
            "close": lambda: bench.step(Close(writer, one)),  # noqa: B023
            "ack": lambda: bench.step(Trim(acked(bench, one, two))),  # noqa: B023
            "adopt": lambda: bench.step(Adopt(writer, None)),  # noqa: B023
            "remove": lambda: bench.step(Remove(writer)),  # noqa: B023
        }
        do[kind]()
        for (name, partition), before in floors.items():
            now = floor_for(name, partition, bench.state)
            assert now >= before
            floors[name, partition] = now


def acked(bench: CoordinatorBench, partition: int, n: int) -> tuple[tuple[int, int], ...]:
    """An acknowledgement that a channel could send: of a commit that exists."""
    head = read_table(bench.state)
    newest = 0 if head is None else head.next_commit - 1
    return ((partition, min(n, newest)),) if newest else ()


@settings(max_examples=100)
@given(steps=STEPS)
def test_outbox_and_manifests_stay_together(steps: list[tuple[str, str, int, int]]) -> None:
    """Given any steps, each waiting commit has its manifest and can be pushed, and no other
    manifest is kept.
    """
    bench = CoordinatorBench()
    for kind, writer, one, two in steps:
        if kind == "begin":
            bench.begin(writer, one, two)
        elif kind == "commit":
            bench.commit(two, writer, one)
        elif kind == "ack":
            bench.step(Trim(acked(bench, one, two)))
        for entry in outbox(bench.state):
            for partition in entry.waiting:
                assert bench.apply_of(entry.n, partition).n == entry.n
    kinds = [key[:2] for key, _ in bench.state.items()]
    assert kinds.count(b"\x03\x02") == kinds.count(b"\x03\x03")


# --- invariants -----------------------------------------------------------------------------------


def test_no_batch_is_opened_or_decided_behind_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: found out where it would be written down, should the guards before it let it pass."""
    bench = opened()
    monkeypatch.setattr(coordinator, "_known_begin", lambda *_asked: None)
    with pytest.raises(AssertionError, match="batch 5 of writer 'w' is opened after"):
        bench.begin(batch_id=5, uuid=9)
    monkeypatch.setattr(coordinator, "_known_commit", lambda *_asked: None)
    with pytest.raises(AssertionError, match="attempt 9 would commit while Open"):
        bench.commit(9, batch_id=7)
    with pytest.raises(AssertionError, match="batch 5 of writer 'w' would be decided after"):
        bench.commit(2, batch_id=5)
    bench.step(Close("w", 2, ()))
    with pytest.raises(AssertionError, match="no attempt of writer 'w' is open"):
        bench.commit(2, batch_id=7)


def test_a_floor_is_below_the_attempts_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: chunks of an attempt that may still commit are kept."""
    bench = opened()
    head = read_table(bench.state)
    assert head is not None
    behind = msgspec.structs.replace(head, next_attempt=0)
    monkeypatch.setattr(txn_state, "read_table", lambda _state: behind)
    with pytest.raises(AssertionError, match="attempt 1 of writer 'w', the next one is 0"):
        floor_for("w", 0, bench.state)


def put(bench: CoordinatorBench, key: bytes, value: msgspec.Struct) -> None:
    """Write state that no record leads to."""
    bench.state.write(((key, packed(value)),))


def test_numbers_of_a_writer_rise_with_its_batches() -> None:
    """Rule 1, S10: attempts and commits alike; a view of it would show nonsense otherwise."""
    bench = opened()
    found = read_writer("w", bench.state)
    assert found is not None
    assert found.last is not None
    later = msgspec.structs.replace(found.last, attempt=2, n=9)
    put(bench, writer_key("w"), msgspec.structs.replace(found, last=later))
    with pytest.raises(AssertionError, match="commit 2 is decided after Last"):
        bench.commit(2, batch_id=7)
    with pytest.raises(AssertionError, match="attempt 2 of writer 'w' is open behind Last"):
        view_of("w", msgspec.structs.replace(found, last=later))
    later = msgspec.structs.replace(later, attempt=3)
    put(bench, writer_key("w"), msgspec.structs.replace(found, last=later))
    with pytest.raises(AssertionError, match="attempt 3 of writer 'w' is opened after Last"):
        bench.begin(batch_id=8, uuid=9)


def test_commits_in_the_outbox_wait_for_channels_and_follow_each_other() -> None:
    """Rules 4 and 5: one that waits for none has left."""
    bench = opened()
    (entry,) = outbox(bench.state)
    decided = read_decided(1, bench.state)
    assert decided is not None
    with pytest.raises(AssertionError, match="commit 1 would be applied behind 1"):
        apply_for(entry, msgspec.structs.replace(decided, prevs=(1, 1)), 0)
    put(bench, outbox_key(1), msgspec.structs.replace(entry, waiting=()))
    with pytest.raises(AssertionError, match="commit 1 is in the outbox and waits for no channel"):
        bench.step(Trim(((0, 1),)))


def test_a_one_shot_writer_is_remembered_by_its_commit() -> None:
    """S4.5: by one that was decided."""
    bench = CoordinatorBench()
    attempt = bench.begin("job", one_shot=True).attempt
    bench.commit(attempt, "job")
    found = read_writer("job", bench.state)
    assert found is not None
    assert found.kept_n == 1
    put(bench, writer_key("job"), msgspec.structs.replace(found, kept_n=2))
    with pytest.raises(AssertionError, match="writer 'job' is remembered by commit 2, not decided"):
        bench.step(Remove("job"))
