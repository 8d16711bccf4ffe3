"""The common base class of the cloud object stores.

With `mode="create"` the drivers create an object only if it is absent:

    s3             If-None-Match: *, with the object or with the request that completes its parts
    gs             ifGenerationMatch=0, with the object or with the request that begins a resumable upload
    az             If-None-Match: *, with the blob or with its list of blocks

This package creates its own instances of these drivers. fsspec shares instances with equal options across
the process, so our settings would affect other code. The process caches the most recently used instances,
one per identity.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from spark_lance.errors import StoreError
from spark_lance.io.drivers import open_driver
from spark_lance.io.failures import Kind, classify_failure
from spark_lance.io.fsspec_store import FsspecStore
from spark_lance.io.storage_options import Driver
from spark_lance.io.store import atomic_put_error

if TYPE_CHECKING:
    import fsspec

_CREATING = frozenset({"writing", "creating"})
# Maximum number of cached instances. Each one holds connections and a thread with an event loop.
MAX_INSTANCES = 32


class _Instances:
    """The most recently used cloud file systems, by protocol and identity."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all instances. A forked process must do so because connections belong to one process."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], fsspec.AbstractFileSystem] = OrderedDict()

    def get(self, key: tuple[str, str]) -> fsspec.AbstractFileSystem | None:
        with self._lock:
            fs = self._entries.get(key)
            if fs is not None:
                self._entries.move_to_end(key)
            return fs

    def add(self, key: tuple[str, str], fs: fsspec.AbstractFileSystem) -> fsspec.AbstractFileSystem:
        """Cache and return an instance, or return the one that another thread has cached meanwhile."""
        with self._lock:
            fs = self._entries.setdefault(key, fs)
            while len(self._entries) > MAX_INSTANCES:
                self._entries.popitem(last=False)
            return fs


_INSTANCES = _Instances()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_INSTANCES.clear)


@dataclass(frozen=True)
class CloudStore(FsspecStore):
    """An object store whose driver accepts Lance's storage option names and creates objects atomically.

    Attributes:
        driver: the driver, and the names of its options.
    """

    driver: ClassVar[Driver]

    @classmethod
    def driver_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return cls.driver.arguments(options)

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        key = self.protocol, self.identity
        fs = _INSTANCES.get(key)
        return _INSTANCES.add(key, self._open()) if fs is None else fs

    @property
    def can_create(self) -> bool:
        return True

    def put(self, path: str, data: bytes) -> None:
        self._call("writing", path, lambda fs: fs.pipe_file(path, data))

    def copy(self, source: str, target: str) -> None:
        self._call("copying", source, lambda fs: fs.cp_file(source, target))

    def _open(self) -> fsspec.AbstractFileSystem:
        """Return a new instance of the driver."""
        return open_driver(self.protocol, self._settings(), self.options, self.driver.extra)

    def _settings(self) -> dict[str, Any]:
        # Other writers change directories at any time.
        return {"use_listings_cache": False, **self.options, "skip_instance_cache": True}

    def _create(self, fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
        self._or_refusal(lambda: fs.pipe_file(path, data, mode="create"))

    def _or_refusal(self, create: Callable[[], object]) -> None:
        """Create an object if it is absent; raise an error with advice if the store cannot."""
        try:
            create()
        except Exception as error:
            if classify_failure(error) is Kind.UNSUPPORTED:
                raise atomic_put_error(self.protocol) from error
            raise

    def _failure(self, error: Exception, doing: str, what: str) -> Exception:
        if doing in _CREATING and isinstance(error, FileNotFoundError):
            # Only the bucket can be missing, and not every driver says so.
            return StoreError(f"{what}: {Kind.NO_BUCKET.value}")
        return super()._failure(error, doing, what)
