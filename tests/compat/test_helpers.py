"""Samplers, vectors and small helpers of the stand-in do what pylance's do."""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import lance as theirs
import numpy as np
import pyarrow as pa
import pytest

import spark_lance.compat.lance as ours

# Pylance says so of one of them.
pytestmark = pytest.mark.filterwarnings("ignore:ShardedBatchIterator is deprecated")
LIBRARIES = pytest.mark.parametrize("lance", [ours, theirs], ids=["ours", "pylance"])
VECTORS = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32)


def part_of(lance: Any, name: str) -> Any:
    return importlib.import_module(f"{lance.__name__}.{name}")


def numbers(lance: Any, path: Path, rows: int = 100, fragments: int = 4) -> Any:
    """Return a dataset of the numbers below `rows`, in fragments of one length."""
    return lance.write_dataset(
        pa.table({"n": range(rows), "s": [str(n) for n in range(rows)]}),
        path,
        max_rows_per_file=rows // fragments,
    )


def flat(lists: list[list[Any]]) -> list[Any]:
    return [item for items in lists for item in items]


def read(batches: Any, name: str = "n") -> list[list[Any]]:
    return [batch[name].to_pylist() for batch in batches]


def test_vectors_become_tables() -> None:
    vec_to_table = part_of(ours, "vector").vec_to_table
    by_id = vec_to_table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert by_id.to_pydict() == {"id": ["a", "b"], "vector": [[1.0, 2.0], [3.0, 4.0]]}
    for given in (VECTORS, list(VECTORS), VECTORS.tolist()):
        result = vec_to_table(given, names="v", ndim=4)
        assert result.schema == pa.schema([("v", pa.list_(pa.float32(), 4))])
        assert np.array_equal(result["v"].combine_chunks().flatten().to_numpy(), VECTORS.reshape(-1))
    named = vec_to_table({7: [0.5]}, names=["key", "value"])
    assert named.to_pydict() == {"key": [7], "value": [[0.5]]}
    for data, names in (([[1.0], [1.0, 2.0]], None), ({1: [1.0]}, ["one"]), ([[1.0]], ["one", "two"])):
        with pytest.raises(ValueError):
            vec_to_table(data, names=names)


@LIBRARIES
def test_times(lance: Any) -> None:
    util = part_of(lance, "util")
    moment = datetime(2024, 2, 29, 12, 30)
    assert util.sanitize_ts(moment) == moment
    assert util.sanitize_ts("2024-02-29 12:30:00").replace(tzinfo=None) == moment
    with pytest.raises(TypeError):
        util.sanitize_ts(5)
    assert part_of(ours, "util").sanitize_ts(date(2024, 2, 29)) == datetime(2024, 2, 29)
    assert util.td_to_micros(timedelta(days=1, microseconds=3)) == 86_400_000_003


@LIBRARIES
def test_indices_are_checked_by_searching_for_their_own_vectors(lance: Any, tmp_path: Path) -> None:
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 4)})
    dataset = lance.write_dataset(table, tmp_path / "t")
    check = part_of(lance, "util").validate_vector_index
    check(dataset, "v")
    check(dataset, "v", sample_size=10)
    with pytest.raises(ValueError, match="sanity check"):
        check(dataset, "v", pass_threshold=1.5)


@LIBRARIES
def test_samplers_share_rows_among_ranks(lance: Any, tmp_path: Path) -> None:
    dataset, sampler = numbers(lance, tmp_path / "t"), part_of(lance, "sampler")
    everything = [
        batch
        for rank in range(3)
        for batch in read(sampler.ShardedBatchSampler(rank, 3)(dataset, batch_size=10))
    ]
    assert sorted(flat(everything)) == list(range(100))
    assert all(len(batch) == 10 for batch in everything)
    assert read(sampler.ShardedBatchSampler(1, 3)(dataset, batch_size=10))[:2] == [
        list(range(10, 20)),
        list(range(40, 50)),
    ]
    shuffled = sampler.ShardedBatchSampler(0, 1, randomize=True, seed=5)
    first = read(shuffled(dataset, batch_size=10))
    shuffled.set_epoch(1)
    second = read(shuffled(dataset, batch_size=10))
    assert lance is theirs or first != second
    assert sorted(first) == sorted(second)
    filtered = [
        read(sampler.ShardedBatchSampler(rank, 2)(dataset, batch_size=7, filter="n % 3 = 0"))
        for rank in (0, 1)
    ]
    assert sorted(flat(flat(filtered))) == list(range(0, 100, 3))
    by_fragment = read(sampler.ShardedFragmentSampler(1, 2)(dataset, batch_size=25, columns=["n"]))
    assert by_fragment == [list(range(25, 50)), list(range(75, 100))]
    whole = read(sampler.FullScanSampler()(dataset, batch_size=25, filter="n < 30"))
    assert flat(whole) == list(range(30))


