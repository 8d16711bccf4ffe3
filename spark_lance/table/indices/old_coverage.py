"""The fragments that segments of old writers cover, computed from the rows in the segments.

If an old writer's entries are unreliable (see `old_writers`), the next writer corrects them, as in other
engines: a segment covers the fragments that its rows belong to. The rows are in one column of one file:

    auxiliary.idx       _rowid     of vector indices
    page_data.lance     ids        of B-trees

Other kinds stay as they are. So do all entries if row ids are not addresses, or if the table has a
fragment-reuse entry. Then nothing is built on the version.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError
from spark_lance.file.opening import open_file
from spark_lance.file.reader import read_field
from spark_lance.io.store import Store, join
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.old_writers import doubtful_indices
from spark_lance.table.indices.fragment_reuse import find_reuse_entry
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["with_sound_coverage"]

_ROWS = (("auxiliary.idx", "_rowid"), ("page_data.lance", "ids"))
_RUN = 1 << 22


def with_sound_coverage(snapshot: Snapshot) -> tuple[Manifest, frozenset[bytes]]:
    """Return the version with the coverage of old segments put right, and the uuids of these.

    Raises:
        FormatError: a file of an index is damaged.
        UnsupportedFormatError: one is of a version that is not read here.
    """
    manifest = snapshot.manifest
    doubtful = set(doubtful_indices(manifest))
    if not doubtful or manifest.uses_stable_row_ids or find_reuse_entry(manifest) is not None:
        return manifest, frozenset()
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    repaired = set()
    for entry in section.indices:
        if entry.uuid.uuid in doubtful:
            covered = _fragments_of(*snapshot.bases.index_dir(entry))
            if covered is not None:
                entry.fragment_bitmap = covered.serialize()
                repaired.add(entry.uuid.uuid)
    return replace(manifest, index_section=section.SerializeToString()), frozenset(repaired)


def _fragments_of(store: Store, directory: str) -> BitMap | None:
    """Return the fragments of the rows of an index; None if this module cannot read them."""
    names = set(store.list(directory))
    for name, column in _ROWS:
        if name in names:
            return _fragments_in(store, join(directory, name), column)
    return None


def _fragments_in(store: Store, path: str, column: str) -> BitMap:
    file = open_file(store, path)
    fields = [field for field in file.schema.fields if field.name == column]
    if len(fields) != 1:
        raise FormatError(f"a file of an index without the column {column}", path)
    reader = file.open_field(fields[0])
    fragment_ids = BitMap()
    for start in range(0, file.num_rows, _RUN):
        rows = one_array(read_field(reader, fields[0], path, start, min(start + _RUN, file.num_rows)))
        fragment_ids |= BitMap(np.unique(rows.to_numpy() >> np.uint64(32)).astype(np.uint32))
    return fragment_ids
