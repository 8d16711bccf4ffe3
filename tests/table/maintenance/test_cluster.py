"""Clustering: the same rows in another order, with their ids and versions, and none without being counted."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import FormatError, RetryableConflictError, UnsupportedFormatError
from spark_lance.table.maintenance.cluster import (
    ClusterPart,
    ClusterWriter,
    check_clusterable,
    check_parts,
    commit_parts,
    lineage_columns,
    spills_lineage,
)
from spark_lance.table.reading.lineage import SPILL
from tests.pylance_tables import read_theirs
from tests.strategies import canonical, tables

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # an example takes too long to be shrunk
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def everything(ds: LanceDataset) -> pa.Table:
    return ds.to_table(columns=[*ds.schema.names, *LINEAGE])


def writer(ds: LanceDataset, carried: list[str], **options: Any) -> ClusterWriter:
    return ClusterWriter(
        table=ds.table,
        read_version=ds.version,
        schema=ds.lance_schema,
        version=ds.manifest.file_version,
        rows_per_file=options.pop("rows_per_file", 1000),
        bytes_per_file=1 << 30,
        carried=tuple(carried),
        stable_row_ids=ds.has_stable_row_ids,
        **options,
    )


def shuffled(ds: LanceDataset, carried: list[str], order: Any) -> pa.Table:
    """Return what comes to a writer: carried columns and system columns, in another order."""
    return ds.to_table(columns=[*carried, *lineage_columns(ds.has_stable_row_ids)]).take(
        pa.array(order, pa.int64())
    )


def cluster(ds: LanceDataset, carried: list[str], order: Any, **options: Any) -> LanceDataset:
    """Write the rows of a version in another order by two writers, and commit."""
    rows = shuffled(ds, carried, order)
    half = rows.num_rows // 2
    parts = [
        pickle.loads(pickle.dumps(writer(ds, carried, **options))).write(part.to_batches(max_chunksize=7))
        for part in (rows.slice(0, half), rows.slice(half))
    ]
    old = [fragment.id for fragment in ds.manifest.fragments]
    assert check_parts(ds.snapshot, old, parts) == rows.num_rows
    return ds.at(commit_parts(ds.snapshot, old, parts))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@settings(max_examples=5, phases=PHASES)
@given(data=st.data())
def test_any_rows_in_any_order(version: str, stable: bool, data: st.DataObject) -> None:
    table = data.draw(tables(version, max_rows=30, max_columns=3, max_depth=2))
    assume(table.num_rows)
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "t")
        write_dataset(
            table, path, data_storage_version=version, enable_stable_row_ids=stable, max_rows_per_file=13
        )
        ds = dataset(path)
        if data.draw(st.booleans()):
            ds = ds.delete("_rowaddr % 3 = 0")
        spills = stable and data.draw(st.booleans())
        before = everything(ds)
        order = data.draw(st.permutations(range(before.num_rows)))
        # The helper below cannot put dictionaries in another order: pyarrow mixes up some of their values.
        movable = [field.name for field in table.schema if "dictionary" not in str(field.type)]
        carried = data.draw(st.lists(st.sampled_from(movable), unique=True)) if movable else []
        after = cluster(ds, carried, order, rows_per_file=11, spills=spills)
        columns = [*table.schema.names, *(LINEAGE if stable else ())]
        result = everything(after)
        theirs: Any = lance.dataset(path)
        theirs.validate()
        for name in columns:
            values = before[name].to_pylist()
            expected = canonical([values[place] for place in order])
            assert canonical(result[name]) == expected
            # One by one: pylance cannot read vectors of structs together with other columns.
            assert canonical(read_theirs(path, columns=[name])[name]) == expected
        assert bool(after.manifest.message.reader_feature_flags & 2048) == (spills and before.num_rows > 0)


def small(path: Path, **options: Any) -> LanceDataset:
    for start in range(0, 40, 10):
        write_dataset(pa.table({"id": range(start, start + 10)}), path, mode="append", **options)
    return dataset(path)


def test_lost_and_doubled_rows_are_found(tmp_path: Path) -> None:
    ds = small(tmp_path / "t")
    old = [fragment.id for fragment in ds.manifest.fragments]
    for order in (range(39), [*range(39), 38], [*range(1, 40), 1]):
        part = writer(ds, ["id"]).write(shuffled(ds, ["id"], list(order)).to_batches())
        with pytest.raises(FormatError, match="would lose rows"):
            check_parts(ds.snapshot, old, [part])
    with pytest.raises(FormatError, match="40 exist, 0 were written"):
        check_parts(ds.snapshot, old, [ClusterPart((), 0, 0)])


def test_rows_changed_meanwhile_are_a_conflict_and_appended_ones_are_not(tmp_path: Path) -> None:
    ds = small(tmp_path / "t")
    write_dataset(pa.table({"id": [100]}), tmp_path / "t", mode="append")
    assert sorted(cluster(ds, ["id"], range(39, -1, -1)).to_table()["id"].to_pylist()) == [*range(40), 100]
    ds = dataset(tmp_path / "t")
    ds.delete("id = 7")
    with pytest.raises(RetryableConflictError):
        cluster(ds, ["id"], range(41))
    assert dataset(tmp_path / "t").count_rows() == 40


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_an_index_answers_as_before(tmp_path: Path, stable: bool) -> None:
    path = tmp_path / "t"
    small(path, enable_stable_row_ids=stable)
    theirs: Any = lance.dataset(path)
    theirs.create_scalar_index("id", "BITMAP")
    cluster(dataset(path), ["id"], np.random.default_rng(0).permutation(40))
    theirs = lance.dataset(path)
    (covered,) = [s.fragment_ids for i in dataset(path).describe_indices() for s in i.segments]
    assert covered == (frozenset(f.id for f in dataset(path).manifest.fragments) if stable else frozenset())
    assert sorted(theirs.to_table(filter="id in (3, 17, 39)")["id"].to_pylist()) == [3, 17, 39]
    assert theirs.count_rows("id >= 30") == 10


def test_rows_keep_the_versions_that_made_and_changed_them(tmp_path: Path) -> None:
    ds = small(tmp_path / "t", enable_stable_row_ids=True).update({"id": "id"}, where="id % 4 = 1").dataset
    after = cluster(ds, ["id"], np.random.default_rng(1).permutation(40))
    assert everything(after).sort_by("id").equals(everything(ds).sort_by("id"))


def spilled(ds: LanceDataset) -> bool:
    return bool(ds.manifest.message.reader_feature_flags & 2048)


def test_spilled_lineage_stays_spilled_until_it_is_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ds = small(path, enable_stable_row_ids=True).delete("id = 5")
    ds = ds.update({"id": "id"}, where="id % 4 = 1").dataset
    assert not np.array_equal(*(everything(ds)[name].to_numpy() for name in LINEAGE[1:]))
    before = everything(ds).sort_by("id")
    assert not spills_lineage(ds.manifest, 100)
    assert spills_lineage(ds.manifest, 10**6)
    ds = cluster(ds, ["id"], range(38, -1, -1), spills=True)
    write_dataset(pa.table({"id": [77]}), path, mode="append")
    dataset(path).delete("id = 77")
    dataset(path).compact_files()
    assert spilled(dataset(path))
    assert everything(dataset(path)).sort_by("id").equals(before)
    ds = dataset(path).update_config({SPILL: "false"})
    assert not spills_lineage(ds.manifest, 10**6)
    ds.compact_files(target_rows_per_fragment=1, max_source_fragments=1, materialize_deletions_threshold=0.0)
    cluster(dataset(path), [], range(39))
    assert not spilled(dataset(path))
    assert everything(dataset(path)).sort_by("id").equals(before)
    assert spills_lineage(dataset(path).update_config({SPILL: "true"}).manifest, 1)


def test_pylance_goes_on_with_spilled_lineage(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small(path, enable_stable_row_ids=True)
    cluster(dataset(path), ["id"], range(39, -1, -1), spills=True)
    before = everything(dataset(path))
    theirs: Any = lance.dataset(path)
    lance.write_dataset(pa.table({"id": [100, 101]}), path, mode="append")
    theirs = lance.dataset(path)
    theirs.delete("id = 7")
    theirs.optimize.compact_files()
    after = everything(dataset(path))
    remaining = before.filter(pc.not_equal(before["id"], 7))
    assert after.slice(0, 39).equals(remaining)
    theirs.update({"id": "id + 1000"}, where="id = 9")
    dataset(path).compact_files()
    assert dataset(path).count_rows() == 41


def test_blobs_are_refused(tmp_path: Path) -> None:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    ds = write_dataset(pa.table({"b": [b"x"]}, schema=pa.schema([field])), tmp_path / "t")
    with pytest.raises(UnsupportedFormatError, match="blobs"):
        check_clusterable(ds.manifest)
