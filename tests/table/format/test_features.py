"""Feature flags, against pylance on forged manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.features import FEATURES, check_readable, check_writable, recompute
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.versions import load_latest

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
Loose = Callable[..., list[table_pb2.DataFragment]]

# Flags that pylance executes and this release refuses by name.
REFUSED_HERE = {16384}
ROWS = pa.table({"a": [1, 2, 3]})


def words(reader: int, writer: int) -> table_pb2.Manifest:
    message = table_pb2.Manifest(reader_feature_flags=reader, writer_feature_flags=writer)
    if writer & 32768:
        message.max_allocated_field_id = 9
    return message


def reads_as_pylance(path: Path) -> bool:
    """Open with both; return whether it opened, after checking that both agree."""
    outcomes = []
    for attempt in (
        lambda: lance.dataset(str(path)).to_table(),
        lambda: load_latest(TableRef(*open_store(path))),
    ):
        try:
            attempt()
            outcomes.append(True)
        except (OSError, ValueError, NotImplementedError):
            outcomes.append(False)
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


@pytest.mark.parametrize("bit", [1 << i for i in range(20)])
@pytest.mark.parametrize("where", ["reader", "writer", "both"])
def test_a_forged_flag_is_judged_as_pylance_judges_it(
    tmp_path: Path, forge: Forge, loose: Loose, bit: int, where: str
) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    fragments = loose(path, ROWS)

    def edit(message: table_pb2.Manifest) -> None:
        if where != "writer":
            message.reader_feature_flags |= bit
        if where != "reader":
            message.writer_feature_flags |= bit

    forge(path, edit)
    if bit in REFUSED_HERE and where != "writer":
        with pytest.raises(UnsupportedFormatError, match=f"flag {bit}"):
            load_latest(TableRef(*open_store(path)))
        return
    if not reads_as_pylance(path):
        return
    if bit in REFUSED_HERE:
        with pytest.raises(UnsupportedFormatError, match=f"flag {bit}"):
            check_writable(load_latest(TableRef(*open_store(path))).message, "")
        return
    try:
        check_writable(load_latest(TableRef(*open_store(path))).message, "")
    except (FormatError, UnsupportedFormatError):
        with pytest.raises((OSError, ValueError)):
            lance.write_dataset(ROWS, path, mode="append")
        return
    lance.write_dataset(ROWS, path, mode="append")
    theirs = load_latest(TableRef(*open_store(path))).message
    ours = commit_operation(TableRef(*open_store(path)), append_message(fragments), read_version=2).message
    assert (ours.reader_feature_flags, ours.writer_feature_flags) == (
        theirs.reader_feature_flags,
        theirs.writer_feature_flags,
    )


@pytest.mark.parametrize("bit", [256, 1024])
@pytest.mark.parametrize("where", ["reader", "writer"])
def test_half_of_a_paired_flag_is_corruption(bit: int, where: str) -> None:
    message = words(bit, 0) if where == "reader" else words(0, bit)
    with pytest.raises(FormatError, match="corrupt"):
        check_readable(message, "m")


def test_the_field_id_flag_needs_its_mark_and_only_the_writer_word() -> None:
    check_writable(words(0, 32768), "m")
    for message in (words(32768, 32768), words(32768, 0)):
        with pytest.raises(FormatError, match="corrupt"):
            check_readable(message, "m")
    unmarked = words(0, 32768)
    unmarked.ClearField("max_allocated_field_id")
    unflagged = words(0, 0)
    unflagged.max_allocated_field_id = 3
    for message in (unmarked, unflagged):
        with pytest.raises(FormatError, match="corrupt"):
            check_readable(message, "m")


@pytest.mark.parametrize("bit", [512, 4096, 8192, 1 << 40, 1 << 63])
def test_unknown_bits_forbid_reading_or_only_writing(bit: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=str(bit)):
        check_readable(words(bit, bit), "m")
    check_readable(words(0, bit), "m")
    with pytest.raises(UnsupportedFormatError, match=str(bit)):
        check_writable(words(0, bit), "m")


def test_base_paths_without_their_flag(tmp_path: Path, forge: Forge) -> None:
    lance.write_dataset(ROWS, tmp_path / "t")

    def edit(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path="/elsewhere")

    forge(tmp_path / "t", edit)
    assert reads_as_pylance(tmp_path / "t")


def test_legacy_files_forbid_writing_only() -> None:
    named = words(0, 0)
    named.data_format.version = "0.1"
    unnamed = words(0, 0)
    unnamed.fragments.add().files.add(file_major_version=0, file_minor_version=2)
    for message in (named, unnamed):
        check_readable(message, "m")
        with pytest.raises(UnsupportedFormatError, match="legacy"):
            check_writable(message, "m")


def test_files_of_another_version_need_the_flag(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path, data_storage_version="2.1")

    def edit(message: table_pb2.Manifest) -> None:
        message.data_format.version = "2.2"

    forge(path, edit)
    assert not reads_as_pylance(path)

    def flag(message: table_pb2.Manifest) -> None:
        message.reader_feature_flags |= 256
        message.writer_feature_flags |= 256

    forge(path, flag)
    assert reads_as_pylance(path)


def test_stable_row_ids_must_be_on_every_fragment(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path, enable_stable_row_ids=True)
    assert reads_as_pylance(path)
    forge(path, lambda message: message.fragments[0].ClearField("inline_row_ids"))
    assert not reads_as_pylance(path)


def test_flags_follow_content() -> None:
    message = words(1 | 4 | 32 | 128 | 2048, 1 | 4 | 8 | 32 | 128 | 2048)
    message.fragments.add()
    recompute(message, b"")
    assert (message.reader_feature_flags, message.writer_feature_flags) == (0, 0)
    message.fragments[0].deletion_file.num_deleted_rows = 1
    message.config["k"] = "v"
    covering = table_pb2.IndexSection()
    covering.indices.add(covering_fields=[1])
    recompute(message, covering.SerializeToString())
    assert (message.reader_feature_flags, message.writer_feature_flags) == (129, 129 | 8)
    message.fragments[0].files.add(file_major_version=2, file_minor_version=1)
    message.data_format.version = "2.2"
    recompute(message, b"")
    assert (message.reader_feature_flags, message.writer_feature_flags) == (257, 257 | 8)


def test_sticky_flags_stay() -> None:
    message = words(2 | 256 | 1024, 2 | 256 | 1024 | 32768)
    recompute(message, b"")
    assert (message.reader_feature_flags, message.writer_feature_flags) == (1282, 1282 | 32768)


def test_every_flag_is_one_bit_and_occurs_once() -> None:
    bits = [feature.bit for feature in FEATURES]
    assert len(set(bits)) == len(bits)
    assert all(bit.bit_count() == 1 for bit in bits)
