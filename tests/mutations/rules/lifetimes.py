"""Mutations of lifetimes: when a row has expired, for whom, and who says so."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.rules.drawn_worlds import LIVES
from tests.mutations.syntax import Edit

CONTRACT = "tests/contract/test_lifetimes.py::test_"
EXPIRER = "tests/unit/engine/retention/test_expirer.py::test_"
ENGINE = "tests/unit/engine/retention/test_expiry_worlds.py::test_"
CLIENT = "tests/integration/client/test_lifetimes.py::test_"
WORLDS = (
    "tests/simulation/test_lifetimes.py::test_s10_rows_expire_by_what_the_log_tells_under_faults"
)

LIFETIME_RULES: tuple[Mutation, ...] = (
    mutation(
        "S10-expiry-own-clock",
        "Readers are shown what has expired by the clock of their own node.",
        Edit(
            "channel_time",
            "unpacked(stored, ChannelTime).ms",
            "max(unpacked(stored, ChannelTime).ms, int(__import__('time').time() * 1000))",
        ),
        directed(
            CONTRACT + "row_is_expired_from_the_channel_time_of_its_expiry_on",
            CONTRACT + "state_that_a_reader_keeps_shows_what_had_not_expired_then",
            WORLDS + "[1]",
        ),
        LIVES,
    ),
    mutation(
        "S10-expiry-goes-back",
        "A leader whose clock is behind takes the channel time back.",
        Edit(
            "expire",
            "max(time_ms, min(until_ms, record.timestamp_ms))",
            "min(until_ms, record.timestamp_ms)",
        ),
        # In worlds no stamp goes back since leaders hold theirs to the clocks of a quorum.
        directed(CONTRACT + "channel_time_never_goes_back_nor_ahead_of_the_log"),
    ),
    mutation(
        "S10-expiry-ahead-of-the-log",
        "The channel time may be later than the record that states it, so rows are born expired.",
        Edit("expire", "min(until_ms, record.timestamp_ms)", "until_ms"),
        directed(CONTRACT + "channel_time_never_goes_back_nor_ahead_of_the_log"),
    ),
    mutation(
        "S10-expired-condition",
        "A conditional write sees a row that has expired and is not removed yet.",
        Edit(
            "apply_with_lifetimes",
            "apply_rows(inner, visible(read, time_ms))",
            "apply_rows(inner, read)",
        ),
        directed(CONTRACT + "condition_takes_an_expired_row_for_none", WORLDS + "[2]"),
        LIVES,
    ),
    mutation(
        "S10-expired-batch",
        "Rows of a batch are merged into rows that have expired.",
        Edit("rows_of_piece", "is_expired(row.expires_ms, state.time_ms)", "False"),
        directed(CONTRACT + "batch_takes_an_expired_row_for_none"),
    ),
    mutation(
        "S10-expiry-renewed",
        "A row that was written again after the leader named it is removed.",
        Edit(
            "expire",
            "row is not None and is_expired(row.expires_ms, time_ms)",
            "row is not None",
        ),
        directed(
            CONTRACT + "row_that_is_written_again_has_another_lifetime_or_none", WORLDS + "[1]"
        ),
        LIVES,
    ),
    mutation(
        "S10-expiry-leader-clock",
        "A leader says how late it is by its own clock alone.",
        Edit(
            "Expirer.time_ms",
            "min(wall_ms, reached_ms + self._settings.clock_ahead_ms)",
            "wall_ms",
        ),
        directed(
            EXPIRER + "clock_that_is_ahead_of_a_quorum_has_no_row_expire_early",
            ENGINE + "clock_of_one_node_that_is_a_day_ahead_has_no_row_expire_early",
            WORLDS + "[1]",
        ),
        LIVES,
    ),
    mutation(
        "S10-expiry-jump-of-both",
        "The clocks of others are counted on by the clock here, and jump with it.",
        Edit(
            "PeerWatch.wall_ms",
            "peer.wall_ms",
            "peer.wall_ms + self._parts.clock.now_ms - (peer.last_heard_ms or 0)",
        ),
        directed(ENGINE + "clocks_of_the_leader_that_jump_together_have_no_row_expire_early"),
        chaos("lifetimes", "clock-hour"),
    ),
    mutation(
        "S10-expiry-index",
        "The index keeps the former expiry of a row that was written again.",
        Edit("moved", "changes.append((expiry_key(before_ms, key), None))", "pass"),
        directed(CONTRACT + "row_that_is_written_again_has_another_lifetime_or_none"),
    ),
    mutation(
        "S10-expiry-truncated",
        "Rows that a batch replaces leave their expiry in the index.",
        Edit("index_of_row", "0 if row is None else row.expires_ms", "0"),
        directed(CONTRACT + "replaced_table_leaves_no_index_behind"),
    ),
    mutation(
        "S10-expired-shown",
        "A scan shows rows that have expired and are not removed yet.",
        Edit("shown", "is_expired(expires_ms, time_ms)", "False"),
        directed(CONTRACT + "row_is_expired_from_the_channel_time_of_its_expiry_on"),
    ),
    mutation(
        "S10-expired-snapshot",
        "A reader that keeps a state is shown what has expired by now.",
        Edit(
            "LevelDbTables._time_in",
            "self._reads.channel_time(snapshot, channel)",
            "self._channels[channel].time_ms",
        ),
        directed(CONTRACT + "state_that_is_kept_for_readers_of_a_batch_has_its_own_time"),
    ),
    mutation(
        "S10-expiry-hash",
        "Replicas whose rows expire at different times count as equal.",
        Edit(
            "ContentHasher.add",
            'self._hash.update(expires_ms.to_bytes(SEQ_BYTES, "big"))',
            "pass",
        ),
        directed("tests/unit/storage/tables/test_keys.py::test_content_hash_tells_expiries_apart"),
    ),
    mutation(
        "S10-expiry-change",
        "Readers of changes get a row as expired that was renewed.",
        Edit("ChangeFeeds._expired", 'b"" if outcome is None else outcome.data', 'b""'),
        directed(
            CONTRACT + "changes_tell_an_expiry_once_and_in_its_place",
            CONTRACT + "row_that_is_written_again_has_another_lifetime_or_none",
        ),
    ),
    mutation(
        "S10-expiry-one-record",
        "Rows are named again while the record that names them is not applied.",
        Edit("Expirer._look", "self._tables.applied_seq(channel) < led.named_seq", "False"),
        directed(EXPIRER + "one_record_is_under_way_at_a_time_until_it_is_applied"),
    ),
    mutation(
        "S10-expiry-paced-when-behind",
        "A full record that expires rows is followed by a whole pause, however many rows are due.",
        Edit(
            "Expirer._note",
            "now_ms if is_next else now_ms + self._settings.tick_ms",
            "now_ms + self._settings.tick_ms",
        ),
        directed(EXPIRER + "full_record_is_followed_by_the_next_one_at_once[False-rows]"),
    ),
    mutation(
        "S10-expiry-no-turns",
        "Records that expire rows follow one another, and requests wait.",
        Edit("Expirer._ended", "PAUSE_TIMES * took_ms", "0"),
        directed(EXPIRER + "between_full_records_requests_have_their_turn"),
    ),
    mutation(
        "S10-expiry-never-catches-up",
        "Pauses between records that expire rows stay, however late they are.",
        Edit("Expirer._waits", "due.late_ms < self._settings.late_ms_max", "True"),
        directed(EXPIRER + "rows_that_became_late_behind_a_record_do_not_wait_for_its_pause"),
    ),
    mutation(
        "S10-expiry-waits-for-others",
        "The rows of a channel expire when all that is due before them in others is gone.",
        Edit(
            "Expirer._waits",
            "since_ms + self._settings.tick_ms",
            "since_ms + 100 * self._settings.tick_ms",
        ),
        directed(EXPIRER + "no_channel_waits_for_its_turn_longer_than_a_tick"),
    ),
    mutation(
        "S10-expiry-follower",
        "A node that leads no more goes on having rows expire.",
        Edit("Expirer.leader_changed", "self._forget(runner.channel)", "pass"),
        directed(EXPIRER + "only_a_leader_has_rows_expire"),
    ),
    mutation(
        "levels-lifetime-staged",
        "Staged rows with a lifetime are taken while a node reads no such header.",
        Edit("ChannelBatches.stage_refusal", "too_new is not None", "False"),
        directed(ENGINE + "staged_rows_with_a_lifetime_wait_for_the_last_node_of_before"),
    ),
    mutation(
        "client-lifetimes-share",
        "Rows with different lifetimes share a record, and live as long as the first.",
        Edit("RowGathering._next_shared", "row.ttl_ms != rows[0].ttl_ms", "False"),
        directed(CLIENT + "rows_share_a_record_only_with_rows_of_their_lifetime"),
    ),
    mutation(
        "client-table-lifetime",
        "A write that says for ever gets the lifetime of its table.",
        Edit("_ttl_ms", "given_ms is None", "not given_ms"),
        directed(CLIENT + "table_has_a_ttl_for_what_is_written_without_one"),
    ),
)
