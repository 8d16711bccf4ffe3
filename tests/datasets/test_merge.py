"""Plans of merges: what will be done, and what a run of it did, which leaves nothing behind."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_lance import LanceDataset, dataset, write_dataset
from spark_lance.errors import MergeError, OptionError, SchemaError

COUNTS = ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")


def table_at(path: Path, rows: int = 100, **options: Any) -> LanceDataset:
    data = pa.table({"id": range(rows), "v": range(rows), "w": [f"w{i}" for i in range(rows)]})
    return write_dataset(data, path, max_rows_per_file=25, **options)


def files_below(path: Path) -> list[Path]:
    return sorted(result for result in path.rglob("*") if result.is_file())


def metric(plan: str, name: str) -> int:
    return int(re.findall(rf"\b{name}=(\d+)", plan)[0])


def merge_of(table: LanceDataset, draw: random.Random) -> Any:
    result: Any = table.merge_insert("id")
    matched = draw.choice(["update", "update_if", "delete", "keep"])
    if matched == "delete":
        result = result.when_matched_delete()
    elif matched != "keep":
        result = result.when_matched_update_all("source.v > target.v" if matched == "update_if" else None)
    if draw.random() < 0.7 or matched == "keep":
        result = result.when_not_matched_insert_all()
    if draw.random() < 0.4:
        result = result.when_not_matched_by_source_delete(draw.choice([None, "v % 5 = 1"]))
    return result.use_index(draw.random() < 0.7)


@pytest.mark.parametrize("seed", range(10))
def test_an_analysis_tells_what_the_merge_does_and_changes_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    table = table_at(tmp_path / "t", enable_stable_row_ids=draw.random() < 0.5)
    if draw.random() < 0.6:
        table = table.create_scalar_index("id", "BTREE")
    keys = draw.sample(range(160), draw.choice([2, 90]))
    source = pa.table({"id": keys, "v": [draw.randrange(160) for _ in keys]})
    if draw.random() < 0.5:
        source = source.append_column("w", pa.array(["new"] * len(keys)))
    merge = merge_of(table, draw)
    before, held = files_below(tmp_path), table.to_table()
    plan = merge.analyze_plan(source)
    assert files_below(tmp_path) == before
    assert dataset(tmp_path / "t").version == table.version
    assert dataset(tmp_path / "t").to_table() == held
    done = merge.execute(source)
    assert {name: metric(plan, name) for name in COUNTS} == {name: getattr(done, name) for name in COUNTS}
    added = [f for f in files_below(tmp_path / "t" / "data") if f not in before]
    assert metric(plan, "num_files_written") == len(added)
    sizes = sum(file.stat().st_size for file in added)
    # Names of files are as long in each run, so the files are, too.
    assert metric(plan, "bytes_written") == sizes
    assert metric(plan, "rows_scanned") <= 100


def test_a_plan_names_the_steps(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    merge = table.merge_insert("id").when_matched_update_all("source.v > target.v")
    merge = merge.when_not_matched_insert_all().when_not_matched_by_source_delete("w = 'x'")
    plan = merge.explain_plan(pa.schema({"id": pa.int64(), "v": pa.int64()}))
    assert plan.splitlines() == [
        "MergeInsert: on=[id], when_matched=UpdateIf(source.v > target.v), when_not_matched=InsertAll, "
        "when_not_matched_by_source=DeleteIf(w = x)",
        "  TakeUpdatedRows: kept_columns=[w]",
        "  InsertNulls: columns=[w]",
        "    HashJoinExec: mode=SourceKeysInMemory, join_type=Full, on=[(id, id)]",
        f"      LanceRead: uri={tmp_path / 't'}, projection=[id, v, w, _rowaddr], num_fragments=4, "
        "version=1, rows=100",
        "      Source: projection=[id, v]",
    ]
    assert "kept_columns=[]" in merge.explain_plan()
    assert "InsertNulls" not in merge.explain_plan(verbose=True)


def test_an_index_is_named_where_it_is_asked(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t", 1000).create_scalar_index("id", "BTREE")
    merge = table.merge_insert("id").when_matched_update_all()
    few, many = pa.table({"id": [3, 4]}), pa.table({"id": range(20, 120)})
    assert "query=[id is among the source's keys]@id_idx(BTREE)" in merge.explain_plan()
    plan = merge.analyze_plan(few)
    assert "query=[id is one of the source's keys]@id_idx(BTREE)" in plan
    assert "of 40, row_lists=1 of 1 fragments" in plan
    assert (metric(plan, "fragments_scanned"), metric(plan, "rows_scanned")) == (1, 2)
    plan = merge.analyze_plan(many)
    assert "query=[id is between the least and the greatest of the source's keys]" in plan
    assert (metric(plan, "rows_scanned"), metric(plan, "num_updated_rows")) == (100, 100)
    unaided = merge.use_index(False)
    assert "ScalarIndexQuery" not in unaided.explain_plan() + unaided.analyze_plan(few)
    assert metric(unaided.analyze_plan(few), "rows_scanned") == 1000
    every = table.merge_insert("id").when_not_matched_by_source_delete()
    assert "ScalarIndexQuery" not in every.explain_plan() + every.analyze_plan(few)


def test_what_a_merge_refuses_its_plans_refuse(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    with pytest.raises(OptionError, match="never change anything"):
        table.merge_insert("id").explain_plan()
    merge = table.merge_insert("id").when_matched_update_all()
    with pytest.raises(SchemaError, match="lacks the key column 'id'"):
        merge.explain_plan(pa.schema({"v": pa.int64()}))
    before = files_below(tmp_path)
    with pytest.raises(MergeError, match="several rows of the source"):
        merge.analyze_plan(pa.table({"id": [1, 1], "v": [2, 3]}))
    assert files_below(tmp_path) == before
