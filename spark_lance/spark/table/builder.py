"""Builders that create empty tables with columns, keys, encodings and settings, as Delta's builder does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.errors import ParseException, PySparkException

from spark_lance.errors import (
    OptionError,
    OptionTypeError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from spark_lance.file.base.schema import Schema
from spark_lance.io.store import open_store
from spark_lance.spark.driver.arguments import check_running, check_session
from spark_lance.spark.driver.delta_settings import default_properties
from spark_lance.spark.options.column_options import (
    AS_JSON,
    BLOB,
    ENCODINGS,
    FLOAT16,
    KEY,
    KEY_POSITION,
    LARGE,
    VECTOR_SIZE,
    column_option,
)
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.options.options import write_options
from spark_lance.spark.options.table_properties import (
    CLUSTERING,
    PRIMARY_KEY,
    check_setting,
    is_fixed,
    join_names,
    needs_stable_row_ids,
)
from spark_lance.spark.schema.new_fields import new_field
from spark_lance.spark.schema.types import spark_type
from spark_lance.spark.sink.write_schema import check_names
from spark_lance.spark.table.constraints import (
    constraint_settings,
    evaluate_with,
    with_generated,
    with_sequences,
)
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import (
    NO_PARTITIONS,
    PARTITION_FIELDS,
    PartitionSpec,
    parse_transform,
)
from spark_lance.table.format.reserved_names import check_settings
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import WritePlan, commit_write, find_latest, plan_write
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.schema.constraints import Constraint
from spark_lance.table.schema.defaults import (
    CURRENT_DEFAULT,
    DECLARATION_KEYS,
    EXISTS_DEFAULT,
    GENERATION_EXPRESSION,
    IDENTITY,
    Identity,
    read_identity,
)
from spark_lance.table.writing.compression import compressed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Table = TypeVar("Table")

_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_ENCODING = "lance-encoding:"
_COMMENT = "comment"
_VERBS = {
    "create": "CREATE TABLE",
    "create_if_not_exists": "CREATE TABLE IF NOT EXISTS",
    "replace": "REPLACE TABLE",
    "create_or_replace": "CREATE OR REPLACE TABLE",
}


@dataclass
class ColumnBuilder:
    """A column of a new table. Create it with `LanceTable.columnBuilder`.

    Attributes:
        name: name of the column.
        arguments: arguments for `TableBuilder.addColumn`.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def dataType(self, dataType: str | st.DataType | pa.DataType | type[st.DataType]) -> ColumnBuilder:
        """Set the type; a class such as `LongType` works, too. See `addColumn`."""
        self.arguments["dataType"] = dataType() if isinstance(dataType, type) else dataType
        return self

    def nullable(self, nullable: bool) -> ColumnBuilder:
        """Set whether the column may hold nulls."""
        self.arguments["nullable"] = nullable
        return self

    def comment(self, comment: str) -> ColumnBuilder:
        """Set the comment."""
        self.arguments["comment"] = comment
        return self

    def defaultValue(self, expression: str) -> ColumnBuilder:
        """Set the default value, as an SQL expression."""
        self.arguments["default"] = expression
        return self

    def generatedAlwaysAs(self, expression: str) -> ColumnBuilder:
        """Compute the column from other columns with an SQL expression; see `addColumn`."""
        self.arguments["generatedAlwaysAs"] = expression
        return self

    def generatedAlwaysAsIdentity(self, start: int = 1, step: int = 1) -> ColumnBuilder:
        """Make the column an identity column. Writers cannot set its values."""
        self.arguments["generatedAlwaysAs"] = Identity(start, step)
        return self

    def generatedByDefaultAsIdentity(self, start: int = 1, step: int = 1) -> ColumnBuilder:
        """Make the column an identity column that only rows without a value use."""
        self.arguments["generatedByDefaultAs"] = Identity(start, step, always=False)
        return self

    def build(self) -> ColumnBuilder:
        """Return the builder itself, for `addColumn`."""
        return self


