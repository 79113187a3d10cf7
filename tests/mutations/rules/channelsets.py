"""Mutations of users' state machines: exactly once, rejections, stops and skips (S4.5, S10)."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ADAPTER = "tests/unit/state_machines/test_user_machine.py::test_"
HOSTILE = "tests/unit/state_machines/test_hostile_machines.py::test_"
STEPS = "tests/unit/engine/catalog/test_machine_steps.py::test_"
WORLDS = "tests/simulation/test_channelsets.py::test_"
SHARED = "tests/unit/state_machines/test_shared_commands.py::test_"
LIMITS = "tests/unit/state_machines/test_command_limits.py::test_"
KEPT = "tests/unit/state_machines/test_commands_together.py::test_"
WAITING = "tests/unit/engine/channel/test_user_commands.py::test_"
SEQUENCER = "tests/unit/core/test_sequencer.py::test_"
FATE = "tests/unit/core/test_fate.py::test_"
TOGETHER = "tests/simulation/test_shared_commands.py::test_"
CLIENTS = "tests/integration/client/test_shared_commands.py::test_"
RECIPES = "tests/unit/recipes/test_recipes.py::test_"
ANEW = "tests/integration/client/test_sets_made_anew.py::test_"
DROPS = "tests/simulation/test_sets_made_anew.py::test_"

CHANNELSET_RULES: tuple[Mutation, ...] = (
    mutation(
        "S10-rejected-writes",
        "A command that the machine rejected leaves what it had written.",
        Edit(
            "sealed_writes",
            "not isinstance(changes, CommandState) or end.is_rejected",
            "not isinstance(changes, CommandState)",
        ),
        directed(ADAPTER + "a_rejected_command_leaves_its_result_and_nothing_else"),
    ),
    mutation(
        "S10-result-apart",
        "The result of a command is not in the batch of its writes.",
        Edit(
            "Results.put",
            "writes: list[tuple[bytes, bytes | None]] = [(result_key(seq), stored)]",
            "writes: list[tuple[bytes, bytes | None]] = []",
        ),
        directed(ADAPTER + "a_command_writes_state_result_and_head_in_one_batch"),
    ),
    mutation(
        "S10-journal-stays",
        "A machine in memory applies again, after a restart, what its snapshot holds.",
        Edit(
            "UserMachine._note",
            "beside += [(kept, None) for kept in self._journal]",
            "",
        ),
        directed(ADAPTER + "a_machine_in_memory_comes_back_from_its_snapshot_and_what_came_behind"),
    ),
    mutation(
        "S10-snapshot-unread",
        "A machine in memory has its commands replaced by a snapshot that it cannot read.",
        Edit("UserMachine._note", "self._restore_chunks(self._made(), chunks)", "pass"),
        directed(HOSTILE + "a_snapshot_that_is_none_replaces_no_command"),
    ),
    mutation(
        "S10-state-of-another-command",
        "A machine writes into the state of a command that has ended, and it is lost in silence.",
        Edit("UserMachine._end_of", "changes.end()", "pass"),
        directed(HOSTILE + "the_state_of_a_command_that_has_ended_can_be_used_no_more"),
    ),
    mutation(
        "S10-half-a-command",
        "A machine in memory goes on with what a command left that failed.",
        Edit("UserMachine.apply", "self.forget()", ""),
        directed(ADAPTER + "what_a_failed_command_did_to_a_machine_in_memory_is_undone"),
    ),
    mutation(
        "S10-stop-passed-over",
        "A command that cannot be applied is passed over in silence.",
        Edit("UserMachine.apply", "ApplyResult((), failure=str(failed))", "NO_CHANGE"),
        directed(ADAPTER + "a_failure_writes_nothing_and_says_what_was_raised_and_where"),
    ),
    mutation(
        "S10-version-ignored",
        "A node applies commands by code that is not of the version in force.",
        Edit(
            "UserMachine.apply",
            "source.version < head.version or source.oldest_version > head.version",
            "False",
        ),
        directed(ADAPTER + "code_that_is_not_of_the_version_in_force_applies_nothing"),
    ),
    mutation(
        "S10-depth-of-a-command",
        "How deep a command may be nested depends on the stack of its replica.",
        Edit("_check_levels", "is_too_deep(data, DEPTH_MAX)", "False"),
        directed(HOSTILE + "a_command_nested_too_deeply_is_rejected"),
    ),
    mutation(
        "S10-interrupt-of-a-machine",
        "A machine that raises KeyboardInterrupt ends its node.",
        Edit("UserMachine._leave_interrupts", "self._rules.is_interruptible", "True"),
        directed(HOSTILE + "an_interrupt_that_a_machine_raises_is_its_error_and_ends_no_node"),
    ),
    mutation(
        "S0.4-read-of-a-machine",
        "A machine goes on with a read of its table that failed.",
        Edit(
            "UserMachine._apply",
            "if isinstance(state, CommandState) and state.broken is not None:\n"
            "    raise state.broken\n"
            "if len(result) > RESULT_BYTES_MAX:\n"
            '    text = f"its result has {len(result)} bytes, at most {RESULT_BYTES_MAX} are '
            'allowed"\n'
            "    return CommandEnd(is_rejected=True, reason=text)",
            "",
        ),
        directed(ADAPTER + "a_broken_table_ends_the_node_whatever_the_machine_makes_of_it"),
    ),
    mutation(
        "S4.5-result-of-before",
        "The result of a command is unknown to a retry after a restart.",
        Edit("Sequencer._answer_known", "written.is_kept_by_machine", "False"),
        directed(WORLDS + "a_result_is_the_same_after_every_node_was_restarted"),
    ),
    mutation(
        "S10-result-before-the-term",
        "A leader answers with a result that a record from before its term may make nothing.",
        Edit("Sequencer._is_settled", "state.lineage.is_in_newest_term(state.applied_seq)", "True"),
        directed(SEQUENCER + "result_of_a_command_waits_for_all_from_before_the_term"),
        directed(SEQUENCER + "command_from_before_the_term_is_answered_with_the_term_start"),
    ),
    mutation(
        "N4-fate-of-the-shared-record",
        "The fate of a command that was given again is that of the record that it had shared.",
        Edit("WriteOutcomeQueries.fate", "place and answer.fate == NOT_APPLIED", "False"),
        directed(CLIENTS + "fate_of_a_command_that_was_given_again_is_that_of_its_own_record"),
    ),
    mutation(
        "N4-fate-of-no-command",
        "A place that a shared record does not have is answered as a committed command.",
        Edit("_of_command", "base_seq <= seq <= answer.seq", "True"),
        directed(TOGETHER + "the_end_of_a_command_is_known_after_every_node_was_restarted"),
    ),
    mutation(
        "S10-fate-before-the-term",
        "The fate of a command is committed while a record from before the term may skip it.",
        Edit(
            "_outcome_of_written", "not state.lineage.is_in_newest_term(state.applied_seq)", "False"
        ),
        directed(FATE + "n4_command_is_pending_until_the_leader_has_applied_its_term_start"),
    ),
    mutation(
        "S4.5-result-gone",
        "A retry of a command whose result is gone hears that the command was not applied.",
        Edit("UserCommands.answer", "GuidExpiredError.code", "MachineStoppedError.code"),
        directed(WORLDS + "a_retry_behind_the_kept_results_is_unknown_and_never_applied_again"),
    ),
    mutation(
        "S4.4-skip-of-the-acknowledged",
        "A command is skipped that another replica has applied, and may have acknowledged.",
        Edit("skip_problem", "position.applied_seq >= seq", "False"),
        directed(STEPS + "a_command_that_some_replica_has_applied_is_not_skipped"),
    ),
    mutation(
        "S4.4-skip-by-an-old-report",
        "A command is skipped by what a replica reported before it was given other code.",
        Edit("MachineSteps._fresh", "now_ms - self._age_max_ms()", "0"),
        directed(
            STEPS + "a_command_is_not_skipped_by_an_old_report",
            WORLDS + "a_command_is_not_skipped_by_what_a_replica_said_before",
        ),
    ),
    mutation(
        "S9-able-voter",
        "A leader whose node lacks the code of a machine keeps the leadership.",
        Edit("MachineSteps.look", "able is not None", "False"),
        directed(
            STEPS + "leader_gives_its_place_to_a_voter_that_has_applied_what_it_cannot",
            WORLDS + "leader_whose_node_lacks_the_code_hands_over_to_one_that_has_it",
        ),
    ),
    mutation(
        "S9-unable-target",
        "Leaderships are moved to a node whose machine has stopped, and go to and fro.",
        Edit("MoveRequests._why_not_lead", "(stop := runner.commands.stop) is not None", "False"),
        directed(
            "tests/unit/engine/leaders/test_even_leaders.py::"
            "test_a_node_in_trouble_refuses_to_lead_until_it_is_over[set_machine_stopped]"
        ),
    ),
    mutation(
        "S10-skip-unnoticed",
        "A replica that applied what the others skipped goes on.",
        Edit("UserMachine._step", "kept is not None and not kept.is_skipped", "False"),
        directed(ADAPTER + "a_replica_that_applied_what_the_others_skipped_says_so_and_stops"),
    ),
    mutation(
        "S10-shared-sight",
        "A command does not see what those before it in the record wrote.",
        Edit(
            "UserMachine._commands",
            "self._command(machine, self._head, each, over, room, is_shared=True)",
            "self._command(machine, self._head, each, view, room, is_shared=True)",
        ),
        directed(SHARED + "a_command_sees_what_those_before_it_in_the_record_wrote_and_removed"),
    ),
    mutation(
        "S10-shared-head",
        "The head is not in the batch of the commands that share a record.",
        Edit(
            "UserMachine._commands",
            "over.state.written[MACHINE_HEAD] = packed(self._head)",
            "pass",
        ),
        directed(SHARED + "results_are_removed_within_a_record_oldest_first"),
    ),
    mutation(
        "S10-shared-half",
        "A machine in memory goes on with the first half of a record that failed.",
        Edit("UserMachine._commands", "self.forget()", "pass"),
        directed(SHARED + "a_machine_in_memory_forgets_the_first_half_of_a_record_that_failed"),
    ),
    mutation(
        "S10-together-sight",
        "A command does not see what those before it wrote whose ends are kept with its own.",
        Edit(
            "UserMachine._commands", "over.take(each.last_seq, sealed_writes(changes, end))", "pass"
        ),
        directed(SHARED + "a_command_sees_what_those_before_it_in_the_record_wrote_and_removed[2]"),
    ),
    mutation(
        "S10-together-skipped",
        "A command that was skipped is applied after a restart, with those that it shared a record "
        "with.",
        Edit("commands_of_entry", "place not in together.skipped", "True"),
        directed(KEPT + "a_skipped_command_of_a_record_stays_skipped_after_a_restart"),
    ),
    mutation(
        "S4.5-together-place",
        "Every command of a record is answered with the end of another one.",
        Edit("read_result", "seq_of_key(key) - len(ends) + 1", "seq_of_key(key) - len(ends)"),
        directed(KEPT + "a_record_leaves_one_result_and_one_entry_of_the_journal"),
    ),
    mutation(
        "S4.5-together-gone",
        "A retry of a record of which some results are gone gets those that are left.",
        Edit("read_results", "ends if len(ends) == count else None", "ends"),
        directed(KEPT + "the_ends_of_a_record_are_read_in_one_look"),
    ),
    mutation(
        "S6.7-together-counted",
        "Results of a record count as one, so a replica that starts keeps more than the others.",
        Edit("Results._all", "len(ends_together(value)) if is_together(value) else 1", "1"),
        directed(KEPT + "results_of_a_record_are_removed_together_the_newest_never"),
    ),
    mutation(
        "S13-together-format",
        "A version that knows no ends that are kept together takes them for those of one command.",
        Edit("packed_together", "_TOGETHER_PREFIX", "_PREFIX"),
        directed(KEPT + "versions_before_stop_at_it"),
    ),
    mutation(
        "S13-together-downgrade",
        "A node that was downgraded keeps ends one by one beside replicas that keep them together.",
        Edit("UserMachine._limit", "number >= TOGETHER_LIMITS", "False"),
        directed(KEPT + "versions_before_stop_at_it"),
    ),
    mutation(
        "S13-together-always",
        "Ends are kept together before every replica knows it.",
        Edit("UserMachine._commands", "self._limits.number >= TOGETHER_LIMITS", "True"),
        directed(SHARED + "a_record_below_the_limits_leaves_what_the_version_before_left"),
    ),
    mutation(
        "S13-limits-moved",
        "Limits that are raised move the place of those before, and commands are judged anew.",
        Edit("UserMachine._limit", "behind = self._limits.behind", "pass"),
        directed(KEPT + "limits_that_are_raised_leave_the_place_of_those_before"),
    ),
    mutation(
        "S13-backup-together",
        "A backup has entries of the journal that no version before reads.",
        Edit("_journal", "packed(entry)", "stored"),
        directed(
            "tests/integration/client/test_backup_of_sets.py::"
            "test_a_backup_of_commands_that_shared_records_has_them_one_by_one"
        ),
    ),
    mutation(
        "S4.5-shared-guid",
        "All commands of a record are given its guid.",
        Edit("guid_of_place", "(counter + place) % 2**64", "counter"),
        directed(SHARED + "guids_of_commands_follow_that_of_their_record"),
    ),
    mutation(
        "S13-limits-by-version",
        "A replica judges commands by the limits that its version knows, wherever they are in the "
        "log.",
        Edit(
            "UserMachine._is_limited",
            "self._limits.number > 0 and seq > self._limits.behind",
            "True",
        ),
        directed(
            LIMITS + "before_they_are_in_force_commands_are_applied_as_by_the_version_before",
            LIMITS + "a_machine_in_memory_applies_again_what_it_had_taken",
            LIMITS + "commands_of_a_record_from_before_are_bounded_by_nothing",
        ),
    ),
    mutation(
        "S13-limits-again",
        "A machine in memory that starts again judges what it had taken by limits of later on.",
        Edit("UserMachine._is_limited", "seq > self._limits.behind", "True"),
        directed(LIMITS + "a_machine_in_memory_applies_again_what_it_had_taken"),
    ),
    mutation(
        "S13-limits-of-a-backup",
        "Commands of a backup are applied again by limits that were not in force at its source.",
        Edit("apply_portion", "beside.append((MACHINE_LIMITS, packed(in_force)))", "pass"),
        directed(LIMITS + "commands_of_a_backup_are_applied_again_as_they_were_at_its_source"),
    ),
    mutation(
        "S13-limits-shown",
        "The place of limits is that of the log, and commands are judged by those of the machine.",
        Edit(
            "UserMachine._limit",
            "seen_seq(record.last_seq, self._origin)",
            "record.last_seq",
        ),
        directed(LIMITS + "commands_of_a_backup_are_applied_again_as_they_were_at_its_source"),
    ),
    mutation(
        "level-limits",
        "Limits of commands come into force while a node of the version before would stop at them.",
        Edit("newest_limits", "needed <= level", "True"),
        directed(WORLDS + "limits_come_into_force_when_the_last_node_knows_them"),
    ),
    mutation(
        "machine-bytes-of-a-command",
        "A command writes as many bytes as it likes.",
        Edit("CommandState._write", "size > self._bytes_max", "False"),
        directed(LIMITS + "a_command_may_write_so_many_bytes_and_no_more"),
    ),
    mutation(
        "machine-bytes-of-a-record",
        "Commands that share a record write together as much as each of them may.",
        Edit(
            "UserMachine._commands",
            "_Room() if is_limited else None",
            "None",
        ),
        directed(LIMITS + "commands_of_a_record_write_no_more_together_than_one_may"),
    ),
    mutation(
        "machine-crowded-out",
        "A command that its record had no room for is refused at its caller.",
        Edit("CommandWrites._ended", "self._crowded_out(record, result)", "[]"),
        directed(
            CLIENTS + "commands_that_are_crowded_out_of_their_record_leave_again_by_themselves"
        ),
    ),
    mutation(
        "machine-crowded-out-again",
        "A command that its record had no room for is never applied, however often it is given.",
        Edit(
            "CommandRepeats.repeat",
            "answer.end is not None and is_crowded_out(answer.end)",
            "False",
        ),
        directed(CLIENTS + "a_command_that_was_crowded_out_is_given_again_and_applied_once"),
    ),
    mutation(
        "machine-slow-unseen",
        "A machine at a command that never ends looks as if it were at nothing.",
        Edit("UserMachine._run", "self.at_work = record or seen", "pass"),
        directed(ADAPTER + "the_machine_says_what_it_is_at_and_nothing_behind_it"),
    ),
    mutation(
        "machine-slow-untold",
        "Nobody is told that a command does not end.",
        Edit("UserCommands.watch", "now_ms - self._seen_ms >= SLOW_MS", "False"),
        directed(WAITING + "a_command_that_does_not_end_is_told_once_and_its_callers_learn_of_it"),
    ),
    mutation(
        "machine-slow-unchecked",
        "A check of the cluster is well while a state machine is at a command that does not end.",
        Edit("stopped_channels", 'own.get("slow_machine")', "None"),
        directed(
            "tests/cli/test_check_disks.py::"
            "test_a_state_machine_at_a_command_that_does_not_end_is_critical"
        ),
    ),
    mutation(
        "machine-slow-always",
        "Short commands one after the other are taken for one that does not end.",
        Edit("UserCommands.watch", "at is not self._seen", "(at is None) != (self._seen is None)"),
        directed(WAITING + "many_commands_one_after_the_other_are_not_one_that_takes_long"),
    ),
    mutation(
        "W4-commands",
        "A witness that leads for a moment refuses commands for good.",
        Edit(
            "WitnessMachine.check", "del kind, payload, rows", "super().check(kind, payload, rows)"
        ),
        directed(WAITING + "a_witness_that_leads_refuses_no_command_for_what_it_is"),
    ),
    mutation(
        "S4.6-shared-command",
        "A command that shared a record is given again with another payload, and answered with "
        "the result of the first.",
        Edit("AsyncChannelSet._command", "not name.is_of(payload)", "False"),
        directed(CLIENTS + "a_command_given_again_with_another_payload_is_refused"),
    ),
    mutation(
        "S4.5-shared-unknown",
        "A command whose record nobody knows any more is sent again.",
        Edit("CommandRepeats.repeat", "answer.fate != NOT_APPLIED", "False"),
        directed(CLIENTS + "a_command_whose_record_nobody_knows_any_more_is_not_sent_again"),
    ),
    mutation(
        "S4.5-shared-counters",
        "The counters of the commands of a record are used for other writes, too.",
        Edit("ProducerSession._take", "self._counter += inner", "pass"),
        directed(CLIENTS + "a_record_has_no_more_commands_than_its_answer_has_room_for"),
    ),
    mutation(
        "recipes-resign-late",
        "A Resign of an earlier term ends a later leadership.",
        Edit(
            "_check_term",
            "resign.term and (race.leader, race.term) != (resign.candidate, resign.term)",
            "False",
        ),
        directed(
            RECIPES + "a_late_or_repeated_resign_ends_no_later_leadership",
            "tests/simulation/test_simulated_machines.py::test_machine_holds_under_faults[election]",
        ),
    ),
    mutation(
        "recipes-resign-unnamed",
        "A Resign that names no term ends a leadership.",
        Edit("_check_term", "leads and not resign.term", "False"),
        directed(RECIPES + "a_late_or_repeated_resign_ends_no_later_leadership"),
    ),
    mutation(
        "recipes-resign-replayed",
        "What version 1 of the election was told leads to something else now.",
        Edit("Election.apply", "context.version >= NAMED_TERMS", "True"),
        directed(RECIPES + "a_resign_of_before_leads_to_what_it_led_to"),
    ),
    mutation(
        "S0.8-set-given-again",
        "A command given again is sent to whichever channel set has the name by now.",
        Edit("AsyncChannelSet._open_of", "guid is None", "True"),
        directed(
            ANEW + "command_given_again_after_the_drop_stays_in_doubt_and_is_sent_to_nobody",
            ANEW + "command_given_again_where_a_table_has_the_name_stays_in_doubt",
        ),
    ),
    mutation(
        "S0.8-set-newer",
        "A command of a set that is newer than the catalog known here is refused as unknown.",
        Edit(
            "AsyncChannelSet._open_of",
            "await self._context.discovery.refresh(deadline_ms)",
            "pass",
        ),
        directed(
            ANEW + "command_of_a_set_that_is_newer_than_the_catalog_known_here_is_given_again"
        ),
    ),
    mutation(
        "S5.6-repeated-question",
        "A command of which nobody could be asked is reported as not applied.",
        Edit("CommandRepeats._fate", "error.outcome is Outcome.UNKNOWN", "True"),
        directed(ANEW + "command_given_again_after_the_drop_stays_in_doubt_and_is_sent_to_nobody"),
    ),
    mutation(
        "S4.3-dropped-waiting",
        "A command under way gets no answer where its channel set is dropped.",
        Edit("ChannelRunner.close", "self.core.role is Role.LEADER", "False"),
        directed(DROPS + "commands_under_way_are_answered_and_none_reaches_the_next_set"),
    ),
)
