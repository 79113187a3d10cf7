"""Mutations of staged rows and decided batches in a channel."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

DECIDES = "tests/unit/state_machines/test_coordinator.py::test_"
CHECKS = "tests/unit/engine/batches/test_commit_checks.py::test_"
STEPS = "tests/unit/state_machines/test_txn_records.py::test_"
PAYLOADS = "tests/unit/protocol/test_staged.py::test_"
STAGES = "tests/unit/state_machines/test_staging.py::test_"
BATCHES = "tests/unit/engine/batches/test_batches.py::test_"

STAGED_RULES: tuple[Mutation, ...] = (
    mutation(
        "batches-floor-open",
        "Rows of the attempt that may still commit are dropped.",
        Edit(
            "floor_for",
            "unfinished = found.open.attempt",
            "pass",
        ),
        directed(DECIDES + "floor_has_two_terms"),
    ),
    mutation(
        "batches-floor-outbox",
        "The rows of a decided batch are garbage before its channel has applied it.",
        Edit(
            "floor_for",
            "unfinished = min(unfinished, entry.attempt)",
            "pass",
        ),
        directed(
            DECIDES + "floor_has_two_terms",
            why="a channel asks about rows that are a minute old, and no world keeps a "
            "decided batch from a channel for so long",
        ),
        also=("S11",),
    ),
    mutation(
        "batches-first-copy",
        "A chunk that comes again takes the place of the first.",
        Edit(
            "stage",
            "state.get(ref.key) is not None",
            "False",
        ),
        directed(STAGES + "chunk_staged_again_stays_as_it_came_first"),
    ),
    mutation(
        "batches-once",
        "A decided batch that arrives twice is applied twice.",
        Edit(
            "judge_apply",
            "batch.n <= head.n",
            "False",
        ),
        directed(
            STAGES + "apply_table",
            why="a leader answers for a batch that it has applied, and makes no second record",
        ),
        also=("S10",),
    ),
    mutation(
        "batches-chain",
        "A channel applies decided batches as they come, and not along their chain.",
        Edit(
            "judge_apply",
            "batch.prev != head.n",
            "False",
        ),
        directed(
            STAGES + "apply_table",
            why="a coordinator sends a channel one batch at a time, and the next when that "
            "is applied",
        ),
        also=("S10",),
    ),
    mutation(
        "batches-pin",
        "A batch is applied without rows that its manifest lists.",
        Edit(
            "judge_apply",
            "found != batch.part",
            "False",
        ),
        directed(
            STAGES + "chunks_that_are_not_those_of_the_manifest_break_the_channel",
            why="nothing takes listed rows away unless another rule is broken, too",
        ),
        also=("S13",),
    ),
    mutation(
        "batches-losers",
        "Rows of task attempts that lost become visible.",
        Edit(
            "listed_of",
            "ref.attempt == attempt and (ref.partition_id, ref.task_attempt_id) in counted",
            "ref.attempt == attempt",
        ),
        directed(STAGES + "apply_makes_only_winners_visible_and_drops_the_rest"),
    ),
    mutation(
        "batches-leftovers",
        "What a batch did not list stays for ever.",
        Edit(
            "plan_apply",
            "*_removals((ref for ref in refs if ref.attempt <= batch.attempt)),",
            "",
        ),
        directed(STAGES + "apply_makes_only_winners_visible_and_drops_the_rest"),
    ),
    mutation(
        "batches-order",
        "Of two tasks with one key any may win.",
        Edit(
            "_in_order",
            "ref.partition_id,",
            "",
        ),
        directed(STAGES + "of_two_tasks_with_one_key_the_higher_partition_wins"),
    ),
    mutation(
        "batches-inserts-last",
        "A batch that inserts and merges ends otherwise when it is written again.",
        Edit(
            "_in_order",
            "MERGE in modes and INSERT in modes",
            "False",
        ),
        directed(STAGES + "batch_that_is_written_again_after_a_stop_ends_the_same"),
    ),
    mutation(
        "batches-lag",
        "A batch of many rows counts as one row of lag.",
        Edit(
            "seqs_of",
            "max(1, min(rows, ROWS_PER_RECORD_MAX))",
            "1",
        ),
        directed(STAGES + "seqs_of_a_batch_are_its_rows_as_far_as_a_record_can_hold"),
    ),
    mutation(
        "batches-rows",
        "Rows that no replica can apply are staged.",
        Edit(
            "check_staged",
            "check_payload(RecordKind.ROWS, bytes(view), rows)",
            "",
        ),
        directed(PAYLOADS + "malformed_chunk_is_refused_before_it_is_sequenced"),
    ),
    mutation(
        "batches-format-apply",
        "A decided batch of a newer version is taken for damage.",
        Edit(
            "decode_apply",
            "payload and payload[0] > BATCH_FORMAT",
            "False",
        ),
        directed(PAYLOADS + "decided_batch_of_a_newer_format_is_no_damage"),
    ),
    mutation(
        "batches-format-step",
        "A step of a newer version is taken for damage.",
        Edit(
            "decode_step",
            "payload and payload[0] > TXN_FORMAT",
            "False",
        ),
        directed(STEPS + "step_of_a_newer_format_is_no_damage"),
    ),
    mutation(
        "batches-format-state",
        "State of a newer version is taken for damage.",
        Edit(
            "unpacked",
            "stored[:1] > bytes((newest,))",
            "False",
        ),
        directed(STEPS + "state_of_a_newer_format_is_no_damage"),
    ),
    mutation(
        "batch-late-chunks",
        "A chunk behind those of the manifest stops the channel.",
        Edit(
            "listed_of",
            "sorted(found, key=lambda ref: ref.base_seq)[: part.chunks]",
            "sorted(found, key=lambda ref: ref.base_seq)",
        ),
        directed(CHECKS + "chunks_that_come_behind_those_of_the_manifest_stop_nothing"),
    ),
    mutation(
        "batch-version-label",
        "A reader of an older commit gets the state of a newer one.",
        Edit(
            "CommitReads._try_answer",
            "request.as_of and head.n > request.as_of",
            "False",
        ),
        directed(BATCHES + "state_of_an_older_commit_is_kept_a_while_and_then_refused"),
    ),
    mutation(
        "S10-batch-with-its-losers",
        "Rows of a task's run that does not count become visible with the batch.",
        Edit(
            "judge_apply",
            "listed_of(batch.attempt, batch.winners, batch.part, refs)",
            "[ref for ref in refs if ref.attempt == batch.attempt]",
        ),
        Edit(
            "judge_apply",
            "part_of(batch.part.partition, listed)",
            "batch.part",
        ),
        chaos("bank_batches", "step-down"),
    ),
)
