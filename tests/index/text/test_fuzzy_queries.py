"""Fuzzy queries return the rows and scores of pylance, on indexes of one and of several segments."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import lance
import lance.query
import pyarrow as pa
import pytest

import spark_lance
import spark_lance.query

PLAIN: dict[str, Any] = {"stem": False, "remove_stop_words": False}
ALL = 10_000


def random_word(chance: random.Random, letters: str) -> str:
    return "".join(chance.choices(letters, k=chance.randrange(2, 6)))


def random_rows(chance: random.Random, letters: str, count: int, first: int) -> pa.Table:
    texts = [
        " ".join(random_word(chance, letters) for _ in range(chance.randrange(1, 9))) for _ in range(count)
    ]
    return pa.table({"id": range(first, first + count), "t": texts})


def scores(module: Any, path: Path, text: str, k: int, operator: str, **options: Any) -> dict[int, float]:
    """Return the scores by id, best first."""
    query = module.query.MatchQuery(text, "t", operator=module.query.FullTextOperator[operator], **options)
    result = module.dataset(str(path)).to_table(["id", "_score"], full_text_query=query, limit=k)
    return dict(zip(result["id"].to_pylist(), result["_score"].to_pylist(), strict=True))


def build_table(chance: random.Random, path: Path, builder: Any, letters: str, segments: int) -> None:
    for number in range(segments):
        rows = random_rows(chance, letters, 150, 150 * number)
        builder.write_dataset(rows, str(path), mode="append" if number else "create")
        table = builder.dataset(str(path))
        if number:
            table.optimize.optimize_indices(num_indices_to_merge=0)
        else:
            table.create_scalar_index("t", "INVERTED", ascii_folding=False, **PLAIN)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("builder", [spark_lance, lance])
@pytest.mark.parametrize("letters", ["abc", "abcdefgh", "abä字"])
def test_rows_and_scores_of_random_fuzzy_queries(
    tmp_path: Path, letters: str, builder: Any, segments: int
) -> None:
    chance = random.Random(f"{letters} {builder.__name__} {segments}")
    path = tmp_path / "t"
    build_table(chance, path, builder, letters, segments)
    hits = 0
    settings = list(itertools.product((1, 2), (0, 0, 1, 3), (2, 7, 50), ("OR", "AND")))
    for fuzziness, prefix_length, max_expansions, operator in chance.sample(settings, 12):
        words = [random_word(chance, letters) for _ in range(chance.randrange(1, 4))]
        text = " ".join([*words, *chance.choices(words, k=chance.randrange(2))])
        options = {
            "fuzziness": fuzziness, "prefix_length": prefix_length, "max_expansions": max_expansions
        }  # fmt: skip
        ours, theirs = (
            scores(module, path, text, ALL, operator, **options) for module in (spark_lance, lance)
        )
        assert ours == pytest.approx(theirs, rel=1e-5), (text, operator, options)
        best = [
            list(scores(module, path, text, 10, operator, **options).values())
            for module in (spark_lance, lance)
        ]
        assert best[0] == pytest.approx(best[1], rel=1e-5), (text, operator, options)
        assert best[0] == pytest.approx(sorted(ours.values(), reverse=True)[:10], rel=1e-5)
        hits += len(ours)
    assert hits > 20


def test_max_expansions_limits_the_words_of_the_whole_query(tmp_path: Path) -> None:
    """The words similar to the first query word come first, in byte order; the exact word has no priority."""
    path = tmp_path / "t"
    words = ["aaa", "aaaa", "aaab", "aaac", "zzzz"]
    spark_lance.write_dataset({"id": range(5), "t": words}, path)
    spark_lance.dataset(path).create_scalar_index("t", "INVERTED", **PLAIN)
    for text, most, expected in (
        ("aaac", 2, {0, 1}),
        ("aaac", 3, {0, 1, 2}),
        ("aaac zzzx", 4, {0, 1, 2, 3}),
        ("aaac zzzx", 5, {0, 1, 2, 3, 4}),
        ("zzzx aaac", 2, {0, 4}),
        ("aaac", 0, set()),
    ):
        for module in (spark_lance, lance):
            result = scores(module, path, text, ALL, "OR", fuzziness=1, max_expansions=most)
            assert result.keys() == expected, (module, text, most)


def test_the_path_of_a_json_document_is_not_fuzzy(tmp_path: Path) -> None:
    path = tmp_path / "t"
    documents = ['{"a":"red"}', '{"b":"red"}', '{"a":"rod"}', '{"aa":"red"}', '{"a":"tod"}', '{"a":"r"}']
    spark_lance.write_dataset(pa.table({"id": range(6), "t": pa.array(documents, pa.json_())}), path)
    spark_lance.dataset(path).create_scalar_index("t", "INVERTED", **PLAIN)
    for options, expected in (
        ({"fuzziness": 1}, {0, 2}),
        ({"fuzziness": 2}, {0, 2, 4, 5}),
        ({"fuzziness": 2, "prefix_length": 1}, {0, 2, 5}),
        ({"fuzziness": 2, "prefix_length": 2}, set()),
    ):
        for module in (spark_lance, lance):
            assert scores(module, path, "a,str,rad", ALL, "OR", **options).keys() == expected
