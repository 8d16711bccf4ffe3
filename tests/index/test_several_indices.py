"""Several indices on one column: each search uses one of them, so nothing comes twice and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from spark_lance import dataset, write_dataset
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.operations.create_index import create_index_message

ROWS = 60
WORDS = ["fox", "dog", "cat", "bird"]


def rows(first: int = 0) -> pa.Table:
    numbers = np.arange(first, first + ROWS)
    vectors = np.random.default_rng(first).normal(size=(ROWS, 4)).astype(np.float32)
    return pa.table(
        {
            "id": numbers,
            "t": [f"{WORDS[n % 4]} {WORDS[n // 4 % 4]}" for n in numbers.tolist()],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
        }
    )


def table_of(path: Path, *, stable: bool = False) -> LanceDataset:
    return write_dataset(rows(), path, max_rows_per_file=20, enable_stable_row_ids=stable)


def ids(found: pa.Table) -> list[int]:
    return list(found["id"].to_pylist())


def having(word: str) -> set[int]:
    return {n for n, text in enumerate(rows()["t"].to_pylist()) if word in text.split()}


def warnings_of(path: Path) -> list[str]:
    table = dataset(path)
    findings = verify(table.snapshot).findings
    return [f"{finding.where} {finding.message}" for finding in findings if finding.level != "note"]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "pylance"])
def test_two_text_indices_give_every_row_once(tmp_path: Path, stable: bool, theirs: bool) -> None:
    table = table_of(tmp_path / "t", stable=stable)
    for name in ("one", "two"):
        if theirs:
            their_table: Any = lance.dataset(str(tmp_path / "t"))
            their_table.create_scalar_index("t", "INVERTED", name=name, replace=False)
        else:
            table = table.create_scalar_index("t", "INVERTED", name=name)
    table = dataset(tmp_path / "t")
    result = table.to_table(["id"], full_text_query="fox")
    assert len(ids(result)) == len(having("fox"))
    assert set(ids(result)) == having("fox")
    some = ids(table.to_table(["id"], full_text_query="fox", limit=10))
    assert len(set(some)) == len(some) == 10
    assert ids(table.to_table(["id"], full_text_query="fox", limit=5, offset=5)) == some[5:]
    both = {"query": "fox dog", "operator": "and", "phrase": True}
    assert len(ids(table.to_table(["id"], full_text_query=both))) == len(
        [text for text in rows()["t"].to_pylist() if text == "fox dog"]
    )
    assert warnings_of(tmp_path / "t") == [
        "column t has several Inverted indexes, and a search uses one of them: drop all but one of one, two"
    ]


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_text_index_that_is_first_in_the_manifest_answers(names: str, tmp_path: Path) -> None:
    first, second = tuple(names)
    table = table_of(tmp_path / "t")
    table = table.create_scalar_index("t", "INVERTED", name=first, lower_case=False)
    table = table.create_scalar_index("t", "INVERTED", name=second, lower_case=True)

    def found() -> set[int]:
        their_table: Any = lance.dataset(str(tmp_path / "t"))
        theirs = set(ids(their_table.to_table(["id"], full_text_query="FOX")))
        assert set(ids(dataset(tmp_path / "t").to_table(["id"], full_text_query="FOX"))) == theirs
        return theirs

    assert found() == set()
    table = table.drop_index(first)
    assert found() == having("fox")
    table.create_scalar_index("t", "INVERTED", name=first, lower_case=False)
    assert found() == having("fox")


def test_a_phrase_has_the_stop_words_that_the_first_index_has(tmp_path: Path) -> None:
    path = tmp_path / "t"
    texts = ["Frodo was a puppy", "Frodo was a happy puppy", "Frodo was a very happy puppy"]
    table = write_dataset({"id": [0, 1, 2], "t": texts}, path)
    table = table.create_scalar_index("t", "INVERTED", with_position=True, remove_stop_words=False)
    table.create_scalar_index("t", "INVERTED", name="without_stop_words", with_position=True)
    for one in (dataset(path), lance.dataset(str(path))):
        assert ids(one.to_table(["id"], full_text_query='"was a puppy"')) == [0]


def test_a_text_index_that_covers_nothing_gives_way_to_another(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t")
    table = table.create_scalar_index("t", "INVERTED", name="late")
    table = table.create_scalar_index("t", "INVERTED", name="whole")
    late, whole = table.manifest.indices
    late.fragment_bitmap = BitMap().serialize()
    for name in ("late", "whole"):
        table = table.drop_index(name)
    add_entry(table, late)
    add_entry(table, whole)
    request = {"query": "fox", "fast_search": True}
    assert set(ids(dataset(tmp_path / "t").to_table(["id"], full_text_query=request))) == having("fox")


def add_entry(table: LanceDataset, entry: Any) -> None:
    commit_operation(table.table, create_index_message([entry]), read_version=table.version)


def test_a_fragment_in_two_segments_counts_once(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t").create_scalar_index("t", "INVERTED", name="one")
    table = table.create_scalar_index("t", "INVERTED", name="two")
    second = next(entry for entry in table.manifest.indices if entry.name == "two")
    table = table.drop_index("two")
    second.name = "one"
    add_entry(table, second)
    result = dataset(tmp_path / "t").to_table(["id"], full_text_query="fox")
    assert sorted(ids(result)) == sorted(having("fox"))
    assert warnings_of(tmp_path / "t") == ["index one several segments cover fragments [0, 1, 2]"]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_vector_indices_of_one_and_of_two_metrics(tmp_path: Path, stable: bool) -> None:
    table = table_of(tmp_path / "t", stable=stable)
    for name, metric in (("a", "cosine"), ("b", "l2"), ("c", "l2")):
        table = table.create_index("v", "IVF_FLAT", name=name, metric=metric, num_partitions=2)
    request = rows()["v"].combine_chunks().flatten().to_numpy()[:4]
    for asked_metric in (None, "cosine", "l2", "dot"):
        query = {"column": "v", "q": request, "k": 50, "metric": asked_metric, "nprobes": 2}
        result = table.to_table(["id"], nearest=query)
        exact = table.to_table(
            ["id"], nearest={**query, "metric": asked_metric or "cosine", "use_index": False}
        )
        assert ids(result) == ids(exact)
        assert len(set(ids(result))) == 50
    assert warnings_of(tmp_path / "t") == [
        "column v has several L2 indexes, and a search uses one of them: drop all but one of b, c"
    ]


def test_the_newest_vector_index_of_the_metric_answers(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t").create_index("v", "IVF_FLAT", name="old", metric="l2", num_partitions=1)
    table = write_dataset(rows(ROWS), tmp_path / "t", mode="append")
    table = table.create_index("v", "IVF_FLAT", name="new", metric="l2", num_partitions=1)
    query = {"column": "v", "q": [0.0] * 4, "k": 2 * ROWS, "fast_search": True}
    assert sorted(ids(table.to_table(["id"], nearest=query))) == list(range(2 * ROWS))


@settings(max_examples=15)
@given(
    kinds=st.lists(st.sampled_from(["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"]), min_size=2, max_size=4),
    deleted=st.sets(st.integers(0, 2 * ROWS - 1), max_size=20),
    wanted=st.integers(0, 2 * ROWS - 1),
    data=st.data(),
)
def test_many_scalar_indices_keep_every_row(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    deleted: set[int],
    wanted: int,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("s") / "t"
    table = table_of(path, stable=data.draw(st.booleans()))
    late = data.draw(st.integers(0, len(kinds)))
    for place, kind in enumerate(kinds):
        if place == late:
            write_dataset(rows(ROWS), path, mode="append")
        their_table: Any = lance.dataset(str(path))
        their_table.create_scalar_index("id", kind, name=f"i{place}", replace=False)
    if late == len(kinds):
        write_dataset(rows(ROWS), path, mode="append")
    table = dataset(path)
    if deleted:
        table = table.delete(f"id in ({', '.join(map(str, deleted))})")
    if data.draw(st.booleans()):
        table.compact_files()
        table = dataset(path)
    left = set(range(2 * ROWS)) - deleted
    assert ids(table.to_table(["id"], f"id = {wanted}")) == [n for n in [wanted] if n in left]
    assert sorted(ids(table.to_table(["id"], f"id >= {wanted}"))) == sorted(n for n in left if n >= wanted)
