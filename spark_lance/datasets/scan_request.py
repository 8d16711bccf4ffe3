"""The request of a read: columns, sort order, and hints of other implementations.

Columns are stored columns, struct fields, or SQL expressions over them. A sort uses all rows. A sort with a
limit uses bounded memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import pick_rows
from spark_lance.datasets.spelling import split_names
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.predicate import Predicate, compile_expression
from spark_lance.file.base.extensions import restore_schema_types
from spark_lance.file.base.schema import Schema
from spark_lance.jsonb.columns import holds_json, is_json_field
from spark_lance.proto import table_pb2
from spark_lance.table.reading.system_columns import filterable_schema, system_field, system_names
from spark_lance.table.reading.texts import check_text_as

if TYPE_CHECKING:
    from spark_lance.index.vector.query import VectorQuery

Columns = Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class Output:
    """One column of a result.

    Attributes:
        field: name and type of the column.
        reads: top-level columns that it is computed from.
        values: computes the column from a table with these columns.
        text: the column in the text of a plan.
    """

    field: pa.Field
    reads: tuple[str, ...]
    values: Callable[[pa.Table], pa.ChunkedArray]
    text: str


@dataclass(frozen=True)
class Projection:
    """The columns of a result.

    Attributes:
        reads: top-level columns to read, including system columns; None for all columns.
        outputs: columns computed from them; None if the columns in `reads` are the result.
    """

    reads: tuple[str, ...] | None
    outputs: tuple[Output, ...] | None = None

    @classmethod
    def of(cls, columns: Columns, schema: Schema, measured: pa.Schema | None = None) -> Projection:
        """Return the projection for the argument `columns` of a read.

        Args:
            columns: names, paths such as "s.x", or a dict from names to SQL expressions; None for all
                columns.
            schema: schema of the table.
            measured: further available columns, such as `_distance`.

        Raises:
            OptionTypeError: `columns` is a str instead of a list, or a name is not a str.
            SchemaError: a column does not exist.
            ExpressionError: an expression cannot be evaluated on the columns.
        """
        if columns is None:
            return cls(None)
        if isinstance(columns, str):
            names = split_names(columns)
            raise OptionTypeError(f"columns is a list, as in columns={names}, not the text {columns!r}")
        extra = measured or pa.schema([])
        if isinstance(columns, Mapping):
            whole = pa.schema([*filterable_schema(schema), *(field for field in extra)])
            outputs = tuple(_expression_output(name, text, whole) for name, text in columns.items())
        else:
            names = list(columns)
            if not all(isinstance(name, str) for name in names):
                raise OptionTypeError(f"names of columns are texts, unlike some of {names}")
            system = system_names(field.name for field in schema.fields)
            tops = {field.name for field in schema.fields} | set(system) | set(extra.names)
            if all(name in tops or "." not in name for name in names):
                return cls(tuple(names))
            outputs = tuple(_path_output(name, schema, tops, system, extra) for name in names)
        return cls(tuple(dict.fromkeys(read for output in outputs for read in output.reads)), outputs)

    def schema(self, read: pa.Schema, also: Sequence[str] = ()) -> pa.Schema:
        """Return the schema of the result.

        Args:
            read: schema of the columns that are read.
            also: additional columns to append, such as `_rowid` for `with_row_id`.
        """
        if self.outputs is None:
            return read
        output_names = {output.field.name for output in self.outputs}
        more = [field for field in read if field.name in also and field.name not in output_names]
        return pa.schema([*(output.field for output in self.outputs), *more], read.metadata)

    def apply(self, table: pa.Table, also: Sequence[str] = ()) -> pa.Table:
        """Return the columns of the result; arguments as for `schema`."""
        if self.outputs is None:
            return table
        columns = [output.values(table) for output in self.outputs]
        target = self.schema(table.schema, also)
        columns += [table[name] for name in target.names[len(columns) :]]
        return pa.Table.from_arrays(columns, schema=target)


def _expression_output(name: str, text: str, schema: pa.Schema) -> Output:
    if not isinstance(text, str):
        raise OptionError(f"the column {name!r} is to be an SQL expression, not {text!r}")
    expression = compile_expression(text, schema)
    # A renamed JSON column stays JSON. The result of a function of a JSON column is not JSON.
    same = text in schema.names and is_json_field(schema.field(text))
    metadata = schema.field(text).metadata if same else None
    field = pa.field(name, expression.type, metadata=metadata)
    return Output(field, expression.columns, expression.evaluate, f"{text} as {name}")


def _path_output(
    name: str, schema: Schema, tops: set[str], system: tuple[str, ...], extra: pa.Schema
) -> Output:
    """Return the output for the path of a column or struct field."""
    if name in tops:
        if name in extra.names:
            kind = extra.field(name)
        elif name in system:
            kind = system_field(name)
        else:
            kind = schema.field(name).as_descriptor().arrow_field()
            if not holds_json(kind):
                kind = restore_schema_types(pa.schema([kind])).field(0)
        return Output(kind, (name,), lambda table: table[name], name)
    path = schema.find(name)
    kind = path[-1].arrow_field()
    nullable = any(field.nullable for field in path)
    steps = [field.name for field in path[1:]]

    def values(table: pa.Table) -> pa.ChunkedArray:
        column = table[path[0].name]
        return pc.struct_field(column, steps)

    return Output(pa.field(name, kind.type, nullable, kind.metadata), (path[0].name,), values, name)


@dataclass(frozen=True)
class ColumnOrdering:
    """A column to sort by.

    Attributes:
        column_name: a column, or the dotted path of a struct field.
        ascending: whether small values come first.
        nulls_first: whether nulls come first; otherwise they come last, regardless of `ascending`.
    """

    column_name: str
    ascending: bool = True
    nulls_first: bool = False

    def __str__(self) -> str:
        way = "asc" if self.ascending else "desc"
        return f"{self.column_name} {way} nulls {'first' if self.nulls_first else 'last'}"


OrderBy: TypeAlias = str | ColumnOrdering | Sequence[str | ColumnOrdering] | None


def orderings(order_by: OrderBy) -> tuple[ColumnOrdering, ...]:
    """Return the argument `order_by` of a read as orderings.

    Raises:
        OptionError: an item is neither a name nor a `ColumnOrdering`.
    """
    if order_by is None:
        return ()
    items = [order_by] if isinstance(order_by, str | ColumnOrdering) else list(order_by)
    result = []
    for item in items:
        if isinstance(item, str):
            result.append(ColumnOrdering(item))
        elif hasattr(item, "column_name"):
            result.append(ColumnOrdering(item.column_name, item.ascending, item.nulls_first))
        else:
            raise OptionError(f"order_by takes names of columns and ColumnOrdering, not {item!r}")
    return tuple(result)


def sorted_rows(table: pa.Table, keys: Sequence[tuple[pa.ChunkedArray, ColumnOrdering]]) -> pa.Table:
    """Sort the rows of a table by keys, the most important key first. The sort is stable.

    Args:
        table: the rows.
        keys: for each ordering, the values of all rows.
    """
    if table.num_rows < 2 or not keys:
        return table
    return pick_rows(table, _sort_indices(keys))


def first_rows(
    parts: Iterable[tuple[pa.Table, Sequence[pa.ChunkedArray]]], by: Sequence[ColumnOrdering], count: int
) -> list[tuple[pa.Table, Sequence[pa.ChunkedArray]]]:
    """Return a subset of a stream, in stream order, that contains the first `count` rows of the sort order.

    Args:
        parts: tables, with the values of their sort keys.
        by: the orderings.
        count: number of rows. Memory is limited to about twice as many rows plus one part.
    """
    first: list[tuple[pa.Table, Sequence[pa.ChunkedArray]]] = []
    rows = 0
    for table, values in parts:
        first.append((table, values))
        rows += table.num_rows
        if rows > 2 * count:
            whole, keys = joined(first)
            order = np.sort(_sort_indices(list(zip(keys, by, strict=True)))[:count])
            first = [(pick_rows(whole, order), [key.take(pa.array(order)) for key in keys])]
            rows = count
    return first


def joined(
    parts: Sequence[tuple[pa.Table, Sequence[pa.ChunkedArray]]],
) -> tuple[pa.Table, list[pa.ChunkedArray]]:
    """Concatenate tables, and the values of their sort keys."""
    tables = pa.concat_tables([table for table, _ in parts])
    columns = zip(*(values for _, values in parts), strict=True)
    keys = [pa.chunked_array([c for column in same for c in column.chunks], same[0].type) for same in columns]
    return tables, keys


def _sort_indices(
    keys: Sequence[tuple[pa.ChunkedArray, ColumnOrdering]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the sorted row indices. Null flags are extra keys, as Arrow has one null placement for all."""
    columns, sort = [], []
    for number, (values, how) in enumerate(keys):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        columns += [pc.is_null(values), values]
        sort.append((f"null{number}", "descending" if how.nulls_first else "ascending"))
        sort.append((f"key{number}", "ascending" if how.ascending else "descending"))
    # The last key makes the sort stable.
    columns.append(pa.chunked_array([pa.array(np.arange(len(columns[0])))]))
    names = [name for name, _ in sort] + ["row"]
    try:
        indices = pc.sort_indices(pa.table(columns, names=names), sort_keys=[*sort, ("row", "ascending")])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(f"{how.column_name} ({values.type})" for values, how in keys)
        raise OptionError(f"rows cannot be sorted by {kinds}: {error}") from error
    result: np.ndarray[tuple[int], np.dtype[np.int64]] = indices.to_numpy().astype(np.int64)
    return result


