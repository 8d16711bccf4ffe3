"""Files with pages made by hand, of kinds that pylance reads (or should read) but does not write.

Each is a whole file inside a table, and both implementations read it equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.file.base.metadata import BytesLike, EncodedPage
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_0.flat import encode_flat, encode_nullable
from spark_lance.file.v2_1.levels.ravel import Leaf, ravel
from spark_lance.file.writer import FileWriter, WrittenFile
from spark_lance.io.store import open_store
from spark_lance.proto import encodings20_pb2 as old
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.pylance_table import open_in_pylance
from tests.strategies import canonical


@dataclass(frozen=True)
class Hand:
    """One page: what it holds, and how."""

    version: str
    values: pa.Array
    layout: Any
    buffers: Sequence[BytesLike]


class Fixed:
    """A field writer that has one page, whatever the rows."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        return [EncodedPage(0, list(self._hand.buffers), self._hand.layout, len(array), row_start)]


def write(root: Path, hand: Hand) -> tuple[WrittenFile, pa.Schema]:
    table = pa.table({"a": hand.values})
    store, path = open_store(str(root / "data" / "by-hand.lance"))
    writer = FileWriter(store, path, Schema.from_arrow(table.schema), FileVersion.parse(hand.version))
    writer._columns[0].writer = Fixed(hand)
    writer.write(table)
    return writer.finish(), table.schema


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def leaf_of(values: pa.Array) -> Leaf:
    (leaf,) = ravel(Schema.from_arrow(pa.schema([pa.field("a", values.type)])).fields[0], values)
    return leaf


def shorts(levels: Any) -> bytes:
    return b"" if levels is None else np.asarray(levels, np.uint16).tobytes()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


NUMBERS = pa.array([3, None, 5, 3, None, 7] * 30, pa.int32())
PLAIN = pa.array(range(2000), pa.int64())
TEXTS = pa.array(["same", None, "same"] * 5)
SAME_LISTS = pa.array([[7, 7], None, [], [7], [None, 7]] * 4, pa.list_(pa.int32()))
VECTORS = pa.array(
    [[[1.0, 2.0]], [], None, [[3.0, 4.0], [5.0, 6.0]]] * 3, pa.list_(pa.list_(pa.float32(), 2))
)


