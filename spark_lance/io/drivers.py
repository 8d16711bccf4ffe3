"""fsspec's file systems: made with the settings that this package needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_lance.errors import StoreError
from spark_lance.io.failures import presentable, translated
from spark_lance.io.locations import S3
from spark_lance.io.storage_options import DRIVERS

if TYPE_CHECKING:
    import fsspec

__all__ = ["file_system"]


def file_system(protocol: str, options: Mapping[str, Any]) -> fsspec.AbstractFileSystem:
    """Return the fsspec file system of a protocol; fsspec itself caches the instance.

    Raises:
        StoreError: the protocol is unknown, its driver is not installed, or it cannot be opened.
    """
    # Tasks that read local files map them, and do without it.
    import fsspec
    from fsspec.registry import known_implementations, registry

    settings = dict(options)
    if protocol in DRIVERS:
        # Other writers change directories at any time.
        settings = {"use_listings_cache": False, **settings}
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
    return fs


def _sent_once(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by which botocore does not repeat requests: the store does, where it is safe."""
    return {"retries": {"total_max_attempts": 1, "mode": "standard"}, **config}
