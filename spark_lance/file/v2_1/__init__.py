"""Lance data file format 2.1 to 2.3: each page belongs to one leaf column; levels encode the nesting.

`LAYOUTS` and `ENCODINGS` list the supported decoders by the names that page descriptions use. Anything else
raises `UnsupportedFormatError`. A new encoding needs one module in `encodings` and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark_lance.file.v2_1.base.codec import Codec, Resolver
from spark_lance.file.v2_1.encodings import (
    bitpacking,
    byte_stream_split,
    few_values,
    fixed_size_list,
    flat,
    fsst,
    general,
    packed_struct,
    rle,
    sequences,
    variable,
)
from spark_lance.file.v2_1.layouts import blob, constant, full_zip, mini_block
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes

LAYOUTS: Mapping[str, Callable[[Any, PageBytes, Resolver], DecodedPage] | None] = {
    "mini_block_layout": mini_block.decode,
    "constant_layout": constant.decode,
    "full_zip_layout": full_zip.decode,
    "blob_layout": blob.decode,
    "sparse_layout": None,
}

# One row per name in the protobuf oneof, one keyword per role. A missing role raises an error.
ENCODINGS: Mapping[str, Codec] = {
    "flat": Codec(mini_block=flat.decode, block=flat.decode, zipped=flat.decode_zipped),
    "variable": Codec(
        mini_block=variable.decode_mini_block,
        block=variable.decode_block,
        zipped_variable=variable.decode_zipped,
    ),
    "constant": Codec(block=few_values.decode_constant),
    "out_of_line_bitpacking": Codec(block=bitpacking.decode_out_of_line),
    "inline_bitpacking": Codec(mini_block=bitpacking.decode_inline, block=bitpacking.decode_inline),
    "fsst": Codec(mini_block=fsst.decode_mini_block, zipped_variable=fsst.decode_zipped),
    "dictionary": Codec(block=few_values.decode_dictionary),
    "rle": Codec(mini_block=rle.decode_mini_block, block=rle.decode_block),
    "byte_stream_split": Codec(mini_block=byte_stream_split.decode_mini_block),
    "general": Codec(
        mini_block=general.decode_mini_block,
        block=general.decode_block,
        zipped_variable=general.decode_zipped,
    ),
    "fixed_size_list": Codec(
        mini_block=fixed_size_list.decode_mini_block,
        block=fixed_size_list.decode_block,
        zipped=fixed_size_list.decode_zipped,
    ),
    "packed_struct": Codec(
        mini_block=packed_struct.decode_mini_block, zipped=packed_struct.decode_zipped_rows
    ),
    "variable_packed_struct": Codec(zipped_variable=packed_struct.decode_zipped),
    "range": Codec(block=sequences.decode_range),
    "delta": Codec(block=sequences.decode_delta),
}
