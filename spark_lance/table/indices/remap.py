"""The interface between a compaction and the index layer: rewrite indexes with new row addresses.

The table layer knows how rows moved, but cannot read indexes. A caller that can read them passes an
`IndexRemap` to the compaction. (Lance table format, rewrite: `rewritten_indices`.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Protocol

from pyroaring import BitMap

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.paths import INDICES_DIR
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.snapshot import Snapshot

MovedGroup = table_pb2.FragmentReuseIndexDetails.Group
RewrittenIndex = transaction_pb2.Transaction.Rewrite.RewrittenIndex


class IndexRemap(Protocol):
    """Rewrites indexes with new row addresses."""

    def fragments(self, snapshot: Snapshot) -> BitMap:
        """Return the ids of fragments whose row addresses are in an index that `rewrite` supports.

        Raises:
            FormatError: index entries are damaged.
        """

    def rewrite(self, snapshot: Snapshot, groups: Sequence[MovedGroup]) -> list[RewrittenIndex]:
        """Rewrite the segments that cover moved rows, without a commit.

        Args:
            snapshot: the version before the rows moved.
            groups: the moved rows. A segment that covers a group only partly is skipped.

        Returns:
            The entries of the new segments for a Rewrite. If this raises, their files are deleted.

        Raises:
            FormatError: an index is damaged.
            OSError: the store failed.
        """


def delete_rewritten(table: TableRef, rewritten: Iterable[RewrittenIndex]) -> None:
    """Delete the files of segments that no version will name."""
    paths = [
        table.path(INDICES_DIR, str(uuid.UUID(bytes=new.new_id.uuid)), file.path)
        for new in rewritten
        for file in new.new_index_files
    ]
    table.store.delete_many(paths, table.root)