logger = logging.getLogger(__name__)

BATCH_BYTES = 8 << 20
BATCH_ROWS = 1 << 17

BlobHandling = Literal["all_binary", "blobs_descriptions"]
_BLOB_HANDLINGS = ("all_binary", "blobs_descriptions")

# Arguments that control execution in other implementations. They do not change results and are ignored.
HINTS = frozenset(
    {
        "batch_readahead",
        "fragment_readahead",
        "io_buffer_size",
        "late_materialization",
        "scan_in_order",
        "strict_batch_size",
        "use_stats",
        "use_threads",
        "cache_metadata",
        "memory_pool",
        "fragment_scan_options",
    }
)


def check_hints(hints: Mapping[str, Any]) -> None:
    """Log ignored hints.

    Raises:
        OptionTypeError: a hint is unknown.
    """
    if unknown := sorted(hints.keys() - HINTS):
        names = [each.name for each in fields(ScanRequest)]
        near = get_close_matches(unknown[0], names, 1)
        suggestion = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
        raise OptionTypeError(f"a scan has no argument {', '.join(unknown)}{suggestion}")
    arguments = {name: value for name, value in hints.items() if value is not None}
    if arguments:
        logger.debug("hints that change nothing here: %s", arguments)


@dataclass(frozen=True)
class ScanRequest:
    """The arguments of a read; see `Readable.scanner`.

    Raises:
        OptionError: a value is out of range, or values contradict each other.
    """

    columns: Columns = None
    filter: Predicate | None = None
    limit: int | None = None
    offset: int | None = None
    nearest: Mapping[str, Any] | None = None
    full_text_query: Any = None
    prefilter: bool = False
    order_by: tuple[ColumnOrdering, ...] = ()
    with_row_id: bool = False
    with_row_address: bool = False
    fragments: Sequence[table_pb2.DataFragment] | None = None
    batch_size: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    use_scalar_index: bool = True
    fast_search: bool = False
    blob_handling: BlobHandling = "blobs_descriptions"
    text_as: str = "string"
    include_deleted_rows: bool = False
    disable_scoring_autoprojection: bool = False
    hints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("limit", "offset"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
            if value is not None and value < 0:
                raise OptionError(f"{name.capitalize()} must be non-negative, not {value}")
        for name in ("batch_size", "batch_bytes"):
            value = getattr(self, name)
            if not isinstance(value, Real):
                raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise OptionError(f"{name} must be at least 1, not {value}")
        if self.blob_handling not in _BLOB_HANDLINGS:
            raise OptionError(f"blob_handling is {' or '.join(_BLOB_HANDLINGS)}, not {self.blob_handling!r}")
        check_text_as(self.text_as)
        if self.nearest is not None and self.full_text_query is not None:
            raise OptionError("a search is by vector or by text, not by both")
        if self.include_deleted_rows and self.is_search:
            raise OptionError("Cannot include deleted rows in a search by vector or text")

    @property
    def is_search(self) -> bool:
        """Whether the read is a vector or full-text search."""
        return self.nearest is not None or self.full_text_query is not None

    @cached_property
    def vector_query(self) -> VectorQuery:
        """The vector query in `nearest`. If `nearest` has no `k`, `limit` is the number of rows.

        Raises:
            OptionError: a key is unknown, or a value is bad.
        """
        from spark_lance.index.vector.query import VectorQuery

        if not isinstance(self.nearest, Mapping):
            raise OptionTypeError(
                f"nearest is a dict such as {{'column': 'vector', 'q': [...], 'k': 10}}, not {self.nearest!r}"
            )
        nearest = dict(self.nearest)
        if nearest.get("k") is None and self.limit is not None:
            nearest["k"] = max(self.limit, 1)
        if self.fast_search:
            nearest["fast_search"] = True
        return VectorQuery.parse(nearest)
