"""New segments: their files while they are built, and the commit that makes them an index."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from spark_lance.file.base.limits import decoding
from spark_lance.index.base.entries import index_directory
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.discard import delete_on_failure
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot


@contextmanager
def new_segment(table: TableRef, number: uuid.UUID | None = None) -> Iterator[uuid.UUID]:
    """Lend the id of a new segment while its files are written; if that fails, they are deleted.

    Args:
        table: the table.
        number: its id, if that is chosen already.

    Raises:
        Exception: whatever the block raises.
    """
    segment = number or uuid.uuid4()
    directory = index_directory(table.root, segment)
    with delete_on_failure(partial(_empty, table, directory), Exception), decoding(directory):
        yield segment


def _empty(table: TableRef, directory: str) -> None:
    table.store.delete_many(
        [stored.path for stored in table.store.list_to_delete(directory, table.root)], table.root
    )


def commit_segments(
    snapshot: Snapshot,
    entries: Sequence[table_pb2.IndexMetadata],
    removed: Iterable[table_pb2.IndexMetadata],
) -> Manifest:
    """Commit new segments and return the version that has them. Their files go if the commit fails for sure.

    Args:
        snapshot: the version that the segments were built from.
        entries: of the new segments.
        removed: of the segments that they take the place of.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        CommitError: the commit failed; see its subclasses.
    """
    operation = create_index_message(entries, removed)
    with delete_on_failure(partial(delete_segments, snapshot.table, entries)):
        return commit_operation(snapshot.table, operation, read_version=snapshot.version)


def delete_segments(table: TableRef, entries: Iterable[table_pb2.IndexMetadata]) -> None:
    """Delete the files of segments that no version names."""
    paths = [
        f"{index_directory(table.root, uuid.UUID(bytes=entry.uuid.uuid))}/{file.path}"
        for entry in entries
        for file in entry.files
    ]
    table.store.delete_many(paths, table.root)