def mini_block(
    version: str,
    leaf: Leaf,
    description: pb.CompressiveEncoding,
    values: list[bytes],
    rle_levels: bool = False,
) -> tuple[pb.PageLayout, list[bytes]]:
    """Return a mini-block page of one chunk, without lists."""
    head = [leaf.num_levels if leaf.definition is not None else 0]
    parts = []
    layout = pb.MiniBlockLayout(
        value_compression=description,
        layers=leaf.layers,
        num_buffers=len(values),
        num_items=len(leaf.values),
        has_large_chunk=version == "2.2",
    )
    if leaf.definition is not None:
        levels = shorts(leaf.definition)
        layout.def_compression.CopyFrom(flat(16))
        if rle_levels:
            runs = pb.CompressiveEncoding(rle=pb.Rle(values=flat(16), run_lengths=flat(8)))
            layout.def_compression.CopyFrom(runs)
            levels = struct.pack("<Q", len(levels)) + levels + b"\1" * (len(levels) // 2)
        head.append(len(levels))
        parts.append(padded(levels))
    header = struct.pack(f"<{len(head)}H", *head)
    for value in values:
        header += struct.pack("<H" if version == "2.1" else "<I", len(value))
        parts.append(padded(value))
    chunk = padded(header) + b"".join(parts)
    word = struct.pack("<H" if version == "2.1" else "<I", (len(chunk) // 8 - 1) << 4)
    return pb.PageLayout(mini_block_layout=layout), [word, chunk]


def words(values: pa.Array, dtype: str) -> bytes:
    data: bytes = values.fill_null(0).to_numpy().astype(dtype).tobytes()
    return data


def zstd_frame(data: bytes) -> bytes:
    frame: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return frame


def general(scheme: Any, inner: pb.CompressiveEncoding) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(
        general=pb.General(compression=pb.BufferCompression(scheme=scheme), values=inner)
    )


def scalar_page(values: pa.Array, scalar: bytes | None, inline: bytes | None) -> Hand:
    """A constant page of 2.2 with levels."""
    leaf = leaf_of(values)
    layout = pb.ConstantLayout(layers=leaf.layers)
    if inline is not None:
        layout.inline_value = inline
    buffers = [] if scalar is None else [scalar]
    buffers += [shorts(leaf.rep), shorts(leaf.definition)]
    return Hand("2.2", values, pb.PageLayout(constant_layout=layout), buffers)


def full_zip_lists(version: str) -> Hand:
    """Full-zip with repetition, though the values are narrow."""
    leaf = leaf_of(VECTORS)
    bits_def = leaf.max_definition.bit_length()
    assert leaf.rep is not None
    assert leaf.definition is not None
    data = np.asarray(leaf.values.flatten(), np.float32).tobytes()
    zipped, starts, at = b"", [], 0
    for i, (rep, definition) in enumerate(zip(leaf.rep.tolist(), leaf.definition.tolist(), strict=True)):
        if rep == leaf.lists:
            starts.append(len(zipped))
        zipped += bytes([rep << bits_def | definition])
        if i not in leaf.valueless:
            zipped += data[at : at + 8]
            at += 8
    layout = pb.FullZipLayout(
        bits_rep=1, bits_def=bits_def, bits_per_value=64, num_items=leaf.num_levels,
        num_visible_items=len(leaf.values), layers=leaf.layers,
        value_compression=pb.CompressiveEncoding(
            fixed_size_list=pb.FixedSizeList(items_per_value=2, values=flat(32))
        ),
    )  # fmt: skip
    index = np.array([*starts, len(zipped)], np.uint64).tobytes()
    return Hand(version, VECTORS, pb.PageLayout(full_zip_layout=layout), [zipped, index])


def one_chunk(version: str, values: pa.Array, description: Any, data: list[bytes], **options: Any) -> Hand:
    layout, buffers = mini_block(version, leaf_of(values), description, data, **options)
    return Hand(version, values, layout, buffers)


def cases() -> dict[str, Hand]:
    out: dict[str, Hand] = {}
    four = pa.array([10, 20, 30, 40])
    raw = words(four, "<i8")
    out["2.0 bare flat"] = Hand("2.0", four, encode_flat(64, 0), [raw])
    for scheme in ("zstd", "lz4"):
        compressed = (
            struct.pack("<Q", len(raw)) + zstd_frame(raw)
            if scheme == "zstd"
            else struct.pack("<I", len(raw)) + pa.Codec("lz4_raw").compress(raw, asbytes=True)
        )
        message = old.Flat(bits_per_value=64, buffer=old.Buffer(), compression=old.Compression(scheme=scheme))
        encoding = encode_nullable(old.ArrayEncoding(flat=message), None)
        out[f"2.0 {scheme} numbers"] = Hand("2.0", four, encoding, [compressed])
    bitpacked = old.Bitpacked(
        compressed_bits_per_value=3, uncompressed_bits_per_value=32, buffer=old.Buffer(), signed=False
    )
    small = pa.array([1, 2, 3, 4], pa.int32())
    encoding = encode_nullable(old.ArrayEncoding(bitpacked=bitpacked), None)
    out["2.0 bit-packed"] = Hand("2.0", small, encoding, [b"\xd1\x08"])
    blocks = old.BitpackedForNonNeg(
        compressed_bits_per_value=8, uncompressed_bits_per_value=32, buffer=old.Buffer()
    )
    fixed = old.FixedSizeBinary(bytes=encode_flat(8, 0), byte_width=2)
    encoding = encode_nullable(old.ArrayEncoding(fixed_size_binary=fixed), None)
    out["2.0 strings of one length"] = Hand("2.0", pa.array(["aa", "bb", "cc"]), encoding, [b"aabbcc"])
    encoding = encode_nullable(old.ArrayEncoding(bitpacked_for_non_neg=blocks), None)
    # Whatever the order of the values in a block, all of them are 5.
    out["2.0 blocks"] = Hand("2.0", pa.array([5] * 9, pa.uint32()), encoding, [b"\5" * 1024])
    for version in ("2.1", "2.2"):
        out[f"{version} full-zip with repetition"] = full_zip_lists(version)
        out[f"{version} one plain chunk"] = one_chunk(version, NUMBERS, flat(32), [words(NUMBERS, "<i4")])
        data = words(PLAIN, "<i8")
        zstd = general(pb.COMPRESSION_ZSTD, flat(64))
        out[f"{version} zstd"] = one_chunk(
            version, PLAIN, zstd, [struct.pack("<Q", len(data)) + zstd_frame(data)]
        )
        out[f"{version} bare zstd frame"] = one_chunk(version, PLAIN, zstd, [zstd_frame(data)])
    out["2.2 levels in runs"] = one_chunk("2.2", NUMBERS, flat(32), [words(NUMBERS, "<i4")], rle_levels=True)
    out["2.2 one number and nulls"] = scalar_page(
        pa.array([7, None, 7] * 5, pa.int32()), None, struct.pack("<i", 7)
    )
    text = struct.pack("<3I2i", 2, 8, 4, 0, 4) + b"same"
    out["2.2 one text and nulls"] = scalar_page(TEXTS, text, None)
    out["2.2 one number in lists"] = scalar_page(SAME_LISTS, None, struct.pack("<i", 7))
    number = struct.pack("<2I", 1, 4) + struct.pack("<i", 7)
    out["2.2 one number as a buffer"] = scalar_page(SAME_LISTS, number, None)
    return out


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_pages_made_by_hand(name: str, tmp_path: Path) -> None:
    hand = CASES[name]
    written, schema = write(tmp_path, hand)
    theirs = open_in_pylance(tmp_path, schema, [written])
    ours = spark_lance.dataset(str(tmp_path))
    two = canonical([hand.values[1].as_py(), hand.values[0].as_py()])
    assert canonical(theirs.to_table().column("a")) == canonical(hand.values)
    assert canonical(ours.to_table().column("a")) == canonical(hand.values)
    assert canonical(theirs.take([1, 0]).column("a")) == two
    assert canonical(ours.take([1, 0]).column("a")) == two
    valid = len(hand.values) - hand.values.null_count
    assert theirs.to_table(filter="a is not null").num_rows == valid
