"""Tables, values and names that the statements of the pages mention."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.peers.assumed_tables import EVENTS, PEOPLE, PRESUPPOSED, PRESUPPOSED_PATHS, RELATIVE

__all__ = ["CATALOGS", "Site", "values_of"]

# Catalogs that the pages name. Names without a catalog are in the first one.
CATALOGS = ("lance", "prod", "local", "catalog_name", "hive_prod")

# The end of a table's name -> its columns. The rest has the columns of `_OTHER`.
_SHAPES = {
    "people": PEOPLE,
    "people10m": PEOPLE,
    "people-10m": PEOPLE,
    "people-10m-updates": PEOPLE,
    "people10mupdates": PEOPLE,
    "morepeople": PEOPLE,
    "events": EVENTS,
    "replace_data": EVENTS,
    "source_data": EVENTS,
    "students": "name STRING, country STRING",
    "new_students": "name STRING, country STRING",
    "sample": "id BIGINT NOT NULL, data STRING, category STRING, ts TIMESTAMP",
    "another_table": "id BIGINT, data STRING, category STRING, ts TIMESTAMP",
    "source": "id BIGINT, data STRING",
    "updates": "id BIGINT, data STRING",
    "table": "id BIGINT, data STRING",
    "branch_audit": "id BIGINT, data STRING",
    "logs": "uuid STRING, level STRING, ts TIMESTAMP, message STRING",
    "newdedupedlogs": "uniqueId INT, date DATE",
    "orders": "id BIGINT, status STRING",
    "returned_orders": "oid BIGINT",
    "good_events": "session_time BIGINT",
    "all_events": "session_time BIGINT, ignored BOOLEAN",
    "student": "id INT, name STRING, age INT",
    "boxes": "colA STRING, colB STRUCT<field1: STRING, field2: STRING>",
    "delta-table": "id BIGINT",
    "old_table": "id BIGINT, event_date DATE, some_value BIGINT",
    "new_records": "id BIGINT, event_date DATE, some_value BIGINT",
    "source_table": "id BIGINT, data STRING, extra STRING",
    "target_table": "id BIGINT, data STRING",
    "my_test": "user_id BIGINT, invalid BOOLEAN",
    "my_prod_table": "user_id BIGINT, invalid BOOLEAN",
    "target": "id BIGINT, key BIGINT, lastSeen TIMESTAMP, status STRING",
    "changes": "key BIGINT, time TIMESTAMP, newValue STRING, deleted BOOLEAN",
    "aggregates": "key BIGINT, value BIGINT",
}
_OTHER = "id BIGINT, data STRING, name STRING, date DATE"
# Columns that a table gets if a statement names them.
_COLUMNS = {
    "c1": "STRING",
    "c2": "STRING",
    "ts": "TIMESTAMP",
    "oid": "BIGINT",
    "order_status": "STRING",
    "val": "STRING",
    "catalog": "STRING",
    "other_column": "STRING",
    "measurement": "FLOAT",
    "col": "STRING",
    "other_col": "STRING",
    "nested": "STRUCT<col: STRING, other_col: STRING>",
    "location": "STRUCT<lat: DOUBLE, long: DOUBLE>",
    "point": "STRUCT<x: DOUBLE, y: DOUBLE, z: DOUBLE>",
    "part": "STRING",
    "name": "STRING",
    "uniqueId": "INT",
    "date": "DATE",
    "eventType": "STRING",
    "old_col_name": "STRING",
    "col_name": "STRING",
    "col_name_1": "STRING",
    "col_name_2": "STRING",
    "user_id": "BIGINT",
    "invalid": "BOOLEAN",
    "dateOfBirth": "DATE",
    "zip": "STRING",
    "status": "STRING",
    "key": "BIGINT",
    "value": "STRING",
    "country": "STRING",
    "userId": "INT",
    "col1": "STRING",
    "col2": "STRING",
    "level": "STRING",
}
_NAME = r"[`\w.<>/-]+"
_MENTION = re.compile(
    r"(?:\bFROM|\bJOIN|\bINTO(?: TABLE)?|\bOVERWRITE(?: TABLE)?|\bALTER TABLE|\bUPDATE|\bUSING|\bCLONE|\bVACUUM|\bOPTIMIZE"
    r"|\bHISTORY|\bDETAIL|\bREORG TABLE|\bRESTORE(?: TABLE)?|\bSHOW TBLPROPERTIES|\bSHOW PARTITIONS|\bDROP TABLE|\bFOR TABLE"
    rf"|\bLIKE|\bCONVERT TO LANCE|\bREPLACE TABLE(?= \S+ USING)|\bREPLACE TABLE)\s+(?!SELECT\b|SET\b|VALUES\b|lance\b|parquet\.|table_changes)({_NAME})"
    r"|(?:\.table|saveAsTable|insertInto|writeTo|forName\(spark, |toTable|load)\(?['\"]((?!/)[\w.]+)['\"]"
    r"|(?:table *=> *|system\.\w+\()'((?!/)[\w.]+)'|table_changes\('([\w.`]+)'",
    re.IGNORECASE,
)
_PATH = re.compile(r"([`'\"])((?:[a-z0-9]+:/)?/[\w./<>:=@-]*)\1")
_METADATA = {
    *("snapshots", "history", "files", "manifests", "partitions", "entries", "position_deletes", "refs"),
    *(
        "metadata_log_entries",
        "all_data_files",
        "all_delete_files",
        "all_entries",
        "all_manifests",
        "changes",
    ),
    *("data_files", "delete_files", "all_files"),
}
_REFERENCE = re.compile(r"^(?:branch|tag)_")


def _parts(name: str) -> list[str]:
    """Return the parts of a name; dots in backticks are parts of a part."""
    return [quoted or plain for quoted, plain in re.findall(r"`([^`]*)`|([^`.]+)", name)]


@dataclass(frozen=True)
class IdentityGenerator:
    """The numbers of an identity column, as Delta's class of the same name."""

    start: int = 1
    step: int = 1


