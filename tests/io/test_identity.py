"""Who a process is to a store: what a process keeps of a store is kept for one identity."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.io import cloud as cloud_stores
from spark_lance.io import store as store_module
from spark_lance.io.cache import CACHE
from spark_lance.io.identity import store_digest
from spark_lance.io.store import STORES, open_store
from spark_lance.table.reading import scan_task
from spark_lance.table.versions import versions

A, B = {"token": "first-token"}, {"token": "other-token"}
ROWS = 400


class CountedStore(MemoryFileSystem):  # type: ignore[misc]
    """A store that notes who has read what."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    reads: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self, *args: Any, token: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.token = token

    def cat_file(self, path: str, *args: Any, **options: Any) -> Any:
        CountedStore.reads[self.token, path.rpartition("/")[2]] += 1
        return super().cat_file(path, *args, **options)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "counted", CountedStore)
    monkeypatch.setattr(store_module, "STORES", {**STORES, "counted": STORES["memory"]})
    CountedStore.reads.clear()


def table() -> pa.Table:
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((ROWS, 8), np.float32).reshape(-1)
    return pa.table(
        {
            "n": pa.array(range(ROWS)),
            "kind": pa.array([f"k{number % 5}" for number in range(ROWS)]),
            "words": pa.array([f"word{number % 7} more{number}" for number in range(ROWS)]),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
        }
    )


def reads_of(owner: dict[str, str]) -> Counter[str]:
    return Counter(
        {name: count for (token, name), count in CountedStore.reads.items() if token == owner["token"]}
    )


def by_filter(condition: str) -> Any:
    return lambda found: found.to_table(filter=condition).num_rows


def by_vector(found: LanceDataset) -> int:
    return int(found.to_table(nearest={"column": "v", "q": np.zeros(8, np.float32), "k": 5}).num_rows)


INDICES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "BTREE": ("n", "BTREE", {}, by_filter("n > 5 AND n < 20")),
    "BITMAP": ("kind", "BITMAP", {}, by_filter("kind = 'k3'")),
    "ZONEMAP": ("n", "ZONEMAP", {}, by_filter("n = 7")),
    "BLOOMFILTER": ("n", "BLOOMFILTER", {}, by_filter("n = 7")),
    "NGRAM": ("words", "NGRAM", {}, by_filter("contains(words, 'word3')")),
    "INVERTED": ("words", "INVERTED", {}, lambda found: found.to_table(full_text_query="word3").num_rows),
    "IVF_PQ": ("v", "IVF_PQ", {"num_partitions": 2, "num_sub_vectors": 2}, by_vector),
    "IVF_HNSW_SQ": ("v", "IVF_HNSW_SQ", {"num_partitions": 2}, by_vector),
}


@pytest.mark.parametrize("kind", INDICES)
def test_an_index_that_one_user_has_read_is_read_again_for_another(kind: str) -> None:
    column, name, settings, ask = INDICES[kind]
    uri = f"counted://{kind}"
    ds = write_dataset(table(), uri, storage_options=A)
    if "IVF" in kind:
        ds.create_index(column, name, **settings)
    else:
        ds.create_scalar_index(column, name, **settings)
    CACHE.clear()
    CountedStore.reads.clear()
    answers = [ask(dataset(uri, storage_options=owner)) for owner in (A, B)]
    assert answers[0] == answers[1] > 0
    assert reads_of(A) == reads_of(B) != Counter()


def test_a_manifest_is_kept_for_those_who_have_read_it() -> None:
    first, path = open_store("counted://x/y", A)
    other, _ = open_store("counted://x/y", B)
    assert versions._key(first, path, "t") == versions._key(
        open_store("counted://x/y", dict(A))[0], path, "t"
    )
    assert versions._key(first, path, "t") != versions._key(other, path, "t")


