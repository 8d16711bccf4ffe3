"""Runs searches in SQL: the functions `vector_search`, `text_search` and `hybrid_search` in FROM.

A call is equivalent to `spark.read.format("lance")` with the option `nearest`, `full_text_query` or
`hybrid_search`. Options of the function are keys of the search, or options of reads such as `filter`.

A function in LATERAL searches for the vector, the words, or both, of each row of another relation. These are
unknown when Spark analyses the statement, so the search is checked and explained with placeholders. When the
statement runs, Java sends the rows, and gets a DataFrame of the results.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F
import pyspark.sql.types as st
from pyspark.sql.classic import dataframe

from spark_lance.catalog.names import display_name
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.hybrid import HybridQuery
from spark_lance.datasets.searching import DISTANCE
from spark_lance.errors import OptionError, TableNotFoundError, UnsupportedFormatError, suggestion
from spark_lance.index.text.search import TextSearch, parse_text_query
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.index.vector.search_tasks import plan_search
from spark_lance.io.store import open_store
from spark_lance.spark.base.compat import java_frame, python_session
from spark_lance.spark.options.option_fields import OPTIONS, ReadOptions, options_that_choose
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan import changes
from spark_lance.spark.scan import search as searches
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.search_functions import (
    CHANGE_FUNCTIONS,
    HYBRID_KEYS,
    SEARCH_FUNCTIONS,
    TEXT_KEYS,
    VECTOR_KEYS,
)
from spark_lance.spark.sql.tables import resolve_table, similar_table
from spark_lance.spark.table.batch_search import (
    TextSearchPlan,
    search_each_text,
    search_each_vector,
    zero_vector,
)
from spark_lance.spark.table.expressions import quoted
from spark_lance.spark.table.search_results import result_columns
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.indices.describe import describe_indices
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import load_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Options of a search in LATERAL: keys of vector searches, and options of reads.
_VECTOR_OPTIONS = ("metric", "nprobes", "refine_factor", "use_index", "fast_search")
_READ_OPTIONS = ("filter", "columns", *options_that_choose("version"), "allowed_bases")
# Names of the column with a row of the other relation, and of the row's number in it.
_ROW, _NUMBER = "__lance_row", "number"
# Types whose values have no order.
_UNORDERED_TYPES = tuple(
    getattr(st, name)
    for name in ("MapType", "VariantType", "CalendarIntervalType", "GeometryType", "GeographyType")
    if hasattr(st, name)
)


def open_version(options: ReadOptions, ref: VersionRef) -> LanceDataset:
    """Open the version of a table that a read sees."""
    store, _ = open_store(options.path, options.storage)
    return LanceDataset(
        options.path, TableRef(store, ref.root), load_version(TableRef(store, ref.root), ref.version)
    )


def placeholder_values(
    function: str,
    reads: Mapping[str, str],
    arguments: Mapping[str, Any],
    each: Collection[str],
    argument_names: Collection[str],
) -> dict[str, Any]:
    """Return placeholders for the arguments that every row has.

    Args:
        function: the search function.
        reads: options of the read, with the table's location.
        arguments: the other arguments of the search.
        each: the arguments that every row has: `vector`, `query`, or both.
        argument_names: the names of the user's options.

    Raises:
        OptionError: an option is not supported for a search in LATERAL.
        SchemaError: the vector column does not exist.
    """
    keys = _VECTOR_OPTIONS if function == "vector_search" else SEARCH_FUNCTIONS[function].keys
    allowed = (*keys, *_READ_OPTIONS)
    unknown = [name for name in argument_names if name not in allowed and not name.startswith("storage.")]
    if unknown:
        raise OptionError(
            f"{function} in a LATERAL join has no option {unknown[0]!r}; use {', '.join(allowed)}"
        )
    values: dict[str, Any] = {"query": ""} if "query" in each else {}
    if "vector" in each:
        options = read_options(reads)
        column = arguments["column" if "column" in arguments else "vector_column"]
        values["vector"] = zero_vector(open_version(options, pin(options)).manifest, column)
    return values


def search_each(request: BridgeRequest) -> None:
    """Search for each of many rows, and put a DataFrame of the results into the request's subject (`result`).

    It has the columns of the rows without the last ones, which are the `arguments` of the search, and
    `columns` of the search.
    """
    body, subject = request.body, request.subject
    spark = python_session(request.spark, subject["session"])
    rows = dataframe.DataFrame(subject["rows"], spark)
    options = read_options(body["search"])
    dataset = open_version(options, pin(options))
    along = rows.schema.fields[: -len(body["arguments"])]
    if options.nearest is not None:
        results = _nearest(dataset, options, rows, body["columns"])
    else:
        results = _answer_text_queries(dataset, options, rows, body["columns"], tuple(body["arguments"]))
    frame: Any = results.select(
        *(F.col(f"{_ROW}.{field.name}") for field in along),
        *(F.col(quoted(name)) for name in body["columns"]),
    )
    subject["result"] = java_frame(frame)


def _nearest(dataset: LanceDataset, options: ReadOptions, rows: DataFrame, columns: list[str]) -> DataFrame:
    """Return the rows nearest to the vector in the last column of each row. `_ROW` has the other columns."""
    plan = plan_search(dataset.snapshot, VectorQuery.parse(options.nearest or {}), options.filter)
    *along, vector = rows.schema.fields
    # Sorted, so that a repeated task gives the same numbers to its rows.
    order = [vector.name, *(field.name for field in along if _has_order(field.dataType))]
    number = F.monotonically_increasing_id().alias(_NUMBER)
    row = F.struct(number, *(F.col(field.name) for field in along)).alias(_ROW)
    queries = rows.sortWithinPartitions(*order).select(row, vector.name)
    schema = result_columns(dataset.manifest, columns, DISTANCE)
    return search_each_vector(plan, dataset.manifest, schema, queries, f"{_ROW}.{_NUMBER}")


def _answer_text_queries(
    dataset: LanceDataset,
    options: ReadOptions,
    rows: DataFrame,
    columns: list[str],
    query_columns: tuple[str, ...],
) -> DataFrame:
    """Return the results for the words, the vector, or both in the last columns of each row.

    `_ROW` has the other columns.
    """
    text, both = options.full_text_query, options.hybrid_search
    k = text["k"] if text is not None else HybridQuery.parse(dataset.manifest, both or {}).k
    words = None if text is None else {name: value for name, value in text.items() if name != "k"}
    plan = TextSearchPlan(dataset.snapshot.ref(), words, both, k, options.filter, query_columns)
    along, values = rows.schema.fields[: -len(query_columns)], rows.schema.fields[-len(query_columns) :]
    # A struct needs a field, even if there are no other columns.
    row = F.struct(F.lit(0).alias(_NUMBER), *(F.col(field.name) for field in along)).alias(_ROW)
    queries = rows.select(row, *(_as_doubles(field) for field in values))
    return search_each_text(plan, result_columns(dataset.manifest, columns, *plan.measure_columns), queries)


def _as_doubles(field: st.StructField) -> Any:
    """Return a column with vectors, or lists of vectors, cast to double; text unchanged."""
    kind = field.dataType
    if not isinstance(kind, st.ArrayType):
        return F.col(field.name)
    many = isinstance(kind.elementType, st.ArrayType)
    return F.col(field.name).cast("array<array<double>>" if many else "array<double>").alias(field.name)


def _has_order(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_has_order(field.dataType) for field in kind)
    return not isinstance(kind, _UNORDERED_TYPES)


# If an index replaces ORDER BY distance LIMIT k, the exact distances of this many times k rows are compared.
_REFINE = 10


def search(request: BridgeRequest) -> dict[str, Any]:
    """Return the relation of a search: name, schema, options of the read, and text for EXPLAIN."""
    body = request.body
    if body["function"] in CHANGE_FUNCTIONS:
        return _table_changes(request)
    arguments = _arguments(body["function"], body["arguments"][1:], body["named"], body["each"])
    store_options, metadata = _resolved_table(request)
    if metadata:
        raise UnsupportedFormatError(
            f"{display_name(request.name)} is a metadata table and cannot be searched: search its table"
        )
    keys, reads = _split_options(body["function"], arguments.get("options") or {})
    if each := body["each"]:
        arguments |= placeholder_values(
            body["function"], {**store_options, **reads}, arguments, each, {*keys, *reads}
        )
    options = {**store_options, **reads, **_SEARCHES[body["function"]](arguments, keys)}
    return _relation(f"{request.catalog.name}.{display_name(request.name)}", options, arguments["k"])


def _resolved_table(request: BridgeRequest) -> tuple[dict[str, str], str | None]:
    """Return the options of the table of a function, and the name of a metadata table.

    Raises:
        OptionError: there is no such table. Spark's own error for missing tables would not suggest a name.
    """
    try:
        return resolve_table(request.catalog, request.name)
    except TableNotFoundError as error:
        raise OptionError(f"{error}{similar_table(request, request.name)}") from error


def _table_changes(request: BridgeRequest) -> dict[str, Any]:
    """Return the relation of the rows that a range of versions changed.

    Raises:
        OptionError: a bound is missing, or neither a version nor a time.
        UnsupportedFormatError: the name is that of a metadata table.
    """
    body = request.body
    bounds = _arguments(body["function"], body["arguments"][1:], body["named"], ())
    store_options, metadata = _resolved_table(request)
    if metadata:
        name = display_name(request.name)
        raise UnsupportedFormatError(
            f"{name} is a metadata table and has no change feed: read the changes of its table"
        )
    zone = request.spark.conf.get("spark.sql.session.timeZone")
    reads = {"readChangeFeed": "true", "timeZone": str(zone)}
    for argument, option in (("start", "starting"), ("end", "ending")):
        bound = bounds.get(argument)
        if isinstance(bound, bool) or not (bound is None or isinstance(bound, (int, str))):
            raise OptionError(
                f"{argument} of {body['function']} must be a version or a time, such as 3 or "
                f"'2026-03-01 12:00:00', not {bound!r}"
            )
        if bound is not None:
            reads[f"{option}{'Version' if isinstance(bound, int) else 'Timestamp'}"] = str(bound)
    options = read_options({**store_options, **reads})
    ref, schema = changes.describe(options, None)
    if bounds.get("end") is None:
        reads["endingVersion"] = str(ref.version)
    name = f"{request.catalog.name}.{display_name(request.name)}"
    return {
        "display_name": name,
        "schema": schema.json(),
        "options": {**store_options, **reads},
        "plan": f"changes of {name}",
        "rows": None,
    }


def nearest(request: BridgeRequest) -> dict[str, Any] | None:
    """Return the relation of the rows that an index finds nearest to a vector; None without such an index."""
    body = request.body
    near = {
        "column": body["column"],
        "q": body["vector"],
        "k": body["k"],
        "metric": body["metric"],
    }
    reads = {**body["reads"], "version": body["version"], "columns": json.dumps(body["columns"])}
    texts = {**reads, "nearest": json.dumps({**near, "refine_factor": _REFINE})}
    options = read_options(texts)
    ref, _ = searches.describe(options, None)
    dataset = open_version(options, ref)
    query = VectorQuery.parse(near)
    if VectorSearch(dataset.snapshot, query.column).index_name(query) is None:
        return None
    return _relation(body["display_name"], texts, body["k"])


def _relation(name: str, texts: dict[str, str], rows: int) -> dict[str, Any]:
    options = read_options(texts)
    ref, schema = searches.describe(options, None)
    pinned_options = {
        name: value for name, value in texts.items() if name not in options_that_choose("version")
    }
    pinned_options["version"] = str(ref.version)
    return {
        "display_name": name,
        "schema": schema.json(),
        "options": pinned_options,
        "plan": _explain(options, open_version(options, ref)),
        "rows": rows,
    }


def _arguments(
    function: str, positional: Sequence[Any], named: Mapping[str, Any], each: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments by name. Arguments in `each` are values of every row, and are set later.

    Raises:
        OptionError: an argument is missing or invalid, or there are too many.
    """
    declaration = SEARCH_FUNCTIONS[function]
    arguments = dict(zip(declaration.parameters, positional, strict=False)) | {
        key.lower(): v for key, v in named.items()
    }
    arguments |= {name: [] for name in each}
    required = declaration.parameters[: -declaration.optional]
    missing = [name for name in required if arguments.get(name) is None]
    unknown = sorted(set(arguments) - set(declaration.parameters))
    if len(positional) > len(declaration.parameters) or missing or unknown:
        raise OptionError(
            f"{function} takes (table, {', '.join(declaration.parameters)}), and the last one is optional; "
            f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}"
        )
    if "k" not in declaration.parameters:
        return arguments
    if not isinstance(arguments["k"], int) or isinstance(arguments["k"], bool) or arguments["k"] < 1:
        raise OptionError(f"k of {function} must be a whole number of 1 or more, not {arguments['k']!r}")
    options = arguments.get("options")
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except ValueError:
            options = None
        arguments["options"] = options
    if "options" in arguments and not isinstance(options, Mapping):
        raise OptionError(f"options of {function} must be a map, such as map('filter', 'id > 7')")
    for name in ("vector",):
        value = arguments.get(name)
        if name in declaration.parameters and (not isinstance(value, list) or None in value):
            raise OptionError(
                f"the vector of {function} must be an array of numbers, such as array(0.1, 0.2)"
            )
    return arguments


