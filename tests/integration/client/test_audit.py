"""The audit of a client: wrong answers of nodes are found through its own reads, writes, checks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from raftstore import Audit, AuditCounts, AuditFinding, aio
from raftstore.aio import AsyncClient
from raftstore.audit.finding import FindingKind
from raftstore.audit.observation import hash_of_key
from raftstore.client import auditor
from raftstore.errors import ArgumentError, ConfigError, ConflictError
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.types import Seq
from tests.integration.client.fake_cluster import Answer, FakeCluster, FakeNode, read_behind
from tests.integration.client.fake_requests import read
from tests.integration.client.play import PATIENT, only_channel, play

WAIT_S = 10.0
Test = Callable[[FakeCluster, AsyncClient, Audit], Awaitable[None]]


def audited(test: Test, audit: Audit | None = None, **settings: Any) -> Audit:
    """Run a test with a client whose audit watches every key."""
    own = Audit(1.0, checks=0) if audit is None else audit

    async def run(cluster: FakeCluster, client: AsyncClient) -> None:
        await test(cluster, client, own)

    play(run, replace(PATIENT, audit=own, **settings))
    return own


def kinds(audit: Audit) -> list[FindingKind]:
    """The kinds of findings, in order."""
    return [finding.kind for finding in audit.findings]


def forged(value: bytes) -> Answer:
    """Answer a read as it is, but with another row."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        def forge(answer: Message) -> None:
            assert isinstance(answer, GetAnswer)
            reply(structs.replace(answer, values=(value,)))

        read(node, message, forge)

    return script


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that the audit does in the background."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - nothing says when
            await asyncio.sleep(0)


def test_right_answers_of_all_kinds_are_no_violation() -> None:
    """N7: gets, many gets, single and many writes, conditions, deletes, at every level."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        for turn in range(5):
            acks = [await table.put({"id": key, "v": turn}) for key in range(4)]
            await table.put_many([{"id": key, "v": key} for key in (1, 2, 9, 1)])
            with pytest.raises(ConflictError):
                await table.put({"id": 1, "v": "no"}, if_absent=True)
            await table.delete(3)
            await table.delete_many([9])
            assert await table.get(3) is None
            await table.get_many([0, 1, 2, 3], level="leader")
            await table.get(0, max_lag=5)
            await table.get(0, at_least=acks[-1].position)
            await table.get_many_results([0, 1, 77], max_staleness=5.0)
            await asyncio.gather(*[table.get(key) for key in range(4)])
        del cluster
        await until(lambda: audit.counts().checks > 3)

    audit = audited(test, Audit(1.0, checks=100))
    counts = audit.counts()
    # Of the reads within 5 s: the fake nodes state no age, which a bound in time does not allow.
    assert set(kinds(audit)) == {FindingKind.OVER_BOUND}
    assert counts.operations > 100
    assert counts.dropped == 0


def test_linearizable_read_behind_an_acknowledged_write_is_found_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N7: to the program, its log, a file and a node."""
    seen: list[AuditFinding] = []
    path = tmp_path / "evidence.jsonl"

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        first = await table.put({"id": 1, "v": "old"})
        old = dict(only_channel(cluster).rows)
        await table.put({"id": 1, "v": "new"})
        cluster.nodes["n1"].read_scripts.append(read_behind(old, first.seq))
        assert (await table.get(1)) == {"id": 1, "v": "old"}
        await until(lambda: audit.counts().reported == 1)
        [report] = [each for node in cluster.nodes.values() for each in node.reports]
        assert (report.kind, report.channel) == ("stale_read", "t/0")
        assert "as of seq 1" in report.text
        assert json.loads(report.evidence)[0]["seq"] == 1

    with caplog.at_level(logging.ERROR, logger="raftstore.client"):
        audit = audited(test, Audit(1.0, checks=0, evidence=path, on_violation=seen.append))
    assert kinds(audit) == [FindingKind.STALE_READ]
    assert seen == [*audit.findings]
    [line] = path.read_text().splitlines()
    shown = json.loads(line)
    assert shown["kind"] == "stale_read"
    assert [each["action"] for each in shown["operations"][:2]] == ["get", "put"]
    assert "audit: stale_read in t/0: a linearizable read was answered as of seq 1" in caplog.text


