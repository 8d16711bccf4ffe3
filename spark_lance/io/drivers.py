"""fsspec's file systems, created with the settings that this package needs.

This package has its own instances of cloud drivers. fsspec shares instances with equal options in the whole
process, so our settings would change those of other code. The process caches the instances that it used last,
one for each identity.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_lance.errors import StoreError
from spark_lance.io.failures import presentable, translated
from spark_lance.io.locations import S3
from spark_lance.io.storage_options import DRIVERS

if TYPE_CHECKING:
    import fsspec

__all__ = ["file_system"]


# Instances that a process keeps: each has connections and a thread's event loop behind it.
_MOST_KEPT = 32


class _Instances:
    """The file systems of cloud drivers that were used last, by protocol and identity."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Keep nothing; a forked process begins so, as connections belong to one process."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], fsspec.AbstractFileSystem] = OrderedDict()

    def get(self, key: tuple[str, str]) -> fsspec.AbstractFileSystem | None:
        with self._lock:
            fs = self._kept.get(key)
            if fs is not None:
                self._kept.move_to_end(key)
            return fs

    def add(self, key: tuple[str, str], fs: fsspec.AbstractFileSystem) -> fsspec.AbstractFileSystem:
        """Keep an instance and return it, or the one that another thread has made in the meantime."""
        with self._lock:
            fs = self._kept.setdefault(key, fs)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return fs


_INSTANCES = _Instances()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_INSTANCES.clear)


def file_system(protocol: str, options: Mapping[str, Any], identity: str) -> fsspec.AbstractFileSystem:
    """Return the fsspec file system of a protocol; the process keeps the instance for an identity.

    Args:
        protocol: as fsspec names it.
        options: arguments of the file system.
        identity: the digest of all by which its requests are authorised, see `identity_of`.

    Raises:
        StoreError: the protocol is unknown, its driver is not installed, or it cannot be opened.
    """
    fs = _INSTANCES.get((protocol, identity)) if protocol in DRIVERS else None
    return _opened(protocol, options, identity) if fs is None else fs


def _opened(protocol: str, options: Mapping[str, Any], identity: str) -> fsspec.AbstractFileSystem:
    # Tasks that read local files map them, and do without it.
    import fsspec
    from fsspec.registry import known_implementations, registry

    settings = dict(options)
    if protocol in DRIVERS:
        # Other writers change directories at any time.
        settings = {"use_listings_cache": False, **settings, "skip_instance_cache": True}
    if protocol in S3:
        settings["config_kwargs"] = _sent_once(settings.get("config_kwargs") or {})
    try:
        fs = fsspec.filesystem(protocol, **settings)
    except ImportError as error:
        driver = DRIVERS.get(protocol)
        package = driver.extra if driver else "its fsspec driver"
        raise StoreError(f"reading {protocol}:// needs a driver: pip install '{package}'") from error
    except Exception as error:  # noqa: BLE001 (drivers raise whatever they like; translated() tells them apart)
        if protocol not in known_implementations and protocol not in registry:
            raise StoreError(
                f"{protocol}:// locations are not known here: use a local path, s3://, gs://, "
                "abfss:// or another protocol for which fsspec has a driver"
            ) from None
        doing = f"cannot open {protocol}:// locations"
        raise translated(error, doing, options) from presentable(error, options)
    if protocol in S3:
        fs.retries = 1
    return _INSTANCES.add((protocol, identity), fs) if protocol in DRIVERS else fs


def _sent_once(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that stop botocore from repeating requests: the store repeats them where it is safe."""
    return {"retries": {"total_max_attempts": 1, "mode": "standard"}, **config}
