"""System columns, filters and the order in which columns are read, against pylance."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance.datasets.dataset as ours
from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import open_store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment_rows import Columns, FragmentRows
from spark_lance.table.reading.scan import Scan
from spark_lance.table.versions.versions import load_latest
from tests.table.histories import Step, play, rows, steps

SYSTEM = ["_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"]


@settings(max_examples=12, deadline=None)
@given(changes=steps(), stable=st.booleans())
def test_system_columns_of_any_history(changes: list[Step], stable: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=stable)
        theirs, mine = lance.dataset(str(path)), ours.dataset(path)
        whole = theirs.to_table(columns=["a", *SYSTEM])
        assert mine.to_table(["a", *SYSTEM]).equals(whole)
        for fragment in theirs.get_fragments():
            alone = mine.get_fragment(fragment.fragment_id)
            assert alone is not None
            assert alone.to_table(["b", *SYSTEM]).equals(fragment.to_table(columns=["b", *SYSTEM]))
        if not whole.num_rows:
            return
        for name in SYSTEM:
            if name == "_rowoffset":
                continue
            bound = whole[name][whole.num_rows // 2].as_py()
            for text in (
                f"{name} >= {bound}",
                f"{name} = {bound} and a > 5",
                f"a % 2 = 0 and {name} < {bound}",
            ):
                expected = theirs.to_table(columns=["b", name], filter=text)
                assert mine.to_table(["b", name], filter=text).equals(expected)
                assert mine.count_rows(text) == expected.num_rows


@settings(max_examples=12, deadline=None)
@given(
    changes=steps("append", "delete", "overwrite"),
    offset=st.integers(0, 40),
    limit=st.one_of(st.none(), st.integers(0, 40)),
)
def test_limits_and_offsets(changes: list[Step], offset: int, limit: int | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=False)
        theirs, mine = lance.dataset(str(path)), ours.dataset(path)
        for filter in (None, "a % 3 = 1"):
            whole = theirs.to_table(columns=["a", "_rowoffset"], filter=filter)
            expected = whole.slice(offset, limit)
            result = mine.to_table(["a", "_rowoffset"], filter, limit, offset)
            assert result.equals(expected)
            assert mine.to_table([], filter, limit, offset).num_rows == expected.num_rows
            pieces = mine.to_batches(["a", "_rowoffset"], filter, limit, offset, batch_size=3, batch_bytes=50)
            assert pa.Table.from_batches(pieces, whole.schema).equals(expected)
            if limit:
                same = theirs.to_table(columns=["a", "_rowoffset"], filter=filter, limit=limit, offset=offset)
                assert same.equals(expected)


@pytest.mark.parametrize("stable", [False, True])
def test_row_offsets_in_filters_are_refused_as_by_pylance(tmp_path: Path, stable: bool) -> None:
    lance.write_dataset(rows(0, 9), tmp_path / "t", enable_stable_row_ids=stable)
    for text in ("_rowoffset > 2", "a > 1 and _rowoffset > 2"):
        with pytest.raises(ValueError, match="_rowoffset"):
            lance.dataset(str(tmp_path / "t")).to_table(filter=text)
        with pytest.raises(ExpressionError, match="_rowoffset"):
            ours.dataset(tmp_path / "t").to_table(filter=text)
    with pytest.raises(ExpressionError):
        ours.dataset(tmp_path / "t").to_table(filter=pc.field("_rowoffset") > 2)


def test_columns_named_twice_or_not_there(tmp_path: Path) -> None:
    table = ours.write_dataset(rows(0, 9), tmp_path / "t")
    with pytest.raises(SchemaError, match="twice"):
        table.to_table(["_rowoffset", "a", "_rowoffset"])
    with pytest.raises(SchemaError, match="_rowversion"):
        table.to_table(["_rowversion"])


WIDE = pa.table(
    {
        "k": pa.array(range(12_000), pa.int64()),
        "text": [f"text {i}" * (i % 9) for i in range(12_000)],
        "items": pa.array([[i] * (i % 4) if i % 11 else None for i in range(12_000)], pa.list_(pa.int32())),
        "part": pa.array([{"x": i, "y": str(i)} for i in range(12_000)]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(48_000, dtype=np.float32)), 4),
    }
)

FILTERS = [
    "k = 10001",
    "k % 1000 = 4",
    "k % 2 = 0",
    "k >= 0",
    "k < 0",
    "k between 7000 and 7010 or k = 11999",
    "part.x % 999 = 1 and text is not null",
    "true",
    "items is null",
    "_rowaddr % 7 = 2",
    "k > 4000 and part.y = '4100'",
]


@pytest.fixture(scope="module", params=["2.0", "2.1", "2.2", "legacy"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "t"
    data = WIDE.drop_columns(["vector"]) if request.param == "legacy" else WIDE
    lance.write_dataset(data, path, data_storage_version=request.param, max_rows_per_file=5000)
    lance.dataset(str(path)).delete("k % 499 = 3 or k between 100 and 900")
    return path


@pytest.mark.parametrize("text", FILTERS)
def test_filters_choose_the_same_rows_whatever_is_read_first(wide: Path, text: str) -> None:
    theirs, mine = lance.dataset(str(wide)), ours.dataset(wide)
    every = theirs.schema.names
    for columns in (every, ["k"], ["text", "k"], ["_rowid", "items"], ["part"], []):
        expected = theirs.to_table(columns=columns or ["k"], filter=text)
        result = mine.to_table(columns, filter=text)
        assert result.num_rows == expected.num_rows
        if columns:
            assert result.equals(expected.select(columns))
            pieces = list(mine.to_batches(columns, filter=text, batch_bytes=60_000, batch_size=700))
            assert pa.Table.from_batches(pieces, result.schema).equals(result)
            assert all(piece.num_rows <= 700 for piece in pieces)


def test_native_and_sql_filters_agree(wide: Path) -> None:
    mine = ours.dataset(wide)
    text = "k > 3000 and part.x < 8000"
    native = (pc.field("k") > 3000) & (pc.field("part", "x") < 8000)
    result = mine.to_table(["text"], filter=native)
    assert 4000 < result.num_rows < 5000
    assert result.equals(mine.to_table(["text"], filter=text))
    assert result.equals(mine.to_table(filter=native).select(["text"]))
    (first, *_) = mine.get_fragments()
    assert first.to_table(["k"], filter="k < 50").equals(mine.to_table(["k"], filter="k < 50"))
    assert first.count_rows("k < 50") == mine.count_rows("k < 50")


def test_plans_tasks_and_conditions_can_be_pickled(wide: Path) -> None:
    table = TableRef(*open_store(wide))
    scan = Scan.plan(table, load_latest(table), ["text", "_rowoffset"])
    condition = scan.condition("k % 500 = 4 and part.x > 3")
    assert len(pickle.loads(pickle.dumps(scan)).tasks()) == len(scan.tasks())
    tables = []
    for task in scan.tasks(condition.columns):
        copy, check = pickle.loads(pickle.dumps((task, condition)))
        assert copy.arrow_schema == task.arrow_schema  # computed by now; must not make the next copy larger
        assert len(pickle.dumps(copy)) == len(pickle.dumps(task))
        tables += copy.tables(1 << 20, check)
    expected = lance.dataset(str(wide)).to_table(columns=["text", "_rowoffset"], filter=condition.text)
    assert pa.concat_tables(tables).equals(expected)


def test_a_filter_may_read_more_of_a_column_than_is_wanted(wide: Path) -> None:
    table_ref = TableRef(*open_store(wide))
    scan = Scan.plan(table_ref, load_latest(table_ref), ["part", "k"])
    condition = scan.condition("part.x = 41 and k = 41")
    (part, key) = scan.fields
    pruned = part.prune(lambda leaf: leaf.name == "y")
    assert pruned is not None
    results: list[pa.Table] = []
    for task in scan.tasks(condition.columns):
        results += replace(task, fields=(pruned, key)).tables(1 << 20, condition)
    assert [table.to_pylist() for table in results] == [[{"part": {"y": "41"}, "k": 41}]]


def bytes_read(path: Path, monkeypatch: pytest.MonkeyPatch, **query: Any) -> int:
    """Read from a store that is not this disk and return how many bytes were asked for."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for file in path.rglob("*"):
        if file.is_file():
            memory.pipe_file(f"/late/{file.relative_to(path)}", file.read_bytes())
    total = 0
    plain = MemoryStore.read_ranges

    def counted(self: MemoryStore, where: str, ranges: Any) -> Any:
        nonlocal total
        total += sum(size for _, size in ranges)
        return plain(self, where, ranges)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "read_ranges", counted)
        # Bytes count here, and not requests: nothing is read that is not needed.
        for module in ("io.ranges", "file.v2_1.read.row_page"):
            patch.setattr(f"spark_lance.{module}.REQUEST_BYTES", 0)
        ours.dataset("memory://late").to_table(**query)
    memory.rm("/late", recursive=True)
    return total


