"""Replacing rows: changed copies go to new fragments, the old rows are deleted where they are.

One Update transaction holds both, so readers see all of it or nothing. Rows keep their stable ids: the new
fragments name the ids of the changed rows, which come before the inserted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import UnsupportedFormatError
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.bases import Bases
from spark_lance.table.commits.commit import Surroundings, commit_operation
from spark_lance.table.commits.discard import discarding
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.manifest import Manifest
from spark_lance.table.operations.update import update_message
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, LineageReader
from spark_lance.table.rowids import pack_row_ids, pack_row_versions
from spark_lance.table.writing.write import delete_fragment_files, write_fragments

__all__ = ["MovedIds", "check_movable", "commit_moves", "write_moved"]

UInt64Array = npt.NDArray[np.uint64]
KeyFilter = transaction_pb2.Transaction.KeyExistenceFilter


def check_movable(manifest: Manifest) -> None:
    """Refuse to copy rows of a version with blobs inside other columns.

    Raises:
        UnsupportedFormatError: there is such a column.
    """
    for top in manifest.schema.fields:
        if not top.is_blob and any(node.is_blob for node in top.walk()):
            raise UnsupportedFormatError(f"changing rows of a table with blobs inside column {top.name!r}")


@dataclass
class MovedIds:
    """The stable row ids of changed rows in the order in which the rows are written.

    Attributes:
        store, root: the table.
        manifest: the version that the rows come from; without stable row ids nothing is noted.
    """

    store: Store
    root: str
    manifest: Manifest
    _ids: list[UInt64Array] = field(default_factory=list)
    _created: list[UInt64Array] = field(default_factory=list)
    _readers: tuple[int, LineageReader, LineageReader] | None = None
    _spilled: bool = False

    def note(self, fragment_id: int, offsets: npt.NDArray[np.uint32]) -> None:
        """Note the rows at physical offsets, ascending, of a fragment."""
        if not self.manifest.uses_stable_row_ids:
            return
        if self._readers is None or self._readers[0] != fragment_id:
            self._readers = fragment_id, *self._open(fragment_id)
        rows = offsets.astype(np.int64)
        self._ids.append(self._readers[1].take(rows))
        self._created.append(self._readers[2].take(rows))

    def _open(self, fragment_id: int) -> tuple[LineageReader, LineageReader]:
        fragment = next(f for f in self.manifest.fragments if f.id == fragment_id)
        self._spilled |= fragment.HasField("column_row_ids") or fragment.HasField(
            "column_created_at_versions"
        )
        bases = Bases.of(self.store, self.root, self.manifest.message)
        rows = fragment.physical_rows
        ids, created = (
            LineageReader(self.store, self.root, fragment, name, rows, bases) for name in (ROW_ID, CREATED_AT)
        )
        return ids, created

    def give(self, fragments: Sequence[table_pb2.DataFragment]) -> None:
        """Put the ids into the new fragments; with them, if the manifest does not tell, the rows' ages."""
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


def write_moved(
    store: Store,
    root: str,
    manifest: Manifest,
    tables: Iterable[pa.Table],
    ids: MovedIds,
    operation: str = "",
) -> list[table_pb2.DataFragment]:
    """Write rows to new fragments of the version's schema and return their messages, of id 0.

    Args:
        store: where the table is.
        root: the table's root path.
        manifest: the version that is changed.
        tables: the changed rows and then the inserted ones, with all columns.
        ids: filled while the tables are drawn; gives the ids of the first rows.
        operation: what the names of all files of the operation have in common, see `new_data_file_name`.

    Raises:
        SchemaError: a null where the schema allows none.
        OSError: the store failed. Files written before an error are deleted.
    """
    written = write_fragments(
        _batches(tables), store, root, manifest.schema, version=manifest.file_version, operation=operation
    )
    fragments = [table_pb2.DataFragment.FromString(data) for data in written]
    ids.give(fragments)
    return fragments


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()


def commit_moves(
    store: Store,
    root: str,
    changes: RowChanges,
    added: Sequence[table_pb2.DataFragment],
    field_ids: Iterable[int],
    surroundings: Surroundings,
    inserted_rows: KeyFilter | None = None,
    properties: Mapping[str, str] | None = None,
) -> Manifest:
    """Delete the old rows and add the new fragments in one version.

    Args:
        store: where the table is.
        root: the table's root path.
        changes: the old rows, and the version in which they were found.
        added: what `write_moved` gave.
        field_ids: the fields whose values changed.
        surroundings: clock, sleep and random numbers.
        inserted_rows: the keys of inserted rows.
        properties: key-value pairs kept with the transaction.

    Raises:
        CommitError: other writers were in the way; see its subclasses. All files written for the operation
            are deleted, unless the outcome is not known.
    """

    def discard() -> None:
        changes.discard(store, root)
        delete_fragment_files(store, root, [fragment.SerializeToString() for fragment in added])

    with discarding(discard):
        outcome = changes.apply(store, root, changes.source)
        operation = update_message(outcome.updated, outcome.removed, added, field_ids, inserted_rows)
        committed = commit_operation(
            store,
            root,
            operation,
            read_version=changes.source.version,
            properties=properties,
            rows=changes,
            surroundings=surroundings,
        )
    changes.discard(store, root, committed)
    return committed
