"""Positions of words, which pylance needs for phrases, and phrases themselves, both ways."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.query import PhraseQuery

import spark_lance
import spark_lance.query
from spark_lance import dataset, write_dataset
from spark_lance.errors import FormatError
from spark_lance.index.base.entries import find_segments
from spark_lance.index.text.inverted import INVERTED_LABEL, INVERTED_NEWEST, TextPart, text_parts
from spark_lance.index.text.position_streams import OFFSETS, STREAM, pack_streams, unpack_stream
from spark_lance.index.text.positions import pack_positions, unpack_positions
from spark_lance.index.text.postings import BLOCK

WORDS = ["fox", "Dog", "the", "of", "quick", "na\u00efve", "extraordinarily"]
PLAIN: dict[str, Any] = {"stem": False, "remove_stop_words": False}
OPTIONS: list[dict[str, Any]] = [
    PLAIN,
    {"stem": False, "remove_stop_words": True},
    {"stem": False, "remove_stop_words": False, "base_tokenizer": "whitespace", "max_token_length": 8},
]
PHRASES = ["fox dog", "dog the fox", "quick of the fox", "naive quick quick", "fox fox", "the of", "quick"]


def texts(rows: int, seed: int) -> list[str | None]:
    """Random texts of few words, so that phrases occur; one is very long, some are empty or null."""
    chance = random.Random(seed)
    results: list[str | None] = [
        chance.choice([" ", ", ", " - "]).join(chance.choices(WORDS, k=chance.randrange(12)))
        for _ in range(rows)
    ]
    results[rows // 2] = " ".join(chance.choices(WORDS, k=1500))
    results[rows // 3] = None
    return results


def table_of(rows: int, seed: int, first: int = 0) -> pa.Table:
    return pa.table({"id": np.arange(first, first + rows), "t": pa.array(texts(rows, seed), pa.string())})


def stored_positions(path: Path) -> dict[tuple[str, int], list[bytes]]:
    """Return what is stored of every word in every row."""
    results = {}
    table = dataset(path)
    field = table.manifest.schema.field("t").id
    for segment in find_segments(table.snapshot, INVERTED_LABEL, INVERTED_NEWEST, field):
        for part in text_parts(segment):
            lists = part.lists.read(["_position"])["_position"].to_pylist()
            for word, number in part.words.items():
                documents, _ = part.postings(word)
                for document, stored in zip(documents.tolist(), lists[number], strict=True):
                    results[word, int(part.row_ids[document])] = stored
    return results


def theirs(path: Path, phrase: str) -> set[int]:
    result = lance.dataset(str(path)).to_table(["id"], full_text_query=PhraseQuery(phrase, "t"))
    return set(result["id"].to_pylist())


def ours(path: Path, phrase: str) -> set[int]:
    result = dataset(path).to_table(["id"], full_text_query={"query": phrase, "column": "t", "phrase": True})
    return set(result["id"].to_pylist())


def assert_phrases_agree(path: Path) -> None:
    for phrase in PHRASES:
        assert ours(path, phrase) == theirs(path, phrase), phrase


@pytest.mark.parametrize("options", OPTIONS)
def test_positions_are_those_that_pylance_stores(options: dict[str, Any], tmp_path: Path) -> None:
    table = table_of(300, 1)
    other = lance.write_dataset(table, str(tmp_path / "theirs"), max_rows_per_file=100)
    other.create_scalar_index("t", "INVERTED", with_position=True, format_version=1, **options)
    lance.write_dataset(table, str(tmp_path / "ours"), max_rows_per_file=100)
    dataset(tmp_path / "ours").create_scalar_index("t", "INVERTED", with_position=True, **options)
    result = stored_positions(tmp_path / "ours")
    assert any(len(stored) > 2 for stored in result.values())
    assert result == stored_positions(tmp_path / "theirs")


@pytest.mark.parametrize("options", OPTIONS)
def test_phrases(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(400, 2), path, max_rows_per_file=150)
    dataset(path).create_scalar_index("t", "INVERTED", with_position=True, **options)
    assert_phrases_agree(path)
    assert ours(path, "fox dog")


@pytest.mark.parametrize("who", ["ours", "theirs"])
def test_an_index_with_positions_is_extended_with_positions(who: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(200, 3), path)
    if who == "ours":
        dataset(path).create_scalar_index("t", "INVERTED", with_position=True, **PLAIN)
    else:
        lance.dataset(str(path)).create_scalar_index("t", "INVERTED", with_position=True, **PLAIN)
    write_dataset(table_of(200, 4, first=200), path, "append")
    dataset(path).optimize.optimize_indices()
    assert_phrases_agree(path)
    write_dataset(table_of(100, 5, first=400), path, "append")
    lance.dataset(str(path)).optimize.optimize_indices()
    assert_phrases_agree(path)
    assert max(ours(path, "fox")) >= 400


def test_compaction_keeps_positions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(300, 6), path, max_rows_per_file=60)
    dataset(path).create_scalar_index("t", "INVERTED", with_position=True, **PLAIN)
    dataset(path).delete("id % 7 = 3 or id between 100 and 130")
    before = {phrase: ours(path, phrase) for phrase in PHRASES}
    dataset(path).optimize.compact_files()
    assert len(dataset(path).get_fragments()) == 1
    (segment,) = dataset(path).manifest.indices
    assert segment.files
    assert {phrase: theirs(path, phrase) for phrase in PHRASES} == before
    assert_phrases_agree(path)


def newest_parts(path: Path) -> list[TextPart]:
    table = dataset(path)
    field = table.manifest.schema.field("t").id
    segments = find_segments(table.snapshot, INVERTED_LABEL, INVERTED_NEWEST, field)
    return [part for segment in segments for part in text_parts(segment)]


def scores(module: Any, path: Path, phrase: str, slop: int) -> dict[int, float]:
    query = module.query.PhraseQuery(phrase, "t", slop=slop)
    result = module.dataset(str(path)).to_table(["id", "_score"], full_text_query=query)
    return dict(zip(result["id"].to_pylist(), result["_score"].to_pylist(), strict=True))


@pytest.mark.parametrize("block_size", [128, 256])
@pytest.mark.parametrize("options", OPTIONS)
def test_position_streams_of_pylance(options: dict[str, Any], block_size: int, tmp_path: Path) -> None:
    """Phrases use the streams; of 128 documents a block, we write the same bytes."""
    path = tmp_path / "t"
    lance.write_dataset(table_of(700, 7), str(path), max_rows_per_file=300)
    lance.dataset(str(path)).create_scalar_index(
        "t", "INVERTED", with_position=True, block_size=block_size, **options
    )
    (part,) = newest_parts(path)
    assert part.has_positions
    assert part.has_position_streams
    rows = part.lists.read([STREAM.name, OFFSETS.name])
    cut = part.tokenizer.tokenize(dataset(path).to_table()["t"].combine_chunks())
    row_of = part.row_ids.astype(np.int64) % 2**32 + 300 * (part.row_ids.astype(np.int64) >> 32)
    for word, number in part.words.items():
        documents, frequencies = part.postings(word)
        positions = part.positions(word)
        here = cut.word == cut.distinct.to_pylist().index(word)
        assert np.repeat(row_of[documents], frequencies).tolist() == cut.text[here].tolist()
        assert positions.places.tolist() == cut.position[here].tolist()
        if block_size == BLOCK:
            bounds = np.array([0, len(documents)])
            packed = pack_streams(positions.places.astype(np.int64), frequencies.astype(np.int64), bounds)
            assert packed[0][0].as_py() == rows[STREAM.name][number].as_py()
            assert packed[1][0].as_py() == rows[OFFSETS.name][number].as_py()
    assert_phrases_agree(path)
    for phrase in PHRASES:
        mine, other = (scores(module, path, phrase, 0) for module in (spark_lance, lance))
        # pylance rounds the lengths of long texts in blocks of 256.
        assert mine == pytest.approx(other, rel=1e-5 if block_size == BLOCK else 0.1)
        assert scores(spark_lance, path, phrase, 1).keys() >= scores(lance, path, phrase, 1).keys()


def test_updates_and_merges_keep_position_streams(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table_of(400, 8), str(path), max_rows_per_file=100)
    lance.dataset(str(path)).create_scalar_index("t", "INVERTED", with_position=True, **PLAIN)
    dataset(path).delete("id % 7 = 3 or id between 100 and 130")
    before = {phrase: ours(path, phrase) for phrase in PHRASES}
    dataset(path).optimize.compact_files()
    assert [part.has_position_streams for part in newest_parts(path)] == [True]
    assert {phrase: ours(path, phrase) for phrase in PHRASES} == before
    assert {phrase: theirs(path, phrase) for phrase in PHRASES} == before
    for number, module in enumerate([spark_lance, lance, spark_lance]):
        module.write_dataset(table_of(150, 9 + number, first=1000 * (number + 1)), str(path), mode="append")
        module.dataset(str(path)).optimize.optimize_indices()
        assert_phrases_agree(path)
    assert max(ours(path, "fox")) >= 3000
    dataset(path).delete("id % 5 = 1")
    dataset(path).optimize.compact_files()
    assert_phrases_agree(path)


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300, unique=True), max_size=9)
    ),
    st.integers(1, 200),
)
def test_packed_streams_are_unpacked(words: list[list[list[int]]], repeats: int) -> None:
    words = [[sorted(places) for places in word] * repeats for word in words]
    counts = [np.array([len(places) for places in word], np.int64) for word in words]
    flat = [np.array([p for places in word for p in places], np.int64) for word in words]
    bounds = np.cumsum([0, *map(len, words)])
    none = [np.empty(0, np.int64)]
    streams, offsets = pack_streams(np.concatenate(none + flat), np.concatenate(none + counts), bounds)
    for number, (positions, often) in enumerate(zip(flat, counts, strict=True)):
        starts, places = unpack_stream(
            streams[number].as_py(), np.array(offsets[number].as_py(), np.int64), often
        )
        assert np.diff(starts).tolist() == often.tolist()
        assert places.tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("stream", "offsets", "frequencies"),
    [
        (b"", [0], [1]),
        (b"\1", [], [1]),
        (b"\1", [0, 1], [1]),
        (b"\1", [1], [1]),
        (b"\1\1", [0], [1]),
        (b"\x81", [0], [1]),
        (b"\xff\xff\xff\xff\xff\1", [0], [1]),
        (b"\xff\xff\xff\xff\x7f", [0], [1]),
        (b"\1", [0], [0]),
        (b"\1", [0], [2**31 - 1]),
        (b"\1" * 200, [0, 2**32 - 1], [1] * 200),
        (b"\1" * 200, [0, 201], [1] * 200),
        (b"\1" * 200, [0, 0], [1] * 200),
        (b"\x21" + b"\1" * 600, [0], [128]),
        (b"\x20" + b"\1" * 500, [0], [128]),
        (b"\0" * (1 << 20), [0], [128 << 20]),
        (b"\x20" + b"\xff" * 512, [0], [128]),
    ],
)
def test_damaged_streams(stream: bytes, offsets: list[int], frequencies: list[int]) -> None:
    with pytest.raises(FormatError, match="position"):
        unpack_stream(stream, np.array(offsets, np.uint32), np.array(frequencies, np.int32))


@given(st.binary(max_size=400), st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(0, 400))
def test_random_bytes_of_streams_are_positions_or_an_error(
    stream: bytes, frequencies: list[int], second: int
) -> None:
    offsets: Any = np.array([0, second, second][: -(-len(frequencies) // BLOCK)], np.uint32)
    try:
        _, places = unpack_stream(stream, offsets, np.array(frequencies, np.int32))
    except FormatError:
        return
    assert len(places) == sum(frequencies)
    assert int(places.min()) >= 0


@given(st.lists(st.integers(1, 400), max_size=12), st.integers(0, 2**32 - 1))
def test_packed_positions_say_what_they_were_made_of(counts: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    documents = [np.cumsum(chance.integers(1, 1000, count)) for count in counts]
    flat = np.concatenate([np.empty(0, np.int64), *documents])
    packed = pack_positions(flat, np.array(counts, np.int64)).to_pylist()
    assert len(packed) == len(counts)
    for stored, positions in zip(packed, documents, strict=True):
        assert stored[0] == len(positions).to_bytes(4, "little")
        full, left = divmod(len(positions), BLOCK)
        assert len(stored) == 1 + full + (left > 0)
        for number, block in enumerate(stored[1 : 1 + full]):
            assert int.from_bytes(block[:4], "little") == positions[BLOCK * number]
            assert len(block) == 5 + 16 * block[4]
        if left:
            assert np.frombuffer(stored[-1], "<u4").tolist() == positions[-left:].tolist()


@given(st.lists(st.lists(st.integers(0, 4000), min_size=1, max_size=400, unique=True), max_size=6))
def test_packed_positions_are_unpacked(positions: list[list[int]]) -> None:
    counts = np.array([len(some) for some in positions], np.int64)
    flat = np.array([place for some in positions for place in sorted(some)], np.int64)
    starts, places = unpack_positions(pack_positions(flat, counts))
    assert np.diff(starts).tolist() == counts.tolist()
    assert places.tolist() == flat.tolist()


@pytest.mark.parametrize(
    "stored",
    [[b"\1\0\0\0"], [b"\1"], [], [b"\1\0\0\0", b"\0\0\0\0\0"], [b"\x80\0\0\0", b"\0\0\0\0\x40"], None],
)
def test_damaged_positions(stored: list[bytes] | None) -> None:
    with pytest.raises(FormatError, match="positions"):
        unpack_positions(pa.array([stored], pa.list_(pa.large_binary())))
