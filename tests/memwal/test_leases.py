"""Rows that a running job has staged are not collected, however long the job takes."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.memwal import staged
from spark_lance.memwal.staged import Lease, delete_staged
from spark_lance.table.format.table_ref import TableRef

KEY = {"lance-schema:unenforced-primary-key:position": "0"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY)])
DAY = 86_400


@pytest.fixture
def table(tmp_path: Path) -> spark_lance.LanceDataset:
    rows = pa.table({"id": [1]}).cast(SCHEMA)
    return spark_lance.write_dataset(rows, str(tmp_path / "t")).initialize_mem_wal(unsharded=True)


def stage(table: spark_lance.LanceDataset, job: str, age: float = DAY) -> Path:
    """Leave a file as a task does that ended some time ago."""
    file = Path(table.uri) / "_wal_staging" / job / "0-00.arrow"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"rows")
    os.utime(file, (time.time() - age, time.time() - age))
    return file


@pytest.mark.parametrize("older_than", [timedelta(0), timedelta(hours=1)])
def test_rows_of_a_running_job_stay(table: spark_lance.LanceDataset, older_than: timedelta) -> None:
    running, dead = stage(table, "running"), stage(table, "dead")
    with Lease(TableRef(table.store, table.uri), "running"):
        table.wal.collect(older_than=older_than)
        assert running.exists()
        assert not dead.exists()
    delete_staged(TableRef(table.store, table.uri), "running")
    assert not running.parent.exists()


def test_a_lease_is_renewed(table: spark_lance.LanceDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "LEASE_SECONDS", 0.02)
    file = stage(table, "job")
    with Lease(TableRef(table.store, table.uri), "job", at_once=False):
        deadline = time.monotonic() + 30
        while not list(file.parent.glob("[!.]*.lease")) and time.monotonic() < deadline:
            time.sleep(0.01)
        (lease,) = file.parent.glob("[!.]*.lease")
        os.utime(lease, (0, 0))
        while lease.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.stat().st_mtime > 0


def test_a_lease_that_nobody_renews_ends(table: spark_lance.LanceDataset) -> None:
    file = stage(table, "job")
    with Lease(TableRef(table.store, table.uri), "job"):
        pass
    (lease,) = file.parent.glob("*.lease")
    old = time.time() - DAY
    os.utime(lease, (old, old))
    table.wal.collect(older_than=timedelta(hours=1))
    assert not file.parent.exists()


def test_a_job_is_as_old_as_its_newest_file(table: spark_lance.LanceDataset) -> None:
    old = stage(table, "job")
    young = old.with_name("1-00.arrow")
    young.write_bytes(b"rows")
    table.wal.collect(older_than=timedelta(hours=1))
    assert old.exists()
    assert young.exists()
    table.wal.collect(older_than=timedelta(0))
    assert not old.parent.exists()