def test_acknowledged_write_that_is_gone_is_found() -> None:
    """N7, O4: the position goes on, the row is the one before."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 1, "v": "old"})
        old = dict(channel.rows)
        await table.put({"id": 1, "v": "new"})
        channel.rows = old
        assert (await table.get(1)) == {"id": 1, "v": "old"}
        assert kinds(audit) == [FindingKind.LOST_WRITE]

    audited(test)


def test_delete_that_is_undone_is_found() -> None:
    """N7, O4."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 1, "v": "old"})
        old = dict(channel.rows)
        await table.delete(1)
        channel.rows = old
        await table.get(1, level="any")
        assert kinds(audit) == [FindingKind.LOST_WRITE]

    audited(test)


def test_replica_with_another_row_is_found_by_a_check_although_nobody_reads_there() -> None:
    """N7: the second opinion is asked of another replica than the one that answered."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        await table.put({"id": 1, "v": "right"})
        [(sealed, _)] = only_channel(cluster).rows.values()
        for name in ("n2", "n3"):
            cluster.nodes[name].read_scripts.append(forged(sealed + b"!"))
        await table.get(1)
        await until(lambda: bool(audit.findings))
        assert kinds(audit) == [FindingKind.LOST_WRITE]
        assert audit.findings[0].operations[0].node in ("n2", "n3")
        asked = [get for name in ("n2", "n3") for get in cluster.nodes[name].reads]
        assert {(get.level, get.min_seq) for get in asked} == {("any", Seq(1))}
        for checks in range(2, 5):
            await table.get(1)
            await until(lambda: audit.counts().checks == checks)  # noqa: B023 - awaited here
        assert {get.level for get in cluster.nodes["n1"].reads} == {"linearizable"}

    audited(test, Audit(1.0, checks=100))


def test_check_that_gets_no_answer_proves_nothing() -> None:
    """N7: a replica that is down, or behind for longer than a check waits."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        await table.put({"id": 1, "v": "right"})
        for name in ("n2", "n3"):
            await cluster.nodes[name].kill()
        await table.get(1)
        await until(lambda: audit.counts().checks_failed > 0)
        assert audit.findings == ()

    audited(test, Audit(1.0, checks=100))


def test_clients_of_a_process_know_each_others_positions() -> None:
    """N7: their clock is one, so the audit is one."""
    audit = Audit(1.0, checks=0)

    async def run(cluster: FakeCluster, client: AsyncClient) -> None:
        async with aio.connect(cluster.endpoints, audit=audit) as other:
            first = await other.table("t").put({"id": 1, "v": "old"})
            old = dict(only_channel(cluster).rows)
            await other.table("t").put({"id": 2, "v": "new"})
            cluster.nodes["n1"].read_scripts.append(read_behind(old, first.seq))
            await client.table("t").get(1)
        assert kinds(audit) == [FindingKind.STALE_READ]

    play(run, replace(PATIENT, audit=audit))


def test_read_before_the_position_that_it_named_is_found() -> None:
    """N7: a replica that does not wait for at_least."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        ack = await table.put({"id": 1, "v": "new"})
        for node in cluster.nodes.values():
            node.read_scripts.append(_too_early)
        await table.get(1, at_least=ack.position)
        assert kinds(audit) == [FindingKind.TOO_EARLY]

    audited(test)


def _too_early(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    assert isinstance(message, Get)
    read_behind({}, Seq(0))(node, structs.replace(message, min_seq=Seq(0)), reply)


def test_tables_that_may_lose_what_was_acknowledged_are_not_judged() -> None:
    """N7, S0.6: nothing is concluded from what is allowed."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        cluster.tables["t"] = structs.replace(cluster.tables["t"], durability="buffered")
        await client.tables()
        table, channel = client.table("t"), only_channel(cluster)
        await table.put({"id": 1, "v": "old"})
        channel.rows.clear()
        channel.seq = Seq(0)
        await table.get(1)
        assert audit.counts() == AuditCounts(0, 0, 0, 0, 0, 0)

    audited(test)


