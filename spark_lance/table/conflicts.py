"""Whether an operation may still be committed after another one came first.

One literal grid holds the answer for every pair. A row is the operation being committed ("ours"), a column
one that was committed since the version ours was computed from ("theirs"):

    .  fine: ours stays as it is         b  fine: ours is renumbered onto theirs
    R  run our operation again           X  cannot work: what ours was computed from is gone
    m  merge the rows deleted by both    (only as the outcome of a rule)
    other letters are rules, functions of the two operations

Rows stand for the operations that are executed here; an operation of theirs that is not known at all is
incompatible with everything. (Lance table format, conflict matrix.)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from spark_lance.proto import transaction_pb2
from spark_lance.table.transaction import Transaction

__all__ = ["CONFLICTS", "Verdict", "verdict"]


class Verdict(enum.Enum):
    """The outcome of one pair."""

    FINE = "."
    REBASE = "b"
    MERGE = "m"
    RETRY = "R"
    INCOMPATIBLE = "X"


Rule = Callable[[Any, Any], Verdict]

_COLUMNS = {
    "Ap": "append",
    "Ov": "overwrite",
    "De": "delete",
    "Up": "update",
    "CI": "create_index",
    "Rw": "rewrite",
    "Me": "merge",
    "Pr": "project",
    "Re": "restore",
    "RF": "reserve_fragments",
    "UC": "update_config",
    "DR": "data_replacement",
    "MW": "update_mem_wal_state",
    "UB": "update_bases",
    "DO": "data_overlay",
    "Cl": "clone",
}

_GRID = """
ours \\ theirs       Ap Ov De Up CI Rw Me Pr Re RF UC DR MW UB DO Cl
append              b  X  .  .  .  .  n  n  X  b  .  .  X  .  .  .
overwrite           b  o  .  .  .  .  .  .  .  .  k  .  X  .  .  .
delete              .  X  d  d  .  f  R  .  X  .  .  f  X  .  .  .
restore             b  .  .  .  .  .  .  .  .  .  s  .  X  .  .  .
reserve_fragments   b  X  .  .  .  .  .  .  X  b  .  .  .  .  .  .
update_config       .  v  .  .  .  .  g  .  t  .  c  .  .  .  .  .
"""


def _tightened(ours: Message, theirs: Any) -> Verdict:
    """n: their schema change may forbid nulls that our rows hold."""
    return Verdict.FINE if theirs.preserves_nullability else Verdict.RETRY


def _both_overwrite(ours: Any, theirs: Any) -> Verdict:
    """o: both replace the table; they also set one config key."""
    shared = set(ours.config_upsert_values) & set(theirs.config_upsert_values)
    return Verdict.INCOMPATIBLE if shared else Verdict.RETRY


def _same_config_key(ours: Any, theirs: transaction_pb2.Transaction.UpdateConfig) -> Verdict:
    """k: their config update sets or deletes a key that we set."""
    written, deleted = _config_keys(theirs)
    shared = (written | deleted) & set(ours.config_upsert_values)
    return Verdict.INCOMPATIBLE if shared else Verdict.FINE


def _config_overwritten(ours: transaction_pb2.Transaction.UpdateConfig, theirs: Any) -> Verdict:
    """v: their overwrite set a key that we update, or replaced the schema that we annotate."""
    shared = _same_config_key(theirs, ours)
    schema = _names_schema(ours) or ours.field_metadata_updates
    return Verdict.INCOMPATIBLE if schema else shared


def _schema_merged(ours: transaction_pb2.Transaction.UpdateConfig, theirs: Any) -> Verdict:
    """g: theirs brought a schema of its own, with its own metadata."""
    return Verdict.RETRY if _changes_schema(ours) else Verdict.FINE


def _schema_restored(ours: transaction_pb2.Transaction.UpdateConfig, theirs: Any) -> Verdict:
    """t: the schema that we annotate was taken back."""
    return _schema_texts(theirs, ours)


def _both_update_config(
    ours: transaction_pb2.Transaction.UpdateConfig, theirs: transaction_pb2.Transaction.UpdateConfig
) -> Verdict:
    """c: one key set by both, or set by one and deleted by the other; or metadata of one schema or field."""
    pairs = [
        (_config_keys(ours), _config_keys(theirs)),
        (_map_keys(ours.table_metadata_updates), _map_keys(theirs.table_metadata_updates)),
    ]
    clash = any(
        written & (their_written | their_deleted) or deleted & their_written
        for (written, deleted), (their_written, their_deleted) in pairs
    )
    schema = _names_schema(ours) and _names_schema(theirs)
    fields = set(ours.field_metadata_updates) & set(theirs.field_metadata_updates)
    return Verdict.INCOMPATIBLE if clash or schema or fields else Verdict.FINE


def _config_keys(update: transaction_pb2.Transaction.UpdateConfig) -> tuple[set[str], set[str]]:
    """Return the config keys that an update, also one of the older form, sets and deletes."""
    written, deleted = _map_keys(update.config_updates)
    return written | set(update.upsert_values), deleted | set(update.delete_keys)


def _map_keys(updates: transaction_pb2.Transaction.UpdateMap) -> tuple[set[str], set[str]]:
    """Return the keys that are set and deleted. Keys that `replace` drops do not count, as for pylance."""
    written = {entry.key for entry in updates.update_entries if entry.HasField("value")}
    return written, {entry.key for entry in updates.update_entries} - written


def _both_delete(ours: Any, theirs: Any) -> Verdict:
    """d: both delete rows. Where they share fragments the rows decide, unless ours only drops whole ones."""
    if not _fragments(ours) & _fragments(theirs):
        return Verdict.FINE
    return Verdict.MERGE if ours.updated_fragments else Verdict.RETRY


def _same_fragments(ours: Any, theirs: Any) -> Verdict:
    """f: theirs moved or replaced what ours changes."""
    return Verdict.RETRY if _fragments(ours) & _fragments(theirs) else Verdict.FINE


def _schema_texts(ours: Any, theirs: transaction_pb2.Transaction.UpdateConfig) -> Verdict:
    """s: their update changes metadata of the schema or of fields, which ours would silently take back."""
    return Verdict.INCOMPATIBLE if _changes_schema(theirs) else Verdict.FINE


def _changes_schema(update: transaction_pb2.Transaction.UpdateConfig) -> bool:
    """Whether a config update changes metadata of the schema or of fields; an empty one does not."""
    updates = update.schema_metadata_updates
    changes = updates.update_entries or updates.replace or update.schema_metadata
    return bool(changes or update.field_metadata_updates)


def _names_schema(update: transaction_pb2.Transaction.UpdateConfig) -> bool:
    """Whether a config update speaks of the schema's metadata at all."""
    return bool(update.schema_metadata) or update.HasField("schema_metadata_updates")


