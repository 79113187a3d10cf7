"""Tables that Spark SQL knows by name: CREATE TABLE, INSERT and SELECT, by a real Spark."""

import pytest
from pyspark.errors import PySparkException

from tests.spark.test_sink import options

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def orders(files, store):
    """A table of the store with one row, and the same as table ``orders`` of Spark SQL."""
    one = files.sql("SELECT 1L AS id, 9.5D AS total")
    one.write.format("raftstore").options(**options(store, partitions=1)).mode("append").save(
        "orders"
    )
    create(files, store, "orders", "orders")
    yield "orders"
    for name in ("orders", "others"):
        files.sql(f"DROP TABLE IF EXISTS {name}")


def create(session, store, name, table, more=""):
    """Make a table of Spark SQL, without a list of columns."""
    session.sql(
        f"CREATE TABLE {name} USING raftstore "
        f"OPTIONS ('bootstrap.servers' '{store.directory}', 'table' '{table}'{more})"
    )


def rows(session, text):
    """The answer to a query, sorted."""
    return sorted(tuple(row) for row in session.sql(text).collect())


def refusal(call):
    """The text of what a call raises, without the way that it took."""
    with pytest.raises(PySparkException) as raised:
        call()
    return str(raised.value)


def test_table_is_created_read_and_written_in_sql(files, store, orders):
    """CREATE TABLE and SELECT by name; INSERT says where, or goes by a temporary view."""
    place = f"`bootstrap.servers` = '{store.directory}', `table` = 'orders'"
    files.sql(f"INSERT INTO {orders} WITH ({place}) VALUES (2, 3.5)")
    files.sql(
        "CREATE TEMPORARY VIEW all_orders USING raftstore "
        f"OPTIONS ('bootstrap.servers' '{store.directory}', 'table' 'orders')"
    )
    files.sql("INSERT INTO all_orders SELECT 3L, 1.25D")
    assert rows(files, f"SELECT id, total FROM {orders}") == [(1, 9.5), (2, 3.5), (3, 1.25)]
    files.sql("DROP VIEW all_orders")


def test_what_is_read_by_name_never_says_where_a_write_goes(files, store, orders):
    """Spark may leave the columns of an INSERT as the table they were read from noted them, so a
    write by name could go back there. It is refused, and what is written elsewhere has no note."""
    create(files, store, "others", "orders")
    for call in (
        lambda: files.sql(f"INSERT INTO others SELECT id, total FROM {orders}"),
        lambda: files.sql(f"INSERT OVERWRITE {orders} VALUES (4, 3.5)"),
        lambda: files.table(orders).write.format("raftstore").mode("overwrite").save(),
        lambda: files.table(orders).writeTo("others").append(),
    ):
        assert "INSERT INTO name WITH" in refusal(call)
    files.table(orders).write.format("raftstore").options(**options(store)).mode("append").save("t")
    read = files.read.format("raftstore").option("bootstrap.servers", str(store.directory))
    assert [field.metadata for field in read.load("t").schema] == [{}, {}]


def test_refusals_in_sql_name_what_is_wrong_and_what_to_do(files, store, orders):
    """An unknown option, no servers, a missing table, and a list of columns, which hides them."""
    wrong = refusal(lambda: create(files, store, "others", "orders", ", 'levle' 'any'"))
    assert "[RAFTSTORE_OPTION_UNKNOWN] there is no option 'levle': did you mean 'level'?" in wrong
    assert "there is no table" in refusal(lambda: create(files, store, "others", "nowhere"))
    assert "bootstrap.servers is not set" in refusal(
        lambda: files.sql("CREATE TABLE others USING raftstore")
    )
    files.sql(
        "CREATE TABLE others (id LONG) USING raftstore "
        f"OPTIONS ('bootstrap.servers' '{store.directory}', 'table' 'orders')"
    )
    assert "OPTIONS (…), without columns" in refusal(
        lambda: files.sql("SELECT * FROM others").collect()
    )
    level = refusal(lambda: files.sql(f"SELECT id FROM {orders} WITH (level 'nearly')").collect())
    assert "level is 'nearly'" in level


def test_error_is_the_sentence_and_not_the_way_it_took(files, store):
    """Spark puts the traceback before the sentence: one place of ours at most is left of it."""
    read = files.read.format("raftstore").option("bootstrap.servers", str(store.directory))
    for text in (
        refusal(lambda: read.option("batc", "1").load("t")),
        refusal(lambda: files.read.format("raftstore").load("t")),
        refusal(lambda: files.range(1).write.format("raftstore").mode("append").save("t")),
        refusal(lambda: read.load("t")),
    ):
        assert text.count('File "') <= 2
        assert len(text.split("[RAFTSTORE_")[0]) < 600
