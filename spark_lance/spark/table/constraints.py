"""Constraints of tables: Spark evaluates expressions that this package cannot evaluate itself."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import ConstraintError, ExpressionError, SchemaError, suggestion
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.base.compat import is_stopped
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import find_column
from spark_lance.spark.schema.types import arrow_schema, spark_field
from spark_lance.spark.table.expressions import analysis_errors, quoted
from spark_lance.table.commits.constraints import use_engine
from spark_lance.table.format.reserved_names import IDENTITY_VALUES
from spark_lance.table.schema.constraints import (
    CHECK,
    Constraint,
    check_calls,
    column_names,
    constraint_setting,
)
from spark_lance.table.schema.defaults import (
    GENERATION_COLUMNS,
    GENERATION_EXPRESSION,
    IDENTITY,
    read_identity,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_lance.datasets.dataset import LanceDataset

# Spark generates a name from the table's name, which can be a path.
_GENERATED_NAME = re.compile(r".*/([^/]+_(?:pk|fk|uniq|chk)(?:_\w+)?)")

# The result of a condition that does not depend only on the row may change later.
_NOT_ROW_ONLY = re.compile(
    r"\b(select|exists|over|rand|randn|random|uuid|shuffle|monotonically_increasing_id|spark_partition_id|"
    r"current_\w+|now|localtimestamp|input_file_\w+)\b",
    re.IGNORECASE,
)


def evaluate_with(spark: SparkSession) -> None:
    """Set the session that evaluates constraints in this process."""
    use_engine(partial(_find_violation, spark))


def add_check(
    spark: SparkSession, dataset: LanceDataset, name: str, expression: str, *, enforced: bool = True
) -> None:
    """Add a CHECK constraint; see `LanceTable.addConstraint`."""
    columns = _check_columns(spark, dataset.lance_schema, name, expression)
    evaluate_with(spark)
    dataset.settings.add(Constraint(name, CHECK, expression, columns, enforced))


def _check_columns(spark: SparkSession, schema: Schema, name: str, expression: str) -> tuple[str, ...]:
    """Return the columns of a CHECK expression.

    Raises:
        ConstraintError: it is not a condition on columns of the row.
    """
    check_calls(name, expression)
    fields = schema.fields
    columns = column_names(expression, [field.name for field in fields])
    if match := _NOT_ROW_ONLY.search(re.sub(r"'[^']*'", "''", expression)):
        raise ConstraintError(
            f"constraint {name} ({expression}) is not about the row alone, as {match[0]!r} shows: use "
            "columns, literals and functions of them"
        )
    selection = tuple(field for field in fields if field.name in columns)
    if not selection:
        names = ", ".join(field.name for field in fields)
        words = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", expression))
        similar = next((hint for word in words if (hint := suggestion(word, names.split(", ")))), "")
        raise ConstraintError(
            f"constraint {name} ({expression}) names no column of the table: {names}{similar}"
        )
    _check_condition(spark, name, expression, selection)
    return columns


def with_generated(spark: SparkSession, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a new table, with the input columns of each generated column in its metadata.

    Raises:
        ConstraintError: an expression uses a generated column, or is not an expression on columns.
        SchemaError: a generated column is NOT NULL.
    """
    generated = {
        field.name: field.metadata[GENERATION_EXPRESSION.encode()].decode()
        for field in schema
        if GENERATION_EXPRESSION.encode() in (field.metadata or {})
    }
    for name, sql in generated.items():
        place = schema.get_field_index(name)
        field = schema.field(place)
        if not field.nullable:
            raise SchemaError(
                f"column {name!r} is generated, and is null if its expression is: leave out NOT NULL"
            )
        condition = f"{quoted(name)} <=> ({sql})"
        columns = column_names(sql, schema.names)
        if others := [column for column in columns if column in generated]:
            raise ConstraintError(
                f"generated column {name} ({sql}) is computed from {others[0]}, which is generated, too: use "
                "the columns that have values of their own"
            )
        _check_columns(spark, Schema.from_arrow(schema), name, condition)
        metadata = {**(field.metadata or {}), GENERATION_COLUMNS.encode(): json.dumps(columns).encode()}
        schema = schema.set(place, field.with_metadata(metadata))
    return schema


