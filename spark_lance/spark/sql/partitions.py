"""Declares, changes, lists and deletes partitions in SQL.

- PARTITIONED BY (a, days(ts)) in CREATE TABLE sets the table's setting `partition-fields`.
- ALTER TABLE t ADD, DROP or REPLACE PARTITION FIELD change the setting for later writes. Existing files do
  not change.
- SHOW PARTITIONS t lists the partitions that have rows.
- ALTER TABLE t DROP PARTITION (a = 1) deletes the rows in one commit, and so does TRUNCATE TABLE.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError, suggestion
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.partition_fields import partition_text
from spark_lance.spark.sql.procedure import Parameter, Procedure
from spark_lance.spark.sql.tables import open_writable_table
from spark_lance.spark.table.table import LanceTable
from spark_lance.table.commits.commit import retry_operation, retry_policy
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import (
    PARTITION_FIELDS,
    PartitionField,
    PartitionSpec,
    parse_transform,
)
from spark_lance.table.inserts.replace_partitions import (
    PartitionKeys,
    find_partitions,
)
from spark_lance.table.metadata.partitions import partition_counts
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.reading.snapshot import Snapshot


def _partition_spec(dataset: LanceDataset) -> PartitionSpec:
    return PartitionSpec.of_config(dataset.config()).bound(dataset.lance_schema)


def list_partitions(request: BridgeRequest) -> list[list[str | None]]:
    """Return the partitions that have rows, sorted; each is a list of texts, one for each field."""
    dataset = open_writable_table(request).dataset()
    spec = _partition_spec(dataset)
    names = [field.name for field in spec.fields]
    counts = partition_counts(dataset.snapshot, spec).select(names)
    sorted_counts = counts.sort_by([(name, "ascending") for name in names]) if counts.num_rows else counts
    columns = [_java_texts(column) for column in sorted_counts.columns]
    return [list(values) for values in zip(*columns, strict=True)]


def delete_partitions(request: BridgeRequest) -> bool:
    """Delete the rows of partitions in one commit; return False if they have none."""
    dataset = open_writable_table(request).dataset()
    spec = _partition_spec(dataset)
    rows = request.body["partition_values"]
    columns = []
    for index, field in enumerate(spec.fields):
        kind = field.type(dataset.lance_schema.field(field.source).arrow_type())
        columns.append(pa.array([_parse_value(row[index], kind) for row in rows], kind))
    values = pa.Table.from_arrays(columns, names=[field.name for field in spec.fields])
    keys = PartitionKeys(spec, values)
    text = "; ".join(
        ", ".join(f"{field.name}={value}" for field, value in zip(spec.fields, row, strict=True))
        for row in rows
    )
    has_rows = False

    def attempt(at: Snapshot) -> Manifest:
        nonlocal has_rows
        rows = find_partitions(at, keys)
        has_rows = len(rows) > 0
        if not has_rows:
            return at.manifest
        return commit_row_changes(
            RowChanges(at, rows), lambda outcome: delete_message(outcome.updated, outcome.removed, text)
        )

    retry_operation(dataset.snapshot, attempt, retry_policy())
    return has_rows


def _java_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return values in the form that Java expects: days and times as numbers, bytes in base64."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return [partition_text(value) for value in column.to_pylist()]


def _parse_value(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return base64.b64decode(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text
    if pa.types.is_timestamp(kind):
        return pa.scalar(int(text), pa.timestamp("us", kind.tz)).cast(kind)
    if pa.types.is_date32(kind):
        return pa.scalar(int(text), pa.int32()).cast(kind)
    return int(text)


def _set_spec(table: LanceTable, spec: PartitionSpec) -> None:
    bound = spec.bound(table.dataset().lance_schema)
    table.setConfig({PARTITION_FIELDS: bound.text() if bound else None})


def _parse_field(a: Mapping[str, Any]) -> PartitionField:
    field = parse_transform(a["field"])
    return field if a["name"] is None else replace(field, name=a["name"])


def _find_field(spec: PartitionSpec, text: str) -> PartitionField:
    """Return the field with the name or transform in a statement."""
    target = parse_transform(text)
    for field in spec.fields:
        same_source = field.source.lower() == target.source.lower()
        if same_source and (field.transform, field.width) == (target.transform, target.width):
            return field
    by_name = spec.find(text.strip().strip("`"))
    if by_name is None:
        names = ", ".join(field.sql for field in spec.fields) or "none"
        similar = suggestion(text.strip(), [field.sql for field in spec.fields])
        raise OptionError(
            f"{text.strip()} is no partition field of the table; its partition fields: {names}{similar}"
        )
    return by_name


def _add_field(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    spec = PartitionSpec.of_config(table.config)
    _set_spec(table, PartitionSpec((*spec.fields, _parse_field(a))))


def _drop_field(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    spec = PartitionSpec.of_config(table.config)
    remaining = spec.without([_find_field(spec, a["field"])])
    table.setConfig({PARTITION_FIELDS: remaining.text() if remaining else None})


def _replace_field(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    spec = PartitionSpec.of_config(table.config)
    old, new = _find_field(spec, a["old"]), _parse_field(a)
    _set_spec(table, PartitionSpec(tuple(new if field == old else field for field in spec.fields)))


_FIELD = Parameter("field", "string", "a column, or a transform such as days(ts) or bucket(16, id)")
_NAME = Parameter("name", "string", "field name; by default such as ts_day or id_bucket", "NULL")

PARTITION_PROCEDURES: Mapping[str, Procedure] = {
    "add_partition_field": Procedure(_add_field, (_FIELD, _NAME), "Add a partition field for later writes."),
    "drop_partition_field": Procedure(
        _drop_field,
        (Parameter("field", "string", "the name or transform of a partition field"),),
        "Drop a partition field for later writes.",
    ),
    "replace_partition_field": Procedure(
        _replace_field,
        (Parameter("old", "string", "the name or transform of a partition field"), _FIELD, _NAME),
        "Replace a partition field for later writes.",
    ),
}
