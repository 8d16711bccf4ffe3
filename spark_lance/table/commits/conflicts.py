"""Whether an operation may still be committed after another one came first.

One literal grid holds the answer for every pair. A row is the operation being committed ("ours"), a column
one that was committed since the version ours was computed from ("theirs"):

    .  fine: ours stays as it is         b  fine: ours is renumbered onto theirs
    R  run our operation again           X  cannot work: what ours was computed from is gone
    m  merge the rows deleted by both    (only as the outcome of a rule)
    other letters are rules, functions of the two operations, see `RULES`

The rows cover all operations on an existing table except two that are never executed here: write-ahead logs
and overlays. `rewrite_deferred` is a rewrite that does not touch the indices. It records the moved rows in a
fragment-reuse entry. Once committed it looks like any other rewrite, because its transaction has no field for
the entry. An unknown operation of theirs is incompatible with everything. (Lance table format, conflict
matrix.)
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
from spark_lance.table.format.index_kinds import kind_of
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.format.transaction import Transaction

pb = transaction_pb2.Transaction


class Verdict(enum.Enum):
    """The outcome of one pair."""

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


def _both_delete(ours: Any, theirs: Any) -> Verdict:
    """d: both delete rows. Where they share fragments the rows decide, unless ours only drops whole ones."""
    if not _fragments(ours) & _fragments(theirs):
        return Verdict.FINE
    return Verdict.MERGE if ours.updated_fragments else Verdict.RETRY


def _both_update(ours: pb.Update, theirs: pb.Update) -> Verdict:
    """e: as d; besides, both may insert rows of one primary key."""
    if ours.HasField("inserted_rows") and _same_keys(ours, theirs):
        return Verdict.RETRY
    return _both_delete(ours, theirs)


def _keys_appended(ours: pb.Update, theirs: Message) -> Verdict:
    """p: ours inserts rows by primary key, and theirs does not tell the keys of its rows."""
    return _retry(ours.HasField("inserted_rows"))


def _same_keys(ours: pb.Update, theirs: pb.Update) -> bool:
    """Whether two updates may have inserted one primary key. Sets of no or of different kinds may."""
    mine, other = ours.inserted_rows, theirs.inserted_rows
    kind = mine.WhichOneof("data")
    if list(mine.field_ids) != list(other.field_ids) or kind != other.WhichOneof("data") or kind is None:
        return True
    if kind == "exact":
        return not set(mine.exact.key_hashes).isdisjoint(other.exact.key_hashes)
    sizes = [
        (len(bloom.bitmap), bloom.num_bits, bloom.number_of_items, bloom.probability)
        for bloom in (mine.bloom, other.bloom)
    ]
    if sizes[0] != sizes[1]:
        return True
    shared = np.bitwise_and(*(np.frombuffer(bloom.bitmap, np.uint8) for bloom in (mine.bloom, other.bloom)))
    if len(shared) % 32:
        return bool(shared.any())
    # A key sets a bit in each of the eight words of one block: see key_filter.
    return bool((shared.view(np.uint32).reshape(-1, 8) != 0).all(axis=1).any())


def _same_fragments(ours: Any, theirs: Any) -> Verdict:
    """f: theirs moved or replaced what ours changes, or the reverse."""
    return _retry(_fragments(ours) & _fragments(theirs))


def _compacted_tables(ours: pb.Update, theirs: pb.UpdateMemWalState) -> Verdict:
    """w: they recorded that SSTables which ours brings, or later ones of the same shard, are in the table."""
    recorded = {mark.shard_id.uuid: mark.generation for mark in theirs.compacted_sstables}
    return _incompatible(
        any(recorded.get(mark.shard_id.uuid, 0) >= mark.generation for mark in ours.compacted_sstables)
    )


# Columns.


def _tightened(ours: Message, theirs: Any) -> Verdict:
    """n: their schema change may forbid nulls that our rows hold."""
    return _retry(not theirs.preserves_nullability)


def _tightens(ours: Any, theirs: Message) -> Verdict:
    """z: our schema change may forbid nulls that their rows hold."""
    return _tightened(theirs, ours)


def _updated_and_projected(ours: pb.Update, theirs: pb.Project) -> Verdict:
    """P: as n; besides, they may have dropped a column that ours rewrote in place."""
    dropped = {*ours.fields_modified} - {field.id for field in theirs.schema}
    return _retry(not theirs.preserves_nullability or dropped)


def _replaced_rows_gone(ours: pb.DataReplacement, theirs: pb.Delete | pb.Update) -> Verdict:
    """x: they removed a fragment whose column ours replaces, moved its rows, or rewrote the same column."""
    targets = _fragments(ours)
    if isinstance(theirs, pb.Delete):
        return _incompatible(targets & {*theirs.deleted_fragment_ids})
    if targets & {*theirs.removed_fragment_ids}:
        return Verdict.INCOMPATIBLE
    if not targets & {fragment.id for fragment in theirs.updated_fragments}:
        return Verdict.FINE
    rewrites = theirs.new_fragments and theirs.update_mode == pb.Update.REWRITE_ROWS
    return _retry(rewrites or _replaced_fields(ours) & {*theirs.fields_modified})


def _replaced_and_projected(ours: pb.DataReplacement, theirs: pb.Project) -> Verdict:
    """y: as n; besides, they may have dropped a column that ours replaces."""
    if not theirs.preserves_nullability:
        return Verdict.RETRY
    return _incompatible(_replaced_fields(ours) - {field.id for field in theirs.schema})


def _both_replace(ours: pb.DataReplacement, theirs: pb.DataReplacement) -> Verdict:
    """E: one column of one fragment replaced by both."""
    cells = [
        {(entry.fragment_id, field) for entry in side.replacements for field in entry.new_file.fields}
        for side in (ours, theirs)
    ]
    return _retry(cells[0] & cells[1])


# Indices.


def _index_and_update(ours: pb.CreateIndex, theirs: pb.Update) -> Verdict:
    """q: their update rewrote columns in place that ours has indexed: those fragments leave the index."""
    rewritten = theirs.update_mode == pb.Update.REWRITE_COLUMNS and set(theirs.fields_modified)
    touched = rewritten and any(rewritten & {*index.fields} for index in ours.new_indices)
    return Verdict.REBASE if touched else Verdict.FINE


def _both_index(ours: pb.CreateIndex, theirs: pb.CreateIndex) -> Verdict:
    """i: both create one index, or one creates it while the other replaces parts of it."""
    new, their_made = _names(ours.new_indices), _names(theirs.new_indices)
    gone, their_gone = _names(ours.removed_indices), _names(theirs.removed_indices)
    added, their_added = new - gone, their_made - their_gone
    twice = {entry.uuid.uuid for entry in ours.removed_indices} & {
        entry.uuid.uuid for entry in theirs.removed_indices
    }
    both_gone = {entry.name for entry in ours.removed_indices if entry.uuid.uuid in twice}
    return _retry(
        new & their_made or added & their_gone or their_added & gone or both_gone & (new | their_made)
    )


def _indexed_and_moved(ours: pb.CreateIndex, theirs: pb.Rewrite) -> Verdict:
    """h: theirs moved rows that ours has indexed by their addresses.

    Or ours replaces the fragment-reuse entry, and theirs may have extended it: its transaction does not tell.
    """
    return _retry(_indexes(ours, _fragments(theirs)) or FRAGMENT_REUSE in _names(ours.new_indices))


def _moved_and_indexed(ours: pb.Rewrite, theirs: pb.CreateIndex) -> Verdict:
    """j: as h, the other way round; a new fragment-reuse entry of theirs does not know of our rewrite."""
    if FRAGMENT_REUSE in _names(theirs.new_indices):
        return Verdict.INCOMPATIBLE
    return _indexed_and_moved(theirs, ours)


def _deferred_and_indexed(ours: pb.Rewrite, theirs: pb.CreateIndex) -> Verdict:
    """J: their index keeps the old addresses, which ours can translate for groups that it covers wholly."""
    groups = [BitMap(fragment.id for fragment in group.old_fragments) for group in ours.groups]
    return _retry(any(_keeps_from_moving(entry, groups) for entry in theirs.new_indices))


def _keeps_from_moving(entry: table_pb2.IndexMetadata, groups: Iterable[BitMap]) -> bool:
    covered = _coverage(entry)
    if covered is None:
        return True
    kind = kind_of(entry)
    translated = kind is None or kind.is_translated
    return any(covered & group and not (translated and group <= covered) for group in groups)


def _indexed_and_replaced(ours: pb.CreateIndex, theirs: pb.DataReplacement) -> Verdict:
    """r: theirs replaced a column that ours has indexed, in whatever fragment."""
    fields = _replaced_fields(theirs)
    return _retry(any(fields & {*index.fields} for index in ours.new_indices))


def _replaced_and_indexed(ours: pb.DataReplacement, theirs: pb.CreateIndex) -> Verdict:
    """u: as r, the other way round."""
    return _indexed_and_replaced(theirs, ours)


def _logged_and_merged(ours: pb.CreateIndex, theirs: Message) -> Verdict:
    """l: ours begins a write-ahead log for columns that are no longer all of them."""
    return _retry(MEM_WAL in _names(ours.new_indices))


def _merged_and_logged(ours: Message, theirs: pb.CreateIndex) -> Verdict:
    """a: as l, the other way round."""
    return _logged_and_merged(theirs, ours)


def _indexes(index: pb.CreateIndex, fragments: set[int]) -> bool:
    """Whether a new index covers one of the fragments, or has no coverage bitmap."""
    coverages = [_coverage(entry) for entry in index.new_indices]
    return any(covered is None or covered & BitMap(fragments) for covered in coverages)


def _coverage(entry: table_pb2.IndexMetadata) -> BitMap | None:
    """Return the fragments that an entry covers; None if its bitmap is missing or damaged."""
    try:
        return covered_fragments(entry)
    except FormatError:
        return None


def _names(entries: Iterable[table_pb2.IndexMetadata]) -> set[str]:
    return {entry.name for entry in entries}


# Settings.


def _both_overwrite(ours: pb.Overwrite, theirs: pb.Overwrite) -> Verdict:
    """o: both replace the table; they also set one config key."""
    shared = set(ours.config_upsert_values) & set(theirs.config_upsert_values)
    return Verdict.INCOMPATIBLE if shared else Verdict.RETRY


def _same_config_key(ours: pb.Overwrite, theirs: pb.UpdateConfig) -> Verdict:
    """k: their config update sets or deletes a key that we set."""
    written, deleted = _config_keys(theirs)
    return _incompatible((written | deleted) & set(ours.config_upsert_values))


def _config_overwritten(ours: pb.UpdateConfig, theirs: pb.Overwrite) -> Verdict:
    """v: their overwrite set a key that we update, or replaced the schema that we annotate."""
    if _names_schema(ours) or ours.field_metadata_updates:
        return Verdict.INCOMPATIBLE
    return _same_config_key(theirs, ours)


def _schema_merged(ours: pb.UpdateConfig, theirs: Message) -> Verdict:
    """g: theirs brought a schema of its own, with its own metadata."""
    return _retry(_changes_schema(ours))


def _schema_annotated(ours: Message, theirs: pb.UpdateConfig) -> Verdict:
    """G: as g, the other way round."""
    return _schema_merged(theirs, ours)


def _schema_texts(ours: Message, theirs: pb.UpdateConfig) -> Verdict:
    """s: their update changes metadata of the schema or of fields, which ours would silently take back."""
    return _incompatible(_changes_schema(theirs))


def _schema_restored(ours: pb.UpdateConfig, theirs: Message) -> Verdict:
    """t: the schema that we annotate was taken back."""
    return _schema_texts(theirs, ours)


def _both_update_config(ours: pb.UpdateConfig, theirs: pb.UpdateConfig) -> Verdict:
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
    return _incompatible(clash or schema or fields)


def _same_base(ours: pb.UpdateBases, theirs: pb.UpdateBases) -> Verdict:
    """B: one id, name or path given to a base by both."""
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
    """Return the config keys that an update sets and deletes, in its present or its older form."""
    written, deleted = _map_keys(update.config_updates)
    return written | set(update.upsert_values), deleted | set(update.delete_keys)


def _map_keys(updates: pb.UpdateMap) -> tuple[set[str], set[str]]:
    """Return the keys that are set and deleted. Keys that `replace` drops do not count, as for pylance."""
    written = {entry.key for entry in updates.update_entries if entry.HasField("value")}
    return written, {entry.key for entry in updates.update_entries} - written


def _changes_schema(update: pb.UpdateConfig) -> bool:
    """Whether a config update changes metadata of the schema or of fields; an empty one does not."""
    updates = update.schema_metadata_updates
    changes = updates.update_entries or updates.replace or update.schema_metadata
    return bool(changes or update.field_metadata_updates)


def _names_schema(update: pb.UpdateConfig) -> bool:
    """Whether a config update speaks of the schema's metadata at all."""
    return bool(update.schema_metadata) or update.HasField("schema_metadata_updates")


