"""Failures of file systems of this machine arrive as one line with cause and path, and keep their number."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import StoreAccessError, StoreError
from spark_lance.io.failures import LOCAL, local_failure
from spark_lance.io.local import LocalStore
from tests.conftest import ROOT

TINY = pa.table({"a": [1, 2, 3]})


@pytest.mark.parametrize("number", LOCAL)
def test_every_number_has_its_words(number: int) -> None:
    raised = OSError(number, os.strerror(number), "/tmp/.tmp123.x")
    result = local_failure(raised, "writing /table/x")
    assert isinstance(result, StoreError)
    assert isinstance(result, StoreAccessError) == (number in (errno.EACCES, errno.EPERM))
    assert isinstance(result, PermissionError) == isinstance(raised, PermissionError)
    assert result.errno == number
    assert str(result).startswith("writing /table/x: ")
    assert "\n" not in str(result)
    assert ".tmp" not in str(result)


def test_what_callers_ask_for_stays_as_it_is() -> None:
    for raised in (
        FileNotFoundError(2, "x"),
        FileExistsError(17, "x"),
        StoreError("x"),
        OSError("no number"),
    ):
        assert local_failure(raised, "writing x") is raised


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make every opening of a file for writing fail with a number."""

    def fail(number: int) -> None:
        opened = Path.open

        def raising(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if "x" in mode or "w" in mode:
                raise OSError(number, os.strerror(number), str(self))
            return opened(self, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", raising)

    yield fail
    monkeypatch.undo()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ESTALE])
def test_writes_that_fail_leave_the_table_as_it_was(number: int, tmp_path: Path, failing: Any) -> None:
    path = tmp_path / "t"
    ds = spark_lance.write_dataset(TINY, path)
    failing(number)
    for change in (
        lambda: spark_lance.write_dataset(TINY, path, mode="append"),
        lambda: spark_lance.write_dataset(TINY, path, mode="overwrite"),
        lambda: ds.delete("a = 1"),
        lambda: ds.tags.create("x"),
        lambda: ds.create_scalar_index("a", "BTREE"),
    ):
        with pytest.raises(StoreError, match=LOCAL[number].split(":")[0]) as caught:
            change()
        assert caught.value.errno == number
        assert str(path) in str(caught.value)
    assert spark_lance.dataset(path).version == 1
    assert spark_lance.dataset(path).to_table() == TINY


@pytest.mark.parametrize("size", [1000, 200_000])
def test_a_file_that_may_not_grow(size: int, tmp_path: Path) -> None:
    program = (
        "import os, resource, sys, pyarrow as pa, spark_lance\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        "rows = pa.table({'a': [os.urandom(100) for _ in range(10_000)]})\n"
        "spark_lance.write_dataset(rows, sys.argv[1])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"spark_lance.errors.StoreError: writing {tmp_path}/t/data/")
    assert "larger than a limit" in last
    assert list((tmp_path / "t").rglob("*.lance")) == []


def test_the_command_line_says_it_in_a_line(
    tmp_path: Path, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from spark_lance.cli.main import main

    spark_lance.write_dataset(TINY, tmp_path / "t")
    failing(errno.ENOSPC)
    assert main(["restore", str(tmp_path / "t"), "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: writing ")
    assert err.endswith("the disk is full: free some space, then run it again (No space left on device)\n")


def test_a_folder_that_a_cleanup_removes_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir
    removed: list[Path] = []

    def mkdir_and_remove(folder: Path, *arguments: Any, **named: Any) -> None:
        mkdir(folder, *arguments, **named)
        if len(removed) < 3:
            removed.append(folder)
            folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_and_remove)
    store = LocalStore()
    output = store.create(f"{tmp_path}/a/b")
    output.write(b"x")
    output.close()
    store.put_if_absent(f"{tmp_path}/c/d", b"y")
    assert (tmp_path / "a" / "b").read_bytes() + (tmp_path / "c" / "d").read_bytes() == b"xy"
    assert len(removed) == 3
