"""How the rows of a DataFrame are to be stored: decided in the driver, before any task runs.

What a write does to the table's columns:

    append                            the table's columns stay; those that the rows lack become null
    append, mergeSchema               ... and the table gets the columns that it lacks
    overwrite                         the table gets the columns of the DataFrame; one that it has with the
                                      same name and Spark type keeps its Arrow type
    overwrite, overwriteSchema=true   ... and nothing of its former columns is kept
    overwrite, overwriteSchema=false  the table's columns stay, as with append
    overwrite, mergeSchema            the table's columns stay, and it gets those that it lacks
    overwrite, replaceWhere           as append; just the rows for which the condition is true are replaced
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import OptionError, SchemaError, TableNotFoundError
from spark_lance.file.pages import PAGE_FORMATS
from spark_lance.file.schema import Schema
from spark_lance.file.version import FileVersion
from spark_lance.io.store import Store
from spark_lance.spark.options import WriteOptions
from spark_lance.spark.types import VECTOR_SIZE, arrow_schema, covers, new_field, spark_type
from spark_lance.table.history.refs import load_latest
from spark_lance.table.manifest import Manifest
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write_plan import WritePlan, plan_write

__all__ = ["plan_rows"]


def plan_rows(
    store: Store, root: str, options: WriteOptions, schema: st.StructType, overwrite: bool
) -> tuple[list[str], WritePlan]:
    """Decide how rows of `schema` are written.

    Returns:
        The names that the table has for the columns of the rows, and the plan.

    Raises:
        SchemaError: the rows do not fit the table, or cannot be stored; the message lists all differences.
        OptionError: an option that does not fit the table, the schema or the mode.
        ExpressionError: the condition of `replaceWhere` does not fit the table.
    """
    _check_mode(options, overwrite)
    try:
        table = load_latest(store, root)
    except TableNotFoundError:
        table = None
    _check_names(schema)
    given = arrow_schema(schema)
    keeps = not overwrite or options.replaceWhere is not None or _keeps_schema(options)
    new_columns = None
    if table is not None and keeps:
        if not overwrite or options.replaceWhere is not None:
            _check_append_options(table, options)
        names = _table_names(table.schema, given.names)
        source = _renamed(given, names)
        if options.mergeSchema:
            new_columns = _renamed(_new_schema(schema, options, None), names)
    else:
        kept = None if table is None or options.overwriteSchema else table.schema
        source = _new_schema(schema, options, kept)
        names = source.names
        new_columns = source if options.mergeSchema else None
    try:
        plan = plan_write(
            store,
            root,
            source,
            "overwrite" if overwrite else "append",
            data_storage_version=options.data_storage_version,
            stable_row_ids=bool(options.enable_stable_row_ids),
            new_columns=new_columns,
            keep_schema=keeps,
            replace_where=options.replaceWhere,
        )
    except SchemaError as error:
        if new_columns is None or table is None:
            raise
        raise SchemaError(f"{error}\nmergeSchema adds columns; it changes no type of a column") from error
    # What the tasks do first, done here without rows: it refuses types that do not go together, or that
    # files of this version do not hold.
    Aligner(_renamed(given, names), plan.schema)
    for field in plan.schema.fields:
        PAGE_FORMATS[plan.version].writer(field, 0, plan.version)
    return names, plan


def _check_mode(options: WriteOptions, overwrite: bool) -> None:
    """Refuse options that contradict each other or the mode."""
    if options.replaceWhere is None:
        return
    if not overwrite:
        raise OptionError("option 'replaceWhere' is for mode overwrite: an append replaces nothing")
    if options.overwriteSchema:
        raise OptionError(
            "option 'replaceWhere' keeps the other rows, so 'overwriteSchema' cannot go with it"
        )


def _keeps_schema(options: WriteOptions) -> bool:
    """Whether an overwrite keeps the table's columns."""
    return options.overwriteSchema is False or (options.mergeSchema and not options.overwriteSchema)


