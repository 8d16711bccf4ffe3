"""Metadata tables: the versions, files and settings of a table, as rows."""

from __future__ import annotations

from collections.abc import Mapping

from spark_lance.errors import OptionError, suggestion
from spark_lance.table.metadata.columns import MetadataTable
from spark_lance.table.metadata.contents import CONFIG, FRAGMENTS, SCHEMA
from spark_lance.table.metadata.iceberg import ICEBERG_TABLES
from spark_lance.table.metadata.names import BRANCHES, INDICES, TAGS
from spark_lance.table.metadata.versions import HISTORY, TRANSACTIONS, VERSIONS

METADATA_TABLES: Mapping[str, MetadataTable] = {
    "versions": VERSIONS,
    "history": HISTORY,
    "transactions": TRANSACTIONS,
    "fragments": FRAGMENTS,
    "schema": SCHEMA,
    "indices": INDICES,
    "tags": TAGS,
    "branches": BRANCHES,
    "config": CONFIG,
    **ICEBERG_TABLES,
}


def metadata_table(name: str) -> MetadataTable:
    """Return a metadata table by its name.

    Raises:
        OptionError: the table does not exist; the message lists the existing ones.
    """
    table = METADATA_TABLES.get(name.strip().lower())
    if table is None:
        raise OptionError(
            f"metadata table {name!r} does not exist; use one of {', '.join(METADATA_TABLES)}"
            f"{suggestion(name, METADATA_TABLES)}"
        )
    return table
