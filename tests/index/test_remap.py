"""Compaction takes indices along: they still cover their rows, and both libraries find the same with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import LanceDataset, dataset, write_dataset
from spark_lance.datasets.maintain import Compaction
from spark_lance.errors import CommitOutcomeUnknownError, FormatError, RetryableConflictError
from spark_lance.index import remap as remap_module
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.table_ref import TableRef
from tests.index.vectors import clustered

ROWS, DIM = 900, 16
QUERY = clustered(1, DIM, seed=7)[0]
WORDS = ["red", "green", "blue", "sun", "moon", "tree", "river"]
# Kind -> column, condition, whether it follows its rows.
SCALARS: dict[str, tuple[str, str, bool]] = {
    "BTREE": ("n", "n >= 7 and n < 12", True),
    "BITMAP": ("b", "b = 3 or b is null", True),
    "LABEL_LIST": ("l", "array_has_any(l, [3, 5])", True),
    "NGRAM": ("t", "contains(t, 'moon')", True),
    "ZONEMAP": ("n", "n = 7", False),
    "BLOOMFILTER": ("n", "n = 7", False),
}
VECTORS = ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"]


@cache
def rows(count: int, first: int = 0) -> pa.Table:
    random = np.random.default_rng(first)
    vectors = clustered(count, DIM, seed=first)
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "n": pa.array([None if n == 30 else int(n) for n in random.integers(0, 31, count)], pa.int64()),
            "b": pa.array([None if n == 8 else int(n) for n in random.integers(0, 9, count)], pa.int64()),
            "t": [" ".join(random.choice(WORDS, n % 4)) if n % 7 else None for n in range(count)],
            "l": [None if n % 11 == 0 else random.integers(0, 9, n % 3).tolist() for n in range(count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
        }
    )


def made(path: Path, *, stable: bool = False, count: int = ROWS) -> None:
    lance.write_dataset(rows(count), str(path), max_rows_per_file=150, enable_stable_row_ids=stable)


def theirs(path: Path) -> Any:
    return lance.dataset(str(path))


def compacted(path: Path, **options: Any) -> LanceDataset:
    before = len(dataset(path).manifest.fragments)
    dataset(path).compact_files(**{"target_rows_per_fragment": 300, **options})
    after = dataset(path)
    assert len(after.manifest.fragments) < before
    return after


def uncovered(path: Path, name: str) -> int:
    return int(dataset(path).index_statistics(name)["num_unindexed_rows"])


def check_filter(path: Path, condition: str, *, used: bool = True) -> None:
    table = theirs(path)
    exact = sorted(table.to_table(columns=["id"], filter=condition, use_scalar_index=False)["id"].to_pylist())
    assert exact
    assert sorted(table.to_table(columns=["id"], filter=condition)["id"].to_pylist()) == exact
    assert sorted(dataset(path).to_table(["id"], condition)["id"].to_pylist()) == exact
    plan = table.scanner(columns=["id"], filter=condition).explain_plan(True)
    assert ("ScalarIndex" in plan) == used


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("builder", ["ours", "pylance"])
@pytest.mark.parametrize("kind", SCALARS)
def test_scalar_indices_follow_their_rows(kind: str, builder: str, stable: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    column, condition, follows = SCALARS[kind]
    made(path, stable=stable)
    if builder == "ours":
        dataset(path).create_scalar_index(column, kind, "i")
    else:
        theirs(path).create_scalar_index(column, kind, name="i")
    dataset(path).delete("id % 3 = 0")
    compacted(path)
    assert uncovered(path, "i") == (0 if follows else 600)
    check_filter(path, condition, used=follows)
    # Again, by the other library, and then more rows.
    theirs(path).delete("id % 3 = 1")
    theirs(path).optimize.compact_files()
    check_filter(path, condition, used=follows)
    write_dataset(rows(100, 5000), path, mode="append")
    theirs(path).optimize.optimize_indices()
    assert uncovered(path, "i") == 0
    check_filter(path, condition)


def check_nearest(path: Path, kind: str, metric: str = "l2", *, stable: bool = False) -> None:
    nearest = {"column": "v", "q": QUERY, "k": 10, "nprobes": 3, "refine_factor": 30, "metric": metric}
    wide = {**nearest, "ef": 400} if "HNSW" in kind else nearest
    table = theirs(path)
    exact = table.to_table(columns=["id", "_distance"], nearest={**nearest, "use_index": False})
    result = table.to_table(columns=["id", "_distance"], nearest=wide)
    assert result["id"].to_pylist() == exact["id"].to_pylist()
    assert "ANN" in table.scanner(columns=["id", "_distance"], nearest=wide).explain_plan(True)
    assert dataset(path).to_table(["id"], nearest=wide)["id"].to_pylist() == exact["id"].to_pylist()
    if stable:
        # The files keep rows that are gone, and pylance counts them among the k.
        return
    # Rows that are gone take nobody's place.
    everything = {"column": "v", "q": QUERY, "k": table.count_rows(), "nprobes": 3, "metric": metric}
    if "HNSW" in kind:
        everything["ef"] = 2 * ROWS
    assert table.to_table(columns=["id", "_distance"], nearest=everything).num_rows == table.count_rows()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize(("builder", "metric"), [("ours", "l2"), ("pylance", "l2"), ("ours", "dot")])
def test_vector_indices_follow_their_rows(kind: str, metric: str, builder: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path)
    options: dict[str, Any] = {"num_partitions": 3, "metric": metric}
    if "PQ" in kind:
        options["num_sub_vectors"] = 8
    if builder == "ours":
        dataset(path).create_index("v", kind, "i", **options)
    else:
        theirs(path).create_index("v", kind, name="i", **options)
    compacted(path, target_rows_per_fragment=200)
    assert uncovered(path, "i") == 0
    dataset(path).delete("id % 3 = 0")
    compacted(path)
    assert uncovered(path, "i") == 0
    check_nearest(path, kind, metric)
    theirs(path).delete("id % 3 = 1")
    theirs(path).optimize.compact_files()
    check_nearest(path, kind, metric)
    write_dataset(rows(100, 5000), path, mode="append")
    theirs(path).optimize.optimize_indices()
    assert uncovered(path, "i") == 0
    check_nearest(path, kind, metric)


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_SQ"])
def test_vector_indices_of_row_ids_keep_their_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path, stable=True)
    table = dataset(path).create_index("v", kind, "i", num_partitions=3, num_sub_vectors=8)
    files = [entry.uuid.uuid for entry in table.manifest.indices]
    table.delete("id % 3 = 0")
    assert [entry.uuid.uuid for entry in compacted(path).manifest.indices] == files
    assert uncovered(path, "i") == 0
    check_nearest(path, kind, stable=True)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("builder", ["ours", "pylance"])
@pytest.mark.parametrize("deleted", ["id % 3 = 0", None], ids=["deleted", "whole"])
def test_text_indices_follow_their_rows(
    deleted: str | None, builder: str, stable: bool, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    made(path, stable=stable)
    options: dict[str, Any] = {"stem": False, "remove_stop_words": False}
    if builder == "ours":
        dataset(path).create_scalar_index("t", "INVERTED", "i", **options)
    else:
        theirs(path).create_scalar_index("t", "INVERTED", name="i", **options)
    if deleted:
        dataset(path).delete(deleted)
    compacted(path)
    assert uncovered(path, "i") == 0
    check_text(path, stable=stable)
    theirs(path).delete("id % 3 = 1")
    theirs(path).optimize.compact_files()
    check_text(path, stable=stable)
    write_dataset(rows(100, 5000), path, mode="append")
    theirs(path).optimize.optimize_indices()
    assert uncovered(path, "i") == 0
    check_text(path, stable=stable)


def check_text(path: Path, *, stable: bool = False) -> None:
    table = theirs(path)
    texts = table.to_table(columns=["id", "t"]).to_pylist()
    exact = sorted(row["id"] for row in texts if {"sun", "moon"} & set((row["t"] or "").split()))
    result = table.to_table(columns=["id", "_score"], full_text_query="sun moon")
    assert sorted(result["id"].to_pylist()) == exact
    ours = dataset(path).to_table(["id"], full_text_query="sun moon")
    assert sorted(ours["id"].to_pylist()) == exact
    # Rows that are gone take nobody's place among the best.
    best = table.to_table(columns=["id", "_score"], full_text_query="sun moon", limit=20)
    assert stable or best.num_rows == 20


def test_positions_of_words_survive(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path)
    theirs(path).create_scalar_index("t", "INVERTED", name="i", with_position=True, stem=False)
    compacted(path)
    dataset(path).delete("id % 3 = 0")
    compacted(path)
    assert uncovered(path, "i") == 0
    check_text(path)


def test_the_long_tails_of_posting_lists_survive(tmp_path: Path) -> None:
    """Lists of several blocks, and large steps between documents."""
    path = tmp_path / "t"
    rare = ["rare " * (n % 200) if n % 97 == 0 else "" for n in range(3000)]
    texts = [f"{'often ' if n % 2 else ''}{rare[n]}word" for n in range(3000)]
    lance.write_dataset(pa.table({"id": np.arange(3000), "t": texts}), str(path), max_rows_per_file=800)
    theirs(path).create_scalar_index("t", "INVERTED", name="i", stem=False)
    dataset(path).delete("id % 5 = 1")
    compacted(path, target_rows_per_fragment=5000)
    assert uncovered(path, "i") == 0
    for word in ("often", "rare", "word"):
        exact = [n for n in range(3000) if n % 5 != 1 and word in texts[n].split()]
        result = theirs(path).to_table(columns=["id", "_score"], full_text_query=word)
        ours = dataset(path).to_table(["id"], full_text_query=word)
        assert sorted(result["id"].to_pylist()) == sorted(ours["id"].to_pylist()) == exact
        assert np.allclose(
            sorted(result["_score"].to_pylist()), sorted(ours["_score"].to_pylist()), rtol=1e-3
        )


def test_an_entry_keeps_what_it_says_of_the_index(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path)
    dataset(path).create_index("v", "IVF_SQ", "i", num_partitions=3)
    (old,) = dataset(path).manifest.indices
    write_dataset(rows(150, 2000), path, mode="append")
    after = compacted(path, excluded_fragment_ids=[0])
    (new,) = after.manifest.indices
    assert new.uuid.uuid != old.uuid.uuid
    for name in ("name", "fields", "dataset_version", "index_version", "index_details"):
        assert getattr(new, name) == getattr(old, name)
    store, root = after.store, after.root
    sizes = {f.path: f.size_bytes for f in new.files}
    folder = f"{root}/_indices/"
    results = {o.name: o.size for o in store.list_objects(folder, recursive=True) if str_uuid(new) in o.path}
    assert results == sizes
    # The fragment that is not indexed was not mixed with the others.
    assert uncovered(path, "i") == 150


def str_uuid(entry: Any) -> str:
    text = entry.uuid.uuid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def test_without_remapping_rows_are_no_longer_covered(tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("n", "BTREE", "i")
    compacted(path, remap_indices=False)
    assert uncovered(path, "i") == ROWS
    check_filter(path, SCALARS["BTREE"][1], used=False)


def test_rows_that_moved_before_are_followed(tmp_path: Path) -> None:
    """First a deferred compaction, whose moves are only recorded, then one that writes the indices."""
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("n", "BTREE", "i").create_index("v", "IVF_FLAT", "j", num_partitions=3)
    dataset(path).delete("id % 4 = 1")
    compacted(path, target_rows_per_fragment=200, defer_index_remap=True)
    dataset(path).delete("id % 4 = 2")
    compacted(path)
    assert uncovered(path, "i") == uncovered(path, "j") == 0
    check_filter(path, SCALARS["BTREE"][1])
    check_nearest(path, "IVF_FLAT")


def index_files(table: LanceDataset) -> set[str]:
    return {result.path for result in table.store.list_objects(f"{table.root}/_indices", recursive=True)}


def test_files_of_a_failed_attempt_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer replaces the index between our writing it anew and our commit."""
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("n", "BTREE", "i")
    commit = commit_operation
    seen: list[str] = []

    def disturbed(table: TableRef, operation: Any, **options: Any) -> Any:
        if operation.DESCRIPTOR.name == "Rewrite":
            seen.append("rewrite")
            if len(seen) == 1:
                dataset(path).create_scalar_index("n", "BTREE", "i")
        return commit(table, operation, **options)

    monkeypatch.setattr("spark_lance.table.maintenance.compact.commit_operation", disturbed)
    compacted(path)
    assert len(seen) == 2
    assert uncovered(path, "i") == 0
    check_filter(path, SCALARS["BTREE"][1])
    table = dataset(path)
    named = {
        str_uuid(entry)
        for v in table.versions()
        for entry in table.checkout_version(v["version"]).manifest.indices
    }
    assert {file.split("/_indices/")[1].split("/")[0] for file in index_files(table)} == named


