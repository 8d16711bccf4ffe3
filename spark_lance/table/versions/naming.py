"""Renaming the manifests of an old table to the names that list newest first."""

from __future__ import annotations

from spark_lance.io.store import Store, join
from spark_lance.table.paths import VERSIONS_DIR, Naming, manifest_path, parse_manifest_name

__all__ = ["migrate_names"]


def migrate_names(store: Store, root: str) -> int:
    """Rename every manifest to its V2 name and return how many were renamed; none if all have such names.

    Nobody may write to the table or open it meanwhile. An interrupted migration is finished by the next one:
    each manifest is copied before its old name goes.
    """
    directory = join(root, VERSIONS_DIR)
    old = []
    for name in store.list(directory):
        parsed = parse_manifest_name(name)
        if parsed is not None and parsed[1] is Naming.V1:
            old.append((parsed[0], f"{directory}/{name}"))
    for version, path in sorted(old):
        store.copy(path, manifest_path(root, version, Naming.V2))
        store.delete(path, root)
    return len(old)
