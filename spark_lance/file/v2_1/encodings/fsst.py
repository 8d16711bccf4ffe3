"""FSST: byte strings encoded with a symbol table in the page's description.

    Fsst { symbol_table, values: Variable }

The inner encoding returns strings of codes, one byte each. Null and empty strings have no codes.
`spark_lance.file.base.fsst` describes symbol table and codes. (Lance file format, encodings: fsst.)
"""

from __future__ import annotations

from spark_lance.errors import FormatError
from spark_lance.file.base.fsst import decode_fsst
from spark_lance.file.v2_1.base.blocks import Block, Variable
from spark_lance.file.v2_1.base.chunks import Chunks
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb


def decode_mini_block(fsst: pb.Fsst, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode all chunks of a page."""
    return _decode(fsst, resolver.mini_block(fsst.values, chunks))


def decode_zipped(fsst: pb.Fsst, values: Variable, resolver: Resolver) -> Variable:
    """Decode full-zip values."""
    return _decode(fsst, resolver.zipped_variable(fsst.values, values))


def _decode(fsst: pb.Fsst, codes: Block) -> Variable:
    if not isinstance(codes, Variable):
        raise FormatError("FSST codes must be byte strings")
    return Variable(*decode_fsst(fsst.symbol_table, codes.offsets, codes.data))
