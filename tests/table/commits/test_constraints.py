"""CHECK constraints without Spark: on every way to write, next to other writers, and through the history."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance import LanceDataset
from spark_lance.errors import ConstraintError, FormatError, OptionError
from spark_lance.table.schema.constraints import own_condition, table_constraints

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int64()), ("s", pa.string())])


def rows(*values: tuple[int, int | None], s: str = "x") -> pa.Table:
    return pa.table(
        {"id": [i for i, _ in values], "v": [v for _, v in values], "s": [s] * len(values)}, SCHEMA
    )


@pytest.fixture
def table(tmp_path: Path) -> LanceDataset:
    dataset = spark_lance.write_dataset(rows((1, 1), (2, None)), str(tmp_path / "t"))
    return dataset.settings.add_constraint("positive", "v > 0")


def latest(table: LanceDataset) -> LanceDataset:
    return spark_lance.dataset(table.uri)


def append(table: LanceDataset) -> None:
    spark_lance.write_dataset(rows((3, 3), (4, -4)), table.uri, mode="append")


def overwrite(table: LanceDataset) -> None:
    spark_lance.write_dataset(rows((3, -3)), table.uri, mode="overwrite")


def update(table: LanceDataset) -> None:
    table.update({"v": "-v"}, where="id = 1")


def upsert(table: LanceDataset) -> None:
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows((1, -1)))


def update_columns(table: LanceDataset) -> None:
    new = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([-5], pa.int64())})
    table.merge_insert("id").when_matched_update_all().execute(new)


def commit_fragments(table: LanceDataset) -> None:
    fragment = spark_lance.LanceFragment.create(table.uri, rows((9, -9)))
    operation = spark_lance.LanceOperation.Append([fragment])
    LanceDataset.commit(table.uri, operation, read_version=table.version)


def rename(table: LanceDataset) -> None:
    table.alter_columns({"path": "v", "name": "w"})


def drop(table: LanceDataset) -> None:
    table.drop_columns(["v"])


@pytest.mark.parametrize("write", [append, overwrite, update, upsert, update_columns, commit_fragments])
def test_no_write_brings_a_violating_row(table: LanceDataset, write: Callable[[LanceDataset], None]) -> None:
    with pytest.raises(
        ConstraintError, match=r"constraint positive \(v > 0\).* v = -\d; nothing was written"
    ):
        write(table)
    assert latest(table).version == table.version
    assert latest(table).to_table().to_pylist() == rows((1, 1), (2, None)).to_pylist()


@pytest.mark.parametrize("change", [rename, drop])
def test_columns_of_constraints_stay(table: LanceDataset, change: Callable[[LanceDataset], None]) -> None:
    with pytest.raises(ConstraintError, match=r"'v'.*DROP CONSTRAINT positive"):
        change(table)
    table.settings.drop_constraint("POSITIVE")
    change(latest(table))


def test_writes_that_satisfy_it_pass(table: LanceDataset) -> None:
    spark_lance.write_dataset(rows((3, 3), (4, None)), table.uri, mode="append")
    table = latest(table)
    table.delete("id = 1")
    latest(table).update({"v": "v + 1"}, where="id = 3")
    latest(table).optimize.compact_files()
    table = latest(table)
    table.alter_columns({"path": "s", "name": "text"}, {"path": "v", "data_type": pa.int32()})
    assert sorted(latest(table).to_table().column("v").to_pylist(), key=str) == [4, None, None]
    violating = rows((7, -7)).rename_columns(["id", "v", "text"]).cast(latest(table).schema)
    with pytest.raises(ConstraintError):
        spark_lance.write_dataset(violating, table.uri, mode="append")


def test_a_constraint_that_rows_violate_is_not_added(table: LanceDataset) -> None:
    with pytest.raises(
        ConstraintError, match=r"small \(v < 1\) is violated by the row v = 1.*cannot be added"
    ):
        table.settings.add_constraint("small", "v < 1")
    table.delete("v = 1")
    latest(table).settings.add_constraint("small", "v < 1")
    with pytest.raises(ConstraintError, match="positive"):
        latest(table).settings.add_constraint("Positive", "v > 1")
    with pytest.raises(ConstraintError, match="no constraint other; there are: positive, small"):
        latest(table).settings.drop_constraint("other")
    latest(table).settings.drop_constraint("other", if_exists=True)


def test_an_append_that_began_before_is_checked(tmp_path: Path) -> None:
    old = spark_lance.write_dataset(rows((1, 1)), str(tmp_path / "t"))
    fragment = spark_lance.LanceFragment.create(old.uri, rows((9, -9)))
    old.settings.add_constraint("positive", "v > 0")
    operation = spark_lance.LanceOperation.Append([fragment])
    with pytest.raises(ConstraintError, match="v = -9"):
        LanceDataset.commit(old.uri, operation, read_version=old.version)
    # The other way round: the constraint is checked against rows that were committed meanwhile.
    old = spark_lance.write_dataset(rows((1, 1)), str(tmp_path / "u"))
    append(old)
    with pytest.raises(ConstraintError, match="v = -4"):
        old.settings.add_constraint("positive", "v > 0")


def test_branches_clones_and_restores_carry_it(table: LanceDataset, tmp_path: Path) -> None:
    clone = table.shallow_clone(str(tmp_path / "clone"), table.version)
    branch = table.create_branch("b")
    latest(table).settings.drop_constraint("positive")
    append(table)
    for copy in (clone, branch):
        with pytest.raises(ConstraintError):
            copy.insert(rows((5, -5)))
    table.checkout_version(table.version).restore()
    with pytest.raises(ConstraintError):
        append(table)


def test_settings_do_not_touch_constraints(table: LanceDataset) -> None:
    table.update_config({"note": "a"}, replace=True)
    assert latest(table).config() == {"note": "a"}
    for key in ("spark_lance.constraints.positive", "delta.constraints.positive"):
        with pytest.raises(OptionError, match="ADD CONSTRAINT positive CHECK"):
            latest(table).update_config({key: None})
    with pytest.raises(ConstraintError):
        append(table)
    with pytest.raises(FormatError):
        table_constraints({"spark_lance.constraints.x": '{"type": "other"}'})


def test_logged_rows_are_checked(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), False, {"lance-schema:unenforced-primary-key": "true"}),
            ("v", pa.int64()),
        ]
    )
    table = spark_lance.write_dataset(pa.table({"id": [1], "v": [1]}, schema), str(tmp_path / "t"))
    table = table.settings.add_constraint("positive", "v > 0")
    table.initialize_mem_wal(unsharded=True)
    with latest(table).upsert_log() as log:
        log.put(pa.table({"id": [2], "v": [2]}, schema))
        log.delete(pa.table({"id": [2]}, pa.schema([schema.field("id")])))
        with pytest.raises(ConstraintError, match="v = -3"):
            log.put(pa.table({"id": [3], "v": [-3]}, schema))
    with pytest.raises(ConstraintError, match="MemWAL"):
        latest(table).settings.add_constraint("small", "v < 9")


@pytest.mark.parametrize(
    "expression",
    [
        "v + 1 > 0", "upper(s) = 'X'", "v > '5'", "s > 5", "d > '2020-01-01'", "t > TIMESTAMP '2020-01-01'",
        "s = 'a\\'b'", 's = "a"', "v > 0 -- and more", "v", "missing > 0", "v > (SELECT 1)", "1 = 1",
        "c = 'a'",
        "f > 1e0 + 1", "big > 0.5", "v IN (1, 'a')", "v > 1.5", "v > 99999999999999999999",
    ],
)  # fmt: skip
def test_expressions_that_only_spark_evaluates(tmp_path: Path, expression: str) -> None:
    fields: list[Any] = [("v", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("f", pa.float32())]
    fields += [("t", pa.timestamp("us", "UTC")), ("big", pa.decimal128(38, 10))]
    fields += [pa.field("c", pa.string(), metadata={"spark.string-type": "char(5)"})]
    schema = pa.schema(fields)
    assert own_condition(expression, schema) is None
    table = spark_lance.write_dataset(schema.empty_table(), str(tmp_path / "t"))
    with pytest.raises(ConstraintError, match=r"evaluated without Spark"):
        table.settings.add_constraint("c", expression)


def test_values_are_compared_as_spark_does(tmp_path: Path) -> None:
    nan = float("nan")
    data = pa.table({"f": pa.array([-nan, nan, -0.0], pa.float32()), "d": [datetime.date(2020, 1, 2)] * 3})
    table = spark_lance.write_dataset(data, str(tmp_path / "t"))
    for number, expression in enumerate(
        ("f >= 0", "NOT f < 0.0", "f = 0 OR f > 1e9", "d > DATE '2020-01-01'")
    ):
        table = table.settings.add_constraint(f"c{number}", expression)
    with pytest.raises(ConstraintError):
        table.settings.add_constraint("less", "f < 0")
    table.settings.drop_constraint("c2")
    # 0.1 as a float is more than the literal.
    table.insert(data.slice(0, 1).set_column(0, "f", pa.array([0.1], pa.float32())))
    with pytest.raises(ConstraintError, match=r"f = 0\.1"):
        latest(table).settings.add_constraint("tenth", "f != 0.10000000149011612")
    latest(table).settings.add_constraint("tenth", "f <> 0.1")


@pytest.mark.parametrize(
    "call",
    [
        "reflect('java.lang.System', 'exit', 0)",
        "`Java_Method` ('a', 'b')",
        "IDENTIFIER('ref' || 'lect')('a', 'b')",
    ],
)
def test_an_expression_of_somebody_else_calls_no_code(tmp_path: Path, call: str) -> None:
    constraint = json.dumps(
        {"type": "check", "expression": f"id > {call}", "columns": ["id"], "enforced": True}
    )
    with pytest.raises(ConstraintError, match="may call code by"):
        table_constraints({"spark_lance.constraints.c": constraint})
