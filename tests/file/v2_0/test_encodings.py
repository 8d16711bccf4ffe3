"""Single 2.0 encodings on hand-made pages: the rare ones that no pylance writes by default, and damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance import write_dataset
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, ColumnMetadata, Page
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.v2_0 import ARRAY_ENCODINGS
from spark_lance.file.v2_0.field_reader import FieldReader
from spark_lance.file.v2_0.flat import ALL_NULLS, encode_flat, encode_nullable
from spark_lance.io.store import open_store
from spark_lance.proto import encodings20_pb2 as pb

FOUR = np.array([10, 20, 30, 40], np.int64).tobytes()


def page_reader(
    kind: pa.DataType, encoding: pb.ArrayEncoding, buffers: Sequence[bytes], length: int
) -> FieldReader:
    """Return a reader of a column with one page."""
    store, path = open_store("memory://encodings/page")
    data = b"".join(buffers)
    store.put(path, data)
    ends = np.cumsum([0, *map(len, buffers)]).tolist()
    places = tuple((start, len(buffer)) for start, buffer in zip(ends, buffers, strict=False))
    page = Page(places, length, 0, encoding.SerializeToString(), ARRAY_ENCODING_URL)
    field = Schema.from_arrow(pa.schema([pa.field("a", kind)])).fields[0]
    column = ColumnMetadata(0, (page,))
    return FieldReader(field, {field.id: column}, PageSource(store, path, len(data)), FileVersion.V2_0)


def read(
    kind: pa.DataType, encoding: pb.ArrayEncoding, buffers: Sequence[bytes], length: int
) -> list[object]:
    """Read a page as a whole, check that all of its ranges agree with that, and return the values."""
    reader = page_reader(kind, encoding, buffers, length)
    array = reader.read(0, length)
    array.validate(full=True)
    values: list[object] = array.to_pylist()
    for start in range(min(length, 20)):
        assert reader.read(start, min(start + 3, length)).to_pylist() == values[start : start + 3]
    return values


def u64(*values: int) -> bytes:
    return np.array(values, np.uint64).tobytes()


def binary(adjustment: int, first_buffer: int = 0) -> pb.ArrayEncoding:
    indices, data = encode_flat(64, first_buffer), encode_flat(8, first_buffer + 1)
    return pb.ArrayEncoding(binary=pb.Binary(indices=indices, bytes=data, null_adjustment=adjustment))


def test_all_names_are_decoded_or_refused() -> None:
    assert set(ARRAY_ENCODINGS) == {field.name for field in pb.ArrayEncoding.DESCRIPTOR.fields}
    for name, opener in ARRAY_ENCODINGS.items():
        if opener is None:
            encoding = pb.ArrayEncoding()
            getattr(encoding, name).SetInParent()
            with pytest.raises(UnsupportedFormatError, match=name):
                page_reader(pa.int64(), encoding, [], 1).read(0, 1)


def test_an_encoding_that_says_nothing() -> None:
    with pytest.raises(FormatError, match="has no type"):
        page_reader(pa.int64(), pb.ArrayEncoding(), [], 1).read(0, 1)


def test_bare_flat() -> None:
    assert read(pa.int64(), encode_flat(64, 0), [FOUR], 4) == [10, 20, 30, 40]
    assert read(pa.bool_(), encode_flat(1, 0), [b"\x0d"], 4) == [True, False, True, True]


@pytest.mark.parametrize("scheme", ["zstd", "zstd without length", "lz4", "none"])
def test_compressed_flat(scheme: str) -> None:
    encoding = encode_flat(64, 0)
    encoding.flat.compression.scheme = scheme.split(" ")[0]
    zstd, lz4 = pa.Codec("zstd").compress(FOUR), pa.Codec("lz4_raw").compress(FOUR)
    data = {
        "zstd": struct.pack("<Q", len(FOUR)) + zstd.to_pybytes(),
        "zstd without length": zstd.to_pybytes(),
        "lz4": struct.pack("<I", len(FOUR)) + lz4.to_pybytes(),
        "none": FOUR,
    }[scheme]
    assert read(pa.int64(), encoding, [data], 4) == [10, 20, 30, 40]


def test_values_that_are_not_aligned_in_the_file() -> None:
    got = read(pa.int64(), encode_nullable(encode_flat(64, 1), encode_flat(1, 0)), [b"\x0d", FOUR], 4)
    assert got == [10, None, 30, 40]


@pytest.mark.parametrize(
    ("packed", "signed", "expected"),
    [(b"\xd1\x08", False, [1, 2, 3, 4]), (b"\xd1\x08", True, [1, 2, 3, -4])],
)
def test_bitpacked(packed: bytes, signed: bool, expected: list[int]) -> None:
    message = pb.Bitpacked(
        compressed_bits_per_value=3, uncompressed_bits_per_value=32, buffer=pb.Buffer(), signed=signed
    )
    assert read(pa.int32(), pb.ArrayEncoding(bitpacked=message), [packed], 4) == expected


@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    width=st.integers(0, 64),
    values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
)
def test_bitpacked_for_non_neg(bits: int, width: int, values: list[int]) -> None:
    width = min(width, bits)
    values = [value % 2**width for value in values]
    lanes = 1024 // bits
    streams = [0] * lanes
    for number, value in enumerate(values):
        for group, place in enumerate([0, 4, 2, 6, 1, 5, 3, 7][: bits // 8]):
            lane = number % 128 - place * 16
            if 0 <= lane < lanes:
                streams[lane] |= value << (group * 8 + number // 128) * width
    words = [stream >> (word * bits) & (2**bits - 1) for word in range(width) for stream in streams]
    packed = b"".join(word.to_bytes(bits // 8, "little") for word in words)
    message = pb.BitpackedForNonNeg(
        compressed_bits_per_value=width, uncompressed_bits_per_value=bits, buffer=pb.Buffer()
    )
    kind = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[bits]
    encoding = pb.ArrayEncoding(bitpacked_for_non_neg=message)
    assert read(kind, encoding, [packed], len(values)) == values
    nullable = encode_nullable(encoding, encode_flat(1, 1))
    valid = np.packbits(np.arange(len(values)) % 3 > 0, bitorder="little").tobytes()
    expected = [value if i % 3 else None for i, value in enumerate(values)]
    assert read(kind, nullable, [packed, valid], len(values)) == expected


def test_fixed_size_binary() -> None:
    message = pb.FixedSizeBinary(bytes=encode_flat(8, 0), byte_width=2)
    encoding = pb.ArrayEncoding(fixed_size_binary=message)
    assert read(pa.string(), encoding, [b"aabbcc"], 3) == ["aa", "bb", "cc"]
    nullable = encode_nullable(encoding, encode_flat(1, 1))
    assert read(pa.large_binary(), nullable, [b"aabbcc", b"\x05"], 3) == [b"aa", None, b"cc"]


def test_nullable_around_encodings_that_have_nulls_of_their_own() -> None:
    nullable = encode_nullable(binary(5), encode_flat(1, 2))
    assert read(pa.string(), nullable, [u64(1, 2, 9), b"abcd", b"\x06"], 3) == [None, "b", None]
    items = binary(4, first_buffer=1)
    dictionary = pb.Dictionary(indices=encode_flat(8, 0), items=items, num_dictionary_items=3)
    nullable = encode_nullable(pb.ArrayEncoding(dictionary=dictionary), encode_flat(1, 3))
    buffers = [b"\x01\x00\x02\x01", u64(1, 3, 7), b"xyy", b"\x07"]
    kind = pa.dictionary(pa.int8(), pa.string())
    assert read(kind, nullable, buffers, 4) == ["yy", "x", None, None]


def test_all_nulls_of_any_type() -> None:
    for kind in (pa.string(), pa.list_(pa.int8(), 3), pa.dictionary(pa.int8(), pa.string()), pa.null()):
        assert read(kind, ALL_NULLS, [], 3) == [None, None, None]


def dictionary_of_nulls(count: int) -> pb.ArrayEncoding:
    message = pb.Dictionary(indices=encode_flat(8, 0), items=ALL_NULLS, num_dictionary_items=count)
    return pb.ArrayEncoding(dictionary=message)


def nested_fsl(dimension: int) -> pb.ArrayEncoding:
    message = pb.FixedSizeList(dimension=dimension, items=encode_flat(64, 0))
    return pb.ArrayEncoding(fixed_size_list=message)


def compressed(scheme: str) -> pb.ArrayEncoding:
    encoding = encode_flat(64, 0)
    encoding.flat.compression.scheme = scheme
    return encoding


HUGE = 2**62
DAMAGED: dict[str, tuple[pa.DataType, pb.ArrayEncoding, list[bytes], int]] = {
    "more values than bytes": (pa.int64(), encode_flat(64, 0), [FOUR], 5),
    "a huge page": (pa.int64(), encode_flat(64, 0), [FOUR], HUGE),
    "another width": (pa.int64(), encode_flat(32, 0), [FOUR], 4),
    "no such buffer": (pa.int64(), encode_flat(64, 3), [FOUR], 4),
    "short validity": (
        pa.int64(),
        encode_nullable(encode_flat(64, 0), encode_flat(1, 1)),
        [FOUR * 5, b"a"],
        20,
    ),
    "zstd bomb": (pa.int64(), compressed("zstd"), [struct.pack("<Q", HUGE) + b"x" * 20], 4),
    "lz4 bomb": (pa.int64(), compressed("lz4"), [struct.pack("<I", 2**31) + b"x" * 20], 4),
    "not zstd": (pa.int64(), compressed("zstd"), [struct.pack("<Q", 32) + b"x" * 20], 4),
    "not lz4": (pa.int64(), compressed("lz4"), [struct.pack("<I", 32) + b"x" * 20], 4),
    "empty zstd": (pa.int64(), compressed("zstd"), [b""], 4),
    "string past its bytes": (pa.string(), binary(100), [u64(1, 5), b"abcd"], 2),
    "string that ends before it begins": (pa.string(), binary(5), [u64(3, 1), b"abcd"], 2),
    "null past its bytes": (pa.string(), binary(5), [u64(1, 11), b"abcd"], 2),
    "not UTF-8": (pa.string(), binary(3), [u64(1, 2), b"\xc3\xa4"], 2),
    "too few offsets": (pa.string(), binary(5), [u64(1), b"abcd"], 2),
    "strings for integers": (pa.int64(), binary(5), [u64(1, 2), b"abcd"], 2),
    "index past the dictionary": (
        pa.string(),
        pb.ArrayEncoding(
            dictionary=pb.Dictionary(indices=encode_flat(8, 0), items=binary(4, 1), num_dictionary_items=1)
        ),
        [b"\x00\x02", u64(1), b"xyy"],
        2,
    ),
    "a huge dictionary of nulls": (pa.string(), dictionary_of_nulls(2**32 - 1), [b"\x00\x01"], 2),
    "another list length": (pa.list_(pa.int64(), 2), nested_fsl(4), [FOUR], 1),
    "too few items": (pa.list_(pa.int64(), 2), nested_fsl(2), [FOUR], 3),
    "a list without items": (
        pa.int64(),
        pb.ArrayEncoding(list=pb.List(offsets=encode_flat(64, 0))),
        [FOUR],
        4,
    ),
    "bits beyond the type": (
        pa.int8(),
        pb.ArrayEncoding(bitpacked=pb.Bitpacked(compressed_bits_per_value=9, uncompressed_bits_per_value=8)),
        [FOUR],
        4,
    ),
    "half a block": (
        pa.int8(),
        pb.ArrayEncoding(
            bitpacked_for_non_neg=pb.BitpackedForNonNeg(
                compressed_bits_per_value=3, uncompressed_bits_per_value=8
            )
        ),
        [bytes(383)],
        4,
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage(name: str) -> None:
    kind, encoding, buffers, length = DAMAGED[name]
    with pytest.raises(FormatError):
        page_reader(kind, encoding, buffers, length).read(0, min(length, 100))


def test_an_unknown_compression() -> None:
    with pytest.raises(UnsupportedFormatError, match="brotli"):
        read(pa.int64(), compressed("brotli"), [FOUR], 4)


def test_more_rows_than_there_are() -> None:
    with pytest.raises(FormatError, match="needed of the 4"):
        page_reader(pa.int64(), encode_flat(64, 0), [FOUR], 4).read(2, 5)


def list_reader(lengths: list[int]) -> FieldReader:
    """Return a reader of lists of int64 with these lengths in one page."""
    store, path = open_store("memory://encodings/list")
    ends = np.cumsum(lengths).astype(np.uint64)
    items = np.arange(int(ends[-1]), dtype=np.int64)
    data = ends.tobytes() + items.tobytes()
    store.put(path, data)
    lists = pb.List(offsets=encode_flat(64, 0), null_offset_adjustment=100, num_items=len(items))
    encodings = [pb.ArrayEncoding(list=lists), encode_flat(64, 0)]
    places = [(0, ends.nbytes), (ends.nbytes, items.nbytes)]
    counts = [len(lengths), len(items)]
    pages = [
        Page((place,), count, 0, encoding.SerializeToString(), ARRAY_ENCODING_URL)
        for place, count, encoding in zip(places, counts, encodings, strict=True)
    ]
    field = Schema.from_arrow(pa.schema([pa.field("a", pa.list_(pa.int64()))])).fields[0]
    columns = {field.id: ColumnMetadata(0, (pages[0],)), field.children[0].id: ColumnMetadata(1, (pages[1],))}
    return FieldReader(field, columns, PageSource(store, path, len(data)), FileVersion.V2_0)


def test_pages_beyond_32_bit_offsets_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit lowered from 2^31 - 1 to 10."""
    monkeypatch.setattr("spark_lance.file.v2_0.variable._INT32_MAX", 10)
    texts = page_reader(pa.string(), binary(40), [u64(4, 8, 12, 16, 20), b"abcd" * 5], 5).read(0, 5)
    assert texts.to_pylist() == ["abcd"] * 5
    assert texts.num_chunks == 3
    lists = list_reader([6, 6, 6]).read(0, 3)
    assert lists.to_pylist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]
    assert lists.num_chunks == 3
    large = page_reader(pa.large_string(), binary(40), [u64(20), b"abcd" * 5], 1).read(0, 1)
    assert large.to_pylist() == ["abcd" * 5]
    with pytest.raises(UnsupportedFormatError, match="row 0 holds more than 2 GiB"):
        page_reader(pa.string(), binary(40), [u64(20), b"abcd" * 5], 1).read(0, 1)
    with pytest.raises(UnsupportedFormatError, match=r"row 1 .*large"):
        list_reader([6, 11]).read(0, 2)


