"""Functions that open and write tables without Spark."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.lance_dataset import LanceDataset
from spark_lance.datasets.read import LanceFragment
from spark_lance.datasets.spelling import suggest_arguments
from spark_lance.errors import (
    LanceError,
    OptionError,
    RetriesExhaustedError,
)
from spark_lance.io.manifest_store import CommitLock
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import is_detached
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest, load_version, recent_version
from spark_lance.table.writing.targets import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE

if TYPE_CHECKING:
    from spark_lance.datasets.building import TableLocation
    from spark_lance.datasets.versions import DatasetBasePath
    from spark_lance.table.format.bases import Bases
    from spark_lance.table.inserts.write_plan import WritePlan
    from spark_lance.table.versions.resolve import Reference

__all__ = ["LanceDataset", "LanceFragment", "dataset", "write_dataset"]

logger = logging.getLogger(__name__)

# Rows of at most this size are sent again if the table has changed: one round trip takes about as long.
_SMALL_BYTES = 1 << 20


@suggest_arguments(tag="version='my-tag'", branch="version=('my-branch', None)", path="uri=...")
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
    """Open a table at its newest version or a given version.

    Args:
        uri: a path or an fsspec URI.
        version: a version number, a tag, or (branch, number); a number of None means the newest. Default: the
            newest version.
        storage_options: options of the fsspec file system.
        asof: open the newest version committed at or before this time. Without a time zone, UTC applies.
        commit_lock: a function from a version number to a context manager. A commit holds the lock while it
            checks that the version is free and writes it. Only for stores without atomic creation of objects.
        allowed_bases: URIs outside the table from which base paths and external blobs may be read. Locations
            in the same bucket, on the same host, or on a disk below the parent folder of the table are
            always allowed.
        base_store_params: a URI -> the storage options for it and everything below it. The table's own
            options apply only in its own bucket or on its own host.

    Returns:
        The table at that version.

    Raises:
        TableNotFoundError: the table does not exist.
        VersionNotFoundError: the version, tag or branch does not exist, or no version is as old as `asof`.
        UnsupportedFormatError: the table uses a feature that this release cannot read.
        OptionError: both `version` and `asof` are set.
    """
    from spark_lance.table.versions.resolve import version_as_of_time

    store, root = open_store(uri, storage_options, commit_lock)
    store = store.with_bases(allowed_bases, base_store_params)
    if version is not None and asof is not None:
        raise OptionError("give a version or a time, not both")
    if asof is not None:
        manifest = load_version(TableRef(store, root), version_as_of_time(TableRef(store, root), asof))
    else:
        manifest = (
            load_version(TableRef(store, root), version)
            if isinstance(version, int)
            else load_latest(TableRef(store, root))
        )
    result = LanceDataset(os.fspath(uri), TableRef(store, root), manifest)
    return result if version is None or isinstance(version, int) else result.checkout_version(version)


@suggest_arguments(branch="the branch as uri: dataset(uri, ('my-branch', None))", path="uri=...")
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
        schema: schema of an iterable of batches.
        max_rows_per_file, max_bytes_per_file: limits at which a file is closed and the next one starts.
        data_storage_version: "2.0", "2.1" or "2.2" ("stable"). Default: the table's own version, or 2.2.
        compression: "zstd" or "lz4" for small files, "none" for bit packing only. Default: compress pages if
            this costs readers little. A new table stores the setting. Files of 2.0 compress only text.
        enable_stable_row_ids: whether rows of a new table keep their `_rowid`. Default: with a primary key.
        storage_options, commit_lock, allowed_bases, base_store_params: as for `dataset`.
        transaction_properties: key-value pairs to store with the transaction.
        commit_message: a message for the history of the table.
        auto_cleanup_options: automatic cleanup of a new table: `interval` in versions, with
            `older_than_seconds` or `retain_versions` or both.
        initial_bases: additional base paths for files of a new table. They are always allowed.
        target_bases: names or paths of base paths for new files, in turns. The table's URI means its root.
        target_all_bases: write to all base paths. True includes the table's root, as the first.

    Raises:
        TableExistsError: the mode is "create", and the table exists.
        SchemaError: the data does not fit the table, or Lance cannot store a type.
        OptionError: a base path does not exist, or `initial_bases` are set for an existing table.
        CommitError: the commit conflicts with another writer; see its subclasses.
    """
    from spark_lance.io.uploads import background_uploads
    from spark_lance.table.inserts.write_plan import commit_or_discard, find_latest, plan_write
    from spark_lance.table.versions.cleanup import auto_cleanup_config
    from spark_lance.table.writing.compression import compressed

    config = auto_cleanup_config(auto_cleanup_options)
    place = _locate_target(uri, mode, storage_options, commit_lock)
    place = place.with_bases(allowed_bases, base_store_params, initial_bases or ())
    table = place.table
    properties = _with_message(transaction_properties or {}, commit_message)
    files = _FileOptions(max_rows_per_file, max_bytes_per_file, target_bases, target_all_bases)

    def write(latest: Manifest | None, recent: Manifest | None = None) -> Manifest:
        reader = _reader(data, schema, latest if mode == "append" else None)
        plan = plan_write(
            table,
            latest,
            reader.schema,
            mode,
            data_storage_version=data_storage_version,
            stable_row_ids=enable_stable_row_ids,
            bases=[base.to_base_path() for base in initial_bases or ()],
        )
        plan, bases = replace(plan, schema=compressed(plan.schema, compression)), plan.places(table, latest)
        with background_uploads(table.store):
            fragments = _write_files(reader, table, plan, bases, files, _is_in_memory(data))
            return commit_or_discard(table, plan, fragments, properties, config, bases=bases, recent=recent)

    committed = _append_to_recent(table, write) if mode == "append" and _is_small(data) else None
    return LanceDataset(place.uri, table, committed or write(find_latest(table)))


