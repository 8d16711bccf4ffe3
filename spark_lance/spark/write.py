"""Writing DataFrames: tasks write data files, the driver commits them as one version.

    writer()   driver   what is written, and how, is decided and checked (`_plan`); nothing is stored
    write()    task     rows become data files with names of their own; their fragments are the task's message
    commit()   driver   the fragments of all tasks become one version, or their files are deleted
    abort()    driver   deletes the files of tasks that finished, if some task did not

Spark runs the four in different processes and copies the writer between them, so nothing that one of them
learns reaches the next except through the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_lance.errors import (
    AtomicPutUnsupportedError,
    CommitError,
    OptionError,
    SchemaError,
    TableNotFoundError,
)
from spark_lance.file.pages import PAGE_FORMATS
from spark_lance.file.schema import Schema
from spark_lance.file.version import FileVersion
from spark_lance.io.atomic import PUT_IF_ABSENT
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2
from spark_lance.spark.commit_once import commit_once
from spark_lance.spark.failures import one_line
from spark_lance.spark.options import WriteOptions
from spark_lance.spark.types import VECTOR_SIZE, arrow_schema, covers, new_field, spark_type
from spark_lance.table.commits.once import Once
from spark_lance.table.history.refs import load_latest
from spark_lance.table.manifest import Manifest
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import delete_fragment_files, write_fragments
from spark_lance.table.writing.write_plan import WritePlan, plan_write

__all__ = ["LanceCommitMessage", "LanceWriter"]

# The transaction property that Lance reserves for it.
_COMMIT_MESSAGE = "__lance_commit_message"


@dataclass(frozen=True)
class LanceCommitMessage(WriterCommitMessage):
    """What one task wrote: serialized DataFragment messages, and the number of rows it was given."""

    fragments: tuple[bytes, ...]
    rows: int


class LanceWriter(DataSourceArrowWriter):
    """Appends rows to a table, creating it if there is none, or replaces the table's content.

    Append takes columns in any order; those it lacks become null. Overwrite takes the schema of the
    DataFrame, but a column that the table has with the same name and Spark type keeps its Arrow type
    (vectors, unsigned and large types). The columns of a new table may hold nulls.

    Args:
        options: what the write was asked for.
        schema: of the rows to come.
        overwrite: whether the rows take the place of the table's content.

    Raises:
        SchemaError: the rows do not fit the table, or cannot be stored; the message lists all differences.
        OptionError: an option that does not fit the table or the schema.
        UnsupportedFormatError: the table has a feature that is not written here.
        AtomicPutUnsupportedError: the store cannot commit safely.
    """

    def __init__(self, options: WriteOptions, schema: st.StructType, overwrite: bool) -> None:
        self._store, self._root = open_store(options.path, options.storage)
        _check_store(self._store)
        self._options = options
        self._names, self._plan = _plan(self._store, self._root, options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceCommitMessage:
        """Write the rows of one task to data files.

        Raises:
            SchemaError: a value does not fit its column; the message names the column.
        """
        received = 0

        def aligned() -> Iterator[pa.RecordBatch]:
            nonlocal received
            aligner: Aligner | None = None
            for batch in iterator:
                received += batch.num_rows
                renamed = batch.rename_columns(self._names)
                if aligner is None:
                    aligner = Aligner(renamed.schema, self._plan.schema)
                yield aligner.align(renamed)

        with one_line():
            fragments = write_fragments(
                aligned(),
                self._store,
                self._root,
                self._plan.schema,
                version=self._plan.version,
                max_rows_per_file=self._options.max_rows_per_file,
                max_bytes_per_file=self._options.max_bytes_per_file,
            )
        return LanceCommitMessage(tuple(fragments), received)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks a version of the table.

        An append without rows makes no version, unless it shall be known (options `txnAppId`, `txnVersion`)
        that it was done; otherwise a DataFrame without rows makes an empty table. If the job has committed
        this number or a higher one before, the files are deleted, and that is all.

        Raises:
            CommitOutcomeUnknownError: the version may exist; no file was deleted.
            CommitError, SchemaError: nothing was committed; the files were deleted.
        """
        done = [message for message in messages if isinstance(message, LanceCommitMessage)]
        fragments = [data for message in done for data in message.fragments]
        with one_line():
            try:
                _check_rows(done)
            except CommitError:
                delete_fragment_files(self._store, self._root, fragments)
                raise
            commit_once(self._store, self._root, self._plan, fragments, self._properties(), self._once())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of the tasks that finished, unless a commit has been tried.

        Spark also calls this after `commit` has failed, in another process. Then all messages are there,
        and `commit` has deleted what was certainly not committed; only a write of which some task did not
        finish (its message is None) has certainly never been committed.
        """
        done = [message for message in messages if isinstance(message, LanceCommitMessage)]
        if len(done) < len(messages):
            fragments = [data for message in done for data in message.fragments]
            delete_fragment_files(self._store, self._root, fragments)

    def _once(self) -> Once | None:
        name, number = self._options.txnAppId, self._options.txnVersion
        return None if name is None or number is None else Once(name, number)

    def _properties(self) -> Mapping[str, str]:
        text = self._options.commit_message
        return {} if text is None else {_COMMIT_MESSAGE: text}


def _check_store(store: Store) -> None:
    if store.protocol not in PUT_IF_ABSENT:
        raise AtomicPutUnsupportedError(
            f"tables on {store.protocol}:// cannot be written: it has no atomic create-if-absent"
        )


def _check_rows(messages: list[LanceCommitMessage]) -> None:
    """Compare the rows that Spark handed to the tasks with those in the files that they wrote."""
    received = sum(message.rows for message in messages)
    stored = sum(
        table_pb2.DataFragment.FromString(data).physical_rows
        for message in messages
        for data in message.fragments
    )
    if received != stored:
        raise CommitError(
            f"tasks were given {received} rows but stored {stored}, so nothing was committed; this is a bug"
        )


def _plan(
    store: Store, root: str, options: WriteOptions, schema: st.StructType, overwrite: bool
) -> tuple[list[str], WritePlan]:
    """Decide how rows of `schema` are written.

    Returns:
        The names that the table has for the columns of the rows, and the plan.
    """
    try:
        table = load_latest(store, root)
    except TableNotFoundError:
        table = None
    _check_names(schema)
    given = arrow_schema(schema)
    if table is not None and not overwrite:
        _check_append_options(table, options)
        names = _table_names(table.schema, given.names)
        source = pa.schema([field.with_name(name) for field, name in zip(given, names, strict=True)])
    else:
        source = _new_schema(schema, options, None if table is None else table.schema)
        names = source.names
    plan = plan_write(
        store,
        root,
        source,
        "overwrite" if overwrite else "append",
        data_storage_version=options.data_storage_version,
        stable_row_ids=bool(options.enable_stable_row_ids),
    )
    # What the tasks do first, done here without rows: it refuses types that do not go together, or that
    # files of this version do not hold.
    Aligner(pa.schema([f.with_name(name) for f, name in zip(given, names, strict=True)]), plan.schema)
    for field in plan.schema.fields:
        PAGE_FORMATS[plan.version].writer(field, 0, plan.version)
    return names, plan


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
