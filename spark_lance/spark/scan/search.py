"""Reads search results: `nearest` by vector, `full_text_query` by words, `hybrid_search` by both.

One task searches and fetches the rows, so it returns exactly the k best, even if Spark filters them
afterwards. `LanceTable.search` runs the same search in many tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.hybrid import RELEVANCE, HybridQuery
from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.errors import OptionError, SchemaError
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.file.blob_writer import has_blobs
from spark_lance.index.base.columns import leaf_field, top_column
from spark_lance.index.pruners import indexed_snapshot
from spark_lance.index.text.search import TextSearch, parse_text_query
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.io.store import open_store
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.scan.partitions import row_bytes
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.schema.blobs import ALL_BINARY, LEFT_OUT, describe_blobs
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import (
    resolve_projection,
    to_spark_schema,
    with_nullable_system_columns,
)
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.spark.worker.read import live_rows
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment_rows import batch_without_columns
from spark_lance.table.reading.system_columns import ROW_ADDRESS, filterable_schema
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import load_version


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the version of the search, and the Spark schema of the requested columns.

    Score columns (distance, score, relevance) come last, or at their position in option `columns`.

    Args:
        options: options of the read, with one of the searches.
        ref: the version, if it has been resolved before.

    Raises:
        OptionError: the search does not fit the table.
        TableNotFoundError, VersionNotFoundError, UnsupportedFormatError, SchemaError: see `read.describe`.
    """
    keep_worker_ready()
    ref = pin(options) if ref is None else ref
    manifest = _manifest(options, ref)
    _check(options, manifest)
    score_columns = _score_columns(options)
    names = score_columns.fieldNames()
    columns = options.columns
    # As without Spark, a score column hides a table column of the same name.
    table_columns = columns
    if table_columns is None:
        left_out = {
            field.name
            for field in manifest.schema.fields
            if has_blobs(field) and options.blob_handling.of(field.name) == LEFT_OUT
        }
        table_columns = tuple(field.name for field in manifest.schema.fields if field.name not in left_out)
    rest = tuple(name for name in table_columns if name not in names)
    fields = to_spark_schema(manifest.schema, replace(options.projection, columns=rest)).fields
    available = {field.name: field for field in (*fields, *score_columns)}
    first = [name for name in columns or () if name in available]
    # Columns that options add come between the requested columns and the score columns.
    order = [*first, *(name for name in available if name not in first)]
    schema = st.StructType([available[name] for name in order])
    return ref, with_nullable_system_columns(schema) if options.fresh else schema


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> SearchReader:
    """Return the reader of the columns of `schema`. Spark applies filters itself, after the search."""
    keep_worker_ready()
    return SearchReader(options, schema, pin(options) if ref is None else ref)


def _manifest(options: ReadOptions, ref: VersionRef) -> Manifest:
    store, _ = open_store(options.path, options.storage)
    return load_version(TableRef(store, ref.root), ref.version)


def _score_columns(options: ReadOptions) -> st.StructType:
    """Return the score columns. Those of a hybrid search are nullable: a row can lack a distance or score."""
    if options.hybrid_search is not None:
        names = {DISTANCE: True, SCORE: True, RELEVANCE: False}
    else:
        names = {SCORE if options.nearest is None else DISTANCE: False}
    return st.StructType([st.StructField(name, st.FloatType(), nullable) for name, nullable in names.items()])


def _text_query(options: ReadOptions) -> tuple[Mapping[str, Any], int | None]:
    """Return the query of a text search and its k; None is the default, all rows with a word of the query."""
    request = dict(options.full_text_query or {})
    k = request.pop("k", None)
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise OptionError(f"k of a text search must be a whole number, not {k!r}")
    return request, k


def _check(options: ReadOptions, manifest: Manifest) -> None:
    """Check that a search fits the table, while Spark plans the query.

    Raises:
        OptionError, ExpressionError, SchemaError: the search does not fit the table.
    """
    if options.nearest is not None:
        query = VectorQuery.parse(options.nearest)
        kind = leaf_field(manifest.schema, query.column).arrow_type()
        if query.answers(kind) > 1:
            raise OptionError("option 'nearest' must be one vector: use LanceTable.searchBatch for several")
        query.cast_to(kind)
    else:
        store, root = open_store(options.path, options.storage)
        if options.hybrid_search is not None:
            both = HybridQuery.parse(manifest, options.hybrid_search)
            both.vector.cast_to(leaf_field(manifest.schema, both.vector.column).arrow_type())
            column = both.text_column
        else:
            column, _ = parse_text_query(manifest, *_text_query(options))
        TextSearch(indexed_snapshot(TableRef(store, root), manifest), column)
    if options.filter is not None:
        compile_predicate(options.filter, filterable_schema(manifest.schema))


