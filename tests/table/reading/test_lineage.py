"""Row lineage that is kept in data files, against pylance; also in turns with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import spark_lance.datasets.dataset as ours
from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.next_version import CommitContext, finish_version, start_version
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, UPDATED_AT, LineageReader, fragment_lineage
from spark_lance.table.versions.versions import list_versions, load_latest, load_version
from tests.table.histories import SPILL, Step, play, steps

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]

SPILLED = 2048
STAMP = CommitContext("/", "x.txn", 0)


def spilled(path: Path, rows: int = 40) -> None:
    """Let pylance make a table with lineage in the manifest, in files of its own and beside columns."""
    data = pa.table({"a": range(rows), "b": range(rows)})
    lance.write_dataset(data, path, enable_stable_row_ids=True, max_rows_per_file=7)
    lance.dataset(str(path)).update_config(SPILL)
    lance.dataset(str(path)).update({"b": "100"}, where="a % 3 = 1")
    lance.dataset(str(path)).delete("a = 4")
    lance.dataset(str(path)).optimize.compact_files(target_rows_per_fragment=1000)
    lance.dataset(str(path)).add_columns({"c": "a + 1"})
    lance.dataset(str(path)).update({"c": "7"}, where="a % 5 = 1")
    lance.write_dataset(pa.table({"a": [900, 901]}), path, mode="append")


def assert_lineage_as_pylance(path: Path, version: int | None = None) -> None:
    """Compare the lineage of all live rows with pylance's scan."""
    theirs = lance.dataset(str(path), version=version).scanner(
        columns=["_rowaddr", ROW_ID, CREATED_AT, UPDATED_AT]
    )
    expected = theirs.to_table().sort_by("_rowaddr")
    table = TableRef(*open_store(path))
    manifest = load_latest(table) if version is None else load_version(table, version)
    bases = Bases.of(table, manifest.message)
    for fragment in manifest.fragments:
        addresses = expected["_rowaddr"].to_numpy()
        here = addresses >> 32 == fragment.id
        offsets = (addresses[here] & 0xFFFFFFFF).astype(np.int64)
        lineage = fragment_lineage(table, fragment, bases)
        for name, values in zip((ROW_ID, CREATED_AT, UPDATED_AT), lineage, strict=True):
            assert values is not None
            assert len(values) == fragment.physical_rows
            assert values.dtype == np.uint64
            np.testing.assert_array_equal(values[offsets], expected[name].to_numpy()[here], name)


def test_every_version_of_a_spilled_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path)
    message = ours.dataset(path).manifest.message
    assert message.reader_feature_flags & SPILLED
    arms = {fragment.WhichOneof("row_id_sequence") for fragment in message.fragments}
    assert arms == {"inline_row_ids", "column_row_ids"}
    for file in list_versions(TableRef(*open_store(path))):
        assert_lineage_as_pylance(path, file.version)
    assert ours.dataset(path).to_table().equals(lance.dataset(str(path)).to_table())


def test_changes_that_keep_the_files_keep_the_lineage(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path)
    ours.dataset(path).delete(pc.field("a").isin([0, 6, 13]))
    ours.write_dataset(pa.table({"a": [905], "b": [1]}), path, mode="append")
    ours.dataset(path).update_config({"k": "v"})
    message = ours.dataset(path).manifest.message
    assert message.reader_feature_flags & SPILLED
    assert message.writer_feature_flags & SPILLED
    assert_lineage_as_pylance(path)
    lance.dataset(str(path)).delete("a = 9")
    assert_lineage_as_pylance(path)
    assert ours.dataset(path).to_table().equals(lance.dataset(str(path)).to_table())


def test_dropped_columns_leave_their_file_to_the_lineage(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path)
    lance.dataset(str(path)).delete("a >= 900")  # a fragment without files would be left
    latest = ours.dataset(path).manifest
    lineage_only = [f for f in latest.fragments for file in f.files if set(file.fields) == {-3, -4}]
    beside = [f for f in latest.fragments for file in f.files if {0, 1, -3} <= set(file.fields)]
    assert lineage_only
    assert beside
    ours.dataset(path).drop_columns(["a", "b"])
    assert_lineage_as_pylance(path)
    assert ours.dataset(path).to_table().equals(lance.dataset(str(path)).to_table())


def test_no_version_loses_the_file_of_its_lineage(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path)
    table = TableRef(*open_store(path))
    latest = load_latest(table)
    message = start_version(latest, STAMP)
    fragment = next(f for f in message.fragments if f.HasField("column_row_ids"))
    home = next(file for file in fragment.files if -3 in file.fields)
    fragment.files.remove(home)
    with pytest.raises(FormatError, match="lineage"):
        finish_version(message, latest.index_section, latest.naming, STAMP)


def test_the_flag_goes_with_the_last_spilled_fragment(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path)
    ours.write_dataset(pa.table({"a": [1]}), path, mode="overwrite")
    assert not ours.dataset(path).manifest.message.reader_feature_flags & SPILLED
    assert_lineage_as_pylance(path)


