"""The command line: on good, damaged, evolved and branched tables, and on those that pylance wrote."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.cli.inspect_commands import ENGINES, check_engine
from spark_lance.cli.main import main
from spark_lance.cli.output import as_json
from spark_lance.io.display import size_text
from spark_lance.table.format.features import FEATURES
from tests.cli.commands import every_command

ROOT = Path(__file__).resolve().parent.parent.parent
Captured = pytest.CaptureFixture[str]


def rows(start: int, count: int = 50) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "t": ["x"] * count})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of four fragments with deleted rows, an added column, an index, a tag and a branch."""
    result = tmp_path / "t"
    for start in range(0, 200, 50):
        spark_lance.write_dataset(rows(start), result, mode="append")
    ds = spark_lance.dataset(result).delete("id % 7 = 3").add_columns({"twice": "id * 2"})
    theirs: Any = lance.dataset(str(result))
    theirs.create_scalar_index("id", "BTREE")
    ds = spark_lance.dataset(result).update_config({"owner": "etl"})
    ds.tags.create("checked")
    branch = ds.create_branch("dev")
    spark_lance.write_dataset(pa.table({"id": [1000]}), branch.uri, mode="append")
    return result


def said(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed."""
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def parsed(capsys: Captured, *arguments: object) -> Any:
    code, out, err = said(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_inspect(path: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "inspect", path)
    assert code == 0
    for words in ("twice", "id_idx", "BTree", "checked -> 8", "dev", "owner=etl", "171, 29 deleted"):
        assert words in out
    result = parsed(capsys, "inspect", path)
    assert [column["name"] for column in result["columns"]] == ["id", "t", "twice"]
    assert result["table"]["num_rows"] == 171
    assert parsed(capsys, "inspect", path, "--branch", "dev")["table"]["num_rows"] == 172
    assert parsed(capsys, "inspect", path, "--version", "2")["table"]["num_rows"] == 100
    assert parsed(capsys, "inspect", path, "--version", "checked")["table"]["version"] == 8


def test_history(path: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "history", path, "--limit", 2)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["version", "8", "7"]
    result = parsed(capsys, "history", path)
    assert [row["version"] for row in result] == list(range(8, 0, -1))
    assert result[-1]["operation"] == "CREATE TABLE AS SELECT"
    assert datetime.fromisoformat(result[0]["timestamp"]) <= datetime.now(timezone.utc)


def test_doctor(path: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "doctor", path)
    assert code == 0
    assert "deletion files" in out
    assert "pylance 14" in out
    result = parsed(capsys, "doctor", path)
    features = {row["feature"]: (row["reading"], row["writing"]) for row in result["features"]}
    assert features == {"deletion files": (True, True), "table config": (False, True)}
    engines = {row["engine"]: (row["read"], row["write"]) for row in result["engines"]}
    assert engines["spark_lance (this package)"] == engines["pylance 14"] == ("yes", "yes")
    assert [row["command"] for row in result["advice"]] == [f"compact {path}"]
    spark_lance.dataset(path).compact_files(remap_indices=False)
    advice = parsed(capsys, "doctor", path)["advice"]
    assert [row["command"] for row in advice] == [f"index optimize {path} id_idx"]
    assert "does not cover 171 of 171" in advice[0]["reason"]
    assert main(shlex.split(advice[0]["command"])) == 0
    capsys.readouterr()
    assert parsed(capsys, "doctor", path)["advice"] == []


def test_advice_for_old_tables_can_be_followed(tmp_path: Path, capsys: Captured) -> None:
    old = str(tmp_path / "old")
    lance.write_dataset(rows(0), old, enable_v2_manifest_paths=False)
    (advice,) = parsed(capsys, "doctor", old)["advice"]
    assert advice["command"] == f"spark_lance.dataset({old!r}).migrate_manifest_paths_v2()"
    eval(advice["command"], {"spark_lance": spark_lance})
    assert parsed(capsys, "doctor", old)["advice"] == []


def test_advice_for_legacy_files_can_be_followed(tmp_path: Path, capsys: Captured) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    lance.write_dataset(rows(0), old, data_storage_version="legacy")
    (advice,) = parsed(capsys, "doctor", old)["advice"]
    assert "NEW_PATH" in advice["command"]
    eval(advice["command"].replace("NEW_PATH", new), {"spark_lance": spark_lance})
    assert lance.dataset(new).to_table() == rows(0)
    assert parsed(capsys, "doctor", new)["advice"] == []


@pytest.mark.parametrize(
    ("version", "readers"),
    [
        ("2.0", {"14", "4 to 8", "1 to 2", "0.38 to 0.39", "0.30"}),
        ("2.1", {"14", "4 to 8", "1 to 2", "0.38 to 0.39"}),
        ("2.2", {"14", "4 to 8"}),
    ],
)
def test_doctor_knows_who_reads_which_files(
    version: str, readers: set[str], tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(pa.table({"a": [1, 2]}), path, data_storage_version=version)
    results = [row for row in parsed(capsys, "doctor", path)["engines"] if "pylance" in row["engine"]]
    can = {row["engine"].removeprefix("pylance ") for row in results if row["read"] == row["write"] == "yes"}
    assert can == readers
    for row in results:
        if row["read"] == "no":
            assert f"files of version {version}: cannot read" in row["reason"]
            assert "data_storage_version=2." in row["reason"]


def test_compact(path: Path, capsys: Captured) -> None:
    groups = parsed(capsys, "compact", path, "--dry-run")
    assert [(group["fragments"], group["rows"], group["deleted_rows"]) for group in groups] == [(4, 171, 29)]
    assert spark_lance.dataset(path).version == 8
    out = said(capsys, "compact", path, "--dry-run")[1]
    assert "4 fragments become 1; 171 of 171 rows are rewritten" in out
    result = parsed(capsys, "compact", path, "--file-version", "2.1", "--target-rows", 100)
    assert (result["fragments_removed"], result["fragments_added"]) == (4, 1)
    ds = spark_lance.dataset(path)
    assert ds.count_rows() == 171
    assert {file.file_minor_version for f in ds.manifest.fragments for file in f.files} == {1}
    theirs: Any = lance.dataset(str(path))
    theirs.validate()
    assert said(capsys, "compact", path, "--dry-run", "--target-rows", 100)[1] == "nothing to do\n"


def test_vacuum(path: Path, capsys: Captured) -> None:
    files = sorted(path.rglob("*"))
    assert parsed(capsys, "vacuum", path, "--retain-versions", 1, "--dry-run")["old_versions"] == 0
    assert "7 more stay: too new" in said(capsys, "vacuum", path, "--retain-versions", 1, "--dry-run")[1]
    short = ("--retain-versions", 1, "--allow-short-retention")
    result = parsed(capsys, "vacuum", path, *short, "--dry-run")
    assert result["old_versions"] == 7
    assert {file["kind"] for file in result["files"]} == {"manifest", "transaction"}
    out = said(capsys, "vacuum", path, *short, "--dry-run")[1]
    assert [line.split()[0] for line in out.splitlines()[1:8]] == [str(version) for version in range(1, 8)]
    size = sum(file["size_bytes"] for file in result["files"])
    assert ["would", "free", *size_text(size).split()] in [line.split() for line in out.splitlines()]
    assert "would free" in said(capsys, "vacuum", path, "--older-than", "0s", "--dry-run")[1]
    assert sorted(path.rglob("*")) == files
    code, _, err = said(capsys, "vacuum", path, "--older-than", "23h")
    assert code == 2
    assert "--older-than 23h is less than the 24 hours" in err
    assert "pass --allow-short-retention" in err
    assert sorted(path.rglob("*")) == files
    code, out, _ = said(capsys, "vacuum", path, *short)
    assert code == 0
    assert ["old", "versions", "7"] in [line.split() for line in out.splitlines()]
    assert len(spark_lance.dataset(path).versions()) == 1
    assert parsed(capsys, "verify", path)["findings"] == []
    assert spark_lance.dataset(path, version=("dev", None)).count_rows() == 172


def test_verify(path: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "verify", path)
    assert (code, err) == (0, "")
    assert "no damage found" in out
    next(path.glob("data/*.lance")).unlink()
    code, out, err = said(capsys, "verify", path)
    assert (code, err) == (1, "")
    assert "does not exist" in out
    assert out.endswith("damaged\n")
    code, out, _ = said(capsys, "verify", path, "--json")
    assert code == 1
    assert json.loads(out)["damaged"] is True


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.2"])
def test_every_command_on_tables_of_pylance(tmp_path: Path, capsys: Captured, version: Any) -> None:
    path = str(tmp_path / "t")
    for start in (0, 50):
        lance.write_dataset(rows(start), path, mode="append", data_storage_version=version)
    for command in ("inspect", "history", "doctor", "verify"):
        code, out, err = said(capsys, command, path)
        assert (code, err) == (0, "")
        assert out
    for command in ("compact", "vacuum"):
        code, _, err = said(capsys, command, path)
        assert (code == 2 and "legacy" in err) if version == "legacy" else (code, err) == (0, "")


def test_a_manifest_that_cannot_be_read(path: Path, capsys: Captured) -> None:
    for manifest in path.glob("_versions/*.manifest"):
        manifest.write_bytes(b"nothing")
    for words in every_command(str(path), path.parent / "other"):
        code, out, err = said(capsys, *words)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "{}/none"], "no Lance table"),
        (["inspect", __file__], "it is a file, a table is a folder"),
        (["count", "{}/t", "--where", "a >"], "something is missing at '>', line 1, column 3"),
        (["inspect", "{}/t", "--version", "77"], "version 77"),
        (["inspect", "{}/t", "--version", "nope"], "tag 'nope'"),
        (["inspect", "{}/t", "--branch", "nope"], "branch 'nope'"),
        (["inspect", "{}/t", "--branch", "dev", "--version", "checked"], "leave out --branch"),
        (["inspect", "{}/t", "--storage", "nope"], "NAME=VALUE"),
        (["compact", "{}/t", "--file-version", "9"], "'9'"),
        (["vacuum", "{}/t", "--older-than", "soon"], "not a duration"),
        (["vacuum", "{}/t", "--retain-versions", "0"], "at least 1"),
        (["inspect"], "Missing argument 'TABLE'"),
        (["nothing", "{}/t"], "No such command 'nothing'"),
        (["inspect", "{}/t", "--asof", "2026-01-01", "--version", "1"], "leave out --version"),
        (["head", "{}/t", "--columns", "nope"], "nope"),
        (["head", "{}/t", "--columns", ","], "names separated by commas"),
        (["head", "{}/t", "--where", "id >"], "error"),
        (["search", "{}/t"], "one of --vector"),
        (["search", "{}/t", "--vector", "[1]"], "no vector column"),
        (["search", "{}/t", "--vector", "x", "--column", "t"], "numbers in brackets"),
        (["search", "{}/t", "--like-row", "171", "--column", "t"], "rows 0 to 170"),
        (["index", "build", "{}/t", "id", "nope"], "unknown index type 'nope'"),
        (["index", "build", "{}/t", "id", "BTREE", "--option", "x"], "NAME=VALUE"),
        (["index", "drop", "{}/t", "nope"], "nope"),
        (["tags", "create", "{}/t", "checked"], "exists already"),
        (["restore", "{}/t", "99"], "99"),
        (["diff", "{}/t", "99"], "99"),
        (["export", "{}/t", "{}/out"], "add --format"),
        (["export", "{}/t", "{}/none/out.csv"], "none/out.csv: its folder does not exist"),
        (["export", "{}/t", "{}/t/data/out.csv/x.csv"], "out.csv/x.csv: its folder does not exist"),
        (["inspect", "{}/t", "--html", "{}/t"], "t: it is a folder: add a file name"),
        (["import", "{}/none.csv", "{}/t"], "does not exist"),
        (["convert", "{}/none", "{}/new"], "does not exist"),
        (["convert", "{}/t", "{}/new"], "is already a Lance table"),
    ],
)
def test_mistakes(path: Path, capsys: Captured, arguments: list[str], words: str) -> None:
    code, out, err = said(capsys, *(argument.format(path.parent) for argument in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_as_a_program(path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spark_lance", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = run("verify", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "no damage found" in done.stdout
    done = run("inspect", str(path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Lance table")


def test_nothing_of_spark_is_imported(path: Path) -> None:
    program = (
        "import sys; from spark_lance.cli.main import main; "
        f"main(['inspect', {str(path)!r}]); print([name for name in sys.modules if 'pyspark' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_has_seen_enough(path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "spark_lance", "inspect", str(path), "--json"]
    with os.fdopen(writing, "w") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB"), (None, "unknown")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size_text(count) == text


def test_json_of_odd_values() -> None:
    now = datetime(2026, 1, 31, tzinfo=timezone.utc)
    assert json.loads(as_json({"t": now, "s": frozenset({2, 1}), "p": Path("x")})) == {
        "t": now.isoformat(),
        "s": [1, 2],
        "p": "x",
    }


def test_what_this_package_supports_is_what_it_says() -> None:
    ours = ENGINES[0]
    for feature in FEATURES:
        verdict = check_engine(ours, feature.bit, feature.bit, frozenset({"2.2"}))
        assert (verdict.read, verdict.write) == tuple(
            "yes" if able else "no" for able in (feature.reads, feature.writes)
        )
        assert (feature.name in verdict.reason) == (not feature.writes)
    assert check_engine(ours, 0, 0, frozenset({"0.1"})).write == "no"
    assert check_engine(ours, 1 << 40, 0, frozenset()).reason == "flag 1099511627776: cannot read"


def _flagged(path: Path, bit: int) -> None:
    """Set a feature flag in both words of the newest manifest."""
    manifest = spark_lance.dataset(path).manifest
    message = type(manifest.message)()
    message.CopyFrom(manifest.message)
    message.reader_feature_flags |= bit
    message.writer_feature_flags |= bit
    old = manifest.message.SerializeToString()
    file = Path(manifest.path)
    data = file.read_bytes()
    at = data.index(len(old).to_bytes(4, "little") + old)
    new = message.SerializeToString()
    file.write_bytes(data[:at] + len(new).to_bytes(4, "little") + new + data[-16:])


# Without the flags that need content which goes with them.
@pytest.mark.parametrize(
    "bit", [1 << place for place in range(18) if 1 << place not in (2, 1024, 2048, 32768)]
)
def test_what_pylance_supports_is_what_is_said(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(pa.table({"id": [1]}), path)
    _flagged(path, bit)
    verdict = check_engine(ENGINES[1], bit, bit, frozenset({"2.2"}))
    reads = _works(lambda: lance.dataset(str(path)).count_rows())
    assert verdict.read == ("yes" if reads else "no")


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except (ValueError, OSError):
        return False
    return True


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written(path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []
    # The file raises once more when it is closed.
    with suppress(OSError), Path("/dev/full").open("w") as full, monkeypatch.context() as changed:
        changed.setattr("sys.stdout", full)
        codes.append(main(["head", str(path)]))
    assert codes == [2]
    output = capsys.readouterr().err
    assert output.startswith("error: writing the output: the disk is full: ")
    assert output.count("\n") == 1
