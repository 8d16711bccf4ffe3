"""Copying blobs by reference: descriptors that name their data file, written to other tables."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import BlobSourceError, SchemaError, UnsupportedFormatError
from spark_lance.file import blob_writer
from spark_lance.file.blob_references import REFERENCE, is_reference
from spark_lance.io.store import open_store
from spark_lance.table.reading import blob_sources
from spark_lance.table.reading.blob_sources import FileUris, data_files, map_blobs, with_source
from tests.conftest import ROOT

BLOB = {"lance-encoding:blob": "true"}


def referenced(dataset: Any) -> pa.Table:
    """The rows of a dataset with references in place of blobs."""
    scan = dataset.plan_scan(None)
    parts = []
    for task in scan.tasks():
        file_uris = data_files(task.message, scan.bases)

        def change(
            array: pa.Array, blob: Any, rows: Any, _: object, file_uris: FileUris = file_uris
        ) -> pa.Array:
            return with_source(array, blob, rows, file_uris, scan.bases)

        for batch in task.batches(1 << 20, 5):
            columns, fields = list(batch.columns), list(batch.schema)
            for place, field in enumerate(dataset.lance_schema.fields):
                columns[place] = map_blobs(columns[place], field, np.arange(batch.num_rows), change)
                fields[place] = pa.field(field.name, columns[place].type)
            parts.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return pa.Table.from_batches(parts)


def some_blobs(rng: random.Random, count: int) -> list[bytes | None]:
    sizes = [0, 1, 63, 1000, 65_536, 65_537, 300_000]
    return [None if rng.random() < 0.2 else rng.randbytes(rng.choice(sizes)) for _ in range(count)]


def table_of(values: list[bytes | None], first: int = 0) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=BLOB)])
    ids = pa.array(range(first, first + len(values)))
    return pa.table([ids, pa.array(values, pa.large_binary())], schema=schema)


def bytes_of(path: str) -> dict[int, bytes | None]:
    dataset = spark_lance.dataset(path)
    ids = dataset.to_table(["id"])["id"].to_pylist()
    blobs = dataset.take_blobs("b", indices=list(range(len(ids))))
    return {key: None if blob is None else blob.readall() for key, blob in zip(ids, blobs, strict=True)}


def bytes_by_pylance(path: str) -> dict[int, bytes | None]:
    dataset = lance.dataset(path)
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    results = {}
    for place, key in enumerate(ids):
        blobs = dataset.take_blobs("b", indices=[place])
        results[key] = blobs[0].readall() if blobs and blobs[0] is not None else None
    return results


@pytest.mark.parametrize("seed", range(6))
def test_references_of_two_tables_in_random_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    # Blobs of some 100 KB are streamed then, and pieces end inside of them.
    monkeypatch.setattr(blob_writer, "_COPY_BYTES", rng.choice([1 << 10, 100_000, 16 << 20]))
    monkeypatch.setattr(blob_sources, "_CHUNK_BYTES", 64 * rng.choice([1, 1000]))
    monkeypatch.setattr(blob_sources, "_MAX_OPEN_FILES", rng.choice([1, 1000]))
    want: dict[int, bytes | None] = {}
    rows = []
    version: Any = rng.choice(["2.0", "2.1", "2.2"])
    for number in range(2):
        values = some_blobs(rng, 40)
        path = str(tmp_path / f"source{number}")
        table = table_of(values, 1000 * number)
        lance.write_dataset(table, path, data_storage_version=version, max_rows_per_file=13)
        lance.dataset(path).delete("id % 5 = 2")
        rows.append(referenced(spark_lance.dataset(path)))
        want.update({key: v for key, v in zip(table["id"].to_pylist(), values, strict=True) if key % 5 != 2})
    both = pa.concat_tables(rows)
    both = both.take(pa.array(np.random.default_rng(seed).permutation(both.num_rows)))
    target = str(tmp_path / "target")
    spark_lance.write_dataset(both, target, data_storage_version=rng.choice(["2.0", "2.1", "2.2"]))
    if version == "2.0":
        # Without Spark's reading nobody tells its nulls from empty blobs.
        want = {key: v or b"" for key, v in want.items()}
    got = {key: v or b"" for key, v in bytes_of(target).items()} if version == "2.0" else bytes_of(target)
    assert got == want
    by_pylance = bytes_by_pylance(target)
    assert {key: v or b"" for key, v in by_pylance.items()} == {key: v or b"" for key, v in want.items()}


def test_the_thresholds_of_the_target_decide_where_bytes_go(tmp_path: Path) -> None:
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    values: list[bytes | None] = [b"a" * 100, b"b" * 70_000, b"c" * 5_000_000]
    spark_lance.write_dataset(table_of(values), source, data_storage_version="2.0")
    limits = {"lance-encoding:blob-inline-size-threshold": "10"}
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata={**BLOB, **limits})]
    )
    spark_lance.write_dataset(schema.empty_table(), target, data_storage_version="2.2")
    spark_lance.write_dataset(referenced(spark_lance.dataset(source)), target, mode="append")
    kinds = [row["kind"] for row in lance.dataset(target).to_table()["b"].to_pylist()]
    assert kinds == [1, 1, 2]
    assert bytes_by_pylance(target) == dict(enumerate(values))


def test_stores_of_the_drivers(tmp_path: Path) -> None:
    values = some_blobs(random.Random(1), 30)
    spark_lance.write_dataset(table_of(values), "memory://blobs/source", max_rows_per_file=7)
    rows = referenced(spark_lance.dataset("memory://blobs/source"))
    assert rows["b"].combine_chunks().field("blob_source")[0].as_py().startswith("memory://")
    target = str(tmp_path / "local")
    spark_lance.write_dataset(rows, target)
    assert bytes_by_pylance(target) == dict(enumerate(values))
    spark_lance.write_dataset(referenced(spark_lance.dataset(target)), "memory://blobs/back")
    assert bytes_of("memory://blobs/back") == dict(enumerate(values))


def test_base_paths_and_branches(tmp_path: Path) -> None:
    values = some_blobs(random.Random(2), 20)
    origin, clone = str(tmp_path / "o"), str(tmp_path / "clone")
    spark_lance.write_dataset(table_of(values), origin, max_rows_per_file=6)
    lance.dataset(origin).shallow_clone(clone, 1)
    more: list[bytes | None] = [b"own" * 30_000]
    spark_lance.write_dataset(table_of(more, 100), clone, mode="append")
    target = str(tmp_path / "t")
    spark_lance.write_dataset(referenced(spark_lance.dataset(clone)), target)
    assert bytes_by_pylance(target) == {**dict(enumerate(values)), 100: more[0]}
    branch = spark_lance.dataset(origin).create_branch("side")
    spark_lance.write_dataset(referenced(branch), target, mode="overwrite")
    assert bytes_by_pylance(target) == dict(enumerate(values))


def test_external_blobs_stay_outside_where_the_target_can_say_so(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"elsewhere")
    source = str(tmp_path / "s")
    values = [b"inside", outside.as_uri(), None]
    schema = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])
    table = pa.table([pa.array(range(3)), lance.blob_array(values)], schema=schema)
    lance.write_dataset(table, source, data_storage_version="2.2", allow_external_blob_outside_bases=True)
    rows = referenced(spark_lance.dataset(source))
    for version, kinds in (("2.2", [0, 3, None]), ("2.1", None)):
        target = str(tmp_path / f"t{version}")
        spark_lance.write_dataset(rows, target, data_storage_version=version)
        assert bytes_of(target) == {0: b"inside", 1: b"elsewhere", 2: None}
        assert bytes_by_pylance(target) == {0: b"inside", 1: b"elsewhere", 2: None}
        if kinds is not None:
            result = lance.dataset(target).to_table()["b"].to_pylist()
            assert [row and row["kind"] for row in result] == kinds


def test_relative_external_blobs_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "one.bin").write_bytes(b"a picture")
    reference = {
        "kind": 3, "position": 0, "size": 0, "blob_id": 1, "blob_uri": "one.bin",
        "blob_source": str(tmp_path / "pictures"),
    }  # fmt: skip
    rows = pa.table({"id": pa.array([0]), "b": pa.array([reference], REFERENCE)})
    for version in ("2.1", "2.2"):
        target = str(tmp_path / version)
        spark_lance.write_dataset(rows, target, data_storage_version=version)
        assert bytes_of(target) == {0: b"a picture"}
    escaping = pa.table({"b": pa.array([{**reference, "blob_uri": "../one.bin"}], REFERENCE)})
    with pytest.raises(BlobSourceError, match="not a path"):
        spark_lance.write_dataset(escaping, str(tmp_path / "e"), data_storage_version="2.1")


def test_what_cannot_be_found_is_refused(tmp_path: Path) -> None:
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    spark_lance.write_dataset(table_of([b"x" * 100_000, b"y"]), source)
    rows = referenced(spark_lance.dataset(source))
    (good, _) = rows["b"].to_pylist()

    def write(**changes: Any) -> None:
        column = pa.array([{**good, **changes}], rows.schema.field("b").type)
        spark_lance.write_dataset(pa.table({"b": column}), target, data_storage_version="2.1")

    with pytest.raises(BlobSourceError, match="all_binary"):
        write(blob_source=None)
    with pytest.raises(BlobSourceError, match="cleaned up"):
        write(blob_source=good["blob_source"].replace(".lance", "0.lance"))
    with pytest.raises(BlobSourceError, match="which is not a Lance data file"):
        write(blob_source=str(Path(__file__)))
    (tmp_path / "no.lance").write_bytes(b"something else")
    with pytest.raises(BlobSourceError, match="which is not a Lance data file"):
        write(blob_source=str(tmp_path / "no.lance"))
    with pytest.raises(ValueError, match="in a file of"):
        write(position=1 << 40)
    with pytest.raises(ValueError, match=r"in a file of|not a position"):
        write(size=(1 << 64) - 1)
    assert not list(Path(target).rglob("*.lance"))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_descriptors_without_a_source_are_never_taken_for_blobs(tmp_path: Path, version: Any) -> None:
    path = str(tmp_path / "t")
    lance.write_dataset(table_of([b"x", None]), path, data_storage_version=version)
    described = lance.dataset(path).to_table()
    dataset = spark_lance.dataset(path)
    before = bytes_by_pylance(path)
    for write in (
        lambda: spark_lance.write_dataset(described, path, mode="append"),
        lambda: spark_lance.write_dataset(described, str(tmp_path / "new"), data_storage_version=version),
        lambda: dataset.merge_insert("id").when_matched_update_all().execute(described),
        lambda: dataset.merge_insert("id").when_not_matched_insert_all().execute(described),
        lambda: dataset.merge(described.rename_columns(["id", "more"]), "id"),
        lambda: dataset.add_columns({"more": "b"}),
    ):
        with pytest.raises((SchemaError, UnsupportedFormatError)):
            write()
    assert bytes_by_pylance(path) == before


def test_plain_bytes_in_the_target(tmp_path: Path) -> None:
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    values = some_blobs(random.Random(5), 30)
    spark_lance.write_dataset(table_of(values), source)
    for kind in (pa.binary(), pa.large_binary()):
        spark_lance.write_dataset(
            pa.table({"id": pa.array([], pa.int64()), "b": pa.array([], kind)}), target, mode="overwrite"
        )
        spark_lance.write_dataset(referenced(spark_lance.dataset(source)), target, mode="append")
        assert lance.dataset(target).to_table()["b"].to_pylist() == values


_COPY = """
import pathlib, sys
sys.path.insert(0, sys.argv[3])
import pyarrow as pa
import spark_lance
from tests.table.reading.test_blob_references import referenced

