"""What old writers left out or got wrong, forged into tables of today; pylance says what holds."""

from __future__ import annotations

import shutil
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap

import spark_lance
from spark_lance.errors import FormatError, IndexNotFoundError, UnsupportedFormatError
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.file.base.version import FileVersion
from spark_lance.index.scalar.pruner import ScalarPruner
from spark_lance.index.vector.base.ivf import pack_tensor
from spark_lance.index.vector.quantizers.product import ProductQuantizer
from spark_lance.proto import table_pb2
from spark_lance.table.reading.system_columns import filterable_schema

_FOOTER = struct.Struct("<qHH4s")
_LENGTH = struct.Struct("<I")
Change = Callable[[table_pb2.Manifest, table_pb2.IndexSection], None]
FILE_VERSIONS = ["legacy", "2.0", "2.1", "2.2"]


def made(path: Path, version: str = "2.1") -> str:
    """A table of two fragments with 190 rows, 10 deleted ones, written by pylance."""
    numbers = pa.table({"a": pa.array(range(100)), "s": [f"t{i % 9}" for i in range(100)]})
    lance.write_dataset(numbers, str(path), data_storage_version=version)  # type: ignore[arg-type]
    lance.write_dataset(numbers, str(path), mode="append")
    lance.dataset(str(path)).delete("a < 5")
    return str(path)


def newest(path: str) -> Path:
    return min((Path(path) / "_versions").glob("*.manifest"))


def forge(path: str, change: Change, footer: tuple[int, int] = (0, 2)) -> None:
    """Rewrite the newest manifest: its messages changed, other numbers in the footer."""
    file = newest(path)
    data = file.read_bytes()
    (position, _, _, magic) = _FOOTER.unpack(data[-_FOOTER.size :])
    message = table_pb2.Manifest.FromString(_section(data, position))
    section = table_pb2.IndexSection()
    if message.HasField("index_section"):
        section.MergeFromString(_section(data, message.index_section))
    change(message, section)
    transaction = b""
    if message.HasField("transaction_section"):
        transaction = _section(data, message.transaction_section)
    parts = []
    if transaction:
        message.transaction_section = 0
        parts.append(_LENGTH.pack(len(transaction)) + transaction)
    message.ClearField("index_section")
    if section.indices:
        message.index_section = sum(map(len, parts))
        parts.append(_LENGTH.pack(section.ByteSize()) + section.SerializeToString())
    place = sum(map(len, parts))
    body = message.SerializeToString()
    parts += [_LENGTH.pack(len(body)), body, _FOOTER.pack(place, *footer, magic)]
    file.write_bytes(b"".join(parts))


def _section(data: bytes, position: int) -> bytes:
    (length,) = _LENGTH.unpack_from(data, position)
    return data[position + _LENGTH.size :][:length]


