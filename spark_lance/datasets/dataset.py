"""Opening and writing tables without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.lance_dataset import LanceDataset
from spark_lance.datasets.read import LanceFragment
from spark_lance.errors import OptionError
from spark_lance.io.manifest_store import CommitLock
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import is_detached
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest, load_version
from spark_lance.table.writing.targets import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE

if TYPE_CHECKING:
    from spark_lance.datasets.building import Place
    from spark_lance.datasets.versions import DatasetBasePath
    from spark_lance.table.inserts.write_plan import WritePlan
    from spark_lance.table.versions.resolve import Reference

__all__ = ["LanceDataset", "LanceFragment", "dataset", "write_dataset"]


def dataset(
    uri: str | os.PathLike[str],
    version: Reference | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    asof: datetime | str | None = None,
    commit_lock: CommitLock | None = None,
    allowed_bases: Sequence[str | os.PathLike[str]] | None = None,
    base_store_params: Mapping[str, Mapping[str, Any]] | None = None,
) -> LanceDataset:
    """Open a table at its latest or a given version.

    Args:
        uri: a path or an fsspec URI.
        version: a version number, a tag, or (branch, number or None for the newest); the latest by default.
        storage_options: options of the fsspec file system.
        asof: the latest version committed at or before this time; without a zone it is in UTC.
        commit_lock: called with a version, returns a context manager; a commit looks whether the version is
            free and writes it while it holds that. Only for stores that cannot create objects atomically.
        allowed_bases: URIs of places outside the table that it may use: base paths and external blobs there
            or below are read. Places in the same bucket, on the same host, or on a disk below the folder that
            the table's folder is in, need not be listed.
        base_store_params: a URI -> the storage options for it and what is below it. Options of the table
            itself are used in its own bucket or on its own host only.

    Raises:
        TableNotFoundError: there is no table.
        VersionNotFoundError: it has no such version, tag or branch, or none so old.
        UnsupportedFormatError: it uses a feature that this release does not read.
    """
    from spark_lance.table.versions.resolve import version_at

    store, root = open_store(uri, storage_options, commit_lock)
    store = store.with_bases(allowed_bases, base_store_params)
    if version is not None and asof is not None:
        raise OptionError("give a version or a time, not both")
    if asof is not None:
        manifest = load_version(TableRef(store, root), version_at(TableRef(store, root), asof))
    else:
        manifest = (
            load_version(TableRef(store, root), version)
            if isinstance(version, int)
            else load_latest(TableRef(store, root))
        )
    result = LanceDataset(os.fspath(uri), TableRef(store, root), manifest)
    return result if version is None or isinstance(version, int) else result.checkout_version(version)


def write_dataset(
    data: Any,
    uri: str | os.PathLike[str] | LanceDataset,
    mode: str = "create",
    *,
    schema: pa.Schema | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    data_storage_version: str | None = None,
    compression: str | None = None,
    enable_stable_row_ids: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    commit_lock: CommitLock | None = None,
    auto_cleanup_options: Mapping[str, int] | None = None,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
    allowed_bases: Sequence[str | os.PathLike[str]] | None = None,
    base_store_params: Mapping[str, Mapping[str, Any]] | None = None,
) -> LanceDataset:
    """Write a table and return its new version.

    Args:
        data: anything that exports an Arrow stream (tables of pyarrow, pandas, polars, DuckDB, a dataset); a
            dict of columns; a list of dicts; an iterable of RecordBatches (with `schema`).
        uri: a path or an fsspec URI, or a LanceDataset.
        mode: "create" (fails if the table exists), "append" or "overwrite" (both create it if missing).
        schema: of an iterable of batches.
        max_rows_per_file, max_bytes_per_file: a file that has reached one of these limits is closed.
        data_storage_version: "2.0", "2.1" or "2.2" ("stable"); the table's own or 2.2 by default.
        compression: "zstd" or "lz4" for small files, "none" for files that are only packed. By default pages
            are compressed where that costs readers little. A new table keeps the setting in the metadata of
            its fields. Files of 2.0 compress text only.
        enable_stable_row_ids: rows of a new table keep their `_rowid`. The default with a primary key.
        storage_options, commit_lock: as for `dataset`.
        transaction_properties: stored with the transaction.
        commit_message: why the commit is made, for readers of the history.
        auto_cleanup_options: for a new table, which then cleans up by itself: `interval` in versions, and
            `older_than_seconds` or `retain_versions` or both.
        initial_bases: more places for files of a new table.
        target_bases: places for the new files, in turns, by name or path. The table's own URI is its root,
            the default.
        target_all_bases: write to all places. True includes the table's root, as the first.
        allowed_bases, base_store_params: as for `dataset`. `initial_bases` need not be listed.

    Raises:
        TableExistsError: mode "create" and the table exists.
        SchemaError: the data does not fit the table, or Lance cannot store a type.
        OptionError: such a place does not exist, or an existing table would get new places.
        CommitError: another writer was in the way; see its subclasses.
    """
    from spark_lance.datasets.building import place_of
    from spark_lance.table.inserts.write_plan import commit_or_discard, find_latest, plan_write
    from spark_lance.table.versions.cleanup import auto_cleanup_config
    from spark_lance.table.writing.compression import compressed
    from spark_lance.table.writing.targets import choose_targets

    config = auto_cleanup_config(auto_cleanup_options)
    _check_target(uri, mode)
    place = place_of(uri, storage_options, commit_lock)
    place = place.with_bases(allowed_bases, base_store_params, initial_bases or ())
    table = TableRef(place.store, place.root)
    latest = find_latest(table)
    reader = _reader(data, schema, latest if mode == "append" else None)
    rules = {"data_storage_version": data_storage_version, "stable_row_ids": enable_stable_row_ids}
    new_bases = [base.stored() for base in initial_bases or ()]
    plan = plan_write(table, latest, reader.schema, mode, bases=new_bases, **rules)  # type: ignore[arg-type]
    bases = plan.places(table, latest)
    plan = replace(plan, schema=compressed(plan.schema, compression))
    properties = _with_message(transaction_properties or {}, commit_message)
    limits = {"max_rows_per_file": max_rows_per_file, "max_bytes_per_file": max_bytes_per_file}
    targets = choose_targets(bases, target_bases, target_all_bases)
    in_memory = isinstance(data, pa.Table | pa.RecordBatch)
    fragments = _written(reader, place, plan, targets=targets, in_memory=in_memory, **limits)
    committed = commit_or_discard(table, plan, fragments, properties, config, bases=bases)
    return LanceDataset(place.uri, table, committed)


def _reader(data: Any, schema: pa.Schema | None, table: Manifest | None) -> pa.RecordBatchReader:
    """Return the rows of data; numbers without types get those of the table's columns."""
    from spark_lance.table.writing.inputs import as_reader

    return as_reader(data, schema, None if table is None else table.schema.to_arrow())


def _with_message(properties: Mapping[str, str], message: str | None) -> Mapping[str, str]:
    return properties if message is None else {**properties, COMMIT_MESSAGE: message}


def _check_target(target: Any, mode: str) -> None:
    if mode == "append" and isinstance(target, LanceDataset) and is_detached(target.version):
        raise OptionError(
            f"version {target.version} is detached, and rows are appended to the newest version: restore it "
            "first, or commit fragments with detached=True"
        )


def _written(reader: pa.RecordBatchReader, place: Place, plan: WritePlan, **how: Any) -> list[bytes]:
    """Write rows as data files; return the messages of their fragments."""
    from spark_lance.table.commits.identity import with_identity_values
    from spark_lance.table.writing.align import Aligner
    from spark_lance.table.writing.write import write_fragments

    aligner = Aligner(reader.schema, plan.schema)
    aligned = (aligner.align(batch) for batch in reader)
    batches = with_identity_values(aligned, place.table, plan.schema)
    return write_fragments(batches, place.table, plan.schema, version=plan.version, **how)