def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])

rows = referenced(spark_lance.dataset(sys.argv[1]))
small = {name: rows[name].slice(0, 1) for name in rows.column_names}
spark_lance.write_dataset(pa.table(small), sys.argv[2] + "small", data_storage_version=sys.argv[4])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
before = status("VmRSS")
spark_lance.write_dataset(rows, sys.argv[2], data_storage_version=sys.argv[4])
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is told by Linux")
@pytest.mark.parametrize("version", [pytest.param("2.1", marks=pytest.mark.slow), "2.2"])
def test_memory_does_not_grow_with_blobs(tmp_path: Path, version: str) -> None:
    """Copies 200 MB of blobs, one of which has 120 MB."""
    source, target = str(tmp_path / "s"), str(tmp_path / "t")
    rng = np.random.default_rng(0)
    sizes = [2 << 20] * 40 + [120 << 20]
    for start in range(0, len(sizes), 10):
        values: list[bytes | None] = [rng.bytes(size) for size in sizes[start : start + 10]]
        mode = "append" if start else "create"
        spark_lance.write_dataset(table_of(values, start), source, mode=mode, data_storage_version="2.2")
    root = str(ROOT)
    requests = [sys.executable, "-c", _COPY, source, target, root, version]
    done = subprocess.run(requests, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 10, done.stdout
    last = spark_lance.dataset(target).take_blobs("b", indices=[0, 40])
    first = spark_lance.dataset(source).take_blobs("b", indices=[0, 40])
    for copied, blob in zip(last, first, strict=True):
        assert copied is not None
        assert blob is not None
        assert copied.readall() == blob.readall()


def test_references_are_known_by_their_parts() -> None:
    whole = pa.struct([("position", pa.int64()), ("size", pa.int64()), ("blob_source", pa.string())])
    assert is_reference(whole)
    assert not is_reference(pa.struct([("position", pa.int64()), ("size", pa.int64())]))
    assert not is_reference(pa.struct([*whole, pa.field("more", pa.int64())]))
    assert open_store("memory://x")[0].uri("/x") == "memory:///x"


def test_rows_of_fragments_without_the_column_have_no_source(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark_lance.write_dataset(table_of([b"one", None]), path)
    spark_lance.write_dataset(pa.table({"id": [2, 3]}), path, mode="append")
    rows = referenced(spark_lance.dataset(path))
    spark_lance.write_dataset(rows, tmp_path / "copy")
    assert bytes_of(str(tmp_path / "copy")) == {0: b"one", 1: None, 2: None, 3: None}
