"""Methods that change columns in Spark jobs, which write one new file per fragment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame

from spark_lance.datasets.columns import read_alteration, sample_row
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import OptionError, SchemaError, suggestion
from spark_lance.spark.options.column_options import VECTOR_SIZE
from spark_lance.spark.schema.blobs import holds_descriptions
from spark_lance.spark.schema.new_fields import ColumnSettings, new_field, without_defaults
from spark_lance.spark.schema.read_schema import find_column
from spark_lance.spark.schema.string_types import (
    DECLARED_TYPE,
    PRECISE_TYPE,
    STRING_TYPE,
    check_widened,
    has_lengths,
    readable_type,
)
from spark_lance.spark.schema.types import field_type
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.column_jobs import ColumnJob, Outcome, cast_columns
from spark_lance.spark.table.column_sources import Expressions, Function, JoinedFrame
from spark_lance.spark.table.expressions import (
    Expression,
    analysis_errors,
    cast_for_storage,
    is_ansi,
    quoted,
    resolve_types,
    spark_functions,
)
from spark_lance.table.columns.alter import move_columns, unset_primary_key
from spark_lance.table.columns.new_columns import BatchUDF, function
from spark_lance.table.columns.work import UnchangedColumns
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.reading.system_columns import system_names
from spark_lance.table.schema.changes import Alteration
from spark_lance.table.schema.defaults import (
    CURRENT_DEFAULT,
    DEFAULT_KEYS,
    EXISTS_DEFAULT,
    generation_sql,
    get_identity,
)
from spark_lance.table.schema.keys import check_droppable

if TYPE_CHECKING:
    from pyspark.sql import Column

BATCH_ROWS = 8192
_METRICS = (
    "version bigint, num_fragments bigint, num_rows bigint, num_files_written bigint, "
    "num_files_reused bigint, bytes_written bigint"
)

Batches = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class TableColumns(SpellingHintMixin):
    """Methods that add, update, alter and drop columns. Get it as `LanceTable.columns`."""

    table: TableBase

    def add(
        self,
        columns: Mapping[str, Expression] | DataFrame | Batches | pa.Schema | pa.Field | st.StructType,
        *,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        inputs: Sequence[str] | None = None,
        schema: pa.Schema | st.StructType | str | None = None,
        batchSize: int = BATCH_ROWS,
        vectorSizes: Mapping[str, int] | None = None,
        resume: str | None = None,
    ) -> DataFrame:
        """Add columns. The job writes one new data file per fragment and does not rewrite existing files.

        The job reads only the input columns of the new values. Rows that other writers append concurrently
        get values, too (null if the values come from a DataFrame by row address). Rows that other writers
        rewrite are computed again.

        Args:
            columns: the source of the values:

                - a dict from names to expressions, SQL or Columns, such as {"km": "distance * 1.609"}.
                  Spark computes them row by row;
                - a DataFrame, whose columns except the keys (see `on`) are joined. Rows without a match get
                  null;
                - a function from a RecordBatch to a RecordBatch (or Table, or pandas DataFrame) with the same
                  number of rows, such as an embedding model. It runs in tasks, so it must be picklable;
                - a schema, pyarrow's or Spark's: columns that are null in every row. No file is written.
            on: for a DataFrame: the key columns as one name, several names, or a dict from table columns to
                DataFrame columns. `_rowid` and `_rowaddr` work, too.
            inputs: for a function: the columns that it receives. Default: all columns.
            schema: for a function: its output, as a pyarrow or Spark schema or text such as "v array<float>".
                Default: call the function with one row and use the schema of the result.
            batchSize: for a function: maximum number of rows per call.
            vectorSizes: array column -> length of its vectors. These columns are stored as fixed-size lists.
            resume: a name for the job. If it fails, a call with the same name and request reuses the finished
                fragments. The caller must make sure that a function returns the same values as before.

        Returns:
            One row: `version`, `num_fragments`, `num_rows` with a new value, `num_files_written`,
            `num_files_reused` and `bytes_written`.

        Raises:
            SchemaError: a column exists already, values do not fit it, or a function returns a wrong number
                of rows.
            ExpressionError: Spark cannot resolve an expression, or it depends on more than one row.
            MergeError: several rows of the DataFrame match one table row.
            OptionError: arguments contradict each other, or a job with this name has another request.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
        """
        sizes = {name.lower(): {VECTOR_SIZE: size} for name, size in (vectorSizes or {}).items()}
        if schema is None:
            schema = getattr(columns, "output_schema", None)  # of batch_udf
        self._check_arguments(columns, on=on, inputs=inputs, schema=schema)
        nulls = _null_columns(columns, sizes)
        if nulls is not None:
            self._check_case(nulls.names)
            dataset = self.table.dataset().add_columns(nulls)
            return self._metrics(Outcome(dataset.version))
        if isinstance(columns, DataFrame):
            joined = self._plan_join(columns, on)
            self._check_case(joined.values)
            kinds = [without_defaults(columns.schema[name]) for name in joined.values.values()]
            target = _new_fields(kinds, list(joined.values), sizes)
            return self._metrics(ColumnJob(self.table, joined, UnchangedColumns.NULL, resume).add(target))
        if isinstance(columns, Mapping):
            self._check_case(columns)
            source = Expressions(self.table, columns)
            frame = source.frame(*_version_and_fragments(self.table.dataset()))
            kinds = [without_defaults(field) for field in frame.schema if field.name in columns]
            target = _new_fields(kinds, [kind.name for kind in kinds], sizes)
            return self._metrics(
                ColumnJob(self.table, source, UnchangedColumns.FORBIDDEN, resume).add(target)
            )
        function, target = self._plan_function(cast("Batches", columns), inputs, schema, batchSize, sizes)
        self._check_case(target.names)
        return self._metrics(ColumnJob(self.table, function, UnchangedColumns.FORBIDDEN, resume).add(target))

    def addDefault(self, column: st.StructField, default: str) -> DataFrame:
        """Add a column with a default value, and write the default to all existing rows.

        Args:
            column: name, type and comment of the column.
            default: SQL of the default. Each task computes it once.

        Returns:
            One row, see `addColumns`.

        Raises:
            SchemaError, ExpressionError, CommitError, UnsupportedFormatError: see `addColumns`.
        """
        self._check_case([column.name])
        kind = self._default_type(column.name, column.dataType, default)
        metadata = {EXISTS_DEFAULT: default, **(column.metadata or {}), CURRENT_DEFAULT: default}
        if has_lengths(column.dataType):
            metadata[DECLARED_TYPE] = column.dataType.simpleString()
        functions = spark_functions(self.table.spark)
        source = Expressions(self.table, {column.name: functions.expr(default).cast(kind)})
        source.frame(*_version_and_fragments(self.table.dataset()))
        target = _new_fields([st.StructField(column.name, kind, True, metadata)], [column.name], {})
        return self._metrics(ColumnJob(self.table, source, UnchangedColumns.FORBIDDEN, None).add(target))

    def _default_type(self, name: str, kind: st.DataType, default: str) -> st.DataType:
        """Return the type in which Spark computes a column's default.

        Raises:
            ExpressionError: the default is not a constant SQL expression of the column's type.
        """
        kind = readable_type(kind)
        functions = spark_functions(self.table.spark)
        with analysis_errors(f"the default of column {name!r}"):
            row = self.table.spark.createDataFrame([(0,)], "`` int")
            row.select(functions.expr(default).cast(kind)).collect()
        return kind

    def _check_case(self, names: Iterable[str], renamed: Collection[str] = ()) -> None:
        """Check that no new column differs from another column only in case, unless Spark is case-sensitive.

        Raises:
            SchemaError: a name differs from another column only in case.
        """
        if self.table.spark.conf.get("spark.sql.caseSensitive") == "true":
            return
        existing = [
            field.name for field in self.table.dataset().lance_schema.fields if field.name not in renamed
        ]
        for name in names:
            alike = [other for other in existing if other.lower() == name.lower() and other != name]
            if alike:
                raise SchemaError(
                    f"column {name!r} and column {alike[0]!r} differ in case alone, so Spark could select "
                    "neither: choose another name, or set spark.sql.caseSensitive"
                )
            existing.append(name)

    def update(
        self,
        columns: Mapping[str, Expression] | DataFrame | Batches,
        *,
        where: Expression | None = None,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        batchSize: int = BATCH_ROWS,
        resume: str | None = None,
    ) -> DataFrame:
        """Rewrite the values of columns in place. Rows do not move, and other columns do not change.

        The job rewrites the columns in each fragment that has a row to change. If only few rows change,
        `LanceTable.update` is less work. Indexes on the columns do not cover these fragments until they are
        optimized. Rows that other writers append concurrently keep their values.

        Args:
            columns: the source of the values, as for `addColumns`: a dict from column names to expressions; a
                DataFrame whose columns have the names of table columns; or a function.
            where: for expressions and functions: a condition, as SQL or a Column. Default: all rows.
            on: for a DataFrame: see `addColumns`. Rows without a match keep their values.
            inputs: for a function: the columns that it receives. Default: all columns.
            outputs: for a function: the columns that it returns. Default: the columns of `inputs`.
            batchSize, resume: see `addColumns`.

        Returns:
            One row, see `addColumns`.

        Raises:
            SchemaError: a column does not exist, or values do not fit it.
            ExpressionError, MergeError, OptionError, CommitError, UnsupportedFormatError: see `addColumns`.
        """
        self._check_arguments(columns, on=on, inputs=inputs, outputs=outputs, where=where)
        dataset = self.table.dataset()
        table = dataset.manifest.schema
        if isinstance(columns, DataFrame):
            joined = self._plan_join(columns, on)
            renamed = {
                find_column(table, name).name: source_name for name, source_name in joined.values.items()
            }
            functions = spark_functions(self.table.spark)
            ansi = is_ansi(self.table.spark)
            new_values = columns.select(
                *[functions.col(quoted(source_name)) for source_name in joined.on.values()],
                *[
                    cast_for_storage(
                        functions,
                        functions.col(quoted(source_name)),
                        columns.schema[source_name].dataType,
                        field_type(table.field(name).read_field()),
                        name,
                        ansi,
                    ).alias(name)
                    for name, source_name in renamed.items()
                ],
            )
            source = JoinedFrame(self.table, new_values, joined.on, {name: name for name in renamed})
            return self._metrics(
                ColumnJob(self.table, source, UnchangedColumns.KEPT, resume).update(list(renamed))
            )
        if isinstance(columns, Mapping):
            values = {find_column(table, name).name: value for name, value in columns.items()}
            expressions = Expressions(self.table, values, where, self._storage_values)
            expressions.frame(*_version_and_fragments(dataset))
            return self._metrics(
                ColumnJob(self.table, expressions, UnchangedColumns.KEPT, resume).update(list(values))
            )
        input_columns = self._input_columns(dataset, inputs)
        targets = (
            input_columns if outputs is None else tuple(find_column(table, name).name for name in outputs)
        )
        target = pa.schema([table.field(name).arrow_field() for name in targets])
        computation = function(
            BatchUDF(columns, target), input_columns, lambda: sample_row(dataset.snapshot, input_columns)
        )
        computed = Function(
            self.table, input_columns, computation.compute, targets, _check_batch_size(batchSize), where
        )
        return self._metrics(ColumnJob(self.table, computed, UnchangedColumns.KEPT, resume).update(targets))

    def drop(self, *columns: str) -> None:
        """Drop columns, or struct fields ("a.b"). Only the schema changes; no file is rewritten.

        Older versions keep the values. Files that also have other columns keep them until compaction.

        Raises:
            SchemaError: a column does not exist, is the last column, or is part of the primary key (see
                `unsetPrimaryKey`).
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        dataset = self.table.dataset()
        check_droppable(dataset.lance_schema, columns)
        dataset.drop_columns(columns)

    def unsetPrimaryKey(self) -> None:
        """Remove the primary key declaration. The columns stay NOT NULL, and older versions keep the key.

        Raises:
            SchemaError: the table has no primary key.
            UnsupportedFormatError: the table has a MemWAL, which needs the key.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        unset_primary_key(self.table.dataset().snapshot)

    def rename(self, existing: str, new: str) -> None:
        """Rename a column, or a struct field ("a.b" becomes "a.c" if `new` is "c").

        Raises:
            SchemaError: the column does not exist, or the new name is taken.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        self.renameAll({existing: new})

    def renameAll(self, names: Mapping[str, str]) -> None:
        """Rename several columns in one commit: old name -> new name; see `renameColumn`."""
        tops = {path: name for path, name in names.items() if "." not in path}
        self._check_case(tops.values(), tops)
        cast_columns(self.table, [Alteration(path, name=name) for path, name in names.items()])

    def alter(
        self,
        name: str,
        *,
        type: st.DataType | pa.DataType | str | None = None,
        nullable: bool | None = None,
        comment: str | None = None,
        default: str | None = None,
    ) -> None:
        """Change the type, nullability, comment or default of a column.

        Each argument that is set is a separate commit, in the order of the arguments.

        Args:
            name: the column; "a.b" for the field b of a struct a, "l.item" for the items of a list.
            type: the new type, of the same family (integers, floating-point numbers, texts, lists, ...), as a
                Spark type, text such as "bigint", or a pyarrow type. One task per fragment rewrites the
                column; other columns are not rewritten.
            nullable: whether the column may contain nulls. False reads all its values first.
            comment: the new comment; "" removes it.
            default: SQL of the default for new rows without a value; "" removes it.

        Raises:
            SchemaError: the column does not exist, contains nulls or values that do not fit the new type, or
                has an index and would be cast.
            OptionError: no change is given.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        if type is None and nullable is None and comment is None and default is None:
            raise OptionError("give a type, nullable, a comment or a default")
        field = None if type is None else self._new_field(type)
        if default is not None:
            # Before the first commit, because a refused call must change nothing.
            self._check_default(name, default, field)
        if field is not None:
            self._check_partitions(name, field.type)
            check_widened(name, self.table.dataset().lance_schema.find(name)[-1], field)
            cast_columns(self.table, [Alteration(name, data_type=field.type)])
            self._declare_type(name, field.metadata or {})
        if nullable is not None:
            cast_columns(self.table, [Alteration(name, nullable=nullable)])
        if comment is not None:
            self.table.dataset().update_field_metadata({name: {"comment": comment or None}})
        if default is not None:
            self._set_default(name, default)

    def addToMapValues(self, name: str, fields: st.StructType) -> None:
        """Add fields to a struct in the values of a map. They are null in all rows.

        Only the map is written again, in a task per fragment.

        Args:
            name: the struct; "m.entries.value" for the values of a map m, "m.entries.value.s" for a struct s
                in them.
            fields: the new fields.

        Raises:
            SchemaError: the struct does not exist, is not in the values of a map, or has a field of the name.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        added = pa.schema([new_field(field, {}) for field in fields])
        cast_columns(self.table, [Alteration(name, added=added)])

    def _check_partitions(self, name: str, kind: pa.DataType) -> None:
        """Refuse to change the type of a partition column, which would drop its partition field."""
        dataset = self.table.dataset()
        path = dataset.lance_schema.find(name)
        for field in PartitionSpec.of_config(dataset.manifest.config).present(dataset.lance_schema).fields:
            if field.source == path[0].name and path[-1].arrow_type() != kind:
                raise SchemaError(
                    f"column {field.source!r} partitions the table: run ALTER TABLE ... DROP PARTITION FIELD "
                    f"{field.sql} first, change the type, and add the field again"
                )

    def move(self, name: str, *, after: str | None = None) -> None:
        """Move a column, or a struct field ("a.b"), after another one of the same struct, or to the front.

        Only the schema changes; no file is rewritten.

        Args:
            name: the column or field to move.
            after: the column or field before the new position. Default: move to the front.

        Raises:
            SchemaError: one of them does not exist, or they are in different structs.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        self.moveAll((name, after))

    def moveAll(self, *moves: tuple[str, str | None]) -> None:
        """Move several columns or fields in one commit, each after another one, or to the front (None).

        Raises:
            SchemaError, CommitError: see `move`.
        """
        move_columns(self.table.dataset().snapshot, moves)

    def alterAll(self, *alterations: Mapping[str, Any]) -> None:
        """Alter several columns in one commit, with dicts as for `LanceDataset.alter_columns`.

        Raises:
            OptionError: a dict has other keys, or only the key "path".
            SchemaError, CommitError: see `alterColumn`.
        """
        cast_columns(self.table, [read_alteration(alteration) for alteration in alterations])

    def _new_field(self, kind: st.DataType | pa.DataType | str) -> pa.Field:
        """Return an Arrow field of a type."""
        if isinstance(kind, pa.DataType):
            return pa.field("x", kind)
        if isinstance(kind, str):
            with analysis_errors(f"the type {kind!r}"):
                column = self.table.spark.createDataFrame([], f"x {kind}").schema["x"]
        else:
            column = st.StructField("x", kind)
        return new_field(column, {})

    def _check_default(self, name: str, default: str, field: pa.Field | None) -> None:
        """Check that a column can have a default; `field` has the type that the column gets, if it changes.

        Raises:
            SchemaError: the column does not exist, is a struct field, or is generated.
            ExpressionError: the default is not a constant SQL expression of the column's type.
        """
        path = self.table.dataset().lance_schema.find(name)
        if len(path) > 1:
            raise SchemaError(
                f"{name!r} is a field, and only columns have defaults: set one of {path[0].name!r}"
            )
        if generation_sql(path[0]) is not None or get_identity(path[0]) is not None:
            raise SchemaError(f"column {name!r} is generated, and generated columns have no defaults")
        if default:
            self._default_type(name, field_type(path[0].read_field() if field is None else field), default)

    def _set_default(self, name: str, default: str) -> None:
        """Set or remove the default of a column."""
        dataset = self.table.dataset()
        if not default:
            dataset.update_field_metadata({name: dict.fromkeys(DEFAULT_KEYS)})
            return
        (column,) = dataset.lance_schema.find(name)
        exists = column.metadata.get(EXISTS_DEFAULT, "NULL")
        dataset.update_field_metadata({name: {CURRENT_DEFAULT: default, EXISTS_DEFAULT: exists}})

    def _declare_type(self, name: str, metadata: Mapping[bytes, bytes]) -> None:
        """Store the declared type of a column: CHAR(n), VARCHAR(n), a collation, TIME(p) or an interval."""
        dataset = self.table.dataset()
        field = dataset.lance_schema.find(name)[-1]
        texts = {key: metadata.get(key.encode()) for key in (STRING_TYPE, PRECISE_TYPE)}
        declarations = {key: None if text is None else text.decode() for key, text in texts.items()}
        changes = {key: text for key, text in declarations.items() if field.metadata.get(key) != text}
        if changes:
            dataset.update_field_metadata({name: changes})

    def _check_arguments(self, columns: Any, **arguments: Any) -> None:
        """Check that the arguments apply to this kind of source."""
        kind, allowed = _source_kind(columns)
        extra = sorted(name for name, value in arguments.items() if value is not None and name not in allowed)
        if extra:
            raise OptionError(f"{', '.join(extra)} cannot be given with {kind}")
        if kind == "a DataFrame" and arguments.get("on") is None:
            raise OptionError("a DataFrame needs `on`: the columns with the keys")
        if isinstance(columns, Mapping) and not columns:
            raise OptionError("there are no columns")

    def _plan_join(self, frame: DataFrame, on: str | Sequence[str] | Mapping[str, str] | None) -> JoinedFrame:
        """Return the join of a DataFrame's columns by keys."""
        if isinstance(on, str):
            on = [on]
        if not isinstance(on, Mapping):
            on = {name: name for name in on or ()}
        table = self.table.dataset().manifest.schema
        system = system_names(field.name for field in table.fields)
        names = frame.columns
        by_lower = {name.lower(): name for name in names}
        keys = {}
        for target_name, source_name in on.items():
            if source_name.lower() not in by_lower:
                raise SchemaError(
                    f"there is no column {source_name!r} in the data; it has {', '.join(names)}"
                    f"{suggestion(source_name, names)}"
                )
            column = target_name if target_name in system else find_column(table, target_name).name
            keys[column] = by_lower[source_name.lower()]
        values = {name: name for name in names if name not in keys.values()}
        if not keys or not values:
            raise SchemaError("the data needs columns with keys and columns besides them")
        if len({name.lower() for name in names}) < len(names):
            raise SchemaError(f"the data has several columns of one name: {', '.join(names)}")
        return JoinedFrame(self.table, frame, keys, values)

    def _plan_function(
        self,
        call: Batches,
        inputs: Sequence[str] | None,
        schema: pa.Schema | st.StructType | str | None,
        batch_size: int,
        sizes: ColumnSettings,
    ) -> tuple[Function, pa.Schema]:
        """Return a function as the source of new columns, and their schema."""
        dataset = self.table.dataset()
        input_columns = self._input_columns(dataset, inputs)
        if isinstance(schema, str):
            schema = self.table.spark.createDataFrame([], schema).schema
        if isinstance(schema, st.StructType):
            schema = _new_fields(list(schema), schema.names, sizes)
        if schema is not None:
            call = BatchUDF(call, schema)
        computation = function(call, input_columns, lambda: sample_row(dataset.snapshot, input_columns))
        computed = Function(
            self.table,
            input_columns,
            computation.compute,
            tuple(computation.schema.names),
            _check_batch_size(batch_size),
        )
        return computed, computation.schema

    def _input_columns(self, dataset: LanceDataset, inputs: Sequence[str] | None) -> tuple[str, ...]:
        table = dataset.manifest.schema
        if inputs is None:
            return tuple(field.name for field in table.fields)
        system = system_names(field.name for field in table.fields)
        names = [name if name in system else find_column(table, name).name for name in inputs]
        if not names:
            raise OptionError("a function needs at least one column to look at")
        return tuple(dict.fromkeys(names))

    def _storage_values(self, frame: DataFrame, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        """Cast values to the types of the table columns with the same names."""
        table = self.table.dataset().manifest.schema
        functions, ansi = spark_functions(self.table.spark), is_ansi(self.table.spark)
        kinds = resolve_types(frame, list(columns.values()))
        return {
            name: cast_for_storage(
                functions, column, kind, field_type(table.field(name).read_field()), name, ansi
            )
            for (name, column), kind in zip(columns.items(), kinds, strict=True)
        }

    def _metrics(self, outcome: Outcome) -> DataFrame:
        row = (
            outcome.version,
            outcome.fragments,
            outcome.rows,
            outcome.fragments - outcome.reused,
            outcome.reused,
            outcome.bytes_written,
        )
        return self.table.spark.createDataFrame([row], _METRICS)


def _source_kind(columns: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of a kind of source for messages, and the arguments that apply to it."""
    if isinstance(columns, DataFrame):
        return "a DataFrame", ("on",)
    if isinstance(columns, Mapping):
        return "expressions", ("where",)
    if isinstance(columns, (pa.Schema, pa.Field, st.StructType)):
        return "a schema", ()
    if callable(columns):
        return "a function", ("inputs", "outputs", "schema", "where")
    raise OptionError(
        f"columns cannot be made of {type(columns).__name__}: write a dict from names to SQL expressions, "
        "a DataFrame with on=, a function with inputs=, or a schema"
    )


def _null_columns(columns: Any, sizes: ColumnSettings) -> pa.Schema | None:
    """Return the schema of columns with only nulls, or None if the source has values."""
    if isinstance(columns, st.StructType):
        return _new_fields(list(columns), columns.names, sizes)
    if isinstance(columns, pa.Field):
        return pa.schema([columns])
    return columns if isinstance(columns, pa.Schema) else None


def _new_fields(kinds: Sequence[st.StructField], names: Sequence[str], sizes: ColumnSettings) -> pa.Schema:
    """Return the Arrow schema of new columns with Spark types.

    Raises:
        SchemaError: Lance lacks a type, or a column cannot be stored as vectors or has blob descriptions.
    """
    if blobs := [name for kind, name in zip(kinds, names, strict=True) if holds_descriptions(kind.dataType)]:
        raise SchemaError(
            f"column {blobs[0]!r} would hold descriptions of blobs: read them with blob_handling=all_binary, "
            "or add a blob column by a schema and merge the values into it"
        )
    fields = [new_field(kind, sizes).with_name(name) for kind, name in zip(kinds, names, strict=True)]
    return pa.schema(fields)


def _version_and_fragments(dataset: LanceDataset) -> tuple[Manifest, list[int]]:
    """Return a version and the ids of its fragments."""
    return dataset.manifest, [fragment.id for fragment in dataset.manifest.fragments]


def _check_batch_size(batch_size: int) -> int:
    if batch_size < 1:
        raise OptionError("batchSize must be at least 1")
    return batch_size
