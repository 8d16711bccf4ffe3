"""Other reads of a version: changes between versions, samples, blobs as files, and SQL in DuckDB.

DuckDB requests the columns and rows that a query needs.
"""

from __future__ import annotations

import random
from importlib import import_module
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.scan_request import Columns
from spark_lance.errors import OptionError, RowNotFoundError
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import address_fragments
from spark_lance.table.reading.blobs import BlobFile, blob_path, descriptors, open_blobs
from spark_lance.table.reading.changes_feed import Changes, changes_between
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import RowNumbers, take_addresses, take_positions, take_row_ids
from spark_lance.table.versions.resolve import Reference, resolve
from spark_lance.table.versions.versions import load_version

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


def run_sql(dataset: LanceDataset, query: str, table_name: str) -> pa.Table:
    """Run an SQL query in DuckDB and return the result; see `LanceDataset.sql`."""
    duckdb = duckdb_module()
    with duckdb.connect() as connection:
        connection.register(table_name, dataset.to_pyarrow())
        relation = connection.sql(query)
        if relation is None:
            raise OptionError(f"this SQL gives no rows: {query!r}")
        result: pa.Table = relation.to_arrow_table()
        return result


def polars_frame(dataset: LanceDataset) -> Any:
    """Return a LazyFrame of polars; see `LanceDataset.to_polars`."""
    try:
        polars = import_module("polars")
    except ModuleNotFoundError:
        raise OptionError("this needs polars: pip install polars") from None
    return polars.scan_pyarrow_dataset(dataset.to_pyarrow())


def duckdb_module() -> Any:
    """Return the module duckdb.

    Raises:
        OptionError: DuckDB is not installed.
    """
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise OptionError("SQL without Spark needs DuckDB: pip install 'spark-lance[duckdb]'") from None


def changes(dataset: LanceDataset, from_version: Reference, to_version: Reference | None = None) -> Changes:
    """Return the changes after `from_version`, up to and including `to_version`.

    `diff(3).inserted()`, `.updated()` and `.deleted()` are streams of rows; see `Changes`. Without stable
    row ids, rows are matched by primary key, and count as updated if a value differs. Without a primary key,
    only appends, deletes and overwrites may be between the versions.

    Args:
        dataset: a version of the table.
        from_version: a version of this branch, by number or tag; 0 for the empty table before version 1.
        to_version: a later version. Default: this version.

    Raises:
        VersionNotFoundError: a version does not exist.
        OptionError: the versions are in the wrong order, or on another branch.
    """
    at = dataset.snapshot
    end = at if to_version is None else at.at(_load_on_branch(dataset, to_version))
    begin = None if from_version == 0 else at.at(_load_on_branch(dataset, from_version))
    return changes_between(begin, end)


def _load_on_branch(dataset: LanceDataset, version: Reference) -> Manifest:
    place = resolve(dataset.main_line, version, dataset.branch)
    if place.root != dataset.root:
        raise OptionError(f"version {version!r} is on another branch: row ids mean other rows there")
    return load_version(dataset.table, place.version)


def blob_files(
    dataset: LanceDataset,
    blob_column: str,
    indices: RowNumbers | None,
    ids: RowNumbers | None,
    addresses: RowNumbers | None,
) -> list[BlobFile | None]:
    """Return the blobs of rows as binary file objects, None for a null; see `blobs_by_address`."""
    return blobs_by_address(dataset, blob_column, indices, ids, addresses)[1]


def blobs_by_address(
    dataset: LanceDataset,
    blob_column: str,
    indices: RowNumbers | None,
    ids: RowNumbers | None,
    addresses: RowNumbers | None,
) -> tuple[list[int], list[BlobFile | None]]:
    """Return the addresses of rows, and their blobs as binary file objects, None for a null.

    Pass exactly one of `indices`, `ids` and `addresses`.

    Args:
        dataset: a version of the table.
        blob_column: a blob column, or the dotted path of a struct field.
        indices: row positions, 0-based, in scan order. (pylance's second argument is `ids`.)
        ids: `_rowid` values.
        addresses: `_rowaddr` values.

    Raises:
        IndexError: a position is out of range, or an id or address has no live row.
        OptionError: none or several of `indices`, `ids` and `addresses` are set.
        SchemaError: the column does not exist, or is not a blob column.
        FormatError, UnsupportedFormatError: a descriptor is damaged or of an unknown kind.
        FileNotFoundError: an external object of a descriptor does not exist.
    """
    numberings = [numbers for numbers in (indices, ids, addresses) if numbers is not None]
    if len(numberings) != 1:
        raise OptionError("take_blobs needs one of indices, ids and addresses")
    path = blob_path(dataset.lance_schema, blob_column)
    scan = dataset.plan_scan([path[0].name, ROW_ADDRESS])
    if indices is not None:
        rows = take_positions(scan, indices)
    elif ids is not None:
        rows = take_row_ids(scan, ids)
    else:
        rows = take_addresses(scan, numberings[0])
    if rows.num_rows != len(numberings[0]):
        raise RowNotFoundError(f"only {rows.num_rows} of {len(numberings[0])} rows exist")
    by_id = {fragment.id: fragment for fragment in dataset.manifest.fragments}
    fragments = [by_id[number] for number in address_fragments(rows[ROW_ADDRESS].to_numpy()).tolist()]
    files = open_blobs(dataset.snapshot.bases, path[-1], descriptors(rows.column(0), path), fragments)
    return rows[ROW_ADDRESS].to_pylist(), files


def sample(
    dataset: LanceDataset, num_rows: int, columns: Columns, randomize_order: bool, seed: int | None
) -> pa.Table:
    """Return random rows without repetition; all rows if the table has fewer.

    Args:
        dataset: a version of the table.
        num_rows: number of rows.
        columns: as for `scanner`.
        randomize_order: whether to return the rows in random order (True) or table order (False).
        seed: the same seed returns the same rows of a version.

    Raises:
        OptionError: the number is negative or not a whole number.
    """
    if not isinstance(num_rows, Integral) or num_rows < 0:
        raise OptionError(f"the rows of a sample must be a whole number from 0 on, not {num_rows!r}")
    total = dataset.count_rows()
    positions = random.Random(seed).sample(range(total), min(num_rows, total))
    return dataset.take(positions if randomize_order else sorted(positions), columns)


def delta(
    dataset: LanceDataset,
    compared_against: int | None,
    begin_version: int | None,
    end_version: int | None,
) -> Changes:
    """Return `diff(compared_against)` or `diff(begin_version, end_version)`. The name is pylance's.

    Raises:
        OptionError: the arguments are neither `compared_against` nor both others; or as `diff`.
    """
    if compared_against is not None and begin_version is None and end_version is None:
        return changes(dataset, compared_against)
    if compared_against is None and begin_version is not None and end_version is not None:
        return changes(dataset, begin_version, end_version)
    raise OptionError("delta needs compared_against, or begin_version and end_version")