def test_older_nodes_are_not_sent_a_report() -> None:
    """N7: level 8."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        await table.put({"id": 1, "v": "old"})
        only_channel(cluster).rows.clear()
        await table.get(1)
        await until(lambda: not audit._undelivered)

    async def run(cluster: FakeCluster, client: AsyncClient) -> None:
        del client
        for node in cluster.nodes.values():
            node.read_level = 7
        async with aio.connect(cluster.endpoints, settings=PATIENT, audit=audit) as older:
            await test(cluster, older, audit)
        assert not any(node.reports for node in cluster.nodes.values())

    audit = Audit(1.0, checks=0)
    play(run, PATIENT)
    assert kinds(audit) == [FindingKind.LOST_WRITE]
    assert audit.counts().reported == 0


def test_what_was_found_last_is_delivered_when_the_client_is_closed() -> None:
    """N7: programs end soon after they did something."""
    seen: list[AuditFinding] = []

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        del audit
        table = client.table("t")
        await table.put({"id": 1, "v": "old"})
        only_channel(cluster).rows.clear()
        await table.get(1)

    audited(test, Audit(1.0, checks=0, on_violation=seen.append))
    assert [finding.kind for finding in seen] == [FindingKind.LOST_WRITE]


def test_function_of_the_program_that_fails_does_not_end_the_audit(tmp_path: Path) -> None:
    """N7: nor does a file that cannot be written."""

    def refuse(finding: AuditFinding) -> None:
        raise ValueError(finding.text)

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table = client.table("t")
        for number in range(2):
            await table.put({"id": number, "v": "old"})
            only_channel(cluster).rows.clear()
            await table.get(number)
            await until(lambda: audit.counts().reported > number)  # noqa: B023 - awaited here

    audit = audited(test, Audit(1.0, checks=0, on_violation=refuse, evidence=tmp_path / "no" / "x"))
    assert kinds(audit) == [FindingKind.LOST_WRITE] * 2


def test_file_of_evidence_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N7: the disk is the program's."""
    monkeypatch.setattr(auditor, "EVIDENCE_FILE_BYTES_MAX", 8)
    path = tmp_path / "evidence"
    for _ in range(4):
        auditor.append_line(path, "line")
    assert path.read_text() == "line\nline\n"


def test_unwatched_keys_cost_no_notes_and_evidence_names_keys_by_a_hash() -> None:
    """N7: rows and keys of users stay out of it."""

    async def test(cluster: FakeCluster, client: AsyncClient, audit: Audit) -> None:
        table, channel = client.table("t"), only_channel(cluster)
        for number in range(200):
            await table.put({"id": number, "v": "old"})
        watched = sum(map(audit.watches, channel.rows))
        assert 0 < watched < 200
        assert audit.counts().operations == watched

    audit = audited(test, Audit(0.1, checks=0))
    assert audit.findings == ()
    assert len(hash_of_key(b"key")) == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sample": 1.1}, "sample=1.1 is no number from 0 to 1; give one"),
        ({"sample": float("nan")}, "sample=nan is no number from 0 to 1; give one"),
        ({"sample": True}, "sample=True is no number from 0 to 1; give one"),
        ({"checks": -1}, "checks=-1 is no number from 0 to 1000; give one"),
        ({"rotate": 0}, "rotate=0 is no number from 1 to 86400; give one"),
        ({"keys_max": 0}, "keys_max=0 is no number of keys from 1 to 1000000; give one"),
        ({"keys_max": 1.5}, "keys_max=1.5 is no number of keys from 1 to 1000000; give one"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    """N7."""
    with pytest.raises(ArgumentError, match=f"^{text}$".replace(".", r"\.")):
        Audit(**options)
    with pytest.raises(ConfigError, match=r"audit='yes' is no raftstore\.Audit"):
        replace(PATIENT, audit="yes")  # type: ignore[arg-type]


def test_audit_says_what_it_did() -> None:
    """N7."""
    assert repr(Audit(0.25)).startswith("<Audit of 25.00% of all keys: AuditCounts(operations=0")
