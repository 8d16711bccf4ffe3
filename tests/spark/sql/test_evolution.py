"""WITH SCHEMA EVOLUTION adds columns and widens types; it never narrows a column that has values."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.sql.evolution import is_supported

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
needs_inserts = pytest.mark.skipif(
    RELEASE < (4, 2), reason="Spark asks tables for supported changes from 4.2 on"
)
needs_merges = pytest.mark.skipif(RELEASE < (4, 1), reason="Spark tells catalogs of new columns from 4.1 on")

COLUMNS = """
    id BIGINT, d DOUBLE, ts TIMESTAMP, s STRING, n STRUCT<a: DOUBLE, b: BIGINT>, l ARRAY<BIGINT>,
    m MAP<STRING, BIGINT>, x DECIMAL(20, 4)
"""
ROW = """
    1, 123456789.123, timestamp'2020-01-01 10:11:12', 'a', named_struct('a', 1.1d, 'b', 9876543210),
    array(9876543210), map('k', 9876543210), 1234567890123456.7891
"""
NARROW = """
    SELECT 2 AS id, CAST(1.5 AS FLOAT) AS d, date'2020-02-03' AS ts, 7 AS s,
    named_struct('a', CAST(2.5 AS FLOAT), 'b', 3) AS n, array(4) AS l, map('z', 5) AS m, 6.5 AS x
