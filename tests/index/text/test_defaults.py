"""An index of text that is built without options is that of pylance: the same words, rows and scores."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError
from spark_lance.index.base.entries import find_segments
from spark_lance.index.text.inverted import INVERTED_LABEL, INVERTED_NEWEST, text_parts
from spark_lance.index.text.stop_words import LANGUAGES, stop_words

STEMS = [
    "run",
    "ski",
    "happi",
    "organ",
    "nation",
    "gener",
    "fox",
    "relat",
    "hope",
    "comput",
    "argu",
    "connect",
]
ENDS = [
    "",
    "s",
    "es",
    "ing",
    "ed",
    "ly",
    "ation",
    "ational",
    "izer",
    "fulness",
    "ement",
    "ies",
    "y",
    "'s",
    "er",
]
OTHERS = [
    "caf\u00e9",
    "na\u00efve",
    "Stra\u00dfe",
    "x" * 39,
    "y" * 40,
    "\u00e9" * 20,
    "A1b2",
    "the",
    "THE",
    "not",
]


@cache
def stops_of(language: str) -> tuple[str, ...]:
    return tuple(sorted(stop_words(language))) or ("a",)


def words(random: Random, language: str = "English") -> str:
    results = [
        random.choice(STEMS) + random.choice(ENDS),
        random.choice(stops_of(language)),
        random.choice(stops_of(language)).title(),
        random.choice(OTHERS),
        f"w{random.randrange(30)}",
    ]
    return random.choice(results)


def texts(rows: int, seed: int, language: str = "English") -> list[str | None]:
    random = Random(seed)
    marks = [" ", ", ", "--", "\n", "; "]
    return [
        None if random.random() < 0.03 else
        random.choice(marks).join(words(random, language) for _ in range(random.randrange(15)))
        for _ in range(rows)
    ]  # fmt: skip


def built(path: Path, builder: str, language: str | None, seed: int) -> str:
    root = str(path / "t.lance")
    rows = texts(400, seed, language or "English")
    lance.write_dataset(pa.table({"n": range(len(rows)), "t": pa.array(rows)}), root, max_rows_per_file=150)
    options: dict[str, Any] = {} if language is None else {"language": language}
    result: Any = lance.dataset(root) if builder == "theirs" else spark_lance.dataset(root)
    result.create_scalar_index("t", "INVERTED", **options)
    return root


def known_words(root: str) -> dict[str, int]:
    """Return the words of the index, with the texts that have each."""
    table = spark_lance.dataset(root)
    segments = find_segments(table.snapshot, INVERTED_LABEL, INVERTED_NEWEST)
    parts = [part for segment in segments for part in text_parts(segment)]
    results: dict[str, int] = {}
    for part in parts:
        for word in part.words:
            results[word] = results.get(word, 0) + len(part.postings(word)[0])
    return results


def assert_same_answers(root: str, queries: list[str]) -> None:
    for query in queries:
        ours, theirs = (
            opened.dataset(root).to_table(columns=["n", "_score"], full_text_query=query, limit=400)
            for opened in (spark_lance, lance)
        )
        one, other = (
            dict(zip(t["n"].to_pylist(), t["_score"].to_pylist(), strict=True)) for t in (ours, theirs)
        )
        assert one.keys() == other.keys(), query
        assert np.allclose([one[n] for n in other], list(other.values()), rtol=1e-4), query


@pytest.mark.parametrize("seed", [1, 2])
def test_default_indices_have_the_same_words_and_answers(tmp_path: Path, seed: int) -> None:
    random = Random(seed + 100)
    queries = [" ".join(words(random) for _ in range(random.randrange(1, 5))) for _ in range(25)]
    roots = [built(tmp_path / builder, builder, None, seed) for builder in ("ours", "theirs")]
    assert known_words(roots[0]) == known_words(roots[1])
    for root in roots:
        assert_same_answers(root, queries)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_the_stop_words_and_stems_of_pylance(tmp_path: Path, language: str) -> None:
    roots = [built(tmp_path / builder, builder, language, 5) for builder in ("ours", "theirs")]
    assert known_words(roots[0]) == known_words(roots[1])
    random = Random(9)
    assert_same_answers(roots[0], [words(random, language) for _ in range(5)])


def test_the_settings_of_an_index_are_those_of_pylance(tmp_path: Path) -> None:
    settings = []
    for builder in ("ours", "theirs"):
        (index,) = lance.dataset(built(tmp_path / builder, builder, None, 3)).describe_indices()
        settings.append({**index.details, "lance_tokenizer": None})
    assert settings[0] == settings[1]
    assert all(settings[0][name] for name in ("stem", "remove_stop_words", "ascii_folding", "lower_case"))


def test_an_index_keeps_the_settings_it_was_built_with(tmp_path: Path) -> None:
    root = str(tmp_path / "t.lance")
    ds = spark_lance.write_dataset(pa.table({"t": ["the runs", "running"]}), root)
    ds.create_scalar_index("t", "INVERTED", stem=False, remove_stop_words=False)
    spark_lance.write_dataset(pa.table({"t": ["runs of the"]}), root, mode="append")
    spark_lance.dataset(root).optimize.optimize_indices()
    for query, rows in (("runs", 2), ("the", 2), ("run", 0)):
        assert spark_lance.dataset(root).to_table(full_text_query=query).num_rows == rows
        assert lance.dataset(root).to_table(full_text_query=query).num_rows == rows
    (index,) = lance.dataset(root).describe_indices()
    assert not index.details["stem"]


@pytest.mark.parametrize("wrong", [{"language": "Klingon"}, {"base_tokenizer": "nope"}, {"nonsense": 1}])
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    ds = spark_lance.write_dataset(pa.table({"t": ["a"]}), tmp_path / "t.lance")
    with pytest.raises(OptionError):
        ds.create_scalar_index("t", "INVERTED", **wrong)
    assert json.dumps(ds.describe_indices()) == "[]"
