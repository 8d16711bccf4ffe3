"""Conversions of options and results between pylance and this package."""

from __future__ import annotations

from typing import Any

from spark_lance.datasets.operations import Transaction
from spark_lance.errors import FormatError

__all__ = ["transaction_or_none", "version_dict", "writing_options"]

# Arguments of writes that do not affect the result.
_HINTS = frozenset(
    {
        "max_rows_per_group",
        "data_cache_bytes",
        "max_page_bytes",
        "use_legacy_format",
        "enable_v2_manifest_paths",
        "enable_move_stable_row_ids",
        "session",
        "namespace_client",
        "table_id",
        "base_store_params",
        "blob_pack_file_size_threshold",
        "external_blob_mode",  # `with_blob_bytes` has already applied it to the data.
        "progress",
    }
)


def writing_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that affect a write. Arguments that are None count as missing."""
    options = {name: value for name, value in arguments.items() if value is not None and name not in _HINTS}
    options.pop("allow_external_blob_outside_bases", None)  # Readers decide, with allowed_bases.
    if arguments.get("use_legacy_format") is False:
        options.setdefault("data_storage_version", "stable")
    return options


def version_dict(version: dict[str, Any]) -> dict[str, Any]:
    """Return a version with its timestamp in the form of pylance: local time without a time zone."""
    when = version["timestamp"]
    return {**version, "timestamp": when.astimezone().replace(tzinfo=None) if when.tzinfo else when}


def transaction_or_none(read: Any) -> Transaction | None:
    """Return the transaction from `read` with typed operations; None if its file no longer exists."""
    try:
        transaction = read()
    except FormatError:
        return None
    return None if transaction is None else Transaction.of(transaction)
