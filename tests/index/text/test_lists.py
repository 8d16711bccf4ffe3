"""Full-text search in lists of texts: pylance finds the same, with the same scores, over indices of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lance.query
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance import dataset, write_dataset
from spark_lance.errors import ColumnTypeError, UnsupportedFormatError
from spark_lance.index.text.lists import joined_texts

WORDS = ["lance", "data base", "the", "", "quick fox", " fox", "- ,", "lance quick"]
LISTS = st.lists(st.none() | st.lists(st.none() | st.sampled_from(WORDS), max_size=4), max_size=8)
TYPES = [
    pa.list_(pa.string()),
    pa.large_list(pa.string()),
    pa.list_(pa.large_string()),
    pa.large_list(pa.large_string()),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "simple": {"with_position": True},
    "raw": {"base_tokenizer": "raw", "stem": False, "remove_stop_words": False},
    "ngram": {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 3},
}
QUERIES = ["lance", "fox", "data base", "lance quick", "quick fox lance"]
PHRASES = ["lance quick", "fox lance", "base quick fox"]


def by_hand(elements: list[str | None] | None) -> str:
    text = ""
    for element in elements or []:
        if element is not None:
            text += (" " if text else "") + element
    return text


@given(LISTS, st.sampled_from(TYPES), st.integers(0, 3), st.integers(0, 3))
def test_lists_are_texts(
    lists: list[list[str | None] | None], kind: pa.DataType, before: int, behind: int
) -> None:
    around = [["other"], None, ["", "one"]]
    every = pa.array([*around[:before], *lists, *around[:behind]], kind).slice(before, len(lists))
    assert joined_texts(every).to_pylist() == [by_hand(elements) for elements in lists]


def found(table: Any, query: Any) -> list[tuple[int, Any]]:
    rows = table.to_table(columns=["id", "_score"], full_text_query=query, limit=99).to_pylist()
    return sorted((row["id"], pytest.approx(row["_score"], rel=1e-4)) for row in rows)


def rows_of(lists: list[list[str | None] | None], kind: pa.DataType, first: int = 0) -> pa.Table:
    ids = pa.array(range(first, first + len(lists)), pa.int64())
    return pa.table({"id": ids, "t": pa.array(lists, kind)})


@pytest.mark.parametrize("cut", OPTIONS)
@given(LISTS, LISTS, st.sampled_from(TYPES), st.booleans())
@settings(max_examples=15)
def test_pylance_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    cut: str,
    first: list[list[str | None] | None],
    later: list[list[str | None] | None],
    kind: pa.DataType,
    ours: bool,
) -> None:
    """Each builds the index, the other appends rows that it does not have; both search in all of them."""
    path = str(tmp_path_factory.mktemp("lists") / "t")
    write_dataset(rows_of([["lance fox"], *first], kind), path)
    maker: Any = dataset(path) if ours else lance.dataset(path)
    maker.create_scalar_index("t", "INVERTED", **OPTIONS[cut])
    for module in (spark_lance, lance):
        table: Any = module.dataset(path)
        for query in (*QUERIES, *(by_hand(elements) for elements in first)):
            if query.strip():
                assert found(table, query) == found(lance.dataset(path), query), query
    (lance.write_dataset if ours else write_dataset)(rows_of(later, kind, 100), path, mode="append")
    for query in QUERIES:
        assert [row for row, _ in found(dataset(path), query)] == [
            row for row, _ in found(lance.dataset(path), query)
        ], query
    if cut == "simple":
        for phrase in PHRASES:
            mine = found(dataset(path), spark_lance.query.PhraseQuery(phrase, "t"))
            assert [row for row, _ in mine] == [
                row for row, _ in found(lance.dataset(path), lance.query.PhraseQuery(phrase, "t"))
            ], phrase


def test_without_an_index(tmp_path: Path) -> None:
    table = write_dataset(rows_of([["quick", "fox"], None, ["lance"]], TYPES[0]), tmp_path / "t")
    rows = table.to_table(full_text_query={"query": "fox", "columns": ["t"]}).to_pylist()
    assert [row["id"] for row in rows] == [0]


def test_lists_of_numbers_have_no_words(tmp_path: Path) -> None:
    table = write_dataset(pa.table({"t": [[1, 2], [3]]}), tmp_path / "t")
    with pytest.raises(ColumnTypeError, match="'t' is list<item: int64>"):
        table.create_scalar_index("t", "INVERTED")


@pytest.mark.parametrize("kind", ["text", "lists"])
def test_blocks_of_256_documents(kind: str, tmp_path: Path) -> None:
    """pylance rounds the lengths of long texts in such an index."""
    path = str(tmp_path / "t.lance")
    texts = ["fox " * (1 + (i % 97 == 5) * i) + "lance " * (i % 3) for i in range(900)]
    column = pa.array(texts if kind == "text" else [[text, None] for text in texts])
    table = pa.table({"id": range(900), "text": column})
    lance.write_dataset(table, path).create_scalar_index("text", "INVERTED", block_size=256)
    for _ in range(2):
        for query in ("fox", "lance", "fox lance"):
            ours, theirs = (
                one.to_table(columns=["id", "_score"], full_text_query=query, limit=2000, with_row_id=True)
                for one in (dataset(path), lance.dataset(path))
            )
            scores = dict(zip(theirs["_rowid"].to_pylist(), theirs["_score"].to_pylist(), strict=True))
            assert dict(zip(ours["_rowid"].to_pylist(), ours["_score"].to_pylist(), strict=True)) == {
                row: pytest.approx(score, rel=0.08) for row, score in scores.items()
            }
        write_dataset(table.slice(0, 3), path, "append")
        dataset(path).delete("id % 7 = 3")
        dataset(path).optimize.compact_files()
        dataset(path).optimize.optimize_indices()


def test_documents_of_elements_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    rows = lance.write_dataset({"id": [1, 2], "text": [["quick fox", "lance"], ["quick", "fox"]]}, path)
    granularity = lance.query.DocumentGranularity.LIST_ELEMENT
    rows.create_scalar_index("text", "INVERTED", document_granularity=granularity)
    with pytest.raises(UnsupportedFormatError, match="a document for each element"):
        dataset(path).to_table(full_text_query=spark_lance.query.MatchQuery("quick fox", "text"))
    assert write_dataset({"id": [3], "text": [["lance"]]}, path, "append").count_rows("id > 1") == 2
