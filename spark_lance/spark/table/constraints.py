"""Constraints of tables in a session: Spark evaluates expressions that are not evaluated without it."""

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

from spark_lance.errors import ConstraintError, ExpressionError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.base.compat import is_stopped
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import find_column
from spark_lance.spark.schema.types import arrow_schema, spark_field
from spark_lance.spark.table.expressions import analysed, quoted
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

# A condition that is not about the row alone may change its answer later.
_NOT_OF_THE_ROW = re.compile(
    r"\b(select|exists|over|rand|randn|random|uuid|shuffle|monotonically_increasing_id|spark_partition_id|"
    r"current_\w+|now|localtimestamp|input_file_\w+)\b",
    re.IGNORECASE,
)


def evaluate_with(spark: SparkSession) -> None:
    """Let a session evaluate constraints in this process from now on."""
    use_engine(partial(_violating, spark))


def add_check(
    spark: SparkSession, dataset: LanceDataset, name: str, expression: str, *, enforced: bool = True
) -> None:
    """Add a CHECK constraint, see `LanceTable.addConstraint`."""
    columns = _check_columns(spark, dataset.lance_schema, name, expression)
    evaluate_with(spark)
    dataset.settings.add(Constraint(name, CHECK, expression, columns, enforced))


def _check_columns(spark: SparkSession, schema: Schema, name: str, expression: str) -> tuple[str, ...]:
    """Return the columns of a CHECK.

    Raises:
        ConstraintError: it is no condition on them.
    """
    check_calls(name, expression)
    fields = schema.fields
    columns = column_names(expression, [field.name for field in fields])
    if match := _NOT_OF_THE_ROW.search(re.sub(r"'[^']*'", "''", expression)):
        raise ConstraintError(
            f"constraint {name} ({expression}) is not about the row alone, as {match[0]!r} shows: use "
            "columns, literals and functions of them"
        )
    selection = tuple(field for field in fields if field.name in columns)
    if not selection:
        names = ", ".join(field.name for field in fields)
        raise ConstraintError(f"constraint {name} ({expression}) names no column of the table: {names}")
    _check_condition(spark, name, expression, selection)
    return columns


def with_generated(spark: SparkSession, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a new table whose generated columns have the names of the columns that they read.

    Raises:
        ConstraintError: an expression is not one of other columns that are not generated.
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
    """Return the schema of a new table whose identity columns have counters, and the settings of these.

    Raises:
        SchemaError: an identity column is NOT NULL, or is not of the type INT or BIGINT.
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
    """Add a constraint of a statement.

    Raises:
        ConstraintError: see `LanceTable.addConstraint`; or a key is to be enforced.
        SchemaError: a column of a key does not exist.
    """
    if constraint.type == CHECK:
        add_check(spark, dataset, constraint.name, str(constraint.expression), enforced=constraint.enforced)
    else:
        dataset.settings.add(_key(constraint, dataset.lance_schema))


def constraint_settings(
    spark: SparkSession, schema: Schema, constraints: Iterable[Constraint]
) -> dict[str, str]:
    """Return the settings of a new table for the constraints of its statement; errors as `add_constraint`."""
    settings: dict[str, str] = {}
    names: set[str] = set()
    for constraint in constraints:
        if constraint.name.lower() in names:
            raise ConstraintError(f"two constraints have the name {constraint.name}")
        names.add(constraint.name.lower())
        if constraint.type == CHECK:
            columns = _check_columns(spark, schema, constraint.name, str(constraint.expression))
            whole = replace(constraint, columns=columns)
        else:
            whole = _key(constraint, schema)
        settings |= [constraint_setting(whole)]
    return settings


def _key(constraint: Constraint, schema: Schema) -> Constraint:
    """Return a key with its columns as the table spells them."""
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
        with analysed(f"constraint {name}", frame.columns):
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


def _violating(
    spark: SparkSession, expression: str, rows: pa.Table, fields: tuple[Field, ...]
) -> pa.Table | None:
    """Return one of the rows for which an expression is false, or none; None if the session has ended."""
    if is_stopped(spark):
        return None
    if not rows.num_rows:
        return rows  # of a table without a batch Spark makes no frame
    schema = _spark_schema(fields)
    target = arrow_schema(schema)
    convert = BatchConverter.plan(rows.schema, target)
    table = pa.Table.from_batches(map(convert, rows.to_batches()), target)
    with analysed(f"the constraint {expression}", schema.names):
        return spark.createDataFrame(table, schema).where(f"NOT ({expression})").limit(1).toArrow()