def test_columns_are_not_read_where_no_row_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = pa.array(map(np.random.default_rng(1).bytes, [400] * 4000))
    data = pa.table({"k": pa.array(range(4000), pa.int64()), "noise": noise})
    lance.write_dataset(data, tmp_path / "t", max_rows_per_file=2000)
    everything = bytes_read(tmp_path / "t", monkeypatch)
    assert everything > 1_600_000
    assert bytes_read(tmp_path / "t", monkeypatch, limit=5, offset=1990) < everything / 10
    assert bytes_read(tmp_path / "t", monkeypatch, filter="k < 0") < everything / 10
    assert bytes_read(tmp_path / "t", monkeypatch, filter="k = 77") < everything / 10
    assert bytes_read(tmp_path / "t", monkeypatch, filter="k in (5, 3999)") < everything / 5
    assert bytes_read(tmp_path / "t", monkeypatch, filter="k % 500 = 3") < everything / 5


def test_pieces_of_filtered_rows_stay_small(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = FragmentRows.read

    def noted(self: FragmentRows, columns: Columns, start: int, stop: int) -> pa.Table:
        table = plain(self, columns, start, stop)
        sizes.append(table.nbytes)
        return table

    monkeypatch.setattr(FragmentRows, "read", noted)
    mine = ours.dataset(wide)
    result = list(mine.get_fragments()[1].plan_scan(["part"]).tables("k % 5 = 0", 20_000))
    assert sum(table.num_rows for table in result) > 900
    assert max(table.nbytes for table in result) < 30_000
    assert max(sizes) < 26_000


@pytest.mark.parametrize("stable", [False, True])
def test_rows_deleted_by_system_columns(tmp_path: Path, stable: bool) -> None:
    remains = []
    for player in (ours, lance):
        path = tmp_path / player.__name__
        lance.write_dataset(rows(0, 9), path, enable_stable_row_ids=stable)
        lance.write_dataset(rows(20, 9), path, mode="append")
        player.dataset(str(path)).delete("_row_created_at_version = 2 or _rowid in (1, 4)")
        remains.append(lance.dataset(str(path)).to_table()["a"].to_pylist())
    assert remains[0] == remains[1]
    assert len(remains[0]) == (7 if stable else 16)


@settings(max_examples=15, deadline=None)
@given(changes=steps(), stable=st.booleans(), data=st.data())
def test_short_spans_of_any_history(changes: list[Step], stable: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=stable)
        store, root = open_store(str(path))
        version, names = load_latest(TableRef(store, root)), ("b", "a", "_rowid", "_rowaddr")
        for task in Scan(TableRef(store, root), version, names, tuple(version.fragments)).tasks():
            count = task.message.physical_rows
            whole = pa.concat_tables([task.arrow_schema.empty_table(), *task.tables(1 << 20)])
            places = whole["_rowaddr"].to_numpy() & np.uint64(0xFFFFFFFF)
            first = data.draw(st.integers(0, count))
            stop = data.draw(st.integers(first, count + 3))
            result = replace(task, span=(first, stop)).tables(data.draw(st.sampled_from([1, 1 << 20])))
            within = whole.filter(pa.array((places >= first) & (places < stop)))
            assert pa.concat_tables([task.arrow_schema.empty_table(), *result]).equals(within)