def _is_in_memory(data: Any) -> bool:
    return isinstance(data, pa.Table | pa.RecordBatch)


def _is_small(data: Any) -> bool:
    return _is_in_memory(data) and data.num_rows > 0 and bool(data.nbytes <= _SMALL_BYTES)


def _append_to_recent(table: TableRef, write: Callable[[Manifest, Manifest], Manifest]) -> Manifest | None:
    """Append to the newest version that this process has used, and return the new version.

    Rows are sent while the commit looks for newer versions. Return None if nothing was committed, because the
    version is unknown, or too old.

    Raises:
        CommitOutcomeUnknownError, RetriesExhaustedError: see `commit_operation`.
    """
    from spark_lance.table.commits.commit_rows import proves_failure

    try:
        recent = recent_version(table)
        return None if recent is None else write(recent, recent)
    except LanceError as error:
        if isinstance(error, RetriesExhaustedError) or not proves_failure(error):
            raise
        logger.debug("the append to %s starts again from the newest version: %s", table.root, error)
        return None


def _reader(data: Any, schema: pa.Schema | None, table: Manifest | None) -> pa.RecordBatchReader:
    """Return the data as a reader. Untyped Python values get the types of the table's columns."""
    from spark_lance.table.writing.inputs import as_reader

    return as_reader(data, schema, None if table is None else table.schema.to_arrow())


def _with_message(properties: Mapping[str, str], message: str | None) -> Mapping[str, str]:
    return properties if message is None else {**properties, COMMIT_MESSAGE: message}


def _locate_target(
    target: Any, mode: str, storage_options: Mapping[str, Any] | None, commit_lock: CommitLock | None
) -> TableLocation:
    from spark_lance.datasets.building import locate_table

    if mode == "append" and isinstance(target, LanceDataset) and is_detached(target.version):
        raise OptionError(
            f"version {target.version} is detached, and rows are appended to the newest version: restore it "
            "first, or commit fragments with detached=True"
        )
    return locate_table(target, storage_options, commit_lock)


@dataclass(frozen=True)
class _FileOptions:
    """The options of `write_dataset` that determine the size and the location of data files."""

    max_rows_per_file: int
    max_bytes_per_file: int
    target_bases: Sequence[str] | None
    target_all_bases: bool | None


def _write_files(
    reader: pa.RecordBatchReader,
    table: TableRef,
    plan: WritePlan,
    bases: Bases,
    options: _FileOptions,
    in_memory: bool,
) -> list[bytes]:
    """Write rows as data files and return the serialized fragments."""
    from spark_lance.table.commits.identity import with_identity_values
    from spark_lance.table.writing.align import Aligner
    from spark_lance.table.writing.targets import choose_targets
    from spark_lance.table.writing.write import write_fragments

    aligner = Aligner(reader.schema, plan.schema)
    aligned = (aligner.align(batch) for batch in reader)
    return write_fragments(
        with_identity_values(aligned, table, plan.schema),
        table,
        plan.schema,
        version=plan.version,
        max_rows_per_file=options.max_rows_per_file,
        max_bytes_per_file=options.max_bytes_per_file,
        in_memory=in_memory,
        targets=choose_targets(bases, options.target_bases, options.target_all_bases),
    )
