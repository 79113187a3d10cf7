"""The background of a client's audit by itself: what was found is delivered, also at a close."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.audit.finding import AuditFinding
from raftstore.audit.observation import Action, Observation, hash_of_key, hash_of_row
from raftstore.client import auditor
from raftstore.client.auditing.audit import Audit
from raftstore.client.auditing.recorder import Asked, Candidate, Recorder
from raftstore.client.auditor import Auditor
from raftstore.policy.levels import AUDIT_LEVEL
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.message import Done
from raftstore.types import channel_id

FOUND = 5
CHANNEL = channel_id(b"t" * 16, 0)


class Node:
    """A connection to a node that takes reports, or never answers."""

    level, is_open = AUDIT_LEVEL, True

    def __init__(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.reports: list[ReportViolation] = []
        self.has_reports = asyncio.Event()

    async def request(self, build: Callable[[int], ReportViolation]) -> Done:
        """Take a report."""
        self.reports.append(build(1))
        self.has_reports.set()
        if self.is_silent:
            await asyncio.Event().wait()
        return Done(1)


def find(audit: Audit) -> None:
    """Have the audit find some violations: reads behind a put."""
    channel = CHANNEL
    key = hash_of_key(b"k")
    now_ms = audit.now_ms() - 100
    put = Observation(Action.PUT, key, now_ms, now_ms + 1, 20, 20, hash_of_row(b"row"))
    audit.observe(channel, "t/0", put)
    for number in range(FOUND):
        at_ms = now_ms + 2
        read = Observation(
            Action.GET, key, at_ms, at_ms + 1, number, 0, hash_of_row(None), level="linearizable"
        )
        audit.observe(channel, "t/0", read)
    assert len(audit.findings) == FOUND


def closed(audit: Audit, node: Node, *, is_reporting: bool = False) -> None:
    """Run an auditor that is closed at once, or while it reports."""
    context: Any = SimpleNamespace(
        recorder=Recorder(audit), links=SimpleNamespace(queries=lambda: [node])
    )
    reads: Any = None
    own = Auditor(context, reads)

    async def run() -> None:
        own.start()
        find(audit)
        async with asyncio.timeout(10):
            if is_reporting:
                await node.has_reports.wait()
            await own.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def lines(path: Path) -> list[str]:
    """The texts in a file of evidence."""
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_close_in_the_midst_of_reports_loses_nothing_that_was_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N7: the program and its file have everything once, and the close ends in time."""
    monkeypatch.setattr(auditor, "CLOSE_S", 0.05)
    seen: list[AuditFinding] = []
    path = tmp_path / "evidence"
    audit = Audit(1.0, checks=0, on_violation=seen.append, evidence=path)
    node = Node(is_silent=True)
    closed(audit, node, is_reporting=True)
    assert seen == [*audit.findings]
    assert lines(path) == [finding.text for finding in audit.findings]
    assert {report.text for report in node.reports} == {audit.findings[0].text}
    assert f"closed with 0 violations not written and {FOUND} not reported" in caplog.text


def test_report_that_a_close_breaks_off_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """N7: rather twice than never."""
    node, audit = Node(is_silent=True), Audit(1.0, checks=0)
    gather = asyncio.gather

    def answers_again(*tasks: Any, **options: Any) -> Any:
        node.is_silent = False
        return gather(*tasks, **options)

    monkeypatch.setattr(asyncio, "gather", answers_again)
    closed(audit, node, is_reporting=True)
    texts = [finding.text for finding in audit.findings]
    assert [report.text for report in node.reports] == [texts[0], *texts]
    assert audit.counts().reported == FOUND


def test_file_that_is_none_keeps_nobody_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    """N7: a name with a null byte is a ValueError, and nodes get their reports all the same."""
    node, audit = Node(is_silent=False), Audit(1.0, checks=0, evidence="a\0b")
    with caplog.at_level(logging.ERROR, logger="raftstore.client"):
        closed(audit, node)
    assert audit.counts().reported == FOUND
    assert caplog.text.count("evidence of an audit was not written to") == FOUND


def test_mistake_in_a_delivery_keeps_nobody_from_closing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N7: what follows in a close are the connections."""

    def fail(path: Path, line: str) -> None:
        raise TypeError(path, line)

    monkeypatch.setattr(auditor, "append_line", fail)
    closed(Audit(1.0, checks=0, evidence="x"), Node(is_silent=False))
    assert "the audit of a client failed when it was closed" in caplog.text


def test_key_that_is_not_watched_hides_none_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """N7: of a request for many keys each that is watched is noted, with its own row."""
    audit = Audit(1.0)
    monkeypatch.setattr(audit, "watches", lambda key: key != b"b")
    seen: list[Any] = []
    monkeypatch.setattr(audit, "observe", lambda *of: seen.append(of))
    recorder = Recorder(audit)
    assert recorder.began([b"b"]) is None
    assert recorder.began([b"b", b"a"]) is not None
    info: Any = SimpleNamespace(
        name="t", durability="fsync", channels=[SimpleNamespace(channel=CHANNEL)]
    )
    keys = [b"a", b"b", b"c"]
    served: Any = SimpleNamespace(node="n1@0", applied_seq=9, term=3, staleness_ms=4, lag=5)
    answer: Any = SimpleNamespace(served=served, seqs=[0, 1, 2, 3], values=[None, b"A", b"B", b"C"])
    wanted: Any = SimpleNamespace(pin=0, level="bounded", min_seq=6, max_staleness_ms=7, max_lag=8)
    recorder.read(Asked(info, 0, keys, wanted, 1.0), answer, 1)
    assert [(channel, name, each.key, each.version, each.row) for channel, name, each in seen] == [
        (CHANNEL, "t/0", hash_of_key(key), version, hash_of_row(row))
        for key, version, row in ((b"a", 1, b"A"), (b"c", 3, b"C"))
    ]
    first = seen[0][2]
    assert (first.staleness_ms, first.lag, first.min_seq) == (4, 5, 6)
    assert (first.max_staleness_ms, first.max_lag, first.seq, first.term) == (7, 8, 9, 3)
    assert recorder.take_candidate() == Candidate(info, 0, b"c", 9, "n1")
    audit.checks = 0
    recorder.read(Asked(info, 0, keys, wanted, 1.0), answer, 1)
    assert recorder.take_candidate() == Candidate(info, 0, b"a", 9, "n1")
    assert recorder.take_candidate() is None, "without checks nobody takes them"


def test_keys_that_are_watched_stay_so_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """N7: what was known of them is worth something then."""
    now_ms = 5_000.0
    monkeypatch.setattr(Audit, "now_ms", staticmethod(lambda: now_ms))
    audit = Audit(0.5, rotate=60.0)
    keys = [b"%d" % number for number in range(100)]

    def watched() -> list[bytes]:
        return [key for key in keys if audit.watches(key)]

    def read() -> list[bytes]:
        seen = Observation(Action.GET, b"k", now_ms - 1, now_ms, 1, 0, hash_of_row(None))
        audit.observe(CHANNEL, "t/0", seen)
        return watched()

    first = watched()
    assert read() == first
    now_ms = 64_999.0
    assert read() == first
    now_ms = 65_000.0
    other = read()
    assert other != first
    now_ms += 59_999
    assert read() == other
