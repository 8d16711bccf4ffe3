"""Rewrite: replace groups of fragments by new fragments with the same rows; the operation of compaction.

New fragments have reserved ids, or id 0 to get the next id. Rows keep their stable ids and their versions, so
the new fragments have complete sequences. A version lists its fragments by id, so rewritten rows are after
the other rows. The order of rows inside and among groups is kept.

Indexes (Lance table format, rewrite and index maintenance):
    in `rewritten_indices`         have new files and a new uuid, and cover the new fragments, not the old
    others, without stable row ids do not change: the old ids do not exist any more, so the rewritten rows are
                                   not covered. With a fragment-reuse entry, which records the moved rows,
                                   they cover the new fragments
    others, with stable row ids    cover the new fragments if they store row ids; if they store row addresses,
                                   they lose the rewritten fragments
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, RetryableConflictError, UnsupportedFormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.index_kinds import find_index_kind
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE
from spark_lance.table.format.rowids import count_row_ids
from spark_lance.table.operations.mem_wal_marks import without_catchup
from spark_lance.table.operations.next_version import (
    MAX_FRAGMENT_ID,
    CommitContext,
    ReuseEntry,
    finish_version,
    keep_marks,
    start_version,
)

Group = tuple[frozenset[int], frozenset[int]]


def rewrite(
    base: Manifest, operation: transaction_pb2.Transaction.Rewrite, context: CommitContext
) -> Manifest:
    """Return the version after `base` with the new fragments of every group in place of the old ones.

    Raises:
        RetryableConflictError: an old fragment was removed or changed, or another writer has extended the
            fragment-reuse entry or replaced a rewritten index.
        FormatError: fragment ids collide or run out, a new fragment lacks row ids, or a rewritten index
            covers part of a group.
        UnsupportedFormatError: the operation has the format of old writers.
    """
    if operation.old_fragments or operation.new_fragments:
        raise UnsupportedFormatError("a rewrite in its older form")
    _check_sources(base, operation)
    message = start_version(base, context)
    keep_marks(message)
    old_ids = {fragment.id for group in operation.groups for fragment in group.old_fragments}
    message.ClearField("fragments")
    message.fragments.extend(fragment for fragment in base.fragments if fragment.id not in old_ids)
    groups = [_add_fragments(message, group, base.uses_stable_row_ids) for group in operation.groups]
    section = _index_section(base, operation, groups, context)
    section = without_catchup(section, message.fragments, message.version, context)
    return finish_version(message, section, base.naming, context)


def _check_sources(base: Manifest, operation: transaction_pb2.Transaction.Rewrite) -> None:
    """Refuse to remove a fragment that has changed since its rows were copied."""
    present = {fragment.id: fragment for fragment in base.fragments}
    for group in operation.groups:
        for fragment in group.old_fragments:
            if present.get(fragment.id) != fragment:
                raise RetryableConflictError(
                    f"fragment {fragment.id} has been changed or removed since its rows were rewritten: "
                    "run the operation again"
                )


def _add_fragments(
    message: table_pb2.Manifest, group: transaction_pb2.Transaction.Rewrite.RewriteGroup, stable: bool
) -> Group:
    """Add a group's new fragments to the message of a new manifest; return the old and the new ids."""
    added = set()
    for source in group.new_fragments:
        fragment = message.fragments.add()
        fragment.CopyFrom(source)
        if not fragment.id:
            fragment.id = message.max_fragment_id + 1 if message.HasField("max_fragment_id") else 0
        if fragment.id > MAX_FRAGMENT_ID:
            raise FormatError(f"the table has used up its fragment ids: {fragment.id} does not fit 32 bits")
        message.max_fragment_id = max(message.max_fragment_id, fragment.id)
        rows = fragment.physical_rows
        inline = fragment.WhichOneof("row_id_sequence") != "column_row_ids"
        if stable and inline and count_row_ids(fragment.inline_row_ids, rows) != rows:
            raise FormatError(f"the rewritten fragment {fragment.id} does not bring its {rows} row ids")
        added.add(fragment.id)
    return frozenset(fragment.id for fragment in group.old_fragments), frozenset(added)


