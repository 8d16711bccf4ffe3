"""Tables that statements of the pages presuppose without making them.

A value is the columns of the table, and after a semicolon the fields that it is partitioned by.
"""

from __future__ import annotations

__all__ = ["EVENTS", "PEOPLE", "PRESUPPOSED", "PRESUPPOSED_PATHS", "RELATIVE"]

PEOPLE = (
    "id INT, firstName STRING, middleName STRING, lastName STRING, gender STRING, birthDate TIMESTAMP, "
    "ssn STRING, salary INT"
)
EVENTS = (
    "eventId BIGINT, data STRING, eventType STRING, eventTime TIMESTAMP, eventDate DATE, userId INT, "
    "customerId INT, date DATE, event_id INT, start_date DATE, end_date DATE, start_data DATE"
)
_SAMPLE = "id BIGINT, data STRING, category STRING, ts TIMESTAMP, catalog STRING"
_DATA = "id BIGINT, data STRING, category STRING, ts TIMESTAMP"
_NESTED = "colA STRING, colB STRUCT<field1: STRING, field2: STRING>"
_DATED = "eventId BIGINT, date DATE, eventType STRING"
_PEOPLE_BY_NAME = {"default.people10m": PEOPLE, "morePeople": PEOPLE}
# Statement -> the tables that its page presupposes, made new for it. Pages show statements one by one, so a
# statement need not fit the columns that those before it have left.
PRESUPPOSED: tuple[tuple[str, dict[str, str]], ...] = (
    (
        r"INSERT INTO prod\.db\.sample\s+SELECT id, data, category, ts",
        {"prod.db.sample": _DATA, "another_table": _DATA},
    ),
    (r"DROP PARTITION FIELD bucket\(16, id\)", {"prod.db.sample": f"{_SAMPLE}; bucket(16, id)"}),
    (r"DROP PARTITION FIELD catalog", {"prod.db.sample": f"{_SAMPLE}; catalog"}),
    (r"DROP PARTITION FIELD truncate", {"prod.db.sample": f"{_SAMPLE}; truncate(4, data)"}),
    (r"DROP PARTITION FIELD year", {"prod.db.sample": f"{_SAMPLE}; year(ts)"}),
    (r"DROP PARTITION FIELD shard", {"prod.db.sample": f"{_SAMPLE}; bucket(16, id) AS shard"}),
    (r"REPLACE PARTITION FIELD ts_day", {"prod.db.sample": f"{_SAMPLE}; days(ts) AS ts_day"}),
    (r"ADD PARTITION FIELD bucket\(16, id\) AS", {"prod.db.sample": _SAMPLE}),
    (
        r"MERGE INTO local\.db\.table t USING \(SELECT \* FROM updates\)",
        {"updates": "id BIGINT, data STRING", "local.db.table": "id BIGINT, data STRING"},
    ),
    (
        r"INSERT INTO prod\.db\.table SELECT \* FROM another_table",
        {"prod.db.table": "id BIGINT, data STRING", "another_table": "id BIGINT, data STRING"},
    ),
    (
        r"MERGE INTO prod\.db\.target t\s+USING \(SELECT \* FROM another_table",
        {"prod.db.target": "id BIGINT, data STRING"},
    ),
    (r"UPDATE prod\.db\.table\.branch_audit AS t1\s+SET val", {"prod.db.table": "id BIGINT, val STRING"}),
    (r"INSERT INTO prod\.db\.table VALUES \(3, 'c'\)", {"prod.db.table": "id BIGINT, data STRING"}),
    (
        r"data\.writeTo\('prod\.db\.table(?:'\)\.(?:append|overwrite)|\.branch)",
        {"prod.db.table": "id BIGINT, data STRING, ts TIMESTAMP, level STRING"},
    ),
    (
        r"source\.mergeInto\('target'",
        {
            "target": "id BIGINT, data STRING, status STRING",
            "source": "id BIGINT, data STRING, status STRING",
        },
    ),
    (
        r"old_table_df\.write|oldTableDF\.write|new_records_df\.write|newRecordsDF\.write",
        {"new_table": "id BIGINT, event_date DATE, some_value BIGINT"},
    ),
    (r"REPLACE WHERE start_data|'replace(?:Using|On)'", {"events": EVENTS, "replace_data": EVENTS}),
    (r"INSERT OVERWRITE (?:TABLE )?default\.people10m", _PEOPLE_BY_NAME),
    (r"(?:read\.table\(|mode\(.*saveAsTable\()'default\.people10m'", _PEOPLE_BY_NAME),
    (r"withColumnRenamed\('dateOfBirth'", {"default.people10m": "id INT, dateOfBirth DATE"}),
    (r"ALTER TABLE boxes REPLACE COLUMNS", {"boxes": _NESTED}),
    (
        r"RENAME COLUMN col_name\.old_nested_field",
        {"table_name": "id BIGINT, col_name STRUCT<old_nested_field: STRING>"},
    ),
    (
        r"UPDATE SET target\.lastSeen = source\.timestamp",
        {
            "target": "key BIGINT, lastSeen TIMESTAMP, status STRING",
            "source": "key BIGINT, timestamp TIMESTAMP",
        },
    ),
    (
        r"MERGE INTO logs\s+USING newDedupedLogs",
        {"logs": "uniqueId INT, date DATE", "newDedupedLogs": "uniqueId INT, date DATE"},
    ),
    (r"SHOW PARTITIONS eventsTable", {"eventsTable": "eventId BIGINT, date DATE; date"}),
    (r"CLUSTER BY \(col0\).*FROM table1", {"table1": "col0 INT, col1 STRING"}),
    (r"toTable\('events'\)", {"events": "id BIGINT, data STRING"}),
    (r"toTable\('database\.table_name'\)", {"database.table_name": "id BIGINT, data STRING"}),
    (
        r"partition_filter => map\('part_col_1'",
        {
            "catalog_name.db.tbl": "id BIGINT, name STRING, data STRING, part_col_1 STRING",
            "catalog_name.db.src_tbl": "id BIGINT, name STRING, data STRING, part_col_1 STRING",
        },
    ),
    (
        r"table => 'db\.tbl',\s+source_table => '`parquet`",
        {"catalog_name.db.tbl": "id BIGINT, data STRING, part INT, part2 INT"},
    ),
    (r"create_changelog_view", {"catalog_name.db.tbl": "id BIGINT, name STRING, data STRING"}),
    (r"DROP IDENTIFIER FIELDS id, data", {"prod.db.sample": "id BIGINT NOT NULL, data STRING NOT NULL"}),
)
# The same for tables by path: statement -> the end of the path and the columns.
PRESUPPOSED_PATHS: tuple[tuple[str, str, str], ...] = (
    (r"\b(?:df|dataFrame)\.write\b.*people10m", "tmp/delta/people10m", PEOPLE),
    (r"timestampAsOf', yesterday", "tmp/delta/events", EVENTS),
    (r"groupBy\('customerId'\)", "tmp/delta/events", EVENTS),
    (r"events\.writeStream", "tmp/delta/events", "id BIGINT, data STRING"),
    (r"year = '2019'", "data/placed", "id BIGINT, year STRING"),
    (r"SHOW PARTITIONS lance\.", "data/events", "eventId BIGINT, date DATE; date"),
)
# Relative paths of the pages: they are not those of this process.
RELATIVE = (
    "pathToMyLanceTable",
    "path_to_table",
    "path/to/table",
    "table_location",
    "PATH_TO_UNIFORM_TABLE_DIRECTORY",
)
