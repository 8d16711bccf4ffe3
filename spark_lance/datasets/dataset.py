"""The table without Spark, with the names that users of pylance know; searching included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from spark_lance.datasets.columns import ColumnsMixin
from spark_lance.datasets.config import ConfigMixin
from spark_lance.datasets.index import IndexMixin
from spark_lance.datasets.read import LanceFragment
from spark_lance.datasets.rows import RowsMixin
from spark_lance.datasets.versions import VersionsMixin
from spark_lance.errors import OptionError
from spark_lance.io.manifest_store import CommitLock
from spark_lance.io.store import open_store
from spark_lance.table.inserts.write_plan import commit_or_discard, find_latest, plan_write
from spark_lance.table.versions.auto_cleanup import auto_cleanup_config
from spark_lance.table.versions.resolve import Reference, version_at
from spark_lance.table.versions.versions import load_latest, load_version
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.compression import compressed
from spark_lance.table.writing.inputs import as_reader
from spark_lance.table.writing.write import (
    MAX_BYTES_PER_FILE,
    MAX_ROWS_PER_FILE,
    write_fragments,
)

__all__ = ["LanceDataset", "LanceFragment", "dataset", "write_dataset"]


def dataset(
    uri: str | os.PathLike[str],
    version: Reference | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    asof: datetime | str | None = None,
    commit_lock: CommitLock | None = None,
) -> LanceDataset:
    """Open a table at its latest or a given version.

    Args:
        uri: a path or an fsspec URI.
        version: a version number, a tag, or (branch, number or None for the newest); the latest by default.
        storage_options: options of the fsspec file system.
        asof: the latest version committed at or before this time; without a zone it is in UTC.
        commit_lock: called with a version, returns a context manager; a commit looks whether the version is
            free and writes it while it holds that. Only for stores that cannot create objects atomically.

    Raises:
        TableNotFoundError: there is no table.
        VersionNotFoundError: it has no such version, tag or branch, or none so old.
        UnsupportedFormatError: it uses a feature that this release does not read.
    """
    store, root = open_store(uri, storage_options, commit_lock)
    if version is not None and asof is not None:
        raise OptionError("give a version or a time, not both")
    if asof is not None:
        manifest = load_version(store, root, version_at(store, root, asof))
    else:
        manifest = (
            load_version(store, root, version) if isinstance(version, int) else load_latest(store, root)
        )
    found = LanceDataset(os.fspath(uri), store, root, manifest)
    return found if version is None or isinstance(version, int) else found.checkout_version(version)


@dataclass(frozen=True)
class LanceDataset(IndexMixin, RowsMixin, ColumnsMixin, VersionsMixin, ConfigMixin):
    """One version of a table. Made by `dataset` and `write_dataset`."""


def write_dataset(
    data: Any,
    uri: str | os.PathLike[str],
    mode: str = "create",
    *,
    schema: pa.Schema | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    data_storage_version: str | None = None,
    compression: str | None = None,
    enable_stable_row_ids: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    commit_lock: CommitLock | None = None,
    auto_cleanup_options: Mapping[str, int] | None = None,
) -> LanceDataset:
    """Write a table and return its new version.

    Args:
        data: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas DataFrame, or an iterable
            of RecordBatches (which needs `schema`).
        uri: a path or an fsspec URI.
        mode: "create" (fails if the table exists), "append" or "overwrite" (both create it if missing).
        schema: of an iterable of batches.
        max_rows_per_file: rows after which a new file is begun.
        max_bytes_per_file: bytes after which a new file is begun.
        data_storage_version: "2.0", "2.1" or "2.2"; the table's own or 2.2 by default.
        compression: "zstd" or "lz4" for small files, "none" for files that are only packed; by default pages
            are compressed where that costs readers little. A new table keeps it for later writes, in the
            metadata of its fields; files of 2.0 compress text alone.
        enable_stable_row_ids: for a new table: rows keep their `_rowid` when they move.
        storage_options: options of the fsspec file system.
        transaction_properties: kept with the transaction.
        commit_lock: as for `dataset`.
        auto_cleanup_options: for a new table, which then cleans up by itself: `interval` in versions, and
            `older_than_seconds` or `retain_versions` or both.

    Raises:
        TableExistsError: mode "create" and the table exists.
        SchemaError: the data does not fit the table, or Lance cannot store a type.
        CommitError: another writer was in the way; see its subclasses.
    """
    config = auto_cleanup_config(auto_cleanup_options)
    reader = as_reader(data, schema)
    store, root = open_store(uri, storage_options, commit_lock)
    plan = plan_write(
        store,
        root,
        find_latest(store, root),
        reader.schema,
        mode,
        data_storage_version=data_storage_version,
        stable_row_ids=enable_stable_row_ids,
    )
    plan = replace(plan, schema=compressed(plan.schema, compression))
    aligner = Aligner(reader.schema, plan.schema)
    fragments = write_fragments(
        (aligner.align(batch) for batch in reader),
        store,
        root,
        plan.schema,
        version=plan.version,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
    )
    version = commit_or_discard(store, root, plan, fragments, transaction_properties, config)
    return LanceDataset(os.fspath(uri), store, root, load_version(store, root, version))
