"""The session's own catalog with Lance tables in it: the same statements over Parquet and over Lance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import partitioning

import spark_lance
from spark_lance.errors import OptionError
from spark_lance.spark.sql.session_names import SessionNames, local_path

Run = Callable[[str], list[tuple[Any, ...]]]
DATABASE = "mixed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session catalog")


@pytest.fixture(scope="module")
def session(spark: SparkSession, folder: Path) -> Iterator[SparkSession]:
    session = spark_lance.enable(spark.newSession(), catalog="spark_catalog")
    session.sql(f"CREATE DATABASE {DATABASE} LOCATION '{folder}'")
    session.sql(f"USE {DATABASE}")
    yield session
    session.sql(f"DROP DATABASE {DATABASE} CASCADE")
    assert not folder.exists()


@pytest.fixture
def run(session: SparkSession) -> Run:
    return lambda sql: [tuple(row) for row in session.sql(sql).collect()]


# Statements with the answers that both formats give. {t} is a table, {f} its format.
SAME = (
    "CREATE TABLE {t} (id INT, s STRING, c CHAR(3)) USING {f} COMMENT 'words'",
    "CREATE TABLE IF NOT EXISTS {t} (x INT) USING {f}",
    "INSERT INTO {t} VALUES (1, 'a', 'x'), (2, 'b', NULL)",
    "INSERT INTO {t} (id, s) SELECT id + 2, s FROM {t}",
    "SELECT * FROM {t} ORDER BY id",
    "SELECT s, count(*), max(c) FROM mixed.{t} WHERE id > 1 GROUP BY s ORDER BY s",
    "SELECT * FROM spark_catalog.mixed.{t} AS a JOIN {t} AS b ON a.id = b.id + 2 ORDER BY a.id",
    "ALTER TABLE {t} ADD COLUMNS (n BIGINT COMMENT 'number')",
    "SELECT count(n), count(*) FROM {t}",
    "CREATE TABLE {t}_copy USING {f} AS SELECT id, s FROM {t} WHERE id < 3",
    "SELECT * FROM {t}_copy ORDER BY id",
    "ALTER TABLE {t}_copy RENAME TO {t}_new",
    "SELECT * FROM {t}_new ORDER BY id",
    "SELECT * FROM mixed.{t}_new WHERE id = 2",
    "CREATE VIEW {t}_view AS SELECT id * 10 AS ten FROM {t}",
    "SELECT * FROM {t}_view ORDER BY ten",
    "CREATE TEMPORARY VIEW {t}_temporary AS SELECT s FROM {t} WHERE id = 1",
    "SELECT * FROM {t}_temporary",
    "CACHE TABLE {t}",
    "INSERT INTO {t} VALUES (9, 'z', 'z', 9)",
    "SELECT id, n FROM {t} WHERE id = 9",
    "UNCACHE TABLE {t}",
    "TRUNCATE TABLE {t}_new",
    "INSERT OVERWRITE {t}_new VALUES (7, 'q')",
    "SELECT * FROM {t}_new",
    "DROP VIEW {t}_view",
    "DROP TABLE {t}_new",
    "DROP TABLE IF EXISTS {t}_new",
)
# Statements that fail with one condition for both formats.
WRONG = (
    "CREATE TABLE {t} (x INT) USING {f}",
    "SELECT * FROM {t}_new",
    "DROP TABLE {t}_new",
    "INSERT INTO {t} VALUES (1)",
)


def names(run: Run, start: str) -> list[str]:
    return sorted(row[1].removeprefix(start) for row in run("SHOW TABLES") if row[1].startswith(start))


def test_statements_mean_the_same_for_both_formats(session: SparkSession, run: Run, folder: Path) -> None:
    for sql in SAME:
        ours, theirs = run(sql.format(t="l", f="lance")), run(sql.format(t="p", f="parquet"))
        assert ours == theirs, sql
        assert names(run, "l") == names(run, "p"), sql
    assert run("DESCRIBE l") == run("DESCRIBE p")
    tables = {table.name: table for table in session.catalog.listTables() if table.name in ("l", "p")}
    assert {table.tableType for table in tables.values()} == {"MANAGED"}
    columns = [[column.name for column in session.catalog.listColumns(name)] for name in ("l", "p")]
    assert columns == [["id", "s", "c", "n"]] * 2
    for sql in WRONG:
        conditions = []
        for table, kind in (("l", "lance"), ("p", "parquet")):
            with pytest.raises(AnalysisException) as error:
                run(sql.format(t=table, f=kind))
            conditions.append(error.value.getCondition())
        assert conditions[0] == conditions[1], sql
    for table in ("l", "p"):
        assert (folder / table).is_dir()
        run(f"DROP TABLE {table}")
        assert not (folder / table).exists()


def test_other_formats_pass_through(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE h (id INT, day STRING) USING parquet PARTITIONED BY (day)")
    run("INSERT INTO h VALUES (1, 'a'), (2, 'b')")
    assert run("SHOW PARTITIONS h") == [("day=a",), ("day=b",)]
    run("ALTER TABLE h DROP PARTITION (day = 'a')")
    session.sql("SELECT 3 AS id, 'c' AS day").write.insertInto("h")
    session.range(1).selectExpr("4 AS id", "'d' AS day").write.partitionBy("day").mode("append").saveAsTable(
        "h"
    )
    assert run("SELECT id FROM h ORDER BY id") == [(2,), (3,), (4,)]
    run("CREATE TABLE k USING csv AS SELECT 1 AS a")
    assert run("SELECT * FROM k") == [(1,)]
    run("CREATE TABLE history (id INT) USING parquet")
    assert ("data_type", "int") in run("DESC history id")
    for table in ("h", "k", "history"):
        run(f"DROP TABLE {table}")


def test_what_only_lance_has(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE t USING lance TBLPROPERTIES ('team' = 'a') AS SELECT 1 AS id, 'a' AS s")
    run("UPDATE t SET s = 'b' WHERE id = 1")
    run(
        "MERGE INTO mixed.t USING (SELECT 2 AS id, 'c' AS s) AS n ON t.id = n.id "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    run("DELETE FROM t WHERE id = 1")
    assert run("SELECT * FROM t") == [(2, "c")]
    assert run("SELECT * FROM t VERSION AS OF 1") == [(1, "a")]
    for name in ("t.history", "mixed.t.history", "spark_catalog.mixed.t.history"):
        assert run(f"SELECT count(*) FROM {name}") == [(5,)]
    run("ALTER TABLE t CREATE BRANCH dev")
    run("INSERT INTO `t@dev` VALUES (3, 'd')")
    assert run("SELECT count(*) FROM mixed.t.branch_dev") == [(2,)]
    assert run("CALL spark_catalog.system.compact('t')")
    assert run("OPTIMIZE mixed.t") == run("OPTIMIZE spark_catalog.mixed.t")
    assert len(run("DESCRIBE HISTORY t LIMIT 2")) == 2
    run("CREATE TABLE o USING parquet AS SELECT 1 AS a")
    with pytest.raises(PySparkException, match="is not a Lance table"):
        run("OPTIMIZE o")
    run("ALTER TABLE t DROP COLUMN s")
    columns = session._jsparkSession.sharedState().externalCatalog().getTable(DATABASE, "t").schema()
    assert columns.simpleString() == "struct<id:int>"
    run("CREATE OR REPLACE TABLE t USING lance AS SELECT 'x' AS k")
    assert run("SELECT * FROM t") == [("x",)]
    run("DROP TABLE t")
    run("DROP TABLE o")


def test_columns_that_are_computed(run: Run) -> None:
    columns = "(id INT, n INT GENERATED ALWAYS AS (id * 2), i BIGINT GENERATED ALWAYS AS IDENTITY)"
    for create in ("CREATE", "CREATE OR REPLACE"):
        run(f"{create} TABLE g {columns} USING lance")
        run("INSERT INTO g (id) VALUES (1)")
        run("MERGE INTO g USING (SELECT 5 AS id) AS s ON g.id = s.id WHEN NOT MATCHED THEN INSERT *")
        run("UPDATE g SET id = 4 WHERE id = 1")
        assert run("SELECT * FROM g ORDER BY id") == [(4, 8, 1), (5, 10, 2)]
    with pytest.raises(PySparkException, match="violated by the row n = 7"):
        run("INSERT INTO g (id, n) VALUES (1, 7)")
    for computed in ("n INT GENERATED ALWAYS AS (id * 2)", "n BIGINT GENERATED ALWAYS AS IDENTITY"):
        with pytest.raises(AnalysisException, match=r"does not support (generated|identity) columns"):
            run(f"CREATE TABLE other (id INT, {computed}) USING parquet")
    assert names(run, "other") == []
    run("DROP TABLE g")


def test_constraints(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE c (id INT, v INT DEFAULT 3) USING lance")
    run("INSERT INTO c (id) VALUES (1)")
    run("ALTER TABLE c ADD CONSTRAINT small CHECK (v < 10)")
    for write in (
        "INSERT INTO c VALUES (2, 11)",
        "UPDATE c SET v = 12",
        "MERGE INTO c USING (SELECT 5 AS id) AS s ON c.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (5, 13)",
    ):
        with pytest.raises(PySparkException, match="CHECK constraint small"):
            run(write)
    with pytest.raises(PySparkException, match="violated"):
        run("ALTER TABLE mixed.c ADD CONSTRAINT more CHECK (v > 3)")
    run("ALTER TABLE spark_catalog.mixed.c DROP CONSTRAINT small")
    run("UPDATE c SET v = 12")
    run("ALTER TABLE c ALTER COLUMN v SET DEFAULT 4")
    run("INSERT INTO c (id) VALUES (2)")
    assert run("SELECT * FROM c ORDER BY id") == [(1, 12), (2, 4)]
    run("DROP TABLE c")
    columns = (
        "(id INT NOT NULL PRIMARY KEY, v INT CONSTRAINT big CHECK (v > 1), "
        "CONSTRAINT f FOREIGN KEY (v) REFERENCES o (id))"
    )
    if session.version.startswith("4.0"):
        return
    for create in ("CREATE", "CREATE OR REPLACE"):
        run(f"{create} TABLE c {columns} USING lance")
        with pytest.raises(PySparkException, match="CHECK constraint big"):
            run("INSERT INTO c VALUES (1, 1)")
        run("INSERT INTO c VALUES (1, 2)")
        described = {row[0]: row[1] for row in run("DESCRIBE EXTENDED c")}
        assert described["c_pk"].startswith("PRIMARY KEY (id) NOT ENFORCED")
        assert described["big"].startswith("CHECK (v > 1) ENFORCED")
        with pytest.raises(PySparkException, match="has the primary key c_pk"):
            run("ALTER TABLE c ADD CONSTRAINT other PRIMARY KEY (v)")
        with pytest.raises(PySparkException, match=r"(?i)constraint"):
            run("CREATE TABLE other (id INT, CONSTRAINT p CHECK (id > 1)) USING parquet")
    assert names(run, "other") == []
    statement = run("SHOW CREATE TABLE c")[0][0]
    run("DROP TABLE c")
    run(statement)
    assert run("SHOW CREATE TABLE c")[0][0] == statement
    run("DROP TABLE c")


def test_changes(session: SparkSession, run: Run) -> None:
    run("CREATE TABLE ch USING lance AS SELECT 1 AS id")
    run("INSERT INTO ch VALUES (2)")
    queries = [
        "SELECT id FROM table_changes('mixed.ch', 2)",
        "SELECT id FROM ch.changes WHERE _commit_version = 2",
    ]
    if not session.version.startswith(("4.0", "4.1", "4.2")):
        queries.append("SELECT id FROM ch CHANGES FROM VERSION 2 TO VERSION 2")
    for query in queries:
        assert run(query) == [(2,)], query
    run("DROP TABLE ch")


def test_writers(session: SparkSession, run: Run) -> None:
    rows = session.sql("SELECT 1 AS a")
    rows.write.format("lance").saveAsTable("w")
    rows.write.format("lance").mode("append").saveAsTable("w")
    rows.write.insertInto("w")
    assert run("SELECT count(*) FROM w") == [(3,)]
    rows.write.format("lance").mode("overwrite").saveAsTable("w")
    rows.writeTo("w").append()
    assert run("SELECT * FROM w") == [(1,), (1,)]
    rows.writeTo("w").using("lance").createOrReplace()
    assert run("SELECT * FROM w") == [(1,)]
    run("CREATE TABLE q USING parquet AS SELECT 5 AS a")
    for write in (
        lambda: rows.write.format("lance").mode("overwrite").saveAsTable("q"),
        lambda: run("CREATE OR REPLACE TABLE q USING lance AS SELECT 1 AS a"),
    ):
        with pytest.raises(PySparkException, match=r"write DROP TABLE mixed\.q first"):
            write()
    assert run("SELECT * FROM q") == [(5,)]
    for statement in ("CREATE TABLE y LIKE w", "CREATE TABLE y LIKE q USING lance"):
        with pytest.raises(PySparkException, match="USING lance AS SELECT"):
            run(statement)
    run("CREATE TABLE y LIKE q")
    for table in ("w", "q", "y"):
        run(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    "fields", ["s, bucket(4, id), years(d), hours(ts)", "truncate(2, s), months(d), days(ts)"]
)
def test_partition_transforms(session: SparkSession, run: Run, fields: str) -> None:
    run(f"CREATE TABLE pt (id INT, s STRING, d DATE, ts TIMESTAMP) USING lance PARTITIONED BY ({fields})")
    start = "TIMESTAMP'2026-01-01 00:00:00'"
    rows = f"SELECT {{}} AS id, 'abc' AS s, DATE'2025-02-03' AS d, {start} AS ts"
    run(f"INSERT INTO pt VALUES (1, 'abc', DATE'2025-02-03', {start}), (2, 'x', null, null)")
    run(
        "MERGE INTO pt USING (SELECT 2 AS key UNION ALL SELECT 3) ON id = key "
        "WHEN MATCHED THEN UPDATE SET s = 'y' "
        f"WHEN NOT MATCHED THEN INSERT (id, s, d, ts) VALUES (key, 'z', DATE'2024-01-01', {start})"
    )
    run("UPDATE pt SET d = DATE'2020-01-01' WHERE id = 3")
    assert run("SELECT id, s FROM pt ORDER BY id") == [(1, "abc"), (2, "y"), (3, "z")]
    # 1 and 4 are not in one bucket: both rows are overwritten without the bucket only.
    session.sql(rows.format(4)).writeTo("pt").overwritePartitions()
    left = [4] if "bucket" not in fields else [1, 4]
    assert run("SELECT id FROM pt WHERE s = 'abc' ORDER BY id") == [(id,) for id in left]
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    run(f"INSERT OVERWRITE pt {rows.format(4)}")
    session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    session.sql(rows.format(5)).write.format("lance").mode("append").saveAsTable("pt")
    session.sql(rows.format(6)).writeTo("pt").append()
    session.sql(rows.format(7)).write.insertInto("pt")
    assert run("SELECT id FROM pt WHERE s = 'abc' ORDER BY id") == [(id,) for id in (*left, 5, 6, 7)]
    assert run("SELECT sum(record_count) FROM pt.partitions") == run("SELECT count(*) FROM pt")
    run("INSERT OVERWRITE pt SELECT * FROM pt WHERE id = 2")
    assert run("SELECT id, s FROM pt") == [(2, "y")]
    run("DROP TABLE pt")


def test_writers_declare_partition_transforms(session: SparkSession, run: Run) -> None:
    rows = session.sql("SELECT 1 AS id, DATE'2025-02-03' AS d")
    rows.writeTo("wt").using("lance").partitionedBy(
        partitioning.bucket(4, "id"), partitioning.days("d")
    ).create()
    rows.writeTo("wt").append()
    assert run("SHOW PARTITIONS wt") == [("id_bucket=0/d_day=2025-02-03",)]
    run("CREATE OR REPLACE TABLE wt USING lance PARTITIONED BY (months(d)) AS SELECT DATE'2025-02-03' AS d")
    assert run("SHOW PARTITIONS wt") == [("d_month=661",)]
    rows.write.format("lance").mode("overwrite").partitionBy("d").saveAsTable("wt")
    assert run("SHOW PARTITIONS wt") == [("d=2025-02-03",)]
    run("DROP TABLE wt")


def test_external_tables(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "some place"
    run(f"CREATE TABLE e (id INT) USING lance LOCATION '{place}'")
    run("INSERT INTO e VALUES (5)")
    assert ("Type", "EXTERNAL", "") in run("DESCRIBE EXTENDED e")
    assert f"LOCATION '{place}'" in run("SHOW CREATE TABLE e")[0][0]
    run("DROP TABLE e")
    assert names(run, "e") == []
    run(f"CREATE TABLE e USING lance LOCATION '{place}'")
    run(f"CREATE TABLE e1 (id INT) USING lance LOCATION '{place}'")
    run(f"CALL spark_catalog.system.register_table('mixed.e2', '{place}')")
    assert [run(f"SELECT * FROM {name}") for name in ("e", "e1", "e2")] == [[(5,)]] * 3
    for statement, problem in (
        ("(id STRING) USING lance LOCATION '{place}'", "other columns"),
        (
            "USING lance LOCATION '{place}' TBLPROPERTIES ('team' = 'a')",
            r"run ALTER TABLE mixed.f SET TBLPROPERTIES \('team' = 'a'\)",
        ),
        (
            "(id INT) USING lance LOCATION '{place}' PARTITIONED BY (bucket(4, id))",
            r"run ALTER TABLE mixed.f ADD PARTITION FIELD bucket\(4, id\)",
        ),
        (
            "(id INT) USING lance LOCATION '{place}' CLUSTER BY (id)",
            r"run ALTER TABLE mixed.f CLUSTER BY \(id\)",
        ),
        ("USING lance LOCATION '{place}' AS SELECT 1 AS id", "to register it"),
        ("(id INT) USING lance LOCATION '{place}/..'", "has files, but no Lance table"),
    ):
        with pytest.raises(PySparkException, match=problem):
            run(f"CREATE TABLE f {statement.format(place=place)}")
    assert names(run, "f") == []
    for name in ("e", "e1", "e2"):
        run(f"DROP TABLE {name}")
    assert (place / "_versions").is_dir()


def test_a_table_that_cannot_be_registered_leaves_nothing(run: Run, folder: Path) -> None:
    with mock.patch.object(SessionNames, "_registration", side_effect=OSError("no metastore")):
        for statement in ("(id INT) USING lance", "USING lance AS SELECT 1 AS a"):
            with pytest.raises(PySparkException, match="no metastore"):
                run(f"CREATE TABLE broken {statement}")
            assert not (folder / "broken").exists()
        with (
            mock.patch.object(SessionNames, "_entry", side_effect=[None, OSError("gone")]),
            pytest.raises(PySparkException, match="no metastore"),
        ):
            run("CREATE TABLE unknown (id INT) USING lance")
        # Nobody knows whether it is registered.
        assert (folder / "unknown").exists()
    assert names(run, "broken") == names(run, "unknown") == []


def test_a_table_of_another_format_is_migrated(session: SparkSession, run: Run, tmp_path: Path) -> None:
    run(f"CREATE TABLE moved (id INT, day STRING) USING parquet PARTITIONED BY (day) LOCATION '{tmp_path}/m'")
    run("INSERT INTO moved VALUES (1, 'a'), (2, 'b')")
    migrate = "CALL spark_catalog.system.migrate"
    assert run(f"{migrate}('mixed.moved', map('owner', 'me'))") == [(2,)]
    assert run("SELECT id, day FROM moved ORDER BY id") == [(1, "a"), (2, "b")]
    assert run("SELECT count(*) FROM `moved_BACKUP_`") == [(2,)]
    assert run("SELECT count(*) > 0 FROM spark_catalog.mixed.moved.history") == [(True,)]
    assert run("SHOW PARTITIONS moved") == [("day=a",), ("day=b",)]
    run("UPDATE moved SET id = 3 WHERE id = 2")
    with pytest.raises(PySparkException, match="is a Lance table: name a table of another format"):
        run(f"{migrate}('moved')")
    run("CREATE TABLE old (id INT) USING orc")
    run("INSERT INTO old VALUES (1)")
    assert run(f"{migrate}(table => 'spark_catalog.mixed.old', drop_backup => true)") == [(1,)]
    run("CREATE TABLE other (id INT) USING json")
    # The name of the backup is taken: nothing changes.
    with pytest.raises(PySparkException, match="ALREADY_EXISTS"):
        run(f"{migrate}('other', backup_table_name => 'moved')")
    names = {name for _, name, _ in run("SHOW TABLES")}
    assert {"moved", "moved_BACKUP_".lower(), "old", "other"} <= {name.lower() for name in names}
    assert not any("copy_" in name or name == "old_BACKUP_" for name in names)
    assert run(f"{migrate}('other', backup_table_name => 'json_rows')") == [(0,)]
    assert run("SELECT count(*) FROM json_rows") == [(0,)]


def test_settings(session: SparkSession) -> None:
    with pytest.raises(OptionError, match="leave out root"):
        spark_lance.enable(session, catalog="spark_catalog", root="/data")
    assert local_path("file:/a%20b/c/") == local_path("file:///a b/c") == "/a b/c"
    assert local_path("s3://bucket/t") == "s3://bucket/t"
