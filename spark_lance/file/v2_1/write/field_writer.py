"""Encodes one top-level field into pages of Lance 2.1 and 2.2."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.metadata import EncodedPage
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.layouts.blob import blob_page
from spark_lance.file.v2_1.layouts.constant import null_page, scalar_page
from spark_lance.file.v2_1.layouts.full_zip import full_zip_page
from spark_lance.file.v2_1.layouts.mini_block import PageParts, mini_block_page
from spark_lance.file.v2_1.levels.ravel import Leaf, ravel
from spark_lance.file.v2_1.write.choose import BlobPage, FullZip, NullPage, ScalarPage, choose, full_zip
from spark_lance.file.v2_1.write.storable import check_storable

__all__ = ["FieldWriter"]


class FieldWriter:
    """Writes the columns of one top-level field; they are numbered from `column_base` on, depth first.

    For blobs it gets and writes the descriptors (`Field.described`).

    Raises:
        SchemaError: a type that this version, or Lance as a whole, cannot store in this place; field metadata
            for the writer that has no meaning.
    """

    def __init__(self, field: Field, column_base: int, version: FileVersion) -> None:
        check_storable(field, version)
        self._field = field
        self._column_base = column_base
        self._version = version

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        """Return the pages of a run of rows that starts at row `row_start` of the file.

        `array` is of type `field.arrow_type()`, up to the names of list items. Memory: a small multiple of
        the array.

        Raises:
            SchemaError: a null where the schema allows none.
        """
        if len(array) == 0:
            return []
        pages = []
        for i, leaf in enumerate(ravel(self._field, array)):
            row = row_start
            for part, (layout, buffers) in _encode_leaf(leaf, self._version):
                pages.append(EncodedPage(self._column_base + i, list(buffers), layout, part.length, row))
                row += part.rows
        return pages


def _encode_leaf(leaf: Leaf, version: FileVersion) -> Iterator[tuple[Leaf, PageParts]]:
    """Yield one page, or more where the format cannot hold the rows in one."""
    choice = choose(leaf, version)
    if isinstance(choice, NullPage):
        yield leaf, null_page(leaf)
        return
    if isinstance(choice, BlobPage):
        yield leaf, blob_page(leaf, choice.policy)
        return
    if isinstance(choice, ScalarPage):
        yield leaf, scalar_page(leaf, choice.value)
        return
    if isinstance(choice, FullZip):
        yield leaf, full_zip_page(leaf, choice.values)
        return
    parts = mini_block_page(leaf, choice.values, choice.dictionary, choice.policy, version)
    if parts is not None:
        yield leaf, parts
    elif leaf.rows > 1:
        for half in leaf.halves():
            yield from _encode_leaf(half, version)
    else:
        wide = full_zip(leaf)
        if wide is None:
            raise UnsupportedFormatError(
                f"column {leaf.field.name!r}: a row has too many empty lists in a run, or too wide a value, "
                f"for the type {leaf.values.type}"
            )
        yield leaf, full_zip_page(leaf, wide.values)