def test_two_compactions_at_once_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write a segment anew, for other fragments; the later one begins with that of the earlier."""
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("n", "BTREE", "i")
    seen: list[str] = []

    def disturbed(table: TableRef, operation: Any, **options: Any) -> Any:
        if operation.DESCRIPTOR.name == "Rewrite":
            seen.append("rewrite")
            if len(seen) == 1:
                theirs(path).optimize.compact_files(excluded_fragment_ids=[0, 1, 2])
        return commit_operation(table, operation, **options)

    monkeypatch.setattr("spark_lance.table.maintenance.compact.commit_operation", disturbed)
    compacted(path, target_rows_per_fragment=600, excluded_fragment_ids=[3, 4, 5])
    assert len(seen) == 2
    assert len(dataset(path).manifest.fragments) == 2
    assert uncovered(path, "i") == 0
    check_filter(path, SCALARS["BTREE"][1])


@pytest.mark.parametrize("error", [CommitOutcomeUnknownError, RetryableConflictError])
def test_files_stay_if_nobody_knows_whether_the_commit_failed(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("n", "BTREE", "i")
    before = index_files(dataset(path))
    results = [task.execute() for task in Compaction.plan(dataset(path)).tasks]
    commit = commit_operation

    def failing(table: TableRef, operation: Any, **options: Any) -> Any:
        if operation.DESCRIPTOR.name == "Rewrite":
            raise error("so it is")
        return commit(table, operation, **options)

    monkeypatch.setattr("spark_lance.table.maintenance.compact.commit_operation", failing)
    with pytest.raises(error):
        Compaction.commit(dataset(path), results)
    assert (index_files(dataset(path)) == before) == (error is RetryableConflictError)


def test_a_damaged_index_stops_the_compaction_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    made(path)
    dataset(path).create_scalar_index("b", "BITMAP", "i").create_index("v", "IVF_SQ", "j", num_partitions=2)
    before = index_files(dataset(path))
    data = {file.name for file in (path / "data").iterdir()}

    def broken(*arguments: Any) -> Any:
        raise FormatError("broken")

    monkeypatch.setattr(remap_module, "remap_vectors", broken)
    with pytest.raises(FormatError, match="broken"):
        dataset(path).compact_files()
    assert index_files(dataset(path)) == before
    assert {file.name for file in (path / "data").iterdir()} == data
    dataset(path).compact_files(remap_indices=False)


STEPS = st.sampled_from(["append", "delete", "update", "compact", "compact deferred", "extend"])


@settings(max_examples=6, deadline=None)
@given(
    steps=st.lists(st.tuples(STEPS, st.booleans(), st.integers(2, 5)), min_size=3, max_size=7),
    stable=st.booleans(),
)
def test_histories_by_both_libraries(
    steps: list[tuple[str, bool, int]], stable: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("history") / "t"
    made(path, stable=stable, count=300)
    dataset(path).create_index("v", "IVF_FLAT", "i", num_partitions=3)
    dataset(path).create_scalar_index("n", "BTREE", "j")
    first = 1000
    for step, ours, number in steps:
        if step == "compact" and any(e.name == "__lance_frag_reuse" for e in dataset(path).manifest.indices):
            # Pylance forgets the rows of its own BTREE when it compacts after a deferred compaction.
            ours = True
        table = dataset(path) if ours else theirs(path)
        if step == "append":
            new = rows(40, first)
            write_dataset(new, path, mode="append") if ours else lance.write_dataset(
                new, str(path), mode="append"
            )
            first += 40
        elif step == "delete":
            table.delete(f"id % 7 = {number}")
        elif step == "update":
            table.update({"n": f"n + {number}"}, where=f"id % 5 = {number - 1}")
        elif step == "extend":
            table.optimize.optimize_indices()
        else:
            deferred = step.endswith("deferred") and not stable
            table.optimize.compact_files(
                target_rows_per_fragment=120 * number,
                materialize_deletions_threshold=0.05,
                defer_index_remap=deferred,
            )
        check_history(path, stable)
    dataset(path).compact_files()
    check_history(path, stable)


def check_history(path: Path, stable: bool) -> None:
    table = theirs(path)
    nearest = {"column": "v", "q": QUERY, "k": 25, "nprobes": 3}
    exact = table.to_table(columns=["id", "_distance"], nearest={**nearest, "use_index": False})
    if not stable:
        # With stable row ids pylance counts rows that are gone among the k.
        assert table.to_table(columns=["id", "_distance"], nearest=nearest)["id"] == exact["id"]
    assert dataset(path).to_table(["id"], nearest=nearest)["id"].to_pylist() == exact["id"].to_pylist()
    condition = SCALARS["BTREE"][1]
    expected = sorted(
        table.to_table(columns=["id"], filter=condition, use_scalar_index=False)["id"].to_pylist()
    )
    assert sorted(table.to_table(columns=["id"], filter=condition)["id"].to_pylist()) == expected
    assert sorted(dataset(path).to_table(["id"], condition)["id"].to_pylist()) == expected
