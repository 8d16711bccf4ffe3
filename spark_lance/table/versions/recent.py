"""A cache of manifests that this process has read or written recently, by their content.

An append reads the newest version when it is planned, when it is committed, and afterwards. Usually it is the
same, and often this process has written it. A manifest with the same bytes is not parsed again, and the facts
about its fragments (`Manifest.facts`) are not computed again: a table may have ten thousand fragments. If the
listings of a store have tags, an object with a cached path and tag is not even fetched. A tag identifies the
content (for S3 it is the entity tag). So the cache does not confuse a table with one that replaced it under
the same version numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from spark_lance.errors import FormatError
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.store import Store, StoredObject
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.paths import Naming

# The memory of a parsed manifest and its facts for each byte of its file, about.
_MEMORY_PER_BYTE = 6
_LARGEST = 4 << 20
# The key if a listing has no tag: the bytes are compared.
_BY_BYTES = ""

_Key = tuple[Hashable, str]

# The bytes of manifests, and the parsed manifests.
_RECENT: CacheSection[tuple[bytes, Manifest]] = CacheSection("manifests", CACHE, counted=False)


def read_recent(store: Store, path: str, naming: Naming, listed: StoredObject | None) -> Manifest:
    """Read a manifest from the store, unless its tag in a listing is in the cache.

    Args:
        listed: its entry in a listing, if there is one.

    Raises:
        FileNotFoundError, FormatError: see `read_manifest`.
    """
    if store.is_local:
        return _read_compared(store, path, naming)
    if listed is None:
        return read_manifest(store, path, naming)
    if listed.tag is None or listed.size > _LARGEST:
        return _read_listed(store, path, naming, listed)
    key = _key(store, path, listed.tag)
    entry = _RECENT.find(key)
    if entry is not None and entry[1].naming is naming:
        return entry[1]
    data = store.read(path)
    manifest = read_manifest(store, path, naming, data=data)
    if len(data) == listed.size:  # otherwise another object is there by now
        _put(key, data, manifest)
    return manifest


def _read_compared(store: Store, path: str, naming: Naming) -> Manifest:
    """Read a manifest without a tag: compare the bytes of its file with the cached ones."""
    size = store.size(path)
    if size > _LARGEST:
        return read_manifest(store, path, naming, size)
    data = store.read(path)
    key = _key(store, path, _BY_BYTES)
    entry = _RECENT.find(key)
    if entry is not None and entry[1].naming is naming and entry[0] == data:
        return entry[1]
    manifest = read_manifest(store, path, naming, data=data)
    _put(key, data, manifest)
    return manifest


def _read_listed(store: Store, path: str, naming: Naming, listed: StoredObject) -> Manifest:
    try:
        return read_manifest(store, path, naming, listed.size)
    except FormatError:
        # Another object may be there by now, of another size.
        return read_manifest(store, path, naming)


def remember(store: Store, path: str, data: bytes, manifest: Manifest) -> None:
    """Cache a manifest that was just written: its bytes, and the parsed manifest.

    If the store has tags, the expected tag is S3's for an object that is written in one request, the MD5 of
    its content. If the object has another tag, the manifest is read.
    """
    if store.is_local:
        _put(_key(store, path, _BY_BYTES), data, manifest)
    elif store.lists_tags:
        tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        _put(_key(store, path, tag), data, manifest)


def _put(key: _Key, data: bytes, manifest: Manifest) -> None:
    if len(data) <= _LARGEST:
        _RECENT.put(key, (data, manifest), _MEMORY_PER_BYTE * len(data))


def _key(store: Store, path: str, tag: str) -> _Key:
    return store.cache_key(path), tag
