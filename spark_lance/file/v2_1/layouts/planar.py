"""Pages of file version 2.3, whose description keeps the nesting and the values apart.

    PlanarLayout { structure: dense (levels) or sparse (sets), values: chunked, zipped, constant, none }

A page with dense structure has the bytes of a page of 2.2 and is described like one here, so that everything
that knows 2.2 reads it:

    chunked           mini-block page with 32 bit chunk words
    zipped            full-zip page
    constant, none    constant page without buffers

A page with sparse structure is decoded by `layouts/sparse.py`.
The grammar of 2.3 is not declared stable by its makers: it is read, and never written.
"""

from __future__ import annotations

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import PLANAR_LAYOUT_URL, Page
from spark_lance.proto import encodings21_pb2 as pb
from spark_lance.proto import encodings23_pb2 as pb23

_MAX_SCALAR = 32


def is_planar(page: Page) -> bool:
    """Tell whether a page is described in the way of 2.3."""
    return page.says(PLANAR_LAYOUT_URL)


def planar_layout(page: Page) -> pb23.PlanarLayout:
    """Return the description of a page of 2.3.

    Raises:
        UnsupportedFormatError: the page is of another version.
        FormatError: it is damaged.
    """
    return page.layout(pb23.PlanarLayout, PLANAR_LAYOUT_URL)


def sparse_layout(page: Page) -> pb23.PlanarLayout | None:
    """Return the description of a page of 2.3 whose structure is sparse; None for all other pages."""
    if not is_planar(page):
        return None
    layout = planar_layout(page)
    return layout if layout.structure.WhichOneof("codec") == "sparse" else None


def dense_layout(planar: pb23.PlanarLayout) -> pb.PageLayout:
    """Describe a page of dense structure as 2.2 would; an empty description for a sparse one.

    Raises:
        UnsupportedFormatError: a structure or values that are not known.
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
    """Describe values that need no buffers as a constant page.

    Raises:
        UnsupportedFormatError: the values are of a kind that is not known.
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
