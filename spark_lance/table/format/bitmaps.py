"""Roaring bitmaps in files, such as the ids of the fragments that an index entry covers.

A few bytes may be a bitmap of 2^32 numbers, or may not be a valid bitmap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2

# A limit of this reader: more offsets of one fragment need over half a gigabyte as an array. Writers put
# about a million rows into a fragment, so only a specially constructed table reaches it.
MAX_OFFSETS = 1 << 27


def parse_bitmap(data: bytes | memoryview, what: str) -> BitMap:
    """Return a 32-bit Roaring bitmap in its portable form.

    The bitmap may have any numbers: intersect it with the valid numbers before you list them.

    Args:
        data: the bytes.
        what: the name of the bitmap for the error.

    Raises:
        FormatError: the bytes are damaged.
    """
    try:
        return BitMap.deserialize(bytes(data))
    except (ValueError, IndexError) as error:
        raise FormatError(f"undecodable {what}: {error}") from error


def parse_offsets(data: bytes | memoryview, rows: int, what: str) -> npt.NDArray[np.uint32]:
    """Return the row offsets (uint32, ascending) in a bitmap of a fragment.

    Args:
        data: the bytes.
        rows: the number of rows of the fragment.
        what: the name of the bitmap for the error.

    Raises:
        FormatError: the bytes are damaged, or an offset is outside the fragment.
        UnsupportedFormatError: the bitmap has more than `MAX_OFFSETS` rows.
    """
    bitmap = parse_bitmap(data, what)
    if bitmap and bitmap.max() >= rows:
        raise FormatError(f"{what} name row {bitmap.max()} in a fragment of {rows} rows")
    if len(bitmap) > MAX_OFFSETS:
        raise UnsupportedFormatError(
            f"{what} name {len(bitmap)} rows of one fragment; a limit of this reader is {MAX_OFFSETS}: "
            "split the fragment with another reader"
        )
    return np.asarray(bitmap.to_array(), np.uint32)


# A limit of this reader: a Python set of 4 million ids takes hundreds of megabytes. So does the manifest of a
# table with as many fragments.
_MAX_IDS = 1 << 22


def covered_fragments(entry: table_pb2.IndexMetadata) -> BitMap | None:
    """Return the ids of the fragments that an index entry covers; None if it has no bitmap.

    The bitmap may have any id: intersect it with the fragments of a version before you make a set of it.

    Raises:
        FormatError: the bitmap cannot be decoded.
    """
    if not entry.fragment_bitmap:
        # pylance treats an empty bitmap field as missing.
        return None
    return parse_bitmap(entry.fragment_bitmap, f"fragment bitmap of index {entry.name!r}")


def covered_ids(entry: table_pb2.IndexMetadata) -> set[int] | None:
    """Return the ids of `covered_fragments` as a set; refuse a bitmap with too many ids.

    Raises:
        FormatError: the bitmap cannot be decoded, or has more ids than a table has fragments.
    """
    covered = covered_fragments(entry)
    if covered is not None and len(covered) > _MAX_IDS:
        raise FormatError(
            f"index {entry.name!r} covers {len(covered)} fragments; a limit of this reader is {_MAX_IDS}"
        )
    return None if covered is None else set(covered)
