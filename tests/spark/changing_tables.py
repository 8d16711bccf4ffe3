"""Random histories of every kind of change, and change feeds read without a Spark session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from hypothesis import strategies as st
from lance.file import LanceFileWriter

import spark_lance.datasets.dataset as ours
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan.changes import describe, reader
from tests.table.histories import SPILL, rows

# What is done, a number that varies it, and whether we do it; otherwise pylance does.
Step = tuple[str, int, bool]

KINDS = [
    "append",
    "delete",
    "update",
    "merge",
    "compact",
    "add column",
    "add empty column",
    "drop column",
    "rename column",
    "cast",
    "rewrite column",
    "replace file",
    "delete fragment",
    "delete all",
    "overwrite",
    "restore",
    "settings",
    "spill",
]


def steps(*kinds: str, max_size: int = 6) -> st.SearchStrategy[list[Step]]:
    """Return a strategy of histories; of all kinds of steps if none is named."""
    step = st.tuples(st.sampled_from(kinds or KINDS), st.integers(0, 9), st.booleans())
    return st.lists(step, max_size=max_size)


def play(path: Path, steps: Sequence[Step], *, stable: bool) -> None:
    """Create a table of 30 rows in several fragments and change it step by step."""
    lance.write_dataset(rows(0, 30), path, enable_stable_row_ids=stable, max_rows_per_file=8)
    for number, (kind, choice, mine) in enumerate(steps):
        _change(path, number + 1, kind, choice, mine, stable)


def _change(  # noqa: C901 (a branch for each kind of step)
    path: Path, number: int, kind: str, choice: int, mine: bool, stable: bool
) -> None:
    player: Any = ours if mine else lance
    table = player.dataset(str(path))
    extra = [name for name in table.schema.names if name not in ("a", "b")]
    if kind == "append":
        added = rows(100 * number, 5 + choice)
        kind_of_a = pa.field("a", table.schema.field("a").type)
        added = added.set_column(0, kind_of_a, added["a"].cast(kind_of_a.type))
        player.write_dataset(added, str(path), mode="append")
    elif kind == "overwrite":
        player.write_dataset(rows(1000, 12), str(path), mode="overwrite", max_rows_per_file=5)
    elif kind == "delete":
        table.delete(f"a % 10 = {choice}")
    elif kind == "delete fragment":
        table.delete(f"a >= {8 * choice} and a < {8 * choice + 8}")
    elif kind == "delete all":
        table.delete("true")
    elif kind == "update":
        table.update({"b": f"'u{number}'"}, where=f"a % 7 = {choice % 7}")
    elif kind == "merge":
        merged = pa.concat_tables([rows(choice, 5), rows(50 * (number + 40), 3)])
        for field in table.schema:
            if field.name not in merged.column_names:
                merged = merged.append_column(field, pa.array([7] * len(merged), field.type))
        merge = table.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(merged.select(table.schema.names).cast(table.schema))
    elif kind == "rewrite column":
        keys = pa.array([choice, choice + 9], table.schema.field("a").type)
        if not extra:
            table.add_columns({f"x{number}": "a + 1"})
        merge = lance.dataset(str(path)).merge_insert("a").when_matched_update_all()
        merge.write_mode("rewrite_columns").execute(pa.table({"a": keys, "b": ["r", "s"]}))
    elif kind == "compact":
        table.optimize.compact_files(target_rows_per_fragment=20 + 10 * choice)
    elif kind == "add column":
        table.add_columns({f"c{number}": "a * 2"})
    elif kind == "add empty column":
        lance.dataset(str(path)).add_columns(pa.field(f"e{number}", pa.int64()))
    elif kind == "drop column" and extra:
        table.drop_columns([extra[choice % len(extra)]])
    elif kind == "rename column" and extra:
        table.alter_columns({"path": extra[choice % len(extra)], "name": f"n{number}"})
    elif kind == "cast":
        now = table.schema.field("a").type
        table.alter_columns({"path": "a", "data_type": pa.int32() if now == pa.int64() else pa.int64()})
    elif kind == "replace file":
        _replace(path, number)
    elif kind == "restore":
        player.dataset(str(path), version=1 + choice % table.version).restore()
    elif kind == "settings":
        table.update_config({"k": str(number)})
    elif kind == "spill" and stable:
        table.update_config(SPILL)


def _replace(path: Path, number: int) -> None:
    """Give the first fragment another file for a column of its own, by pylance's low-level operation."""
    table = lance.dataset(str(path))
    fragments = table.get_fragments()
    name = f"d{number}"
    if not fragments:
        return
    table.add_columns({name: "a * 3"})
    table = lance.dataset(str(path))
    fragment = table.get_fragments()[0]
    place = next(field.id() for field in table.lance_schema.fields() if field.name() == name)
    values = pa.table({name: pa.array([number] * fragment.physical_rows, table.schema.field(name).type)})
    file = f"{number}-replaced.lance"
    location, version = str(path / "data" / file), table.data_storage_version
    with LanceFileWriter(location, schema=values.schema, version=version) as writer:
        writer.write_batch(values)
    old = next(f for f in fragment.data_files() if place in f.fields)
    data = lance.fragment.DataFile(file, [place], [0], old.file_major_version, old.file_minor_version)
    change = lance.LanceOperation.DataReplacement(
        [lance.LanceOperation.DataReplacementGroup(fragment.fragment_id, data)]
    )
    lance.LanceDataset.commit(str(path), change, read_version=table.version)


def feed(path: Path | str, first: int | str, last: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a change feed, read as Spark's planner and tasks do."""
    raw = {"path": str(path), "readChangeFeed": "true", "startingVersion": str(first)}
    raw |= {} if last is None else {"endingVersion": str(last)}
    return read_feed(read_options({**raw, **{name: str(value) for name, value in options.items()}}))


def read_feed(parsed: ReadOptions) -> list[dict[str, Any]]:
    """Return the rows of a change feed, by parsed options."""
    place, schema = describe(parsed, None)
    result = reader(parsed, schema, place)
    return [row for part in result.partitions() for batch in result.read(part) for row in batch.to_pylist()]


def rows_at(path: Path, version: int, names: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Return the rows of a version by pylance, with null for columns that it does not have."""
    table = lance.dataset(str(path), version=version)
    there = table.to_table([name for name in names if name in table.schema.names])
    columns = [
        there[name].to_pylist() if name in there.column_names else [None] * there.num_rows for name in names
    ]
    return Counter(zip(*columns, strict=True))