@dataclass
class Site:
    """Where the statements of a page run: a session, its catalogs, and a folder for paths."""

    spark: SparkSession
    folder: Path
    tables: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    # A time between the versions of the tables that a statement about changes mentions.
    mark: str | None = None
    # The version of a branch that a statement publishes.
    picked: int | None = None
    # Tables that the statement makes.
    made: set[str] = field(default_factory=set)

    def replaced(self, text: str, language: str) -> str:
        """Return a statement with our names, paths of this site, versions and times that exist."""
        text = re.sub(r"\bUSING (?:DELTA|ICEBERG)\b", "USING lance", text, flags=re.IGNORECASE)
        text = re.sub(r"\bCONVERT TO DELTA\b", "CONVERT TO LANCE", text)
        text = re.sub(r"\bdelta\.`", "lance.`", text)
        text = text.replace("iceberg.\\`", "parquet.`").replace("iceberg.`", "parquet.`").replace("\\`", "`")
        text = text.replace("DeltaTable", "LanceTable").replace("convertToDelta", "convertToLance")
        text = re.sub(r"from delta(?:\.tables)? import [^\n]*|from delta import [^\n]*", "", text)
        text = re.sub(r"""(['"])(?:delta|iceberg)\1""", "'lance'", text)
        if "system.migrate(" in text:  # it replaces a table of Spark's own catalog
            text = text.replace("catalog_name.", "spark_catalog.")
        else:
            text = text.replace("spark_catalog.", "catalog_name.")
        if self.picked is not None and "cherrypick_snapshot(" in text:
            text = re.sub(r"\b1\b", str(self.picked), text)
        if "mergeInto(" in text:  # Spark's own merge of a DataFrame
            text = re.sub(r"\.when(NotMatched|Matched)InsertAll\(\)", r".when\1().insertAll()", text)
        for path in RELATIVE:
            text = re.sub(rf"""(['"`]){path}\1""", rf"\1/{path}\1", text)
        text = text.replace("path/to/metadata/file.json", "/registered/_versions/1.manifest")
        # Scala's implicit methods of readers and writers.
        text = re.sub(r"(\bread(?:Stream)?\b[^\n]*)\.delta\(", r"\1.format('lance').load(", text)
        text = re.sub(r"(\bwriteStream\b[^\n]*)\.delta\(", r"\1.format('lance').start(", text)
        text = re.sub(r"(\bwrite\b[^\n]*)\.delta\(", r"\1.format('lance').save(", text)
        text = self._placeholders(text, language)
        text = self._moments(text)
        text = _PATH.sub(lambda match: f"{match[1]}{self._path(match[2])}{match[1]}", text)
        return text.replace(f"{self.folder}/paths/registered/", f"{self._registered}/")

    @property
    def _registered(self) -> Path:
        """A table without a name, below the root of the catalog that gives it one."""
        return self.folder / "catalog_name" / "registered"

    def _placeholders(self, text: str, language: str) -> str:
        text = re.sub(r"<(?:path-to-\w+(?:-table)?|your-table-path|path)>", "/data/placed", text)
        text = re.sub(r"<viewName>", "some_view", text)
        text = re.sub(r"<(?:catalog)>\.<namespace>|<namespace>|<catalog>", "lance.default", text)
        text = re.sub(r"<(?:your-partition-columns|clustering_columns|col_name)>", "id", text)
        text = re.sub(r"<new_type>", "BIGINT", text)
        text = re.sub(r"<version>|(?<=AS OF )version\b", "1", text)
        text = re.sub(
            r"<timestamp>|(?<=TIMESTAMP AS OF )timestamp(?:_expression)?\b", f"'{self.moment}'", text
        )
        text = re.sub(r"<[\w-]*table[\w-]*>|<tableName>", "some_table", text)
        text = text.replace("xx://archive", "/archive").replace("\\path", "/data/placed")
        text = text.replace("DESCRIBE [EXTENDED]", "DESCRIBE EXTENDED")
        if language == "sql":
            text = re.sub(r"\(SELECT \.\.\.\)", "(SELECT * FROM another_table)", text)
            text = re.sub(r"SELECT \.\.\.$", "SELECT * FROM another_table", text)
            text = re.sub(r"WHEN \.\.\.$", "WHEN MATCHED THEN UPDATE SET t.data = s.data", text)
            text = text.replace("= ...", "= 7")
        else:
            text = re.sub(r"\b(app_?id) = \.\.\.", r"\1 = 'app'", text, flags=re.IGNORECASE)
            text = re.sub(r"\bversion = \.\.\.", "version = 7", text)
            text = re.sub(r"^(\w+) = \.\.\.", r"\1 = \1", text, flags=re.MULTILINE)
            text = text.replace("format(...)", "format('lance')").replace(
                "save(...)", "save('/data/idempotent')"
            )
            text = text.replace("table(...)", "table('default.people10m')").replace(
                "AsTable(...)", "AsTable('default.people10m')"
            )
            text = re.sub(r"""(['"])\.\.\.\1""", "'/data/placed'", text)
            text = re.sub(r"(['\"])path/to/table\1", "'/path/to/table'", text)
        return text

    def _moments(self, text: str) -> str:
        if re.search(
            r"AS OF|asof|as-of|rollback_to|restoreToTimestamp|startingTimestamp|start-timestamp|from-timestamp|table_changes",
            text,
            re.IGNORECASE,
        ):
            text = re.sub(r"'(?:19|20)\d\d-\d\d?-\d\d?[^']*'", f"'{self.moment}'", text)
            text = re.sub(r'"(?:19|20)\d\d-\d\d?-\d\d?[^"]*"', f'"{self.moment}"', text)
            text = re.sub(r"\b499162860\b", str(self.seconds), text)
            text = re.sub(r"\b(?:499162860000|1678335750489|1678992105265)\b", f"{self.seconds}000", text)
            text = text.replace(
                "yesterday = spark.sql('SELECT CAST(date_sub(current_date(), 1) AS STRING)')",
                f"yesterday = spark.sql(\"SELECT '{self.moment}'\")",
            )
            text = text.replace(
                "last_week = spark.sql('SELECT CAST(date_sub(current_date(), 7) AS STRING)')",
                f"last_week = spark.sql(\"SELECT '{self.moment}'\")",
            )
        text = re.sub(
            r"""(['"])SELECT CAST\(date_sub\(current_date\(\), \d\) AS STRING\)\1""",
            f"\"SELECT '{self.moment}'\"",
            text,
        )
        text = re.sub(
            r"SELECT CAST\(date_sub\(current_date\(\), \d\) AS STRING\)", f"SELECT '{self.moment}'", text
        )
        text = re.sub(r"(VERSION\s+AS OF\s+|versionAsOf['\"], *)\d+", r"\g<1>1", text, flags=re.IGNORECASE)
        text = re.sub(r"(['\"])(?:63874143573109|87647489814522183702)\1", "'2'", text)
        text = re.sub(r"\b10963874102873\b|(?<=VERSION AS OF )\d+|(?<=OF VERSION )\d+", "1", text)
        text = re.sub(r"ARRAY\(123\)", "ARRAY(1)", text)
        text = re.sub(r"(endingVersion['\"],|table_changes\('\w+', \d,) *10\b", r"\1 2", text)
        text = re.sub(r"(startingVersion['\"], *['\"])5(?=['\"])", r"\g<1>1", text)
        return re.sub(r"((?:startingVersion|tableName)'?,) 0\b", r"\1 1", text).replace(
            "restoreToVersion(0)", "restoreToVersion(1)"
        )

    @property
    def moment(self) -> str:
        return self.mark or datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")

    @property
    def seconds(self) -> int:
        return int(datetime.now().timestamp()) + 1

    def _path(self, path: str) -> str:
        tail = (
            re.sub(r"^[a-z0-9]+:/+", "/", path).strip("/").replace(":", "_").replace("<", "").replace(">", "")
        )
        return str(self.folder / "paths" / tail) if tail else path

    def prepare(self, text: str) -> None:
        """Make the tables that a statement mentions, with the columns that it names."""
        text = re.sub(r"^from [\w.]+ import [^\n]*$", "", text, flags=re.MULTILINE)
        self._clear(text)
        self._stage(text)
        if str(self._registered) in text:
            self._presuppose(f"lance.`{self._registered}`", "id BIGINT")
        creates = re.match(r"CREATE\s+(?:EXTERNAL )?TABLE\s+(?:IF NOT EXISTS )?(\S+)", text, re.IGNORECASE)
        if creates and not creates[1].startswith(("lance.`", "parquet.`")):
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace(creates[1])}")
            if "IF NOT EXISTS" not in text:
                self._drop(creates[1].split("(")[0])
        for name in re.findall(r"(?:create|createTable)\(\w*\)\.tableName\('([\w.]+)'\)", text):
            self._drop(name)
        if ".create()" in text or "CREATE TABLE" in text:
            for name in re.findall(r"writeTo\('([\w.]+)'\)", text):
                self._drop(name)
            for path in re.findall(rf"CREATE TABLE lance\.`({self.folder}[^`]*)`", text):
                shutil.rmtree(path, ignore_errors=True)
        if "lance" in text and ".save(" in text and "mode(" not in text:
            for path in re.findall(rf"save\(['\"]({self.folder}[^'\"]*)", text):
                shutil.rmtree(path, ignore_errors=True)
        body = text[creates.end() :] if creates else text
        for match in _MENTION.finditer(body):
            name = next(group for group in match.groups() if group)
            self._table(name.strip(), text)
        for path in re.findall(rf"{self.folder}/paths/[\w./@=-]*", body if creates else text):
            if not re.search(r"checkpoint", path, re.IGNORECASE):
                self._path_table(Path(path), text)
        self._mark(text)

    def _mark(self, text: str) -> None:
        """Keep a time after which the tables of a statement about changes get another version."""
        self.mark = None
        if re.search(r"table_changes\w*\([^)]*'20|startingTimestamp", text):
            self.mark = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")
            time.sleep(0.05)
            names = re.findall(r"table_changes\('([\w.`]+)'|\.table\('([\w.]+)'", text)
            paths = re.findall(rf"'({self.folder}/paths/[^']*)'", text)
            for name in [*(a or b for a, b in names), *(f"lance.`{path}`" for path in paths)]:
                self._insert(name)

    def _clear(self, text: str) -> None:
        """Make way for what a statement creates, and make the tables anew that it presupposes."""
        named = r"ALTER TABLE (\S+) CREATE (BRANCH|TAG) (\S+)"
        for table, kind, name in re.findall(named, text):
            if self._exists(table):
                self.spark.sql(f"ALTER TABLE {table} DROP {kind} IF EXISTS {name}")
        for name in re.findall(r"CREATE VIEW (?!IF\b)([\w.]+)", text):
            with contextlib.suppress(PySparkException):  # before Spark 4.2 there are none in other catalogs
                self.spark.sql(f"DROP VIEW IF EXISTS {name}")
        if self.spark.catalog.currentCatalog() == "spark_catalog":
            for name in re.findall(r"(?:CREATE TABLE|saveAsTable\(') ?([\w.]+)", text):
                self._drop(name)
        if "mode(" not in text:
            self.made = set(re.findall(r"saveAsTable\('([\w.]+)'\)", text))
        else:
            self.made = set()
        self.made |= set(re.findall(r"writeTo\('([\w.]+)'\)[^\n]*\.create\(\)", text))
        for name in self.made:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace(name)}")
            self._drop(name)
        for pattern, tables in PRESUPPOSED:
            if re.search(pattern, text, re.DOTALL):
                for name, shape in tables.items():
                    self._presuppose(name, shape)
        for pattern, tail, shape in PRESUPPOSED_PATHS:
            path = self.folder / "paths" / tail
            if re.search(pattern, text) and str(path) in text:
                shutil.rmtree(path, ignore_errors=True)
                # A checkpoint is of the table that was there before.
                for checkpoint in re.findall(r"'checkpointLocation', '([^']*)'", text):
                    shutil.rmtree(checkpoint, ignore_errors=True)
                self._presuppose(f"lance.`{path}`", shape)
        for path in re.findall(
            r"CONVERT TO LANCE parquet\.`([^`]*)`|convertToLance\(spark, 'parquet\.`([^`]*)`", text
        ):
            shutil.rmtree(path[0] or path[1], ignore_errors=True)

    def _stage(self, text: str) -> None:
        """Make the staged version, the table of another format or the external table that a statement names."""
        if match := re.search(r"(?:cherrypick_snapshot|publish_changes)\(.*?'(my_table)'", text, re.DOTALL):
            table = f"catalog_name.db.{match[1]}"
            self._presuppose(table, "id BIGINT, data STRING")
            staged = re.search(r"'(wap_id_\d)'", text)
            branch = f"wap-{staged[1]}" if staged else "audit"
            if staged:
                self.spark.sql(f"ALTER TABLE {table} CREATE BRANCH `{branch}`")
            self.spark.sql(f"INSERT INTO {table}.`branch_{branch}` VALUES (9, 'staged')")
            versions = self.spark.sql(
                f"SELECT snapshot_id FROM {table}.refs WHERE name = '{branch}'"
            ).collect()
            self.picked = versions[0][0]
        if "register_table(" in text:
            self.spark.sql("DROP TABLE IF EXISTS catalog_name.db.tbl")
        if "system.migrate(" in text:
            self.spark.sql("USE spark_catalog")
            self.spark.sql("CREATE NAMESPACE IF NOT EXISTS spark_catalog.db")
            for name in ("sample", "sample_BACKUP_"):
                self.spark.sql(f"DROP TABLE IF EXISTS spark_catalog.db.{name}")
            self.spark.sql("CREATE TABLE spark_catalog.db.sample USING parquet AS SELECT 1L AS id")
        names = re.findall(
            r"REPLACE TABLE (\w+) USING lance.*\bLOCATION\b|option\('path'.*saveAsTable\('(\w+)'", text
        )
        paths = re.findall(rf"{self.folder}/paths/[\w./-]*", text)
        if names and paths and self.spark.catalog.currentCatalog() == "spark_catalog":
            name = names[0][0] or names[0][1]
            self._drop(name)
            shutil.rmtree(paths[0], ignore_errors=True)
            self.spark.sql(f"CREATE TABLE {name} (id BIGINT, data STRING) USING lance LOCATION '{paths[0]}'")

    def _exists(self, name: str) -> bool:
        # The catalog API looks in the session's own catalog first.
        try:
            self.spark.table(name)
        except Exception:  # noqa: BLE001 - whatever is wrong, there is no such table
            return False
        return True

    def _presuppose(self, name: str, shape: str) -> None:
        columns, _, fields = shape.partition("; ")
        if "`" not in name:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace(name)}")
            self._drop(name)
        partitioned = (
            f" PARTITIONED BY ({re.sub(' AS .*', '', fields)})" if fields and " AS " not in fields else ""
        )
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING lance{partitioned}")
        if " AS " in fields:
            self.spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD {fields}")
        if "NOT NULL" in columns:
            self.spark.sql(f"ALTER TABLE {name} SET IDENTIFIER FIELDS id, data")
            return
        self._insert(name)
        if "`" not in name and "." in name:
            self._references(".".join(f"`{part}`" for part in name.split(".")))

    def _namespace(self, name: str) -> str:
        parts = _parts(name)
        return {1: "lance.default", 2: f"lance.{parts[0]}"}.get(len(parts), ".".join(parts[:-1]))

    def _drop(self, name: str) -> None:
        try:
            self.spark.sql(f"DROP TABLE IF EXISTS {name}")
        except Exception as error:  # noqa: BLE001 - a view of the name
            assert "view" in str(error).lower() or "branch" in str(error).lower(), error

    def _table(self, name: str, text: str) -> None:
        if name in self.made:
            return
        parts = _parts(name)
        if len(parts) > 2 and (parts[-1].lower() in _METADATA or _REFERENCE.match(parts[-1])):
            parts = parts[:-1]
        if parts[0].startswith(("/", "'", "system")) or parts[0] in {
            "s",
            "(SELECT",
            "INVENTORY",
            "changelog",
        }:
            return
        if re.search(
            rf"\b(?:temp|temporary)\s+view\s+{parts[-1]}\b|TempView\('{parts[-1]}'", text, re.IGNORECASE
        ):
            return
        plain = ".".join(f"`{part}`" for part in parts)
        if len(parts) == 1 and self._exists(parts[0]):
            self._columns(plain, text)
            return
        if re.search(r"CALL (\w+)\.", text) and (owner := re.search(r"CALL (\w+)\.", text)):
            if parts[0] != owner[1]:
                parts = [owner[1], *(["db"] if len(parts) == 1 else []), *parts]
            plain = ".".join(f"`{part}`" for part in parts)
            self.spark.sql(f"USE {owner[1]}")
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {owner[1]}.db")
            self.spark.sql(f"USE {owner[1]}.db")
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace(plain)}")
        if not self._exists(plain):
            shape = _SHAPES.get(parts[-1].lower(), _OTHER)
            self.spark.sql(f"CREATE TABLE {plain} ({shape}) USING lance")
            self._insert(plain)
            self._references(plain)
        self._columns(plain, text)

    def _insert(self, plain: str) -> None:
        columns = self.spark.table(plain).schema
        values = ", ".join(
            "DATE '2017-01-15'"
            if field.name in ("start_data", "end_date", "birthDate") and field.dataType.typeName() == "date"
            else "1"
            if field.dataType.typeName() in ("long", "integer")
            else f"CAST(NULL AS {field.dataType.simpleString()})"
            for field in columns
        )
        self.spark.sql(f"INSERT INTO {plain} VALUES ({values})")
        others = re.sub(r"\b1\b", "2", values)
        self.spark.sql(f"INSERT INTO {plain} VALUES ({others})")

    def _references(self, plain: str) -> None:
        if self.spark.catalog.currentCatalog() == "spark_catalog":
            return
        for kind, name in (
            ("tag", "historical-snapshot"),
            ("tag", "s1"),
            ("branch", "audit-branch"),
            ("branch", "audit"),
        ):
            if "." in "".join(_parts(plain)) or (len(_parts(plain)) == 2 and _parts(plain)[0] in CATALOGS):
                continue
            catalog = plain.split(".")[0].strip("`") if plain.count(".`") > 1 else "lance"
            table = plain.split(".", 1)[1] if plain.count(".`") > 1 else plain
            if kind == "branch" and "sample" in plain:
                continue
            table = table if "." in table else f"`default`.{table}"
            self.spark.sql(f"CALL {catalog}.system.create_{kind}('{table}', '{name}')")

    def _columns(self, plain: str, text: str) -> None:
        present = {name.lower() for name in self.spark.table(plain).columns}
        if re.search(r"\bINSERT\b.*\bVALUES\b", text, re.IGNORECASE | re.DOTALL) and "MERGE" not in text:
            return
        if "REPLACE COLUMNS" in text:
            return
        added = re.search(r"ADD COLUMNS? \(?\s*(\w+)(?=\s)", text, re.IGNORECASE)
        dropped = re.search(r"ADD COLUMNS? \(?\s*(\w+)\.", text, re.IGNORECASE)
        if added and added[1].lower() in present and not dropped:
            self.spark.sql(f"ALTER TABLE {plain} DROP COLUMN {added[1]}")
        target = re.search(r"RENAME COLUMN \S+ TO (\w+)", text, re.IGNORECASE)
        if target and target[1].lower() in present:
            self.spark.sql(f"ALTER TABLE {plain} DROP COLUMN {target[1]}")
        for column, kind in {"id": "BIGINT", "data": "STRING", **_COLUMNS}.items():
            named = re.search(
                rf"\b{column}\b", re.sub(r"^.*?TABLE \S+", "", text) if "ALTER" in text else text
            )
            is_new = re.search(
                rf"ADD COLUMNS? \(?\s*{column}\b(?!\.)|AS {column}\b|TO {column}\b", text, re.IGNORECASE
            )
            if (
                named
                and column.lower() not in present
                and not is_new
                and not re.search(rf"\.{column}\b(?!\s*[=<>!])", text)
            ):
                self.spark.sql(f"ALTER TABLE {plain} ADD COLUMN {column} {kind}")

    def _path_table(self, path: Path, text: str) -> None:
        if (path / "_versions").exists() or any(path.glob("*.parquet")):
            return
        reads = re.search(
            rf"parquet`?\.`{re.escape(str(path))}|'parquet'\)\.load\(['\"]{re.escape(str(path))}|PARQUET OPTIONS",
            text,
        )
        makes = re.search(
            rf"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?lance\.`{re.escape(str(path))}|LOCATION|location",
            text,
        )
        writes = re.search(rf"(?:save|start)\(['\"]{re.escape(str(path))}", text) and not re.search(
            rf"load\(['\"]{re.escape(str(path))}", text
        )
        if reads:
            rows = self.spark.sql("SELECT id, 'a' AS data, 1 AS part, 2 AS part2 FROM range(3)")
            folders = re.search(r"(?:PARTITIONED BY \(|')(part int(?:, part2 int)?)", text)
            names = re.findall(r"(\w+) int", folders[1]) if folders else []
            rows.write.partitionBy(*names).parquet(str(path))
            return
        if makes or writes:
            return
        shape = _SHAPES.get(path.name.lower(), _OTHER)
        frame = self.spark.createDataFrame([], shape)
        if not path.exists():
            frame.write.format("lance").mode("append").save(str(path))
            one = ", ".join(
                f"CAST({'1' if f.dataType.typeName() in ('long', 'integer') else 'NULL'} AS {f.dataType.simpleString()}) AS `{f.name}`"
                for f in frame.schema
            )
            self.spark.sql(f"SELECT {one}").write.format("lance").mode("append").save(str(path))
            self._path_references(path)

    def _path_references(self, path: Path) -> None:
        from spark_lance import LanceTable

        table = LanceTable.forPath(self.spark, str(path))
        table.tags.create("historical-snapshot")
        table.branches.create("audit-branch")


