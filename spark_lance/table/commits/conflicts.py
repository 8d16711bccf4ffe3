"""Decide whether an operation can still be committed after another writer committed first.

One literal grid has the verdict for every pair of operations. A row is the operation being committed
("ours"). A column is an operation committed after our read version ("theirs"):

    .  fine: ours is unchanged           b  fine: ours is renumbered on top of theirs
    R  run our operation again           X  incompatible: the input of ours no longer exists
    m  merge the rows deleted by both    (only returned by rules)
    other letters are rules: functions of the two operations, see `RULES`

The rows are all operations on an existing table except two that this package never executes: updates of the
MemWAL state and data overlays. `rewrite_deferred` is a rewrite that does not touch the indexes. It records
the moved rows in a fragment-reuse entry. Once committed, it looks like any other rewrite, because its
transaction has no field for the entry. If their operation is unknown, it conflicts with everything. (Lance
table format, conflict matrix.)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.index_kinds import find_index_kind
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.format.transaction import Transaction

pb = transaction_pb2.Transaction


class Verdict(enum.Enum):
    """The verdict on one pair of operations."""

    FINE = "."
    REBASE = "b"
    MERGE = "m"
    RETRY = "R"
    INCOMPATIBLE = "X"


Rule = Callable[[Any, Any], Verdict]


def _retry(reason: object) -> Verdict:
    return Verdict.RETRY if reason else Verdict.FINE


def _incompatible(reason: object) -> Verdict:
    return Verdict.INCOMPATIBLE if reason else Verdict.FINE


# Rows.


def _check_deletes(ours: Any, theirs: Any) -> Verdict:
    """d: both delete rows. In shared fragments, merge by row, or retry if ours only drops whole fragments."""
    if not _touched_fragments(ours) & _touched_fragments(theirs):
        return Verdict.FINE
    return Verdict.MERGE if ours.updated_fragments else Verdict.RETRY


def _check_updates(ours: pb.Update, theirs: pb.Update) -> Verdict:
    """e: like d; also retry if both may insert rows with the same primary key."""
    if ours.HasField("inserted_rows") and _same_keys(ours, theirs):
        return Verdict.RETRY
    return _check_deletes(ours, theirs)


def _check_inserted_keys(ours: pb.Update, theirs: Message) -> Verdict:
    """p: ours inserts rows by primary key, and theirs does not record the keys of its rows."""
    return _retry(ours.HasField("inserted_rows"))


def _same_keys(ours: pb.Update, theirs: pb.Update) -> bool:
    """Return whether two updates may have inserted the same primary key.

    Without key sets, or with key sets of different kinds, they may.
    """
    our_rows, other = ours.inserted_rows, theirs.inserted_rows
    kind = our_rows.WhichOneof("data")
    if list(our_rows.field_ids) != list(other.field_ids) or kind != other.WhichOneof("data") or kind is None:
        return True
    if kind == "exact":
        return not set(our_rows.exact.key_hashes).isdisjoint(other.exact.key_hashes)
    sizes = [
        (len(bloom.bitmap), bloom.num_bits, bloom.number_of_items, bloom.probability)
        for bloom in (our_rows.bloom, other.bloom)
    ]
    if sizes[0] != sizes[1]:
        return True
    shared = np.bitwise_and(
        *(np.frombuffer(bloom.bitmap, np.uint8) for bloom in (our_rows.bloom, other.bloom))
    )
    if len(shared) % 32:
        return bool(shared.any())
    # A key sets a bit in each of the eight words of one block: see key_filter.
    return bool((shared.view(np.uint32).reshape(-1, 8) != 0).all(axis=1).any())


def _check_shared_fragments(ours: Any, theirs: Any) -> Verdict:
    """f: both change the same fragments: one moves or replaces rows that the other changes."""
    return _retry(_touched_fragments(ours) & _touched_fragments(theirs))


def _check_compacted_sstables(ours: pb.Update, theirs: pb.UpdateMemWalState) -> Verdict:
    """w: theirs recorded as compacted an SSTable that ours compacts, or a later one of the same shard."""
    recorded = {mark.shard_id.uuid: mark.generation for mark in theirs.compacted_sstables}
    return _incompatible(
        any(recorded.get(mark.shard_id.uuid, 0) >= mark.generation for mark in ours.compacted_sstables)
    )


# Columns.


def _check_their_nullability(ours: Message, theirs: Any) -> Verdict:
    """n: their schema change may add NOT NULL to a column in which our rows have nulls."""
    return _retry(not theirs.preserves_nullability)


def _check_our_nullability(ours: Any, theirs: Message) -> Verdict:
    """z: our schema change may add NOT NULL to a column in which their rows have nulls."""
    return _check_their_nullability(theirs, ours)


def _check_update_after_project(ours: pb.Update, theirs: pb.Project) -> Verdict:
    """P: like n; also retry if theirs dropped a column that ours rewrote in place."""
    dropped = {*ours.fields_modified} - {field.id for field in theirs.schema}
    return _retry(not theirs.preserves_nullability or dropped)


def _check_replacement_after_rows(ours: pb.DataReplacement, theirs: pb.Delete | pb.Update) -> Verdict:
    """x: theirs removed or moved the rows of a fragment whose column ours replaces, or rewrote the column."""
    targets = _touched_fragments(ours)
    if isinstance(theirs, pb.Delete):
        return _incompatible(targets & {*theirs.deleted_fragment_ids})
    if targets & {*theirs.removed_fragment_ids}:
        return Verdict.INCOMPATIBLE
    if not targets & {fragment.id for fragment in theirs.updated_fragments}:
        return Verdict.FINE
    rewrites = theirs.new_fragments and theirs.update_mode == pb.Update.REWRITE_ROWS
    return _retry(rewrites or _replaced_fields(ours) & {*theirs.fields_modified})


def _check_replacement_after_project(ours: pb.DataReplacement, theirs: pb.Project) -> Verdict:
    """y: like n; also incompatible if theirs dropped a column that ours replaces."""
    if not theirs.preserves_nullability:
        return Verdict.RETRY
    return _incompatible(_replaced_fields(ours) - {field.id for field in theirs.schema})


def _check_replacements(ours: pb.DataReplacement, theirs: pb.DataReplacement) -> Verdict:
    """E: both replace the same column of the same fragment."""
    cells = [
        {(entry.fragment_id, field) for entry in side.replacements for field in entry.new_file.fields}
        for side in (ours, theirs)
    ]
    return _retry(cells[0] & cells[1])


# Indexes.


def _check_index_after_update(ours: pb.CreateIndex, theirs: pb.Update) -> Verdict:
    """q: their update rewrote in place a column that ours indexes: the index loses those fragments."""
    rewritten = theirs.update_mode == pb.Update.REWRITE_COLUMNS and set(theirs.fields_modified)
    is_rewritten = rewritten and any(rewritten & {*index.fields} for index in ours.new_indices)
    return Verdict.REBASE if is_rewritten else Verdict.FINE


def _check_indexes(ours: pb.CreateIndex, theirs: pb.CreateIndex) -> Verdict:
    """i: both create the same index, or one creates it while the other replaces segments of it."""
    new, their_new = _index_names(ours.new_indices), _index_names(theirs.new_indices)
    removed, their_removed = _index_names(ours.removed_indices), _index_names(theirs.removed_indices)
    added, their_added = new - removed, their_new - their_removed
    removed_uuids = {entry.uuid.uuid for entry in ours.removed_indices} & {
        entry.uuid.uuid for entry in theirs.removed_indices
    }
    removed_by_both = {entry.name for entry in ours.removed_indices if entry.uuid.uuid in removed_uuids}
    return _retry(
        new & their_new
        or added & their_removed
        or their_added & removed
        or removed_by_both & (new | their_new)
    )


def _check_index_after_rewrite(ours: pb.CreateIndex, theirs: pb.Rewrite) -> Verdict:
    """h: theirs moved rows that ours indexes by row address.

    Also retry if ours replaces the fragment-reuse entry: theirs may have extended the entry, which its
    transaction does not record.
    """
    return _retry(
        _covers_any(ours, _touched_fragments(theirs)) or FRAGMENT_REUSE in _index_names(ours.new_indices)
    )


def _check_rewrite_after_index(ours: pb.Rewrite, theirs: pb.CreateIndex) -> Verdict:
    """j: h with the sides swapped; incompatible if their new fragment-reuse entry lacks our rewrite."""
    if FRAGMENT_REUSE in _index_names(theirs.new_indices):
        return Verdict.INCOMPATIBLE
    return _check_index_after_rewrite(theirs, ours)


def _check_deferred_rewrite_after_index(ours: pb.Rewrite, theirs: pb.CreateIndex) -> Verdict:
    """J: their index has old row addresses; ours can translate them only for completely covered groups."""
    groups = [BitMap(fragment.id for fragment in group.old_fragments) for group in ours.groups]
    return _retry(any(_blocks_rewrite(entry, groups) for entry in theirs.new_indices))


def _blocks_rewrite(entry: table_pb2.IndexMetadata, groups: Iterable[BitMap]) -> bool:
    covered = _read_coverage(entry)
    if covered is None:
        return True
    kind = find_index_kind(entry)
    translated = kind is None or kind.is_translated
    return any(covered & group and not (translated and group <= covered) for group in groups)


def _check_index_after_replacement(ours: pb.CreateIndex, theirs: pb.DataReplacement) -> Verdict:
    """r: theirs replaced a column that ours indexes, in any fragment."""
    fields = _replaced_fields(theirs)
    return _retry(any(fields & {*index.fields} for index in ours.new_indices))


def _check_replacement_after_index(ours: pb.DataReplacement, theirs: pb.CreateIndex) -> Verdict:
    """u: r with the sides swapped."""
    return _check_index_after_replacement(theirs, ours)


def _check_mem_wal_after_merge(ours: pb.CreateIndex, theirs: Message) -> Verdict:
    """l: ours starts a write-ahead log (MemWAL), and theirs changed the set of columns."""
    return _retry(MEM_WAL in _index_names(ours.new_indices))


def _check_merge_after_mem_wal(ours: Message, theirs: pb.CreateIndex) -> Verdict:
    """a: l with the sides swapped."""
    return _check_mem_wal_after_merge(theirs, ours)


def _covers_any(index: pb.CreateIndex, fragments: set[int]) -> bool:
    """Return whether a new index covers one of the fragments or has no coverage bitmap."""
    coverages = [_read_coverage(entry) for entry in index.new_indices]
    return any(covered is None or covered & BitMap(fragments) for covered in coverages)


def _read_coverage(entry: table_pb2.IndexMetadata) -> BitMap | None:
    """Return the fragments that an index entry covers; None if its bitmap is missing or damaged."""
    try:
        return covered_fragments(entry)
    except FormatError:
        return None


def _index_names(entries: Iterable[table_pb2.IndexMetadata]) -> set[str]:
    return {entry.name for entry in entries}


# Settings.


def _check_overwrites(ours: pb.Overwrite, theirs: pb.Overwrite) -> Verdict:
    """o: both replace the table: retry, or incompatible if both set the same config key."""
    shared = set(ours.config_upsert_values) & set(theirs.config_upsert_values)
    return Verdict.INCOMPATIBLE if shared else Verdict.RETRY


def _check_config_keys(ours: pb.Overwrite, theirs: pb.UpdateConfig) -> Verdict:
    """k: their config update sets or deletes a config key that ours sets."""
    written, deleted = _config_keys(theirs)
    return _incompatible((written | deleted) & set(ours.config_upsert_values))


def _check_config_after_overwrite(ours: pb.UpdateConfig, theirs: pb.Overwrite) -> Verdict:
    """v: their overwrite set a config key that ours updates, or a schema whose metadata ours changes."""
    if _names_schema(ours) or ours.field_metadata_updates:
        return Verdict.INCOMPATIBLE
    return _check_config_keys(theirs, ours)


def _check_metadata_after_merge(ours: pb.UpdateConfig, theirs: Message) -> Verdict:
    """g: theirs replaced the schema, and ours changes metadata of the schema or of fields."""
    return _retry(_changes_schema(ours))


def _check_merge_after_metadata(ours: Message, theirs: pb.UpdateConfig) -> Verdict:
    """G: g with the sides swapped."""
    return _check_metadata_after_merge(theirs, ours)


def _check_restore_after_metadata(ours: Message, theirs: pb.UpdateConfig) -> Verdict:
    """s: their update changes metadata of the schema or of fields, which ours would silently undo."""
    return _incompatible(_changes_schema(theirs))


def _check_metadata_after_restore(ours: pb.UpdateConfig, theirs: Message) -> Verdict:
    """t: s with the sides swapped: theirs restored a schema whose metadata ours changes."""
    return _check_restore_after_metadata(theirs, ours)


def _check_config_updates(ours: pb.UpdateConfig, theirs: pb.UpdateConfig) -> Verdict:
    """c: both set the same key, one sets a key that the other deletes, or both change the same metadata."""
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
    return _incompatible(clash or schema or fields)


def _check_bases(ours: pb.UpdateBases, theirs: pb.UpdateBases) -> Verdict:
    """B: both add a base path with the same id, name or path."""
    return _incompatible(
        any(
            (base.id and base.id == other.id)
            or (base.HasField("name") and other.HasField("name") and base.name == other.name)
            or base.path == other.path
            for base in ours.new_bases
            for other in theirs.new_bases
        )
    )


def _config_keys(update: pb.UpdateConfig) -> tuple[set[str], set[str]]:
    """Return the config keys that an update sets and deletes. Reads both the current and the old fields."""
    written, deleted = _map_keys(update.config_updates)
    return written | set(update.upsert_values), deleted | set(update.delete_keys)


def _map_keys(updates: pb.UpdateMap) -> tuple[set[str], set[str]]:
    """Return the keys that are set and deleted. Like pylance, ignore keys that `replace` drops."""
    written = {entry.key for entry in updates.update_entries if entry.HasField("value")}
    return written, {entry.key for entry in updates.update_entries} - written


def _changes_schema(update: pb.UpdateConfig) -> bool:
    """Return whether a config update changes metadata of the schema or of fields, so is not empty."""
    updates = update.schema_metadata_updates
    changes = updates.update_entries or updates.replace or update.schema_metadata
    return bool(changes or update.field_metadata_updates)


def _names_schema(update: pb.UpdateConfig) -> bool:
    """Return whether a config update has schema metadata, even if it is empty."""
    return bool(update.schema_metadata) or update.HasField("schema_metadata_updates")


# The parts of a table that an operation changes.


def _touched_fragments(operation: Any) -> set[int]:
    """Return the ids of the existing fragments that an operation changes, moves or removes."""
    return _TOUCHED[type(operation)](operation)


def _rewritten_fragments(operation: pb.Rewrite) -> set[int]:
    groups: list[Any] = [operation, *operation.groups]
    return {fragment.id for group in groups for fragment in group.old_fragments}


_TOUCHED: dict[type, Callable[[Any], set[int]]] = {
    pb.Delete: lambda o: {*o.deleted_fragment_ids} | {fragment.id for fragment in o.updated_fragments},
    pb.Update: lambda o: {*o.removed_fragment_ids} | {fragment.id for fragment in o.updated_fragments},
    pb.Rewrite: _rewritten_fragments,
    pb.DataReplacement: lambda o: {replacement.fragment_id for replacement in o.replacements},
    pb.DataOverlay: lambda o: {group.fragment_id for group in o.groups},
}


def _replaced_fields(operation: pb.DataReplacement) -> set[int]:
    return {field for entry in operation.replacements for field in entry.new_file.fields}


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "d": _check_deletes,
        "e": _check_updates,
        "p": _check_inserted_keys,
        "f": _check_shared_fragments,
        "w": _check_compacted_sstables,
        "n": _check_their_nullability,
        "z": _check_our_nullability,
        "P": _check_update_after_project,
        "x": _check_replacement_after_rows,
        "y": _check_replacement_after_project,
        "E": _check_replacements,
        "q": _check_index_after_update,
        "i": _check_indexes,
        "h": _check_index_after_rewrite,
        "j": _check_rewrite_after_index,
        "J": _check_deferred_rewrite_after_index,
        "r": _check_index_after_replacement,
        "u": _check_replacement_after_index,
        "l": _check_mem_wal_after_merge,
        "a": _check_merge_after_mem_wal,
        "o": _check_overwrites,
        "k": _check_config_keys,
        "v": _check_config_after_overwrite,
        "g": _check_metadata_after_merge,
        "G": _check_merge_after_metadata,
        "s": _check_restore_after_metadata,
        "t": _check_metadata_after_restore,
        "c": _check_config_updates,
        "B": _check_bases,
    }
)


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
update              p  X  d  e  .  f  R  P  X  .  .  f  w  .  f  .
create_index        .  X  .  q  i  h  l  .  X  .  .  r  X  .  .  .
rewrite             b  X  f  f  j  f  R  .  X  .  .  f  .  .  f  .
rewrite_deferred    b  X  f  f  J  f  R  .  X  .  .  f  .  .  f  .
merge               R  X  R  R  a  R  R  X  X  .  G  R  X  .  R  .
project             z  X  .  z  .  .  R  R  X  .  .  z  X  .  z  .
restore             b  .  .  .  .  .  .  .  .  .  s  .  X  .  .  .
reserve_fragments   b  X  .  .  .  .  .  .  X  b  .  .  .  .  .  .
update_config       .  v  .  .  .  .  g  .  t  .  c  .  .  .  .  .
data_replacement    .  X  x  x  u  f  R  y  X  .  .  E  X  .  .  .
update_bases        .  .  .  .  .  .  .  .  .  .  .  .  .  B  .  .
"""


