"""Writing files and committing them in two steps, which can run on different machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from spark_lance.datasets.fragment_metadata import DataFile, FragmentMetadata, fragment_messages
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.operations import LanceOperation, Operation, Transaction
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import OptionError, OptionTypeError, SchemaError, TableNotFoundError
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.reader import open_file
from spark_lance.index.scalar.create import fill_entry
from spark_lance.io.locations import join
from spark_lance.io.manifest_store import CommitLock
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation, create_table
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE
from spark_lance.table.commits.detached import commit_detached
from spark_lance.table.commits.identity import with_identity_values
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import DATA_DIR
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.inserts.write_plan import find_latest, plan_write
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_version
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.inputs import as_reader
from spark_lance.table.writing.targets import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, choose_targets
from spark_lance.table.writing.write import write_fragments as write_files


@dataclass(frozen=True)
class TableLocation(TableRefMixin):
    """The location of a table that may not exist yet: its URI, store and root path."""

    uri: str
    table: TableRef

    def with_bases(
        self,
        allowed: Sequence[str | os.PathLike[str]] | None,
        params: Mapping[str, Mapping[str, Any]] | None,
        declared: Iterable[DatasetBasePath],
    ) -> TableLocation:
        """Return the location with access to allowed and declared base paths; see `Store.with_bases`."""
        store = self.store.with_bases(allowed, params)
        store = store.with_bases([os.fspath(base.path) for base in declared])
        return replace(self, table=TableRef(store, self.root))

    def for_operation(self, operation: Operation | Transaction) -> TableLocation:
        """Return the location with access to the base paths of an operation."""
        inner = operation.operation if isinstance(operation, Transaction) else operation
        bases = getattr(inner, "initial_bases", None) or getattr(inner, "new_bases", None) or ()
        return self.with_bases(None, None, bases)


def locate_table(
    target: Any, storage_options: Mapping[str, Any] | None = None, commit_lock: CommitLock | None = None
) -> TableLocation:
    """Return the location of a URI, a path or an open table.

    Raises:
        OptionTypeError: the target is something else.
    """
    if isinstance(target, str | os.PathLike):
        return TableLocation(os.fspath(target), TableRef(*open_store(target, storage_options, commit_lock)))
    if hasattr(target, "store") and hasattr(target, "root"):
        if storage_options is None and commit_lock is None:
            return TableLocation(target.uri, TableRef(target.store, target.root))
        store, _ = open_store(target.uri, storage_options or target.store.storage_options, commit_lock)
        return TableLocation(target.uri, TableRef(store, target.root))
    raise OptionTypeError(f"a table is given by its URI or as a LanceDataset, not as {type(target).__name__}")


def write_fragments(
    data: Any,
    dataset_uri: Any,
    schema: pa.Schema | None = None,
    *,
    mode: str = "append",
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    data_storage_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    return_transaction: bool = False,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
) -> list[FragmentMetadata] | Transaction:
    """Write data as files of a table without a commit.

    Args:
        data: data as for `write_dataset`.
        dataset_uri: a URI or a LanceDataset. The table need not exist.
        schema: schema of an iterable of batches.
        mode: "append" to append to the table's columns, "create" or "overwrite" for another schema.
        max_rows_per_file, max_bytes_per_file, data_storage_version: as for `write_dataset`.
        storage_options: options of the fsspec file system.
        return_transaction: return a Transaction for `LanceDataset.commit`.
        initial_bases, target_bases, target_all_bases: as for `write_dataset`. Also pass `initial_bases` to
            an Overwrite that creates the table.

    Returns:
        The fragments, one per file, with id 0; the commit assigns ids. The table's cleanup deletes the files
        of fragments that are not committed.

    Raises:
        SchemaError: the data has no columns, does not fit the table, or Lance cannot store a type.
    """
    place = locate_table(dataset_uri, storage_options).with_bases(None, None, initial_bases or ())
    reader = as_reader(data, schema)
    if not len(reader.schema):
        raise SchemaError("Cannot write with an empty schema.")
    latest = find_latest(place.table)
    kind = "overwrite" if mode == "create" and latest is not None else mode
    plan = plan_write(
        place.table,
        latest,
        reader.schema,
        kind,
        data_storage_version=data_storage_version,
        bases=[base.to_base_path() for base in initial_bases or ()],
    )
    bases = plan.places(place.table, latest)
    aligner = Aligner(reader.schema, plan.schema)
    fragment_messages = write_files(
        with_identity_values((aligner.align(batch) for batch in reader), place.table, plan.schema),
        place.table,
        plan.schema,
        version=plan.version,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
        targets=choose_targets(bases, target_bases, target_all_bases),
    )
    fragments = [FragmentMetadata.of(table_pb2.DataFragment.FromString(data)) for data in fragment_messages]
    if not return_transaction:
        return fragments
    if plan.operation == "append":
        return Transaction(plan.read_version, LanceOperation.Append(fragments))
    operation = LanceOperation.Overwrite(LanceSchema(plan.schema), fragments, initial_bases)
    return Transaction(plan.read_version, operation)


def commit(
    place: TableLocation,
    operation: Operation | Transaction,
    read_version: int | None = None,
    *,
    max_retries: int = 20,
    commit_message: str | None = None,
    enable_stable_row_ids: bool | None = None,
    commit_timeout: timedelta | None = None,
    detached: bool = False,
) -> Manifest:
    """Commit an operation whose files are already written, and return the new version.

    Args:
        place: location of the table.
        operation: the operation, or a transaction with its read version and properties.
        read_version: the version that the operation is based on. Required except for Overwrite and Restore.
        max_retries: how often to retry if other writers commit first. 0 commits exactly the next version or
            fails.
        commit_message: a message for the history of the table.
        enable_stable_row_ids: whether a table that the operation creates has stable row ids.
        commit_timeout: start no new attempt after this time.
        detached: create a version outside the history; see `commit_detached`.

    Raises:
        OptionError: `read_version` is missing, or set in addition to a transaction.
        TableNotFoundError: the table does not exist, and the operation cannot create it or `detached` is set.
        CommitError: the commit conflicts with other writers; see its subclasses.
    """
    properties: dict[str, str] = {}
    if isinstance(operation, Transaction):
        if read_version is not None:
            raise OptionError(
                "a transaction has its own read_version: give read_version or a transaction, not both"
            )
        properties = dict(operation.transaction_properties or {})
        read_version, operation = operation.read_version, operation.operation
    if not isinstance(operation, Operation):
        raise OptionTypeError(
            f"operation must be a LanceOperation.BaseOperation or Transaction, got {type(operation)}"
        )
    if commit_message is not None:
        properties[COMMIT_MESSAGE] = commit_message
    store, root = place.store, place.root
    table = TableRef(store, root)
    latest = find_latest(table)
    seconds = RetryPolicy().total_seconds if commit_timeout is None else commit_timeout.total_seconds()
    retry = RetryPolicy(attempts=max_retries + 1, total_seconds=seconds)
    if latest is None and detached:
        raise TableNotFoundError(f"there is no table at {place.uri}: a detached version needs one")
    if latest is None:
        return _commit_new_table(place, operation, properties, bool(enable_stable_row_ids), retry)
    replaces_all = isinstance(operation, LanceOperation.Overwrite | LanceOperation.Restore)
    if read_version is None and not replaces_all:
        raise OptionError("read_version is needed: the version that the operation was computed from")
    base = latest if read_version in (None, 0) else load_version(table, read_version or 0)
    message = operation.message(base)
    if isinstance(message, transaction_pb2.Transaction.CreateIndex):
        snapshot = Snapshot(table, base)
        for entry in message.new_indices:
            fill_entry(snapshot, entry)
    strict = max_retries == 0
    if detached:
        return commit_detached(
            table, message, read_version=base.version, properties=properties, strict=strict
        )
    return commit_operation(
        table, message, read_version=base.version, properties=properties, strict=strict, retry=retry
    )


def _commit_new_table(
    place: TableLocation,
    operation: Operation,
    properties: Mapping[str, str],
    stable_row_ids: bool,
    retry: RetryPolicy,
) -> Manifest:
    if not isinstance(operation, LanceOperation.Overwrite):
        kind = type(operation).__name__
        raise TableNotFoundError(f"there is no table at {place.uri}: {kind} needs one, Overwrite makes one")
    fragments = fragment_messages(operation.fragments)
    versions = {(f.file_major_version, f.file_minor_version) for one in fragments for f in one.files}
    version = FileVersion.from_manifest(*versions.pop()) if len(versions) == 1 else DEFAULT_VERSION
    return create_table(
        place.table,
        operation.schema(None),
        fragments,
        version=version,
        stable_row_ids=stable_row_ids,
        bases=[base.message() for base in operation.bases()],
        properties=properties,
        retry=retry,
    )


def fragment_from_file(filename: str, dataset: Any, fragment_id: int) -> FragmentMetadata:
    """Return a fragment for an existing data file in the table's folder `data`.

    Args:
        filename: name of the file in the folder `data`.
        dataset: the LanceDataset.
        fragment_id: id of the fragment.

    Raises:
        FileNotFoundError: the file does not exist.
        SchemaError: the table lacks a column of the file.
    """
    path = join(dataset.root, DATA_DIR, filename)
    reader = open_file(dataset.store, path)
    own = reader.schema
    ids: dict[int, int] = {}
    for field in own.walk():
        ids[field.id] = dataset.lance_schema.find(own.field_path(field.id))[-1].id
    columns = sorted(reader.columns.items(), key=lambda item: item[1])
    major, minor = reader.version.manifest
    file = DataFile(
        filename,
        [ids[number] for number, _ in columns],
        [place for _, place in columns],
        major,
        minor,
        dataset.store.size(path),
    )
    return FragmentMetadata(fragment_id, [file], reader.num_rows)


def merge_appends(transactions: Sequence[Transaction]) -> Transaction:
    """Combine several appends into one transaction.

    Raises:
        OptionError: there is no transaction, or one of them is not an append.
    """
    if not transactions:
        raise OptionError("there is no transaction to commit")
    fragments: list[FragmentMetadata] = []
    properties: dict[str, str] = {}
    for transaction in transactions:
        if not isinstance(transaction.operation, LanceOperation.Append):
            kind = type(transaction.operation).__name__
            raise OptionError(f"only appends can be committed together, not {kind}")
        fragments += [
            FragmentMetadata.of(message) for message in fragment_messages(transaction.operation.fragments)
        ]
        properties |= transaction.transaction_properties or {}
    first = min(transactions, key=lambda transaction: transaction.read_version)
    return replace(first, operation=LanceOperation.Append(fragments), transaction_properties=properties)
