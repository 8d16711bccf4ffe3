"""Roaring bitmaps in files, such as the ids of the fragments that an index entry covers.

A few bytes can hold 2^32 numbers, or no bitmap at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2

# A limit of this reader: as numbers, more offsets of one fragment take over half a gigabyte. Writers put
# about a million rows into a fragment, so a legal table has to be made on purpose to meet it.
MAX_OFFSETS = 1 << 27


def parse_bitmap(data: bytes | memoryview, what: str) -> BitMap:
    """Return a 32-bit Roaring bitmap in its portable form.

    The bitmap may hold any numbers: intersect it with the possible ones before you list them.

    Args:
        data: the bytes.
        what: the bitmap, for the message.

    Raises:
        FormatError: the bytes are damaged.
    """
    try:
        return BitMap.deserialize(bytes(data))
    except (ValueError, IndexError) as error:
        raise FormatError(f"undecodable {what}: {error}") from error


def parse_offsets(data: bytes | memoryview, rows: int, what: str) -> npt.NDArray[np.uint32]:
    """Return the offsets of rows in a fragment that a bitmap holds, ascending.

    Args:
        data: the bytes.
        rows: how many the fragment has.
        what: the bitmap, for the message.

    Raises:
        FormatError: the bytes are damaged, or the fragment is too small for an offset.
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
