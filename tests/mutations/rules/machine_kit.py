"""Mutations of what judges users' state machines, in simulated worlds and under chaos alike, and of
what such worlds may be."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

JUDGING = "tests/unit/testing/test_judging.py::test_"
EXPLAINED = JUDGING + "what_cannot_be_explained_is_found_and_shown"
STATES = JUDGING + "a_replica_with_another_state_is_named_with_its_keys"
CHANNELSETS = "tests/jepsen/test_channelsets.py::test_"
WRONG = CHANNELSETS + "what_a_wrong_store_did_is_found_and_shown"
WORLDS = "tests/simulation/test_simulated_machines.py::test_"
OPTIONS = "tests/simulation/test_options.py::test_"

MACHINE_KIT_RULES: tuple[Mutation, ...] = (
    mutation(
        "testing-machine-once",
        "A command that is in the log twice passes.",
        Edit("_check_once", "record.guid in places", "False"),
        directed(EXPLAINED),
    ),
    mutation(
        "testing-machine-refused",
        "A command that was refused and took effect all the same passes.",
        Edit("_check_once", 'operation.outcome == "refused" and seq is not None', "False"),
        directed(EXPLAINED),
    ),
    mutation(
        "testing-machine-time",
        "An answer that is older than one that was given before it was asked for passes.",
        Edit("_check_order_in_time", "not is_behind", "False"),
        directed(EXPLAINED, WRONG),
    ),
    mutation(
        "testing-machine-result",
        "A result that is not that of a sequential run passes.",
        Edit(
            "_check_command",
            'operation.outcome != "ok" or operation.encoded != applied.result',
            "False",
        ),
        directed(EXPLAINED, WRONG),
    ),
    mutation(
        "testing-machine-answer",
        "An answer to a query that is not that of a sequential run passes.",
        Edit("_check_query", 'operation.outcome != "ok" or operation.encoded != expected', "False"),
        directed(EXPLAINED, WRONG),
    ),
    mutation(
        "testing-machine-state",
        "A replica whose state is not that of a sequential run passes.",
        Edit("check_rows", "rows == judged.pairs", "True"),
        directed(STATES, WRONG),
    ),
    mutation(
        "testing-machine-repeat",
        "A command that is answered in two ways under one guid passes.",
        Edit(
            "_merge",
            "one != (again.outcome, again.seq, again.encoded, again.result)",
            "False",
        ),
        directed(WRONG),
    ),
    mutation(
        "testing-machine-levels",
        "In a world, a machine's answer beyond the bounds of its query passes.",
        Edit("SimUser._check_served", "check_level(query, served)", "pass"),
        directed(WORLDS + "a_replica_that_does_not_mind_the_bounds_of_a_query_is_found"),
    ),
    mutation(
        "testing-machine-named",
        "A run whose check or workload is left out behind its sign goes on without it.",
        Edit("_named", "is_begun and not name.strip()", "False"),
        directed(CHANNELSETS + "what_cannot_run_is_refused_before_anything_starts"),
    ),
    mutation(
        "testing-machine-check-ran",
        "A check that is a generator, and so never ran, passes every history.",
        Edit("check_history", "answer is not None", "False"),
        directed(CHANNELSETS + "a_check_of_the_user_is_given_the_history"),
    ),
    mutation(
        "testing-machine-check-ran-in-worlds",
        "The same in simulated worlds.",
        Edit("MachineSimulation.judge", "answer is not None", "False"),
        directed(WORLDS + "a_check_that_never_ran_passes_no_world"),
    ),
    mutation(
        "testing-nothing-judged",
        "A run that nothing judged is valid.",
        Edit("worst", "Validity.UNDECIDED", "Validity.VALID"),
        directed("tests/jepsen/test_result.py::test_run_that_nothing_judged_is_not_valid"),
    ),
    mutation(
        "testing-names",
        "A list of faults or addresses that names nothing is taken for one that was left out.",
        Edit("_list_of", "not name", "False"),
        directed("tests/cli/test_chaos.py::test_run_refuses_what_it_does_not_know"),
    ),
    mutation(
        "testing-option-range",
        "A world is run with values that no world can have, and called a broken promise.",
        Edit("check_options", "not meta.ge <= getattr(options, name) <= meta.le", "False"),
        directed(
            OPTIONS + "value_out_of_its_range_is_refused_with_what_it_may_be",
            "tests/cli/test_simulate.py::test_bad_usage_is_one_sentence_and_exit_code_2",
        ),
    ),
    mutation(
        "testing-option-pair",
        "A world is run with a least time above its most.",
        Edit("check_options", "getattr(options, least) > getattr(options, most)", "False"),
        directed(OPTIONS + "options_that_do_not_go_together_are_refused"),
    ),
    mutation(
        "testing-option-scrub",
        "Bits are flipped where nobody looks for them, and found missing in the end.",
        Edit("check_options", "options.live_flip_percent and not options.scrub", "False"),
        directed(OPTIONS + "options_that_do_not_go_together_are_refused"),
    ),
    mutation(
        "testing-option-clients",
        "A world in which nobody writes or reads is run.",
        Edit("own_options", "not getattr(options, name)", "False"),
        directed(OPTIONS + "world_without_clients_of_its_own_is_refused_where_there_are_no_others"),
    ),
    mutation(
        "testing-option-programs",
        "A program that asks for a world that cannot be is told of a broken promise.",
        Edit("Simulation.__init__", "check_options(options)", "pass"),
        directed(OPTIONS + "world_is_refused_to_programs_as_well"),
    ),
)