@dataclass(repr=False)
class TableBuilder(Generic[Table]):
    """A builder of an empty table. Get it from `LanceTable.create` and similar methods.

    Every method but `execute` changes the builder and returns it.

    Attributes:
        spark: the session.
        mode: "create", "create_if_not_exists", "replace" or "create_or_replace".
        make: creates the result from the session, the path and the options.
        options: data source options, such as storage options and `enable_stable_row_ids`.
        in_place: whether the folder may already contain files of other formats.
    """

    spark: SparkSession
    mode: str
    make: Callable[[SparkSession, str, dict[str, str]], Table]
    options: dict[str, str] = field(default_factory=dict, repr=False)
    in_place: bool = False
    _path: str | None = None
    _columns: list[pa.Field] = field(default_factory=list)
    _key: tuple[str, ...] = ()
    _properties: dict[str, str] = field(default_factory=dict)
    _description: str | None = None
    _name: str | None = None
    _cluster: tuple[str, ...] = ()
    _constraints: tuple[Constraint, ...] = ()
    _partitions: PartitionSpec = NO_PARTITIONS

    def __repr__(self) -> str:
        place = self._name or self._path or "no location or name"
        names = ", ".join(field.name for field in self._columns)
        return f"TableBuilder({self._call} {place!r}, columns=[{names}]; not executed: call execute())"

    def __post_init__(self) -> None:
        """Check the session.

        Raises:
            OptionTypeError: the session has the wrong type.
        """
        check_session(self.spark, f"LanceTable.{self._call}(spark)")

    @property
    def _call(self) -> str:
        first, *others = self.mode.split("_")
        return first + "".join(map(str.capitalize, others))

    def location(self, path: str | os.PathLike[str]) -> TableBuilder[Table]:
        """Set the path or URI of the table."""
        self._path = os.fspath(path)
        return self

    def tableName(self, identifier: str) -> TableBuilder[Table]:
        """Set the table's name, as in SQL. The catalog decides the path."""
        self._name = identifier
        return self

    def clusterBy(self, *colNames: str | Sequence[str]) -> TableBuilder[Table]:
        """Set the clustering columns of the table, which `OPTIMIZE t FULL` uses."""
        self._cluster = tuple(
            name for part in colNames for name in ([part] if isinstance(part, str) else part)
        )
        return self

    def constraints(self, *constraints: Constraint) -> TableBuilder[Table]:
        """Set constraints. Only for `location`; with `tableName`, call `LanceTable.addConstraint` later."""
        self._constraints = constraints
        return self

    def partitionedBy(self, *colNames: str) -> TableBuilder[Table]:
        """Partition the rows by columns, or by transforms such as `days(ts)` or `bucket(16, id)`.

        Raises:
            OptionError: a transform does not exist.
        """
        return self.partition(PartitionSpec(tuple(parse_transform(name) for name in colNames)))

    def partition(self, spec: PartitionSpec) -> TableBuilder[Table]:
        """Partition the rows by a partition spec."""
        self._partitions = spec
        return self

    def addColumn(
        self,
        colName: str | ColumnBuilder,
        dataType: str | st.DataType | pa.DataType | None = None,
        nullable: bool = True,
        comment: str | None = None,
        *,
        vectorSize: int | None = None,
        encoding: Mapping[str, object] | None = None,
        metadata: Mapping[str, str] | None = None,
        default: str | None = None,
        generatedAlwaysAs: object = None,
        generatedByDefaultAs: object = None,
    ) -> TableBuilder[Table]:
        """Add a column.

        Args:
            colName: name of the column. Or the result of `LanceTable.columnBuilder(name)...build()`, without
                further arguments.
            dataType: a Spark type or its SQL. Use an Arrow type for types that Spark lacks: `pa.float16()`,
                `pa.uint64()`, `pa.list_(pa.float32(), 128)`, ....
            nullable: whether the column may contain nulls.
            comment: comment of the column. It is stored as `comment` in the field metadata.
            vectorSize: length of the vectors in an array column.
            encoding: storage settings. Keys are Lance's field metadata without `lance-encoding:`:
                `compression`, `compression-level`, `structural-encoding`, `blob`, ....
            metadata: further field metadata.
            default: SQL expression for rows without a value.
            generatedAlwaysAs: SQL that computes the column from other columns of the row. Rows without a
                value get it, and every commit checks it. The column must be nullable. Or an identity with
                `start` and `step`, such as Delta's `IdentityGenerator`: rows get numbers.
            generatedByDefaultAs: an identity for rows without a value.

        Raises:
            SchemaError: Lance lacks the type, `vectorSize` does not fit it, or an identity has no step.
        """
        if isinstance(colName, ColumnBuilder):
            return self.addColumn(colName.name, **colName.arguments)
        if dataType is None:
            raise SchemaError(f"column {colName!r} has no type: write .addColumn({colName!r}, 'BIGINT')")
        identity = _identity(colName, generatedAlwaysAs, generatedByDefaultAs)
        if isinstance(dataType, pa.DataType):
            arrow = pa.field(colName, dataType)
            if vectorSize is not None:
                raise SchemaError(f"column {colName!r}: an Arrow type says itself how long vectors are")
        else:
            kind = dataType if isinstance(dataType, st.DataType) else self._parse_type(dataType)
            sizes = {} if vectorSize is None else {VECTOR_SIZE: vectorSize}
            arrow = new_field(st.StructField(colName, kind, nullable, sizes), {})
        entries = {f"{_ENCODING}{name}": _text(value) for name, value in (encoding or {}).items()}
        entries.update(metadata or {})
        if comment is not None:
            entries[_COMMENT] = comment
        if default is not None:
            entries |= {CURRENT_DEFAULT: default, EXISTS_DEFAULT: "NULL"}
        if identity is not None:
            entries[IDENTITY] = identity.text()
        elif isinstance(generatedAlwaysAs, str):
            entries[GENERATION_EXPRESSION] = generatedAlwaysAs
        self._columns.append(pa.field(colName, arrow.type, nullable, metadata=entries or None))
        return self

    def addColumns(self, cols: st.StructType | str) -> TableBuilder[Table]:
        """Add the columns of a Spark schema, or of SQL such as `id bigint NOT NULL, name string`.

        Comments, vector sizes and encodings in the metadata of its fields apply.

        Raises:
            SchemaError: Lance lacks a type.
        """
        schema = cols if isinstance(cols, st.StructType) else self.spark.createDataFrame([], cols).schema
        for column in schema.fields:
            arrow = new_field(column, {})
            self._columns.append(arrow.with_nullable(column.nullable))
        return self

    def primaryKey(self, *colNames: str) -> TableBuilder[Table]:
        """Declare the primary key columns, in this order. They become NOT NULL.

        Nothing enforces the key, and it cannot be changed later. A table with a key uses stable row ids
        unless the option `enable_stable_row_ids` is false.
        """
        self._key = colNames
        return self

    def property(self, key: str, value: str) -> TableBuilder[Table]:
        """Set a table property, such as `lance.auto_cleanup.interval`.

        Raises:
            OptionError: the key is internal, or is similar to a property such as `primary_key`.
        """
        check_settings({key: value})
        check_setting(key, value)
        if is_fixed(key):
            raise OptionError(
                f"property {key!r} is not a setting of the table: write {_call_for(key, value)}"
            )
        self._properties[key] = value
        return self

    def comment(self, comment: str) -> TableBuilder[Table]:
        """Set the table's comment. It is stored as `comment` in the schema metadata."""
        self._description = comment
        return self

    def option(self, name: str, value: object) -> TableBuilder[Table]:
        """Set a data source option: `enable_stable_row_ids`, `data_storage_version` or a storage option."""
        self.options.update(option_texts({name: value}))
        return self

    def execute(self) -> Table:
        """Create the table and return it. A replaced table keeps its versions, settings and tags.

        Raises:
            TableExistsError: the builder comes from `create`, and the table exists.
            TableNotFoundError: the builder comes from `replace`, and the table does not exist.
            SchemaError: existing are no columns, or Lance cannot store one of them.
            OptionError: existing is no location, or an option is unknown or has a bad value.
            CommitError: the commit failed; see its subclasses.
        """
        check_running(self.spark)
        if self._cluster:
            self._properties[CLUSTERING] = join_names(self._cluster)
        if self._name is not None:
            return self._create_in_catalog(self._name)
        if self._path is None:
            raise OptionError("say where the table is to be: .location(path) or .tableName(name)")
        self._properties = {**default_properties(self.spark), **self._properties}
        if needs_stable_row_ids(self._properties):
            self.options.setdefault("enable_stable_row_ids", "true")
        options = write_options({**self.options, "path": self._path})
        if options.column_settings:
            column, settings = next(iter(options.column_settings.items()))
            key, value = next(iter(settings.items()))
            raise OptionError(
                f"option '{column}.{key}' is about a column: write {_column_call(column, key, str(value))}"
            )
        table = TableRef(*open_store(options.path, options.storage))
        existing = find_latest(table)
        exists = existing is not None
        if exists and self.mode == "create":
            raise TableExistsError(f"a Lance table already exists at {table.root}: use createOrReplace")
        if not exists and self.mode == "replace":
            raise TableNotFoundError(f"no Lance table at {table.root}: use createOrReplace")
        if not exists or self.mode != "create_if_not_exists":
            self._create_at_path(table, existing, options)
        return self.make(self.spark, self._path, self.options)

    def _create_in_catalog(self, name: str) -> Table:
        """Create the table with SQL, so that the catalog chooses its path."""
        if self._constraints:
            raise OptionError(f"call addConstraint of the new table {name}: constraints() needs .location()")
        if self._path is not None:
            raise OptionError(f"a catalog decides where {name} is: leave out .location({self._path!r})")
        schema = self._schema()
        columns, settings = [], {**self._properties}
        for column in schema:
            details = _metadata(column)
            arrow = column.type
            if pa.types.is_fixed_size_list(arrow):
                settings[f"{column.name}.arrow.fixed-size-list.size"] = str(arrow.list_size)
            own = (_COMMENT, *DECLARATION_KEYS)
            other = [key for key in details if key not in own and not key.startswith(_PRIMARY_KEY)]
            if other:
                raise OptionError(
                    f"column {column.name!r} has {other[0]!r}, which a table by name takes as a property: "
                    f".property('{column.name}.{other[0].replace(':', '.')}', ...), or write .location(path)"
                )
            kind = spark_type(arrow).simpleString()
            comment = details.get(_COMMENT)
            columns.append(
                f"`{column.name.replace('`', '``')}` {kind}{'' if column.nullable else ' NOT NULL'}"
                + (f" DEFAULT {details[CURRENT_DEFAULT]}" if CURRENT_DEFAULT in details else "")
                + (f" GENERATED ALWAYS AS ({sql})" if (sql := details.get(GENERATION_EXPRESSION)) else "")
                + (f" {read_identity(text, column.name).sql}" if (text := details.get(IDENTITY)) else "")
                + ("" if comment is None else f" COMMENT {_literal(comment)}")
            )
        if self._key:
            settings[PRIMARY_KEY] = ", ".join(self._key)
        settings.update(self.options)
        texts = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in settings.items())
        comment_clause = "" if self._description is None else f" COMMENT {_literal(self._description)}"
        fields = ", ".join(field.sql for field in self._partitions.fields)
        partitioned = f" PARTITIONED BY ({fields})" if fields else ""
        self.spark.sql(
            f"{_VERBS[self.mode]} {name} ({', '.join(columns)}) USING lance{partitioned}{comment_clause}"
            + (f" TBLPROPERTIES ({texts})" if texts else "")
        ).collect()
        path, options = locate_table(self.spark, name)
        return self.make(self.spark, path, options)

    def _create_at_path(self, table: TableRef, existing: Manifest | None, options: WriteOptions) -> None:
        replaces = self.mode in ("replace", "create_or_replace")
        schema, counters = with_sequences(with_generated(self.spark, self._schema()))
        named = [st.StructField(name, st.NullType()) for name in schema.names]
        case_sensitive = self.spark.conf.get("spark.sql.caseSensitive") == "true"
        check_names(st.StructType(named), options.caseSensitive or case_sensitive)
        plan = plan_write(
            table,
            existing,
            schema,
            "overwrite" if replaces else "create",
            data_storage_version=options.data_storage_version,
            stable_row_ids=options.enable_stable_row_ids,
            in_place=self.in_place,
        )
        plan = replace(plan, schema=compressed(plan.schema, options.compression))
        evaluate_with(self.spark)
        self._properties |= constraint_settings(self.spark, plan.schema, self._constraints) | counters
        if self._partitions:
            self._properties[PARTITION_FIELDS] = self._partitions.bound(plan.schema).text()
        try:
            if existing is None:
                commit_write(table, plan, [], config=self._properties)
            else:
                self._replace(table, existing, plan, options)
        except TableExistsError:
            if self.mode != "create_if_not_exists":
                raise

    def _replace(self, table: TableRef, existing: Manifest, plan: WritePlan, options: WriteOptions) -> None:
        if plan.version is not existing.file_version:
            raise OptionError(
                f"the table's files are of version {existing.file_version.text}, which replacing it by an "
                "empty one cannot change: write rows with mode overwrite"
            )
        stable = options.enable_stable_row_ids
        if stable is not None and stable != existing.uses_stable_row_ids:
            raise OptionError("option 'enable_stable_row_ids' is only for new tables: leave it out")
        # An overwrite cannot remove settings, so "" means no partitions.
        former = {PARTITION_FIELDS: ""} if existing.config.get(PARTITION_FIELDS) else {}
        operation = overwrite_message(plan.schema, [], {**former, **self._properties})
        commit_operation(table, operation, read_version=plan.read_version)

    def _schema(self) -> pa.Schema:
        if not self._columns:
            raise SchemaError(
                "a table needs columns: write CREATE TABLE t (name type, ...), or .addColumn(name, type)"
            )
        names = [column.name for column in self._columns]
        if missing := [name for name in self._key if name not in names]:
            raise SchemaError(f"the primary key names {', '.join(missing)}; there are {', '.join(names)}")
        columns = list(self._columns)
        for position, name in enumerate(self._key, 1):
            place = names.index(name)
            marks = {_PRIMARY_KEY: "true", f"{_PRIMARY_KEY}:position": str(position)}
            marked = columns[place].with_metadata({**_metadata(columns[place]), **marks})
            columns[place] = marked.with_nullable(False)
        metadata = None if self._description is None else {_COMMENT: self._description}
        schema = pa.schema(columns, metadata)
        Schema.from_arrow(schema)
        return schema

    def _parse_type(self, text: str) -> st.DataType:
        """Return the type that Spark parses from SQL such as `array<float>`."""
        try:
            return self.spark.createDataFrame([], f"c {text}").schema[0].dataType
        except ParseException as error:
            raise SchemaError(
                f"the type {text!r} is not known: write a type of Spark's SQL, such as bigint, string or "
                "array<float>"
            ) from error


