"""JSON columns in tables: written and read in turns with pylance, through every kind of change."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.errors import ExpressionError, SchemaError

DOCUMENTS = ['{"b":1,"a":[1,2.5,"x"]}', None, "null", '"s"', " 7 "]


def table(start: int = 0) -> pa.Table:
    column = pa.array(DOCUMENTS, pa.json_())
    inside = pa.StructArray.from_arrays([column], fields=[pa.field("k", pa.json_())])
    lists = pa.ListArray.from_arrays([0, 2, 2, 3, 4, 5], column)
    return pa.table({"i": range(start, start + 5), "j": column, "s": inside, "l": lists})


def same(path: Path) -> list[dict[str, Any]]:
    ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
    assert ours.schema == theirs.schema
    rows = ours.to_table().to_pylist()
    assert rows == theirs.to_table().to_pylist()
    assert ours.take([0], columns=["j"]).schema.field("j").type == pa.json_()
    return list(rows)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("first", [spark_lance, lance])
def test_both_write_the_same(tmp_path: Path, version: str, first: Any) -> None:
    path = tmp_path / "t"
    first.write_dataset(table(), str(path), data_storage_version=version)
    assert same(path)[0]["j"] == '{"a":[1,2.5,"x"],"b":1}'
    spark_lance.write_dataset(table(5), path, mode="append")
    lance.write_dataset(table(10), str(path), mode="append")
    rows = same(path)
    assert [row["j"] for row in rows] == ['{"a":[1,2.5,"x"],"b":1}', None, "null", '"s"', "7"] * 3
    assert rows[2]["l"] == ["null"]
    assert rows[0]["s"] == {"k": rows[0]["j"]}
    assert spark_lance.dataset(path).count_rows("j is null") == 3


def test_what_may_stand_for_documents(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(table().select(["i", "j"]), path)
    large = pa.array(['{"z":1}'], pa.large_string())
    coded = pa.array(["[1]"]).dictionary_encode()
    stored = pa.Table.from_arrays(
        [pa.array([7]), pa.array([bytes.fromhex("8000000120000002500b")], pa.large_binary())], ["i", "j"]
    )
    for data in ({"i": [5], "j": large}, {"i": [6], "j": coded}, {"i": [8], "j": pa.nulls(1)}, stored):
        spark_lance.write_dataset(data, path, mode="append")
    assert [row["j"] for row in same_rows(path)[5:]] == ['{"z":1}', "[1]", None, "[11]"]
    for bad, message in (
        ({"i": [9], "j": ['{"z":']}, "column 'j': .* is not JSON"),
        ({"i": [9], "j": [1]}, "arrow.json"),
        ({"i": [9], "j": pa.array([b"abc"], pa.large_binary())}, "must be stored documents"),
    ):
        with pytest.raises(SchemaError, match=message):
            spark_lance.write_dataset(bad, path, mode="append")
    assert spark_lance.dataset(path).count_rows() == 9


def same_rows(path: Path) -> list[dict[str, Any]]:
    rows = spark_lance.dataset(path).to_table().to_pylist()
    assert rows == lance.dataset(str(path)).to_table().to_pylist()
    return list(rows)


def random_document(rng: random.Random) -> str | None:
    results: Any = {"n": rng.randrange(100), "t": rng.choice("abc"), "l": list(range(rng.randrange(4)))}
    return rng.choice([None, json.dumps(results), "[]", "null", str(rng.random())])


@pytest.mark.parametrize("stable", [False, True])
def test_histories_in_turns(tmp_path: Path, stable: bool) -> None:
    """Rows of a table that both change in turns are those of a dict that is changed alike."""
    rng = random.Random(stable)
    path = tmp_path / "t"
    model: dict[int, Any] = {}

    def rows(keys: list[int]) -> pa.Table:
        texts = [random_document(rng) for _ in keys]
        for key, text in zip(keys, texts, strict=True):
            model[key] = None if text is None else json.loads(text)
        return pa.table({"i": pa.array(keys, pa.int64()), "j": pa.array(texts, pa.json_())})

    spark_lance.write_dataset(rows(list(range(20))), path, enable_stable_row_ids=stable)
    for step in range(24):
        module: Any = rng.choice([spark_lance, lance])
        changed = module.dataset(str(path))
        action = rng.randrange(6)
        if action == 0:
            first = max(model, default=0) + 1
            module.write_dataset(rows(list(range(first, first + 5))), str(path), mode="append")
        elif action == 1 and model:
            key = rng.choice(list(model))
            changed.delete(f"i = {key}")
            del model[key]
        elif action == 2 and model:
            key = rng.choice(list(model))
            changed.update({"j": f"""'{{"u":{step}}}'"""}, where=f"i = {key}")
            model[key] = {"u": step}
        elif action == 3 and model:
            keys = [*rng.sample(list(model), min(3, len(model))), max(model) + 1]
            merge = changed.merge_insert("i").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(rows(keys))
        elif action == 4:
            changed.optimize.compact_files()
        else:
            changed.add_columns({f"n{step}": "json_get_int(j, 'u')"})
            changed = module.dataset(str(path))
            changed.drop_columns([f"n{step}"])
        result = same_rows(path)
        parsed = {row["i"]: None if row["j"] is None else json.loads(row["j"]) for row in result}
        assert len(result) == len(parsed)
        assert parsed == model, (step, action)


def test_changes_are_told_as_text(tmp_path: Path) -> None:
    ours = spark_lance.write_dataset(table().select(["i", "j"]), tmp_path / "t", enable_stable_row_ids=True)
    ours.update({"j": "'[1, 2]'"}, where="i = 1")
    changes = spark_lance.dataset(tmp_path / "t").diff(1)
    assert changes.updated().read_all()["j"].to_pylist() == ["[1,2]"]
    assert changes.updated(["j"]).schema.field("j").type == pa.json_()


def test_columns_are_added_and_renamed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ours = spark_lance.write_dataset({"i": [0, 1]}, path)
    ours.add_columns(pa.schema([pa.field("j", pa.json_())]))
    ours = spark_lance.dataset(path)
    ours.update({"j": "'{\"a\": 1}'"}, where="i = 1")
    spark_lance.dataset(path).alter_columns({"path": "j", "name": "k"})
    assert lance.dataset(str(path)).schema.field("k").type == pa.json_()
    assert sorted(map(str, lance.dataset(str(path)).to_table()["k"].to_pylist())) == ["None", '{"a":1}']
    added = spark_lance.dataset(path)
    added.merge(pa.table({"i": [0, 1], "m": pa.array(["1", "2"], pa.json_())}), "i")
    assert sorted(same_column(path, "m")) == ["1", "2"]


def same_column(path: Path, name: str) -> list[Any]:
    result = spark_lance.dataset(path).to_table([name])[name]
    assert result.type == pa.json_()
    assert result.to_pylist() == lance.dataset(str(path)).to_table([name])[name].to_pylist()
    return list(result.to_pylist())


def test_expressions_of_pyarrow_see_text(tmp_path: Path) -> None:
    ours = spark_lance.write_dataset(table().select(["i", "j"]), tmp_path / "t")
    column = pc.field("j")
    assert ours.to_table(["i"], filter=column == "7")["i"].to_pylist() == [4]
    assert ours.to_table(["i"], filter=column.is_null())["i"].to_pylist() == [1]
    assert ours.to_table(["i"], filter=pc.match_substring(column, "2.5"))["i"].to_pylist() == [0]
    with pytest.raises(ExpressionError):
        ours.to_table(filter="j = '7'")
    frame = ours.to_table().to_pandas()
    assert frame["j"].tolist() == ours.to_table()["j"].to_pylist()


def test_chosen_columns_stay_json(tmp_path: Path) -> None:
    ours = spark_lance.write_dataset(table(), tmp_path / "t")
    theirs = lance.dataset(str(tmp_path / "t"))
    columns = {"x": "j", "a": "json_extract(j, '$.a')"}
    result, expected = ours.to_table(columns), theirs.to_table(columns=columns)
    assert result.equals(expected)
    assert result.schema.field("x").type == pa.json_()
    mixed = ours.to_table(["j", "s.k", "l"])
    assert mixed["s.k"].to_pylist() == mixed["j"].to_pylist()
    assert mixed.schema.types[0] == mixed.schema.types[1] == pa.json_()
    assert ours.scanner(["j", "s.k"]).projected_schema == ours.to_table(["j", "s.k"]).schema
