"""Fitting incoming data to a table's schema: columns by name, casts that lose nothing.

The types are compared once, before any data moves, and every difference is reported together. What
remains is a function per column (see `writing.casts`).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_lance.arrow.arrays import normalise_offsets
from spark_lance.errors import NullValueError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS
from spark_lance.table.schema.defaults import default_array, default_sql
from spark_lance.table.writing.casts import ADD_IT, Cast, WrongLengthError, cast_field, with_references
from spark_lance.table.writing.differences import Differences, rows_do_not_fit

# Columns that reads add to those of a table, and what adds them.
_MADE = {
    **dict.fromkeys(SYSTEM_COLUMNS, "an option of the read"),
    **dict.fromkeys(("_change_type", "_commit_version", "_commit_timestamp"), "a change feed"),
    **dict.fromkeys(("_distance", "_score", "query_index"), "a search"),
}


def check_added_names(names: Iterable[str]) -> None:
    """Refuse to give a table, just because the data has them, columns that a read of a table adds.

    Raises:
        SchemaError: there is such a name.
    """
    for name in names:
        # A name without an underscore may well be a column of somebody's own.
        if name in _MADE and name.startswith("_"):
            raise SchemaError(
                f"the table has no column {name!r}, and {_MADE[name]} adds it to what is read: leave it out "
                "of the data, or rename it"
            )


class Aligner:
    """Turns batches of one Arrow schema into batches of (a subset of) a table's schema.

    Args:
        source: schema of the incoming batches; columns in any order. Nullable columns and those with a
            default may be missing.
        target: the table's schema.

    Raises:
        SchemaError: columns that the table lacks, missing columns that must not be null, types that do not
            fit; the message lists all of them.
    """

    def __init__(self, source: pa.Schema, target: Schema) -> None:
        differences: Differences = []
        by_name = {field.name: field for field in target.fields}
        for name in source.names:
            if source.names.count(name) > 1:
                differences.append(f"column {name!r} occurs twice in the data")
            elif name not in by_name:
                origin = f": {_MADE[name]} adds it; leave it out" if name in _MADE else None
                hint = origin or ADD_IT
                differences.append(f"column {name!r} is not in the table{hint}")
        casts: list[tuple[str, Cast | None]] = []
        fields: list[Field] = []
        arrow: list[pa.Field] = []
        self._defaults: dict[str, Field] = {}
        for field in target.fields:
            index = source.get_field_index(field.name)
            if index < 0:
                if default_sql(field) is not None:
                    default_array(field, 0)
                    casts.append((field.name, None))
                    fields.append(field)
                    arrow.append(field.arrow_field())
                    self._defaults[field.name] = field
                elif not field.nullable:
                    differences.append(f"column {field.name!r} must not be null but is missing in the data")
                continue
            source_field = source.field(index)
            aligned = with_references(source_field.type, field.arrow_field())
            casts.append((field.name, cast_field(source_field, aligned, field.name, differences)))
            fields.append(field)
            arrow.append(aligned)
        if len(fields) == len(self._defaults) and not differences and target.fields:
            differences.append("the data has none of the table's columns")
        if differences:
            raise rows_do_not_fit(differences)
        self.schema = Schema(tuple(fields), target.metadata)
        self.arrow_schema = pa.schema(arrow, dict(target.metadata) or None)
        self._casts = casts

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the table's columns, types and nullability.

        Raises:
            SchemaError: a value cannot be kept by the cast, or null where the table allows none.
        """
        arrays = []
        for (name, cast), field in zip(self._casts, self.arrow_schema, strict=True):
            if name in self._defaults:
                array = default_array(self._defaults[name], batch.num_rows)
            else:
                array = normalise_offsets(batch.column(name))
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            if cast is not None:
                try:
                    array = cast(array)
                except WrongLengthError as error:
                    raise error.in_row(batch if error.path == name else None) from None
                except pa.ArrowInvalid as error:
                    raise SchemaError(
                        f"column {name!r} has a value that {field.type} cannot hold: {error}"
                    ) from error
            if not field.nullable and array.null_count:
                raise NullValueError(
                    f"column {name!r} must not be null, but {array.null_count} values of a batch are", name
                )
            arrays.append(array)
        if not arrays:
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