def nothing(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    """Change nothing."""


def no_writer(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    message.ClearField("writer_version")


def no_deletion_counts(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    for fragment in message.fragments:
        fragment.deletion_file.num_deleted_rows = 0


def wrong_deletion_counts(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    no_writer(message, section)
    for fragment in message.fragments:
        fragment.deletion_file.num_deleted_rows = 3


def no_rows(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    for fragment in message.fragments:
        fragment.physical_rows = 0


def nothing_counted(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    no_rows(message, section)
    no_deletion_counts(message, section)


def live_rows_for_physical(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    no_writer(message, section)
    for fragment in message.fragments:
        fragment.physical_rows -= fragment.deletion_file.num_deleted_rows


def too_many_rows(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    no_writer(message, section)
    for fragment in message.fragments:
        fragment.physical_rows += 7


def called_legacy(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    message.data_format.version = "0.1"


def no_format(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    message.ClearField("data_format")


ODDITIES: list[Change] = [
    no_writer,
    no_deletion_counts,
    wrong_deletion_counts,
    no_rows,
    nothing_counted,
    live_rows_for_physical,
    too_many_rows,
    called_legacy,
    no_format,
]


@pytest.mark.parametrize("numbers", [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (9, 9)])
def test_the_numbers_of_the_footer_lock_nobody_out(tmp_path: Path, numbers: tuple[int, int]) -> None:
    path = made(tmp_path / "t")
    forge(path, nothing, numbers)
    assert lance.dataset(path).count_rows() == spark_lance.dataset(path).count_rows() == 190
    spark_lance.dataset(path).delete("a = 50")
    assert lance.dataset(path).count_rows() == spark_lance.dataset(path).count_rows() == 188
    assert newest(path).read_bytes()[-8:-4] == struct.pack("<HH", 0, 2)


@pytest.mark.parametrize("version", FILE_VERSIONS)
@pytest.mark.parametrize("change", ODDITIES, ids=lambda change: change.__name__)
def test_what_a_manifest_leaves_out_is_counted(tmp_path: Path, change: Change, version: str) -> None:
    path = made(tmp_path / "t", version)
    forge(path, change)
    dataset = spark_lance.dataset(path)
    theirs = lance.dataset(path).to_table()
    assert dataset.to_table().equals(theirs)
    assert dataset.count_rows() == theirs.num_rows == 190
    assert dataset.count_rows("a >= 90") == 20
    assert [fragment.num_deletions for fragment in dataset.get_fragments()] == [5, 5]
    assert [fragment.physical_rows for fragment in dataset.get_fragments()] == [100, 100]
    assert dataset.take([0, 94, 95, 189]).column("a").to_pylist() == [5, 99, 5, 99]
    # Of such a table, pylance answers conditions only after it has committed something.
    assert dataset.to_table(filter="s = 't3'").equals(theirs.filter(pc.equal(theirs["s"], "t3")))
    detail = spark_lance.dataset(path).manifest.message
    assert [f.deletion_file.num_deleted_rows for f in detail.fragments] == [5, 5]


@pytest.mark.parametrize("version", FILE_VERSIONS[1:])
@pytest.mark.parametrize("change", ODDITIES, ids=lambda change: change.__name__)
def test_the_next_version_says_it(tmp_path: Path, change: Change, version: str) -> None:
    path = made(tmp_path / "t", version)
    forge(path, change)
    spark_lance.dataset(path).delete("a = 50")
    spark_lance.write_dataset(pa.table({"a": [7], "s": ["new"]}), path, mode="append")
    message = table_pb2.Manifest.FromString(_manifest(path))
    assert [fragment.physical_rows for fragment in message.fragments] == [100, 100, 1]
    assert [fragment.deletion_file.num_deleted_rows for fragment in message.fragments] == [6, 6, 0]
    assert message.data_format.version == version
    theirs = lance.dataset(path)
    theirs.validate()  # type: ignore[no-untyped-call]
    assert theirs.count_rows() == 189
    assert spark_lance.dataset(path).to_table().equals(theirs.to_table())
    spark_lance.dataset(path).compact_files()
    assert sorted(lance.dataset(path).to_table().to_pylist(), key=str) == sorted(
        theirs.to_table().to_pylist(), key=str
    )


def _manifest(path: str) -> bytes:
    data = newest(path).read_bytes()
    return _section(data, _FOOTER.unpack(data[-_FOOTER.size :])[0])


@pytest.mark.parametrize("by", [-400, -16, -1, 1, 100, 100_000])
def test_the_length_of_legacy_files_is_not_believed(tmp_path: Path, by: int) -> None:
    path = made(tmp_path / "t", "legacy")

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        for fragment in message.fragments:
            for file in fragment.files:
                file.file_size_bytes = max(1, file.file_size_bytes + by)

    forge(path, change)
    dataset = spark_lance.dataset(path)
    assert dataset.to_table().equals(lance.dataset(path).to_table())
    assert dataset.take([3]).equals(lance.dataset(path).take([3]))


@pytest.mark.parametrize("version", FILE_VERSIONS[1:])
@pytest.mark.parametrize("by", [-16, 100])
def test_the_length_of_other_files_is(tmp_path: Path, by: int, version: str) -> None:
    path = made(tmp_path / "t", version)

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        for fragment in message.fragments:
            fragment.files[0].file_size_bytes += by

    forge(path, change)
    with pytest.raises((OSError, ValueError)):
        lance.dataset(path).to_table()
    with pytest.raises(FormatError, match=r"magic|bytes"):
        spark_lance.dataset(path).to_table()


def test_tables_that_mix_legacy_files_with_others_are_read(tmp_path: Path) -> None:
    old, new = made(tmp_path / "t", "legacy"), made(tmp_path / "new", "2.0")
    (fragment, _) = spark_lance.dataset(new).manifest.fragments
    shutil.copy(Path(new) / "data" / fragment.files[0].path, Path(old) / "data")

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        added = message.fragments.add()
        added.CopyFrom(fragment)
        added.ClearField("deletion_file")
        added.id = 2
        message.max_fragment_id = 2

    forge(old, change)
    assert spark_lance.dataset(old).to_table().equals(lance.dataset(old).to_table())
    assert spark_lance.dataset(old).count_rows() == 290
    with pytest.raises(UnsupportedFormatError, match="only read"):
        spark_lance.dataset(old).delete("a = 50")


@pytest.mark.parametrize(("mark", "expected"), [(0, FileVersion.V0_1), (4, FileVersion.V2_2)])
def test_empty_tables_of_unknown_format(tmp_path: Path, mark: int, expected: FileVersion) -> None:
    path = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": pa.array([], pa.int64())}), path)

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        message.ClearField("data_format")
        message.writer_feature_flags = mark

    forge(path, change)
    assert lance.dataset(path).data_storage_version == expected.text
    assert spark_lance.dataset(path).manifest.file_version is expected
    assert spark_lance.dataset(path).to_table().num_rows == 0


def test_a_missing_data_file_is_told_when_its_rows_are_wanted(tmp_path: Path) -> None:
    path = made(tmp_path / "t")
    forge(path, nothing_counted)
    lost = Path(path) / "data" / spark_lance.dataset(path).manifest.fragments[0].files[0].path
    lost.unlink()
    dataset = spark_lance.dataset(path)
    assert dataset.schema.names == ["a", "s"]
    with pytest.raises(FormatError, match="does not exist"):
        dataset.count_rows()
    with pytest.raises(FormatError, match="does not exist"):
        dataset.to_table()


def test_a_missing_deletion_file_is_told_at_once(tmp_path: Path) -> None:
    path = made(tmp_path / "t")
    forge(path, no_deletion_counts)
    for lost in (Path(path) / "_deletions").iterdir():
        lost.unlink()
    with pytest.raises(FormatError, match="deletion file is missing"):
        spark_lance.dataset(path)


def test_a_field_that_two_files_provide_stops_writers_only(tmp_path: Path) -> None:
    path = made(tmp_path / "t")
    lance.dataset(path).add_columns({"b": "a * 2"})
    rows = lance.dataset(path).to_table(["a", "b"])

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        (field,) = (field.id for field in message.fields if field.name == "s")
        for fragment in message.fragments:
            fragment.files[1].fields.append(field)
            fragment.files[1].column_indices.append(0)

    forge(path, change)
    assert spark_lance.dataset(path).to_table(["a", "b"]).equals(rows)
    with pytest.raises(UnsupportedFormatError, match="two files of one fragment provide field 1"):
        spark_lance.dataset(path).delete("a = 50")
    assert spark_lance.dataset(path).to_table(["a", "b"]).equals(rows)


# Indices


def indexed(path: Path) -> str:
    """A table with an index of every kind on two fragments, and rows that none covers."""
    dice = np.random.default_rng(5)

    def rows(first: int, count: int) -> pa.Table:
        points = pa.array(dice.random(count * 8, np.float32))
        return pa.table(
            {
                "id": pa.array(range(first, first + count)),
                "kind": pa.array([i % 7 for i in range(count)]),
                "marks": pa.array([[f"a{i % 3}"] for i in range(count)]),
                "words": pa.array(["apple pear" if i % 5 else "plum" for i in range(count)]),
                "part": pa.array([f"n{i:04d}" for i in range(first, first + count)]),
                "vec": pa.FixedSizeListArray.from_arrays(points, 8),
            }
        )

    uri = str(path)
    lance.write_dataset(rows(0, 300), uri, max_rows_per_file=150)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("kind", "BITMAP")
    dataset.create_scalar_index("marks", "LABEL_LIST")
    dataset.create_scalar_index("words", "INVERTED")
    dataset.create_scalar_index("part", "NGRAM")
    dataset.create_scalar_index("id", "ZONEMAP", name="zones")
    dataset.create_scalar_index("id", "BLOOMFILTER", name="blooms")
    dataset.create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    lance.write_dataset(rows(300, 20), uri, mode="append")
    return uri


def without_details(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    for entry in section.indices:
        entry.ClearField("index_details")
        entry.ClearField("files")


def without_columns(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
    for entry in section.indices:
        entry.ClearField("fields")


def test_indices_of_no_column_are_not_used(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    forge(path, without_columns)
    dataset = spark_lance.dataset(path)
    assert dataset.to_table(filter="id = 170", columns=["id"])["id"].to_pylist() == [170]
    for name in ("id_idx", "vec_idx", "words_idx"):
        with pytest.raises((IndexNotFoundError, UnsupportedFormatError), match=name):
            dataset.optimize.optimize_indices(index_names=[name])


def test_kinds_of_indices_are_told_by_their_files(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    before = {index.name: index.index_type for index in spark_lance.dataset(path).describe_indices()}
    assert len(before) == 8
    forge(path, without_details)
    dataset = spark_lance.dataset(path)
    kinds = {index.name: index.index_type for index in dataset.describe_indices()}
    assert kinds == {**before, "vec_idx": "Vector"}
    assert {index["name"]: index["type"] for index in dataset.list_indices()} == kinds


def test_indices_without_details_are_used(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    request = {"column": "vec", "q": [0.5] * 8, "k": 5, "nprobes": 1}
    before = spark_lance.dataset(path)
    nearest = before.to_table(columns=["id"], nearest=request)
    text = before.to_table(columns=["id"], full_text_query={"query": "plum", "column": "words"})
    forge(path, without_details)
    dataset = spark_lance.dataset(path)
    assert dataset.to_table(columns=["id"], nearest=request).equals(nearest)
    assert dataset.to_table(columns=["id"], full_text_query="plum").equals(text)
    pruner = ScalarPruner(dataset.snapshot)
    for condition, rows in (("id = 170", 1), ("kind = 3 and id < 10", 1), ("array_has(marks, 'a1')", 100)):
        compiled = compile_predicate(condition, filterable_schema(dataset.lance_schema))
        where = pruner(compiled, dataset.manifest.fragments)
        assert where is not None
        assert sum(len(here) for here in where.values() if here is not None) == rows
        assert [fragment for fragment, here in where.items() if here is None] == [2]


def test_indices_without_details_outlive_changes(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    forge(path, without_details)
    changed = spark_lance.dataset(path).delete("id = 3")
    assert {index.index_type for index in changed.describe_indices()} >= {"BTree", "Vector", "Inverted"}
    spark_lance.dataset(path).compact_files(target_rows_per_fragment=1000)
    spark_lance.dataset(path).optimize.optimize_indices()
    for reader in (lance, spark_lance):
        dataset = reader.dataset(path)
        assert dataset.to_table(columns=["id"], filter="id in (3, 4, 310)").num_rows == 2
        assert dataset.to_table(columns=["id"], filter="kind = 2 and id < 10").column("id").to_pylist() == [
            2,
            9,
        ]
        result = dataset.to_table(columns=["id"], full_text_query="plum", limit=400)
        assert result.num_rows == 64
    lance.dataset(path).validate()  # type: ignore[no-untyped-call]


def test_entries_whose_files_are_not_known_stay_unknown(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        del section.indices[1:]
        without_details(message, section)
        section.indices[0].uuid.uuid = uuid.uuid4().bytes

    forge(path, change)
    dataset = spark_lance.dataset(path)
    assert [index.index_type for index in dataset.describe_indices()] == ["Unknown"]
    assert dataset.to_table(filter="id = 3").num_rows == 1


def test_a_codebook_inside_of_the_metadata(tmp_path: Path) -> None:
    codebook = np.arange(2 * 256 * 4, dtype=np.float32).reshape(2, 256, 4)
    notes = {
        "codebook_position": 0,
        "nbits": 8,
        "num_sub_vectors": 2,
        "dimension": 8,
        "codebook_tensor": list(pack_tensor(codebook).SerializeToString()),
        "transposed": True,
    }

    def buffer(number: int) -> bytes:
        raise AssertionError("nothing but the metadata has the codebook")

    loaded = ProductQuantizer.load(notes, buffer, "l2", pa.schema([]))
    assert np.array_equal(loaded.codebook, codebook)


def of_version(version: str | None, index: str = "id_idx") -> Change:
    """Let an old writer have forgotten a fragment of an index, which is the only one."""

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        message.ClearField("writer_version")
        if version is not None:
            message.writer_version.library, message.writer_version.version = "lance", version
        remaining = [entry for entry in section.indices if entry.name == index]
        del section.indices[:]
        section.indices.extend(remaining)
        section.indices[0].fragment_bitmap = BitMap([1]).serialize()

    return change


def coverage(path: str, name: str) -> list[list[int]]:
    """Return the fragments of each segment of an index."""
    entries = spark_lance.dataset(path).manifest.indices
    return [list(BitMap.deserialize(entry.fragment_bitmap)) for entry in entries if entry.name == name]


@pytest.mark.parametrize("version", [None, "0.8.14", "0.7", "odd"])
def test_coverage_that_is_not_reliable_stops_writers_until_the_index_is_gone(
    tmp_path: Path, version: str | None
) -> None:
    path = indexed(tmp_path / "t")
    forge(path, of_version(version, "kind_idx"))
    assert spark_lance.dataset(path).to_table(filter="id in (3, 170)").num_rows == 2
    with pytest.raises(UnsupportedFormatError, match=r"drop_index\('kind_idx'\)"):
        spark_lance.dataset(path).delete("id = 3")
    spark_lance.dataset(path).drop_index("kind_idx")
    spark_lance.dataset(path).delete("id = 3")
    assert lance.dataset(path).count_rows() == spark_lance.dataset(path).count_rows() == 319


@pytest.mark.parametrize("index", ["id_idx", "vec_idx"])
def test_coverage_is_told_from_the_rows_of_an_index_as_by_pylance(tmp_path: Path, index: str) -> None:
    path, theirs = indexed(tmp_path / "t"), str(tmp_path / "theirs")
    forge(path, of_version("0.8.14", index))
    shutil.copytree(path, theirs)
    spark_lance.dataset(path).delete("id = 3")
    assert coverage(path, index) == [[0, 1]]
    # Pylance panics at vector indices in files of 2.0, which came after such writers.
    if index == "id_idx":
        lance.dataset(theirs).delete("id = 3")
        assert coverage(theirs, index) == [[0, 1]]
    spark_lance.dataset(path).delete("id = 4")
    assert coverage(path, index) == [[0, 1]]
    assert lance.dataset(path).to_table(filter="id in (3, 4, 170, 310)").num_rows == 2
    assert spark_lance.dataset(path).to_table(filter="id in (3, 4, 170, 310)").num_rows == 2


def test_coverage_of_later_writers_is_believed(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    forge(path, of_version("0.8.15"))
    spark_lance.dataset(path).delete("id = 3")
    assert coverage(path, "id_idx") == [[1]]
    assert lance.dataset(path).to_table(filter="id in (3, 170)").num_rows == 1


def overlapping(path: str, writer: str) -> None:
    """Let an index have two segments that say that they cover the same fragments."""
    lance.dataset(path).optimize.optimize_indices(num_indices_to_merge=0, index_names=["id_idx"])

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        message.writer_version.library, message.writer_version.version = "lance", writer
        for entry in section.indices:
            if entry.name == "id_idx":
                entry.fragment_bitmap = BitMap([0, 1, 2]).serialize()

    forge(path, change)


@pytest.mark.parametrize("change", ["delete", "append", "compact", "create index"])
def test_segments_of_old_writers_that_overlap_are_told_apart_as_by_pylance(
    tmp_path: Path, change: str
) -> None:
    path, theirs = indexed(tmp_path / "t"), str(tmp_path / "theirs")
    overlapping(path, "0.20.0")
    result = spark_lance.dataset(path).to_table(columns=["id"], filter="id in (3, 170, 310)")
    assert sorted(result.column("id").to_pylist()) == [3, 170, 310]
    shutil.copytree(path, theirs)
    for one, table in ((path, spark_lance.dataset(path)), (theirs, lance.dataset(theirs))):
        if change == "delete":
            table.delete("id = 5")
        elif change == "append":
            spark_lance.write_dataset(table.to_table(filter="id = 7"), one, mode="append")
        elif change == "compact":
            table.optimize.compact_files()
        else:
            table.create_scalar_index("kind", "BITMAP", name="other")
    assert coverage(path, "id_idx") == ([[3], [2]] if change == "compact" else [[0, 1], [2]])
    assert coverage(path, "id_idx") == coverage(theirs, "id_idx")
    for table in (spark_lance.dataset(path), lance.dataset(path)):
        assert table.to_table(filter="id in (3, 170, 310)").num_rows == 3
        assert table.to_table(filter="id >= 0").num_rows == table.count_rows()


def test_segments_of_later_writers_that_overlap_are_left_alone(tmp_path: Path) -> None:
    path = indexed(tmp_path / "t")
    overlapping(path, "1.0.4")
    spark_lance.dataset(path).delete("id = 3")
    assert coverage(path, "id_idx") == [[0, 1, 2]] * 2
    assert spark_lance.dataset(path).to_table(filter="id in (3, 170, 310)").num_rows == 2


@pytest.mark.parametrize("version", FILE_VERSIONS)
def test_lists_of_strings_that_are_called_lists_of_structs(tmp_path: Path, version: str) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"x": pa.array([["a", "b"], [], None, ["c"]], pa.list_(pa.string()))})
    lance.write_dataset(rows, path, data_storage_version=version)  # type: ignore[arg-type]

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        assert message.fields[0].logical_type == "list"
        message.fields[0].logical_type = "list.struct"

    forge(path, change)
    expected = lance.dataset(path).to_table()
    assert spark_lance.dataset(path).to_table().equals(expected)
    assert spark_lance.dataset(path).take([3, 0]).to_pylist() == [{"x": ["c"]}, {"x": ["a", "b"]}]
    if version == "legacy":
        return
    spark_lance.write_dataset(rows.slice(0, 1), path, mode="append")
    spark_lance.dataset(path).compact_files()
    assert lance.dataset(path).to_table().to_pylist() == [*expected.to_pylist(), {"x": ["a", "b"]}]
    assert spark_lance.dataset(path).to_table().equals(lance.dataset(path).to_table())
