"""Random texts, histories and queries: what is found is what the texts say, and what pylance finds.

Where pylance 14 differs, it is known how: a phrase with slop may miss rows that have one of its words several
times, and with stable row ids an index keeps the old words of rows that were updated.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
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

STOPS = {"the", "of", "a", "was"}
STEMS = {"running": "run", "puppy": "puppi", "happy": "happi"}
WORDS = ["fox", "dog", "quick", "happy", "puppy", "run", "running", *sorted(STOPS)]

Texts = dict[int, str | None]
Query = tuple[Any, ...]


def some_words(chance: random.Random, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randrange(1, most + 1)))


def some_text(chance: random.Random) -> str | None:
    if chance.random() < 0.1:
        return chance.choice([None, "", "- , -"])
    return some_words(chance, 8).replace(" ", chance.choice([" ", ", ", " - "]))


def some_query(chance: random.Random, inner: bool = False) -> Query:
    kind = chance.choice(["match", "phrase"] if inner else ["match", "phrase", "phrase", "bool", "boost"])
    if kind == "match":
        return kind, some_words(chance, 4), chance.choice(["OR", "AND"])
    if kind == "phrase":
        return kind, some_words(chance, 4), chance.choice([0, 0, 1, 2, 3])
    if kind == "boost":
        return kind, some_query(chance, True), some_query(chance, True)
    parts = [("MUST" if chance.random() < 0.4 else "SHOULD", some_query(chance, True))]
    parts += [
        (chance.choice(["MUST", "SHOULD", "MUST_NOT"]), some_query(chance, True))
        for _ in range(chance.randrange(3))
    ]
    return kind, parts


def built(query: Query, module: Any) -> Any:
    """Return a query as an object of `lance.query` or of `spark_lance.query`."""
    kind, *said = query
    if kind == "match":
        return module.MatchQuery(said[0], "t", operator=module.FullTextOperator[said[1]])
    if kind == "phrase":
        return module.PhraseQuery(said[0], "t", slop=said[1])
    if kind == "boost":
        return module.BoostQuery(built(said[0], module), built(said[1], module))
    return module.BooleanQuery([(module.Occur[how], built(part, module)) for how, part in said[0]])


def is_exact(query: Query) -> bool:
    """Whether pylance misses no row."""
    kind, *said = query
    if kind == "phrase":
        return bool(said[1] == 0)
    parts = {"match": [], "boost": said, "bool": [part for _, part in said[0]] if kind == "bool" else []}
    return all(is_exact(part) for part in parts[kind])


class Model:
    """Answers queries by looking at every text."""

    def __init__(self, texts: Texts, stem: bool, stops: bool) -> None:
        self._stem, self._stops = stem, stops
        self._words = {row: self.words(text or "") for row, text in texts.items()}

    def words(self, text: str) -> list[tuple[int, str]]:
        """Return places and words."""
        result = enumerate(re.findall("[a-z]+", text))
        remaining = [(place, word) for place, word in result if not (self._stops and word in STOPS)]
        return [(place, STEMS.get(word, word) if self._stem else word) for place, word in remaining]

    def answer(self, query: Query) -> set[int]:
        kind, *said = query
        if kind == "boost":
            return self.answer(said[0])
        if kind == "bool":
            return self._combined([(how, self.answer(part)) for how, part in said[0]])
        request = self.words(said[0])
        if not request:
            return set()
        fits: Callable[[list[tuple[int, str]]], bool]
        if kind == "phrase":
            fits = lambda words: self._has_phrase(words, request, said[1])  # noqa: E731
        else:
            every = all if said[1] == "AND" else any
            fits = lambda words: every(word in {w for _, w in words} for _, word in request)  # noqa: E731
        return {row for row, words in self._words.items() if fits(words)}

    def _combined(self, parts: list[tuple[str, set[int]]]) -> set[int]:
        must = [rows for how, rows in parts if how == "MUST"]
        result = set.intersection(*must) if must else set().union(*(r for how, r in parts if how == "SHOULD"))
        return result - set().union(*(rows for how, rows in parts if how == "MUST_NOT"))

    def _has_phrase(self, words: list[tuple[int, str]], asked: list[tuple[int, str]], slop: int) -> bool:
        ends = {place for place, word in words if word == asked[0][1]}
        for (before, _), (after, word) in itertools.pairwise(asked):
            here = {place for place, other in words if other == word}
            ends = {end + after - before + more for end in ends for more in range(slop + 1)} & here
        return bool(ends)


def change(chance: random.Random, path: Path) -> None:
    """Let one of both change the table or look after its index."""
    ours = chance.random() < 0.5
    table: Any = dataset(path) if ours else lance.dataset(str(path))
    step = chance.choice(["append", "append", "delete", "update", "index", "index", "compact"])
    every = chance.randrange(3, 9)
    if step == "append":
        first = 1 + max(dataset(path).to_table(["id"])["id"].to_pylist(), default=0)
        rows = rows_of(chance, chance.randrange(1, 20), first)
        (write_dataset if ours else lance.write_dataset)(rows, str(path), mode="append")
    elif step == "delete":
        table.delete(f"id % {every} = 1")
    elif step == "update":
        table.update({"t": f"'{some_words(chance, 4)}'"}, where=f"id % {every} = 0")
    elif step == "index":
        table.optimize.optimize_indices(num_indices_to_merge=chance.choice([0, 1, None] if ours else [0, 1]))
    else:
        table.optimize.compact_files()


def rows_of(chance: random.Random, count: int, first: int = 0) -> pa.Table:
    texts = pa.array([some_text(chance) for _ in range(count)], pa.string())
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "t": texts})


def ids(table: Any, query: Any, filter: str | None) -> set[int]:
    result = table.to_table(columns=["id", "_score"], full_text_query=query, filter=filter, prefilter=True)
    numbers = result["id"].to_pylist()
    assert len(set(numbers)) == len(numbers)
    return set(numbers)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_of_random_queries(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("texts") / "t"
    stable = chance.random() < 0.5
    stem, stops = chance.random() < 0.4, chance.random() < 0.5
    options = {"with_position": True, "stem": stem, "remove_stop_words": stops}
    write_dataset(
        rows_of(chance, chance.randrange(5, 60)),
        path,
        max_rows_per_file=chance.choice([7, 1000]),
        enable_stable_row_ids=stable,
    )
    who: Any = chance.choice([dataset, lambda place: lance.dataset(str(place))])
    who(path).create_scalar_index("t", "INVERTED", **options)
    for _ in range(chance.randrange(5)):
        change(chance, path)
    table = dataset(path)
    rows = table.to_table()
    model = Model(
        dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True)),
        stem,
        stops,
    )
    for _ in range(8):
        query, filter = some_query(chance), chance.choice([None, None, "id % 2 = 0"])
        expected = {row for row in model.answer(query) if filter is None or row % 2 == 0}
        assert ids(table, built(query, spark_lance.query), filter) == expected, query
        if is_exact(query) and not stable:
            assert ids(lance.dataset(str(path)), built(query, lance.query), filter) == expected, query


def test_how_far_words_of_a_phrase_may_stand_apart_is_what_pylance_says(tmp_path: Path) -> None:
    """Words that occur once: up to `slop` others stand between each two."""
    gaps = [(a, b, c) for a in range(4) for b in range(4) for c in range(4)]
    texts = [" ".join(["aa", *["o"] * a, "bb", *["o"] * b, "cc", *["o"] * c, "dd"]) for a, b, c in gaps]
    table = write_dataset({"id": list(range(len(gaps))), "t": texts}, tmp_path / "t")
    table = table.create_scalar_index("t", "INVERTED", with_position=True, stem=False)
    theirs = lance.dataset(str(tmp_path / "t"))
    for slop in range(5):
        for phrase, counted in (("aa bb", 1), ("aa bb cc", 2), ("aa bb cc dd", 3)):
            query = ("phrase", phrase, slop)
            expected = {row for row, each in enumerate(gaps) if max(each[:counted]) <= slop}
            assert ids(table, built(query, spark_lance.query), None) == expected
            assert ids(theirs, built(query, lance.query), None) == expected
