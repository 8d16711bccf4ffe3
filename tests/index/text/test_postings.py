"""Indices of words, both ways, and what text searches find."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance import dataset, write_dataset
from spark_lance.errors import FormatError, OptionError, SchemaError, UnsupportedFormatError
from spark_lance.index.text.automaton import WordAutomaton
from spark_lance.index.text.postings import BLOCK, FIXED_TAIL, VARINT_TAIL, pack_list, unpack_list
from spark_lance.index.text.tokenizer import Tokenizer

WORDS = [
    "fox", "Fox", "dog", "na\u00efve", "caf\u00e9", "stra\u00dfe", "run", "running", "the", "of", "x1",
    "zebra",
]  # fmt: skip
ROWS = 2000


def texts(rows: int, seed: int = 0) -> list[str | None]:
    """Return random texts; some are null, empty, or have a word many times."""
    chance = random.Random(seed)
    results: list[str | None] = []
    for number in range(rows):
        words = [chance.choice([*WORDS, f"w{chance.randrange(300)}"]) for _ in range(chance.randrange(25))]
        results.append(None if number % 50 == 7 else chance.choice([" ", ", ", "--"]).join(words))
    return results


def table_of(rows: int, seed: int = 0, first: int = 0) -> pa.Table:
    return pa.table({"id": np.arange(first, first + rows), "t": pa.array(texts(rows, seed), pa.string())})


def theirs(path: Path, query: str, k: int) -> list[tuple[int, float]]:
    result = lance.dataset(str(path)).to_table(["id", "_score"], full_text_query=query, limit=k)
    return list(zip(result["id"].to_pylist(), result["_score"].to_pylist(), strict=True))


def ours(path: Path, query: Any, k: int | None, **options: Any) -> list[tuple[int, float]]:
    result = dataset(path).to_table(["id"], full_text_query=query, limit=k, **options)
    return list(zip(result["id"].to_pylist(), result["_score"].to_pylist(), strict=True))


def assert_alike(path: Path, query: str) -> None:
    """Pylance and we give the same scores; rows of one score may come in any order."""
    one, other = ours(path, query, 30), theirs(path, query, 30)
    assert np.allclose([score for _, score in one], [score for _, score in other], rtol=1e-5)
    lowest = one[-1][1] if one else 0.0
    assert {n for n, s in one if s > lowest * 1.0001} == {n for n, s in other if s > lowest * 1.0001}


QUERIES = ["fox", "running dog", "cafe", "w17 w18 w19", "zebra zebra", "STRASSE", "nothinglikethis", "the"]
OPTIONS: list[dict[str, Any]] = [
    {"stem": False, "remove_stop_words": False},
    {"stem": True, "remove_stop_words": True},
    {"stem": False, "remove_stop_words": False, "lower_case": False, "ascii_folding": False},
    {"stem": False, "remove_stop_words": False, "base_tokenizer": "whitespace", "max_token_length": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("stable", [False, True])
def test_we_search_what_pylance_built(options: dict[str, Any], stable: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = lance.write_dataset(
        table_of(ROWS), str(path), max_rows_per_file=900, enable_stable_row_ids=stable
    )
    table.create_scalar_index("t", "INVERTED", **options)
    for query in QUERIES:
        assert_alike(path, query)


@pytest.mark.parametrize("options", OPTIONS)
def test_pylance_searches_what_we_built(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table_of(ROWS), str(path), max_rows_per_file=900)
    dataset(path).create_scalar_index("t", "INVERTED", **options)
    for query in QUERIES:
        assert_alike(path, query)


def test_deleted_and_new_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(ROWS), path)
    dataset(path).create_scalar_index("t", "FTS")
    best = [number for number, _ in ours(path, "zebra", 20)]
    dataset(path).delete(f"id in ({', '.join(map(str, best))})")
    new = pa.table({"id": [9999], "t": ["zebra zebra"]})
    write_dataset(new, path, mode="append")
    results = [number for number, _ in ours(path, "zebra", 20)]
    assert len(results) == 20
    assert not set(results) & set(best)
    assert results[0] == 9999
    assert 9999 not in [n for n, _ in ours(path, {"query": "zebra", "fast_search": True}, 20)]
    dataset(path).optimize.optimize_indices()
    assert ours(path, {"query": "zebra", "fast_search": True}, 1)[0][0] == 9999


def matching(words: set[str], every: bool) -> set[int]:
    results = set()
    for number, text in enumerate(texts(ROWS)):
        there = {word.lower() for word in (text or "").replace(",", " ").replace("--", " ").split()}
        if words <= there if every else words & there:
            results.add(number)
    return results


def test_all_words_or_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(ROWS), path)
    for _ in range(2):
        column = {"column": "t", "query": "fox dog"}
        assert {n for n, _ in ours(path, column, None)} == matching({"fox", "dog"}, False)
        both = {n for n, _ in ours(path, {**column, "operator": "and"}, None)}
        assert both == matching({"fox", "dog"}, True)
        remaining = {n for n, _ in ours(path, column, None, filter="id < 100", prefilter=True)}
        assert remaining == {n for n in matching({"fox", "dog"}, False) if n < 100}
        dataset(path).create_scalar_index("t", "INVERTED")


def test_phrases(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = ["the quick brown fox", "brown quick fox", "quick, BROWN", "a quick brown", "brown", None]
    write_dataset(pa.table({"id": range(6), "t": rows}), path)
    dataset(path).create_scalar_index("t", "INVERTED")
    result = ours(path, {"query": "quick brown", "phrase": True}, None)
    assert {number for number, _ in result} == {0, 2, 3}
    assert ours(path, {"query": "quick brown", "phrase": True}, 1)[0][0] in (2, 3)


def test_wrong_queries_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(table_of(20), path)
    table = dataset(path)
    for query, message in (
        ("fox", "for one column"),
        ({"query": "fox", "column": "t", "operator": "xor"}, "xor"),
        ({"column": "t"}, "needs the text"),
        ({"query": "fox", "colunm": "t"}, "colunm"),
    ):
        with pytest.raises(OptionError, match=message):
            table.to_table(full_text_query=query)
    with pytest.raises(SchemaError, match="holds no text"):
        table.to_table(full_text_query={"query": "x", "column": "id"})
    with pytest.raises(OptionError, match="no option stemm"):
        table.create_scalar_index("t", "INVERTED", stemm=True)
    with pytest.raises(OptionError, match="jieba"):
        table.create_scalar_index("t", "INVERTED", base_tokenizer="jieba")


@given(st.lists(st.integers(1, 2**22), max_size=700), st.integers(0, 2**32))
def test_posting_lists_come_back(steps: list[int], seed: int) -> None:
    documents = np.cumsum(np.array(steps, np.int64))
    frequencies = np.random.default_rng(seed).integers(1, 2 ** (seed % 20 + 1), len(documents))
    blocks = pack_list(documents, frequencies, frequencies.astype(np.float32))
    assert len(blocks) == -(-len(documents) // BLOCK)
    again, often = unpack_list(blocks, len(documents), FIXED_TAIL)
    assert np.array_equal(again, documents)
    assert np.array_equal(often, frequencies)


def test_damaged_posting_lists_are_refused() -> None:
    documents = np.arange(200, dtype=np.int64)
    blocks = pack_list(documents, documents + 1, documents.astype(np.float32))
    with pytest.raises(FormatError):
        unpack_list(blocks[:1], 200, FIXED_TAIL)
    with pytest.raises(FormatError):
        unpack_list([blocks[0][:40], blocks[1]], 200, FIXED_TAIL)
    with pytest.raises(UnsupportedFormatError):
        unpack_list(blocks, 200, "new_codec")


def test_blocks_of_256() -> None:
    """Differences of 1 and frequencies of one bit, with the exceptions 9 and 300."""
    ones = b"\xff" * 32
    deltas = struct.pack("<IB", 7, 1) + b"\xfe" + ones[1:]
    often = bytes([1, 2]) + ones[:10] + b"\xfb" + ones[11:] + bytes([100, 4, 146, 150, 1])
    tail = bytes([0x87, 0x04, 2, 6, 44])
    documents, frequencies = unpack_list([deltas + often, tail], 258, VARINT_TAIL, 256)
    assert documents.tolist() == [*range(7, 263), 519, 521]
    assert {place: number for place, number in enumerate(frequencies.tolist()) if number != 1} == {
        100: 9,
        146: 300,
        256: 6,
        257: 44,
    }
    for damaged in (deltas + often[:-1], deltas + often + b"x", deltas):
        with pytest.raises(FormatError):
            unpack_list([damaged], 256, VARINT_TAIL, 256)
    with pytest.raises(UnsupportedFormatError, match="blocks of 64"):
        unpack_list([], 0, VARINT_TAIL, 64)


@given(st.binary(max_size=200))
def test_damaged_sets_of_words_end_in_typed_errors(data: bytes) -> None:
    with pytest.raises((FormatError, UnsupportedFormatError)):
        WordAutomaton(b"\x03" + bytes(15) + data).words()


def test_an_automaton_finds_the_numbers_of_single_words() -> None:
    # A root with the arcs "b" (output 1) and "a", both to the final node without arcs.
    root = bytes([1, 0, 0, 0]) + b"ba" + bytes([0x11, 2])
    data = bytes([3, *bytes(15)]) + root + struct.pack("<QQI", 2, 16 + len(root) - 1, 0)
    words = WordAutomaton(data)
    assert words.words() == {b"a": 0, b"b": 1}
    assert [words.number(word) for word in ("a", "b", "", "c", "ab")] == [0, 1, None, None, None]


def test_words_of_texts() -> None:
    cut = Tokenizer().tokenize(pa.array(["Hello, W\u00f6rld! x-1", None, "", "hello"]))
    assert [cut.distinct[int(n)].as_py() for n in cut.word] == ["hello", "world", "x", "1", "hello"]
    assert cut.text.tolist() == [0, 0, 0, 0, 3]
    long = Tokenizer(max_length=4, stops=True, own_stops=("x",)).tokenize(pa.array(["abcd abc the x y"]))
    assert [long.distinct[int(n)].as_py() for n in long.word] == ["abc", "the", "y"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("base", ["simple", "whitespace"])
@given(
    pieces=st.lists(st.none() | st.text("aB3 -\t\x0b\x00~", max_size=9), max_size=12), first=st.integers(0, 3)
)
def test_ascii_texts_have_the_words_of_any_texts(
    kind: pa.DataType, base: str, pieces: list[str | None], first: int
) -> None:
    cutter = Tokenizer(base, stem=False, stops=False)
    parts = [cutter.tokenize(pa.array([*pieces, *more], kind)[first:]) for more in ([], ["\u00e9"])]
    some, every = ((part.distinct.take(pa.array(part.word)).to_pylist(), part) for part in parts)
    count = len(some[0])
    assert some[0] == every[0][:count]
    assert np.array_equal(some[1].text, every[1].text[:count])
    assert np.array_equal(some[1].position, every[1].position[:count])
    assert len(every[0]) - count <= 1
