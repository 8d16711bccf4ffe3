"""The array kernels of format 2.1, each against a plain Python twin."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1 import ENCODINGS
from spark_lance.file.v2_1.base.blocks import (
    AllNull,
    FixedSizeList,
    FixedWidth,
    PackedStruct,
    Variable,
    to_arrow,
)
from spark_lance.file.v2_1.encodings import bitpacking, rle
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.by_hand import RESOLVER, chunks, flat, numbers, pieces, strings, variable

ORDER = (0, 4, 2, 6, 1, 5, 3, 7)


def position(bits: int, row: int, lane: int) -> int:
    """Return which of the 1024 values stands in a row of a lane."""
    return ORDER[row // 8] * 16 + row % 8 * 128 + lane


def pack(values: Sequence[int], bits: int, width: int) -> bytes:
    """Bit-pack 1024 values lane by lane, as the format describes it."""
    lanes = 1024 // bits
    words = [0] * (width * lanes)
    for lane in range(lanes):
        stream = 0
        for row in range(bits):
            stream |= values[position(bits, row, lane)] << (row * width)
        for word in range(width):
            words[word * lanes + lane] = stream >> (word * bits) & ((1 << bits) - 1)
    return b"".join(word.to_bytes(bits // 8, "little") for word in words)


@st.composite
def packed_shape(draw: st.DrawFn) -> tuple[int, int, int]:
    bits = draw(st.sampled_from([8, 16, 32, 64]))
    return bits, draw(st.integers(0, bits)), draw(st.integers(0, 2**32 - 1))


def random_values(seed: int, count: int, width: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int.from_bytes(rng.bytes(8), "little") & ((1 << width) - 1) for _ in range(count)]


@given(shape=packed_shape(), step=st.sampled_from([1, 2, 512]), few=st.sampled_from([0, 512]))
def test_unpack(shape: tuple[int, int, int], step: int, few: int) -> None:
    bits, width, seed = shape
    blocks = [random_values(seed + i, 1024, width) for i in range(3)]
    words = np.frombuffer(b"".join(pack(block, bits, width) for block in blocks), f"<u{bits // 8}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitpacking, "_STEP", step)
        patch.setattr(bitpacking, "_FEW", few)
        assert bitpacking.unpack(words.reshape(3, -1), width).tolist() == blocks


@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    widths=st.lists(st.integers(0, 64), min_size=1, max_size=5),
    counts=st.lists(st.integers(0, 1024), min_size=5, max_size=5),
    full=st.booleans(),
    gap=st.integers(0, 9),
)
def test_inline_bitpacking(bits: int, widths: list[int], counts: list[int], full: bool, gap: int) -> None:
    widths = [min(width, bits) for width in widths]
    counts = [1024 if full and i < len(widths) - 1 else counts[i] for i in range(len(widths))]
    blocks = [random_values(7 + i, 1024, width) for i, width in enumerate(widths)]
    buffers = [
        width.to_bytes(bits // 8, "little") + pack(block, bits, width)
        for width, block in zip(widths, blocks, strict=True)
    ]
    encoding = pb.CompressiveEncoding(inline_bitpacking=pb.InlineBitpacking(uncompressed_bits_per_value=bits))
    expected = [value for block, count in zip(blocks, counts, strict=True) for value in block[:count]]
    assert numbers(RESOLVER.mini_block(encoding, chunks(counts, buffers, gap=gap))) == expected
    assert numbers(RESOLVER.block(encoding, chunks(counts, buffers, gap=gap))) == expected


@given(
    width=st.integers(1, 15),
    shape=st.lists(st.tuples(st.integers(0, 2600), st.booleans()), min_size=1, max_size=4),
)
def test_out_of_line_bitpacking(width: int, shape: list[tuple[int, bool]]) -> None:
    buffers, expected = [], []
    for count, plain_tail in shape:
        values = random_values(count, count, width)
        expected += values
        full = count // 1024 * 1024
        data = b"".join(pack(values[i : i + 1024], 16, width) for i in range(0, full, 1024))
        tail = values[full:]
        # A plain tail that is as long as a packed one would be taken for it only by its size: both are legal.
        if plain_tail or 2 * len(tail) == width * 128:
            data += struct.pack(f"<{len(tail)}H", *tail)
        elif tail:
            data += pack([*tail, *[0] * (1024 - len(tail))], 16, width)
        buffers.append(data)
    encoding = pb.CompressiveEncoding(
        out_of_line_bitpacking=pb.OutOfLineBitpacking(uncompressed_bits_per_value=16, values=flat(width))
    )
    assert numbers(RESOLVER.block(encoding, chunks([c for c, _ in shape], buffers))) == expected


@given(
    bits=st.sampled_from([1, 8, 16, 24, 32, 64, 80, 128]),
    counts=st.lists(st.sampled_from([1, 2, 7, 8, 64]), min_size=1, max_size=9),
    alike=st.booleans(),
    extra=st.integers(0, 3),
    gap=st.integers(0, 9),
)
def test_flat(bits: int, counts: list[int], alike: bool, extra: int, gap: int) -> None:
    if alike:
        counts = [counts[0]] * (len(counts) - 1) + counts[-1:]
    rng = np.random.default_rng(len(counts))
    values = [[int.from_bytes(rng.bytes(16), "little") % (1 << bits) for _ in range(n)] for n in counts]
    if bits == 1:
        buffers = [sum(v << i for i, v in enumerate(part)) for part in values]
        raw = [number.to_bytes((n + 7) // 8, "little") for number, n in zip(buffers, counts, strict=True)]
    else:
        raw = [b"".join(v.to_bytes(bits // 8, "little") for v in part) for part in values]
    block = RESOLVER.mini_block(flat(bits), chunks(counts, [part + b"\xaa" * extra for part in raw], gap=gap))
    expected = [value for part in values for value in part]
    assert isinstance(block, FixedWidth)
    if bits == 1:
        assert np.unpackbits(block.data, count=block.count, bitorder="little").tolist() == expected
    else:
        size = bits // 8
        got = block.data.tobytes()
        assert [int.from_bytes(got[i : i + size], "little") for i in range(0, len(got), size)] == expected


@given(
    bits=st.sampled_from([32, 64]),
    parts=st.lists(st.lists(st.binary(max_size=9), max_size=6), min_size=1, max_size=6),
    alike=st.booleans(),
    gap=st.integers(0, 9),
)
def test_variable_chunks(bits: int, parts: list[list[bytes]], alike: bool, gap: int) -> None:
    if alike:
        parts = [[*part, *[b"xy"] * 6][:6] for part in parts[:-1]] + parts[-1:]
    width = bits // 8
    buffers = []
    for part in parts:
        ends = np.cumsum([(len(part) + 1) * width, *map(len, part)])
        data = ends.astype(f"<u{width}").tobytes() + b"".join(part)
        buffers.append(data + b"\xfe" * (-len(data) % width))
    block = RESOLVER.mini_block(variable(bits), chunks([len(part) for part in parts], buffers, gap=gap))
    assert strings(block) == [value for part in parts for value in part]


@given(bits=st.sampled_from([32, 64]), values=st.lists(st.binary(max_size=9), max_size=9))
def test_variable_block(bits: int, values: list[bytes]) -> None:
    width = bits // 8
    head = [bits, (len(values) + 3) * width, *np.cumsum([0, *map(len, values)]).tolist()]
    data = np.array(head, dtype=f"<u{width}").tobytes() + b"".join(values)
    assert strings(RESOLVER.block(variable(bits), chunks([len(values)], [data]))) == values


@pytest.mark.parametrize(
    "offsets", [[12, 11, 13], [12, 14, 99], [4, 12, 13], [2**31, 12, 13], [12, 2**32 - 1, 13]]
)
def test_bad_offsets(offsets: list[int]) -> None:
    data = struct.pack("<3I", *offsets) + b"abcd"
    with pytest.raises(FormatError):
        RESOLVER.mini_block(variable(32), chunks([2], [data]))


RUNS = st.lists(st.tuples(st.integers(0, 255), st.integers(1, 255)), max_size=5)


@given(bits=st.sampled_from([8, 16, 32, 64]), parts=st.lists(RUNS, min_size=1, max_size=4))
def test_rle(bits: int, parts: list[list[tuple[int, int]]]) -> None:
    values = [b"".join(v.to_bytes(bits // 8, "little") for v, _ in runs) for runs in parts]
    lengths = [bytes(n for _, n in runs) for runs in parts]
    counts = [sum(n for _, n in runs) for runs in parts]
    expected = [v for runs in parts for v, n in runs for _ in range(n)]
    encoding = pb.CompressiveEncoding(rle=pb.Rle(values=flat(bits), run_lengths=flat(8)))
    assert numbers(RESOLVER.mini_block(encoding, chunks(counts, values, lengths))) == expected
    whole = [struct.pack("<Q", len(v)) + v + n for v, n in zip(values, lengths, strict=True)]
    assert numbers(RESOLVER.block(encoding, chunks(counts, whole))) == expected
    counts[0] += 1
    with pytest.raises(FormatError):
        RESOLVER.mini_block(encoding, chunks(counts, values, lengths))


@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    parts=st.lists(
        st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_values_picked_from_runs(bits: int, parts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    parts = [[(1, 1), *runs] for runs in parts]
    values = [b"".join(v.to_bytes(bits // 8, "little") for v, _ in runs) for runs in parts]
    lengths = [bytes(n for _, n in runs) for runs in parts]
    whole = [struct.pack("<Q", len(v)) + v + n for v, n in zip(values, lengths, strict=True)]
    expanded = [[v for v, n in runs for _ in range(n)] for runs in parts]
    everything = [(chunk, place) for chunk, each in enumerate(expanded) for place in range(len(each))]
    expected_rows = sorted(data.draw(st.sets(st.sampled_from(everything), min_size=1)))
    homes = np.array([chunk for chunk, _ in expected_rows])
    places = np.array([place for _, place in expected_rows])
    counts = np.array([len(each) for each in expanded])[homes]
    expected = [expanded[chunk][place] for chunk, place in expected_rows]
    message = pb.Rle(values=flat(bits), run_lengths=flat(8))
    two = [pieces(part).select(homes) for part in (values, lengths)]
    assert numbers(rle.pick_mini_block(message, two[0], two[1], counts, places)) == expected
    assert numbers(rle.pick_block(message, pieces(whole, gap=3).select(homes), counts, places)) == expected
    with pytest.raises(FormatError):
        rle.pick_mini_block(message, two[0], two[1], counts + 1, places)


@given(
    bits=st.sampled_from([32, 64]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    alike=st.booleans(),
)
def test_byte_stream_split(bits: int, counts: list[int], alike: bool) -> None:
    if alike:
        counts = [counts[0]] * (len(counts) - 1) + counts[-1:]
    parts = [random_values(i, count, bits) for i, count in enumerate(counts)]
    buffers = []
    for part in parts:
        raw = [value.to_bytes(bits // 8, "little") for value in part]
        buffers.append(bytes(value[k] for k in range(bits // 8) for value in raw))
    encoding = pb.CompressiveEncoding(byte_stream_split=pb.ByteStreamSplit(values=flat(bits)))
    assert numbers(RESOLVER.mini_block(encoding, chunks(counts, buffers))) == [
        v for part in parts for v in part
    ]


def compressed(scheme: Any, data: bytes) -> bytes:
    zstd = scheme == pb.COMPRESSION_ZSTD
    packed: bytes = pa.Codec("zstd" if zstd else "lz4_raw").compress(data, asbytes=True)
    return struct.pack("<Q" if zstd else "<I", len(data)) + packed


SCHEMES = st.sampled_from([pb.COMPRESSION_ZSTD, pb.COMPRESSION_LZ4])


@given(scheme=SCHEMES, parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_general(scheme: Any, parts: list[bytes]) -> None:
    stored = [compressed(scheme, part) if part else b"" for part in parts]
    plain = decompress(pb.BufferCompression(scheme=scheme), pieces(stored, gap=1))
    ends = (plain.starts + plain.sizes).tolist()
    got = [plain.data[a:b].tobytes() for a, b in zip(plain.starts.tolist(), ends, strict=True)]
    assert got == parts
    inner = pb.CompressiveEncoding(
        general=pb.General(compression=pb.BufferCompression(scheme=scheme), values=variable(32))
    )
    data = b"".join(stored)
    bounds = np.cumsum([0, *map(len, stored)])
    zipped = RESOLVER.zipped_variable(inner, Variable(bounds, np.frombuffer(data, np.uint8)))
    assert strings(zipped) == parts


def test_zstd_frames_without_length() -> None:
    stored = [pa.Codec("zstd").compress(part, asbytes=True) for part in (b"abc" * 50, b"x")]
    plain = decompress(pb.BufferCompression(scheme=pb.COMPRESSION_ZSTD), pieces(stored))
    assert plain.sizes.tolist() == [150, 1]
    assert plain.concat().tobytes() == b"abc" * 50 + b"x"


@pytest.mark.parametrize("scheme", [pb.COMPRESSION_ZSTD, pb.COMPRESSION_LZ4])
@pytest.mark.parametrize("claim", [-1, 1, 7, 1 << 20, (1 << 31) - 1])
def test_wrong_sizes_of_compressed_data(scheme: Any, claim: int) -> None:
    data = bytes(range(100)) * 3
    stored = compressed(scheme, data)
    width = 8 if scheme == pb.COMPRESSION_ZSTD else 4
    damaged = (len(data) + claim if abs(claim) < 100 else claim).to_bytes(width, "little") + stored[width:]
    with pytest.raises(FormatError):
        decompress(pb.BufferCompression(scheme=scheme), pieces([damaged]))


LZ4 = pb.BufferCompression(scheme=pb.COMPRESSION_LZ4)


@pytest.mark.parametrize("size", [10, 1 << 16, (1 << 16) + 1, 1 << 22, (1 << 22) + 1])
@pytest.mark.parametrize("noise", [False, True])
def test_many_blocks_of_lz4(size: int, noise: bool) -> None:
    rng = np.random.default_rng(size)
    parts = [rng.bytes(size) if noise else b"%d and " % k * (size // 6) for k in range(4)]
    parts = [part[:size] for part in parts] + [b"", b"x"]
    plain = decompress(LZ4, pieces([compressed(LZ4.scheme, part) if part else b"" for part in parts], gap=1))
    assert plain.sizes.tolist() == [len(part) for part in parts]
    assert plain.concat().tobytes() == b"".join(parts)


@pytest.mark.parametrize("which", [0, 3, 6])
@pytest.mark.parametrize("claim", [-1, 1, 7, 3000])
def test_wrong_sizes_among_many_blocks_of_lz4(which: int, claim: int) -> None:
    stored = [compressed(LZ4.scheme, bytes(range(k, 100 + k)) * 3) for k in range(7)]
    stored[which] = struct.pack("<I", 300 + claim) + stored[which][4:]
    with pytest.raises(FormatError):
        decompress(LZ4, pieces(stored))
    stored[which] = stored[which][:4]
    with pytest.raises(FormatError):
        decompress(LZ4, pieces(stored))
    stored[which] = b"\xff" * 40
    with pytest.raises(FormatError):
        decompress(LZ4, pieces(stored))


def test_highly_compressible_data_is_not_taken_for_damage() -> None:
    data = b"\0" * (100 << 20)
    stored = compressed(pb.COMPRESSION_ZSTD, data)
    plain = decompress(pb.BufferCompression(scheme=pb.COMPRESSION_ZSTD), pieces([stored]))
    assert plain.sizes.tolist() == [len(data)]
    assert not plain.data.any()


def bits_of(flags: Sequence[bool] | npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(np.array(flags, dtype=np.bool_), bitorder="little").tobytes()


def fixed_size_list(dimensions: Sequence[tuple[int, bool]], bits: int) -> pb.CompressiveEncoding:
    encoding = flat(bits)
    for dimension, has_validity in reversed(dimensions):
        encoding = pb.CompressiveEncoding(
            fixed_size_list=pb.FixedSizeList(
                items_per_value=dimension, values=encoding, has_validity=has_validity
            )
        )
    return encoding


@given(
    dimensions=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=3),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    of_bools=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_fixed_size_list(
    dimensions: list[tuple[int, bool]], counts: list[int], of_bools: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = sum(counts)
    sizes = np.cumprod([d for d, _ in dimensions]).tolist()
    valid = [
        rng.random((rows, size)) < 0.7 if v else None for size, (_, v) in zip(sizes, dimensions, strict=True)
    ]
    items = rng.integers(0, 2 if of_bools else 1 << 16, (rows, sizes[-1]))

    def raw_items(part: npt.NDArray[Any]) -> bytes:
        return bits_of(part.reshape(-1) > 0) if of_bools else part.astype("<u2").tobytes()

    def expected(row: int, depth: int, at: int) -> Any:
        if depth == len(dimensions):
            return bool(items[row, at]) if of_bools else int(items[row, at])
        dimension = dimensions[depth][0]
        flags = valid[depth]
        inner = range(at * dimension, (at + 1) * dimension)
        return [expected(row, depth + 1, i) if flags is None or flags[row, i] else None for i in inner]

    arrow: pa.DataType = pa.bool_() if of_bools else pa.uint16()
    for dimension, _ in reversed(dimensions):
        arrow = pa.list_(arrow, dimension)
    encoding = fixed_size_list(dimensions, 1 if of_bools else 16)
    want = [expected(row, 0, 0) for row in range(rows)]

    bounds = np.cumsum([0, *counts]).tolist()
    spans = [slice(a, b) for a, b in pairwise(bounds)]
    buffers = [[bits_of(flags[span].reshape(-1)) for span in spans] for flags in valid if flags is not None]
    buffers.append([raw_items(items[span]) for span in spans])
    block = RESOLVER.mini_block(encoding, chunks(counts, *buffers))
    assert isinstance(block, FixedSizeList)
    array = to_arrow(block, arrow)
    array.validate(full=True)
    assert array.to_pylist() == want

    zipped = b"".join(
        b"".join(bits_of(flags[row]) for flags in valid if flags is not None) + raw_items(items[row])
        for row in range(rows)
    )
    table = np.frombuffer(zipped, np.uint8).reshape(rows, -1)
    assert to_arrow(RESOLVER.zipped(encoding, table), arrow).to_pylist() == want


def test_packed_struct() -> None:
    rows = [(1, 2, b"abc"), (250, 65000, b"xyz"), (3, 4, b"123")]
    data = [b"".join(struct.pack("<BH3s", *row) for row in rows[:2]), struct.pack("<BH3s", *rows[2])]
    encoding = pb.CompressiveEncoding(
        packed_struct=pb.PackedStruct(bits_per_value=[8, 16, 24], values=flat(48))
    )
    block = RESOLVER.mini_block(encoding, chunks([2, 1], data))
    assert isinstance(block, PackedStruct)
    arrow = pa.struct([("a", pa.uint8()), ("b", pa.uint16()), ("c", pa.binary(3))])
    assert to_arrow(block, arrow).to_pylist() == [dict(zip("abc", row, strict=True)) for row in rows]


PACKED_ROWS: list[Any] = [
    (1, b"ab", b"xyz", b""),
    None,
    (200, b"", b"123", b"long" * 80),
    (0, b"q", b"---", b"\xff"),
]


def variable_packed_struct() -> pb.CompressiveEncoding:
    fields = [
        pb.VariablePackedStruct.FieldEncoding(value=flat(8), bits_per_value=8),
        pb.VariablePackedStruct.FieldEncoding(value=variable(32), bits_per_length=32),
        pb.VariablePackedStruct.FieldEncoding(value=flat(24), bits_per_value=24),
        pb.VariablePackedStruct.FieldEncoding(value=variable(64), bits_per_length=64),
    ]
    return pb.CompressiveEncoding(variable_packed_struct=pb.VariablePackedStruct(fields=fields))


def packed_row(row: tuple[int, bytes, bytes, bytes] | None) -> bytes:
    if row is None:
        return b""
    a, b, c, d = row
    return struct.pack("<BI", a, len(b)) + b + c + struct.pack("<Q", len(d)) + d


def test_variable_packed_struct() -> None:
    stored = [packed_row(row) for row in PACKED_ROWS]
    values = Variable(np.cumsum([0, *map(len, stored)]), np.frombuffer(b"".join(stored), np.uint8))
    block = RESOLVER.zipped_variable(variable_packed_struct(), values)
    arrow = pa.struct([("a", pa.uint8()), ("b", pa.binary()), ("c", pa.binary(3)), ("d", pa.large_binary())])
    array = to_arrow(block, arrow, np.array([0b1101], np.uint8))
    array.validate(full=True)
    assert array.to_pylist() == [row and dict(zip("abcd", row, strict=True)) for row in PACKED_ROWS]


@pytest.mark.parametrize(
    "row",
    [
        packed_row(PACKED_ROWS[0])[:-1],
        packed_row(PACKED_ROWS[0]) + b"x",
        b"\1\2",
        b"\1\xff\xff\xff\xff" + bytes(20),
        b"\1\1\0\0\0a---" + b"\xff" * 8,
    ],
)
def test_damaged_variable_packed_struct(row: bytes) -> None:
    values = Variable(np.array([0, len(row)]), np.frombuffer(row, np.uint8))
    with pytest.raises(FormatError):
        RESOLVER.zipped_variable(variable_packed_struct(), values)


@given(parts=st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=5))
def test_concat_bits(parts: list[list[bool]]) -> None:
    counts = np.array([len(part) for part in parts], dtype=np.int64)
    joined = pieces([bits_of(part) for part in parts]).concat_bits(counts, "bits")
    flags = [flag for part in parts for flag in part]
    assert np.unpackbits(joined, count=len(flags), bitorder="little").astype(bool).tolist() == flags


def test_widths_are_not_believed_without_a_row() -> None:
    field = pb.VariablePackedStruct.FieldEncoding(value=flat(8), bits_per_value=2**40)
    packed = pb.CompressiveEncoding(variable_packed_struct=pb.VariablePackedStruct(fields=[field]))
    nothing = Variable(np.zeros(4, np.int64), np.zeros(0, np.uint8))
    assert RESOLVER.zipped_variable(packed, nothing) == AllNull(3)
    with pytest.raises(FormatError, match="cut short"):
        RESOLVER.zipped_variable(packed, Variable(np.array([0, 1, 1]), np.zeros(1, np.uint8)))


@pytest.mark.parametrize("name", [name for name, codec in ENCODINGS.items() if codec.mini_block is None])
def test_roles_that_are_refused(name: str) -> None:
    encoding = pb.CompressiveEncoding()
    getattr(encoding, name).SetInParent()
    with pytest.raises(UnsupportedFormatError, match=name):
        RESOLVER.mini_block(encoding, chunks([1], [b"x"]))


def test_every_encoding_of_the_protocol_is_listed() -> None:
    assert set(ENCODINGS) == {field.name for field in pb.CompressiveEncoding.DESCRIPTOR.fields}


def test_text_must_be_utf8() -> None:
    def text(*values: bytes) -> Variable:
        data = np.frombuffer(b"".join(values), np.uint8)
        return Variable(np.cumsum([0, *map(len, values)]), data)

    good = ["ab", "", "ä", "€", "\N{GRINNING FACE}"]
    array = to_arrow(text(*(value.encode() for value in good)), pa.string())
    assert array.to_pylist() == good
    for bad in ((b"\xff",), (b"a\xc3", b"\xa4"), (b"\xe2\x82", b"\xac", b"")):
        with pytest.raises(ValueError, match=r"UTF.?8"):
            to_arrow(text(*bad), pa.large_string())
    # What lies under a null does not matter.
    assert to_arrow(text(b"a", b"\xff"), pa.string(), np.array([1], np.uint8)).to_pylist() == ["a", None]
