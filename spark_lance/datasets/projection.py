"""The columns of a read: columns as they are, fields of structs, and SQL expressions over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.predicate import compile_expression
from spark_lance.file.base.extensions import known_schema
from spark_lance.file.base.schema import Schema
from spark_lance.jsonb.columns import holds_json, is_json_field
from spark_lance.table.reading.system_columns import nameable, system_field, system_names

Columns = Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class Output:
    """One column of a result.

    Attributes:
        field: its name and type.
        reads: the top-level columns that it is made of.
        values: makes it from a table that has these.
        text: how the plan shows it.
    """

    field: pa.Field
    reads: tuple[str, ...]
    values: Callable[[pa.Table], pa.ChunkedArray]
    text: str


@dataclass(frozen=True)
class Projection:
    """The columns of a result.

    Attributes:
        reads: the top-level columns to be read, system columns too.
        outputs: what is made of them; None: they are the result.
    """

    reads: tuple[str, ...] | None
    outputs: tuple[Output, ...] | None = None

    @classmethod
    def of(cls, columns: Columns, schema: Schema, measured: pa.Schema | None = None) -> Projection:
        """Return the projection that a user asks for.

        Args:
            columns: names, paths such as "s.x", or a dict from names to SQL expressions; all columns by
                default.
            schema: of the table.
            measured: further columns that may be named, such as `_distance`.

        Raises:
            OptionTypeError: a text stands where a list of columns is meant.
            SchemaError: a column does not exist.
            ExpressionError: an expression does not fit the columns.
        """
        if columns is None:
            return cls(None)
        if isinstance(columns, str):
            raise OptionTypeError(f"columns is a list, as in columns=[{columns!r}], not the text {columns!r}")
        extra = measured or pa.schema([])
        if isinstance(columns, Mapping):
            whole = pa.schema([*nameable(schema), *(field for field in extra)])
            outputs = tuple(_expression(name, text, whole) for name, text in columns.items())
        else:
            names = list(columns)
            if not all(isinstance(name, str) for name in names):
                raise OptionTypeError(f"names of columns are texts, unlike some of {names}")
            system = system_names(field.name for field in schema.fields)
            tops = {field.name for field in schema.fields} | set(system) | set(extra.names)
            if all(name in tops or "." not in name for name in names):
                return cls(tuple(names))
            outputs = tuple(_named(name, schema, tops, system, extra) for name in names)
        return cls(tuple(dict.fromkeys(read for output in outputs for read in output.reads)), outputs)

    def schema(self, read: pa.Schema, also: Sequence[str] = ()) -> pa.Schema:
        """Return the schema of the result, from that of what is read.

        Args:
            read: what is read.
            also: columns of it that follow those of the projection, such as `_rowid` that a flag asks for.
        """
        if self.outputs is None:
            return read
        named = {output.field.name for output in self.outputs}
        more = [field for field in read if field.name in also and field.name not in named]
        return pa.schema([*(output.field for output in self.outputs), *more], read.metadata)

    def apply(self, table: pa.Table, also: Sequence[str] = ()) -> pa.Table:
        """Return the columns of the result; arguments as for `schema`."""
        if self.outputs is None:
            return table
        columns = [output.values(table) for output in self.outputs]
        target = self.schema(table.schema, also)
        columns += [table[name] for name in target.names[len(columns) :]]
        return pa.Table.from_arrays(columns, schema=target)


def _expression(name: str, text: str, schema: pa.Schema) -> Output:
    if not isinstance(text, str):
        raise OptionError(f"the column {name!r} is to be an SQL expression, not {text!r}")
    expression = compile_expression(text, schema)
    # A column under another name stays JSON; what functions make of one is plain.
    same = text in schema.names and is_json_field(schema.field(text))
    metadata = schema.field(text).metadata if same else None
    field = pa.field(name, expression.type, metadata=metadata)
    return Output(field, expression.columns, expression.evaluate, f"{text} as {name}")


def _named(name: str, schema: Schema, tops: set[str], system: tuple[str, ...], extra: pa.Schema) -> Output:
    """Return the output for a column or a field of a struct, named by a path."""
    if name in tops:
        if name in extra.names:
            kind = extra.field(name)
        elif name in system:
            kind = system_field(name)
        else:
            kind = schema.field(name).described().arrow_field()
            if not holds_json(kind):
                kind = known_schema(pa.schema([kind])).field(0)
        return Output(kind, (name,), lambda table: table[name], name)
    path = schema.find(name)
    kind = path[-1].arrow_field()
    nullable = any(field.nullable for field in path)
    steps = [field.name for field in path[1:]]

    def values(table: pa.Table) -> pa.ChunkedArray:
        column = table[path[0].name]
        return pc.struct_field(column, steps)

    return Output(pa.field(name, kind.type, nullable, kind.metadata), (path[0].name,), values, name)