def test_parts_of_a_spilled_column(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spilled(path, 3000)
    table = TableRef(*open_store(path))
    fragment = next(f for f in load_latest(table).fragments if f.HasField("column_row_ids"))
    rows = fragment.physical_rows
    assert rows > 500
    whole = fragment_lineage(table, fragment)
    picked = np.unique(np.random.default_rng(3).integers(0, rows, 50))
    for name, values in zip((ROW_ID, CREATED_AT, UPDATED_AT), whole, strict=True):
        assert values is not None
        reader = LineageReader(table, fragment, name, rows)
        np.testing.assert_array_equal(reader.read(100, 230), values[100:230])
        np.testing.assert_array_equal(reader.take(picked), values[picked])


def test_lineage_of_a_clone_lies_with_its_source(tmp_path: Path) -> None:
    spilled(tmp_path / "t")
    source = lance.dataset(str(tmp_path / "t"))
    source.shallow_clone(str(tmp_path / "clone"), source.version)
    message = ours.dataset(tmp_path / "clone").manifest.message
    assert all(file.HasField("base_id") for fragment in message.fragments for file in fragment.files)
    assert_lineage_as_pylance(tmp_path / "clone")
    ours.dataset(tmp_path / "clone").update({"b": "5"}, where="a % 4 = 1")
    assert_lineage_as_pylance(tmp_path / "clone")


def test_nulls_among_row_ids(tmp_path: Path, forge: Forge) -> None:
    # The ids of the rows are said to be in a column of the table, which holds a null.
    path = tmp_path / "t"
    data = pa.table({"a": pa.array([1, None, 3], pa.uint64()), "b": [1, 2, 3]})
    lance.write_dataset(data, path, enable_stable_row_ids=True)

    def edit(message: table_pb2.Manifest) -> None:
        message.fragments[0].column_row_ids.SetInParent()
        message.fragments[0].files[0].fields[0] = -3

    forge(path, edit)
    with pytest.raises(FormatError, match="null"):
        ours.dataset(path).to_table(["b", "_rowid"])


def test_missing_versions_are_the_first(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"a": range(5)}), path, enable_stable_row_ids=True)
    lance.write_dataset(pa.table({"a": range(5)}), path, mode="append")

    def edit(message: table_pb2.Manifest) -> None:
        message.fragments[1].ClearField("inline_created_at_versions")
        message.fragments[1].ClearField("inline_last_updated_at_versions")

    forge(path, edit)
    assert_lineage_as_pylance(path)


def test_a_table_without_stable_row_ids_has_no_lineage(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": range(5)}), tmp_path / "t")
    table = TableRef(*open_store(tmp_path / "t"))
    (fragment,) = load_latest(table).fragments
    assert fragment_lineage(table, fragment) == (None, None, None)
    with pytest.raises(FormatError, match="no row ids"):
        LineageReader(table, fragment, ROW_ID, 5)


@pytest.mark.parametrize("homes", [0, 2])
def test_exactly_one_file_holds_a_spilled_sequence(tmp_path: Path, forge: Forge, homes: int) -> None:
    path = tmp_path / "t"
    spilled(path)

    def edit(message: table_pb2.Manifest) -> None:
        fragment = next(f for f in message.fragments if f.HasField("column_row_ids"))
        home = next(file for file in fragment.files if -3 in file.fields)
        if homes:
            fragment.files.add().CopyFrom(home)
        else:
            home.fields[list(home.fields).index(-3)] = -2

    forge(path, edit)
    table = TableRef(*open_store(path))
    fragment = next(f for f in load_latest(table).fragments if f.HasField("column_row_ids"))
    with pytest.raises(FormatError, match=f"{homes} data files"):
        fragment_lineage(table, fragment)
    with pytest.raises((OSError, ValueError)):
        lance.dataset(str(path)).to_table(columns=["_rowid"])


@settings(max_examples=10, deadline=None)
@given(changes=steps())
def test_lineage_is_the_same_whoever_writes(changes: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        both, theirs = Path(directory) / "both", Path(directory) / "theirs"
        play(both, changes, stable=True)
        play(theirs, changes, stable=True, alone=True)
        results = []
        for path in (both, theirs):
            assert_lineage_as_pylance(path)
            table = lance.dataset(str(path)).to_table(columns=["a", "b", ROW_ID, CREATED_AT, UPDATED_AT])
            results.append(table.sort_by("a"))
        # A compaction by pylance takes two versions: only the order of versions is the same.
        ranks = [np.unique([t[CREATED_AT], t[UPDATED_AT]], return_inverse=True)[1] for t in results]
        np.testing.assert_array_equal(ranks[0], ranks[1])
        # pylance numbers the rows that a merge inserts in an order of its own.
        names = ["a", "b"] if "merge" in {kind for kind, _, _ in changes} else ["a", "b", ROW_ID]
        assert results[0].select(names).equals(results[1].select(names))
