"""Bugs of elections, of the log, and of catching up: S0, S1, S2, S5, S6."""

from __future__ import annotations

from jepsen_like.planted.bug import (
    CORE,
    ELECTION,
    PlantedBug,
    by_tests,
    in_client_worlds,
    in_worlds,
)
from jepsen_like.planted.source_patch import Edit

VOTING = ELECTION + "voting_elector.py"
CATCH_UP = CORE + "catch_up.py"
FOLLOWER = CORE + "follower.py"
REPLICA = CORE + "replica.py"
STATE = CORE + "state.py"
LOG_TEST = "tests/unit/core/test_rules_log.py::test_"
VOTE_TEST = "tests/unit/election/"

REDUNDANT = "other rules hold the same door, so the worlds stay right without this one"

ELECTION_BUGS: tuple[PlantedBug, ...] = (
    in_worlds(
        "S0.3",
        "recovering-replica-votes",
        "A replica that lost acknowledged records votes and stands all the same.",
        Edit(
            REPLICA,
            "return self._state.recovering is None and self._state.stopped is None",
            "return self._state.stopped is None",
        ),
        damage_percent="40",
    ),
    in_worlds(
        "S0.3",
        "hole-filled-without-a-witness",
        "A node fills another's hole although nothing proves that their logs were ever equal.",
        Edit(
            "raftstore/storage/log/index.py",
            "return part, min(common, part.last_seq, hole.to_seq)",
            "return part, min(part.last_seq, hole.to_seq)",
        ),
        Edit(
            "raftstore/storage/log/index.py",
            "                if known != hole.prev_term:",
            "                if False:",
        ),
        flip_percent="40",
        damage_percent="0",
    ),
    in_worlds(
        "S0.3",
        "replica-with-a-hole-takes-part",
        "A replica whose log lacks a record in the middle hears leaders and candidates.",
        Edit(
            "raftstore/engine/channel/runner.py",
            '        """A replication message of a peer: fenced, then stepped."""\n'
            "        if self.hole is not None:\n",
            '        """A replication message of a peer: fenced, then stepped."""\n'
            "        if False:\n",
        ),
        flip_percent="40",
        damage_percent="0",
    ),
    in_worlds(
        "S0.5",
        "ack-before-fsync",
        "A record counts as durable when it was handed to the log.",
        Edit(
            STATE,
            "        self._learn(record)\n        self._batch.append(record)\n",
            "        self._learn(record)\n        self._batch.append(record)\n"
            "        self.durable_seq = record.last_seq\n",
        ),
        slow_disk="1",
        sync_min_ms="2",
        sync_max_ms="150",
    ),
    in_worlds(
        "S0.5",
        "no-barrier",
        "Votes and terms leave the node before they are durable.",
        Edit(
            "raftstore/engine/channel/outbox.py",
            "operation <= self._log.durable_operation()",
            "operation >= 0",
        ),
        slow_disk="1",
        sync_min_ms="20",
        sync_max_ms="150",
        fault_interval_ms="150",
    ),
    in_worlds(
        "S1.1",
        "sequence-only-history",
        "Votes and pre-votes compare the length of the logs and forget the terms.",
        Edit(
            ELECTION + "pysyncobj_elector.py",
            "return self.history < other.history",
            "return self.history.seq < other.history.seq",
        ),
        Edit(
            VOTING,
            "and message.history >= self._state.own_history()",
            "and message.history.seq >= self._state.own_history().seq",
        ),
        writers="10",
        rows_per_write_max="40",
        operations="1000",
        fault_interval_ms="200",
        payload_loss_percent="10",
    ),
    by_tests(
        "S1.2",
        "durable-history-only",
        "A voter reports the durable end of its log instead of the accepted one.",
        Edit(
            REPLICA,
            "return self._state.lineage.last\n",
            "return History(\n"
            "            self._state.lineage.term_at(self._state.durable_seq),\n"
            "            self._state.durable_seq,\n"
            "        )\n",
        ),
        tests=(LOG_TEST + "history_in_elections_is_what_was_accepted_durable_or_not",),
        why="one of the six rules that random chaos does not guard",
    ),
    in_worlds(
        "S1.3",
        "one-vote-counted-twice",
        "A repeated vote of one voter counts as the vote of another.",
        Edit(
            VOTING,
            "            self._votes.add(sender)",
            "            voters = self._host.config().voters\n"
            "            missing = [v for v in voters if v not in self._votes]\n"
            "            again = sender in self._votes and missing\n"
            "            self._votes.add(missing[0] if again else sender)",
        ),
        nodes="5",
        duplicate_message_percent="50",
        fault_interval_ms="200",
    ),
    in_worlds(
        "S1.3",
        "two-votes-in-a-term",
        "A voter grants its vote to everybody who asks in a term.",
        Edit(VOTING, "if self.voted_for == sender:", "if self.voted_for is not None:"),
        fault_interval_ms="200",
    ),
    in_worlds(
        "S1.3",
        "election-majority-off-by-one",
        "One voter less than a majority elects a leader and confirms its reads.",
        Edit(
            CORE + "quorum.py",
            "sum(voter in confirmed for voter in voters) >= majority(len(voters))",
            "sum(voter in confirmed for voter in voters) >= majority(len(voters)) - 1",
        ),
    ),
    in_worlds(
        "S1.3",
        "votes-of-an-earlier-term",
        "A candidate counts votes that were granted to it in an earlier term.",
        Edit(
            VOTING,
            "elif self.role is Role.CANDIDATE and message.vote_term == self.term:",
            "elif self.role is Role.CANDIDATE:",
        ),
        late_percent="25",
        duplicate_message_percent="30",
        fault_interval_ms="150",
    ),
    by_tests(
        "S1.4",
        "past-leader-followed",
        "A leader of a past term is followed.",
        Edit(
            VOTING,
            "        if term < state.term:  # S1.4\n            return False\n",
            "        if term < state.term:  # S1.4\n            return True\n",
        ),
        tests=(
            VOTE_TEST + "test_pysyncobj_elector.py::test_leader_of_a_past_term_is_told_the_term",
        ),
        why=REDUNDANT,
    ),
    by_tests(
        "S1.8",
        "nobody-stands",
        "A follower that loses its leader's name waits for ever.",
        Edit(VOTING, "self._arm_wanted = True  # S1.8", "pass  # S1.8"),
        tests=(
            VOTE_TEST + "test_candidacy.py::test_follower_that_loses_its_leaders_name_is_armed",
        ),
        why="nodes suspect a channel without a claim by themselves (S1.8) and stand a moment later",
    ),
)

