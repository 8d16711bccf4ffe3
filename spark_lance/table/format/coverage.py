"""The fragments that an index entry covers: a Roaring bitmap. A few bytes of it can hold 2^32 ids."""

from __future__ import annotations

from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.table.format.bitmaps import parse_bitmap

# A limit of this reader: as a set of Python, 4 million ids take some hundred megabytes. So does the manifest
# of a table with as many fragments.
_MAX_IDS = 1 << 22


def covered_fragments(entry: table_pb2.IndexMetadata) -> BitMap | None:
    """Return the ids of the fragments that an entry covers, None if it does not say.

    The bitmap may hold any id: intersect it with those of a version before you make a set of it.

    Raises:
        FormatError: the bitmap cannot be decoded.
    """
    if not entry.fragment_bitmap:
        # Present but without a byte is not a bitmap: pylance takes it for absent.
        return None
    return parse_bitmap(entry.fragment_bitmap, f"fragment bitmap of index {entry.name!r}")


def covered_ids(entry: table_pb2.IndexMetadata) -> set[int] | None:
    """Return the ids as a set of Python; as `covered_fragments`, but for a bitmap of too many ids.

    Raises:
        FormatError: the bitmap cannot be decoded, or has more ids than a table has fragments.
    """
    covered = covered_fragments(entry)
    if covered is not None and len(covered) > _MAX_IDS:
        raise FormatError(
            f"index {entry.name!r} covers {len(covered)} fragments; a limit of this reader is {_MAX_IDS}"
        )
    return None if covered is None else set(covered)
