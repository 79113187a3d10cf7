"""Ablations that the simulator notices by itself: random worlds, no directed test.

At least one world of the range must notice, most often one of the first five; the ranges are longer
than that because a change anywhere in the code changes every world.
"""

from __future__ import annotations

from tests.ablations.ablation import CORE, ELECTION, Ablation, Edit, simulated

WORLDS = range(1, 13)
SLOW_WORLDS = range(1, 17)
SLOW_DISK = {"slow_disk": "1", "sync_min_ms": "2", "sync_max_ms": "150"}

SIMULATED_RULES: tuple[Ablation, ...] = (
    simulated(
        "S0.5-world",
        "no message waits for the disk",
        Edit(
            "raftstore/engine/channel/outbox.py",
            "operation <= self._log.durable_operation()",
            "operation >= 0",
        ),
        seeds=SLOW_WORLDS,
        slow_disk="1",
        sync_min_ms="20",
        sync_max_ms="150",
        fault_interval_ms="150",
    ),
    simulated(
        "S1.1-world",
        "votes and pre-votes compare sequences and forget terms",
        Edit(
            ELECTION + "pysyncobj_elector.py",
            "return self.history < other.history",
            "return self.history.seq < other.history.seq",
        ),
        Edit(
            ELECTION + "voting_elector.py",
            "and message.history >= self._state.own_history()",
            "and message.history.seq >= self._state.own_history().seq",
        ),
        seeds=range(1, 21),
        writers="10",
        rows_per_write_max="40",
        operations="1000",
        fault_interval_ms="200",
        payload_loss_percent="10",
    ),
    simulated(
        "S2.4-world",
        "live records are taken by their seq alone",
        Edit(
            CORE + "catch_up.py",
            "return state.lineage.holds(entry.prev_term, entry.meta.base_seq - 1)",
            "return entry.meta.base_seq - 1 <= state.last_seq",
        ),
        seeds=WORLDS,
    ),
    simulated(
        "S2.5-world",
        "a follower cuts to its commit seq when the leader changes",
        Edit(
            CORE + "replica.py",
            '        """S6.2: nothing learned from another leadership is continued."""\n',
            "        if self._state.last_seq > self._state.commit_seq:\n"
            "            self._state.truncate(Seq(self._state.commit_seq + 1))\n",
        ),
        seeds=WORLDS,
    ),
    simulated(
        "S3.4-world",
        "a follower acks before its sync",
        Edit(
            CORE + "follower.py",
            "match = Seq(min(state.verified_seq, state.durable_seq))",
            "match = state.verified_seq",
        ),
        seeds=SLOW_WORLDS,
        **SLOW_DISK,
    ),
    simulated(
        "S4.2-world",
        "uncommitted records are applied and served",
        Edit(
            CORE + "state.py",
            "apply_to = Seq(min(self.commit_seq, self.durable_seq))",
            "apply_to = self.durable_seq",
        ),
        seeds=WORLDS,
    ),
    simulated(
        "S4.5-world",
        "a retry is written a second time",
        Edit(CORE + "sequencer.py", "if verdict is not Verdict.NEW:", "if False:"),
        seeds=WORLDS,
    ),
    simulated(
        "S7.1-world",
        "a leader answers reads without asking anybody",
        Edit(
            CORE + "reads.py",
            "if not has_quorum(config, self._round.confirmed):",
            "if not self._round.confirmed:",
        ),
        seeds=range(1, 25),
        readers="8",
        fault_interval_ms="200",
    ),
)