class SearchReader(DataSourceReader):
    """Reads the result of a search, best rows first, in one task.

    Args:
        options: options of the read, with one of the searches.
        schema: the columns, in this order. Score columns may be among them.
        ref: the version of the search.

    Raises:
        OptionError, ExpressionError: the search does not fit the table.
        SchemaError: the schema names columns that do not exist, or types other than theirs.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, ref: VersionRef) -> None:
        self.ref = ref
        self._options = options
        self._schema = schema
        manifest = _manifest(options, ref)
        _check(options, manifest)
        score_columns = _score_columns(options).fieldNames()
        columns = [field for field in schema if field.name not in score_columns]
        wrong = [f for f in schema if f.name in score_columns and f.dataType != st.FloatType()]
        if wrong:
            raise SchemaError(
                f"column {wrong[0].name!r} must be float, not {wrong[0].dataType.simpleString()}"
            )
        names, _ = resolve_projection(manifest.schema, st.StructType(columns))
        blobs = {field.name for field in manifest.schema.fields if has_blobs(field)}
        for name, column in zip(names, columns, strict=True):
            wants_bytes = options.blob_handling.of(name) == ALL_BINARY or column.dataType == st.BinaryType()
            if name in blobs and wants_bytes:
                raise OptionError(
                    f"a search cannot read the bytes of blob column {name!r}: read its descriptions"
                )
        rest = iter(names)
        self._names = [field.name if field.name in score_columns else next(rest) for field in schema]
        self._blobs = [name for name in self._names if name in blobs]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most `batch_size` rows."""
        with one_line():
            keep_worker_ready()
            table = self._result()
            if not self._names:
                yield batch_without_columns(table.num_rows)
                return
            convert = BatchConverter.plan(table.schema, arrow_schema(self._schema))
            for batch in table.to_batches(self._options.batch_size):
                yield convert(batch)

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return the results if k is small and few rows are unindexed; None otherwise.

        The search reads only the parts of an index that it needs. This returns None for hybrid searches, and
        for searches with a filter, which may have to read the whole table.

        Args:
            most_rows: largest number of rows to return.
            most_bytes: approximate largest number of bytes of unindexed values to read.
        """
        options = self._options
        store, _ = open_store(options.path, options.storage)
        snapshot = indexed_snapshot(TableRef(store, self.ref.root), _manifest(options, self.ref))
        if options.filter is not None or options.hybrid_search is not None or options.fresh:
            return None
        if options.nearest is not None:
            query = VectorQuery.parse(options.nearest)
            column, k = query.column, query.k
            search = VectorSearch(snapshot, column)
            numbers = {id for task in search.plan(query.cast_to(search.kind)) for id in task.fragments}
        else:
            column, words = parse_text_query(snapshot.manifest, *_text_query(options))
            numbers = {fragment.id for fragment in TextSearch(snapshot, column).unindexed(words)}
            k = most_rows + 1 if words.k is None else words.k
        rest = [fragment for fragment in snapshot.fragments if fragment.id in numbers]
        scan = snapshot.scan([top_column(snapshot.schema, column)], fragments=rest)
        tasks = scan.tasks()
        width = row_bytes(snapshot.schema, tasks, scan.names, scan.fields)
        if k > most_rows or sum(map(live_rows, tasks)) * width > most_bytes:
            return None
        return list(self.read(self.partitions()[0]))

    def _result(self) -> pa.Table:
        options = self._options
        store, _ = open_store(options.path, options.storage)
        manifest = _manifest(options, self.ref)
        table = LanceDataset(options.path, TableRef(store, self.ref.root), manifest)
        score_columns = _score_columns(options).fieldNames()
        # A table without columns would have no rows.
        names = [name for name in self._names if name not in score_columns] or [ROW_ADDRESS]
        if self._blobs and ROW_ADDRESS not in names:
            names.append(ROW_ADDRESS)
        if options.nearest is not None and options.fresh:
            result = table.fresh().to_table(names, options.filter, nearest=options.nearest, prefilter=True)
        elif options.nearest is not None:
            result = table.to_table(names, options.filter, nearest=options.nearest, prefilter=True)
        elif options.hybrid_search is not None:
            both = {name: value for name, value in options.hybrid_search.items() if value is not None}
            result = table.hybrid_search(**both, columns=names, filter=options.filter)
        else:
            request, k = _text_query(options)
            result = table.to_table(names, options.filter, k, full_text_query=request, prefilter=True)
        if not self._names:
            return result
        batch = result.select(self._names)
        if not self._blobs:
            return batch
        addresses = result[ROW_ADDRESS].to_numpy().astype(np.uint64)
        return describe_blobs(batch, addresses, self._schema, manifest, table.snapshot.bases)