def test_open_files_are_kept_for_one_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table on a disk may have base paths elsewhere, which the options of its store open."""
    results: list[bool] = []
    take = scan_task._OPEN_FRAGMENTS.take

    def noted(key: Any) -> Any:
        rows = take(key)
        results.append(rows is not None)
        return rows

    monkeypatch.setattr(scan_task._OPEN_FRAGMENTS, "take", noted)
    uri = str(tmp_path / "t")
    write_dataset(table(), uri).create_scalar_index("n", "BTREE")
    for options in (A, A, B):
        assert dataset(uri, storage_options=options).to_table(filter="n = 7").num_rows == 1
    assert results == [False, True, False]


def test_identities() -> None:
    assert store_digest("s3", {"key": "a"}) == store_digest("s3", {"key": "a"})
    different: list[dict[str, Any]] = [
        *(
            {"key": "a"},
            {"key": "b"},
            {"key": "ab"},
            {"k": "ea"},
            {},
            {"key": None},
            {"key": 1},
            {"key": True},
        ),
        *({"key": b"a"}, {"key": ["a"]}, {"key": {"a": 1}}, {"key": ["a", "b"]}, {"key": ["ab"]}),
        *({"endpoint_url": "http://a"}, {"endpoint_url": "http://b"}, {"key": object()}, {"key": object()}),
    ]
    assert len({store_digest("s3", options) for options in different}) == len(different)
    assert store_digest("s3", {}) != store_digest("gs", {})
    credential = object()
    assert isinstance(store_digest("az", {"credential": credential}), str)


def test_an_object_among_the_options_is_known_again() -> None:
    class Credential:
        pass

    first, other = Credential(), Credential()
    assert store_digest("az", {"credential": first}) == store_digest("az", {"credential": first})
    assert store_digest("az", {"credential": first}) != store_digest("az", {"credential": other})
    # Not even asked whether it equals another one.
    assert store_digest("az", {"credential": {1, 2}}) != store_digest("az", {"credential": {1, 2}})


def test_the_environment_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory")
    before, local = store_digest("s3", {}), store_digest("file", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone-else")
    assert store_digest("s3", {}) != before
    assert store_digest("file", {}) == local
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert store_digest("s3", {}) == before
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "x"})
    assert store_digest("s3", {}) != before


def test_a_digest_tells_nothing_and_stays_in_the_process() -> None:
    store, _ = open_store("counted://x", A)
    assert A["token"] not in store.identity
    copy = pickle.loads(pickle.dumps(store))
    assert store.identity.encode() not in pickle.dumps(store)
    assert copy == store
    assert copy.identity == store.identity


class CloudDriver(MemoryFileSystem):  # type: ignore[misc]
    """A driver in the place of S3's."""

    protocol = "s3"
    async_impl = True
    retries = 5
    made = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        CloudDriver.made += 1


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> type[CloudDriver]:
    monkeypatch.setattr(CloudDriver, "made", 0)
    CloudDriver.clear_instance_cache()
    monkeypatch.setattr(cloud_stores, "_INSTANCES", cloud_stores._Instances())
    monkeypatch.setitem(_registry, "s3", CloudDriver)
    return CloudDriver


def test_instances_of_others_stay_as_they_are(cloud: type[CloudDriver]) -> None:
    store, _ = open_store("s3://bucket/x", {"key": "a"})
    ours = store.fs
    theirs = fsspec.filesystem("s3", **ours.storage_options)
    assert ours.retries == 1
    assert theirs.retries == 5
    assert theirs is not ours
    assert store.fs is ours is open_store("s3://bucket/y", {"key": "a"})[0].fs
    assert open_store("s3://bucket/x", {"key": "b"})[0].fs is not ours


def test_instances_are_kept_up_to_a_number(cloud: type[CloudDriver]) -> None:
    for number in range(100):
        open_store("s3://bucket/x", {"key": "k", "token": str(number)})[0].fs  # noqa: B018
    assert len(cloud_stores._INSTANCES._entries) == cloud_stores.MAX_INSTANCES
    assert cloud.made == 100
    assert not cloud._cache


def test_threads_share_an_instance(cloud: type[CloudDriver]) -> None:
    seen: set[int] = set()
    store, _ = open_store("s3://bucket/x", {"key": "a"})
    threads = [threading.Thread(target=lambda: seen.add(id(store.fs))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