@pytest.mark.parametrize("kind", ["string", "binary", "large_string", "large_binary"])
def test_strings_that_were_written_as_lists_of_bytes(kind: str, tmp_path: Path) -> None:
    """As Lance 0.13 wrote them: the column after that of the lists has the bytes, and no field is theirs."""
    arrow = pa.type_for_alias(kind)
    texts = [None if n % 7 == 3 else f"\u00e9{n}" * (n % 5) for n in range(300)]
    values = [None if text is None else text.encode() for text in texts]
    lists = [None if value is None else list(value) for value in values]
    rows = pa.table({"a": pa.array(lists, pa.list_(pa.uint8())), "n": range(300)})
    write_dataset(rows, tmp_path / "t", data_storage_version="2.0")
    (path,) = (tmp_path / "t" / "data").iterdir()
    store, place = open_store(path)
    field = Field(0, "a", kind)
    file = FileReader(store, place, columns={0: 0, 2: 2})
    expected = pa.array(values, pa.large_binary()).cast(arrow)
    reader = file.open_field(field)
    assert reader.read(0, 300).combine_chunks().equals(expected)
    assert reader.read(41, 97).to_pylist() == expected.to_pylist()[41:97]
    assert reader.read(5, 5).to_pylist() == []
    with pytest.raises(FormatError, match="cannot be int64"):
        file.open_field(Field(0, "a", "int64"))
    if arrow == pa.string():
        broken = pa.table({"a": pa.array([[0xFF]], pa.list_(pa.uint8()))})
        write_dataset(broken, tmp_path / "u", data_storage_version="2.0")
        (path,) = (tmp_path / "u" / "data").iterdir()
        with pytest.raises(FormatError, match="UTF-8"):
            FileReader(store, str(path), columns={0: 0}).open_field(field).read(0, 1)