"""
# What is inserted by the target's types.
INSERTED = "2 1.5 2020-02-03 00:00:00 7 Row(a=2.5, b=3) [4] {'z': 5} 6.5000"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path / "lance"))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def test_fields_with_the_name_of_a_partition_column_are_widened(session: SparkSession) -> None:
    session.sql("CREATE TABLE lance.p (k INT, n STRUCT<k: INT>) PARTITIONED BY (k)")
    manifest = LanceTable.forName(session, "lance.p").dataset().manifest
    change = {"kind": "column_type", "type": '"long"'}
    assert is_supported(manifest, {**change, "column": ["n", "k"]})
    assert not is_supported(manifest, {**change, "column": ["k"]})


def types_of(session: SparkSession, table: str) -> str:
    return session.table(table).schema.simpleString()


def texts(session: SparkSession, query: str) -> list[str]:
    return sorted(" ".join(map(str, row)) for row in session.sql(query).collect())


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(f"INSERT WITH SCHEMA EVOLUTION INTO lance.t {NARROW}", marks=needs_inserts),
        pytest.param(f"INSERT WITH SCHEMA EVOLUTION INTO lance.t BY NAME {NARROW}", marks=needs_inserts),
        pytest.param(
            f"MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({NARROW}) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            marks=needs_merges,
        ),
    ],
    ids=["insert", "by name", "merge"],
)
def test_narrower_sources_are_cast(session: SparkSession, statement: str) -> None:
    session.sql(f"CREATE TABLE lance.t ({COLUMNS})").collect()
    session.sql(f"INSERT INTO lance.t VALUES ({ROW})").collect()
    types, stored = types_of(session, "lance.t"), texts(session, "SELECT * FROM lance.t")
    session.sql(statement).collect()
    assert types_of(session, "lance.t") == types
    assert texts(session, "SELECT * FROM lance.t WHERE id = 1") == stored
    assert texts(session, "SELECT * FROM lance.t WHERE id = 2") == [INSERTED]


@needs_merges
def test_types_are_widened_and_columns_added(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE lance.t (id INT, f FLOAT, n STRUCT<a: SMALLINT>, l ARRAY<TINYINT>, x DECIMAL(5, 2), "
        "day DATE, m MAP<STRING, STRUCT<a: SMALLINT>>)"
    ).collect()
    session.sql(
        "INSERT INTO lance.t VALUES (1, 1.5, named_struct('a', 2S), array(3Y), 4.25, date'2020-01-01', "
        "map('k', named_struct('a', 5S)))"
    ).collect()
    session.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO lance.t USING (SELECT 5000000000 AS id, 0.1d AS f, "
        "named_struct('a', 70000, 'more', 'x') AS n, array(300S) AS l, "
        "CAST(123456.125 AS DECIMAL(9, 3)) AS x, timestamp_ntz'2020-01-01 10:00:00' AS day, "
        "map('q', named_struct('a', 70000, 'b', 1.5d)) AS m, 'new' AS fresh) AS s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    assert types_of(session, "lance.t") == (
        "struct<id:bigint,f:double,n:struct<a:int,more:string>,l:array<smallint>,x:decimal(9,3),"
        "day:timestamp_ntz,m:map<string,struct<a:int,b:double>>,fresh:string>"
    )
    assert texts(session, "SELECT * FROM lance.t") == [
        "1 1.5 Row(a=2, more=None) [3] 4.250 2020-01-01 00:00:00 {'k': Row(a=5, b=None)} None",
        "5000000000 0.1 Row(a=70000, more='x') [300] 123456.125 2020-01-01 10:00:00 "
        "{'q': Row(a=70000, b=1.5)} new",
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("columns", "prepare", "source"),
    [
        ("id INT, v DOUBLE", None, "SELECT 2 AS id, 7.5 AS v"),
        ("id INT, v STRING", None, "SELECT 2 AS id, 7 AS v"),
        ("id INT, v INT", "CALL lance.system.create_index('t', 'id', 'BTREE')", "SELECT 2L AS id, 7 AS v"),
        ("id INT, v INT", "CALL lance.system.create_index('t', 'v', 'BITMAP')", "SELECT 2 AS id, 7L AS v"),
        ("id INT, v MAP<INT, INT>", None, "SELECT 2 AS id, map(1L, 7) AS v"),
        ("id INT, v CHAR(3)", None, "SELECT 2 AS id, 'x' AS v"),
        ("id INT, v STRING COLLATE UTF8_LCASE", None, "SELECT 2 AS id, 'x' AS v"),
        ("id INT, v TIMESTAMP", None, "SELECT 2 AS id, date'2020-01-01' AS v"),
        ("id INT, v DECIMAL(20, 2)", None, "SELECT 2 AS id, CAST(1 AS DECIMAL(20, 10)) AS v"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "verb", [pytest.param("INSERT", marks=needs_inserts), pytest.param("MERGE", marks=needs_merges)]
)
def test_what_works_without_evolution_works_with_it(
    session: SparkSession, verb: str, columns: str, prepare: str | None, source: str
) -> None:
    answers = []
    for number, words in enumerate(("", "WITH SCHEMA EVOLUTION")):
        table = f"lance.t{number}"
        session.sql(f"CREATE TABLE {table} ({columns})").collect()
        session.sql(f"INSERT INTO {table} VALUES (1, NULL)").collect()
        if prepare:
            session.sql(prepare.replace("'t'", f"'t{number}'")).collect()
        types = types_of(session, table)
        if verb == "INSERT":
            session.sql(f"INSERT {words} INTO {table} {source}").collect()
        else:
            session.sql(
                f"MERGE {words} INTO {table} AS t USING ({source}) AS s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            ).collect()
        assert types_of(session, table) == types
        answers.append(texts(session, f"SELECT * FROM {table}"))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 2


@needs_merges
def test_vectors_and_keys_keep_their_types(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE lance.t (id INT NOT NULL, v ARRAY<FLOAT>) TBLPROPERTIES "
        "('v.arrow.fixed-size-list.size' = '2', 'primary_key' = 'id')"
    ).collect()
    session.sql("INSERT INTO lance.t VALUES (1, array(1f, 2f))").collect()
    for source in ("SELECT 2L AS id, array(1.5d, 2.5d) AS v", "SELECT 2S AS id, array(1.5f, 2.5f) AS v"):
        session.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({source}) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()
    assert types_of(session, "lance.t") == "struct<id:int,v:array<float>>"
    assert texts(session, "SELECT * FROM lance.t") == ["1 [1.0, 2.0]", "2 [1.5, 2.5]"]


STRINGS = """
    id BIGINT, i INT, c CHAR(3), st STRUCT<n: INT, c: CHAR(3), in: STRUCT<v: VARCHAR(3), k: INT>>,
    ls ARRAY<STRUCT<n: INT, v: CHAR(2)>>
