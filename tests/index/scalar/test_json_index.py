"""Indices of values in JSON documents: built by either side, used by both, and no answer depends on them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

import spark_lance
from spark_lance.errors import ColumnTypeError, LanceError, OptionError

VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, -7, 5, 2**53 + 1, 2**62],
    "float": [None, 0.5, -1.5, 1e300, 2.25],
    "string": [None, "x", "y", "7", "", "hello world", "hello"],
    "bool": [None, True, False],
}
CONDITIONS = {
    "int": ["= 1", "> 0", "<= 5", "is null", "is not null", "in (1, 5, 9)", "= 9007199254740993", "!= 1"],
    "float": ["= 0.5", "> 0", "is null", "< 2.25", "in (0.5, 2.25)"],
    "string": ["= 'x'", "> 'x'", "is null", "in ('7', 'y')", "like 'hel%'", "= ''"],
    "bool": ["= true", "is null", "= false"],
}


def documents(kind: str, rng: random.Random, count: int = 400) -> list[str | None]:
    results: list[str | None] = []
    for _ in range(count):
        value = rng.choice(VALUES[kind])
        inner = {"p": rng.choice(VALUES[kind])}
        results.append(
            rng.choice(
                [
                    json.dumps({"a": value, "o": inner}),
                    json.dumps({"a": value}),
                    json.dumps({"o": inner, "0": value}),
                    "[1,2]",
                    None,
                ]
            )
        )
    return results


def answers(path: Path, kind: str) -> None:
    """Check that conditions keep the rows that they keep without indices, in fragments not indexed too."""
    ours = spark_lance.dataset(path)
    calls = [
        f"json_get_{kind}(j, 'a')",
        f"json_get_{kind}(json_get(j, 'o'), 'p')",
        f"json_get_{kind}(j, 'o.p')",
    ]
    for call in calls:
        for condition in CONDITIONS[kind]:
            text = f"{call} {condition}"
            plain = ours.to_table(["i"], filter=text, use_scalar_index=False)["i"].to_pylist()
            assert ours.to_table(["i"], filter=text)["i"].to_pylist() == plain, text
            if "o.p" not in call:
                theirs = lance.dataset(str(path)).to_table(["i"], filter=text, use_scalar_index=False)
                assert theirs["i"].to_pylist() == plain, text


_PAIRS = [("btree", "int"), ("bitmap", "string"), ("zonemap", "float"), ("btree", "bool")]
_OTHERS = [(target, kind) for target in ("btree", "bitmap", "zonemap") for kind in VALUES]


@pytest.mark.parametrize(
    ("target", "kind"),
    [*_PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in _OTHERS if pair not in _PAIRS)],
)
def test_either_builds_and_both_use(tmp_path: Path, target: str, kind: str) -> None:
    rng = random.Random(f"{target}{kind}")
    path = tmp_path / "t"
    texts = documents(kind, rng)
    table = pa.table({"i": range(len(texts)), "j": pa.array(texts, pa.json_())})
    ours = spark_lance.write_dataset(table, path, max_rows_per_file=150)
    ours.create_scalar_index("j", "JSON", "mine", path="$.a", target_index_type=target)
    config = IndexConfig(index_type="json", parameters={"target_index_type": target, "path": "o.p"})
    lance.dataset(str(path)).create_scalar_index("j", config, name="theirs")
    spark_lance.write_dataset(table.slice(0, 30), path, mode="append")
    answers(path, kind)
    text = f"json_get_{kind}(j, 'a') {CONDITIONS[kind][0]}"
    assert "mine" in spark_lance.dataset(path).scanner(filter=text).explain_plan()
    if kind != "bool":  # pylance uses no index for booleans
        theirs = lance.dataset(str(path))
        plan = theirs.scanner(filter=text).explain_plan(True)
        assert "ScalarIndexQuery" in plan
        assert "mine" in plan
        expected = spark_lance.dataset(path).to_table(["i"], filter=text)["i"].to_pylist()
        assert theirs.to_table(["i"], filter=text)["i"].to_pylist() == expected
    # Rows come, go and move; the new ones are indexed, and the index is written anew.
    spark_lance.dataset(path).delete("i % 7 = 0")
    spark_lance.dataset(path).update({"j": "'{\"a\": null}'"}, where="i % 11 = 0")
    answers(path, kind)
    spark_lance.dataset(path).optimize.compact_files()
    answers(path, kind)
    spark_lance.dataset(path).optimize.optimize_indices()
    answers(path, kind)
    lance.dataset(str(path)).optimize.optimize_indices()
    answers(path, kind)


def test_what_pylance_makes_of_mixed_values(tmp_path: Path) -> None:
    rng = random.Random(4)
    every = [value for values in VALUES.values() for value in values]
    for number in range(12):
        path = tmp_path / str(number)
        some = rng.sample(every, 3)
        texts = [json.dumps({"a": rng.choice(some)}) for _ in range(20)]
        table = pa.table({"i": range(20), "j": pa.array(texts, pa.json_())})
        theirs = lance.write_dataset(table, str(path))
        config = IndexConfig(index_type="json", parameters={"target_index_type": "btree", "path": "a"})
        try:
            theirs.create_scalar_index("j", config, name="a")
        except (OSError, ValueError, NotImplementedError):
            continue
        ours = spark_lance.dataset(path)
        for kind, conditions in CONDITIONS.items():
            for condition in conditions:
                text = f"json_get_{kind}(j, 'a') {condition}"
                try:
                    plain = ours.to_table(["i"], filter=text, use_scalar_index=False).to_pylist()
                except LanceError:
                    continue
                assert ours.to_table(["i"], filter=text).to_pylist() == plain, (texts, text)


def test_stable_row_ids(tmp_path: Path) -> None:
    path = tmp_path / "t"
    texts = documents("int", random.Random(2))
    table = pa.table({"i": range(len(texts)), "j": pa.array(texts, pa.json_())})
    ours = spark_lance.write_dataset(table, path, max_rows_per_file=150, enable_stable_row_ids=True)
    with pytest.raises(OptionError, match="stable row ids"):
        ours.create_scalar_index("j", "JSON", "mine", path="a")
    ours.update({"j": "'{\"a\": 1}'"}, where="i % 5 = 0")
    ours = spark_lance.dataset(path)
    ours.create_scalar_index("j", "JSON", "mine", path="a", target_index_type="bitmap")
    config = IndexConfig(index_type="json", parameters={"target_index_type": "zonemap", "path": "o.p"})
    lance.dataset(str(path)).create_scalar_index("j", config, name="theirs")
    answers(path, "int")
    text = "json_get_int(j, 'a') = 1"
    theirs = lance.dataset(str(path)).to_table(["i"], filter=text)["i"].to_pylist()
    assert sorted(theirs) == sorted(spark_lance.dataset(path).to_table(["i"], filter=text)["i"].to_pylist())
    spark_lance.dataset(path).update({"j": "'{\"a\": 5}'"}, where="i % 3 = 0")
    spark_lance.dataset(path).optimize.compact_files()
    answers(path, "int")


def test_what_is_refused(tmp_path: Path) -> None:
    texts = ['{"m":1,"o":{"x":1},"big":18446744073709551615,"s":"x"}', '{"m":1.5}']
    ours = spark_lance.write_dataset({"j": pa.array(texts, pa.json_()), "b": ["x", "y"]}, tmp_path / "t")
    for path, message in (("m", "floats and whole numbers"), ("o", "objects"), ("big", "64 bits")):
        with pytest.raises(ColumnTypeError, match=message):
            ours.create_scalar_index("j", "JSON", path=path)
    for options in ({}, {"path": "l[0]"}, {"path": "$"}, {"path": "a", "x": 1},
                    {"path": "a", "target_index_type": "bloomfilter"}):  # fmt: skip
        with pytest.raises(OptionError):
            ours.create_scalar_index("j", "JSON", **options)
    with pytest.raises(ColumnTypeError):
        ours.create_scalar_index("b", "JSON", path="a")
    with pytest.raises(ColumnTypeError):
        ours.create_scalar_index("j", "BTREE")
    ours.create_scalar_index("j", "JSON", "words", path="s", target_index_type="ngram")
    ds = spark_lance.dataset(tmp_path / "t")
    assert ds.count_rows("contains(json_get_string(j, 's'), 'x')") == 1
    assert ds.describe_indices()[0].index_type == "Json"


def test_what_others_index_so_is_left_alone(tmp_path: Path) -> None:
    """Indices of documents as texts, as bytes or with filters of Bloom are no hindrance to others."""
    path, texts = tmp_path / "t", documents("int", random.Random(6), 60)
    theirs = lance.write_dataset(pa.table({"i": range(60), "j": pa.array(texts, pa.json_())}), str(path))
    theirs.create_scalar_index("j", "INVERTED", name="words")
    bloom = IndexConfig(index_type="json", parameters={"target_index_type": "bloomfilter", "path": "a"})
    theirs.create_scalar_index("j", bloom, name="bloom")
    theirs.create_scalar_index("j", "BTREE", name="bytes")
    ours = spark_lance.dataset(path)
    ours.create_scalar_index("j", "JSON", "mine", path="a")
    spark_lance.write_dataset(
        pa.table({"i": [60], "j": pa.array(['{"a":5}'], pa.json_())}), path, mode="append"
    )
    ours = spark_lance.dataset(path)
    assert ours.count_rows("j is null") == texts.count(None)
    answers(path, "int")
    ours.optimize.compact_files()
    spark_lance.dataset(path).optimize.optimize_indices()
    assert spark_lance.dataset(path).index_statistics("mine")["num_unindexed_rows"] == 0
    answers(path, "int")
    words = ours.to_table(full_text_query={"query": "a,number,5", "column": "j"})["i"].to_pylist()
    assert sorted(words) == ours.to_table(["i"], filter="json_get_int(j, 'a') = 5")["i"].to_pylist() != []
