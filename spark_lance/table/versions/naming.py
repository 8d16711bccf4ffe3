"""Renaming the manifests of an old table to the names that list newest first."""

from __future__ import annotations

from spark_lance.table.format.paths import VERSIONS_DIR, Naming, manifest_path, parse_manifest_name
from spark_lance.table.format.table_ref import TableRef

__all__ = ["migrate_names"]


def migrate_names(table: TableRef) -> int:
    """Rename every manifest to its V2 name and return how many were renamed; none if all have such names.

    Nobody may write to the table or open it meanwhile. An interrupted migration is finished by the next one:
    each manifest is copied before its old name goes.
    """
    directory = table.path(VERSIONS_DIR)
    old = []
    for name in table.store.list(directory):
        parsed = parse_manifest_name(name)
        if parsed is not None and parsed[1] is Naming.V1:
            old.append((parsed[0], f"{directory}/{name}"))
    for version, path in sorted(old):
        table.store.copy(path, manifest_path(table.root, version, Naming.V2))
        table.store.delete(path, table.root)
    return len(old)
