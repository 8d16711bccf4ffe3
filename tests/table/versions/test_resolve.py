"""Walks over versions read each manifest once, even if the manifests are too large for the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.io.cache import Cache, CacheSection
from spark_lance.table.versions import resolve
from spark_lance.table.versions import versions as versions_module
from spark_lance.table.versions.resolve import BranchReader


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that walks load, in order."""
    versions: list[int] = []
    load = versions_module.load_version

    def record(table: Any, version: int) -> Any:
        versions.append(version)
        return load(table, version)

    monkeypatch.setattr(resolve, "load_version", record)
    return versions


def walk_with_cache(path: Path, monkeypatch: pytest.MonkeyPatch, manifests: int) -> BranchReader:
    """Return a walk over eight versions, with a cache that has room for `manifests` of them."""
    for number in range(8):
        table = spark_lance.write_dataset(pa.table({"x": [number]}), path, "append" if number else "create")
    size = resolve._MEMORY_PER_BYTE * table.manifest.message.ByteSize() + 256
    section: CacheSection[Any] = CacheSection("walks", Cache(manifests * size + 10))
    monkeypatch.setattr(resolve, "_VERSIONS", section)
    return BranchReader(table.table)


@pytest.mark.parametrize("manifests", [0, 1, 3, 5, 20])
@pytest.mark.parametrize("descending", [False, True])
def test_each_version_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[int], manifests: int, descending: bool
) -> None:
    walk = walk_with_cache(tmp_path, monkeypatch, manifests)
    versions = list(range(2, 9))[:: -1 if descending else 1]
    walk.manifest(versions[0])
    for number, version in enumerate(versions):
        if number % 4 == 0:
            walk.prefetch(versions[number : number + 4])
        assert walk.manifest(version).version == version
        before = walk.before(version)
        assert before is not None
        assert before.version == version - 1
        assert walk.transaction(version).name == "append"
        assert len(walk._large) <= 2
    assert sorted(loaded) == list(range(1, 9))


def test_versions_that_do_not_fit_the_cache_are_not_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[int]
) -> None:
    walk = walk_with_cache(tmp_path, monkeypatch, 5)
    walk.manifest(8)
    walk.prefetch(range(1, 8))
    assert sorted(loaded) == [1, 2, 3, 8]
    resolve._VERSIONS._cache.resize(0)
    walk.prefetch(range(1, 8))
    assert len(loaded) == 4