def column_builder(*arguments: object) -> ColumnBuilder:
    """Return a builder of a column, for `addColumn` of a table builder.

    Args:
        arguments: the name of the column. A session before the name is accepted and not used.

    Raises:
        OptionTypeError: the name is missing.
    """
    if not arguments or not isinstance(arguments[-1], str):
        raise OptionTypeError("columnBuilder needs a name: write LanceTable.columnBuilder('id')")
    return ColumnBuilder(arguments[-1])


def _identity(name: str, always: object, by_default: object) -> Identity | None:
    """Return the identity in the arguments of `addColumn`, or None.

    Raises:
        SchemaError: an argument is not an identity.
    """
    value = always if by_default is None else by_default
    if value is None or isinstance(always, str):
        return None
    start, step = getattr(value, "start", None), getattr(value, "step", None)
    if type(start) is not int or type(step) is not int or not step:
        raise SchemaError(
            f"column {name!r}: an identity has a start and a step that is not 0, not {value!r}: write "
            f"LanceTable.columnBuilder({name!r}).generatedAlwaysAsIdentity(start=1, step=1)"
        )
    return Identity(start, step, always=by_default is None)


def locate_table(spark: SparkSession, name: str) -> tuple[str, dict[str, str]]:
    """Return the path and the storage options of a catalog table.

    Raises:
        OptionError: no catalog of this session has a Lance table with this name.
    """
    try:
        row = spark.sql(f"DESCRIBE DETAIL {name}").select("location").first()
    except PySparkException as error:
        if _is_view(spark, name):
            raise OptionError(
                f"{name} is a view, not a Lance table: name the table that it reads, or read the view with "
                f"spark.table({name!r})"
            ) from error
        message = str(error).splitlines()[0]
        if message.startswith("[TABLE_OR_VIEW_NOT_FOUND]"):
            # The name leads to no Lance catalog, so Spark took DETAIL for the name of a table.
            message = f"write a name with a catalog of spark_lance.enable, such as lance.{name}"
        raise OptionError(
            f"{name} is no Lance table in a catalog of this session: {message}. Or write "
            "LanceTable.forPath(spark, path), or call spark_lance.enable(spark, root=...) first"
        ) from error
    assert row is not None
    first = name.split(".")[0].strip("`")
    settings = spark.conf.getAll
    catalog = first if f"spark.sql.catalog.{first}" in settings else spark.catalog.currentCatalog()
    prefix = f"spark.sql.catalog.{catalog}."
    parts = ("storage.", "allowed_bases")
    options = {
        key.removeprefix(prefix): str(value)
        for key, value in settings.items()
        if key.startswith(prefix) and key.removeprefix(prefix).startswith(parts)
    }
    return str(row[0]), options if f"{prefix}impl" not in settings else {}


