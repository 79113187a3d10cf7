"""Notes about a table in the columns of its Spark SQL table, and the queries that may use them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from raftstore.errors import ConfigError
from raftstore.spark.catalog_tables import (
    create_table_options,
    is_create_table,
    noted_options,
    read_options,
    refuse_write_by_name,
    with_note,
    without_note,
)

PLAIN = StructType(
    [StructField("id", LongType(), False, {"of": "user"}), StructField("total", DoubleType())]
)
OPTIONS = {"bootstrap.servers": "n1:4481", "table": "orders", "maxlagms": "500", "key": "id"}
CREATED = with_note(PLAIN, OPTIONS)


def test_create_table_is_told_by_what_spark_adds() -> None:
    """Spark hands the options twice, between properties of its own catalog."""
    given = {"option.table": "orders", "table": "orders", "provider": "raftstore", "owner": "me"}
    assert is_create_table(given)
    assert create_table_options(given) == {"table": "orders"}
    assert is_create_table({"provider": "raftstore"})
    assert not is_create_table({"table": "orders", "bootstrap.servers": "n1:4481"})


def test_note_stands_in_every_column_and_can_be_taken_out() -> None:
    """Names, types, nullability and the metadata of others stay."""
    assert noted_options(CREATED) == OPTIONS
    assert without_note(CREATED) == PLAIN
    assert [field.metadata.get("of") for field in CREATED] == ["user", None]


@pytest.mark.parametrize(
    "schema",
    [
        PLAIN,
        StructType([]),
        StructType([CREATED[0], PLAIN[1]]),
        StructType([CREATED[0], with_note(PLAIN, OPTIONS | {"table": "others"})[1]]),
        StructType([StructField("renamed", LongType(), True, CREATED[0].metadata)]),
    ],
    ids=["no note", "no columns", "one column without", "two tables", "renamed"],
)
def test_columns_that_do_not_agree_on_a_table_name_none(schema: StructType) -> None:
    """A read of them has to say itself what it reads."""
    assert noted_options(schema) == {}
    with pytest.raises(ConfigError, match="without columns"):
        read_options({"level": "any"}, schema)


def test_read_by_name_has_the_options_of_the_table_that_concern_reading() -> None:
    """A read by name takes the table's options without those for writing, and
    adds the query's own.
    """
    noted = {"bootstrap.servers": "n1:4481", "table": "orders", "maxlagms": "500"}
    assert read_options({}, CREATED) == noted
    assert read_options({"pinlife": "5m"}, CREATED) == noted | {"pinlife": "5m"}


@pytest.mark.parametrize("own", [{"level": "any"}, {"maxlagseq": "7"}, {"atbatch": "job:1"}])
def test_bounds_of_a_query_are_in_place_of_those_of_the_table(own: dict[str, str]) -> None:
    """Beside them they would contradict each other."""
    assert read_options(own, CREATED) == {"bootstrap.servers": "n1:4481", "table": "orders", **own}


@pytest.mark.parametrize("own", [{"path": "t"}, {"table": "t"}, {"bootstrap.servers": "n2:4481"}])
def test_query_that_names_a_table_is_about_that_one(own: dict[str, str]) -> None:
    """A query that names a table uses that one, whatever table its columns note."""
    assert read_options(own, CREATED) == own
    refuse_write_by_name(own)


def test_write_that_names_no_table_is_refused_whatever_its_columns_note() -> None:
    """The note may be of the table that the rows were read from."""
    with pytest.raises(ConfigError, match="INSERT INTO name WITH"):
        refuse_write_by_name({"operation": "insert"})
