"""Tables with files in several places, written here and by pylance in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset, write_dataset
from spark_lance.datasets.operations import LanceOperation
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import CommitError, OptionError


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count)})


@pytest.fixture
def places(tmp_path: Path) -> list[DatasetBasePath]:
    return [
        DatasetBasePath(str(tmp_path / "one"), "one"),
        DatasetBasePath(str(tmp_path / "two"), "two", is_dataset_root=True),
    ]


def bases_of(ds: Any) -> list[int | None]:
    return [file.base_id for fragment in ds.get_fragments() for file in fragment.data_files()]


def base_tuples(bases: Any) -> list[tuple[Any, ...]]:
    return sorted((base.id, base.name, base.path, base.is_dataset_root) for base in bases)


def ids(ds: Any) -> list[int]:
    return sorted(ds.to_table(columns=["id"])["id"].to_pylist())


@pytest.mark.parametrize(
    "targets",
    [
        {},
        {"target_bases": ["two"]},
        {"target_bases": ["two", "one"]},
        {"target_all_bases": True},
        {"target_all_bases": False},
    ],
    ids=str,
)
def test_files_go_where_pylance_puts_them(
    tmp_path: Path, places: list[DatasetBasePath], targets: dict[str, Any]
) -> None:
    theirs = [lance.DatasetBasePath(p.path, name=p.name, is_dataset_root=p.is_dataset_root) for p in places]
    options = {"max_rows_per_file": 3, **targets}
    written = lance.write_dataset(rows(0, 20), str(tmp_path / "theirs"), initial_bases=theirs, **options)
    ds = write_dataset(rows(0, 20), tmp_path / "ours", initial_bases=places, **options)
    assert bases_of(ds) == bases_of(written)
    assert base_tuples(ds.base_paths()) == base_tuples(written._ds.base_paths().values())
    read: Any = lance.dataset(str(tmp_path / "ours"))
    read.validate()
    assert ids(read) == ids(ds) == ids(spark_lance.dataset(tmp_path / "theirs")) == list(range(20))


def test_both_write_to_one_table_in_turns(tmp_path: Path, places: list[DatasetBasePath]) -> None:
    path = tmp_path / "t"
    ds = write_dataset(rows(0, 10), path, initial_bases=places, target_bases=["one"])
    theirs = lance.write_dataset(rows(10, 10), str(path), mode="append", target_bases=["two"])
    assert bases_of(theirs) == [1, 2]
    ds = write_dataset(rows(20, 10), path, mode="append", target_bases=[places[0].path, str(path)])
    assert bases_of(ds) == [1, 2, 1]
    merge = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    ds = merge.target_bases(["two"]).execute(rows(25, 10)).dataset
    assert bases_of(ds)[-1] == 2
    ds = ds.delete("id % 2 = 0")
    ds.optimize.compact_files()
    ds = ds.checkout_latest()
    assert ids(ds) == ids(lance.dataset(str(path))) == list(range(1, 35, 2))
    ds = write_dataset(rows(0, 5), path, mode="overwrite", target_all_bases=False, max_rows_per_file=1)
    assert bases_of(ds) == [1, 2, 1, 2, 1]
    assert ids(lance.dataset(str(path))) == list(range(5))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_places_are_given_to_new_tables_only(
    tmp_path: Path, places: list[DatasetBasePath], mode: str
) -> None:
    write_dataset(rows(0, 1), tmp_path / "t")
    with pytest.raises(OptionError, match=f"(?i)cannot register new bases in {mode}"):
        write_dataset(rows(0, 1), tmp_path / "t", mode=mode, initial_bases=places)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_bases": ["three"]}, "'three' not found; the table has: 'one', 'two'"),
        ({"target_bases": ["one"], "target_all_bases": True}, "not both"),
    ],
    ids=str,
)
def test_wrong_places_are_refused_before_anything_is_written(
    tmp_path: Path, places: list[DatasetBasePath], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write_dataset(rows(0, 1), tmp_path / "t", initial_bases=places, **options)
    assert not list(tmp_path.rglob("*.lance"))


def test_places_are_not_given_twice(tmp_path: Path, places: list[DatasetBasePath]) -> None:
    with pytest.raises(OptionError, match="'one' is given twice"):
        write_dataset(rows(0, 1), tmp_path / "t", initial_bases=[*places, places[0]])


def test_ids_of_places_are_not_given_again(tmp_path: Path, places: list[DatasetBasePath]) -> None:
    targets = [places[0], replace(places[1], id=1)]
    options: dict[str, Any] = {"initial_bases": targets, "target_bases": ["one"]}
    table = write_dataset(rows(0, 9), tmp_path / "t", **options)
    assert [(base.id, base.name) for base in table.manifest.message.base_paths] == [(2, "one"), (1, "two")]
    assert bases_of(table) == [2]
    assert lance.dataset(str(tmp_path / "t")).to_table().equals(table.to_table())


def test_a_failed_write_leaves_no_files_anywhere(tmp_path: Path, places: list[DatasetBasePath]) -> None:
    def batches() -> Any:
        yield from rows(0, 9).to_batches(max_chunksize=3)
        raise RuntimeError("the source failed")

    options: dict[str, Any] = {"initial_bases": places, "target_all_bases": True, "max_rows_per_file": 2}
    with pytest.raises(RuntimeError, match="the source failed"):
        write_dataset(batches(), tmp_path / "t", schema=rows(0, 1).schema, **options)
    assert not list(tmp_path.rglob("*.lance"))


def test_a_lost_commit_deletes_its_files_in_every_place(
    tmp_path: Path, places: list[DatasetBasePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(rows(0, 1), tmp_path / "t", initial_bases=places)
    before = sorted(tmp_path.rglob("*.lance"))

    def lost(*_: Any, **__: Any) -> None:
        raise CommitError("lost")

    monkeypatch.setattr("spark_lance.table.inserts.write_plan.commit_operation", lost)
    with pytest.raises(CommitError, match="lost"):
        write_dataset(rows(1, 9), tmp_path / "t", "append", target_all_bases=True, max_rows_per_file=2)
    assert sorted(tmp_path.rglob("*.lance")) == before


def test_fragments_and_their_commit_name_the_places(tmp_path: Path, places: list[DatasetBasePath]) -> None:
    path = str(tmp_path / "t")
    transaction: Any = spark_lance.write_fragments(
        rows(0, 4), path, mode="create", initial_bases=places, target_bases=["two"], return_transaction=True
    )
    ds = LanceDataset.commit(path, transaction)
    assert bases_of(ds) == [2]
    more: Any = spark_lance.write_fragments(rows(4, 4), ds, target_bases=["one"])
    ds = LanceDataset.commit(ds, LanceOperation.Append(more), ds.version)
    assert bases_of(ds) == [2, 1]
    assert ids(lance.dataset(path)) == list(range(8))


def test_a_root_keeps_the_number_0_in_an_operation(tmp_path: Path) -> None:
    root, extra = str(tmp_path / "root"), str(tmp_path / "extra")
    schema = pa.schema([("id", pa.int64())])
    results = []
    for package in (spark_lance, lance):
        base: Any = DatasetBasePath if package is spark_lance else lance.DatasetBasePath
        bases = [base(root, name="root", is_dataset_root=True, id=0), base(extra, name="extra", id=1)]
        uri = str(tmp_path / package.__name__)
        fragments = (
            spark_lance.write_fragments(rows(0, 3), uri, initial_bases=bases, target_bases=["extra"])
            if package is spark_lance
            else lance.fragment.write_fragments(
                rows(0, 3), uri, initial_bases=bases, target_bases=["extra"], mode="create"
            )
        )
        operation: Any = LanceOperation if package is spark_lance else lance.LanceOperation
        package.LanceDataset.commit(uri, operation.Overwrite(schema, fragments, initial_bases=bases))
        opened = lance.dataset(uri)
        assert ids(opened) == ids(spark_lance.dataset(uri)) == [0, 1, 2]
        assert bases_of(opened) == [1]
        results.append(base_tuples(opened._ds.base_paths().values()))
    assert results[0] == results[1]
    assert [base[0] for base in results[0]] == [0, 1]