@LIBRARIES
def test_fixed_batches_are_lists_of_row_numbers(lance: Any) -> None:
    kind = part_of(lance, "sampler").ShardedFixedBatchSampler
    shares = [list(kind(rank, 2, batch_size=7, total_num_rows=40)) for rank in range(2)]
    assert sorted(flat(flat(shares))) == list(range(40))
    assert [len(kind(rank, 2, batch_size=7, total_num_rows=40)) for rank in range(2)] == [
        len(s) for s in shares
    ]


@LIBRARIES
@pytest.mark.parametrize(("n", "takes"), [(6, 2048), (6, 2), (5, 4)])
def test_every_row_can_be_chosen(lance: Any, tmp_path: Path, n: int, takes: int) -> None:
    dataset, sampler = numbers(lance, tmp_path / "t", 7), part_of(lance, "sampler")
    if lance is theirs and n > takes:
        return  # Pylance's runs never have the last row, and it returns fewer rows than n.
    counts = np.zeros(7, np.int64)
    for _ in range(60):
        rows = flat(read(sampler.maybe_sample(dataset, n, "n", max_takes=takes)))
        assert len(set(rows)) == len(rows) == n
        counts[rows] += 1
    assert counts.min() > 60 * n / 7 / 3


@LIBRARIES
def test_rows_at_random(lance: Any, tmp_path: Path) -> None:
    dataset, sampler = numbers(lance, tmp_path / "t", 1000), part_of(lance, "sampler")
    for n, takes in ((10, 2048), (300, 20), (5000, 2048)):
        result = flat(read(sampler.maybe_sample(dataset, n, "n", batch_size=64, max_takes=takes)))
        assert len(result) == len(set(result)) == min(n, 1000)
    if lance is ours:  # Pylance's runs the filter over no rows that it has read.
        late = flat(read(sampler.maybe_sample(dataset, 50, ["n"], filt="n > 500")))
        assert len(set(late)) == 50
        assert all(n > 500 for n in late)
    chosen = sampler.reservoir_sampling(iter(range(500)), 20)
    assert len(set(chosen)) == 20
    assert sorted(sampler.reservoir_sampling(iter(range(3)), 20)) == [0, 1, 2]


@LIBRARIES
def test_batches_of_one_rank(lance: Any, tmp_path: Path) -> None:
    numbers(lance, tmp_path / "t")
    kind = part_of(lance, "_dataset.sharded_batch_iterator").ShardedBatchIterator
    for granularity in ("fragment", "batch"):
        shares = [
            read(kind(str(tmp_path / "t"), rank, 2, batch_size=10, granularity=granularity))
            for rank in (0, 1)
        ]
        assert sorted(flat(flat(shares))) == list(range(100))
    (batch, *_) = kind(str(tmp_path / "t"), 0, 2, columns=["s"], with_row_id=True)
    assert batch.schema.names == ["s", "_rowid"]


@LIBRARIES
def test_values_of_bytes_as_files(lance: Any) -> None:
    column = part_of(lance, "blob").BlobColumn(
        pa.chunked_array([pa.array([b"abc", None], pa.large_binary())])
    )
    first, second = column
    assert isinstance(first, io.IOBase)
    assert first.read() == b"abc"
    assert second is None or (lance is theirs and second.read() == b"")
    for wrong in ([b"abc"], pa.array(["abc"])):
        with pytest.raises(ValueError):
            part_of(lance, "blob").BlobColumn(wrong)


@LIBRARIES
def test_logs_go_to_a_file(lance: Any, tmp_path: Path) -> None:
    log = part_of(lance, "log")
    log.set_logger(str(tmp_path / "log"), name=f"test of {lance.__name__}", level=logging.DEBUG)
    logger = logging.getLogger(f"test of {lance.__name__}")
    logger.debug("a line")
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)
    assert "a line" in (tmp_path / "log").read_text()
    assert log.LOGGER.name == logger.name or log.LOGGER.name == "pylance"


