"""Update: change and insert rows in one version.

    REWRITE_ROWS      the old rows are deleted (`updated_fragments` with new deletion files, or
                      `removed_fragment_ids`); `new_fragments` have the changed rows, then the inserted rows
    REWRITE_COLUMNS   the rows do not move; `updated_fragments` have new data files for `fields_modified`

With stable row ids, a new fragment has the ids of its changed rows, which are first. The other rows are
inserted rows, and this module assigns their ids. A changed row keeps the creation version of its id. It is
looked up in the manifest, unless the new fragment has it. The update version of the row is this version. In a
fragment with rewritten columns, only the rows in `updated_fragment_offset_bitmaps` get this update version.

Indexes still cover fragments whose rows were only deleted. Indexes on a modified field no longer cover the
updated fragments. This module ignores `fields_for_preserving_frag_bitmap` and `inserted_rows`: they are for
conflict checks of other writers. (Lance table format, update and stable row ids.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.proto import index_pb2, table_pb2, transaction_pb2
from spark_lance.table.format.bitmaps import parse_offsets
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.rowids import (
    count_row_ids,
    decode_row_ids,
    decode_row_versions,
    encode_row_versions,
    fragment_row_ids,
    pack_row_versions,
)
from spark_lance.table.operations.index_upkeep import keep_relevant, remove_fragments_from_bitmaps
from spark_lance.table.operations.mem_wal_marks import mark_compacted
from spark_lance.table.operations.merge import drop_dead_files
from spark_lance.table.operations.next_version import (
    CommitContext,
    finish_version,
    keep_marks,
    number_fragments,
    start_version,
)

pb = transaction_pb2.Transaction
UInt64Array = npt.NDArray[np.uint64]


def update_message(
    updated: Iterable[table_pb2.DataFragment],
    removed: Iterable[int],
    added: Iterable[table_pb2.DataFragment],
    field_ids: Iterable[int],
    inserted_rows: pb.KeyExistenceFilter | None = None,
    compacted: Iterable[index_pb2.CompactedSsTable] = (),
) -> pb.Update:
    """Return the operation that replaces and inserts whole rows.

    Args:
        updated: complete fragments with their new deletion files.
        removed: ids of the fragments that lose their last row.
        added: fragments with id 0: the changed rows, then the inserted rows. With stable row ids, they have
            the ids of the changed rows.
        field_ids: the fields whose values changed.
        inserted_rows: the keys of the inserted rows, to detect concurrent inserts of the same key.
        compacted: the MemWAL SSTables that the rows come from: shard and highest generation.
    """
    return pb.Update(
        updated_fragments=updated,
        removed_fragment_ids=removed,
        new_fragments=added,
        fields_for_preserving_frag_bitmap=field_ids,
        inserted_rows=inserted_rows,
        compacted_sstables=compacted,
    )


def update(base: Manifest, operation: pb.Update, context: CommitContext) -> Manifest:
    """Return the version after `base` with the operation's rows and columns.

    Raises:
        FormatError: the operation names fragments that `base` does not have, its row ids or offsets do not
            match its fragments, fragment ids run out, or index entries are damaged.
        IncompatibleConflictError: another writer compacted the same SSTables.
    """
    message = start_version(base, context)
    keep_marks(message)
    removed = set(operation.removed_fragment_ids)
    updated = {fragment.id: fragment for fragment in operation.updated_fragments}
    before = {fragment.id: fragment for fragment in base.fragments}
    if missing := (removed | updated.keys()) - before.keys():
        raise FormatError(f"an update names fragments that do not exist: {sorted(missing)}")
    message.ClearField("fragments")
    message.fragments.extend(
        updated.get(fragment.id, fragment) for fragment in base.fragments if fragment.id not in removed
    )
    if operation.update_mode == pb.Update.REWRITE_COLUMNS:
        for fragment in message.fragments:
            if fragment.id in updated:
                drop_dead_files(fragment)
                if base.uses_stable_row_ids:
                    _set_update_versions(fragment, before[fragment.id], operation, message.version)
    first_new = len(message.fragments)
    number_fragments(message, operation.new_fragments)
    if base.uses_stable_row_ids:
        _set_new_row_versions(message.fragments[first_new:], operation, before, message.version)
    section = remove_fragments_from_bitmaps(base.index_section, updated.keys(), operation.fields_modified)
    section = mark_compacted(
        keep_relevant(section, message), operation.compacted_sstables, message.version, context
    )
    return finish_version(message, section, base.naming, context)


def _set_update_versions(
    fragment: table_pb2.DataFragment, before: table_pb2.DataFragment, operation: pb.Update, version: int
) -> None:
    """Set the update version of the rows whose columns were rewritten."""
    data = operation.updated_fragment_offset_bitmaps.get(fragment.id)
    if not data or before.HasField("column_last_updated_at_versions"):
        # A data file has the versions. It is not read here; the operation has the new file.
        return
    rows = fragment.physical_rows
    offsets = parse_offsets(data, rows, f"updated rows of fragment {fragment.id}")
    versions = _decode_versions(before.inline_last_updated_at_versions, rows)
    versions[offsets] = version
    fragment.inline_last_updated_at_versions = pack_row_versions(versions)


def _set_new_row_versions(
    added: Sequence[table_pb2.DataFragment],
    operation: pb.Update,
    before: dict[int, table_pb2.DataFragment],
    version: int,
) -> None:
    """Set the creation and update versions of rows in new fragments with changed rows."""
    counts = [count_row_ids(new.inline_row_ids, new.physical_rows) for new in operation.new_fragments]
    if not any(counts):
        return
    changed_ids = [
        *operation.removed_fragment_ids,
        *(fragment.id for fragment in operation.updated_fragments),
    ]
    creation_versions = _read_creation_versions([before[number] for number in changed_ids])
    for fragment, new, count in zip(added, operation.new_fragments, counts, strict=True):
        if not count:
            continue
        if new.inline_created_at_versions:
            created = decode_row_versions(new.inline_created_at_versions, count)
        else:
            created = _look_up_versions(
                decode_row_ids(new.inline_row_ids, count), *creation_versions, version
            )
        if count < new.physical_rows:
            fresh = np.full(new.physical_rows - count, version, np.uint64)
            created = np.concatenate([created, fresh])
        fragment.inline_created_at_versions = pack_row_versions(created)
        fragment.inline_last_updated_at_versions = encode_row_versions(version, new.physical_rows)


def _read_creation_versions(fragments: Sequence[table_pb2.DataFragment]) -> tuple[UInt64Array, UInt64Array]:
    """Return the row ids of fragments (uint64, ascending), and the creation version of each row."""
    fragments = [fragment for fragment in fragments if not fragment.HasField("column_row_ids")]
    ids = [fragment_row_ids(fragment) for fragment in fragments]
    versions = [_decode_versions(f.inline_created_at_versions, f.physical_rows) for f in fragments]
    if not ids:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    all_ids, all_versions = np.concatenate(ids), np.concatenate(versions)
    order = np.argsort(all_ids, kind="stable")
    return all_ids[order], all_versions[order]


def _look_up_versions(
    ids: UInt64Array, sorted_ids: UInt64Array, versions: UInt64Array, missing: int
) -> UInt64Array:
    """Return the version of each id; `missing` for an unknown id."""
    result = np.full(len(ids), missing, np.uint64)
    if len(sorted_ids):
        places = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
        hit = sorted_ids[places] == ids
        result[hit] = versions[places[hit]]
    return result


def _decode_versions(data: bytes, rows: int) -> UInt64Array:
    """Return one version per row (uint64); 1, the table's first version, if there is no data."""
    return decode_row_versions(data, rows) if data else np.ones(rows, np.uint64)
