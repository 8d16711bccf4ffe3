"""Words of texts, and text searches in columns of JSON, by indices of either side, compared with pylance."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
import spark_lance.query
from spark_lance.errors import ColumnTypeError, LanceError, OptionError
from spark_lance.index.text.tokenizer import Tokenizer

WORDS = ["red", "fish", "Running", "the", "dogs", "Äpfel", "one", "two", "b1"]
KEYS = ["a", "b", "Key", "x.y", "", "c,d"]
LEAVES: list[Any] = [None, True, False, 0, -3, 7, 1.5, 1e-7, 1e300, 2**63, -0.0, ""]


@pytest.mark.parametrize("base", ["simple", "whitespace"])
def test_every_character_is_in_a_word_or_between_words_as_in_pylance(base: str) -> None:
    tokenizer = Tokenizer(base, max_length=None, lower=False, stem=False, stops=False, fold=False)
    characters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), 50_000):
        text = "".join(f"a{character}b " for character in characters[start : start + 50_000])
        tokens = lance.tokenize(
            text,
            base_tokenizer=base,
            max_token_length=None,
            lower_case=False,
            stem=False,
            remove_stop_words=False,
            ascii_folding=False,
        )
        query = tokenizer.cut_query(text)
        assert query.distinct.take(pa.array(query.word)).to_pylist() == [token.text for token in tokens]


def value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth < 3 and kind < 0.25:
        return {key: value(rng, depth + 1) for key in rng.sample(KEYS, rng.randrange(0, 4))}
    if depth < 3 and kind < 0.4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(0, 4))]
    if kind < 0.6:
        return rng.choice(LEAVES)
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 5)))


def documents(seed: int, count: int) -> list[str | None]:
    rng = random.Random(seed)
    results = [
        json.dumps({"a": value(rng, 0), "n": rng.randrange(4), **{rng.choice(KEYS): value(rng, 1)}})
        for _ in range(count)
    ]
    return [*results, None, "null", '"red fish"', "7", "[]", "{}", '["two", [["dogs"]]]']


PATHS = ("a", "b", "a.b", "Key", "", "x.y")
QUERIES = [
    *(f"{path},str,{words}" for path in PATHS for words in ("red", "fish two", "THE")),
    "n,number,2",
    "a,number,-3",
    "a,number,1.5",
    "a,bool,true",
    "a,null,null",
    ",number,7",
    ",null,null",
    "b,str,red;n,number,1",
    "nowhere,str,red",
    "a,str,",
    "a,number,",
]


def rows(docs: list[str | None], first: int = 0) -> pa.Table:
    return pa.table({"id": range(first, first + len(docs)), "j": pa.array(docs, pa.json_())})


def scores(table: Any, query: Any) -> dict[int, float]:
    request = {"query": query, "columns": ["j"]} if isinstance(query, str) else query
    result = table.to_table(columns=["id", "_score"], full_text_query=request, limit=1000)
    return dict(zip(result["id"].to_pylist(), result["_score"].to_pylist(), strict=True))


def alike(path: Path, queries: list[Any], *, exact: bool = True) -> None:
    ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
    hits = 0
    for query in queries:
        # Calls of one class each of the two packages have, or text.
        requests = [query if isinstance(query, str) else query(module) for module in (spark_lance, lance)]
        mine, other = scores(ours, requests[0]), scores(theirs, requests[1])
        assert mine.keys() == other.keys(), query
        assert not exact or mine == pytest.approx(other, rel=1e-4), query
        hits += len(mine)
    assert hits > 50


@pytest.mark.parametrize("builder", ["ours", "pylance"])
@pytest.mark.parametrize(
    "options",
    [
        {"stem": False, "remove_stop_words": False},
        {"stem": True, "remove_stop_words": True},
        {"stem": False, "remove_stop_words": False, "lower_case": False, "base_tokenizer": "whitespace"},
    ],
)
def test_rows_and_scores(tmp_path: Path, builder: str, options: dict[str, Any]) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(rows(documents(1, 120)), path, max_rows_per_file=50)
    table: Any = spark_lance.dataset(path) if builder == "ours" else lance.dataset(str(path))
    table.create_scalar_index("j", "INVERTED", **options)
    alike(path, QUERIES)
    assert spark_lance.dataset(path).index_statistics("j_idx")["num_indexed_rows"] == 127


@pytest.mark.parametrize("builder", ["ours", "pylance"])
def test_phrases_and_words_alike(tmp_path: Path, builder: str) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(rows(documents(2, 300)), path)
    table: Any = spark_lance.dataset(path) if builder == "ours" else lance.dataset(str(path))
    table.create_scalar_index("j", "INVERTED", stem=False, remove_stop_words=False, with_position=True)
    near = [f"{path},str,{words}" for path in ("a", "b", "Key", "") for words in ("red fish", "one two dogs")]
    phrases = [lambda module, text=text: module.query.PhraseQuery(text, "j") for text in near]
    alike(path, [*phrases, *QUERIES], exact=False)
    like = ["a,str,rad", "b,str,tvo", "a,str,dgs", "n,number,2"]
    fuzzy = [lambda module, text=text: module.query.MatchQuery(text, "j", fuzziness=1) for text in like]
    alike(path, fuzzy, exact=False)


def test_rows_that_are_not_indexed_and_histories(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(rows(documents(3, 60)), path, max_rows_per_file=30)
    spark_lance.dataset(path).create_scalar_index("j", "INVERTED", stem=False, remove_stop_words=False)
    lance.write_dataset(rows(documents(4, 40), 1000), str(path), mode="append")
    alike(path, QUERIES, exact=False)
    spark_lance.dataset(path).delete("id % 5 = 0")
    spark_lance.dataset(path).update({"j": '\'{"a": "red fish again"}\''}, where="id % 7 = 1")
    spark_lance.dataset(path).optimize.optimize_indices()
    alike(path, QUERIES, exact=False)
    spark_lance.dataset(path).optimize.compact_files()
    alike(path, QUERIES, exact=False)
    lance.dataset(str(path)).optimize.optimize_indices()
    alike(path, QUERIES, exact=False)
    result = scores(spark_lance.dataset(path), "a,str,again")
    numbers = spark_lance.dataset(path).to_table(["id"])["id"].to_pylist()
    assert result.keys() == {number for number in numbers if number % 7 == 1}


def test_without_an_index(tmp_path: Path) -> None:
    ds = spark_lance.write_dataset(rows(['{"a": "red fish"}', '{"b": "red"}', '{"a": 7}']), tmp_path / "t")
    assert scores(ds, "a,str,red").keys() == {0}
    assert scores(ds, "a,number,7").keys() == {2}


@pytest.mark.parametrize("query", ["red", "a,red", "a,text,red", "a,str,red;", ""])
def test_queries_that_are_no_triples(tmp_path: Path, query: str) -> None:
    ds = spark_lance.write_dataset(rows(['{"a": "red fish"}']), tmp_path / "t")
    ds = ds.create_scalar_index("j", "INVERTED")
    with pytest.raises(OptionError, match="path,type,value"):
        scores(ds, query)
    with pytest.raises(Exception, match="Invalid triple"):
        scores(lance.dataset(str(tmp_path / "t")), query)


def test_damaged_documents(tmp_path: Path) -> None:
    metadata = {"ARROW:extension:name": "lance.json", "ARROW:extension:metadata": ""}
    schema = pa.schema([pa.field("j", pa.large_binary(), metadata=metadata)])
    damaged = ("", "40000009", "2000000060000000", "400000012000000100")
    for data in map(bytes.fromhex, damaged):
        path = str(tmp_path / f"t{data.hex()}")
        lance.write_dataset(pa.table([pa.array([data], pa.large_binary())], schema=schema), path)
        ds = spark_lance.dataset(path)
        with pytest.raises(LanceError):
            ds.create_scalar_index("j", "INVERTED")


def test_other_binary_has_no_words(tmp_path: Path) -> None:
    ds = spark_lance.write_dataset(pa.table({"b": pa.array([b"x"], pa.large_binary())}), tmp_path / "t")
    with pytest.raises(ColumnTypeError):
        ds.create_scalar_index("b", "INVERTED")


@pytest.mark.parametrize(
    "options",
    [
        {"custom_stop_words": ["alpha", "runs"]},
        {"custom_stop_words": []},
        {"custom_stop_words": ["alpha"], "remove_stop_words": False},
        {"custom_stop_words": ["Alpha", "run"], "stem": True},
        {"custom_stop_words": ["Alpha"], "lower_case": False, "stem": False},
    ],
)
def test_own_stop_words_replace_those_of_the_language(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = pa.table({"t": ["the Alpha runs", "beta and run", "alpha", "running zeta"]})
    path = str(tmp_path / "t")
    spark_lance.write_dataset(texts, path).create_scalar_index("t", "INVERTED", **options)
    answers = []
    for writer in (spark_lance, lance):
        ours, theirs = spark_lance.dataset(path), lance.dataset(path)
        for query in ("the", "alpha", "Alpha", "runs", "run", "running", "and", "beta"):
            result = ours.to_table(full_text_query={"query": query, "columns": ["t"]})["t"].to_pylist()
            assert sorted(result) == sorted(theirs.to_table(full_text_query=query)["t"].to_pylist())
            answers.append((query, sorted(result)))
        if writer is spark_lance:
            theirs.create_scalar_index("t", "INVERTED", replace=True, **options)
    assert answers[:8] == answers[8:]
