"""Changing columns: the same steps by pylance, by us, and in turns, compared at every version."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.io.store import open_store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import list_versions, load_latest, load_version
from tests.strategies import canonical

Step = Callable[[Any], object]
# (name, id, parent, type) of every field.
Ids = list[tuple[str, int, int, str]]

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint16()]
FAMILIES = [INTEGERS, [pa.float32(), pa.float64()], [pa.string(), pa.large_string()]]
NULL_TYPES = [
    pa.int32(),
    pa.string(),
    pa.list_(pa.int8()),
    pa.struct([pa.field("p", pa.int8()), pa.field("q", pa.struct([pa.field("r", pa.string())]))]),
]


def start(version: str) -> pa.Table:
    columns: dict[str, Any] = {
        "a": pa.array(range(24), pa.int64()),
        "f": pa.array([None if i % 5 == 0 else i / 4 for i in range(24)]),
        "t": pa.array([f"text {i % 7}" for i in range(24)]),
        "s": [{"x": i % 50, "y": f"y{i}", "z": {"u": i % 3}} for i in range(24)],
        "l": [[i % 9, None] if i % 3 else None for i in range(24)],
        "o": [[{"k": i, "v": str(i)}] * (i % 3) for i in range(24)],
    }
    if version != "2.0":
        columns["n"] = [None if i % 4 == 0 else {"e": i, "g": None} for i in range(24)]
    return pa.table(columns)


def ids(path: Path, version: int | None = None) -> Ids:
    table = TableRef(*open_store(path))
    manifest = load_latest(table) if version is None else load_version(table, version)
    return [(f.name, f.id, f.parent_id, f.logical_type) for f in manifest.message.fields]


class Chooser:
    """Draws steps that fit a table. A step is a method of a dataset with arguments that both kinds know."""

    def __init__(self, data: st.DataObject, version: str) -> None:
        self.data = data
        self.version = version
        self.names = 0

    def pick(self, values: list[Any]) -> Any:
        return self.data.draw(st.sampled_from(values))

    def name(self) -> str:
        """A name that may have been a dropped column's, but is not a present one's."""
        self.names += 1
        return f"c{self.names}"

    def step(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        kinds = [
            "sql",
            "stream",
            "null",
            "nested",
            "drop",
            "drop",
            "rename",
            "cast",
            "cast",
            "join",
            "delete",
        ]
        kind = self.pick([*kinds, "widen", "tighten", "append"])
        chosen: tuple[str, Step] | None = getattr(self, f"_{kind}")(table, rows)
        return chosen

    def _paths(self, fields: Any, below: str = "", in_list: bool = False) -> list[tuple[str, pa.Field, bool]]:
        results = []
        for field in fields:
            path = below + field.name
            results.append((path, field, in_list))
            kind = field.type
            if pa.types.is_struct(kind):
                parts = [kind.field(i) for i in range(kind.num_fields)]
                results += self._paths(parts, path + ".", in_list)
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                results += self._paths([kind.value_field], path + ".", True)
        return results

    def _sql(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        integers = [field.name for field in table if pa.types.is_integer(field.type)]
        if not integers:
            return None
        texts = {self.name(): f"cast({self.pick(integers)} as bigint) + 1"}
        if self.data.draw(st.booleans()):
            texts[self.name()] = f"cast({self.pick(integers)} as double)"
        return f"add {texts}", lambda ds: ds.add_columns(texts)

    def _stream(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        values = [{"i": i, "w": [str(i)] * (i % 3)} for i in range(rows)]
        kind = pa.struct([pa.field("i", pa.int32()), pa.field("w", pa.list_(pa.string()))])
        new = pa.table({self.name(): pa.array(values, kind)})
        return "add a struct", lambda ds: ds.add_columns(new.to_reader())

    def _null(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        field = pa.field(self.name(), self.pick(NULL_TYPES))
        return f"add nulls {field}", lambda ds: ds.add_columns(field)

    def _nested(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        structs = [field.name for field in table if pa.types.is_struct(field.type)]
        if not structs or self.version != "2.2":
            return None
        field = pa.field(self.pick(structs), pa.struct([pa.field(self.name(), self.pick(NULL_TYPES))]))
        return f"add nulls {field}", lambda ds: ds.add_columns(field)

    def _drop(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        if len(table) == 1:
            return None
        path, _, in_list = self.pick(self._paths(table))
        if in_list and self.version != "2.2":
            return None  # pylance may drop the whole list
        return f"drop {path}", lambda ds: ds.drop_columns([path])

    def _rename(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        path, _, _ = self.pick(self._paths(table))
        change: Any = {"path": path, "name": self.name()}
        return f"{change}", lambda ds: ds.alter_columns(change)

    def _cast(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        options = [
            ({"path": path, "data_type": target}, path)
            for path, field, _ in self._paths(table)
            for family in FAMILIES
            if field.type in family
            for target in family
            # In 2.0 pylance cannot always read what it makes of these.
            if self.version != "2.0" or "." not in path
        ]
        if not options:
            return None
        (one, path), (two, other) = self.pick(options), self.pick(options)
        changes: list[Any] = [one] if path == other else [one, two]
        return f"{changes}", lambda ds: ds.alter_columns(*changes)

    def _join(self, table: pa.Schema, rows: int) -> tuple[str, Step] | None:
        keys = [field for field in table if pa.types.is_integer(field.type)]
        if not keys:
            return None
        key = self.pick(keys)
        data = pa.table({"key": pa.array([1, 5, 6, 99], key.type), self.name(): ["p", "q", None, "s"]})
        return f"join on {key.name}", lambda ds: ds.merge(data, key.name, "key")

    def _delete(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        first = self.data.draw(st.integers(0, 20))
        return f"delete from {first}", lambda ds: ds.delete(f"_rowid >= {first} and _rowid < {first + 3}")

    def _widen(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        return self._nullable(table, True)

    def _tighten(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        return self._nullable(table, False)

    def _nullable(self, table: pa.Schema, value: bool) -> tuple[str, Step]:
        # pylance cannot look for nulls inside of lists, and finds none in columns of type null.
        paths = [p for p, field, in_list in self._paths(table) if not in_list and field.type != pa.null()]
        path = self.pick(paths)
        change: Any = {"path": path, "nullable": value}
        return f"{change}", lambda ds: ds.alter_columns(change)

    def _append(self, table: pa.Schema, rows: int) -> tuple[str, Step]:
        def append(dataset: Any) -> None:
            some = dataset.to_table().slice(0, 3)
            write = (
                lance.write_dataset if isinstance(dataset, lance.LanceDataset) else spark_lance.write_dataset
            )
            write(some, dataset.uri, mode="append")

        return "append", append


def run(step: Step, path: Path, by_us: bool) -> bool:
    """Take a step; return whether that was possible."""
    dataset: Any = spark_lance.dataset(path) if by_us else lance.dataset(str(path))
    try:
        step(dataset)
    except (OSError, ValueError):
        return False
    return True


def rows_of(path: Path, version: int, stable: bool) -> list[Any]:
    """Return a version's rows; they are the same through pylance and through us."""
    system = ["_rowid"] + (["_row_created_at_version", "_row_last_updated_at_version"] if stable else [])
    theirs: Any = lance.dataset(str(path), version=version)
    theirs.validate()
    ours = spark_lance.dataset(path, version=version)
    expected = theirs.to_table(columns=[*theirs.schema.names, *system])
    got = ours.to_table([*ours.schema.names, *system])
    assert got.schema.remove_metadata() == expected.schema.remove_metadata()
    for name in expected.column_names:
        assert canonical(got[name]) == canonical(expected[name]), (version, name)
    return [canonical(expected[name]) for name in expected.column_names]


