"""The table of commands is whole; commands on rows, versions and indices answer what the library answers."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_lance
from spark_lance.cli.commands import COMMANDS, Command
from spark_lance.cli.main import main
from spark_lance.cli.output import as_json
from spark_lance.cli.transfer_commands import FORMATS
from spark_lance.memwal.names import GRACE
from spark_lance.table.maintenance.compact_plan import CompactionOptions
from spark_lance.table.versions.ages import parse_duration
from spark_lance.table.versions.cleanup import DEFAULT_AGE
from spark_lance.table.writing.targets import MAX_ROWS_PER_FILE
from tests.cli.commands import OTHERS, command_names, every_command
from tests.conftest import ROOT
from tests.memwal.tables import make

Captured = pytest.CaptureFixture[str]
ROWS = 200


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with numbers, words, vectors and nulls, of two versions, with stable row ids."""
    path = tmp_path_factory.mktemp("cli") / "t"
    vectors = np.random.default_rng(1).random(ROWS * 8, dtype=np.float32)
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "kind": [None if n % 5 == 0 else f"k{n % 5}" for n in range(ROWS)],
            "text": [f"the number {n} is {'odd' if n % 2 else 'even'}" for n in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(vectors, 8),
        }
    )
    spark_lance.write_dataset(rows.slice(0, 120), path, enable_stable_row_ids=True)
    spark_lance.write_dataset(rows.slice(120), path, mode="append")
    return path


def answer(capsys: Captured, *words: object) -> Any:
    """Run a command and return its JSON."""
    code = main([*map(str, words), "--json"])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return json.loads(printed.out)


def copy_of(original: Path, tmp_path: Path) -> Path:
    spark_lance.dataset(original).deep_clone(tmp_path / "copy")
    return tmp_path / "copy"


def test_every_command_has_its_function_and_says_what_it_does() -> None:
    for commands in COMMANDS.values():
        for each in commands.values():
            for command in [each] if isinstance(each, Command) else each.commands.values():
                assert callable(command.function)
                assert command.help.endswith(".")
                options = [option for option in command.parameters if isinstance(option, click.Option)]
                assert all(option.help or option.hidden for option in options)


