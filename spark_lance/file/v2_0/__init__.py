"""Lance file format 2.0: every field owns a column, and pages are plain Arrow-like buffers."""

from __future__ import annotations

from spark_lance.file.v2_0.decoder import Open
from spark_lance.file.v2_0.flat import (
    open_bitpacked,
    open_bitpacked_for_non_neg,
    open_fixed_size_list,
    open_flat,
    open_nullable,
)
from spark_lance.file.v2_0.structs import open_packed_struct, open_struct
from spark_lance.file.v2_0.variable import (
    open_binary,
    open_dictionary,
    open_fixed_size_binary,
    open_fsst,
    open_list,
)

ARRAY_ENCODINGS: dict[str, Open | None] = {
    "flat": open_flat,
    "nullable": open_nullable,
    "fixed_size_list": open_fixed_size_list,
    "list": open_list,
    "struct": open_struct,
    "binary": open_binary,
    "dictionary": open_dictionary,
    "fsst": open_fsst,
    "packed_struct": open_packed_struct,
    "bitpacked": open_bitpacked,
    "fixed_size_binary": open_fixed_size_binary,
    "bitpacked_for_non_neg": open_bitpacked_for_non_neg,
    # None raises an error: these were experiments before version 2.1 was stable and are in no 2.0 file.
    "constant": None,
    "inline_bitpacking": None,
    "out_of_line_bitpacking": None,
    "variable": None,
    "packed_struct_fixed_width_mini_block": None,
    "block": None,
    "rle": None,
    "general_mini_block": None,
    "byte_stream_split": None,
}
"""How to open each arm of `ArrayEncoding`; None for those that are refused."""
