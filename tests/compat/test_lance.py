"""Scripts for pylance on the stand-in: what they call, what comes back, what moves."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import lance as theirs
import numpy as np
import pyarrow as pa
import pytest

import spark_lance.compat.lance as ours
from spark_lance.compat.lance import query
from spark_lance.compat.lance.util import sanitize_ts
from tests.conftest import ROOT

LIBRARIES = pytest.mark.parametrize("lance", [ours, theirs], ids=["ours", "pylance"])


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"a": np.arange(start, stop), "b": [f"row {i}" for i in range(start, stop)]})


@LIBRARIES
def test_a_script_gets_the_same_answers(lance: Any, tmp_path: Path) -> None:
    ds = lance.write_dataset(rows(0, 10), tmp_path / "t", max_rows_per_file=5)
    assert ds.insert(rows(10, 12)) is None
    assert ds.version == 2
    assert ds.delete("a = 1 or a = 6") == {"num_deleted_rows": 2}
    assert ds.update({"b": "'new'"}, where="a < 3") == {"num_rows_updated": 2}
    merged = (
        ds.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows(11, 14))
    )
    assert merged == {"num_inserted_rows": 2, "num_updated_rows": 1, "num_deleted_rows": 0}
    assert ds.add_columns({"c": "a * 2"}) is None
    assert ds.create_scalar_index("a", "BTREE") is None
    assert ds.has_index
    assert (len(ds), ds.count_rows("c > 20")) == (12, 3)
    assert ds.to_table({"d": "a + c"}, filter="a > 10", order_by=["a"])["d"].to_pylist() == [33, 36, 39]
    assert [version["version"] for version in ds.versions()] == list(range(1, ds.version + 1))
    old = ds.checkout_version(1)
    assert (old.version, old.count_rows(), ds.version) == (1, 10, 7)
    old.restore()
    assert (old.version, old.count_rows()) == (8, 10)
    ds.checkout_latest()
    assert ds.version == 8
    metrics = ds.optimize.compact_files()
    assert (metrics.fragments_removed, metrics.fragments_added) == (2, 1)
    assert len(ds.get_fragments()) == 1
    ds.tags.create("best", 1)
    ds.tags.create("main", 1)
    assert {tag: ds.tags.list()[tag]["version"] for tag in ("best", "main")} == {"best": 1, "main": 1}
    assert ds.stats.dataset_stats()["num_fragments"] == 1


@LIBRARIES
def test_files_are_made_here_and_committed_there(lance: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    texts = [json.dumps(lance.fragment.LanceFragment.create(uri, rows(i, i + 3)).to_json()) for i in (0, 3)]
    fragments = [lance.FragmentMetadata.from_json(text) for text in texts]
    ds = lance.LanceDataset.commit(uri, lance.LanceOperation.Overwrite(rows(0, 1).schema, fragments))
    assert ds.to_table().equals(rows(0, 6))
    more = lance.fragment.write_fragments(rows(6, 8), ds)
    ds = lance.LanceDataset.commit(ds, lance.LanceOperation.Append(more), read_version=1, commit_message="m")
    assert ds.read_transaction(2).transaction_properties["__lance_commit_message"] == "m"
    fragment, schema = ds.get_fragment(0).merge_columns({"c": "a + 1"})
    others = [each.merge_columns({"c": "a + 1"})[0] for each in ds.get_fragments()[1:]]
    ds = lance.LanceDataset.commit(
        ds, lance.LanceOperation.Merge([fragment, *others], schema), read_version=2
    )
    assert ds.to_table(["c"])["c"].to_pylist() == list(range(1, 9))
    left = ds.get_fragment(0).delete("a = 1")
    ds = lance.LanceDataset.commit(ds, lance.LanceOperation.Delete([left], [], "a = 1"), read_version=3)
    assert ds.count_rows() == 7
    update = pa.table({"_rowid": pa.array([0], pa.uint64()), "b": ["changed"]})
    changed, fields = ds.get_fragment(0).update_columns(update)
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    ds = lance.LanceDataset.commit(ds, operation, read_version=4)
    assert ds.to_table(["b"])["b"].to_pylist()[:2] == ["changed", "row 2"]
    ds.validate()


def test_each_reads_what_the_other_committed_by_parts(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    created = ours.fragment.write_fragments(rows(0, 4), uri, max_rows_per_file=2)
    assert isinstance(created, list)
    as_theirs = [
        theirs.FragmentMetadata.from_json(json.dumps(each.to_json() | {"overlays": []})) for each in created
    ]
    theirs.LanceDataset.commit(uri, theirs.LanceOperation.Overwrite(rows(0, 1).schema, as_theirs))
    written = [each.metadata.to_json() for each in theirs.dataset(uri).get_fragments()]
    assert [ours.FragmentMetadata.from_json(json.dumps(each)).num_rows for each in written] == [2, 2]
    transaction = ours.dataset(uri).read_transaction(1)
    assert transaction is not None
    assert isinstance(transaction.operation, ours.LanceOperation.Overwrite)


QUERIES: list[Callable[[Any], Any]] = [
    lambda q: q.MatchQuery("quick fox", "t"),
    lambda q: q.MatchQuery("quick fox", "t", operator=q.FullTextOperator.AND, boost=2.0),
    lambda q: q.MatchQuery("quik", "t", fuzziness=1),
    lambda q: q.MatchQuery("quikc fxo", "t", fuzziness=2, prefix_length=1),
    lambda q: q.PhraseQuery("quick fox", "t"),
    lambda q: q.PhraseQuery("quick fox", "t", slop=1),
    lambda q: q.MultiMatchQuery("quick", ["t", "u"], boosts=[1.0, 3.0]),
    lambda q: q.BooleanQuery(
        [(q.Occur.MUST, q.MatchQuery("fox", "t")), (q.Occur.MUST_NOT, q.MatchQuery("brown", "t"))]
    ),
    lambda q: q.MatchQuery("fox", "t") | q.MatchQuery("dog", "t"),
    lambda q: q.MatchQuery("fox", "t") & q.MatchQuery("brown", "t"),
    lambda q: q.BoostQuery(q.MatchQuery("fox", "t"), q.MatchQuery("brown", "t"), negative_boost=0.3),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("texts") / "t")
    table = pa.table(
        {
            "t": ["the quick brown fox", "quick fox", "lazy brown dog", "foxes run", "quack", None],
            "u": ["x", "fox", "y", "z", "quick", "q"],
        }
    )
    ds = ours.write_dataset(table, uri, max_rows_per_file=3)
    ds.create_scalar_index("t", "INVERTED", with_position=True)
    ds.create_scalar_index("u", "INVERTED")
    return uri


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_text_queries_find_and_score_as_pylance_does(texts: str, number: int) -> None:
    make = QUERIES[number]
    result = ours.dataset(texts).to_table(full_text_query=make(query)).to_pylist()
    expected = theirs.dataset(texts).to_table(full_text_query=make(theirs.query)).to_pylist()
    scores = {row["t"]: row["_score"] for row in result}
    assert scores == pytest.approx({row["t"]: row["_score"] for row in expected}, abs=1e-5)
    assert [row["_score"] for row in result] == sorted(scores.values(), reverse=True)


def test_pickles_and_copies_are_of_one_version(tmp_path: Path) -> None:
    ds = ours.write_dataset(rows(0, 3), tmp_path / "t")
    copy = pickle.loads(pickle.dumps(ds))
    ds.insert(rows(3, 4))
    assert (copy.version, copy.count_rows(), ds.count_rows()) == (1, 3, 4)
    fragment = pickle.loads(pickle.dumps(ds.get_fragments()[1]))
    assert fragment.count_rows() == 1


def test_importing_lance_can_mean_the_stand_in() -> None:
    program = (
        "from spark_lance.compat import install; install(); import lance, lance.dataset, lance.query as q\n"
        "from lance.fragment import write_fragments\n"
        "import spark_lance.compat.lance as ours\n"
        "assert lance is ours and q.MatchQuery and callable(lance.dataset), lance.dataset\n"
        "import sys; assert 'compat' in sys.modules['lance.dataset'].__file__"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_installing_is_refused_where_lance_is_loaded() -> None:
    program = "import lance; from spark_lance.compat import install; install()"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "call install() before anything imports it" in process.stderr


def test_a_search_of_some_segments_finds_their_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="index_segments is for vector searches"):
        ours.write_dataset(rows(0, 3), tmp_path / "rows").to_table(index_segments=["5a8b"])
    vectors = np.random.default_rng(5).random((200, 4)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4)
    table = pa.table({"id": range(200), "v": column})
    ds: Any = ours.write_dataset(table.slice(0, 100), tmp_path / "t")
    ds.create_index("v", "IVF_FLAT", num_partitions=2, name="i")
    ds = ours.write_dataset(table.slice(100, 50), tmp_path / "t", mode="append")
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    ds = ours.write_dataset(table.slice(150), tmp_path / "t", mode="append")
    (index,) = ds.describe_indices()
    assert index.field_names == ["v"]
    segments = sorted(index.segments, key=lambda segment: min(segment.fragment_ids))
    nearest = {"column": "v", "q": vectors[0], "k": 200, "nprobes": 2}
    for scope, ids in (
        ({"index_segments": [segments[0].uuid]}, range(100)),
        ({"index_segments": [str(segments[1].uuid)]}, range(100, 150)),
        ({"index_segments": [segment.uuid for segment in segments]}, range(150)),
    ):
        for dataset in (ds, theirs.dataset(str(tmp_path / "t"))):
            answer = dataset.scanner(["id"], nearest=nearest, **scope).to_table()
            assert sorted(answer["id"].to_pylist()) == list(ids)
    assert "index=i" in ds.scanner(nearest=nearest).explain_plan()


def test_words_without_a_column_are_searched_in_all_indexed_columns(tmp_path: Path) -> None:
    table = pa.table(
        {"a": ["cat", "dog", "fox"], "outer": [{"leaf": "dog"}, {"leaf": "owl"}, {"leaf": "cat"}]}
    )
    ds: Any = ours.write_dataset(table, tmp_path / "t")
    ds.create_scalar_index("a", "INVERTED")
    ds.create_scalar_index("outer.leaf", "INVERTED")
    for dataset in (ds, theirs.dataset(str(tmp_path / "t"))):
        assert dataset.to_table(["a"], full_text_query="dog")["a"].to_pylist() in (
            ["dog", "cat"],
            ["cat", "dog"],
        )
        assert dataset.count_rows("outer.leaf = 'owl'") == 1


def test_sql_with_a_condition_is_a_scan(tmp_path: Path) -> None:
    ds: Any = ours.write_dataset(rows(0, 10), tmp_path / "t")
    name = ds.schema.names[0]
    ds.create_scalar_index(name, "BTREE")
    for text in (
        f"SELECT * FROM dataset WHERE {name} > 6",
        f"SELECT {name} FROM dataset WHERE {name} > 6 LIMIT 3",
    ):
        batches = ds.sql(text).build().to_batch_records()
        assert pa.Table.from_batches(batches)[name].to_pylist() == [7, 8, 9]
    plan = ds.sql(f"EXPLAIN ANALYZE SELECT * FROM dataset WHERE {name} > 6").build().to_batch_records()
    assert f"{name}_idx" in plan[0]["plan"][0].as_py()


def test_times_of_versions_may_be_in_utc() -> None:
    assert sanitize_ts("2026-01-02T03:04:05Z").utcoffset() == timedelta(0)


def test_sessions_are_the_caches_of_the_process(tmp_path: Path) -> None:
    mine = ours.write_dataset({"id": range(2000)}, tmp_path / "t")
    other = ours.dataset(tmp_path / "t", session=ours.Session(index_cache_size_bytes=1 << 20))
    assert mine.session().is_same_as(other.session())
    mine.create_scalar_index("id", "BTREE")
    before = mine.session().size_bytes()
    assert mine.to_table(filter="id = 77").num_rows == 1
    assert other.session().size_bytes() == mine.session().size_bytes() > before > 0


def test_which_manifests_need_a_migration(tmp_path: Path) -> None:
    from spark_lance.compat.lance.lance import manifest_needs_migration

    table = ours.write_dataset({"id": range(10)}, tmp_path / "t")
    table.delete("id = 3")
    assert not manifest_needs_migration(table)
    table.value.manifest.message.fragments[0].physical_rows = 0
    assert manifest_needs_migration(table)


@LIBRARIES
def test_columns_that_are_null_everywhere_take_no_files(lance: Any, tmp_path: Path) -> None:
    ds = lance.write_dataset(rows(0, 10), tmp_path / "t", max_rows_per_file=5)
    before = [fragment.data_files() for fragment in ds.get_fragments()]
    ds.add_columns({"c": "cast(null as int)", "d": "cast(null as string)"})
    assert [fragment.data_files() for fragment in ds.get_fragments()] == before
    assert ds.schema.field("c").type == pa.int32()
    assert ds.to_table(["c", "d"]).to_pylist() == [{"c": None, "d": None}] * 10
    ds.add_columns({"e": "cast(null as int)", "f": "a + 1"})
    assert ds.to_table(["e", "f"]).to_pylist() == [{"e": None, "f": n + 1} for n in range(10)]


@LIBRARIES
def test_taken_columns_may_repeat(lance: Any, tmp_path: Path) -> None:
    ds = lance.write_dataset(rows(0, 10), tmp_path / "t")
    assert ds.take([3, 1], columns=["_rowid", "_rowid"]).column_names == ["_rowid", "_rowid"]
    assert ds.take([3, 1], columns=["a", "_rowaddr"])["a"].to_pylist() == [3, 1]


@LIBRARIES
def test_blobs_of_deleted_rows_are_refused(lance: Any, tmp_path: Path) -> None:
    blobs = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table([[1, 2], [b"x", b"y"]], pa.schema([pa.field("a", pa.int64()), blobs]))
    ds = lance.write_dataset(data, tmp_path / "t", data_storage_version="2.1")
    ids = ds.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist()
    ds.delete("a = 1")
    with pytest.raises(NotImplementedError, match="must not target deleted rows"):
        ds.take_blobs("b", ids=ids)


@LIBRARIES
def test_figures_of_vector_indices_have_the_same_names(lance: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).random((300, 32), np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 32)
    ds = lance.write_dataset(pa.table({"v": column}), tmp_path / "t")
    ds = ds.create_index("v", "IVF_PQ", num_partitions=2, num_sub_vectors=4, metric="cosine")
    (segment,) = ds.stats.index_stats("v_idx")["indices"]
    assert set(segment) == {
        *("centroids", "index_file_version", "index_type", "loss", "metric_type", "num_partitions"),
        *("partitions", "sub_index", "uri", "uuid"),
    }
    assert segment["uri"] == str(tmp_path / "t" / "_indices" / segment["uuid"] / "index.idx")
    assert segment["sub_index"] == {
        "dimension": 32,
        "index_type": "PQ",
        "metric_type": "l2",
        "nbits": 8,
        "num_sub_vectors": 4,
        "transposed": True,
    }


def test_options_and_tasks_of_compaction_are_importable(tmp_path: Path) -> None:
    """lance-ray imports both names, and plans with an object of the first."""
    from spark_lance.compat.lance.optimize import Compaction, CompactionOptions, CompactionTask

    dataset = ours.write_dataset(pa.table({"n": range(6)}), str(tmp_path / "t"), max_rows_per_file=2)
    options = CompactionOptions(target_rows_per_fragment=100)
    plan = Compaction.plan(dataset, options)
    assert all(isinstance(task, CompactionTask) for task in plan.tasks)
    planned = [fragment for task in plan.tasks for fragment in task.fragments]
    assert planned == [fragment.metadata for fragment in dataset.get_fragments()]
    Compaction.commit(dataset, [task.execute(dataset) for task in plan.tasks], options)
    assert len(ours.dataset(str(tmp_path / "t")).get_fragments()) == 1


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("planner", ["pylance", "compat"])
def test_pylance_and_this_package_exchange_compactions_as_json(
    tmp_path: Path, planner: str, stable: bool
) -> None:
    """Plans, tasks and results of one package are read, executed and committed by the other."""
    sides: list[Any] = [theirs, ours][:: 1 if planner == "pylance" else -1]
    path = str(tmp_path / "t")
    rows = pa.table({"n": range(10), "s": ["x"] * 10})
    theirs.write_dataset(rows, path, max_rows_per_file=3, enable_stable_row_ids=stable)
    theirs.dataset(path).create_scalar_index("n", "BTREE")
    theirs.dataset(path).delete("n = 4")
    first, second = (import_module(f"{side.__name__}.optimize") for side in sides)
    plan = first.Compaction.plan(sides[0].dataset(path), {"target_rows_per_fragment": 100})
    text = plan.json()
    again = second.CompactionPlan.from_json(text)
    before, after = json.loads(text), json.loads(again.json())
    assert before["options"].keys() ^ after["options"].keys() <= {"remap_indices"}
    assert before["tasks"] == after["tasks"]
    (task,) = (second.CompactionTask.from_json(task.json()) for task in plan.tasks)
    assert json.loads(task.json())["task"] == before["tasks"][0]
    assert [fragment.id for fragment in task.fragments] == [0, 1, 2, 3]
    result = first.RewriteResult.from_json(task.execute(sides[1].dataset(path)).json())
    metrics = first.Compaction.commit(sides[0].dataset(path), [result])
    assert (metrics.fragments_removed, metrics.files_removed, metrics.fragments_added) == (4, 5, 1)
    for side in sides:
        table = side.dataset(path)
        assert sorted(table.to_table()["n"].to_pylist()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert table.to_table(filter="n = 7")["n"].to_pylist() == [7]


def test_json_of_a_compaction_is_checked(tmp_path: Path) -> None:
    from spark_lance.compat.lance.optimize import Compaction, CompactionPlan, CompactionTask, RewriteResult

    for kind in (CompactionPlan, CompactionTask, RewriteResult):
        for text in ("", "{}", "[]"):
            with pytest.raises(ValueError, match=f"Could not load {kind.__name__} due to error"):
                kind.from_json(text)
    path = str(tmp_path / "t")
    dataset = ours.write_dataset(pa.table({"n": range(10)}), path, max_rows_per_file=3)
    (task,) = Compaction.plan(dataset, {"target_rows_per_fragment": 100}).tasks
    other = ours.write_dataset(pa.table({"n": range(9)}), path + "-other", max_rows_per_file=3)
    with pytest.raises(OSError, match="no fragment 0 with the task's files"):
        CompactionTask.from_json(task.json()).execute(other)
