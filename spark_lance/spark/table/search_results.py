"""Search results in Spark: row addresses with a distance or score, and the fetch of the rows' columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.spark.options.option_values import Projection
from spark_lance.spark.schema.blobs import describe_blobs
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import resolve_projection, to_spark_schema
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.snapshot import SnapshotRef
from spark_lance.table.reading.take import take_addresses

# Maximum number of rows to fetch at once.
_FETCH = 4096


def _measure_schema(name: str) -> st.StructType:
    """Return the schema of row addresses with a measure (distance or score)."""
    return st.StructType(
        [st.StructField("_address", st.LongType(), False), st.StructField(name, st.FloatType(), False)]
    )


DISTANCE_ROWS, SCORE_ROWS = _measure_schema(DISTANCE), _measure_schema(SCORE)


def result_columns(manifest: Manifest, columns: Sequence[str] | None, *measures: str) -> st.StructType:
    """Return the Spark schema of the table columns in a search result, except names in `measures`."""
    names = [field.name for field in manifest.schema.fields] if columns is None else columns
    table_columns = tuple(name for name in names if name not in measures)
    return to_spark_schema(manifest.schema, Projection(table_columns))


def search_result_schema(
    schema: st.StructType, before: tuple[st.StructField, ...], name: str = DISTANCE
) -> st.StructType:
    """Return the output schema of `fetch_rows`: the columns `before`, the table columns, and the measure."""
    return st.StructType([*before, *schema.fields, _measure_schema(name).fields[1]])


Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fetch_rows(
    table: SnapshotRef,
    schema: st.StructType,
    before: tuple[st.StructField, ...],
    measure: str = DISTANCE,
) -> Mapper:
    """Return a `mapInArrow` function that replaces row addresses by columns of the rows.

    Args:
        table: the version.
        schema: the table columns to fetch.
        before: input columns to keep before the table columns.
        measure: name of the distance or score column, which is kept after them.
    """

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            snapshot = table.load()
            names, _ = resolve_projection(snapshot.schema, schema)
            scan = snapshot.scan(names)
            convert: BatchConverter | None = None
            target = arrow_schema(search_result_schema(schema, before, measure))
            for batch in batches:
                for start in range(0, batch.num_rows, _FETCH):
                    part = batch.slice(start, _FETCH)
                    addresses = part["_address"].to_numpy().view(np.uint64)
                    position = 0
                    # A table without columns has rows but no batches.
                    rows_table = take_addresses(scan, addresses)
                    rows_table = describe_blobs(rows_table, addresses, schema, snapshot.manifest, scan.bases)
                    convert = convert or BatchConverter.plan(rows_table.schema, arrow_schema(schema))
                    for rows in rows_table.to_batches() or [None]:
                        input_rows = part if rows is None else part.slice(position, rows.num_rows)
                        values = [] if rows is None else convert(rows).columns
                        along = [input_rows[field.name] for field in before]
                        columns = [*along, *values, input_rows[measure]]
                        yield pa.RecordBatch.from_arrays(columns, schema=with_input_types(target, along))
                        position += len(input_rows)

    return fetch


def with_input_types(schema: pa.Schema, along: Sequence[pa.Array]) -> pa.Schema:
    """Return the schema with the types of the input columns, whose time zones can differ."""
    for place, values in enumerate(along):
        schema = schema.set(place, schema.field(place).with_type(values.type))
    return schema
