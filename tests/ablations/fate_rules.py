"""Ablations of what is told of the fate of a write (N4, S4.5, S5.6, S7.1)."""

from __future__ import annotations

from tests.ablations.ablation import CORE, Ablation, directed

FATE = "tests/unit/core/test_fate.py::test_n4_"
LEADER_READS = "tests/unit/engine/test_leader_reads.py::test_"
FATES = "tests/unit/engine/test_fates.py::test_n4_"

FATE_RULES: tuple[Ablation, ...] = (
    directed(
        "S5.6-fence",
        "a write is called not applied, and sequenced when its message arrives",
        CORE + "fate.py",
        "    if not fence.add(guid):\n        return FateFound(Fate.OVERLOADED)\n",
        "",
        FATE + "write_told_to_be_not_applied_is_refused_when_it_comes_late",
        FATES + "write_that_arrives_after_its_fate_was_told_is_refused",
    ),
    directed(
        "S7.1-fate",
        "a leader tells fates without asking whether it still leads",
        "raftstore/engine/reads/write_outcomes.py",
        "        runner.request_read(self._tokens, now_ms)\n",
        "        self.on_confirmed(self._tokens)\n",
        FATES + "leader_of_the_past_tells_no_fate",
    ),
    directed(
        "S7.1-fate-term",
        "what an earlier leadership was asked is answered by a later one of the same node",
        "raftstore/engine/reads/write_outcomes.py",
        "runner.core.tell_fate(request.guid) if is_of_term else None",
        "runner.core.tell_fate(request.guid)",
        FATES + "question_of_an_earlier_leadership_is_not_answered_by_a_later_one",
    ),
    directed(
        "S7.0-leader",
        "a read of level leader shows what is applied, and not what was acknowledged",
        "raftstore/engine/reads/reader.py",
        "min_seq = Seq(max(min_seq, runner.core.commit_seq))",
        "pass",
        LEADER_READS + "s7_0_leader_read_shows_what_its_client_was_told_is_written",
    ),
    directed(
        "S7.1-leader",
        "a leader answers reads of level leader before a commit of its own term",
        "raftstore/engine/reads/reader.py",
        "and not runner.core.leader_is_ready:",
        "and False:",
        LEADER_READS + "s7_1_leader_answers_no_read_before_a_commit_of_its_own_term",
    ),
    directed(
        "S4.5-fate",
        "a write that was forgotten is called not applied",
        CORE + "fate.py",
        "    if not state.dedupe.is_complete_for(guid):\n        return FateFound(Fate.UNKNOWN)\n",
        "",
        FATE + "forgotten_write_is_unknown",
    ),
    directed(
        "S4.5-fate-forgotten",
        "a write of a session that was forgotten counts as never made",
        CORE + "dedupe.py",
        "            return self._forgotten_seq == 0\n",
        "            return True\n",
        FATE + "any_write_of_no_session_is_unknown_once_a_session_was_forgotten",
    ),
    directed(
        "S4.1-fate",
        "a write that is not committed is called committed",
        CORE + "fate.py",
        "        return FateFound(Fate.PENDING, *place)\n    if not written.is_conditioned:\n",
        "        pass\n    if not written.is_conditioned:\n",
        FATE + "write_that_is_not_committed_yet_is_pending",
    ),
)
