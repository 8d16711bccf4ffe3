"""Manifests that this process has read or written lately, by the tag that a listing tells of their content.

An append lists the versions twice: when it is planned, and when it is committed. As a rule the newest one is
the same, and often this process has written it. An object whose path and tag are known is not fetched again.
A tag tells one content from any other (of S3: its entity tag), so a table that took the place of another one,
with the same numbers of versions, is read.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from fsspec.utils import tokenize

from spark_lance.errors import FormatError
from spark_lance.io.store import Store, StoredObject
from spark_lance.table.manifest import Manifest, read_manifest
from spark_lance.table.paths import Naming

__all__ = ["read_recent", "remember"]

_MOST_BYTES = 16 << 20
_LARGEST = 2 << 20

_Key = tuple[str, str, str]


class _Recent:
    """Bytes of manifests; those that were not used for longest go first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> bytes | None:
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
            return data

    def put(self, key: _Key, data: bytes) -> None:
        if len(data) > _LARGEST:
            return
        with self._lock:
            self._size += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._size > _MOST_BYTES:
                self._size -= len(self._kept.popitem(last=False)[1])


_RECENT = _Recent()


def read_recent(store: Store, path: str, naming: Naming, listed: StoredObject | None) -> Manifest:
    """Read a manifest, from the store unless a listing tells that its content is known.

    Args:
        listed: what a listing tells of it, if there is one.

    Raises:
        FileNotFoundError, FormatError: see `read_manifest`.
    """
    if listed is None:
        return read_manifest(store, path, naming)
    if listed.tag is None or listed.size > _LARGEST:
        return _read_listed(store, path, naming, listed)
    key = _key(store, path, listed.tag)
    data = _RECENT.get(key)
    if data is None:
        data = store.read(path)
        if len(data) != listed.size:  # another object is there by now
            return read_manifest(store, path, naming, data=data)
        _RECENT.put(key, data)
    return read_manifest(store, path, naming, data=data)


def _read_listed(store: Store, path: str, naming: Naming, listed: StoredObject) -> Manifest:
    try:
        return read_manifest(store, path, naming, listed.size)
    except FormatError:
        # Another object may be there by now, of another size.
        return read_manifest(store, path, naming)


def remember(store: Store, path: str, data: bytes) -> None:
    """Keep a manifest that was just written.

    The tag is taken to be what S3 gives to an object that is written at once, the MD5 of its content. Where
    it is another one, the manifest is read.
    """
    if store.tells_tags:
        _RECENT.put(_key(store, path, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'), data)


def _key(store: Store, path: str, tag: str) -> _Key:
    return tokenize(store.protocol, store.options), path, tag
