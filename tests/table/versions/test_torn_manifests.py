"""A manifest that is not whole never counts as a version, and never stops a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fsspec
import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.cli.main import main
from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.datasets.operations import LanceOperation
from spark_lance.errors import (
    FormatError,
    RetryableConflictError,
    TornManifestError,
    UnsupportedFormatError,
)
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import pack_manifest, read_manifest
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.versions import versions

TEARS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a few bytes": lambda data: data[:7],
    "half": lambda data: data[: len(data) // 2],
    "last byte missing": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "zeros at the start": lambda data: bytes(len(data) - 20) + data[-20:],
    "garbage behind": lambda data: data + b"\xffgarbage",
    "zeros behind": lambda data: data + bytes(4096),
    "wrong magic": lambda data: data[:-4] + b"LANX",
    "a footer alone": lambda data: data[-16:],
    "random": lambda data: bytes(range(256)) * 3,
}


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def make(path: Path | str, versions: int = 3) -> LanceDataset:
    for value in range(1, versions + 1):
        write_dataset(rows(value), path, mode="append")
    return dataset(path)


def tear(path: Path | str, version: int, how: str = "half") -> None:
    store, root = open_store(path)
    name = manifest_path(root, version, ManifestNaming.V2)
    store.put(name, TEARS[how](store.read(name)))


def values(path: Path | str) -> list[int]:
    return sorted(dataset(path).to_table()["a"].to_pylist())


@pytest.fixture(autouse=True)
def forget() -> None:
    """Let each test see warnings as the first one of its process."""
    versions._checked_files.clear()


@pytest.mark.parametrize("how", TEARS)
def test_readers_writers_and_restore_step_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path = tmp_path / "t"
    make(path)
    tear(path, 3, how)
    assert values(path) == [1, 2]
    assert dataset(path).version == dataset(path).latest_version == 2
    assert [version["version"] for version in dataset(path).versions()] == [1, 2]
    assert caplog.text.count("the manifest is not whole") == 1, "one warning for each file"
    assert "version 2 is used instead" in caplog.text
    with pytest.raises(TornManifestError, match="verify --repair"):
        dataset(path, version=3)
    assert write_dataset(rows(9), path, mode="append").version == 4
    assert values(path) == [1, 2, 9]
    restored = dataset(path, version=1).restore()
    assert (restored.version, values(path)) == (5, [1])
    assert lance.dataset(str(path)).to_table()["a"].to_pylist() == [1]
    lance.write_dataset(rows(10), str(path), mode="append")
    assert values(path) == [1, 10]


@pytest.mark.parametrize("uri", ["memory://torn/t", "local"])
def test_on_every_store(tmp_path: Path, uri: str) -> None:
    path = uri if uri.startswith("memory") else str(tmp_path / "t")
    if uri.startswith("memory"):
        fsspec.filesystem("memory").store.clear()
    make(path)
    tear(path, 3)
    tear(path, 2)
    assert values(path) == [1]
    assert write_dataset(rows(7), path, "append").version == 4
    assert values(path) == [1, 7]
    assert dataset(path).repair().version == 4
    store, root = open_store(path)
    assert len(store.list(f"{root}/_torn")) == 2
    assert [version["version"] for version in dataset(path).versions()] == [1, 4]


def test_restore_and_repair_move_the_file_and_never_use_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path)
    tear(path, 3)
    name = Path(manifest_path(str(path), 3, ManifestNaming.V2)).name
    data = (path / "_versions" / name).read_bytes()
    assert dataset(path, version=1).restore().version == 4
    assert (path / "_torn" / name).read_bytes() == data
    assert not (path / "_versions" / name).exists()
    assert values(path) == [1]
    assert write_dataset(rows(5), path, mode="append").version == 5
    assert lance.dataset(str(path)).count_rows() == 2


def test_verify_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t"
    make(path)
    assert main(["verify", str(path), "--repair"]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    tear(path, 3)
    assert main(["verify", str(path)]) == 1
    assert "the manifest is not whole" in capsys.readouterr().out
    assert main(["verify", str(path), "--repair"]) == 0
    out = capsys.readouterr().out
    assert "restored version 2 as 4" in out
    assert "moved a torn manifest to" in out
    assert lance.dataset(str(path)).version == 4
    lance.write_dataset(rows(8), str(path), mode="append")
    assert values(path) == [1, 2, 8]
    assert main(["verify", str(path)]) == 0
    assert main(["verify", str(path), "--repair", "--version", "1"]) == 2


def test_the_command_restore_repairs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path)
    tear(path, 3, "zeros")
    assert main(["restore", str(path), "2"]) == 0
    assert lance.dataset(str(path)).to_table()["a"].to_pylist() == [1, 2]
    assert main(["verify", str(path)]) == 0


def test_no_whole_version_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path, 2)
    tear(path, 1)
    tear(path, 2, "empty")
    before = sorted(path.rglob("*"))
    for mode in ("append", "overwrite", "create"):
        with pytest.raises(TornManifestError):
            write_dataset(rows(1), path, mode=mode)
    with pytest.raises(TornManifestError):
        dataset(path)
    assert sorted(path.rglob("*")) == before


def test_conflicts_are_found_across_a_torn_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = make(path)
    old = dataset(path, version=2)
    tear(path, 3)
    dataset(path).delete("a = 1")  # version 4
    assert old.version == 2
    # Version 3 may have been whole when 4 was built on it.
    with pytest.raises(RetryableConflictError, match=r"version 3 .* damaged manifest"):
        LanceDataset.commit(old.uri, LanceOperation.Append([]), read_version=2)
    old.delete("a = 2")  # computed from 2: runs again on 4
    assert dataset(path).version == 5
    assert dataset(path).count_rows() == 0
    dataset(path).repair()
    again = dataset(path, version=2)
    again.delete("a = 2")  # 3 is set aside by now, and 2 is deleted already
    assert dataset(path).count_rows() == 0


def test_changes_cross_the_gap(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(rows(1), path, enable_stable_row_ids=True)
    write_dataset(rows(2), path, mode="append")
    write_dataset(rows(3), path, mode="append")
    tear(path, 3)
    write_dataset(rows(4), path, mode="append")
    for _ in range(2):
        changes = dataset(path).delta(1)
        assert changes.get_inserted_rows().read_all()["a"].to_pylist() == [2, 4]
        assert len(changes.list_transactions()) == 2
        dataset(path).repair()


def test_times_step_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path)
    tear(path, 3)
    assert dataset(path, asof="9999-01-01").version == 2


def test_a_newer_format_is_refused_and_not_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    newest = make(path).manifest
    message = table_pb2.Manifest()
    message.CopyFrom(newest.message)
    message.reader_feature_flags |= 1 << 40
    Path(newest.path).write_bytes(pack_manifest(message, newest.index_section, b""))
    with pytest.raises(UnsupportedFormatError):
        dataset(path)
    with pytest.raises(UnsupportedFormatError):
        write_dataset(rows(1), path, mode="append")
    with pytest.raises(UnsupportedFormatError):
        spark_lance.dataset(path).repair()


def test_a_hint_to_a_torn_version_and_torn_detached_versions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = make(path)
    detached = spark_lance.LanceDataset.commit(
        str(path), spark_lance.LanceOperation.Append([]), read_version=3, detached=True
    )
    name = Path(detached.manifest.path)
    name.write_bytes(name.read_bytes()[:-3])
    tear(path, 3)
    assert (path / "_versions" / "latest_version_hint.json").read_text() == '{"version":3}'
    with pytest.raises(TornManifestError):
        dataset(path, version=detached.version)
    assert result.checkout_latest().repair().version == 4
    assert len(list((path / "_torn").iterdir())) == 2
    assert lance.dataset(str(path)).version == 4


def test_clean_up_waits_for_the_repair(tmp_path: Path) -> None:
    path = tmp_path / "t"
    make(path)
    tear(path, 3)
    files = sorted((path / "data").iterdir())
    with pytest.raises(FormatError, match="verify --repair"):
        dataset(path).cleanup_old_versions(retain_versions=1)
    assert sorted((path / "data").iterdir()) == files
    dataset(path).repair()
    dataset(path).cleanup_old_versions(retain_versions=1)
    assert values(path) == [1, 2]
    assert list((path / "_torn").iterdir())


def test_idempotent_writes_step_over(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    make(path)
    tear(path, 2)
    lance.dataset(path).delete("a = 1")
    with spark_lance.commit_options(message="x"):
        write_dataset(rows(5), path, mode="append")
    assert dataset(path).version == 5


def test_an_index_section_of_zeros_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = make(path)
    result.create_scalar_index("a", "BTREE")
    manifest = Path(dataset(path).manifest.path)
    data = bytearray(manifest.read_bytes())
    section = len(dataset(path).manifest.index_section)
    start = read_manifest(open_store(path)[0], str(manifest), ManifestNaming.V2).message.index_section
    data[start : start + 4 + section] = bytes(4 + section)
    manifest.write_bytes(data)
    assert dataset(path).version == 3


def test_a_branch_steps_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    branch = make(path).create_branch("dev")
    branch = write_dataset(rows(7), branch, mode="append")
    newest = Path(branch.manifest.path)
    newest.write_bytes(newest.read_bytes()[:-9])
    again = dataset(path).checkout_version(("dev", None))
    assert again.version == 3
    assert again.repair().version == 5
