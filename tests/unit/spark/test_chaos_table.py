"""Checks of the Spark chaos run's readers, on tables that cannot be right."""

from types import SimpleNamespace

import pytest

from tests.spark.chaos_table import ROWS, STEP, Files, Truth, rows_of


def table(newest, drivers=None):
    """The fold of all batches up to this one, each of its driver."""
    rows = [
        {"id": number, "batch": min(newest, number // STEP)}
        for number in range(newest * STEP + ROWS)
    ]
    return [row | {"driver": (drivers or {}).get(row["batch"], 1)} for row in rows]


def test_right_tables_are_told_by_their_newest_batch():
    """Given batches of several drivers, each whole, the table is right."""
    truth = Truth()
    assert truth.check([]) == -1
    assert truth.check(table(0)) == 0
    assert truth.check(table(3, {2: 2, 3: 2})) == 3
    assert truth.drivers == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "are missing"),
        (lambda rows: [*rows[:-1], rows[-1] | {"batch": 1}], "differ"),
        (lambda rows: [*rows, {"id": 9_999, "batch": 2, "driver": 1}], "differ"),
        (lambda rows: [*rows[:-1], rows[-1] | {"driver": 2}], "several drivers"),
    ],
)
def test_half_a_batch_is_found(change, said):
    """A row is missing, older than it may be, unknown, or of another driver."""
    with pytest.raises(AssertionError, match=said):
        Truth().check(change(table(2)))


def test_batch_that_was_written_again_is_found():
    """Given a batch whose rows are those of a later driver, the check fails: the first driver's
    rows stay.
    """
    truth = Truth()
    truth.check(table(1))
    with pytest.raises(AssertionError, match="batch 1 was of driver 1, now of 2"):
        truth.check(table(1, {1: 2}))


ONE_EACH = {batch: range(batch, batch + 1) for batch in range(3)}
TWO_IN_ONE = {0: range(1), 1: range(1, 3)}
"""Files of each micro-batch."""


def feed(*batches, driver=1, files=ONE_EACH):
    """Changes of all rows of these batches."""
    return [
        SimpleNamespace(
            kind="upsert", seq=number, batch_id=batch,
            row={"id": number, "batch": file, "driver": driver},
        )
        for batch in batches
        for number, file in rows_of(files[batch])
    ]  # fmt: skip


def test_right_feed_shows_each_batch_once():
    """The oldest batch may be cut."""
    truth = Truth()
    truth.check(table(2))
    assert truth.check_feed(feed(0, 1, 2), ONE_EACH) == 3
    assert truth.check_feed(feed(1, 2)[5:], ONE_EACH) == 1


def test_right_feed_shows_the_files_of_a_batch_together():
    """Of two rows with one key that of the later file."""
    truth = Truth()
    truth.check(table(2))
    assert truth.check_feed(feed(0, 1, files=TWO_IN_ONE), TWO_IN_ONE) == 2
    with pytest.raises(AssertionError, match="shows of batch 1"):
        truth.check_feed(feed(0, 1), TWO_IN_ONE)


def test_files_of_batches_are_learnt_from_what_spark_wrote_down(tmp_path):
    """One file each, or two, where a driver died between listing the first and planning it."""
    (tmp_path / "offsets").mkdir()
    for batch, last in enumerate((0, 2, 3)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{last}}}')
        (tmp_path / "offsets" / f".{batch}.crc").write_text("not for us")
    files = Files(tmp_path)
    files.look()
    assert files.by_batch() == {0: range(1), 1: range(1, 3), 2: range(3, 4)}
    (tmp_path / "offsets" / "5").write_text('v1\n{}\n{"logOffset":9}')
    files.look()
    with pytest.raises(AssertionError, match="went by unseen"):
        files.by_batch()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (feed(0, 1, 2, 2), "shows of batch 2"),
        (feed(0, 1, 2)[:-1], "shows of batch 2"),
        (feed(0, 2), "passes over"),
        (feed(0, 1, 2, driver=2), "shows batch 0 of"),
        ([*feed(0, 1)[:-1], *feed(1, driver=2)[-1:]], "several drivers"),
    ],
)
def test_wrong_feed_is_found(changes, said):
    """A batch twice, in parts, left out, or of a driver whose rows are not in the table."""
    truth = Truth()
    truth.check(table(2))
    with pytest.raises(AssertionError, match=said):
        truth.check_feed(changes, ONE_EACH)