def _read_grid() -> dict[str, dict[str, Verdict | Rule]]:
    header, *rows = _GRID.strip().splitlines()
    columns = [_COLUMNS[label] for label in header.split()[3:]]
    cells: dict[str, Verdict | Rule] = {**{v.value: v for v in Verdict}, **RULES}
    grid = {}
    for row in rows:
        ours, *letters = row.split()
        assert len(letters) == len(columns), f"{len(letters)} letters for {len(columns)} operations: {row}"
        grid[ours] = {theirs: cells[letter] for theirs, letter in zip(columns, letters, strict=True)}
    return grid


CONFLICTS = _read_grid()


def verdict(ours: Transaction, theirs: Transaction, *, deferred: bool = False) -> Verdict:
    """Return whether `ours` can be committed on top of `theirs`, a commit after our read version.

    Args:
        ours: the transaction being committed; its operation has a row in the grid.
        theirs: a transaction committed since `ours.read_version`.
        deferred: whether ours is a Rewrite with a fragment-reuse entry.
    """
    if theirs.name is None or ours.name is None:
        return Verdict.INCOMPATIBLE
    cell = CONFLICTS["rewrite_deferred" if deferred else ours.name][theirs.name]
    return cell if isinstance(cell, Verdict) else cell(ours.operation, theirs.operation)
