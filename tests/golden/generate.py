"""Makes the golden tables: run it with the Python of an environment that holds the pylance in question.

    for v in 0.10.18 0.20.0 0.30.0 0.39.0 1.0.4 2.0.1 4.0.2 8.0.1 14.0.2
        python3.11 -m venv env-$v
        env-$v/bin/pip install pylance==$v  # for 0.10 'numpy<2' 'pyarrow<17', for 0.20 'numpy<2' 'pyarrow<19'
        env-$v/bin/python tests/golden/generate.py

Per release and kind of table there is a folder `{release}-{kind}`, replaced as a whole. The kind is the
version of the data files, with "-stable" for tables with stable row ids.

    table.tar.gz      the table
    expected.json     the release, what was done, and what this release answers: counts, filters, searches
    expected.arrow    the rows as it reads them (Arrow IPC file)

Every table goes through the same steps, as far as the release knows them: created in two parts, so that there
are two fragments; rows deleted, updated and merged by key; a column added from an SQL expression; indices
built on a number, a text, a vector and the words of a text; and rows appended that no index covers.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

HERE = Path(__file__).parent
RELEASE = lance.__version__
NUMBERS = tuple(int(part) for part in RELEASE.split(".")[:2])
WORDS = ["apple", "pear", "plum", "cherry", "quince", "medlar"]
DIM = 8
QUERY = [i / DIM for i in range(DIM)]
CONDITIONS = (
    "id = 17",
    "id in (3, 206, 705)",
    "kind is null",
    "kind = 102",
    "name = 'updated'",
    "array_has_any(marks, ['a2'])",
    "place.x > 99.0",
)
KINDS = {
    (0, 10): ["legacy"],
    (0, 20): ["legacy", "2.0"],
    (0, 30): ["legacy", "2.0"],
    (0, 39): ["legacy", "2.0", "2.1"],
    (1, 0): ["legacy", "2.0", "2.1", "2.1-stable"],
    (2, 0): ["2.0", "2.1"],
    (4, 0): ["legacy", "2.0", "2.1", "2.2", "2.2-stable"],
    (8, 0): ["2.1", "2.2"],
    (14, 0): ["legacy", "2.0", "2.1", "2.2", "2.2-stable"],
}


def rows(first: int, count: int) -> pa.Table:
    """Some rows: numbers with nulls, texts, words, lists, structs and vectors, the same on every run."""
    dice = random.Random(first)
    points = np.random.default_rng(first).random((count, DIM), dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), DIM)
    numbers = range(first, first + count)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "kind": pa.array([None if i % 11 == 3 else i % 7 for i in numbers], pa.int32()),
        "name": pa.array([f"n{i * 7919 % 10007:05d}" for i in numbers]),
        "words": pa.array([" ".join(dice.choices(WORDS, k=3)) for _ in numbers]),
        "marks": pa.array([[f"a{i % 3}"] * (i % 4) for i in numbers], pa.list_(pa.string())),
        "place": pa.array([{"x": i / 4, "s": f"s{i % 5}"} for i in numbers]),
        "vec": vectors,
    }
    return pa.table(columns)


def steps(path: str, kind: str) -> Iterator[str]:
    """Make a table; yield the name of each step when it is done."""
    version, _, stable = kind.partition("-")
    options: dict[str, Any] = {}
    if stable:
        options["enable_stable_row_ids"] = True
    if NUMBERS >= (0, 16):
        options["data_storage_version"] = version
    lance.write_dataset(rows(0, 200), path, max_rows_per_group=50, **options)
    yield "create"
    lance.write_dataset(rows(200, 200), path, mode="append", max_rows_per_group=50, **options)
    yield "append"
    lance.dataset(path).delete("id % 10 = 4")
    yield "delete"
    if NUMBERS >= (0, 12):
        lance.dataset(path).update(
            {"name": "'updated'", "kind": "kind + 100"}, where="id in (1, 2, 202, 203)"
        )
        yield "update"
        fresh = rows(390, 20)
        lance.dataset(path).merge_insert(
            "id"
        ).when_matched_update_all().when_not_matched_insert_all().execute(fresh)
        yield "merge_insert"
    if NUMBERS >= (0, 20):
        lance.dataset(path).add_columns({"double": "id * 2"})
        yield "add_columns"
    lance.dataset(path).create_scalar_index("id", "BTREE")
    yield "BTREE id"
    if NUMBERS >= (0, 12):
        lance.dataset(path).create_scalar_index("kind", "BITMAP")
        yield "BITMAP kind"
        lance.dataset(path).create_scalar_index("marks", "LABEL_LIST")
        yield "LABEL_LIST marks"
    if NUMBERS >= (0, 20):
        lance.dataset(path).create_scalar_index("words", "INVERTED")
        yield "INVERTED words"
    lance.dataset(path).create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    yield "IVF_PQ vec"
    last = rows(700, 20)
    if NUMBERS >= (0, 20):
        last = last.append_column("double", pa.array(range(1400, 1440, 2), pa.int64()))
    lance.write_dataset(last, path, mode="append", max_rows_per_group=50, **options)
    yield "append without index"


def expected(path: str, done: list[str]) -> tuple[dict[str, Any], pa.Table]:
    """What this release says of the table."""
    dataset = lance.dataset(path)
    table = dataset.to_table()
    answers = {
        condition: dataset.to_table(columns=["id"], filter=condition).column("id").to_pylist()
        for condition in CONDITIONS
    }
    results: dict[str, Any] = {
        "release": RELEASE,
        "steps": done,
        "version": dataset.version,
        "count": dataset.count_rows(),
        "filters": answers,
    }
    if "IVF_PQ vec" in done:
        nearest = {"column": "vec", "q": QUERY, "k": 3, "nprobes": 2, "refine_factor": 50}
        results["nearest"] = dataset.to_table(columns=["id"], nearest=nearest).column("id").to_pylist()
    if "INVERTED words" in done:
        answer = dataset.to_table(columns=["id"], full_text_query="quince")
        results["text"] = {"quince": sorted(answer.column("id").to_pylist())}
    return results, table


def make(kind: str) -> None:
    """Make one table and put it beside this script."""
    target = HERE / f"{RELEASE}-{kind}"
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/table"
        done = []
        for step in steps(path, kind):
            done.append(step)
        result, table = expected(path, done)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        (target / "expected.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(str(target / "expected.arrow"), table.schema, options=options) as writer:
            writer.write_table(table.combine_chunks())
        with tarfile.open(str(target / "table.tar.gz"), "w:gz") as archive:
            archive.add(path, "table")
    print("made", target.name, done)


if __name__ == "__main__":
    for kind in sys.argv[1:] or KINDS[NUMBERS[0], NUMBERS[1]]:
        make(kind)