def with_sequences(schema: pa.Schema) -> tuple[pa.Schema, dict[str, str]]:
    """Return the schema of a new table with counters for its identity columns, and the counters' settings.

    Raises:
        SchemaError: an identity column is NOT NULL, or its type is not INT or BIGINT.
    """
    settings = {}
    for place, field in enumerate(schema):
        text = (field.metadata or {}).get(IDENTITY.encode())
        if text is None:
            continue
        if not field.nullable:
            raise SchemaError(
                f"column {field.name!r} is an identity column, and rows come without its values: leave out "
                "NOT NULL and the primary key"
            )
        if field.type not in (pa.int32(), pa.int64()):
            raise SchemaError(f"identity column {field.name!r} is of type {field.type}: write BIGINT or INT")
        identity = replace(read_identity(text.decode(), field.name), sequence=secrets.token_hex(8))
        settings[IDENTITY_VALUES + identity.sequence] = str(identity.start)
        metadata = {**(field.metadata or {}), IDENTITY.encode(): identity.text().encode()}
        schema = schema.set(place, field.with_metadata(metadata))
    return schema, settings


def add_constraint(spark: SparkSession, dataset: LanceDataset, constraint: Constraint) -> None:
    """Add a constraint of an SQL statement.

    Raises:
        ConstraintError: see `LanceTable.addConstraint`; or a key is to be enforced.
        SchemaError: a column of a key does not exist.
    """
    constraint = _without_path(constraint)
    if constraint.type == CHECK:
        add_check(spark, dataset, constraint.name, str(constraint.expression), enforced=constraint.enforced)
    else:
        dataset.settings.add(_resolve_key(constraint, dataset.lance_schema))


def constraint_settings(
    spark: SparkSession, schema: Schema, constraints: Iterable[Constraint]
) -> dict[str, str]:
    """Return the settings for the constraints of a new table; errors as for `add_constraint`."""
    settings: dict[str, str] = {}
    names: set[str] = set()
    for constraint in map(_without_path, constraints):
        if constraint.name.lower() in names:
            raise ConstraintError(f"two constraints have the name {constraint.name}")
        names.add(constraint.name.lower())
        if constraint.type == CHECK:
            columns = _check_columns(spark, schema, constraint.name, str(constraint.expression))
            whole = replace(constraint, columns=columns)
        else:
            whole = _resolve_key(constraint, schema)
        settings |= [constraint_setting(whole)]
    return settings


def _without_path(constraint: Constraint) -> Constraint:
    """Return a constraint without the folder in the name that Spark generates for a table by path."""
    match = _GENERATED_NAME.fullmatch(constraint.name)
    return replace(constraint, name=match[1]) if match else constraint


def _resolve_key(constraint: Constraint, schema: Schema) -> Constraint:
    """Return a key constraint with its columns in the table's spelling."""
    kind = constraint.type.replace("_", " ").upper()
    if constraint.enforced:
        raise ConstraintError(
            f"constraint {constraint.name}: nobody enforces a {kind}: write NOT ENFORCED, and for merges by "
            "key TBLPROPERTIES ('primary_key' = 'columns')"
        )
    return replace(constraint, columns=tuple(find_column(schema, name).name for name in constraint.columns))


def _spark_schema(fields: tuple[Field, ...]) -> st.StructType:
    return st.StructType([spark_field(field.read_field()) for field in fields])


def _check_condition(spark: SparkSession, name: str, expression: str, fields: tuple[Field, ...]) -> None:
    frame = spark.createDataFrame([], _spark_schema(fields))
    try:
        with analysis_errors(f"constraint {name}", frame.columns):
            kind = frame.selectExpr(f"({expression})").schema[0].dataType
            # A condition of WHERE has neither aggregates nor windows.
            if kind == st.BooleanType():
                frame.where(f"NOT ({expression})").schema  # noqa: B018 (resolves it with Spark Connect, too)
    except ExpressionError as error:
        raise ConstraintError(str(error)) from error
    if kind != st.BooleanType():
        raise ConstraintError(
            f"constraint {name} ({expression}) is of type {kind.simpleString()}, not boolean"
        )


def _find_violation(
    spark: SparkSession, expression: str, rows: pa.Table, fields: tuple[Field, ...]
) -> pa.Table | None:
    """Return at most one row for which an expression is false; None if the session has stopped."""
    if is_stopped(spark):
        return None
    if not rows.num_rows:
        return rows  # Spark cannot create a frame from a table without batches
    schema = _spark_schema(fields)
    target = arrow_schema(schema)
    convert = BatchConverter.plan(rows.schema, target)
    table = pa.Table.from_batches(map(convert, rows.to_batches()), target)
    with analysis_errors(f"the constraint {expression}", schema.names):
        return spark.createDataFrame(table, schema).where(f"NOT ({expression})").limit(1).toArrow()
