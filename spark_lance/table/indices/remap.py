"""What a compaction needs of the index layer: that indices are written anew with other row addresses.

The table layer knows which rows went where, not what an index consists of. What knows both hands an
`IndexRemap` to the compaction. (Lance table format, rewrite: `rewritten_indices`.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Protocol

from pyroaring import BitMap

from spark_lance.io.store import Store, join
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.paths import INDICES_DIR
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["IndexRemap", "MovedGroup", "RewrittenIndex", "delete_rewritten"]

MovedGroup = table_pb2.FragmentReuseIndexDetails.Group
RewrittenIndex = transaction_pb2.Transaction.Rewrite.RewrittenIndex


class IndexRemap(Protocol):
    """Gives indices the new addresses of rows."""

    def fragments(self, snapshot: Snapshot) -> BitMap:
        """Return the ids of the fragments whose rows an index names by address that `rewrite` can write anew.

        Raises:
            FormatError: index entries are damaged.
        """

    def rewrite(self, snapshot: Snapshot, groups: Sequence[MovedGroup]) -> list[RewrittenIndex]:
        """Write the segments that cover moved rows anew; nothing is committed.

        Args:
            snapshot: the version in which the rows are still where they were.
            groups: what moved. A segment that covers a group only in part is left out.

        Returns:
            What a Rewrite says of the new segments. If this raises, their files are gone.

        Raises:
            FormatError: an index is damaged.
            OSError: the store failed.
        """


def delete_rewritten(store: Store, root: str, rewritten: Iterable[RewrittenIndex]) -> None:
    """Delete the files of segments that no version will name."""
    paths = [
        join(root, INDICES_DIR, str(uuid.UUID(bytes=new.new_id.uuid)), file.path)
        for new in rewritten
        for file in new.new_index_files
    ]
    store.delete_many(paths, root)