@pytest.mark.parametrize(("said", "level"), [("", "INFO"), ("debug", "DEBUG"), ("lance=trace,warn", "WARN")])
def test_the_level_of_logs_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, said: str, level: str
) -> None:
    monkeypatch.setenv("LANCE_LOG", said)
    assert part_of(ours, "log").get_log_level() == level


@LIBRARIES
def test_what_is_stored_is_told_as_text(lance: Any, tmp_path: Path) -> None:
    dataset, debug = numbers(lance, tmp_path / "t"), part_of(lance, "debug")
    dataset.delete("n = 3")
    schema, manifest = debug.format_schema(dataset), debug.format_manifest(dataset)
    assert schema.startswith("Schema {")
    assert all(f'name: "{name}"' in schema and f'name: "{name}"' in manifest for name in ("n", "s"))
    assert "version: 2," in manifest
    fragment = debug.format_fragment(dataset.get_fragments()[1].metadata, dataset)
    assert "id: 1," in fragment
    assert "25" in fragment
    newest, oldest = debug.list_transactions(dataset)
    assert "Delete" in newest
    assert "Overwrite" in oldest or "Create" in oldest
    assert len(debug.list_transactions(dataset, max_transactions=1)) == 1


def test_the_modules_have_the_names_of_pylances() -> None:
    for module, names in {
        "commit": ["CommitConflictError"],
        "types": ["ReaderLike"],
        "dependencies": ["_check_for_torch", "numpy", "pandas", "torch"],
    }.items():
        part_of(theirs, module)
        for name in names:
            assert hasattr(part_of(ours, module), name)
    assert part_of(ours, "dependencies").numpy.arange(3).tolist() == [0, 1, 2]
    assert issubclass(part_of(ours, "commit").CommitConflictError, Exception)


@LIBRARIES
def test_hooks_are_called_around_the_write_of_each_file(lance: Any, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    calls: list[tuple[str, int, int, int]] = []
    hooks: Any = part_of(lance, "progress").FragmentWriteProgress

    def files() -> int:
        return len(list(uri.glob("data/*.lance")))

    class Progress(hooks):  # type: ignore[misc]
        def begin(self, fragment: Any, **_: Any) -> None:
            calls.append(("begin", fragment.id, fragment.physical_rows or 0, files()))

        def complete(self, fragment: Any, **_: Any) -> None:
            assert (uri / "data" / fragment.files[0].path).exists()
            calls.append(("complete", fragment.id, fragment.physical_rows, files()))

    data = pa.table({"n": range(10)})
    part_of(lance, "fragment").LanceFragment.create(str(uri), data, 7, progress=Progress())
    # The beginning of a file may create an empty file.
    assert [call[:3] for call in calls] == [("begin", 7, 0), ("complete", 7, 10)]
    expected = [
        ("begin", 0, 0), ("complete", 0, 4), ("begin", 0, 0), ("complete", 0, 4), ("begin", 0, 0),
        ("complete", 0, 2),
    ]  # fmt: skip
    writes: list[Callable[[], Any]] = [
        lambda: part_of(lance, "fragment").write_fragments(
            data, str(uri), mode="create", max_rows_per_file=4, progress=Progress()
        ),
        lambda: lance.write_dataset(data, str(uri), max_rows_per_file=4, progress=Progress()),
    ]
    for write in writes:
        calls.clear()
        before = files()
        write()
        # Pylance does not call the hook at the end of the last file.
        assert [call[:3] for call in calls] == (expected if lance is ours else expected[:-1])
        if lance is ours:
            assert [call[3] - before for call in calls if call[0] == "complete"] == [1, 2, 3]
    with pytest.raises(TypeError, match="external_blob_mode"):
        part_of(lance, "fragment").LanceFragment.create(str(uri), data, external_blob_mode="ingest")
    with pytest.raises(TypeError, match="max_row_per_file"):
        part_of(lance, "fragment").write_fragments(data, str(uri), max_row_per_file=4)


def test_a_hook_that_fails_leaves_no_files(tmp_path: Path) -> None:
    class Progress(ours.progress.FragmentWriteProgress):
        def begin(self, fragment: Any, **_: Any) -> None:
            pass

        def complete(self, fragment: Any, **_: Any) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        ours.fragment.write_fragments(
            pa.table({"n": range(10)}), str(tmp_path), mode="create", max_rows_per_file=4, progress=Progress()
        )
    assert not list(tmp_path.glob("data/*.lance"))