# The parts of a table that an operation changes.


def _fragments(operation: Any) -> set[int]:
    """Return the ids of the existing fragments that an operation changes, moves or removes."""
    return _TOUCHED[type(operation)](operation)


def _rewritten(operation: pb.Rewrite) -> set[int]:
    groups: list[Any] = [operation, *operation.groups]
    return {fragment.id for group in groups for fragment in group.old_fragments}


_TOUCHED: dict[type, Callable[[Any], set[int]]] = {
    pb.Delete: lambda o: {*o.deleted_fragment_ids} | {fragment.id for fragment in o.updated_fragments},
    pb.Update: lambda o: {*o.removed_fragment_ids} | {fragment.id for fragment in o.updated_fragments},
    pb.Rewrite: _rewritten,
    pb.DataReplacement: lambda o: {replacement.fragment_id for replacement in o.replacements},
    pb.DataOverlay: lambda o: {group.fragment_id for group in o.groups},
}


def _replaced_fields(operation: pb.DataReplacement) -> set[int]:
    return {field for entry in operation.replacements for field in entry.new_file.fields}


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "d": _both_delete,
        "e": _both_update,
        "p": _keys_appended,
        "f": _same_fragments,
        "w": _compacted_tables,
        "n": _tightened,
        "z": _tightens,
        "P": _updated_and_projected,
        "x": _replaced_rows_gone,
        "y": _replaced_and_projected,
        "E": _both_replace,
        "q": _index_and_update,
        "i": _both_index,
        "h": _indexed_and_moved,
        "j": _moved_and_indexed,
        "J": _deferred_and_indexed,
        "r": _indexed_and_replaced,
        "u": _replaced_and_indexed,
        "l": _logged_and_merged,
        "a": _merged_and_logged,
        "o": _both_overwrite,
        "k": _same_config_key,
        "v": _config_overwritten,
        "g": _schema_merged,
        "G": _schema_annotated,
        "s": _schema_texts,
        "t": _schema_restored,
        "c": _both_update_config,
        "B": _same_base,
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
    """Return whether `ours` may be committed on top of `theirs`, which it did not know of.

    Args:
        ours: the transaction being committed; its operation has a row in the grid.
        theirs: a transaction committed since `ours.read_version`.
        deferred: ours is a Rewrite that brings a fragment-reuse entry.
    """
    if theirs.name is None or ours.name is None:
        return Verdict.INCOMPATIBLE
    cell = CONFLICTS["rewrite_deferred" if deferred else ours.name][theirs.name]
    return cell if isinstance(cell, Verdict) else cell(ours.operation, theirs.operation)
