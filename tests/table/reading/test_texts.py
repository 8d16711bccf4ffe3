"""Text that is not UTF-8, which other writers have stored: an error that helps, and reads as binary."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_lance.cli.main import main
from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.errors import FormatError, LanceError, OptionError
from spark_lance.table.reading.texts import texts_as_binary
from tests.wrong_texts import WORDS, text, write_unchecked

VERSIONS = ("2.0", "2.1", "2.2")


def latin(repeat: int = 1) -> pa.Table:
    """Return text that is not UTF-8, at the top and nested."""
    words = text(WORDS * repeat)
    count = len(words)
    offsets = pa.array(range(count + 1), pa.int32())
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "name": words,
            "long": text(WORDS * repeat, pa.large_string()),
            "s": pa.StructArray.from_arrays([words, words], ["a", "b"]),
            "tags": pa.ListArray.from_arrays(offsets, words),
            "plain": pa.array(["é"] * count),
        }
    )


def same_bytes(result: pa.Table, expected: pa.Table) -> None:
    """Compare the bytes of text, also inside structs and lists."""
    assert result.column_names == expected.column_names
    for name in expected.column_names:
        read, stored = result[name].combine_chunks(), expected[name].combine_chunks()
        if pa.types.is_struct(stored.type):
            pairs = list(zip(read.flatten(), stored.flatten(), strict=True))
        elif pa.types.is_list(stored.type):
            pairs = [(read.flatten(), stored.flatten())]
        else:
            pairs = [(read, stored)]
        for have, want in pairs:
            if pa.types.is_string(want.type) or pa.types.is_large_string(want.type):
                assert pa.types.is_binary(have.type) or pa.types.is_large_binary(have.type)
                want = want.cast(have.type)
            assert have.to_pylist() == want.to_pylist()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("repeat", [1, 700])
def test_bytes_come_back_as_they_are(tmp_path: Path, version: str, repeat: int) -> None:
    rows = latin(repeat)
    table = write_unchecked(tmp_path / "t", rows, version)
    for name in ("name", "long", "s", "tags"):
        with pytest.raises(FormatError, match=r"text is not UTF-8 \(byte 0xE9\).*text_as=binary") as error:
            table.to_table([name])
        assert f"column '{name}'" in str(error.value)
        assert ".lance" in str(error.value)
        assert "\n" not in str(error.value)
    # The error's advice, as it is written there.
    name, value = re.findall(r"(text_as)=(\w+)", str(error.value))[0]
    read = table.to_table(**{name: value})
    read.validate(full=True)
    same_bytes(read, rows)
    assert read["plain"].to_pylist() == ["é".encode()] * len(rows)
    same_bytes(pa.Table.from_batches(table.to_batches(text_as="binary", batch_size=5)), rows)
    same_bytes(table.get_fragments()[0].to_table(text_as="binary"), rows)
    same_bytes(table.head(3, text_as="binary"), rows.slice(0, 3))
    # The same process reads the other way next, and nothing of the first read is left.
    with pytest.raises(FormatError):
        table.to_table(["name"])
    assert table.to_table(["plain"])["plain"].type == pa.string()


@pytest.mark.parametrize("version", VERSIONS)
def test_dictionaries_of_words(tmp_path: Path, version: str) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], pa.int8()), text([b"a", b"\xe9"]))
    table = write_unchecked(tmp_path / "t", pa.table({"c": words}), version)
    with pytest.raises(FormatError, match="text_as=binary"):
        table.to_table()
    assert table.to_table(text_as="binary")["c"].to_pylist() == [b"a", b"\xe9", None, b"\xe9"]


def test_scanners_and_their_schema(tmp_path: Path) -> None:
    table = write_unchecked(tmp_path / "t", latin())
    scanner = table.scanner(["name", "id"], text_as="binary", with_row_id=True)
    assert scanner.projected_schema.field("name").type == pa.binary()
    assert scanner.to_table().schema.equals(scanner.projected_schema)
    assert scanner.count_rows() == len(WORDS)
    assert "name" in scanner.explain_plan()
    assert table.schema.field("name").type == pa.string()
    with pytest.raises(OptionError, match="text_as is string or binary, not 'bytes'"):
        table.to_table(text_as="bytes")


FILTERS: dict[str, list[int]] = {
    "name = X'636166E9'": [4],
    "name = 'good'": [0],
    "name in ('good', 'last')": [0, 5],
    "name is null": [1],
    "name is not null and id > 2": [3, 4, 5],
    "name > 'good'": [2, 5],
    "s.a = X'636166E9'": [4],
    "id = 4": [4],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("condition", FILTERS)
def test_filters(tmp_path: Path, version: str, condition: str) -> None:
    table = write_unchecked(tmp_path / "t", latin(), version)
    assert table.to_table(["id"], condition, text_as="binary")["id"].to_pylist() == FILTERS[condition]
    assert table.count_rows(condition, text_as="binary") == len(FILTERS[condition])


@pytest.mark.parametrize("index", ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER", "INVERTED"])
def test_indices_of_text_are_left_out(tmp_path: Path, index: str) -> None:
    write_dataset(pa.table({"id": range(50), "name": [f"w{n}" for n in range(50)]}), tmp_path / "t")
    dataset(tmp_path / "t").create_scalar_index("name", index)
    dataset(tmp_path / "t").create_scalar_index("id", "BTREE")
    assert len(dataset(tmp_path / "t").list_indices()) == 2
    write_unchecked(tmp_path / "t", pa.table({"id": [77], "name": text([b"w\xe9"])}), mode="append")
    table = dataset(tmp_path / "t")
    for condition, ids in {"name = 'w7'": [7], "name = X'77E9'": [77], "id = 7": [7]}.items():
        assert table.to_table(["id"], condition, text_as="binary")["id"].to_pylist() == ids


def test_what_must_write_the_text_again_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = latin().select(["id", "name"])
    write_unchecked(path, rows)
    write_unchecked(path, rows, mode="append")
    before = dataset(path).version
    with pytest.raises(LanceError, match=r"text_as=binary.*write the table again with correct text") as error:
        dataset(path).optimize.compact_files()
    assert "\n" not in str(error.value)
    assert dataset(path).version == before
    # What the error advises.
    read = dataset(path).to_table(text_as="binary")
    words = [None if word is None else word.decode("latin-1") for word in read["name"].to_pylist()]
    write_dataset(read.set_column(1, "name", pa.array(words)), path, mode="overwrite")
    assert dataset(path).to_table(["name"], "id = 4")["name"].to_pylist() == ["café"] * 2


def test_rows_of_correct_columns_are_deleted_without_the_option(tmp_path: Path) -> None:
    write_unchecked(tmp_path / "t", latin())
    dataset(tmp_path / "t").delete("id = 4")
    read = dataset(tmp_path / "t").to_table(["id", "name"], text_as="binary")
    assert read["name"].to_pylist() == [word for word in WORDS if word != b"caf\xe9"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t")
    write_unchecked(tmp_path / "t", latin().select(["id", "name"]))
    assert main(["head", path]) == 2
    assert "text_as=binary" in capsys.readouterr().err
    assert main(["head", path, "--text-as", "binary", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(WORDS)
    target = tmp_path / "rows.parquet"
    assert main(["export", path, str(target), "--text-as", "binary"]) == 0
    assert pq.read_table(target)["name"].to_pylist() == WORDS
    lines = tmp_path / "rows.csv"
    assert main(["export", path, str(lines), "--text-as", "binary"]) == 2
    assert "CSV holds text, but name has bytes that are not UTF-8" in capsys.readouterr().err
    assert not lines.exists()
    assert main(["export", path, str(lines), "--text-as", "binary", "--where", "id < 3"]) == 0
    assert lines.read_text().splitlines()[1:] == ['0,"good"', "1,", '2,"né"']


def test_a_version_read_as_binary_says_nothing_new_of_other_columns(tmp_path: Path) -> None:
    rows: Any = pa.table({"a": [1], "b": [b"x"]})
    table = write_dataset(rows, tmp_path / "t")
    assert texts_as_binary(table.manifest) is table.manifest


@pytest.mark.parametrize("index", [None, "BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
def test_binary_is_compared_with_text_as_its_bytes(tmp_path: Path, index: str | None) -> None:
    values = [b"good", None, "né".encode(), b"", b"caf\xe9", b"last"]
    rows = {"id": range(6), "b": pa.array(values, pa.binary())}
    write_dataset(pa.table(rows), tmp_path / "t")
    if index is not None:
        try:
            dataset(tmp_path / "t").create_scalar_index("b", index)
        except LanceError:
            pytest.skip(f"there is no {index} of binary")
    table = dataset(tmp_path / "t")
    conditions = {
        "b = 'good'": [0],
        "b = 'né'": [2],
        "b in ('last', 'né')": [2, 5],
        "b < 'd'": [3, 4],
        "b between 'good' and 'lasu'": [0, 5],
        "'last' <= b": [2, 5],
        "b != 'good'": [2, 3, 4, 5],
        "b = 'good' or id = 4": [0, 4],
    }
    for condition, ids in conditions.items():
        assert table.to_table(["id"], condition)["id"].to_pylist() == ids, condition
