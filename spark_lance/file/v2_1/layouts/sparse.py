"""Pages of version 2.3, whose description separates the nesting from the values.

    PlanarLayout { structure: dense (levels) or sparse (sets), values: chunked, zipped, constant, none }

A page with dense structure has the bytes of a 2.2 page. This module translates its description to 2.2, so
that the code for 2.2 can read it:

    chunked           mini-block page with 32 bit chunk words
    zipped            full-zip page
    constant, none    constant page without buffers

A page with sparse structure has values without levels, and their positions:

    chunked          buffers 0, 1: chunk words and chunks as in a mini-block page without levels, then the
                     dictionary if there is one; a value for every leaf slot, including nulls
    zipped           buffer 0, and for values of varying width the repetition index: as in a full-zip page
                     without levels; a value for every leaf slot that is not null
    constant, none   no buffers
    after these      one buffer for every set of positions or counts that has bytes, outermost layer first.
    For a
                     list: positions, counts, null positions

A set of positions is a block of ascending u64 slot numbers of its layer. Lists without a position have no
items. Version 2.3 is not declared stable by the format's authors: we read it but do not write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spark_lance.arrow.buffers import pack_bits, unpack_bits
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import PLANAR_LAYOUT_URL, Page
from spark_lance.file.v2_1.base.blocks import (
    AllNull,
    Block,
    FixedSizeList,
    FixedWidth,
    PackedStruct,
    Variable,
)
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks, exclusive_sum
from spark_lance.file.v2_1.base.codec import Resolver, has_buffer
from spark_lance.file.v2_1.layouts import constant, full_zip, mini_block
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.sparse import Flags, SparseLayer, SparseLevels
from spark_lance.proto import encodings21_pb2 as pb
from spark_lance.proto import encodings23_pb2 as pb23

_MAX_SCALAR = 32


def is_planar(page: Page) -> bool:
    """Return whether a page has a description of version 2.3."""
    return page.has_encoding_type(PLANAR_LAYOUT_URL)


def planar_layout(page: Page) -> pb23.PlanarLayout:
    """Return the description of a page of 2.3.

    Raises:
        UnsupportedFormatError: the page has another version.
        FormatError: the description is damaged.
    """
    return page.layout(pb23.PlanarLayout, PLANAR_LAYOUT_URL)


def sparse_layout(page: Page) -> pb23.PlanarLayout | None:
    """Return the description of a page of 2.3 with sparse structure; None for other pages."""
    if not is_planar(page):
        return None
    layout = planar_layout(page)
    return layout if layout.structure.WhichOneof("codec") == "sparse" else None


def dense_layout(planar: pb23.PlanarLayout) -> pb.PageLayout:
    """Return the 2.2 description of a page with dense structure; an empty one for a sparse page.

    Raises:
        UnsupportedFormatError: the structure or the kind of values is unknown.
        FormatError: the description is damaged.
    """
    structure = planar.structure.WhichOneof("codec")
    if structure == "sparse":
        return pb.PageLayout()
    if structure != "dense":
        raise UnsupportedFormatError("a page has a structure that this release does not know")
    layers = planar.structure.dense.layers
    values = planar.values
    name = values.WhichOneof("codec")
    if name == "chunked":
        return pb.PageLayout(mini_block_layout=_mini_block(values.chunked, layers))
    if name == "zipped":
        return pb.PageLayout(full_zip_layout=_full_zip(values.zipped, layers))
    return pb.PageLayout(constant_layout=as_constant(values, layers))


def as_constant(values: pb23.ValuePlane, layers: object) -> pb.ConstantLayout:
    """Return the description of values without buffers as a constant page.

    Raises:
        UnsupportedFormatError: the kind of values is unknown.
        FormatError: the scalar is too long.
    """
    name = values.WhichOneof("codec")
    constant = pb.ConstantLayout()
    constant.layers.extend(layers)  # type: ignore[arg-type]
    if name == "constant":
        if not 0 < len(values.constant.scalar) <= _MAX_SCALAR:
            raise FormatError(f"a constant of {len(values.constant.scalar)} bytes")
        constant.inline_value = values.constant.scalar
    elif name != "no_values":
        raise UnsupportedFormatError(f"page values {name!r} are not supported")
    return constant


def _mini_block(values: pb23.ChunkedValues, layers: object) -> pb.MiniBlockLayout:
    levels = values.levels
    return pb.MiniBlockLayout(
        rep_compression=levels.repetition if levels.HasField("repetition") else None,
        def_compression=levels.definition if levels.HasField("definition") else None,
        value_compression=values.compression if values.HasField("compression") else None,
        dictionary=values.dictionary if values.HasField("dictionary") else None,
        num_dictionary_items=values.num_dictionary_items,
        layers=layers,  # type: ignore[arg-type]
        num_buffers=values.num_buffers,
        repetition_index_depth=levels.repetition_index_depth,
        num_items=values.num_items,
        has_large_chunk=True,
    )


def _full_zip(values: pb23.ZippedValues, layers: object) -> pb.FullZipLayout:
    layout = pb.FullZipLayout(
        bits_rep=values.levels.bits_repetition,
        bits_def=values.levels.bits_definition,
        num_items=values.num_items,
        num_visible_items=values.num_visible_items,
        value_compression=values.compression if values.HasField("compression") else None,
        layers=layers,  # type: ignore[arg-type]
    )
    addressing = values.WhichOneof("addressing")
    if addressing is not None:
        setattr(layout, addressing, getattr(values, addressing))
    return layout


_MAX_SLOTS = 1 << 32


def decode(layout: pb23.PlanarLayout, page: PageBytes, resolver: Resolver) -> DecodedPage:
    """Decode a page; `page.rows` counts the outermost slots.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the page uses an unknown encoding.
    """
    sets = _Sets(layout.structure.sparse, page, resolver)
    levels = sets.levels(page.rows)
    slots = levels.visible_count(page.rows)
    if slots > _MAX_SLOTS:
        raise FormatError(f"a page of {slots} slots")
    name = layout.values.WhichOneof("codec")
    value_buffers = page.buffers[: len(page.buffers) - sets.buffers]
    if name in ("zipped", "chunked"):
        content = PageBytes(value_buffers, slots, page.arrow)
        return DecodedPage(levels, _dense_values(layout, name, content, levels, page.rows, resolver))
    uniform = as_constant(layout.values, [pb.REPDEF_ALL_VALID_ITEM])
    return DecodedPage(levels, constant.decode(uniform, PageBytes([], slots, page.arrow), resolver).values)


def _values_layout(layout: pb23.PlanarLayout) -> pb.PageLayout:
    """Return the 2.2 description of the values without their nesting, all valid."""
    plain = pb23.PlanarLayout(values=layout.values)
    plain.structure.dense.layers.append(pb.REPDEF_ALL_VALID_ITEM)
    values = getattr(plain.values, plain.values.WhichOneof("codec"))
    if values.HasField("levels") and values.levels.ListFields():
        raise FormatError("a page of sparse structure has levels")
    return dense_layout(plain)


def _dense_values(
    layout: pb23.PlanarLayout,
    name: str,
    page: PageBytes,
    levels: SparseLevels,
    rows: int,
    resolver: Resolver,
) -> Block:
    """Decode the stored values and place them in their slots."""
    dense = _values_layout(layout)
    slots = levels.visible_count(rows)
    if name == "zipped":
        item_count = dense.full_zip_layout.num_items
    else:
        # Optional: without it every slot has a value.
        item_count = dense.mini_block_layout.num_items or slots
        dense.mini_block_layout.num_items = item_count
    places = levels.stored_slots(rows, item_count)
    if item_count == 0:
        return AllNull(slots)
    content = PageBytes(page.buffers, item_count, page.arrow)
    if name == "zipped":
        values = full_zip.decode(dense.full_zip_layout, content, resolver).values
    else:
        values = mini_block.decode(dense.mini_block_layout, content, resolver).values
    return values if places is None else _expand_block(values, places)


def _expand_bits(bits: Bytes, count: int, valid: Flags) -> Bytes:
    """Return one bit per flag. The first `count` of `bits` are placed where flags are set."""
    spread = np.zeros(len(valid), dtype=np.bool_)
    spread[valid] = unpack_bits(bits, count)
    return pack_bits(spread)


def _expand_block(block: Block, valid: Flags) -> Block:
    """Return a block with one slot per flag. The block's values are placed where flags are set."""
    slots = len(valid)
    if isinstance(block, AllNull):
        return AllNull(slots)
    if isinstance(block, FixedWidth) and block.bits == 1:
        return FixedWidth(1, slots, _expand_bits(block.data, block.count, valid))
    if isinstance(block, FixedWidth) and block.bits % 8 == 0:
        size = block.bits // 8
        rows = np.zeros((slots, size), dtype=np.uint8)
        rows[valid] = block.data[: block.count * size].reshape(block.count, size)
        return FixedWidth(block.bits, slots, rows.reshape(-1))
    if isinstance(block, Variable):
        sizes = np.zeros(slots, dtype=np.int64)
        sizes[valid] = np.diff(block.offsets)
        return Variable(exclusive_sum(sizes), block.data)
    if isinstance(block, FixedSizeList):
        inside, validity = np.repeat(valid, block.dimension), block.validity
        if validity is not None:
            validity = _expand_bits(validity, block.count * block.dimension, inside)
        return FixedSizeList(block.dimension, slots, _expand_block(block.items, inside), validity)
    if isinstance(block, PackedStruct):
        return PackedStruct(slots, tuple(_expand_block(child, valid) for child in block.children))
    raise UnsupportedFormatError(f"sparse pages of {type(block).__name__} values are not supported")


