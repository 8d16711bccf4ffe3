"""Compressed pages and the wishes of field metadata, in pylance and in our reader."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.byte_stream_split import SplitChunks
from spark_lance.file.v2_1.encodings.general import CompressedChunks
from spark_lance.file.v2_1.encodings.rle import RunChunks
from spark_lance.file.v2_1.levels.ravel import ravel
from spark_lance.file.v2_1.write.field_writer import FullZip, MiniBlock, choose
from tests.file.v2_1.pylance_table import open_in_pylance, write_file
from tests.file.v2_1.test_write_pylance import VERSIONS, check, compare

WORDS = np.array(["lance", "spark", "table", "vector", "page", "chunk", "row", "column", "größe", "日本"])


def prose(rows: int, words: int = 12, seed: int = 0) -> pa.Array:
    rng = np.random.default_rng(seed)
    picks = WORDS[rng.integers(0, len(WORDS), (rows, words))]
    return pa.array([f"{i} {' '.join(row)}" for i, row in enumerate(picks)])


def noise(rows: int) -> pa.Array:
    return pa.array(
        [bytes(row).hex() for row in np.random.default_rng(1).integers(0, 256, (rows, 20), np.uint8)]
    )


def sparse(array: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(np.arange(len(array)) % 7 > 0), array, None)


def lists(array: pa.Array) -> pa.Array:
    ends = np.cumsum(np.arange(len(array)) % 6)
    ends = np.append(0, ends[ends <= len(array)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), array)


TEXT: dict[str, pa.Array] = {
    "prose": prose(5000),
    "large prose": prose(3000).cast(pa.large_string()),
    "prose with nulls": sparse(prose(5000)),
    "prose in lists": lists(prose(5000)),
    "prose with nulls in lists": lists(sparse(prose(5000))),
    "hex": noise(5000),
    "one long value": pa.concat_arrays([prose(3000), pa.array(["long " * 60_000]), prose(3000, seed=2)]),
    "documents": prose(60, 600),
    "documents with nulls and empty ones": pa.concat_arrays(
        [sparse(prose(60, 600)), pa.array(["", None, ""])]
    ),
    "longer and shorter documents": pa.concat_arrays([prose(300, 100), prose(3, 6000)]),
    "documents in lists": lists(prose(60, 600)),
    "pages of text": prose(300, 150),
    "pages of text with nulls": sparse(prose(300, 150)),
    "pages of text and empty ones": pa.concat_arrays([prose(300, 150), pa.array([""])]),
    "pages of text in lists": lists(sparse(prose(300, 150))),
    "empty ones in runs": pa.concat_arrays([pa.array([""] * 9000), prose(2000), pa.array([""] * 9000)]),
    "a slice": sparse(prose(5000))[11:-13],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TEXT)
def test_text(name: str, version: str) -> None:
    check(pa.table({"c": TEXT[name]}), version)


def chosen(array: pa.Array, version: str = "2.2", **metadata: str) -> MiniBlock | FullZip:
    wishes = {f"lance-encoding:{key.replace('_', '-')}": value for key, value in metadata.items()}
    schema = Schema.from_arrow(pa.schema([pa.field("c", array.type, metadata=wishes)]))
    (leaf,) = ravel(schema.fields[0], array)
    choice = choose(leaf, FileVersion.parse(version))
    assert isinstance(choice, MiniBlock | FullZip)
    return choice


def describe(choice: MiniBlock | FullZip) -> str:
    return str(choice.values.description)


def test_what_is_compressed_by_itself() -> None:
    documentation = [getattr(np, name).__doc__ or "" for name in dir(np)]
    lines = [line for text in documentation for line in dict.fromkeys(text.splitlines()) if len(line) > 40]
    assert "COMPRESSION_LZ4" in describe(chosen(pa.array(lines)))
    assert "COMPRESSION_ZSTD" in describe(chosen(noise(5000)))
    assert "general" not in describe(chosen(prose(100)))
    assert "general" in describe(chosen(prose(5000).cast(pa.binary())))
    random = np.random.default_rng(0).integers(0, 256, (5000, 20), np.uint8)
    assert "general" not in describe(chosen(pa.array([bytes(row) for row in random])))
    assert "general" not in describe(chosen(prose(5000), compression="none"))
    documents = chosen(prose(60, 600))
    assert isinstance(documents, FullZip)
    assert "COMPRESSION_ZSTD" in describe(documents)


@pytest.mark.parametrize("size", [13_000, 20_000, 100_000])
@pytest.mark.parametrize("nested", [False, True])
def test_a_long_value_does_not_spoil_its_page(size: int, nested: bool, tmp_path: Path) -> None:
    long = pa.array(["long value " * (size // 11), "and another " * (size // 12)])
    texts = pa.concat_arrays([prose(6000), long, prose(6000, seed=2)])
    table = pa.table({"c": lists(texts) if nested else texts})
    check(table, "2.1")
    assert write_file(tmp_path, table, "2.1").size < 0.7 * table.nbytes


RNG = np.random.default_rng(3)
VALUES: dict[str, pa.Array] = {
    "bytes": RNG.integers(-9, 9, 5000).astype(np.int8),
    "ints": pa.array(np.cumsum(RNG.integers(-5, 90, 5000)), pa.int32()),
    "longs with nulls": pa.array(np.cumsum(RNG.integers(-5, 90, 5000)), mask=np.arange(5000) % 3 == 0),
    "floats": pa.array(np.cumsum(RNG.normal(size=5000)), pa.float32()),
    "doubles": pa.array(np.cumsum(RNG.normal(size=5000))),
    "bits": pa.array(RNG.random(5000) < 0.5),
    "decimals": pa.array(RNG.integers(0, 10**9, 5000)).cast(pa.decimal128(19, 0)),
    "vectors": pa.FixedSizeListArray.from_arrays(pa.array(RNG.normal(size=6000)), 3),
    "wide vectors": pa.FixedSizeListArray.from_arrays(pa.array(RNG.normal(size=6000)), 60),
    "runs": pa.array(np.repeat(np.arange(50), 100)),
    "text": sparse(prose(2000)),
    "binary": prose(2000).cast(pa.large_binary()),
    "documents": sparse(prose(60, 300)).cast(pa.binary()),
    "repeated": WORDS[RNG.integers(0, 10, 3000)],
    "lists of doubles": lists(pa.array(np.cumsum(RNG.normal(size=5000)))),
    "one": pa.array([1.5, 2.5]),
    "few": prose(3),
}
WISHES: list[dict[str, str]] = [
    {"compression": "zstd"},
    {"compression": "zstd", "compression_level": "5", "bss": "on"},
    {"compression": "lz4", "bss": "off"},
    {"compression": "none"},
    {"compression": "fsst"},
    {"rle_threshold": "0.9"},
    {"rle_threshold": "0", "dict_divisor": "1000"},
    {"dict_values_compression": "zstd", "dict_values_compression_level": "3"},
    {"dict_values_compression": "none", "dict_size_ratio": "1.0"},
    {"structural_encoding": "fullzip"},
    {"structural_encoding": "fullzip", "compression": "zstd"},
    {"structural_encoding": "fullzip", "compression": "lz4"},
    {"structural_encoding": "miniblock"},
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wishes", WISHES, ids=lambda wishes: " ".join(f"{k}={v}" for k, v in wishes.items()))
def test_wishes(wishes: dict[str, str], version: str) -> None:
    metadata = {f"lance-encoding:{key.replace('_', '-')}": value for key, value in wishes.items()}
    for name, values in VALUES.items():
        array = values if isinstance(values, pa.Array) else pa.array(values)
        kind: Any = array.type
        if pa.types.is_list(kind):
            kind = pa.list_(kind.value_field.with_metadata(metadata))
        schema = pa.schema([pa.field(name, kind, metadata=metadata)])
        check(pa.Table.from_arrays([array.cast(kind)], schema=schema), version)


def test_wishes_are_heard() -> None:
    doubles, text = VALUES["doubles"], prose(2000)
    choice = chosen(doubles, compression="zstd", bss="on")
    assert isinstance(choice.values, CompressedChunks)
    assert isinstance(choice.values.values, SplitChunks)
    assert "byte_stream_split" not in describe(chosen(doubles, compression="zstd", bss="off"))
    assert "byte_stream_split" in describe(chosen(doubles, compression="lz4"))
    assert "COMPRESSION_ZSTD" in describe(chosen(text, compression="zstd"))
    assert isinstance(chosen(text, structural_encoding="fullzip"), FullZip)
    assert isinstance(chosen(VALUES["wide vectors"], structural_encoding="miniblock"), MiniBlock)
    assert isinstance(chosen(VALUES["runs"], rle_threshold="0.5", dict_divisor="1000").values, RunChunks)
    assert not isinstance(chosen(VALUES["runs"], rle_threshold="0").values, RunChunks)
    repeated = pa.array(VALUES["repeated"])
    plain = chosen(repeated)
    assert isinstance(plain, MiniBlock)
    assert plain.dictionary is not None
    refused = chosen(repeated, dict_divisor="1000")
    assert isinstance(refused, MiniBlock)
    assert refused.dictionary is None
    packed = chosen(repeated, dict_values_compression="zstd")
    assert isinstance(packed, MiniBlock)
    assert packed.dictionary is not None
    assert "ZSTD" in str(packed.dictionary.description)


@pytest.mark.parametrize(
    ("key", "value"),
    [("compression", "snappy"), ("rle-threshold", "often"), ("bss", "1"), ("structural-encoding", "sparse")],
)
def test_senseless_wishes(key: str, value: str, tmp_path: Path) -> None:
    field = pa.field("c", pa.int32(), metadata={f"lance-encoding:{key}": value})
    table = pa.Table.from_arrays([pa.array([1, 2], pa.int32())], schema=pa.schema([field]))
    with pytest.raises(SchemaError, match=f"'c': lance-encoding:{key} is '{value}'"):
        write_file(tmp_path, table, "2.2")


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_on_compressed_text(version: str) -> None:
    table = pa.table({"text": sparse(prose(20_000)), "id": np.arange(20_000)})
    with tempfile.TemporaryDirectory() as name:
        written = write_file(Path(name), table, version, page_bytes=300_000)
        dataset = open_in_pylance(Path(name), table.schema, [written])
        got = dataset.to_table(filter="text like '%spark spark%' and id > 5000")
        result = pc.fill_null(pc.match_substring(table["text"], "spark spark"), False)
        assert got.num_rows > 100
        compare(got, table.filter(pc.and_(result, pc.greater(table["id"], 5000))))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 4000),
    st.integers(0, 40),
    st.sampled_from(["zstd", "lz4", "none", None]),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary()]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_random_text(
    version: str, rows: int, words: int, scheme: str | None, kind: pa.DataType, in_lists: bool, seed: int
) -> None:
    array = prose(rows, words, seed).cast(kind)
    array = sparse(array) if seed % 2 else array
    metadata = {"lance-encoding:compression": scheme} if scheme else {}
    field = pa.field("c", kind, metadata=metadata)
    if in_lists:
        array = lists(array)
        field = pa.field("c", pa.list_(pa.field("item", kind, metadata=metadata)))
    check(
        pa.Table.from_arrays([array.cast(field.type)], schema=pa.schema([field])), version, page_bytes=100_000
    )