def _is_view(spark: SparkSession, name: str) -> bool:
    try:
        return spark.catalog.getTable(name).tableType in ("VIEW", "TEMPORARY")
    except PySparkException:
        return False


def _call_for(key: str, value: str) -> str:
    """Return the call of a builder that has the effect of a property."""
    if key == PRIMARY_KEY:
        return f".primaryKey({', '.join(repr(name.strip()) for name in value.split(','))})"
    parts = column_option(key.lower())
    if parts is None:
        return f".option({key!r}, {value!r})"
    return _column_call(key[: len(parts[0])], parts[1].name, value)


def _column_call(column: str, option: str, value: str) -> str:
    """Return the call that sets an option of a column: of a builder, or else of SQL."""
    if option in (KEY, KEY_POSITION):
        return f".primaryKey({column!r})"
    if option == VECTOR_SIZE:
        return f".addColumn({column!r}, 'ARRAY<FLOAT>', vectorSize={value})"
    if option in (FLOAT16, LARGE):
        return f".addColumn({column!r}, pyarrow.{'float16' if option == FLOAT16 else 'large_string'}())"
    if option in ENCODINGS or option == BLOB:
        name, text = (
            ("blob", "true") if option == BLOB else (ENCODINGS[option].removeprefix(_ENCODING), value)
        )
        return f".addColumn({column!r}, 'BINARY', encoding={{{name!r}: {text!r}}})"
    kind = "STRING" if option == AS_JSON else "BINARY"
    sql = f"CREATE TABLE t ({column} {kind}) TBLPROPERTIES ('{column}.{option}' = '{value}')"
    return f'spark.sql("{sql}")'


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as texts for the data source. A dict value sets the options `name.key`."""
    texts: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            texts.update({f"{name}.{key}": _option_text(item) for key, item in value.items()})
        else:
            texts[name] = _option_text(value)
    return texts


def _option_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _metadata(column: pa.Field) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
