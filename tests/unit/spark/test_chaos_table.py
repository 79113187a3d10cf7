"""What the readers of the Spark chaos run believe of a table, on tables that cannot be."""

from types import SimpleNamespace

import pytest

from tests.spark.chaos_table import ROWS, STEP, Truth


def table(newest, lives=None):
    """The fold of all batches up to this one, each of its life."""
    rows = [
        {"id": number, "batch": min(newest, number // STEP)}
        for number in range(newest * STEP + ROWS)
    ]
    return [row | {"life": (lives or {}).get(row["batch"], 1)} for row in rows]


def test_right_tables_are_told_by_their_newest_batch():
    """Lives may change from batch to batch."""
    truth = Truth()
    assert truth.check([]) == -1
    assert truth.check(table(0)) == 0
    assert truth.check(table(3, {2: 2, 3: 2})) == 3
    assert truth.lives == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "are missing"),
        (lambda rows: [*rows[:-1], rows[-1] | {"batch": 1}], "differ"),
        (lambda rows: [*rows, {"id": 9_999, "batch": 2, "life": 1}], "differ"),
        (lambda rows: [*rows[:-1], rows[-1] | {"life": 2}], "several lives"),
    ],
)
def test_half_a_batch_is_found(change, said):
    """A row is missing, older than it may be, from nowhere, or of another life."""
    with pytest.raises(AssertionError, match=said):
        Truth().check(change(table(2)))


def test_batch_that_was_written_again_is_found():
    """Whatever its first life wrote stays."""
    truth = Truth()
    truth.check(table(1))
    with pytest.raises(AssertionError, match="batch 1 was of life 1, now of life 2"):
        truth.check(table(1, {1: 2}))


def feed(*batches, life=1):
    """Changes of all rows of these batches."""
    return [
        SimpleNamespace(
            kind="upsert", seq=number, batch_id=batch,
            row={"id": number, "batch": batch, "life": life},
        )
        for batch in batches
        for number in range(batch * STEP, batch * STEP + ROWS)
    ]  # fmt: skip


def test_right_feed_shows_each_batch_once():
    """The oldest batch may be cut."""
    truth = Truth()
    truth.check(table(2))
    assert truth.check_feed(feed(0, 1, 2)) == 3
    assert truth.check_feed(feed(1, 2)[5:]) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (feed(0, 1, 2, 2), "shows of batch 2"),
        (feed(0, 1, 2)[:-1], "shows of batch 2"),
        (feed(0, 2), "passes over"),
        (feed(0, 1, 2, life=2), "shows batch 0 of"),
        ([*feed(0, 1)[:-1], *feed(1, life=2)[-1:]], "several lives"),
    ],
)
def test_wrong_feed_is_found(changes, said):
    """A batch twice, in parts, left out, or of a life that lost."""
    truth = Truth()
    truth.check(table(2))
    with pytest.raises(AssertionError, match=said):
        truth.check_feed(changes)
