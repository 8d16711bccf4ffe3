"""Merge, Project and DataReplacement: our next version from pylance's transaction against pylance's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.fragment
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.features import FIELD_ID_MARK
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations import OPERATIONS
from spark_lance.table.operations.data_replacement import data_replacement_message
from spark_lance.table.operations.merge import merge_message
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.versions.versions import load_latest, load_version

Op = lance.LanceOperation
Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]


def start(path: Path, version: str = "2.2", stable: bool = False) -> Any:
    rows = pa.table(
        {
            "a": pa.array(range(20), pa.int64()),
            "b": pa.array(range(20), pa.int64()),
            "s": [{"x": i, "y": str(i), "z": i % 3} for i in range(20)],
        }
    ).replace_schema_metadata({"k": "v"})
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    dataset: Any = lance.write_dataset(rows, path, max_rows_per_file=5, **options)
    dataset.create_scalar_index("a", "BTREE")
    dataset.create_scalar_index("b", "BTREE")
    return dataset


def loose_file(dataset: Any, fields: list[int]) -> Any:
    """Return a file of 5 new values for the top-level integer columns `fields`, written into the table."""
    other = Path(dataset.uri).with_name("loose")
    values = pa.table({f"c{i}": pa.array(range(100, 105), pa.int64()) for i in fields})
    source = lance.write_dataset(
        values, other, mode="overwrite", data_storage_version=dataset.data_storage_version
    )
    (file,) = source.get_fragments()[0].data_files()
    shutil.copy(other / "data" / file.path, Path(dataset.uri) / "data" / file.path)
    numbers = list(range(len(fields)))
    major, minor = file.file_major_version, file.file_minor_version
    return lance.fragment.DataFile(file.path, fields, numbers, major, minor, file.file_size_bytes)


def replace(dataset: Any, fields: list[int], fragments: list[int]) -> None:
    groups = [Op.DataReplacementGroup(number, loose_file(dataset, fields)) for number in fragments]
    lance.LanceDataset.commit(dataset.uri, Op.DataReplacement(groups), read_version=dataset.version)


def rewrite_column(dataset: Any) -> None:
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    changed = pa.table({"a": [6], "b": [66]})
    fragments[1], _ = dataset.get_fragment(1).update_columns(changed, "a", "a")
    lance.LanceDataset.commit(
        dataset.uri, Op.Merge(fragments, dataset.lance_schema), read_version=dataset.version
    )


def later(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind)


STEPS: dict[str, Callable[[Any], object]] = {
    "add": lambda ds: ds.add_columns({"c": "a + 1"}),
    "add null": lambda ds: ds.add_columns(later("n", pa.list_(pa.int32()))),
    "add nested": lambda ds: ds.add_columns(later("s", pa.struct([later("w", pa.int8())]))),
    "delete": lambda ds: ds.delete("a % 5 = 2"),
    "rename": lambda ds: ds.alter_columns({"path": "s.y", "name": "why"}),
    "cast": lambda ds: ds.alter_columns({"path": "s.x", "data_type": pa.int32()}),
    "tighten": lambda ds: ds.alter_columns({"path": "a", "nullable": False}),
    "join": lambda ds: ds.merge(pa.table({"a": [1, 2], "j": [5, 6]}), "a"),
    "rewrite column": rewrite_column,
    "drop nested": lambda ds: ds.drop_columns(["s.x"]),
    "drop indexed": lambda ds: ds.drop_columns(["b"]),
    "drop added": lambda ds: ds.drop_columns(["c"]),
    "replace a": lambda ds: replace(ds, [0], [1, 3]),
    "replace again": lambda ds: replace(ds, [0], [1]),
    "replace both": lambda ds: replace(ds, [0, 1], [2]),
}
HISTORIES = [
    ["add", "delete", "cast", "drop nested", "add null", "drop added", "join", "rename", "drop indexed"],
    ["add nested", "replace a", "add", "replace again", "drop indexed", "tighten", "drop added", "add"],
    ["rewrite column", "delete", "replace both", "add", "cast", "replace a", "drop indexed", "add null"],
]


def comparable(message: table_pb2.Manifest) -> table_pb2.Manifest:
    """Return a copy without what says who wrote the version, when, and where in the file its parts are."""
    copy = table_pb2.Manifest()
    copy.CopyFrom(message)
    for name in ("timestamp", "writer_version", "index_section", "transaction_section"):
        copy.ClearField(name)
    return copy


def our_next(base: Manifest, theirs: Manifest, path: Path) -> Manifest:
    store, root = open_store(path)
    transaction = read_transaction(TableRef(store, root), theirs)
    assert transaction.name is not None
    build = OPERATIONS[transaction.name]
    assert build is not None
    return build(base, transaction.operation, CommitContext(root, theirs.transaction_file, 0))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("history", HISTORIES, ids=["columns", "replacements", "both"])
def test_our_next_version_is_pylances(tmp_path: Path, history: list[str], version: str, stable: bool) -> None:
    path = tmp_path / "t"
    start(path, version, stable)
    seen = set()
    for step in history:
        if step == "add nested" and version != "2.2":
            continue  # pylance adds fields of structs from 2.2 on
        before = load_latest(TableRef(*open_store(path)))
        STEPS[step](lance.dataset(str(path)))
        store, root = open_store(path)
        theirs = load_latest(TableRef(store, root))
        for number in range(before.version + 1, theirs.version + 1):
            base, after = (
                load_version(TableRef(store, root), number - 1),
                load_version(TableRef(store, root), number),
            )
            seen.add(read_transaction(TableRef(store, root), after).name)
            ours = our_next(base, after, path)
            if step != "delete":
                assert comparable(ours.message) == comparable(after.message), step
            assert list(ours.indices) == list(after.indices), step
    assert {"merge", "project"} <= seen


def test_new_ids_advance_the_mark_of_a_table_that_never_reuses_them(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    start(path)

    def set_mark(message: table_pb2.Manifest) -> None:
        message.max_allocated_field_id = 40
        message.writer_feature_flags |= FIELD_ID_MARK

    forge(path, set_mark)
    for change in ("add", "drop added", "add null", "cast"):
        base = load_latest(TableRef(*open_store(path)))
        STEPS[change](lance.dataset(str(path)))
        after = load_latest(TableRef(*open_store(path)))
        assert comparable(our_next(base, after, path).message) == comparable(after.message), change
    assert after.message.max_allocated_field_id == 44


def test_operations_that_do_not_fit_the_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    start(path)
    table = TableRef(*open_store(path))
    manifest = load_latest(table)
    fragments = list(manifest.fragments)
    fields = manifest.message.fields
    file = fragments[0].files[0]
    replacement = transaction_pb2.Transaction.DataReplacement
    group = transaction_pb2.Transaction.DataReplacementGroup
    wrong: list[Any] = [
        merge_message(fields, {}, fragments[:-1]),
        merge_message(fields, {}, [*fragments, table_pb2.DataFragment(id=9, physical_rows=5)]),
        data_replacement_message({9: file}),
        data_replacement_message({}),
        data_replacement_message({0: table_pb2.DataFile(path="x")}),
        replacement(replacements=[group(fragment_id=0, new_file=file)] * 2),
        data_replacement_message({0: file, 1: table_pb2.DataFile(path="x", fields=[1])}),
    ]
    for operation in wrong:
        with pytest.raises(FormatError):
            commit_operation(table, operation, read_version=manifest.version)
    assert load_latest(table).version == manifest.version


def test_an_index_on_a_lost_column_no_longer_covers_the_fragment(tmp_path: Path) -> None:
    path = tmp_path / "t"
    start(path)
    table = TableRef(*open_store(path))
    manifest = load_latest(table)
    fragments = [table_pb2.DataFragment.FromString(f.SerializeToString()) for f in manifest.fragments]
    fragments[2].files[0].fields[1] = -2
    operation = merge_message(manifest.message.fields, {"new": b"metadata"}, fragments)
    commit_operation(table, operation, read_version=manifest.version)
    theirs: Any = lance.dataset(str(path))
    assert theirs.to_table(filter="b IS NULL")["a"].to_pylist() == list(range(10, 15))
    assert theirs.schema.metadata == {b"new": b"metadata"}
    assert spark_lance.dataset(path).to_table(["b"])["b"].null_count == 5


def test_files_without_a_column_in_use_leave_with_a_merge(tmp_path: Path) -> None:
    outcomes = []
    for side in ("theirs", "ours"):
        path = tmp_path / side
        dataset = start(path)
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        for number, fields in ((1, [77]), (2, [-2, -2])):
            extra = loose_file(dataset, fields)
            fragments[number].files.append(extra)
        store, root = open_store(path)
        base = load_latest(TableRef(store, root))
        if side == "theirs":
            operation = Op.Merge(fragments, dataset.lance_schema)
            lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
        else:
            files = [table_pb2.DataFragment.FromString(f.SerializeToString()) for f in base.fragments]
            for message, fragment in zip(files, fragments, strict=True):
                for extra in fragment.files[1:]:
                    message.files.add(
                        path=extra.path, fields=extra.fields, column_indices=extra.column_indices
                    )
                    message.files[-1].file_major_version, message.files[-1].file_minor_version = 2, 2
            ours = merge_message(base.message.fields, {}, files)
            commit_operation(TableRef(store, root), ours, read_version=base.version)
        after = load_latest(TableRef(store, root))
        outcomes.append([[list(file.fields) for file in fragment.files] for fragment in after.fragments])
    assert outcomes[0] == outcomes[1]
    assert [len(files) for files in outcomes[0]] == [1, 2, 1, 1]
