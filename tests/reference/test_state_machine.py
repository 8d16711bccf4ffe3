"""Long random histories of one table: pylance and we take turns, and a plain model of rows follows along.

After every step both read the newest version and one older one, with row ids, row versions and filters, and
find what the model holds. Some steps are computed from a version that is not the newest.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import spark_lance
from tests.row_model import Clause, Statement, Text, change

VERSIONS = ["2.0", "2.1", "2.2"]
SHORT = settings(
    max_examples=2,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# 12 histories of up to 40 steps for each of the six kinds of tables.
LONG = settings(SHORT, max_examples=12, stateful_step_count=40)

ROW_ID, CREATED, UPDATED = SYSTEM = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
PRIMARY = {"lance-schema:unenforced-primary-key": "true"}
KINDS: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "text": pa.string(),
    "large text": pa.large_string(),
    "list": pa.list_(pa.int32()),
    "struct": pa.struct([("x", pa.int64()), ("y", pa.string())]),
}
WIDER = {"int": "long", "text": "large text"}
SIDES = st.sampled_from(["ours", "theirs"])
FEW = st.sets(st.integers(0, 9), min_size=1, max_size=4)

UPDATE, INSERT = Clause("MATCHED", "UPDATE *"), Clause("NOT MATCHED", "INSERT *")
THIRD = Text("id % 3 = 0", lambda x, y, all: x["id"] % 3 == 0)
MERGES = {
    "upsert": (UPDATE, INSERT),
    "update": (UPDATE,),
    "insert": (INSERT,),
    "delete": (Clause("MATCHED", "DELETE"),),
    "replace": (UPDATE, INSERT, Clause("NOT MATCHED BY SOURCE", "DELETE", THIRD)),
}


def make_value(kind: str, seed: int) -> Any:
    """Return the value of a kind that a number stands for; one in seven is null."""
    if seed % 7 == 6:
        return None
    if kind in ("int", "long"):
        return seed % 23
    if kind in ("text", "large text"):
        return f"v{seed % 11}"
    if kind == "list":
        return [seed % 5] * (seed % 4)
    return {"x": seed % 13, "y": f"y{seed % 3}"}


@dataclass
class Column:
    """A column: its name and kind now, and the number that stays with it through renames."""

    name: str
    kind: str
    number: int


@dataclass
class Model:
    """What one version holds.

    Attributes:
        columns: besides the key.
        rows: key -> column number -> value; a missing one is null.
        marks: key -> row id, created, updated.
    """

    columns: list[Column]
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    marks: dict[int, list[int]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    def content(self) -> dict[int, tuple[Any, ...]]:
        return {key: tuple(row.get(c.number) for c in self.columns) for key, row in self.rows.items()}


class History(RuleBasedStateMachine):
    """One table."""

    version = "2.2"
    stable = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "t"
        self.model = Model([])
        self.past: dict[int, Model] = {}
        self.tags: dict[str, int] = {}
        self.used_ids: set[int] = set()
        self.next_key = 0
        self.next_number = 0
        # What stale steps must know: they are not tried over changes after which they could not succeed.
        self.epoch = 0
        self.restored = False
        self.stale: dict[str, tuple[Any, int, set[int]]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # What rules are made of.

    def open(self, side: str, version: int | None = None) -> Any:
        module = lance if side == "theirs" else spark_lance
        return module.dataset(str(self.path), version)

    def handle(self, side: str, stale: bool) -> tuple[Any, list[int]]:
        """Return a handle of the newest version, or one from before if that may still succeed.

        With it come the keys that are there now and that the handle knows: what a step does with others
        depends on whether it has to be run again.
        """
        keys = sorted(self.model.rows)
        if stale and side in self.stale and self.stale[side][1] == self.epoch:
            event("stale handle")
            handle, _, known = self.stale[side]
            return handle, [key for key in keys if key in known]
        return self.open(side), keys

    def new_column(self, kind: str) -> Column:
        self.next_number += 1
        return Column(f"c{self.next_number}", kind, self.next_number)

    def new_rows(self, seeds: list[int], columns: list[Column]) -> dict[int, dict[int, Any]]:
        rows = {}
        for seed in seeds:
            rows[self.next_key] = {c.number: make_value(c.kind, seed * c.number + seed) for c in columns}
            self.next_key += 1
        return rows

    def table(self, rows: dict[int, dict[int, Any]], columns: list[Column]) -> pa.Table:
        key = pa.field("id", pa.int64(), nullable=False, metadata=PRIMARY)
        schema = pa.schema([key, *(pa.field(c.name, KINDS[c.kind]) for c in columns)])
        arrays = [pa.array(list(rows), pa.int64())]
        arrays += [pa.array([row.get(c.number) for row in rows.values()], KINDS[c.kind]) for c in columns]
        return pa.Table.from_arrays(arrays, schema=schema)

    def done(self, touched: list[int] | None = None) -> None:
        """Take down what the step has made: the newest version, and the marks of the rows that it touched."""
        newest = lance.dataset(str(self.path))
        version = newest.version
        if self.stable:
            ids = newest.to_table(columns=["id", ROW_ID])
            for key, row_id in zip(ids["id"].to_pylist(), ids[ROW_ID].to_pylist(), strict=True):
                if key in self.model.rows and key not in self.model.marks:
                    assert row_id not in self.used_ids, f"row id {row_id} is given out again"
                    self.used_ids.add(row_id)
                    self.model.marks[key] = [row_id, version, version]
            for key in touched or ():
                self.model.marks[key][2] = version
            self.model.marks = {key: self.model.marks[key] for key in self.model.rows}
        self.past[version] = copy.deepcopy(self.model)

    # Steps.

    @initialize(side=SIDES, seeds=st.lists(st.integers(0, 50), min_size=1, max_size=20))
    def create(self, side: str, seeds: list[int]) -> None:
        kinds = ["int", "text", "list"] + (["struct"] if self.version != "2.0" else [])
        self.model.columns = [self.new_column(kind) for kind in kinds]
        self.model.rows = self.new_rows(seeds, self.model.columns)
        module: Any = lance if side == "theirs" else spark_lance
        module.write_dataset(
            self.table(self.model.rows, self.model.columns),
            str(self.path),
            max_rows_per_file=6,
            data_storage_version=self.version,
            enable_stable_row_ids=self.stable,
        )
        self.done()

    @rule(side=SIDES)
    def keep_a_handle(self, side: str) -> None:
        self.stale[side] = self.open(side), self.epoch, set(self.model.rows)

    @rule(
        side=SIDES,
        seeds=st.lists(st.integers(0, 50), min_size=1, max_size=9),
        skipped=st.integers(0, 3),
        stale=st.booleans(),
    )
    def append(self, side: str, seeds: list[int], skipped: int, stale: bool) -> None:
        handle, _ = self.handle(side, stale)
        present = [c for c in self.model.columns if c.name in handle.schema.names]
        columns = [c for place, c in enumerate(present) if place % 4 != skipped]
        rows = self.new_rows(seeds, columns)
        if side == "theirs":
            lance.write_dataset(self.table(rows, columns), handle, mode="append", max_rows_per_file=5)
        else:
            spark_lance.write_dataset(self.table(rows, columns), handle.uri, "append", max_rows_per_file=5)
        self.model.rows |= rows
        self.done()

    @rule(side=SIDES, seeds=st.lists(st.integers(0, 50), max_size=12), new=st.booleans())
    def overwrite(self, side: str, seeds: list[int], new: bool) -> None:
        kinds = ["text", "int"] if new else [c.kind for c in self.model.columns]
        self.model.columns = [self.new_column(kind) for kind in kinds]
        self.model.rows, self.model.marks = self.new_rows(seeds, self.model.columns), {}
        module: Any = lance if side == "theirs" else spark_lance
        data = self.table(self.model.rows, self.model.columns)
        module.write_dataset(data, str(self.path), mode="overwrite", max_rows_per_file=4)
        self.epoch += 1
        self.done()

    @rule(side=SIDES, few=FEW, stale=st.booleans())
    def delete(self, side: str, few: set[int], stale: bool) -> None:
        handle, known = self.handle(side, stale)
        keys = _some(known, few)
        handle.delete(_among(keys))
        for key in keys:
            self.model.rows.pop(key, None)
        self.done()

    @rule(side=SIDES, rest=st.integers(0, 3))
    def delete_many(self, side: str, rest: int) -> None:
        self.open(side).delete(f"id % 4 = {rest}")
        self.model.rows = {key: row for key, row in self.model.rows.items() if key % 4 != rest}
        self.done()

    @rule(side=SIDES, few=FEW, add=st.integers(1, 5), stale=st.booleans())
    def update(self, side: str, few: set[int], add: int, stale: bool) -> None:
        handle, known = self.handle(side, stale)
        named = [c for c in self.model.columns if c.name in handle.schema.names]
        numbers = [c for c in named if c.kind in ("int", "long")]
        texts = [c for c in named if c.kind in ("text", "large text")]
        keys = _some(known, few)
        changes: dict[str, str] = {}
        if numbers:
            changes[numbers[-1].name] = f"{numbers[-1].name} + {add}"
        if texts and (add % 2 or not numbers):
            changes[texts[0].name] = f"'u{add}'"
        if not changes:
            return
        result = handle.update(changes, where=_among(keys))
        count = result["num_rows_updated"] if side == "theirs" else result.num_rows_updated
        assert count == len(keys)
        for key in keys:
            row = self.model.rows[key]
            if numbers and row.get(numbers[-1].number) is not None:
                row[numbers[-1].number] += add
            if texts and texts[0].name in changes:
                row[texts[0].number] = f"u{add}"
        self.done(keys)

    @rule(
        side=SIDES,
        few=FEW,
        seeds=st.lists(st.integers(0, 50), max_size=6),
        what=st.sampled_from(list(MERGES)),
        skipped=st.integers(0, 3),
        stale=st.booleans(),
    )
    def merge(self, side: str, few: set[int], seeds: list[int], what: str, skipped: int, stale: bool) -> None:
        # What the source lacks depends on the rows that a merge knows.
        handle, known = self.handle(side, stale and what != "replace")
        present = [c for c in self.model.columns if c.name in handle.schema.names]
        columns = [c for place, c in enumerate(present) if place % 4 != skipped]
        old = _some(known, few)
        changed = {
            key: {c.number: make_value(c.kind, key + skipped + c.number) for c in columns} for key in old
        }
        fresh = self.new_rows(seeds, columns)
        builder = handle.merge_insert("id")
        if what in ("upsert", "update", "replace"):
            builder = builder.when_matched_update_all()
        if what in ("upsert", "insert", "replace"):
            builder = builder.when_not_matched_insert_all()
        if what == "delete":
            builder = builder.when_matched_delete()
        if what == "replace":
            builder = builder.when_not_matched_by_source_delete(THIRD.sql)
        result = builder.execute(self.table(changed | fresh, columns))
        rows, counts = change(
            [{"id": key, **row} for key, row in self.model.rows.items()],
            [{"id": key, **row} for key, row in (changed | fresh).items()],
            Statement("MERGE", clauses=MERGES[what], keys=("id",)),
        )
        self.model.rows = {row.pop("id"): row for row in map(dict, rows)}
        hit = old if what in ("upsert", "update", "replace") else []
        names = ["num_inserted_rows", "num_updated_rows", "num_deleted_rows"]
        assert [result[n] if side == "theirs" else getattr(result, n) for n in names] == [
            counts[name] for name in ("inserted", "updated", "deleted")
        ]
        self.done(hit)

    @precondition(lambda self: len(self.model.columns) < 7)
    @rule(side=SIDES, computed=st.booleans(), kind=st.sampled_from(["int", "text", "list"]))
    def add_column(self, side: str, computed: bool, kind: str) -> None:
        handle = self.open(side)
        # A sum with a column that may be null may be null, too; so this one can be left out of appends.
        numbers = [c for c in self.model.columns if c.kind in ("int", "long")]
        computed = computed and bool(numbers)
        column = self.new_column("long" if computed else kind)
        if computed:
            handle.add_columns({column.name: f"id + {numbers[0].name}"})
        else:
            handle.add_columns(pa.field(column.name, KINDS[kind]))
        self.model.columns.append(column)
        if computed:
            for key, row in self.model.rows.items():
                value = row.get(numbers[0].number)
                row[column.number] = None if value is None else key + value
        self.done(list(self.model.rows) if computed else None)

    @precondition(lambda self: len(self.model.columns) > 2)
    @rule(side=SIDES, which=st.integers(0, 9))
    def drop_column(self, side: str, which: int) -> None:
        column = self.model.columns.pop(which % len(self.model.columns))
        self.open(side).drop_columns([column.name])
        for row in self.model.rows.values():
            row.pop(column.number, None)
        self.epoch += 1
        self.done()

    @precondition(lambda self: self.model.columns)
    @rule(side=SIDES, which=st.integers(0, 9))
    def rename_column(self, side: str, which: int) -> None:
        column = self.model.columns[which % len(self.model.columns)]
        before, column.name = column.name, f"{column.name}n"
        self.open(side).alter_columns({"path": before, "name": column.name})
        self.epoch += 1
        self.done()

    @precondition(lambda self: any(c.kind in WIDER for c in self.model.columns))
    @rule(side=SIDES, which=st.integers(0, 9))
    def cast_column(self, side: str, which: int) -> None:
        narrow = [c for c in self.model.columns if c.kind in WIDER]
        column = narrow[which % len(narrow)]
        if f"{column.number}_idx" in self.index_names():
            return
        column.kind = WIDER[column.kind]
        self.open(side).alter_columns({"path": column.name, "data_type": KINDS[column.kind]})
        # The values are in a new column now, which stale appends do not know.
        self.epoch += 1
        self.done(list(self.model.rows))

    @precondition(lambda self: len(self.model.columns) > 1)
    @rule(side=SIDES, few=FEW, which=st.integers(0, 9))
    def update_in_place(self, side: str, few: set[int], which: int) -> None:
        handle, known = self.handle(side, False)
        keys = _some(known, few)
        if not keys:
            return  # pylance refuses an empty source here
        column = self.model.columns[which % len(self.model.columns)]
        changed = {key: {column.number: make_value(column.kind, key * 3 + which)} for key in keys}
        data = self.table(changed, [column])
        if side == "theirs":
            merge = handle.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns")
            assert merge.execute(data)["num_updated_rows"] == len(keys)
        else:
            handle.update_columns(data, "id")
        for key in keys:
            self.model.rows[key] |= changed[key]
        self.done(keys)

    @rule(few=FEW, add=st.integers(1, 5))
    def race(self, few: set[int], add: int) -> None:
        """Both add to the same rows at the same time; whoever is second does it again."""
        numbers = [c for c in self.model.columns if c.kind in ("int", "long")]
        keys = _some(sorted(self.model.rows), few)
        if not numbers or not keys:
            return
        name = numbers[0].name
        with ThreadPoolExecutor(2) as pool:
            runs = [
                pool.submit(self.open(side).update, {name: f"{name} + {add}"}, _among(keys))
                for side in ("ours", "theirs")
            ]
            for run in runs:
                run.result()
        for key in keys:
            row = self.model.rows[key]
            if row.get(numbers[0].number) is not None:
                row[numbers[0].number] += 2 * add
        self.done(keys)

    @rule(
        side=SIDES,
        size=st.sampled_from([5, 12, 1000]),
        all_deletions=st.booleans(),
        defer=st.sampled_from([False, False, True]),
    )
    def compact(self, side: str, size: int, all_deletions: bool, defer: bool) -> None:
        options: dict[str, Any] = {"target_rows_per_fragment": size}
        if all_deletions:
            options["materialize_deletions_threshold"] = 0.0
        if defer and not self.stable:
            options["defer_index_remap"] = True
        self.open(side).optimize.compact_files(**options)
        self.done()

    @rule(side=SIDES, which=st.integers(0, 99))
    def restore(self, side: str, which: int) -> None:
        versions = sorted(self.past)
        version = versions[which % len(versions)]
        self.open(side, version).restore()
        self.model = copy.deepcopy(self.past[version])
        self.epoch += 1
        self.restored = True
        self.done()

    @rule(side=SIDES, key=st.sampled_from(["k1", "k2"]), text=st.sampled_from(["", "a", "b"]))
    def set_config(self, side: str, key: str, text: str) -> None:
        handle = self.open(side)
        if text:
            handle.update_config({key: text})
            self.model.config[key] = text
        elif key in self.model.config:
            handle.delete_config_keys([key])
            del self.model.config[key]
        self.done()

    @precondition(lambda self: self.stable)
    @rule(side=SIDES)
    def keep_lineage_in_files(self, side: str) -> None:
        config = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"}
        self.open(side).update_config(config)
        self.model.config |= config
        self.done()

    @rule(side=SIDES, name=st.sampled_from(["x", "y"]), which=st.integers(0, 99))
    def tag(self, side: str, name: str, which: int) -> None:
        versions = sorted(self.past)
        version = versions[which % len(versions)]
        tags = self.open(side).tags
        if name not in self.tags:
            tags.create(name, version)
        elif which % 2:
            tags.update(name, version)
        else:
            tags.delete(name)
            del self.tags[name]
            return
        self.tags[name] = version

    def index_names(self) -> list[str]:
        return [index.name for index in spark_lance.dataset(str(self.path)).describe_indices()]

    @precondition(lambda self: self.model.rows)
    @rule(which=st.integers(0, 9), kind=st.sampled_from(["BTREE", "BITMAP"]))
    def index(self, which: int, kind: Any) -> None:
        named = {c.name: f"{c.number}_idx" for c in self.model.columns if c.kind in ("int", "long", "text")}
        named["id"] = "id_idx"
        name = sorted(named)[which % len(named)]
        lance.dataset(str(self.path)).create_scalar_index(name, kind, name=named[name])
        self.done()

    @precondition(lambda self: self.index_names())
    @rule(side=SIDES, which=st.integers(0, 9), drop=st.booleans())
    def keep_up_index(self, side: str, which: int, drop: bool) -> None:
        names = self.index_names()
        if drop:
            self.open(side).drop_index(names[which % len(names)])
        else:
            lance.dataset(str(self.path)).optimize.optimize_indices()
        self.done()

    @rule(side=SIDES)
    def clean_up(self, side: str) -> None:
        self.open(side).cleanup_old_versions(
            older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
        newest = max(self.past)
        remaining = {newest, *self.tags.values()}
        self.past = {version: model for version, model in self.past.items() if version in remaining}
        self.stale.clear()

    # What must hold after each step.

    @invariant()
    def all_is_well(self) -> None:
        if self.past:
            self.both_read_what_the_model_holds()
            self.filters_find_the_same_rows()
            self.older_versions_stay_as_they_were()
            if self.stable and not self.restored:
                self.changes_are_told()

    def both_read_what_the_model_holds(self) -> None:
        theirs: Any = lance.dataset(str(self.path))
        ours = spark_lance.dataset(str(self.path))
        theirs.validate()
        assert ours.version == theirs.version == max(self.past)
        assert ours.config() == theirs.config() == self.model.config
        assert {name: tag["version"] for name, tag in ours.tags.list().items()} == self.tags
        self._compare(ours, theirs, self.model)
        assert ours.count_rows() == theirs.count_rows() == len(self.model.rows)
        names = ["id", *SYSTEM[: 3 if self.stable else 1]]
        marks = theirs.to_table(columns=names)
        assert ours.to_table(names).equals(marks)
        if self.stable:
            results = {row["id"]: [row[name] for name in SYSTEM] for row in marks.to_pylist()}
            assert results == self.model.marks

    def filters_find_the_same_rows(self) -> None:
        theirs: Any = lance.dataset(str(self.path))
        ours = spark_lance.dataset(str(self.path))
        keys = sorted(self.model.rows)
        middle = keys[len(keys) // 2] if keys else 0
        tests = {
            "id % 3 = 1": {key for key in keys if key % 3 == 1},
            f"id >= {middle}": {key for key in keys if key >= middle},
            f"id = {middle}": {middle}.intersection(keys),
        }
        for column in self.model.columns:
            values = {key: row.get(column.number) for key, row in self.model.rows.items()}
            name = column.name
            if column.kind in ("int", "long"):
                tests[f"{name} < 9"] = {key for key, v in values.items() if v is not None and v < 9}
            elif column.kind == "text":
                tests[f"{name} = 'v3'"] = {key for key, v in values.items() if v == "v3"}
            else:
                tests[f"{name} is null"] = {key for key, v in values.items() if v is None}
        for text, expected in tests.items():
            for indexed in (True, False):
                scan = theirs.scanner(columns=["id"], filter=text, use_scalar_index=indexed)
                assert sorted(scan.to_table()["id"].to_pylist()) == sorted(expected), (text, indexed)
            assert sorted(ours.to_table(["id"], text)["id"].to_pylist()) == sorted(expected), text

    def older_versions_stay_as_they_were(self) -> None:
        versions = sorted(self.past)
        for version in {*versions[:1], *versions[len(versions) // 2 :][:1]}:
            self._compare(self.open("ours", version), self.open("theirs", version), self.past[version])

    def changes_are_told(self) -> None:
        versions = sorted(self.past)
        since = versions[len(versions) // 3]
        before, now = self.past[since].marks, self.model.marks
        changes = spark_lance.dataset(str(self.path)).diff(since)
        assert set(changes.inserted(["id"]).read_all()["id"].to_pylist()) == {
            key for key, (_, created, _) in now.items() if created > since
        }
        assert set(changes.updated(["id"]).read_all()["id"].to_pylist()) == {
            key for key, (_, created, updated) in now.items() if created <= since < updated
        }
        gone = changes.get_deleted_row_ids().read_all()[ROW_ID].to_pylist()
        assert sorted(gone) == sorted(mark[0] for key, mark in before.items() if key not in now)

    def _compare(self, ours: Any, theirs: Any, model: Model) -> None:
        table, other = ours.to_table(), theirs.to_table()
        assert table.schema == other.schema
        assert table.schema.names == ["id", *(c.name for c in model.columns)]
        assert table.equals(other)
        results = {row[0]: row[1:] for row in zip(*(c.to_pylist() for c in table.columns), strict=True)}
        assert results == model.content()
        assert len(results) == table.num_rows


def _some(keys: list[int], few: set[int]) -> list[int]:
    """Return some of the keys, each once."""
    return list(dict.fromkeys(keys[number * 7 % len(keys)] for number in sorted(few))) if keys else []


def _among(keys: list[int]) -> str:
    return f"id in ({', '.join(map(str, [-1, *keys]))})"


def _machine(file_version: str, stable_row_ids: bool) -> type[History]:
    class Chosen(History):
        version = file_version
        stable = stable_row_ids

    return Chosen


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", VERSIONS)
def test_short_histories(version: str, stable: bool) -> None:
    run_state_machine_as_test(_machine(version, stable), settings=SHORT)


@pytest.mark.reference_full
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", VERSIONS)
def test_long_histories(version: str, stable: bool) -> None:
    run_state_machine_as_test(_machine(version, stable), settings=LONG)
