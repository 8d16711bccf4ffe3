"""fsspec's file systems, created with the settings that this package needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_lance.errors import StoreError
from spark_lance.io.failures import safe_cause, translated

if TYPE_CHECKING:
    import fsspec


def open_driver(
    protocol: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    package: str = "its fsspec driver",
) -> fsspec.AbstractFileSystem:
    """Return the fsspec file system of a protocol.

    Args:
        protocol: as fsspec names it.
        settings: arguments of the file system.
        options: the arguments that came from the user; some are secret.
        package: package to install if the driver is missing.

    Raises:
        StoreError: the protocol is unknown, its driver is not installed, or it cannot be opened.
    """
    # Imported late: tasks that read memory-mapped local files do not need it.
    import fsspec
    from fsspec.registry import known_implementations, registry

    try:
        return fsspec.filesystem(protocol, **settings)
    except ImportError as error:
        raise StoreError(f"reading {protocol}:// needs a driver: pip install '{package}'") from error
    except Exception as error:  # noqa: BLE001 (drivers raise whatever they like; translated() tells them apart)
        if protocol not in known_implementations and protocol not in registry:
            raise StoreError(
                f"{protocol}:// locations are not known here: use a local path, s3://, gs://, "
                "abfss:// or another protocol for which fsspec has a driver"
            ) from None
        doing = f"cannot open {protocol}:// locations"
        raise translated(error, doing, options) from safe_cause(error, options)


def directory_names(fs: fsspec.AbstractFileSystem, directory: str) -> Sequence[str]:
    """Return the base names of the directories directly in a directory."""
    entries = fs.ls(directory, detail=True, refresh=True)
    names = [str(entry["name"]) for entry in entries if entry["type"] == "directory"]
    return [name.rstrip("/").rpartition("/")[2] for name in names]