def _index_section(
    base: Manifest,
    operation: transaction_pb2.Transaction.Rewrite,
    groups: Sequence[Group],
    context: CommitContext,
) -> bytes:
    """Return the index section after the rewrite."""
    replaced = {entry.old_id.uuid: entry for entry in operation.rewritten_indices}
    if not replaced and not base.uses_stable_row_ids and context.reuse is None:
        return base.index_section
    try:
        section = table_pb2.IndexSection.FromString(base.index_section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}", path=base.path) from error
    if missing := replaced.keys() - {entry.uuid.uuid for entry in section.indices}:
        raise RetryableConflictError(
            f"another writer has changed {len(missing)} of the rewritten indexes meanwhile: "
            "run the operation again"
        )
    for entry in section.indices:
        if (new := replaced.get(entry.uuid.uuid)) is not None:
            _move_coverage(entry, groups, follows=True, complete=True)
            _replace(entry, new)
        elif entry.fields and context.reuse is not None:
            _move_coverage(entry, groups, follows=True)
        elif entry.fields and base.uses_stable_row_ids:
            _move_coverage(entry, groups, follows=_stores_row_ids(entry))
    if context.reuse is not None:
        _replace_reuse_entry(section, context.reuse)
    return section.SerializeToString()


def _stores_row_ids(entry: table_pb2.IndexMetadata) -> bool:
    """Return whether an index of a table with stable row ids stores row ids."""
    kind = find_index_kind(entry)
    return kind is not None and entry.index_version <= kind.row_ids_until


def _move_coverage(
    entry: table_pb2.IndexMetadata, groups: Sequence[Group], *, follows: bool, complete: bool = False
) -> None:
    """Remove the old ids from an index's coverage and, with `follows`, add the new ids.

    Args:
        entry: the index; without a coverage bitmap, it is not changed.
        groups: old and new ids.
        follows: whether the new fragments of a completely covered group are covered.
        complete: raise for a partly covered group; otherwise such a group loses its coverage.
    """
    covered = covered_fragments(entry)
    if covered is None:
        return
    before = BitMap(covered)
    for old, new in ((BitMap(old), BitMap(new)) for old, new in groups):
        if not old & before:
            continue
        if complete and not old <= before:
            raise FormatError(f"the rewritten index {entry.name!r} covers only some fragments of a group")
        covered -= old
        if follows and old <= before:
            covered |= new
    if covered != before:
        entry.fragment_bitmap = covered.serialize()


def _replace(entry: table_pb2.IndexMetadata, new: transaction_pb2.Transaction.Rewrite.RewrittenIndex) -> None:
    """Point an index entry to its rewritten files."""
    entry.uuid.CopyFrom(new.new_id)
    entry.index_version = new.new_index_version
    if new.HasField("new_index_details"):
        entry.index_details.CopyFrom(new.new_index_details)
    entry.ClearField("files")
    entry.files.extend(new.new_index_files)
    entry.ClearField("base_id")


def _replace_reuse_entry(section: table_pb2.IndexSection, reuse: ReuseEntry) -> None:
    """Replace the fragment-reuse entry by the entry that extends it."""
    present = [index.uuid.uuid for index in section.indices if index.name == FRAGMENT_REUSE]
    if present != ([reuse.replaces] if reuse.replaces else []):
        raise RetryableConflictError(
            "another writer has changed the fragment-reuse entry meanwhile: run the operation again"
        )
    others = [index for index in section.indices if index.name != FRAGMENT_REUSE]
    copies = table_pb2.IndexSection(indices=others)
    section.ClearField("indices")
    section.indices.extend(copies.indices)
    section.indices.append(reuse.entry)