LOG_BUGS: tuple[PlantedBug, ...] = (
    in_worlds(
        "S2.2",
        "no-term-start",
        "A new leader appends no record of its term.",
        Edit(CORE + "leader.py", "        self._replicate(record, inlined=True)\n", ""),
    ),
    by_tests(
        "S2.3",
        "wrong-prev-term",
        "A StoreRequest names its own term as the term of the record before.",
        Edit(
            CORE + "leader.py",
            "prev_term=state.lineage.term_at(state.last_seq),",
            "prev_term=state.term,",
        ),
        tests=(LOG_TEST + "store_request_carries_the_term_of_the_record_before",),
        why="a mismatch only costs a catch-up, which brings the right records",
    ),
    in_worlds(
        "S2.4",
        "no-prev-term-match",
        "Live records are taken by their seq alone.",
        Edit(
            CATCH_UP,
            "return state.lineage.holds(entry.prev_term, entry.meta.base_seq - 1)",
            "return entry.meta.base_seq - 1 <= state.last_seq",
        ),
    ),
    by_tests(
        "S2.4",
        "history-by-seq",
        "Fetched history is taken by its seq alone.",
        Edit(
            CATCH_UP,
            "if not state.lineage.holds(message.prev_term, message.from_seq - 1):",
            "if message.from_seq - 1 > state.last_seq:",
        ),
        tests=(LOG_TEST + "history_is_not_appended_after_a_record_of_another_term",),
        why="the lineage finds the match point (S2.6), and fetched records are compared by term",
    ),
    in_worlds(
        "S2.4",
        "conflict-stays",
        "A tail that conflicts with the leader's log stays, and counts as verified.",
        Edit(
            CATCH_UP,
            "if not state.lineage.holds(record.term, record.base_seq):",
            "if record.base_seq > state.last_seq:",
        ),
    ),
    in_worlds(
        "S2.5",
        "truncation-to-own-high-water-mark",
        "A follower cuts its log to its own commit seq when the leader changes.",
        Edit(
            REPLICA,
            '        """S6.2: nothing learned from another leadership is continued."""\n',
            "        if self._state.last_seq > self._state.commit_seq:\n"
            "            self._state.truncate(Seq(self._state.commit_seq + 1))\n",
        ),
    ),
    by_tests(
        "S2.5",
        "truncated-counts-as-durable",
        "What was cut is reported durable when its write completes.",
        Edit(
            "raftstore/engine/channel/durable_tracker.py",
            "self.pending = deque((op, Seq(min(seq, keep))) for op, seq in self.pending)",
            "self.pending = deque(self.pending)",
        ),
        tests=(
            "tests/unit/engine/test_rules_engine.py::test_truncated_record_is_never_reported_durable",
        ),
        why="the end of the log bounds what the core takes for durable",
    ),
    by_tests(
        "S2.6",
        "match-point-too-high",
        "The match point is the leader's end of a common term.",
        Edit(
            CORE + "history.py",
            "return min(end_seq, self._ends[index])",
            "return self._ends[index]",
        ),
        tests=(
            "tests/unit/core/test_history.py::"
            "test_match_point_is_the_end_of_the_largest_common_term",
        ),
        why="the follower verifies the point (S2.4) and asks again, which only takes longer",
    ),
    in_worlds(
        "S5.1",
        "metadata-without-payload",
        "A record whose payload is missing is stored empty and acknowledged.",
        Edit(
            FOLLOWER,
            "payload = payload_of(self._payloads, head)\n",
            'payload = payload_of(self._payloads, head) or b""\n',
        ),
        payload_loss_percent="10",
    ),
    in_client_worlds(
        "S5.2",
        "payload-by-guid-alone",
        "Payloads correlate by their GUID, whatever their digest and length.",
        Edit(
            CORE + "pending.py",
            "held = self._held.get((guid, digest))\n"
            "        return held.payload if held is not None and len(held.payload) == length "
            "else None",
            "held = next((held for key, held in self._held.items() if key[0] == guid), None)\n"
            "        return held.payload if held is not None else None",
        ),
    ),
    in_worlds(
        "S5.4",
        "missing-payload-waited-for",
        "A payload that got lost is waited for without end.",
        Edit(
            FOLLOWER,
            'self._leave_steady("missing_pubmsg", wait[0])',
            "self._payload_wait = None",
        ),
        payload_loss_percent="10",
    ),
    by_tests(
        "S6.1",
        "catch-up-from-a-non-leader",
        "History of any member is taken.",
        Edit(FOLLOWER, "if sender != state.leader:", "if False:"),
        tests=(LOG_TEST + "history_of_anybody_but_the_leader_is_discarded",),
        why="one of the six rules that random chaos does not guard: nobody else sends any",
    ),
    by_tests(
        "S6.1",
        "fetched-payload-not-verified",
        "A fetched record is stored whatever its digest says.",
        Edit(
            CATCH_UP,
            "if record.base_seq != expected or digest_of(record.payload) != record.digest:",
            "if record.base_seq != expected:",
        ),
        tests=(
            "tests/unit/core/test_catch_up.py::"
            "test_record_that_is_not_what_its_digest_says_is_not_taken",
        ),
        why="the simulated network and disks damage no payload",
    ),
    by_tests(
        "S6.2",
        "verified-survives-the-leader",
        "What was verified against the old leader counts for the new one.",
        Edit(FOLLOWER, "        state.verified_seq = Seq(0)\n", ""),
        tests=(LOG_TEST + "new_leader_is_probed_from_nothing_verified",),
        why="what is verified is durable mostly, and a truncation takes it back (S2.5)",
    ),
    in_worlds(
        "S6.3",
        "live-queue-drained-blindly",
        "A steady follower drains the live queue without contiguity and log matching.",
        Edit(FOLLOWER, "if meta.base_seq > state.last_seq + 1:", "if False:"),
        Edit(
            FOLLOWER,
            "if not continues(state, head):\n            return self._leave_steady(",
            "if False:\n            return self._leave_steady(",
        ),
    ),
)
