"""The background of a client's audit: rows read again elsewhere, violations logged and reported."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from raftstore.audit.finding import AuditFinding
from raftstore.audit.observation import Action
from raftstore.client.auditing.audit import Audit
from raftstore.client.auditing.recorder import Asked, Candidate, Recorder
from raftstore.client.cluster.links import NodeLink
from raftstore.client.context import Context
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.errors import RaftstoreError
from raftstore.policy.levels import AUDIT_LEVEL
from raftstore.protocol.audit import CHANNEL_MAX, EVIDENCE_MAX, TEXT_MAX, ReportViolation
from raftstore.protocol.message import Done
from raftstore.types import Level, NodeId, Seq, node_name

LOOK_S: Final = 0.25
"""Between two looks for something to do."""
PATIENCE_MS: Final = 1_000
"""For one check or report."""
CLOSE_S: Final = 2.0
"""For a file and nodes to take what was found last: a close waits no longer for them."""
EVIDENCE_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Nothing is appended to a file that is larger."""
logger = logging.getLogger("raftstore.client")


class Auditor:
    """See the module; it does nothing for a client without an audit."""

    def __init__(self, context: Context, channel_reads: ChannelReads) -> None:
        self._context = context
        self._reads = channel_reads
        self._task: asyncio.Task[None] | None = None
        self._allowance = 0.0
        self._turn = 0
        self._unwritten: deque[AuditFinding] = deque()
        """Shown to the program, and not yet in the file."""
        self._unreported: deque[AuditFinding] = deque()
        """The same of nodes."""
        self._file_lock = Lock()
        """Of the threads that write: one that a close no longer waits for goes on."""

    def start(self) -> None:
        """Begin; the client is connected."""
        recorder = self._context.recorder
        if recorder is not None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(recorder), name="raftstore audit")

    async def close(self) -> None:
        """Stop, and deliver what was found, within a bounded time; before the connections end,
        which no mistake here keeps from ending."""
        recorder, task = self._context.recorder, self._task
        if recorder is None:
            return
        self._task = None
        try:
            self._show(recorder.audit)
            async with asyncio.timeout(CLOSE_S):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                await self._deliver(recorder.audit)
        except TimeoutError:
            logger.error(  # noqa: TRY400 - the reason is enough
                "audit: closed with %d violations not written and %d not reported",
                len(self._unwritten), len(self._unreported),
            )  # fmt: skip
        except Exception:
            logger.exception("the audit of a client failed when it was closed")

    async def _run(self, recorder: Recorder) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._deliver(recorder.audit)
                await self._check(recorder)
            except Exception:  # a mistake here must end neither the program nor the audit
                logger.exception("the audit of a client failed and goes on")

    # --- checks at other replicas ----------------------------------------------------------------

    async def _check(self, recorder: Recorder) -> None:
        """Read some of the rows that were seen again, as many as are allowed."""
        checks = recorder.audit.checks
        self._allowance = min(self._allowance + checks * LOOK_S, max(1.0, checks))
        while self._allowance >= 1:
            candidate = recorder.take_candidate()
            if candidate is None:
                return
            self._allowance -= 1
            await self._check_one(recorder, candidate)

    async def _check_one(self, recorder: Recorder, candidate: Candidate) -> None:
        info, partition, key = candidate.info, candidate.partition, candidate.key
        channel = info.channels[partition].channel
        node = self._another(candidate)
        if node is None:
            return
        audit, spec, min_seq = recorder.audit, ReadSpec(Level.ANY, replica=node), Seq(candidate.seq)
        deadline_ms = self._context.now_ms() + PATIENCE_MS
        asked = Asked(info, partition, (key,), spec.consistency(min_seq), audit.now_ms())
        try:
            answer = await self._reads.get(channel, (key,), spec, deadline_ms, min_seq=min_seq)
        except RaftstoreError:
            audit.checks_failed += 1  # behind, down or elsewhere: it says nothing wrong
            return
        audit.checks_done += 1
        recorder.read(asked, answer, 0, Action.CHECK)

    def _another(self, candidate: Candidate) -> NodeId | None:
        """Each of the other replicas in turn."""
        channel = candidate.info.channels[candidate.partition].channel
        topology = self._context.topology
        leader = topology.leader_of(channel)
        # A write was acknowledged by the leader, as far as it is known.
        answered = candidate.node or (node_name(leader.node) if leader is not None else "")
        others = [n for n in topology.readable_of(channel) if node_name(n) != answered]
        self._turn += 1
        return others[self._turn % len(others)] if others else None

    # --- what was found --------------------------------------------------------------------------

    async def _deliver(self, audit: Audit) -> None:
        """Wherever this is broken off, the next call goes on with what is left."""
        self._show(audit)
        if audit.evidence is not None and self._unwritten:
            await asyncio.to_thread(self._write, audit.evidence)
        while self._unreported:
            finding = self._unreported.popleft()
            try:
                audit.reported += await self._report(finding, finding.evidence())
            except asyncio.CancelledError:
                self._unreported.appendleft(finding)
                raise

    def _show(self, audit: Audit) -> None:
        """Log what was found and call the program; nothing is waited for, so nothing is lost."""
        while (finding := audit.take_undelivered()) is not None:
            self._unreported.append(finding)
            if audit.evidence is not None:
                self._unwritten.append(finding)
            logger.error(
                "audit: %s in %s: %s; evidence: %s",
                finding.kind.value, finding.channel, finding.text, finding.evidence(),
            )  # fmt: skip
            if audit.on_violation is not None:
                try:
                    audit.on_violation(finding)
                except Exception:  # of the program
                    logger.exception("on_violation of an audit failed")

    def _write(self, path: Path) -> None:
        """Append to the file what is not in it; in a thread."""
        with self._file_lock:
            while self._unwritten:
                finding = self._unwritten.popleft()
                line = {
                    "kind": finding.kind.value,
                    "channel": finding.channel,
                    "text": finding.text,
                    "operations": [operation.shown() for operation in finding.operations],
                }
                try:
                    append_line(path, json.dumps(line))
                except (OSError, ValueError) as error:  # ValueError: no name of a file at all
                    logger.error("evidence of an audit was not written to %s: %s", path, error)  # noqa: TRY400 - the reason is enough

    async def _report(self, finding: AuditFinding, evidence: str) -> bool:
        """Report to the first node that takes it; whether one did."""
        links = [link for link in self._context.links.queries() if link.is_open]
        for link in links:
            if link.level >= AUDIT_LEVEL and await _reported_to(link, finding, evidence):
                return True
        return False


async def _reported_to(link: NodeLink, finding: AuditFinding, evidence: str) -> bool:
    def build(request_id: int) -> ReportViolation:
        return ReportViolation(
            request_id,
            finding.kind.value,
            finding.channel[:CHANNEL_MAX],
            finding.text[:TEXT_MAX],
            evidence[:EVIDENCE_MAX],
        )

    with suppress(RaftstoreError, TimeoutError):
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            return isinstance(await link.request(build), Done)
    return False


def append_line(path: Path, line: str) -> None:
    """Append a line, unless the file is too large."""
    with path.open("a", encoding="utf-8") as file:
        if file.tell() < EVIDENCE_FILE_BYTES_MAX:
            file.write(line + "\n")