def all_commands() -> dict[str, Command]:
    """Return the commands by name, with that of their group."""
    results = {}
    for commands in COMMANDS.values():
        for name, each in commands.items():
            parts = {name: each} if isinstance(each, Command) else each.commands
            results.update({part if part == name else f"{name} {part}": one for part, one in parts.items()})
    return results


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples of commands name."""
    folder = tmp_path_factory.mktemp("examples")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(60, dtype=np.float32)), 3)
    columns = {"id": range(20), "carrier": ["UA", "AA"] * 10, "delay": [float(n) for n in range(20)]}
    rows = pa.table({**columns, "vector": vectors})
    ds = spark_lance.write_dataset(rows.slice(0, 15), folder / "flights.lance")
    ds = spark_lance.write_dataset(rows.slice(15), folder / "flights.lance", mode="append")
    ds.create_scalar_index("carrier", "BITMAP")
    ds.tags.create("good", 1)
    ds.create_branch("trial", 1)
    make(folder / "bookings.lance", (1, "a"))
    (folder / "flights_parquet").mkdir()
    for file in ("more.parquet", "flights_parquet/part.parquet"):
        pq.write_table(rows, folder / file)
    return folder


@pytest.mark.parametrize("name", all_commands())
def test_the_example_in_a_command_s_help_works(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    command = all_commands()[name]
    assert main([*name.split(), "--help"]) == 0
    output = capsys.readouterr().out
    assert f"Exit codes:\n  {command.codes}\n" in output
    shown = " ".join(output.partition("\nExample:\n")[2].partition("\nExit codes:")[0].split())
    assert shown.endswith(command.example)
    words = shlex.split(command.example)
    assert " ".join(words).startswith(f"{name} ")
    monkeypatch.chdir(shutil.copytree(world, tmp_path / "world"))
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().err == ""


def test_what_is_said_of_defaults_is_so() -> None:
    """Those that the library has; click tells its own."""
    message = {
        option.name: option.show_default
        for command in all_commands().values()
        for option in command.parameters
        if isinstance(option, click.Option) and isinstance(option.show_default, str)
    }
    assert message["max_rows_per_file"] == message["target_rows"] == str(MAX_ROWS_PER_FILE)
    assert CompactionOptions().target_rows_per_fragment == MAX_ROWS_PER_FILE
    vacuum, logs = (all_commands()[name].parameters for name in ("vacuum", "wal compact"))
    ages = {
        parse_duration(str(option.show_default)): age
        for options, age in ((vacuum, DEFAULT_AGE), (logs, GRACE))
        for option in options
        if isinstance(option, click.Option) and option.name == "older_than"
    }
    assert ages == {DEFAULT_AGE: DEFAULT_AGE, GRACE: GRACE}


def test_formats_are_those_of_the_parameters() -> None:
    for name in ("export", "import"):
        command = COMMANDS["Import and export"][name]
        assert isinstance(command, Command)
        (option,) = (each for each in command.parameters if each.name == "format")
        assert list(option.type.choices) == list(FORMATS)  # type: ignore[attr-defined]


def test_help_is_by_the_name_that_was_called(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name.split()[0]}" in out for name in command_names())
    command = [sys.executable, "-m", "spark_lance", "head", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: python -m spark_lance head [OPTIONS] TABLE\n")
    program = (
        "import sys; sys.argv[0] = '/bin/spark-lance';from spark_lance.cli.main import main; main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: spark-lance [OPTIONS] COMMAND")


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spark-lance {spark_lance.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_SPARK_LANCE_COMPLETE" in script
    assert "spark-lance" in script
    monkeypatch.setenv("_SPARK_LANCE_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "spark-lance ver")
    monkeypatch.setenv("COMP_CWORD", "ver" if shell == "fish" else "1")
    with pytest.raises(SystemExit):
        main([])
    assert "verify" in capsys.readouterr().out


def test_nothing_but_the_command_line_pays_for_its_packages() -> None:
    program = (
        "import sys, spark_lance.spark.source, spark_lance.spark.scan.rows, spark_lance.spark.sink.write;"
        "import spark_lance.datasets.dataset, spark_lance.spark.table;"
        "from spark_lance.spark.table import merging, changing, maintaining, indexing, column_jobs;"
        "print([name for name in ('rich', 'click', 'duckdb', 'deltalake') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_command_imports_only_what_it_needs(original: Path) -> None:
    program = (
        "import sys; from spark_lance.cli.main import main;"
        f"main(['count', {str(original)!r}]);"
        "print([name for name in ('pyarrow.dataset', 'duckdb', 'deltalake') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{ROWS}\n[]\n"


def test_every_command_answers_a_table_that_is_missing(tmp_path: Path, capsys: Captured) -> None:
    for words in every_command(str(tmp_path / "none"), tmp_path):
        assert main(words) == 2, words
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: no Lance table")
        assert printed.err.count("\n") == 1
    assert {"completion", "convert", "import"} == OTHERS


def test_head_and_count(original: Path, capsys: Captured) -> None:
    theirs = lance.dataset(str(original))
    result = answer(capsys, "head", original, "-n", 3, "--columns", "text, id", "--where", "kind = 'k1'")
    assert result == theirs.to_table(columns=["text", "id"], filter="kind = 'k1'", limit=3).to_pylist()
    assert answer(capsys, "head", original, "-n", 0) == []
    assert answer(capsys, "count", original, "--where", "kind is null") == {"rows": 40}
    assert answer(capsys, "count", original, "--version", 1) == {"rows": 120}
    assert main(["head", str(original), "-n", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "kind", "text", "v"]
    assert lines[1].split()[:2] == ["0", "-"]


def test_sample_is_some_of_the_rows(original: Path, capsys: Captured) -> None:
    results = [
        row["id"] for row in answer(capsys, "sample", original, "-n", 50, "--seed", 7, "--columns", "id")
    ]
    assert results == sorted(set(results))
    assert len(results) == 50
    again = answer(capsys, "sample", original, "-n", 50, "--seed", 7, "--columns", "id")
    assert [row["id"] for row in again] == results
    assert len(answer(capsys, "sample", original, "-n", 1000, "--columns", "id")) == ROWS


def test_schema_and_stats(original: Path, capsys: Captured) -> None:
    result = answer(capsys, "schema", original)
    assert [row["path"] for row in result] == ["id", "kind", "text", "v"]
    columns = answer(capsys, "stats", original)
    assert [column["name"] for column in columns] == ["id", "kind", "text", "v"]
    by_name = {column["name"]: column for column in columns}
    assert by_name["v"]["bytes"] >= ROWS * 8 * 4
    assert by_name["v"]["encodings"] == {"mini_block_layout, fixed_size_list, flat": 2}
    assert all(column["pages"] == 2 for column in columns)
    files = [
        file.file_size_bytes
        for fragment in spark_lance.dataset(original).manifest.fragments
        for file in fragment.files
    ]
    assert sum(column["bytes"] for column in columns) < sum(files)
    assert main(["stats", str(original)]) == 0
    assert "fixed_size_list" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_stats_of_files_of_any_version(version: Any, tmp_path: Path, capsys: Captured) -> None:
    rows = pa.table({"a": range(100), "s": [{"x": n, "y": "t" * (n % 3)} for n in range(100)]})
    lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version=version)
    columns = answer(capsys, "stats", tmp_path / "t")
    assert [column["name"] for column in columns] == ["a", "s"]
    assert all(column["bytes"] > 0 for column in columns)
    assert all((column["pages"] is None) == (version == "legacy") for column in columns)
    if version != "legacy":
        assert all(column["encodings"] for column in columns)


def test_search_by_vector_and_by_words(original: Path, tmp_path: Path, capsys: Captured) -> None:
    rows = spark_lance.dataset(original).to_table(columns=["id", "v"])
    matrix = np.stack(rows["v"].to_numpy(zero_copy_only=False))
    best = np.argsort(((matrix - matrix[7]) ** 2).sum(1), kind="stable")[:5]
    result = answer(capsys, "search", original, "--like-row", 7, "-n", 5)
    assert [row["id"] for row in result] == best.tolist()
    assert "v" not in result[0]
    vector = json.dumps(matrix[7].tolist())
    again = answer(
        capsys, "search", original, "--vector", vector, "--column", "v", "-n", 5, "--columns", "id,v"
    )
    assert [row["id"] for row in again] == best.tolist()
    assert len(again[0]["v"]) == 8
    odd = answer(capsys, "search", original, "--like-row", 7, "-n", 3, "--where", "id % 2 = 1")
    assert all(row["id"] % 2 for row in odd)
    assert len(odd) == 3
    copy = copy_of(original, tmp_path)
    answer(capsys, "index", "build", copy, "text", "inverted")
    result = answer(capsys, "search", copy, "--text", "odd 77", "-n", 1, "--columns", "id")
    assert result[0]["id"] == 77


QUERIES = [
    "SELECT count(*) AS n FROM t",
    "SELECT kind, count(*) AS n, min(id) AS low FROM t GROUP BY kind ORDER BY kind NULLS FIRST",
    "SELECT a.id FROM t a JOIN t b ON a.id = b.id + 1 WHERE b.kind = 'k3' ORDER BY a.id LIMIT 3",
    "WITH w AS (SELECT id, text FROM t WHERE id > 190) SELECT max(text) AS m FROM w",
    "FROM t SELECT sum(id) AS s",
    "SELECT t FROM t WHERE id = 3",
    "SELECT columns('i.*') FROM t ORDER BY id LIMIT 2",
    "SELECT * EXCLUDE (v) FROM t WHERE id < 2 ORDER BY id",
    "SELECT a FROM t a WHERE a.id = 4",
    "SELECT count(*) AS n FROM t a NATURAL JOIN (SELECT * REPLACE ('x' AS kind) FROM t) b",
    "SELECT n.id FROM (SELECT id, length(text) AS l FROM t) n ORDER BY l DESC, id LIMIT 2",
    "SELECT column_name FROM (DESCRIBE t)",
    "SELECT max(id) OVER (PARTITION BY kind) AS m FROM t QUALIFY row_number() OVER (ORDER BY id) < 3 "
    "ORDER BY m",
    "SELECT 'kind' AS word",
]


@pytest.mark.parametrize("query", QUERIES)
def test_sql_is_that_of_duckdb(query: str, original: Path, capsys: Captured) -> None:
    duckdb = pytest.importorskip("duckdb")
    t = spark_lance.dataset(original).to_table()
    expected = pa.RecordBatchReader.from_stream(duckdb.sql(query)).read_all().to_pylist()
    assert t.num_rows == ROWS
    assert answer(capsys, "sql", original, query) == json.loads(as_json(expected))


def test_mistakes_in_sql(original: Path, capsys: Captured) -> None:
    pytest.importorskip("duckdb")
    for query, words in (
        ("SELECT nope FROM t", "nope"),
        ("SELEC", "SELEC"),
    ):
        assert main(["sql", str(original), query]) == 2
        printed = capsys.readouterr()
        assert words in printed.err
        assert printed.err.count("\n") == 1


def test_sql_without_duckdb(original: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["sql", str(original), "SELECT 1"]) == 2
    assert "pip install 'spark-lance[duckdb]'" in capsys.readouterr().err


def test_diff(original: Path, tmp_path: Path, capsys: Captured) -> None:
    copy = copy_of(original, tmp_path)
    first = spark_lance.dataset(copy).version
    spark_lance.dataset(copy).delete("id < 10").update({"kind": "'new'"}, where="id = 50")
    assert answer(capsys, "diff", copy, first) == {"inserted": 0, "updated": 1, "deleted": 10}
    assert answer(capsys, "diff", copy, first, first + 1) == {"inserted": 0, "updated": 0, "deleted": 10}
    (row,) = answer(capsys, "diff", copy, first, "--show", "updated", "--columns", "id,kind")
    assert (row["id"], row["kind"]) == (50, "new")
    gone = answer(capsys, "diff", copy, first, "--show", "deleted", "-n", 4, "--columns", "id")
    assert [row["id"] for row in gone] == [0, 1, 2, 3]


def test_tags_branches_and_restore(original: Path, tmp_path: Path, capsys: Captured) -> None:
    copy = copy_of(original, tmp_path)
    start = spark_lance.dataset(copy).version
    spark_lance.dataset(copy).delete("id < 100")
    assert answer(capsys, "tags", "create", copy, "good", start)["version"] == start
    assert answer(capsys, "count", copy, "--version", "good") == {"rows": ROWS}
    assert answer(capsys, "tags", "update", copy, "good")["version"] == start + 1
    assert answer(capsys, "tags", "list", copy)["good"]["version"] == start + 1
    answer(capsys, "tags", "delete", copy, "good")
    assert answer(capsys, "tags", "list", copy) == {}
    answer(capsys, "branches", "create", copy, "dev", start)
    assert answer(capsys, "branches", "list", copy)["dev"]["parent_version"] == start
    assert main(["branches", "list", str(copy)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["dev", "main", str(start)]
    assert answer(capsys, "count", copy, "--branch", "dev") == {"rows": ROWS}
    answer(capsys, "branches", "delete", copy, "dev")
    assert answer(capsys, "restore", copy, start)["version"] == start + 2
    assert answer(capsys, "count", copy) == {"rows": ROWS}
    assert lance.dataset(str(copy)).count_rows() == ROWS


@pytest.mark.parametrize("group", ["tags", "branches", "index"])
def test_a_group_with_a_table_alone_lists(group: str, original: Path, capsys: Captured) -> None:
    assert main([group, str(original), "--json"]) == 0
    alone = capsys.readouterr().out
    assert main([group, "list", str(original), "--json"]) == 0
    assert capsys.readouterr().out == alone
    for words in (["creat", str(original)], ["lst"], [], ["nothing", "of", "this"]):
        assert main([group, *words]) in (0, 2)
        said = capsys.readouterr()
        assert "Usage:" in said.out + said.err, words


def test_filter_is_another_word_for_where(original: Path, capsys: Captured) -> None:
    assert main(["count", str(original), "--where", "id > 2"]) == 0
    count = capsys.readouterr().out
    assert main(["count", str(original), "--filter", "id > 2"]) == 0
    assert capsys.readouterr().out == count


def test_floats_have_the_digits_that_they_are_worth(tmp_path: Path, capsys: Captured) -> None:
    single = pa.array([0.1, -3.5e-20, float("inf")], pa.float32())
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.1, 0.7, 1e30, 2, 3, 4], pa.float32()), 2)
    rows = pa.table({"f": single, "h": single.cast(pa.float16()), "v": vectors, "d": [0.1, 1 / 3, None]})
    spark_lance.write_dataset(rows, tmp_path / "t")
    assert main(["head", str(tmp_path / "t")]) == 0
    shown = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    lines = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    assert lines[1:] == [
        ["0.1", "0.1", "0.1, 0.7", "0.1"],
        ["-3.5e-20", "-0.0", "1e+30, 2.0", "0.3333333333333333"],
        ["inf", "inf", "3.0, 4.0", "-"],
    ]


def test_indices(original: Path, tmp_path: Path, capsys: Captured) -> None:
    copy = copy_of(original, tmp_path)
    assert answer(capsys, "index", "list", copy) == []
    answer(capsys, "index", "build", copy, "id", "btree", "--name", "by_id")
    answer(capsys, "index", "build", copy, "v", "ivf_pq", "--partitions", 2, "--option", "num_sub_vectors=4",
           "--metric", "cosine")  # fmt: skip
    results = {row["index"]: row for row in answer(capsys, "index", "list", copy)}
    assert {name: row["type"] for name, row in results.items()} == {"by_id": "BTree", "v_idx": "IVF_PQ"}
    assert all(row["share"] == 1 for row in results.values())
    spark_lance.write_dataset(spark_lance.dataset(copy).to_table(), copy, mode="append")
    assert {row["share"] for row in answer(capsys, "index", "list", copy)} == {0.5}
    answer(capsys, "index", "optimize", copy, "by_id")
    assert {row["index"]: row["share"] for row in answer(capsys, "index", "list", copy)} == {
        "by_id": 1,
        "v_idx": 0.5,
    }
    answer(capsys, "index", "optimize", copy)
    assert main(["index", "list", str(copy)]) == 0
    assert capsys.readouterr().out.count("100%") == 2
    answer(capsys, "index", "drop", copy, "by_id")
    assert [index.name for index in lance.dataset(str(copy)).describe_indices()] == ["v_idx"]


def test_a_version_of_a_time(original: Path, capsys: Captured) -> None:
    second = spark_lance.dataset(original).versions()[1]["timestamp"]
    assert answer(capsys, "count", original, "--asof", second.isoformat()) == {"rows": ROWS}
    before = spark_lance.dataset(original).versions()[0]["timestamp"]
    assert answer(capsys, "count", original, "--asof", before.isoformat()) == {"rows": 120}


def test_doctor_tells_special_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    table = pa.table({"j": pa.array(["{}"], pa.json_()), "mv": several})
    place = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    table = table.append_column(place, pa.array([None], pa.binary()))
    spark_lance.write_dataset(table, tmp_path / "t")
    assert main(["doctor", str(tmp_path / "t")]) == 0
    output = capsys.readouterr().out
    assert "JSON documents" in output
    assert "several vectors" in output
    assert "geometries (geoarrow.wkb)" in output
