"""Bugs of the store on a real disk, and of the client: S0, S4, S5.6, S12.

Worlds have a simulated disk and clients of their own, so directed tests of the real ones catch
these.
"""

from __future__ import annotations

from jepsen_like.planted.bug import CLIENT, STORAGE, PlantedBug, by_tests
from jepsen_like.planted.source_patch import Edit

STORAGE_TEST = "tests/unit/storage/"
PUBLISH_TEST = "tests/unit/client/test_publishing.py::test_publish_"
DISK = "worlds run on a simulated disk, not on this code"
OWN_CLIENT = "worlds have clients of their own"

STORE_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S0.2",
        "half-a-store-starts",
        "A log without its vote record starts, or the reverse.",
        Edit(STORAGE + "log.py", "if has_log and has_mark:", "if True:"),
        tests=(
            STORAGE_TEST + "test_recovery.py::test_log_without_mark_or_mark_without_log_is_refused",
        ),
        why=DISK,
    ),
    by_tests(
        "S0.3",
        "lost-tail-unnoticed",
        "A log that lost acknowledged records starts as if it had all.",
        Edit(
            STORAGE + "recovery.py",
            "if self._held.get(channel, {}).get(term, 0) < seq:",
            "if False:",
        ),
        tests=(STORAGE_TEST + "test_recovery.py::test_lost_end_is_noticed_by_the_mark",),
        why=DISK,
    ),
    by_tests(
        "S0.4",
        "handle-reused-after-a-failed-write",
        "A log goes on after a write that failed.",
        Edit(
            STORAGE + "log.py",
            "        self.committer.failure = self.committer.failure or reason\n",
            "",
        ),
        tests=(
            "tests/contract/test_message_log.py::"
            "test_append_is_refused_when_it_leaves_a_gap_and_the_log_stops",
        ),
        why=DISK,
    ),
    by_tests(
        "S0.3",
        "checksum-not-verified",
        "The checksum of a record is not verified when it is read from the log.",
        Edit(STORAGE + "records.py", "if crc32(view[HEADER_BYTES:]) != crc:", "if False:"),
        tests=(STORAGE_TEST + "test_records.py::test_single_record_is_verified_by_itself",),
        why=DISK,
    ),
    by_tests(
        "S0.3",
        "seal-not-verified",
        "The seal of a row is not verified when it is read.",
        Edit(
            "raftstore/rows/sealing.py",
            'if crc32(value, crc32(key)).to_bytes(4, "big") != sealed[:SEAL_BYTES]:',
            "if False:",
        ),
        tests=("tests/contract/test_table_store.py::test_damaged_value_is_never_answered",),
        why="the faults of worlds damage no rows",
    ),
    by_tests(
        "S0.7",
        "second-founding-accepted",
        "A store accepts a second founding proposal.",
        Edit(
            STORAGE + "identity.py",
            "if accepted and (accepted, self.members) != (cluster_id, members):",
            "if False:",
        ),
        tests=(STORAGE_TEST + "test_identity.py::test_only_one_proposal_is_ever_accepted",),
        why="worlds begin after the founding",
    ),
    by_tests(
        "S0.8",
        "dropped-id-used-again",
        "The id of a dropped table is used again.",
        Edit(
            STORAGE + "log.py",
            "            if channel in self._dropped:\n",
            "            if False:\n",
        ),
        tests=("tests/contract/test_message_log.py::test_dropped_channel_is_refused_for_ever",),
        why=DISK,
    ),
    by_tests(
        "S10",
        "position-outside-the-batch",
        "The applied position is not in the atomic batch of its rows.",
        Edit(
            STORAGE + "applier.py",
            "                self._batch.put(applied_key(channel), encode_applied(channel, "
            "state.unflushed))\n",
            "                pass\n",
        ),
        tests=(
            STORAGE_TEST + "test_leveldb_tables.py::test_rows_and_position_are_one_atomic_batch",
        ),
        why=DISK,
    ),
)

CLIENT_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S4.5",
        "retry-under-a-new-guid",
        "The client retries a write under a new GUID.",
        Edit(
            CLIENT + "publisher.py",
            "guid=running.state.guid,",
            "guid=running.state.guid[:15] + bytes([(running.state.guid[15] + attempt) % 256]),",
        ),
        tests=("tests/integration/client/test_writes.py::test_put_is_retried_with_the_same_guid",),
        why=OWN_CLIENT,
    ),
    by_tests(
        "S5.6",
        "doubt-forgotten",
        "A client forgets that an earlier attempt is in doubt when a later one is refused.",
        Edit(
            CLIENT + "publishing.py",
            "        self._doubt = ConnectionInDoubtError(reason)  # S5.6: sent, and no answer\n",
            "",
        ),
        tests=(PUBLISH_TEST + "stays_unknown_when_a_lost_attempt_is_followed_by_refusals",),
        why=OWN_CLIENT,
    ),
    by_tests(
        "S12",
        "late-refusal-believed",
        "A late refusal of an earlier attempt is taken for the newest one's.",
        Edit(
            CLIENT + "publishing.py",
            "if reject.attempt != outstanding.attempt:",
            "if False:",
        ),
        tests=(PUBLISH_TEST + "ignores_a_late_refusal_of_an_earlier_attempt",),
        why=OWN_CLIENT,
    ),
    by_tests(
        "S4",
        "unknown-code-called-not-applied",
        "An error that this version does not know is called not applied.",
        Edit(
            CLIENT + "outcomes.py",
            "error: RequestError = ConnectionInDoubtError(",
            "error: RequestError = RequestError(",
        ),
        tests=("tests/unit/client/test_outcomes.py::test_unknown_code_is_unknown_and_final",),
        why=OWN_CLIENT,
    ),
)