def replay(folder: Path, data: st.DataObject, version: str, stable: bool) -> None:
    """Take the same steps on three copies of a table and compare these at every version."""
    theirs, ours, turns = folder / "theirs", folder / "ours", folder / "turns"
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(start(version), theirs, max_rows_per_file=10, **options)
    shutil.copytree(theirs, ours)
    shutil.copytree(theirs, turns)
    chooser = Chooser(data, version)
    taken: list[str] = []
    for turn in range(data.draw(st.integers(1, 8))):
        now = spark_lance.dataset(ours)
        chosen = chooser.step(now.schema, now.count_rows())
        if chosen is None:
            continue
        name, step = chosen
        taken.append(name)
        possible = run(step, theirs, by_us=False)
        assert run(step, ours, by_us=True) == possible, taken
        assert run(step, turns, by_us=turn % 2 == 0) == possible, taken
        assert ids(ours) == ids(theirs) == ids(turns), taken
    versions = [file.version for file in list_versions(TableRef(*open_store(theirs)))]
    for number in versions:
        assert ids(ours, number) == ids(theirs, number), taken
        expected = rows_of(theirs, number, stable)
        assert rows_of(ours, number, stable) == expected, taken
        assert rows_of(turns, number, stable) == expected, taken
    assert [file.version for file in list_versions(TableRef(*open_store(ours)))] == versions


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # an example takes too long to be shrunk
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
VERSIONS = pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])