class _Sets:
    """The sets of positions and counts of a page, in the order of their buffers."""

    def __init__(self, structure: pb23.SparseStructure, page: PageBytes, resolver: Resolver) -> None:
        self._structure = structure
        self._resolver = resolver
        self.buffers = sum(has_buffer(each) for each in _encodings(structure))
        first = len(page.buffers) - self.buffers
        if first < 0:
            raise FormatError(f"a sparse page of {len(page.buffers)} buffers needs {self.buffers}")
        self._next: Iterator[Bytes] = iter([page.buffer(first + at) for at in range(self.buffers)])

    def levels(self, rows: int) -> SparseLevels:
        """Resolve all layers of a page of `rows` rows."""
        layers: list[SparseLayer] = []
        slots = rows
        for layer in self._structure.layers:
            if slots > _MAX_SLOTS:
                raise FormatError(f"a page of {slots} slots")
            layers.append(self._layer(layer, slots))
            slots = layers[-1].children
        return SparseLevels(tuple(layers))

    def _layer(self, layer: pb23.SparseStructuralLayer, slots: int) -> SparseLayer:
        name = layer.WhichOneof("layer")
        if name == "validity":
            return SparseLayer(slots, self._valid(layer.validity, slots))
        if name == "fixed_size_list":
            dimension = layer.fixed_size_list.dimension
            if not 0 < dimension <= _MAX_SLOTS:
                raise FormatError(f"fixed-size lists of {dimension} items")
            return SparseLayer(slots, self._valid(layer.fixed_size_list.validity, slots), None, dimension)
        if name != "list":
            raise UnsupportedFormatError("a layer of a sparse page that this release does not know")
        lists = layer.list
        positions = self._positions(lists.non_empty_positions, lists.num_non_empty_positions, slots)
        counts = self._numbers(lists.counts, lists.num_non_empty_positions)
        total = lists.num_child_slots
        if total > _MAX_SLOTS or bool(((counts <= 0) | (counts > total)).any()) or int(counts.sum()) != total:
            raise FormatError(f"the lists of a sparse page do not have {lists.num_child_slots} items")
        return SparseLayer.list_of(slots, positions, counts, self._valid(lists.validity, slots))

    def _valid(self, validity_set: pb23.SparseValiditySet, slots: int) -> Flags | None:
        """Return which slots are valid; None means all."""
        if not validity_set.HasField("positions"):
            if validity_set.num_positions:
                raise FormatError("positions of nulls are missing")
            return None
        positions = self._positions(validity_set.positions, validity_set.num_positions, slots)
        lists_valid = validity_set.meaning == pb23.SparseValiditySet.MEANING_VALID_POSITIONS
        if not lists_valid and validity_set.meaning != pb23.SparseValiditySet.MEANING_NULL_POSITIONS:
            raise UnsupportedFormatError("positions in a sparse page with a meaning that is not known")
        if len(positions) == (slots if lists_valid else 0):
            return None
        flags: Flags = np.full(slots, not lists_valid)
        flags[positions] = lists_valid
        return flags

    def _positions(self, encoding: pb.CompressiveEncoding, count: int, slots: int) -> Ints:
        if count > slots:
            raise FormatError(f"{count} positions in {slots} slots")
        positions = self._numbers(encoding, count)
        if count and (int(positions[-1]) >= slots or bool((np.diff(positions) <= 0).any())):
            raise FormatError("positions of a sparse page do not ascend within its slots")
        if count and int(positions[0]) < 0:
            raise FormatError("positions of a sparse page do not ascend within its slots")
        return positions

    def _numbers(self, encoding: pb.CompressiveEncoding, count: int) -> Ints:
        """Decode a set of numbers. Numbers of 2**63 or more become negative."""
        if count > _MAX_SLOTS:
            raise FormatError(f"a set of {count} numbers")
        if has_buffer(encoding):
            chunks = Chunks.block(next(self._next), count)
        else:
            chunks = Chunks((), np.array([count], dtype=np.int64))
        block = self._resolver.block(encoding, chunks)
        if not isinstance(block, FixedWidth) or block.bits != 64:
            raise FormatError("positions and counts must be 64 bit values")
        numbers: Ints = block.data[: 8 * count].view("<i8")
        return numbers


def _encodings(structure: pb23.SparseStructure) -> Sequence[pb.CompressiveEncoding]:
    """Return the encodings of all sets, in the order of their buffers."""
    result: list[pb.CompressiveEncoding] = []
    for layer in structure.layers:
        name = layer.WhichOneof("layer")
        if name == "list":
            result += [layer.list.non_empty_positions, layer.list.counts]
        validity = layer.validity if name == "validity" else getattr(layer, name or "validity").validity
        if validity.HasField("positions"):
            result.append(validity.positions)
    return result
