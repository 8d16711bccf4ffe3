"""Rows go out to files and come in again as they were; folders of Parquet and Delta tables become tables."""

from __future__ import annotations

import json
import re
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.cli.main import main

Captured = pytest.CaptureFixture[str]

ROWS = pa.table(
    {
        "id": pa.array(range(50), pa.int32()),
        "text": [None if n % 7 == 0 else f'a "quoted", {n}\nline' for n in range(50)],
        "day": pa.array([date(2026, 1, 1 + n % 28) for n in range(50)]),
        "at": pa.array(
            [datetime(2026, 1, 1, n % 24, tzinfo=timezone.utc) for n in range(50)], pa.timestamp("us", "UTC")
        ),
        "amount": pa.array([Decimal(n) / 4 for n in range(50)], pa.decimal128(10, 2)),
        "flag": [n % 3 == 0 for n in range(50)],
        "share": pa.array([n / 8 for n in range(50)], pa.float32()),
    }
)
NESTED = ROWS.append_column(
    "list", pa.array([[n, None] for n in range(50)], pa.list_(pa.int64()))
).append_column("struct", pa.array([{"x": n} for n in range(50)]))


def run(capsys: Captured, *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    return code, printed.err or printed.out


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_there_and_back(ending: str, tmp_path: Path, capsys: Captured) -> None:
    rows = ROWS if ending == "csv" else NESTED
    table, back, file = tmp_path / "t", tmp_path / "back", tmp_path / f"rows.{ending}"
    spark_lance.write_dataset(rows, table, max_rows_per_file=20)
    assert run(capsys, "export", table, file) == (0, f"exported 50 rows to {file}\n")
    spark_lance.write_dataset(rows.schema.empty_table(), back)
    assert run(capsys, "import", file, back) == (0, "imported 50 rows into version 2\n")
    assert spark_lance.dataset(back).to_table() == rows
    assert lance.dataset(str(back)).to_table() == rows
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_json_lines(tmp_path: Path, capsys: Captured) -> None:
    rows = NESTED.drop_columns(["amount"]).append_column("raw", pa.array([bytes([n]) for n in range(50)]))
    spark_lance.write_dataset(rows, tmp_path / "t")
    assert run(capsys, "export", tmp_path / "t", tmp_path / "rows.jsonl")[0] == 0
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(lines[3]) == {
        "id": 3, "text": 'a "quoted", 3\nline', "day": "2026-01-04", "at": "2026-01-01T03:00:00+00:00",
        "flag": True, "share": 0.375, "list": [3, None], "struct": {"x": 3}, "raw": "Aw==",
    }  # fmt: skip
    spark_lance.write_dataset(rows.select(["id", "text", "list", "struct"]), tmp_path / "back")
    assert run(capsys, "import", tmp_path / "rows.jsonl", tmp_path / "new", "--mode", "create")[0] == 0
    result = spark_lance.dataset(tmp_path / "new").to_table(columns=["id", "text", "list", "struct"])
    assert result.to_pylist() == rows.select(["id", "text", "list", "struct"]).to_pylist()


def test_some_rows_and_columns_to_standard_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    words = [
        "export",
        str(tmp_path / "t"),
        "-",
        "--format",
        "csv",
        "--columns",
        "id,day",
        "--where",
        "id > 3",
        "--limit",
        "2",
    ]
    assert main(words) == 0
    assert capfdbinary.readouterr().out == b'"id","day"\n4,2026-01-05\n5,2026-01-06\n'


def test_a_place_that_takes_no_file_is_named_as_what_it_is(tmp_path: Path, capsys: Captured) -> None:
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    folder = tmp_path / "out.parquet"
    folder.mkdir()
    for more in ([], ["--overwrite"]):
        code, error = run(capsys, "export", tmp_path / "t", folder, "--format", "parquet", *more)
        assert (code, f"{folder} is a folder: add the name of a file, such as {folder}/r" in error) == (
            2,
            True,
        )
    assert list(folder.iterdir()) == []
    (name,) = re.findall(r"such as (\S+)", error)
    assert run(capsys, "export", tmp_path / "t", name)[0] == 0
    code, error = run(capsys, "export", tmp_path / "t", tmp_path / "none" / "rows.csv")
    assert (code, "its folder does not exist" in error) == (2, True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_folder_that_takes_no_new_files_is_not_called_missing(tmp_path: Path, capsys: Captured) -> None:
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    code, error = run(capsys, "export", tmp_path / "t", "/proc/rows.csv")
    assert (code, "missing" in error, "does not exist" in error) == (2, False, False)
    assert error.startswith("error: writing /proc/rows.csv: ")


def test_a_file_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "rows.parquet"
    file.write_text("mine")
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    code, err = run(capsys, "export", tmp_path / "t", file)
    assert (code, "add --overwrite" in err) == (2, True)
    assert run(capsys, "export", tmp_path / "t", file, "--overwrite", "--where", "nope > 1")[0] == 2
    assert file.read_text() == "mine"
    assert run(capsys, "export", tmp_path / "t", file, "--overwrite")[0] == 0
    assert pq.read_table(file) == ROWS
    code, err = run(capsys, "export", tmp_path / "t", tmp_path / "rows.csv", "--columns", "id")
    assert code == 0
    spark_lance.write_dataset(NESTED, tmp_path / "n")
    code, err = run(capsys, "export", tmp_path / "n", tmp_path / "n.csv")
    assert (code, "leave out list, struct" in err) == (2, True)
    assert not list(tmp_path.glob("n.csv*"))


def test_values_that_do_not_fit_are_told_in_a_line_and_nothing_is_written(
    tmp_path: Path, capsys: Captured
) -> None:
    spark_lance.write_dataset(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "t")
    (tmp_path / "bad.csv").write_text("id\n1\nx\n")
    code, err = run(capsys, "import", tmp_path / "bad.csv", tmp_path / "t")
    assert code == 2
    assert err.startswith("error: reading ")
    assert "'x'" in err
    assert err.count("\n") == 1
    assert spark_lance.dataset(tmp_path / "t").version == 1
    (tmp_path / "other.csv").write_text("id,new\n1,2\n")
    code, err = run(capsys, "import", tmp_path / "other.csv", tmp_path / "t")
    assert (code, "new" in err) == (2, True)


def test_import_into_a_branch(tmp_path: Path, capsys: Captured) -> None:
    spark_lance.write_dataset(ROWS, tmp_path / "t").create_branch("dev")
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    assert run(capsys, "import", tmp_path / "rows.parquet", tmp_path / "t", "--branch", "dev")[0] == 0
    assert spark_lance.dataset(tmp_path / "t").count_rows() == 50
    assert spark_lance.dataset(tmp_path / "t", version=("dev", None)).count_rows() == 100


def test_a_parquet_folder_keeps_columns_partitions_and_rows(tmp_path: Path, capsys: Captured) -> None:
    rows = NESTED.append_column("part", pa.array([["a", "b c/d", None][n % 3] for n in range(50)]))
    source = tmp_path / "source"
    pq.write_to_dataset(rows, source, partition_cols=["part", "flag"])
    late = rows.append_column("late", pa.array(["x"] * 50))
    pq.write_to_dataset(late, source, partition_cols=["part", "flag"])
    (source / "_SUCCESS").write_text("")
    code, out = run(capsys, "convert", source, tmp_path / "t", "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["source"], result["rows"]) == ("parquet", 100)
    assert set(result["partition columns"]) == {"part", "flag"}
    actual = lance.dataset(str(tmp_path / "t")).to_table()
    assert set(actual.column_names) == set(late.column_names)
    assert actual["late"].null_count == 50
    key = [("id", "ascending"), ("late", "ascending")]
    flags = pa.array(["true" if flag.as_py() else "false" for flag in late["flag"]])
    expected = pa.concat_tables(
        [rows.append_column("late", pa.nulls(50, pa.string())), late]
    ).sort_by(key)  # fmt: skip
    actual = actual.sort_by(key)
    for name in ("id", "text", "day", "at", "amount", "share", "list", "struct", "part", "late"):
        assert actual[name].to_pylist() == expected[name].to_pylist(), name
    assert set(actual["flag"].to_pylist()) == set(flags.to_pylist())


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=4,
    ),
    rows=st.integers(0, 20),
)
def test_folders_whose_files_differ(
    files: list[list[str]], rows: int, tmp_path_factory: pytest.TempPathFactory, capsys: Captured
) -> None:
    folder = tmp_path_factory.mktemp("differ")
    source = folder / "source"
    source.mkdir()
    expected: list[dict[str, Any]] = []
    for number, names in enumerate(files):
        part = pa.table(
            {name: pa.array([f"{number}{name}{n}" for n in range(rows)], pa.string()) for name in names}
        )
        pq.write_table(part, source / f"{number}.parquet")
        expected += part.to_pylist()
    assert run(capsys, "convert", source, folder / "t")[0] == 0
    columns = {name for each in files for name in each}
    values = spark_lance.dataset(folder / "t").to_table().to_pylist()
    assert (
        values == [{name: row.get(name) for name in values[0]} for row in expected]
        if expected
        else values == []
    )
    assert set(spark_lance.dataset(folder / "t").schema.names) == columns


def test_a_delta_table_is_what_its_log_says(tmp_path: Path, capsys: Captured) -> None:
    deltalake = pytest.importorskip("deltalake")
    source = str(tmp_path / "delta")
    rows = ROWS.append_column("part", pa.array([["a", "b"][n % 2] for n in range(50)]))
    deltalake.write_deltalake(source, rows, partition_by=["part"])
    deltalake.DeltaTable(source).delete("id < 10")
    deltalake.write_deltalake(source, rows.slice(0, 5), mode="append")
    code, out = run(capsys, "convert", source, tmp_path / "t", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 45
    assert json.loads(out)["partition columns"] == ["part"]
    result = spark_lance.dataset(tmp_path / "t").to_table().sort_by("id")
    assert result.to_pylist() == pa.concat_tables([rows.slice(0, 5), rows.slice(10)]).to_pylist()


def test_a_delta_table_is_not_read_without_its_log(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_to_dataset(ROWS, tmp_path / "delta")
    (tmp_path / "delta" / "_delta_log").mkdir()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    code, err = run(capsys, "convert", tmp_path / "delta", tmp_path / "t")
    assert (code, "pip install 'spark-lance[delta]'" in err) == (2, True)
    assert not (tmp_path / "t").exists()


def test_folders_that_are_not_converted(tmp_path: Path, capsys: Captured) -> None:
    for name in ("metadata", "data"):
        (tmp_path / "ice" / name).mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.parquet").write_text("nothing")
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    pq.write_to_dataset(ROWS, tmp_path / "good")
    for name, target, words in (
        ("ice", "new", "Iceberg"),
        ("empty", "new", "no Parquet files"),
        ("bad", "new", "reading"),
        ("good", "t", "convert creates a new table"),
    ):
        code, err = run(capsys, "convert", tmp_path / name, tmp_path / target)
        assert (code, words in err, err.count("\n")) == (2, True, 1), err
    assert not (tmp_path / "new").exists()


def test_csv_is_what_other_programs_read(tmp_path: Path, capsys: Captured) -> None:
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    assert run(capsys, "export", tmp_path / "t", tmp_path / "rows.csv")[0] == 0
    result = pyarrow.csv.read_csv(
        tmp_path / "rows.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert result["text"].to_pylist() == [text or "" for text in ROWS["text"].to_pylist()]
