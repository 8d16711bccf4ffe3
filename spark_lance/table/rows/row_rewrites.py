"""Replace rows: write changed copies to new fragments, and mark the old rows as deleted.

One Update transaction contains both changes, so readers see them atomically. Rows keep their stable ids: the
new fragments store the ids of the changed rows, which precede the inserted rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import Message

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.proto import index_pb2, table_pb2, transaction_pb2
from spark_lance.table.commits.commit_rows import commit_row_changes, delete_on_failure
from spark_lance.table.commits.identity import with_identity_values
from spark_lance.table.commits.proposal import CommitEnv
from spark_lance.table.commits.row_changes import Outcome, RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.rowids import pack_row_ids, pack_row_versions
from spark_lance.table.operations.update import update_message
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, LineageReader
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.writing.targets import FileTarget
from spark_lance.table.writing.write import delete_fragment_files, write_fragments

UInt64Array = npt.NDArray[np.uint64]
KeyFilter = transaction_pb2.Transaction.KeyExistenceFilter


def check_movable(manifest: Manifest) -> None:
    """Check that a version has no blobs inside other columns, because such rows cannot be copied.

    Raises:
        UnsupportedFormatError: a column contains blobs.
    """
    for top in manifest.schema.fields:
        if not top.is_blob and any(node.is_blob for node in top.walk()):
            raise UnsupportedFormatError(f"changing rows of a table with blobs inside column {top.name!r}")


@dataclass
class CarriedRowIds:
    """Collects the stable row ids of changed rows, in the order in which the rows are written.

    Attributes:
        snapshot: the version of the old rows. Without stable row ids, nothing is collected.
    """

    snapshot: Snapshot
    _ids: list[UInt64Array] = field(default_factory=list)
    _created: list[UInt64Array] = field(default_factory=list)
    _readers: tuple[int, LineageReader, LineageReader] | None = None
    _spilled: bool = False

    def add_rows(self, fragment_id: int, offsets: npt.NDArray[np.uint32]) -> None:
        """Add the rows at ascending physical offsets of a fragment."""
        if not self.snapshot.manifest.uses_stable_row_ids:
            return
        if self._readers is None or self._readers[0] != fragment_id:
            self._readers = fragment_id, *self._open(fragment_id)
        rows = offsets.astype(np.int64)
        self._ids.append(self._readers[1].take(rows))
        self._created.append(self._readers[2].take(rows))

    def _open(self, fragment_id: int) -> tuple[LineageReader, LineageReader]:
        at = self.snapshot
        fragment = next(f for f in at.fragments if f.id == fragment_id)
        self._spilled |= fragment.HasField("column_row_ids") or fragment.HasField(
            "column_created_at_versions"
        )
        rows = fragment.physical_rows
        ids, created = (
            LineageReader(at.table, fragment, name, rows, at.bases) for name in (ROW_ID, CREATED_AT)
        )
        return ids, created

    def store_in(self, fragments: Sequence[table_pb2.DataFragment]) -> None:
        """Store the ids in the new fragments, and the creation versions if the old ones are in data files."""
        ids = np.concatenate([np.empty(0, np.uint64), *self._ids])
        created = np.concatenate([np.empty(0, np.uint64), *self._created])
        start = 0
        for fragment in fragments:
            stop = min(start + fragment.physical_rows, len(ids))
            if start < stop:
                fragment.inline_row_ids = pack_row_ids(ids[start:stop])
                if self._spilled:
                    fragment.inline_created_at_versions = pack_row_versions(created[start:stop])
            start = stop


def whole_rows(fields: Sequence[Field], new: pa.Table, old: pa.Table | Mapping[str, pa.Array]) -> pa.Table:
    """Return rows with all columns of a table: columns of `new`, and other columns from `old`.

    Args:
        fields: the top-level fields of the table.
        new: the new values; blobs can be references.
        old: the old values, with at least the columns that `new` lacks.
    """
    names = new.schema.names
    columns = [new[f.name] if f.name in names else old[f.name] for f in fields]
    kinds = [f.arrow_field().with_type(column.type) for f, column in zip(fields, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


def write_moved(
    snapshot: Snapshot,
    tables: Iterable[pa.Table],
    ids: CarriedRowIds,
    operation: str = "",
    targets: Sequence[FileTarget] = (),
) -> list[table_pb2.DataFragment]:
    """Write rows to new fragments of the version's schema and return their messages, with id 0.

    Args:
        snapshot: the version that is changed.
        tables: the changed rows, then the inserted rows, with all columns.
        ids: the ids of the changed rows; complete when `tables` is exhausted.
        operation: the common part of the names of all files of the operation, see `new_data_file_name`.
        targets: the folders among which files are distributed in turns; the table's own folder by default.

    Raises:
        SchemaError: a NOT NULL column has a null.
        OSError: the store failed. Files written before an error are deleted.
    """
    batches = (batch for table in tables for batch in table.to_batches())
    data_fragments = write_fragments(
        with_identity_values(batches, snapshot.table, snapshot.schema, new=False),
        snapshot.table,
        snapshot.schema,
        version=snapshot.manifest.file_version,
        operation=operation,
        targets=targets,
        partitions=PartitionSpec.of_config(snapshot.manifest.config).present(snapshot.schema),
    )
    fragments = [table_pb2.DataFragment.FromString(data) for data in data_fragments]
    ids.store_in(fragments)
    return fragments


def commit_moves(
    changes: RowChanges,
    added: Sequence[table_pb2.DataFragment],
    field_ids: Iterable[int],
    env: CommitEnv,
    inserted_rows: KeyFilter | None = None,
    properties: Mapping[str, str] | None = None,
    compacted: Sequence[index_pb2.CompactedSsTable] = (),
) -> Manifest:
    """Delete the old rows and add the new fragments in one version.

    Args:
        changes: the old rows, and the version in which they were found.
        added: the result of `write_moved`.
        field_ids: the fields whose values changed.
        env: clock, sleep and random numbers.
        inserted_rows: the filter of the keys of inserted rows.
        properties: key-value pairs to store with the transaction.
        compacted: the SSTables of a MemWAL from which the rows come: shard and highest generation.

    Raises:
        CommitError: the commit conflicted; see its subclasses. All files written for the operation are
            deleted, unless the outcome is unknown.
    """

    def message(outcome: Outcome) -> Message:
        return update_message(outcome.updated, outcome.removed, added, field_ids, inserted_rows, compacted)

    with _delete_added_on_failure(changes, added):
        return commit_row_changes(changes, message, properties=properties, env=env)


def prepare_moves(
    changes: RowChanges,
    added: Sequence[table_pb2.DataFragment],
    field_ids: Iterable[int],
    inserted_rows: KeyFilter | None = None,
) -> transaction_pb2.Transaction.Update:
    """Return the operation that `commit_moves` would commit with the same arguments.

    Raises:
        FormatError: an existing deletion file is damaged. All files written for the operation are deleted.
    """
    with _delete_added_on_failure(changes, added), delete_on_failure(changes.discard):
        outcome = changes.apply()
        return update_message(outcome.updated, outcome.removed, added, field_ids, inserted_rows)


@contextmanager
def _delete_added_on_failure(changes: RowChanges, added: Sequence[table_pb2.DataFragment]) -> Iterator[None]:
    source = changes.source

    def discard() -> None:
        fragment_messages = [fragment.SerializeToString() for fragment in added]
        delete_fragment_files(source.table, fragment_messages, source.bases)

    with delete_on_failure(discard):
        yield