@STABLE
@VERSIONS
@settings(max_examples=3, phases=PHASES)
@given(data=st.data())
def test_the_same_steps_give_the_same_versions(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: str, stable: bool
) -> None:
    folder = tmp_path_factory.mktemp("evolve")
    replay(folder, data, version, stable)
    shutil.rmtree(folder)


@pytest.mark.slow
@STABLE
@VERSIONS
@settings(max_examples=40, phases=PHASES)
@given(data=st.data())
def test_many_steps_give_the_same_versions(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: str, stable: bool
) -> None:
    folder = tmp_path_factory.mktemp("evolve")
    replay(folder, data, version, stable)
    shutil.rmtree(folder)


def alter(**change: Any) -> Step:
    return lambda ds: ds.alter_columns(change)


HISTORY: list[Step] = [
    lambda ds: ds.drop_columns(["o", "n"]),
    lambda ds: ds.add_columns({"c": "a + 1"}),  # the ids of the dropped columns are still in the files
    lambda ds: ds.drop_columns(["c"]),
    lambda ds: ds.add_columns({"d": "a + 2"}),  # the file with the last id is gone: it is given again
    alter(path="a", name="A"),
    alter(path="A", data_type=pa.int32()),
    lambda ds: ds.drop_columns(["s.x", "t"]),
    lambda ds: ds.add_columns(pa.field("s", pa.struct([pa.field("w", pa.list_(pa.int8()))]))),
    lambda ds: ds.add_columns(pa.field("e", pa.struct([pa.field("g", pa.int8())]))),
    alter(path="s.z.u", data_type=pa.int16()),
    lambda ds: ds.drop_columns(["s.w", "e.g"]),
    lambda ds: ds.add_columns({"f2": "A + 1", "f1": "A + 2"}),
    lambda ds: ds.alter_columns(
        {"path": "f1", "data_type": pa.int8()}, {"path": "f2", "data_type": pa.int8()}
    ),
]


def test_ids_are_given_as_pylance_gives_them(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    lance.write_dataset(start("2.2"), theirs, max_rows_per_file=10)
    shutil.copytree(theirs, ours)
    given = []
    for step in HISTORY:
        assert run(step, theirs, by_us=False)
        assert run(step, ours, by_us=True)
        assert ids(ours) == ids(theirs)
        given.append(max(number for _, number, _, _ in ids(ours)))
    assert given[1] == given[3]
    assert rows_of(ours, len(HISTORY) + 1, False) == rows_of(theirs, len(HISTORY) + 1, False)


@VERSIONS
@pytest.mark.parametrize("by_us", [False, True], ids=["pylance", "ours"])
def test_columns_that_deleted_rows_lack_become_not_nullable(
    tmp_path: Path, by_us: bool, version: str
) -> None:
    """The rows that were deleted before have nulls in the files of the new columns."""
    added = pa.table(
        {
            "i": pa.array(range(21), pa.int32()),
            "t": [str(i) for i in range(21)],
            "l": [[str(i)] * (i % 3) for i in range(21)],
            "s": [{"i": i, "l": ["x"] * (i % 3)} for i in range(21)],
        }
    )
    options: dict[str, Any] = {"data_storage_version": version}
    lance.write_dataset(pa.table({"a": range(24)}), tmp_path, **options).delete("a BETWEEN 6 AND 8")
    assert run(lambda ds: ds.add_columns(added.to_reader()), tmp_path, by_us)
    for path in ("i", "t", "l", "s.i", "s.l", "s"):
        assert run(alter(path=path, nullable=False), tmp_path, by_us)
    result = spark_lance.dataset(tmp_path)
    assert not any(result.schema.field(name).nullable for name in added.column_names)
    assert result.to_table(added.column_names).to_pylist() == added.to_pylist()
    assert result.take([5, 6, 20], added.column_names).to_pylist() == added.take([5, 6, 20]).to_pylist()
    rows_of(tmp_path, result.version, False)
