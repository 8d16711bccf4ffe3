"""The parameters of an operation, and its counts of added and removed files and rows, for the history.

Counts are computed from the manifests before and after, never from what a writer reports. A count that is not
in the manifests is left out. Fragments keep their ids from version to version, with two exceptions. An
overwrite may assign ids from 0 again, and a restore may restore other fragments with the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_lance.errors import UnsupportedFormatError
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit_options import STATEMENT
from spark_lance.table.format.features import check_readable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import CONSTRAINTS
from spark_lance.table.format.rowids import fragment_row_ids
from spark_lance.table.format.transaction import Transaction


def operation_name(transaction: Transaction) -> str | None:
    """Return the operation's name in the format ("Append", "CreateIndex", ...); None if it is unknown.

    The format has no separate operation to drop an index: the name of a CreateIndex that only removes indexes
    is `DropIndex`.
    """
    if transaction.name is None:
        return None
    operation: Any = transaction.operation
    if transaction.name == "create_index" and operation.removed_indices and not operation.new_indices:
        return "DropIndex"
    return str(operation.DESCRIPTOR.name)


# Operation -> the statement that commits it.
_STATEMENTS = {
    "append": "WRITE",
    "overwrite": "WRITE",
    "delete": "DELETE",
    "update": "UPDATE",
    "data_overlay": "UPDATE",
    "rewrite": "OPTIMIZE",
    "restore": "RESTORE",
    "clone": "CLONE",
    "create_index": "CREATE INDEX",
    "data_replacement": "REPLACE DATA",
    "reserve_fragments": "RESERVE FRAGMENTS",
    "update_mem_wal_state": "UPDATE LOGS",
    "update_bases": "UPDATE BASES",
}


# Operations that several statements commit; a property of the transaction can have the statement's name.
_SHARED = ("append", "delete", "update", "overwrite", "restore")


def statement_name(transaction: Transaction, before: Manifest | None) -> str | None:
    """Return the statement that made a commit, by Delta's names: "WRITE", "MERGE", "ADD COLUMNS", ...

    Args:
        transaction: the commit.
        before: the previous version; None if it does not exist, or no longer exists.

    Returns:
        The name; None for an operation that this release does not know.
    """
    name = transaction.name
    if name is None:
        return None
    operation: Any = transaction.operation
    if name in _SHARED and transaction.properties.get(STATEMENT):
        return str(transaction.properties[STATEMENT])
    if name == "overwrite" and transaction.read_version == 0:
        return "CREATE TABLE AS SELECT" if operation.fragments else "CREATE TABLE"
    if name == "update" and (operation.HasField("inserted_rows") or operation.compacted_sstables):
        return "MERGE"
    if name == "create_index" and operation.removed_indices and not operation.new_indices:
        return "DROP INDEX"
    if name in ("merge", "project"):
        return _columns_statement(operation, before)
    if name == "update_config":
        return _settings_statement(transaction, operation)
    return _STATEMENTS[name]


def _columns_statement(operation: Any, before: Manifest | None) -> str:
    new = {field.id for field in operation.schema}
    old = new if before is None else {field.id for field in before.schema.walk()}
    if new - old:
        return "CHANGE COLUMNS" if old - new else "ADD COLUMNS"
    return "DROP COLUMNS" if old - new else "CHANGE COLUMNS"


def _settings_statement(transaction: Transaction, operation: Any) -> str:
    if operation.field_metadata_updates:
        return "CHANGE COLUMNS"
    changes = _config_keys(transaction, operation)
    values = {
        key: value
        for part in ("config_updates", "table_metadata_updates", "upsert_values")
        for key, value in changes.get(part, {}).items()
    }
    values |= dict.fromkeys(changes.get("delete_keys", ()))
    removes = bool(values) and all(value is None for value in values.values())
    if values and all(key.startswith(CONSTRAINTS) for key in values):
        return "DROP CONSTRAINT" if removes else "ADD CONSTRAINT"
    return "UNSET TBLPROPERTIES" if removes else "SET TBLPROPERTIES"


def parameters(transaction: Transaction) -> dict[str, str]:
    """Return the parameters of an operation from its transaction; lists and maps are JSON."""
    if transaction.name is None:
        return {}
    get_parameters = _PARAMETERS.get(transaction.name)
    values = {} if get_parameters is None else get_parameters(transaction, transaction.operation)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def live_rows(fragment: table_pb2.DataFragment) -> int | None:
    """Return the number of live rows of a fragment; None if the manifest does not have it."""
    if not fragment.physical_rows and fragment.files:
        return None
    return int(fragment.physical_rows - fragment.deletion_file.num_deleted_rows)


def metrics(transaction: Transaction, before: Manifest | None, after: Manifest) -> dict[str, str] | None:
    """Return the numbers of files and rows that a commit added and removed; None if they are unknown.

    Args:
        transaction: the commit.
        before: the previous version; None if it does not exist, or no longer exists.
        after: the version of the commit.
    """
    name = transaction.name
    if name is None or name == "clone":
        return None
    if before is None and not (name == "overwrite" and transaction.read_version == 0):
        return None
    for manifest in (before, after):
        try:
            if manifest is not None:
                check_readable(manifest.message, manifest.path)
        except UnsupportedFormatError:
            return None
    change = _Change.between(before.fragments if before else (), after.fragments, name)
    rows = _ROW_COUNTS.get(name)
    counts: dict[str, int | None] = {
        "numAddedFragments": len(change.added),
        "numRemovedFragments": len(change.removed),
        **_file_counts(before.fragments if before else (), after.fragments),
        **({} if rows is None else rows(change, before)),
    }
    return {key: str(count) for key, count in counts.items() if count is not None}


@dataclass(frozen=True)
class _Change:
    """The fragments that a commit added and removed, and pairs (before, after) of the other fragments."""

    added: list[table_pb2.DataFragment]
    removed: list[table_pb2.DataFragment]
    common: list[tuple[table_pb2.DataFragment, table_pb2.DataFragment]]

    @classmethod
    def between(
        cls,
        before: Iterable[table_pb2.DataFragment],
        after: Iterable[table_pb2.DataFragment],
        operation: str,
    ) -> _Change:
        old = {fragment.id: fragment for fragment in before}
        new = {fragment.id: fragment for fragment in after}
        common = old.keys() & new.keys()
        if operation == "overwrite":
            common = set()
        elif operation == "restore":
            common = {number for number in common if _share_a_file(old[number], new[number])}
        return cls(
            [fragment for number, fragment in new.items() if number not in common],
            [fragment for number, fragment in old.items() if number not in common],
            [(old[number], new[number]) for number in common],
        )

    @property
    def added_rows(self) -> int | None:
        """The number of live rows of the new fragments."""
        return _sum(live_rows(fragment) for fragment in self.added)

    @property
    def removed_rows(self) -> int | None:
        """The number of rows that were deleted or moved."""
        marks = [
            after.deletion_file.num_deleted_rows - before.deletion_file.num_deleted_rows
            for before, after in self.common
        ]
        return _sum([*(live_rows(fragment) for fragment in self.removed), *marks])


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _share_a_file(one: table_pb2.DataFragment, other: table_pb2.DataFragment) -> bool:
    return bool({file.path for file in one.files} & {file.path for file in other.files})


def _file_counts(
    before: Iterable[table_pb2.DataFragment], after: Iterable[table_pb2.DataFragment]
) -> dict[str, int | None]:
    old, new = _data_files(before), _data_files(after)
    added, removed = new.keys() - old.keys(), old.keys() - new.keys()
    return {
        "numAddedFiles": len(added),
        "numRemovedFiles": len(removed),
        "numAddedBytes": _sum(new[key] for key in added),
        "numRemovedBytes": _sum(old[key] for key in removed),
    }


def _data_files(fragments: Iterable[table_pb2.DataFragment]) -> dict[tuple[int, str], int | None]:
    """Return the size of each data file; None if the manifest does not have it."""
    files: dict[tuple[int, str], int | None] = {}
    for fragment in fragments:
        for file in fragment.files:
            base = file.base_id if file.HasField("base_id") else -1
            files[base, file.path] = file.file_size_bytes or None
    return files


def _update_counts(change: _Change, before: Manifest | None) -> dict[str, int | None]:
    """Return the counts of an update or merge; stable ids tell inserted, updated and deleted rows apart."""
    counts = {"numOutputRows": change.added_rows, "numRemovedRows": change.removed_rows}
    removed_rows = change.removed_rows
    if before is None or not before.uses_stable_row_ids or removed_rows is None or change.added_rows is None:
        return counts
    inserted = updated = 0
    for fragment in change.added:
        if fragment.WhichOneof("row_id_sequence") != "inline_row_ids" or fragment.HasField("deletion_file"):
            return counts
        new_rows = int(np.count_nonzero(fragment_row_ids(fragment) >= np.uint64(before.next_row_id)))
        inserted += new_rows
        updated += fragment.physical_rows - new_rows
    split = {"numInsertedRows": inserted, "numUpdatedRows": updated, "numDeletedRows": removed_rows - updated}
    return {**counts, **split}


# Operation -> its counts of rows. Other operations do not change rows, or have no counts.
_ROW_COUNTS: dict[str, Callable[[_Change, Manifest | None], dict[str, int | None]]] = {
    "append": lambda change, before: {"numOutputRows": change.added_rows},
    "overwrite": lambda change, before: {
        "numOutputRows": change.added_rows,
        "numDeletedRows": change.removed_rows,
    },
    "delete": lambda change, before: {"numDeletedRows": change.removed_rows},
    "update": _update_counts,
    "rewrite": lambda change, before: {"numCopiedRows": change.added_rows},
}


def _index_names(entries: Iterable[table_pb2.IndexMetadata]) -> list[str]:
    return sorted({entry.name for entry in entries})


def _config_keys(transaction: Transaction, operation: Any) -> dict[str, Any]:
    """Return the keys and values that an UpdateConfig changes, in its current and its older form."""
    changes: dict[str, Any] = {}
    for part in ("config_updates", "table_metadata_updates", "schema_metadata_updates"):
        if operation.HasField(part):
            changes[part] = {
                entry.key: entry.value if entry.HasField("value") else None
                for entry in getattr(operation, part).update_entries
            }
    if operation.field_metadata_updates:
        changes["field_metadata_updates"] = {
            str(number): {e.key: e.value if e.HasField("value") else None for e in updates.update_entries}
            for number, updates in operation.field_metadata_updates.items()
        }
    older: Mapping[str, Any] = {
        "upsert_values": dict(operation.upsert_values),
        "delete_keys": list(operation.delete_keys),
        "schema_metadata": dict(operation.schema_metadata),
    }
    return {**changes, **{name: value for name, value in older.items() if value}}


def _clone_parameters(transaction: Transaction, operation: Any) -> dict[str, Any]:
    values = {
        "isShallow": operation.is_shallow,
        "sourceVersion": operation.ref_version,
        "sourcePath": operation.ref_path or None,
        "sourceRef": operation.ref_name if operation.HasField("ref_name") else None,
        "branch": operation.branch_name if operation.HasField("branch_name") else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _top_level_names(operation: Any) -> list[str]:
    return [field.name for field in operation.schema if field.parent_id < 0]


# Operation -> its parameters, from the transaction and the operation's message. Other operations have none.
_PARAMETERS: dict[str, Callable[[Transaction, Any], dict[str, Any]]] = {
    "append": lambda transaction, operation: {"mode": "Append"},
    "delete": lambda transaction, operation: {"predicate": operation.predicate},
    "overwrite": lambda transaction, operation: {
        "mode": "Overwrite" if transaction.read_version else "Create",
        "columns": _top_level_names(operation),
    },
    "create_index": lambda transaction, operation: {
        "created": _index_names(operation.new_indices),
        "removed": _index_names(operation.removed_indices),
    },
    "merge": lambda transaction, operation: {"columns": _top_level_names(operation)},
    "restore": lambda transaction, operation: {"version": operation.version},
    "reserve_fragments": lambda transaction, operation: {"numFragments": operation.num_fragments},
    "update": lambda transaction, operation: {
        "mode": "RewriteColumns" if operation.update_mode else "RewriteRows"
    },
    "project": lambda transaction, operation: {"columns": _top_level_names(operation)},
    "update_config": _config_keys,
    "data_replacement": lambda transaction, operation: {
        "fragments": [group.fragment_id for group in operation.replacements]
    },
    "clone": _clone_parameters,
    "update_bases": lambda transaction, operation: {"bases": [base.path for base in operation.new_bases]},
}