"""
# A wider column, and fields that are new or in another order, next to CHAR and VARCHAR.
FRESH = """
    SELECT 'x' AS c, 5000000000 AS i, {} AS id, array(named_struct('v', 'a', 'n', 5, 'w', 7)) AS ls,
    named_struct('in', named_struct('k', 50L, 'v', {}, 'z', 1), 'c', 'a', 'n', 7) AS st
"""


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("INSERT WITH SCHEMA EVOLUTION INTO lance.t BY NAME {}", marks=needs_inserts),
        pytest.param(
            "MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({}) AS s ON t.id = s.id AND t.c = 'y' "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            marks=needs_merges,
        ),
        pytest.param(
            "MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({}) AS s ON t.id = s.id WHEN NOT MATCHED THEN "
            "INSERT (id, i, c, st, ls) VALUES (s.id, s.i, s.c, s.st, s.ls)",
            marks=needs_merges,
        ),
    ],
    ids=["insert", "merge all", "merge"],
)
def test_tables_with_char_and_varchar_evolve(session: SparkSession, statement: str) -> None:
    session.sql(f"CREATE TABLE lance.t ({STRINGS})").collect()
    session.sql("INSERT INTO lance.t (id, i, c) VALUES (1, 6, 'y')").collect()
    with pytest.raises(PySparkException, match="EXCEED_LIMIT_LENGTH"):
        session.sql(statement.format(FRESH.format("9L", "'long'"))).collect()
    session.sql(statement.format(FRESH.format("2L", "'q'"))).collect()
    declared = [str(row.data_type) for row in session.sql("DESCRIBE lance.t").collect()]
    assert declared == [
        "bigint",
        "bigint",
        "char(3)",
        "struct<n:int,c:char(3),in:struct<v:varchar(3),k:bigint,z:int>>",
        "array<struct<n:int,v:char(2),w:int>>",
    ]
    assert texts(session, "SELECT * FROM lance.t") == [
        "1 6 y   None None",
        "2 5000000000 x   Row(n=7, c='a  ', in=Row(v='q', k=50, z=1)) [Row(n=5, v='a ', w=7)]",
    ]


@needs_merges
def test_fields_that_a_merge_adds_to_a_struct_with_char_are_stored(session: SparkSession) -> None:
    # Spark checks the lengths of a value whose fields are those before the evolution, and drops the rest.
    session.sql(f"CREATE TABLE lance.t ({STRINGS})").collect()
    session.sql("INSERT INTO lance.t (id) VALUES (1)").collect()
    session.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({FRESH.format('1L', repr('q'))}) AS s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET st = s.st, ls = s.ls"
    ).collect()
    assert texts(session, "SELECT st, ls FROM lance.t") == [
        "Row(n=7, c='a  ', in=Row(v='q', k=50, z=1)) [Row(n=5, v='a ', w=7)]"
    ]


@needs_merges
def test_merges_into_tables_with_char_cast_the_source(session: SparkSession) -> None:
    # Spark reads CHAR columns through a projection, which must not hide the table.
    session.sql("CREATE TABLE lance.t (id BIGINT, i INT, c CHAR(3), l ARRAY<INT>)").collect()
    session.sql("INSERT INTO lance.t VALUES (1, 1, 'a', NULL)").collect()
    source = "SELECT {} AS id, 7Y AS i, NULL AS c, NULL AS l"
    for key in ("1L", "2L"):
        session.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO lance.t USING ({source.format(key)}) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()
    assert texts(session, "SELECT * FROM lance.t ORDER BY id") == ["1 7 None None", "2 7 None None"]
    assert session.table("lance.t").schema["i"].dataType.simpleString() == "int"


@needs_inserts
def test_values_that_do_not_fit_are_refused(session: SparkSession) -> None:
    session.sql(
        "CREATE TABLE lance.t (id INT NOT NULL, v INT) TBLPROPERTIES ('primary_key' = 'id')"
    ).collect()
    session.sql("INSERT INTO lance.t VALUES (1, 1)").collect()
    with pytest.raises(PySparkException, match="CAST_OVERFLOW"):
        session.sql("INSERT WITH SCHEMA EVOLUTION INTO lance.t SELECT 5000000000 AS id, 7 AS v").collect()
    assert texts(session, "SELECT id, v FROM lance.t") == ["1 1"]


@pytest.mark.skipif(RELEASE != (4, 1), reason="other releases leave such changes out, or have none")
def test_older_releases_refuse_to_narrow(session: SparkSession) -> None:
    # With a cast the condition on s.d might mean something else.
    session.sql("CREATE TABLE lance.t (id BIGINT, d DOUBLE)").collect()
    session.sql("INSERT INTO lance.t VALUES (1, 123456789.123)").collect()
    merge = (
        "MERGE WITH SCHEMA EVOLUTION INTO lance.t USING (SELECT 2L AS id, {} AS d, 1 AS fresh) AS s "
        "ON t.id = s.id AND s.d * 3 > 4 {} WHEN NOT MATCHED THEN INSERT *"
    )
    for clause in ("", "WHEN MATCHED AND s.d * 3 > 4 THEN UPDATE SET d = s.d"):
        with pytest.raises(PySparkException, match="would change column 'd' from double to float"):
            session.sql(merge.format("1.5f", clause)).collect()
    assert texts(session, "SELECT * FROM lance.t") == ["1 123456789.123"]
    session.sql(merge.format("CAST(1.5f AS DOUBLE)", "")).collect()
    assert texts(session, "SELECT * FROM lance.t") == ["1 123456789.123 None", "2 1.5 1"]


# Type -> values of it. Spark's store assignment casts between many of them.
KINDS = {
    "TINYINT": ["1Y", "-7Y", "NULL"],
    "SMALLINT": ["2S", "300S", "NULL"],
    "INT": ["3", "70000", "NULL"],
    "BIGINT": ["4L", "5000000000", "NULL"],
    "FLOAT": ["1.5f", "0.1f", "NULL"],
    "DOUBLE": ["2.5d", "123456789.123d", "NULL"],
    "DECIMAL(6,2)": ["CAST(1.25 AS DECIMAL(6,2))", "NULL"],
    "DECIMAL(12,4)": ["CAST(12345678.1234 AS DECIMAL(12,4))", "NULL"],
    "STRING": ["'a'", "'12'", "NULL"],
    "DATE": ["date'2020-01-01'", "NULL"],
    "TIMESTAMP": ["timestamp'2020-01-01 10:11:12.123456'", "NULL"],
    "TIMESTAMP_NTZ": ["timestamp_ntz'2020-01-01 10:11:12.123456'", "NULL"],
    "BOOLEAN": ["true", "false", "NULL"],
}
ORDER = ["TINYINT", "SMALLINT", "INT", "BIGINT"]


def evolved(target: str, source: str) -> str:
    """Return the type that a column has after evolution: the model."""
    if target in ORDER and source in ORDER:
        return max(target, source, key=ORDER.index)
    wider = {("FLOAT", "DOUBLE"), ("DECIMAL(6,2)", "DECIMAL(12,4)"), ("DATE", "TIMESTAMP_NTZ")}
    return source if (target, source) in wider else target


def wrapped(shape: str, kind: str) -> str:
    return {"plain": kind, "struct": f"STRUCT<f: {kind}>", "array": f"ARRAY<{kind}>"}.get(
        shape, f"MAP<INT, {kind}>"
    )


def value(shape: str, text: str) -> str:
    return {"plain": text, "struct": f"named_struct('f', {text})", "array": f"array({text})"}.get(
        shape, f"map(1, {text})"
    )


def translate_json_condition(session: SparkSession, statement: str) -> str | None:
    """Run a statement; return the condition of the error that Spark refuses it with."""
    try:
        session.sql(statement).collect()
    except PySparkException as error:
        return str(error.getCondition() or error)
    return None


@pytest.mark.slow
@needs_inserts
def test_random_sources_against_store_assignment(
    session: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    # As much as is cheap: each example is five statements.
    chance = random.Random(20260131)
    control = spark.newSession()
    control.conf.set("spark.sql.session.timeZone", "UTC")
    outcomes = {"stored": 0, "refused": 0, "widened": 0}
    for example in range(24):
        shapes = [chance.choice(("plain", "plain", "struct", "array", "map")) for _ in range(3)]
        targets = [chance.choice(list(KINDS)) for _ in shapes]
        # Half of the sources have a type of the same family.
        sources = [
            chance.choice(ORDER if kind in ORDER and chance.random() < 0.7 else list(KINDS))
            for kind in targets
        ]
        models = [evolved(kind, source) for kind, source in zip(targets, sources, strict=True)]
        ours, theirs = f"lance.t{example}", f"spark_catalog.default.evolved_{tmp_path.name.replace('-', '_')}"
        columns = [f"c{i} {wrapped(*each)}" for i, each in enumerate(zip(shapes, targets, strict=True))]
        model = [f"c{i} {wrapped(*each)}" for i, each in enumerate(zip(shapes, models, strict=True))]
        first = ", ".join(
            f"CAST({value(shape, chance.choice(KINDS[kind]))} AS {wrapped(shape, kind)})"
            for shape, kind in zip(shapes, targets, strict=True)
        )
        rows = ", ".join(
            f"CAST({value(shape, chance.choice(KINDS[kind]))} AS {wrapped(shape, kind)}) AS c{i}"
            for i, (shape, kind) in enumerate(zip(shapes, sources, strict=True))
        )
        session.sql(f"CREATE TABLE {ours} ({', '.join(columns)})").collect()
        session.sql(f"INSERT INTO {ours} SELECT {first}").collect()
        control.sql(f"CREATE TABLE {theirs} ({', '.join(model)}, fresh INT) USING parquet").collect()
        try:
            control.sql(f"INSERT INTO {theirs} SELECT {first}, NULL").collect()
            expected = translate_json_condition(control, f"INSERT INTO {theirs} SELECT {rows}, 8 AS fresh")
            statement = f"INSERT WITH SCHEMA EVOLUTION INTO {ours} SELECT {rows}, 8 AS fresh"
            assert translate_json_condition(session, statement) == expected, (columns, rows)
            outcomes["stored" if expected is None else "refused"] += 1
            outcomes["widened"] += models != targets
            names = ", ".join(f"c{i}" for i in range(len(shapes)))
            assert session.sql(f"SELECT {names} FROM {ours}").schema.simpleString() == (
                control.sql(f"SELECT {names} FROM {theirs}").schema.simpleString()
            ), (columns, rows)
            assert texts(session, f"SELECT {names} FROM {ours}") == (
                texts(control, f"SELECT {names} FROM {theirs}")
            ), (columns, rows)
        finally:
            control.sql(f"DROP TABLE {theirs}").collect()
    assert min(outcomes.values()) > 2, outcomes


@pytest.mark.skipif(RELEASE > (4, 1), reason="the grammar of newer releases has the statement")
def test_older_releases_say_what_to_write_in_place_of_an_insert(session: SparkSession) -> None:
    session.sql("CREATE NAMESPACE lance.db")
    session.sql("CREATE TABLE lance.db.u AS SELECT 1 AS id")
    session.sql("USE lance.db")
    with pytest.raises(PySparkException, match=r"ALTER TABLE u ADD COLUMN name type, .* INSERT OVERWRITE u$"):
        session.sql("INSERT WITH SCHEMA EVOLUTION OVERWRITE u SELECT 2 AS id, 'x' AS s")
    with pytest.raises(PySparkException) as refusal:
        session.sql("INSERT WITH SCHEMA EVOLUTION INTO TABLE u SELECT 2 AS id, 'x' AS s")
    form = r"write (ALTER.*) name type, and then (INSERT.*); or write (df\..*\))"
    advice = re.search(form, str(refusal.value))
    assert advice is not None
    assert "\n" not in str(refusal.value)
    session.sql(f"{advice[1]} s STRING")
    session.sql(f"{advice[2]} SELECT 2 AS id, 'x' AS s")
    df = session.sql("SELECT 3 AS id, 'y' AS s, 4.5D AS d")
    eval(advice[3], {"df": df})
    assert texts(session, "SELECT * FROM u") == ["1 None None", "2 x None", "3 y 4.5"]