def _fragments(operation: Any) -> set[int]:
    """Return the ids of the existing fragments that an operation changes, moves or removes."""
    pb = transaction_pb2.Transaction
    if isinstance(operation, pb.Delete):
        changed = {*operation.deleted_fragment_ids}
    elif isinstance(operation, pb.Update):
        changed = {*operation.removed_fragment_ids}
    elif isinstance(operation, pb.DataReplacement):
        return {replacement.fragment_id for replacement in operation.replacements}
    else:
        groups = [operation, *operation.groups]
        return {fragment.id for group in groups for fragment in group.old_fragments}
    return changed | {fragment.id for fragment in operation.updated_fragments}


_RULES: dict[str, Rule] = {
    "n": _tightened,
    "o": _both_overwrite,
    "k": _same_config_key,
    "d": _both_delete,
    "f": _same_fragments,
    "s": _schema_texts,
    "v": _config_overwritten,
    "g": _schema_merged,
    "t": _schema_restored,
    "c": _both_update_config,
}


def _read_grid() -> dict[str, dict[str, Verdict | Rule]]:
    header, *rows = _GRID.strip().splitlines()
    columns = [_COLUMNS[label] for label in header.split()[3:]]
    cells: dict[str, Verdict | Rule] = {**{v.value: v for v in Verdict}, **_RULES}
    grid = {}
    for row in rows:
        ours, *letters = row.split()
        grid[ours] = {theirs: cells[letter] for theirs, letter in zip(columns, letters, strict=True)}
    return grid


CONFLICTS = _read_grid()


def verdict(ours: Transaction, theirs: Transaction) -> Verdict:
    """Return whether `ours` may be committed on top of `theirs`, which it did not know of.

    Args:
        ours: the transaction being committed; its operation has a row in the grid.
        theirs: a transaction committed since `ours.read_version`.
    """
    if theirs.name is None or ours.name is None:
        return Verdict.INCOMPATIBLE
    cell = CONFLICTS[ours.name][theirs.name]
    return cell if isinstance(cell, Verdict) else cell(ours.operation, theirs.operation)