def values_of(site: Site, page: str) -> dict[str, Any]:
    """Return what names in programs of the pages stand for."""
    import pyspark.sql.functions as functions
    import pyspark.sql.types as types

    from spark_lance import LanceTable

    spark = site.spark
    people = spark.createDataFrame([], PEOPLE)
    events = spark.createDataFrame([], EVENTS)
    plain = spark.sql(
        "SELECT 1L AS id, 'a' AS data, 'c' AS category, current_timestamp() AS ts, 'INFO' AS level"
    )
    folder = str(site.folder / "paths" / "named")
    plain.write.format("lance").mode("overwrite").save(folder)
    keyed = str(site.folder / "paths" / "keyed")
    row = "SELECT 1L AS key, 'a' AS value, 1 AS uniqueId, current_date() AS date"
    if page == "delta/optimizations-oss":
        row += ", 'click' AS eventType"
    spark.sql(row).write.format("lance").mode("overwrite").save(keyed)
    merged = str(site.folder / "paths" / "merged")
    spark.createDataFrame([], "key BIGINT, lastSeen TIMESTAMP, status STRING").write.format("lance").mode(
        "overwrite"
    ).save(merged)
    customers = str(site.folder / "paths" / "customers")
    spark.createDataFrame(
        [], "customerId INT, address STRING, current BOOLEAN, effectiveDate DATE, endDate DATE"
    ).write.format("lance").mode("overwrite").save(customers)
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 3)
        .option("numPartitions", 1)
        .load()
        .selectExpr("value AS id", "CAST(value AS STRING) AS data")
    )
    public = {name: getattr(functions, name) for name in dir(functions) if name[0].islower()}
    kinds = {name: getattr(types, name) for name in types.__all__}
    level = plain.select("id", "data", "ts", "level")
    named = {"iceberg/spark-structured-streaming": stream, "iceberg/spark-writes": level}
    frames = {
        "df": people,
        "data": named.get(page, plain.select("id", "data")),
        "dataFrame": plain,
        "dataframe": plain,
    }
    return {
        **public,
        **kinds,
        **frames,
        "LanceTable": LanceTable,
        "spark": spark,
        "display": lambda frame: frame.collect(),
        "IdentityGenerator": IdentityGenerator,
        "pathToTable": folder,
        "tableName": "lance.default.eventsTable",
        "path_to_table": folder,
        "eventType": "eventType",
        "timestamp_string": site.moment,
        "version": 1,
        "replace_data": events,
        "source_data": events,
        "events": stream,
        "streamingDf": stream,
        "streamingAggregatesDF": stream.selectExpr(
            "id AS key", "data AS value", "1 AS uniqueId", "current_date() AS date"
        ),
        "data_stream": stream,
        "checkpointPath": str(site.folder / "paths" / "checkpoint"),
        "checkpoint_path": str(site.folder / "paths" / "checkpoint2"),
        "streamStartTimestamp": site.seconds * 1000,
        "source": spark.sql("SELECT 1L AS id, 'a' AS data, 's' AS status").alias("source"),
        "new_students": spark.createDataFrame([("n", "c")], "name STRING, country STRING"),
        "newStudents": spark.createDataFrame([("n", "c")], "name STRING, country STRING"),
        "people": spark.createDataFrame([("n", "c")], "name STRING, country STRING"),
        "sourceDF": spark.createDataFrame(
            [], "key BIGINT, timestamp TIMESTAMP, lastSeen TIMESTAMP, status STRING"
        ).alias("source"),
        "targetDF": LanceTable.forPath(spark, merged).alias("target"),
        "deltaTable": LanceTable.forPath(spark, keyed),
        "newDedupedLogs": spark.sql("SELECT 1L AS key, 'a' AS value, 1 AS uniqueId, current_date() AS date"),
        "customersTable": LanceTable.forPath(spark, customers),
        "updatesDF": spark.createDataFrame([], "customerId INT, address STRING, effectiveDate DATE"),
    }