def _renamed(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def _check_names(schema: st.StructType) -> None:
    if not schema.fields:
        raise SchemaError("the DataFrame has no columns")
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise SchemaError(f"column names that occur twice: {', '.join(doubled)}")


def _table_names(table: Schema, names: list[str]) -> list[str]:
    """Return the table's spelling of column names; the case matters only if the table has both spellings."""
    exact = {field.name for field in table.fields}
    folded: dict[str, list[str]] = {}
    for field in table.fields:
        folded.setdefault(field.name.lower(), []).append(field.name)
    found = []
    for name in names:
        alike = folded.get(name.lower(), [])
        found.append(alike[0] if name not in exact and len(alike) == 1 else name)
    return found


def _check_append_options(table: Manifest, options: WriteOptions) -> None:
    """Refuse options that ask for something else than the table is."""
    asked = options.data_storage_version
    if asked is not None and FileVersion.parse(asked) is not table.file_version:
        raise OptionError(
            f"option 'data_storage_version' is {asked}, but the table's is {table.file_version.text}; "
            "only overwrite changes it"
        )
    stable = options.enable_stable_row_ids
    if stable is not None and stable != table.uses_stable_row_ids:
        raise OptionError("option 'enable_stable_row_ids' cannot be changed once there is a table")
    types = {field.name.lower(): field.arrow_type() for field in table.schema.fields}
    for column, size in options.vector_sizes.items():
        stored = types.get(column)
        if stored is not None and not (pa.types.is_fixed_size_list(stored) and stored.list_size == size):
            raise OptionError(
                f"column {column!r} of the table is {stored}: it does not hold vectors of {size}"
            )


def _new_schema(schema: st.StructType, options: WriteOptions, old: Schema | None) -> pa.Schema:
    """Return the Arrow schema of a table to be created or overwritten."""
    _check_vector_sizes(options.vector_sizes, schema)
    fields, reasons = [], []
    for column in schema:
        try:
            field = new_field(column, options.vector_sizes)
            fields.append(field if old is None else _keep_type(field, column, old))
        except SchemaError as error:
            reasons.append(f"{column.name}: {error}")
    if reasons:
        raise SchemaError(f"these columns cannot be stored: {'; '.join(reasons)}")
    return pa.schema(fields)


def _check_vector_sizes(sizes: Mapping[str, int], schema: st.StructType) -> None:
    """Spark lower-cases option names, so a name must mean one column whatever its case."""
    paths = [path.lower() for path in _paths(schema)]
    for column in sizes:
        if column not in paths:
            raise OptionError(
                f"there is no column {column!r} to store as vectors; there are {', '.join(schema.names)}"
            )
        if paths.count(column) > 1:
            raise OptionError(
                f"several columns are called {column!r} but for the case: set metadata {VECTOR_SIZE} instead"
            )


def _paths(schema: st.StructType, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all columns and their struct fields."""
    for field in schema:
        yield prefix + field.name
        if isinstance(field.dataType, st.StructType):
            yield from _paths(field.dataType, f"{prefix}{field.name}.")


def _keep_type(new: pa.Field, column: st.StructField, old: Schema) -> pa.Field:
    """Return the new column with the type and NOT NULL of the old one, if they are the same to Spark.

    So that overwriting a table with what was read from it keeps vectors, unsigned and large types.
    """
    former = next((field for field in old.fields if field.name == column.name), None)
    if former is None:
        return new
    stored = former.arrow_field()
    if pa.types.is_fixed_size_list(new.type) and new.type.list_size != getattr(
        stored.type, "list_size", None
    ):
        return new
    try:
        seen = spark_type(stored.type)
    except SchemaError:
        return new
    if seen.simpleString() != column.dataType.simpleString() or not covers(column.dataType, seen):
        return new
    metadata = {**(stored.metadata or {}), **(new.metadata or {})}
    return pa.field(new.name, stored.type, stored.nullable or column.nullable, metadata or None)