def _split_options(function: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of the search among the options, and the options of the read."""
    declaration = SEARCH_FUNCTIONS[function]
    keys: dict[str, Any] = {}
    reads: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in declaration.keys:
            keys[name.lower()] = _parse_value(value)
        elif name in OPTIONS or name.startswith("storage."):
            reads[name] = value if isinstance(value, str) else json.dumps(value)
        else:
            raise OptionError(
                f"{function} has no option {name!r}; use {', '.join(declaration.keys)}, or an option of reads"
                f"{suggestion(name, (*declaration.keys, *OPTIONS))}"
            )
    return keys, reads


def _parse_value(text: Any) -> Any:
    """Parse a text as JSON (a number, boolean or list); return the text if it is not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _vector(arguments: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, str]:
    request = {"column": arguments["column"], "q": arguments["vector"], "k": arguments["k"], **keys}
    return {"nearest": json.dumps(request)}


def _text(arguments: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, str]:
    request = {"column": arguments["column"], "query": arguments["query"], "k": arguments["k"], **keys}
    return {"full_text_query": json.dumps(request)}


def _hybrid(arguments: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, str]:
    near = {key: value for key, value in keys.items() if key in VECTOR_KEYS}
    words = {key: value for key, value in keys.items() if key in TEXT_KEYS}
    request = {
        "nearest": {"column": arguments["vector_column"], "q": arguments["vector"], **near},
        "full_text_query": {"column": arguments["text_column"], "query": arguments["query"], **words},
        "k": arguments["k"],
        **{key: value for key, value in keys.items() if key in HYBRID_KEYS},
    }
    return {"hybrid_search": json.dumps(request)}


_SEARCHES = {"vector_search": _vector, "text_search": _text, "hybrid_search": _hybrid}


def _explain(options: ReadOptions, dataset: LanceDataset) -> str:
    """Return the text of a search for EXPLAIN."""
    parts = []
    if options.hybrid_search is not None:
        both = HybridQuery.parse(dataset.manifest, options.hybrid_search)
        parts = [
            f"HybridSearch k={both.k}",
            _by_vector(dataset, both.vector),
            _by_words(dataset, both.text_column),
        ]
    elif options.nearest is not None:
        parts = [_by_vector(dataset, VectorQuery.parse(options.nearest))]
    else:
        request = dict(options.full_text_query or {})
        k = request.pop("k", None)
        column, _ = parse_text_query(dataset.manifest, request, k)
        parts = [f"{_by_words(dataset, column)} k={k}"]
    filtered = f", filter: {options.filter}" if options.filter else ""
    return "; ".join(parts) + filtered


def _by_vector(dataset: LanceDataset, query: VectorQuery) -> str:
    near = VectorSearch(dataset.snapshot, query.column)
    index = near.index_name(query)
    metric = near.metric(query)
    return f"VectorSearch {query.column} k={query.k} metric={metric} {_index(dataset, index)}"


def _by_words(dataset: LanceDataset, column: str) -> str:
    return f"TextSearch {column} {_index(dataset, TextSearch(dataset.snapshot, column).index_name)}"


def _index(dataset: LanceDataset, name: str | None) -> str:
    if name is None:
        return "without an index"
    kinds = {index.name: index.index_type for index in describe_indices(dataset.snapshot)}
    return f"by index {name} ({kinds[name]})"
