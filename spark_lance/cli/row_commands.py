"""The commands that show rows: head, sample, count, sql, search and diff."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.cli.commands import Arguments
from spark_lance.cli.opening import open_table, parse_columns, parse_reference
from spark_lance.cli.output import Progress, as_json, print_table, say
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.special_reads import duckdb_module
from spark_lance.errors import ExpressionError, OptionError
from spark_lance.file.base.schema import Field


def head(arguments: Arguments) -> int:
    """Show the first rows."""
    dataset = open_table(arguments)
    columns = _shown_columns(dataset, arguments)
    text_as = arguments.text_as or "string"
    show_rows(dataset.to_table(columns, arguments.where, arguments.rows, text_as=text_as), arguments)
    return 0


def sample(arguments: Arguments) -> int:
    """Show a uniform random sample of rows, in table order."""
    dataset = open_table(arguments)
    total = dataset.count_rows()
    positions = np.random.default_rng(arguments.seed).choice(total, min(arguments.rows, total), replace=False)
    show_rows(dataset.take(np.sort(positions), _shown_columns(dataset, arguments)), arguments)
    return 0


def count(arguments: Arguments) -> int:
    """Count rows. Without a condition, read only the table's metadata."""
    dataset = open_table(arguments)
    with Progress("counting"):
        rows = dataset.count_rows(arguments.where)
    say(as_json({"rows": rows}) if arguments.json else str(rows))
    return 0


def search(arguments: Arguments) -> int:
    """Show the rows nearest to a vector, or the rows that match words, best first."""
    dataset = open_table(arguments)
    queries = [arguments.vector, arguments.like_row, arguments.text]
    if sum(value is not None for value in queries) != 1:
        raise OptionError("search needs one of --vector, --like-row and --text")
    request: dict[str, Any] = {}
    column = arguments.column
    if arguments.text is not None:
        query: dict[str, Any] = {"query": arguments.text}
        if column is not None:
            query["column"] = column
        request["full_text_query"] = query
    else:
        column = column or _only_vector_column(dataset)
        vector = _vector(dataset, column, arguments)
        request["nearest"] = {"column": column, "q": vector, "k": arguments.rows}
        for name in ("nprobes", "refine_factor"):
            if getattr(arguments, name) is not None:
                request["nearest"][name] = getattr(arguments, name)
    with Progress("searching"):
        result = dataset.to_table(
            _shown_columns(dataset, arguments, but=column),
            arguments.where,
            arguments.rows,
            prefilter=True,
            **request,
        )
    show_rows(result, arguments)
    return 0


def _vector(dataset: LanceDataset, column: str, arguments: Arguments) -> list[float]:
    """Return the query vector: the value of `--vector`, or the vector of the row of `--like-row`."""
    if arguments.like_row is not None:
        if not 0 <= arguments.like_row < dataset.count_rows():
            raise OptionError(
                f"--like-row {arguments.like_row}: the table has rows 0 to {dataset.count_rows() - 1}"
            )
        example = dataset.take([arguments.like_row], [column]).column(0)[0].as_py()
        if example is None:
            raise OptionError(f"row {arguments.like_row} has no vector in column {column!r}")
        return list(example)
    try:
        vector = json.loads(arguments.vector)
    except ValueError:
        vector = None
    if not isinstance(vector, list) or not all(isinstance(value, (int, float)) for value in vector):
        raise OptionError(f"--vector takes numbers in brackets, such as [0.1,0.2], not {arguments.vector!r}")
    return vector


def _only_vector_column(dataset: LanceDataset) -> str:
    names: list[str] = [field.name for field in dataset.schema if pa.types.is_fixed_size_list(field.type)]
    if len(names) != 1:
        problem = f"several vector columns ({', '.join(names)})" if names else "no vector column"
        raise OptionError(f"the table has {problem}: add --column")
    return names[0]


def diff(arguments: Arguments) -> int:
    """Count or show the rows that changed from one version to another."""
    dataset = open_table(arguments)
    end = None if arguments.end is None else parse_reference(arguments.end)
    begin = parse_reference(arguments.begin)
    changes = dataset.diff(begin, end)
    with Progress("comparing"):
        if arguments.show is not None:
            rows = _first_rows(getattr(changes, arguments.show)(parse_columns(arguments)), arguments.rows)
        else:
            counts = changes.counts()
    if arguments.show is not None:
        show_rows(rows, arguments)
    elif arguments.json:
        say(as_json(counts))
    else:
        print_table(tuple(counts), [tuple(counts.values())])
    return 0


def _first_rows(reader: pa.RecordBatchReader, count: int) -> pa.Table:
    """Return the first rows of a stream. Read no more batches than needed."""
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < count:
        batch = next(reader, None)
        if batch is None:
            break
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema).slice(0, count)


def show_rows(rows: pa.Table, arguments: Arguments) -> None:
    """Print rows, as a table or as JSON."""
    if arguments.json:
        say(as_json(rows.to_pylist()))
        return
    columns = [_short_floats(column).to_pylist() for column in rows.columns]
    print_table(rows.column_names, zip(*columns, strict=True), wide=arguments.wide)


def _short_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return float16 and float32 values, and vectors of them, as the shortest decimals that identify them.

    A float32 converted to a Python float would show extra digits: 0.10000000149011612.
    """
    kind = column.type
    is_vector = pa.types.is_fixed_size_list(kind)
    inner = kind.value_type if is_vector else kind
    if not (pa.types.is_float32(inner) or pa.types.is_float16(inner)) or column.null_count or not len(column):
        return column
    values = pa.concat_arrays([chunk.flatten() if is_vector else chunk for chunk in column.chunks])
    if values.null_count:
        return column
    texts = values.to_numpy(zero_copy_only=False).astype(str).astype(np.float64)
    result = pa.array(texts)
    return pa.chunked_array(
        [pa.FixedSizeListArray.from_arrays(result, kind.list_size) if is_vector else result]
    )


def _shown_columns(dataset: LanceDataset, arguments: Arguments, but: str | None = None) -> list[str] | None:
    """Return the columns to show: the requested ones, or all except the searched vector column."""
    columns = parse_columns(arguments)
    if columns is not None or but is None:
        return columns
    field: Field | None = next((top for top in dataset.lance_schema.fields if top.name == but), None)
    if field is None or not pa.types.is_fixed_size_list(field.arrow_type()):
        return None
    return [top.name for top in dataset.lance_schema.fields if top.name != but]


_VIEW = "t"


def sql(arguments: Arguments) -> int:
    """Show the result of a DuckDB SQL query, in which the table is named t."""
    dataset = open_table(arguments)
    duckdb = duckdb_module()
    try:
        with Progress("querying"):
            result = dataset.sql(arguments.query, _VIEW)
    except duckdb.Error as error:
        reason = " ".join(str(error).split())
        if isinstance(error, duckdb.CatalogException):
            reason = reason.split(" Did you mean")[0]
        raise ExpressionError(f"{reason} (the table is named {_VIEW} in the query)") from None
    show_rows(result, arguments)
    return 0
