"""Rewrite: the same rows in other fragments, group by group; what compaction commits.

A group's old fragments go and its new ones come. New fragments have ids that were reserved for them, or id 0
and get the next one. Rows keep their stable ids and their versions, so the new fragments bring complete
sequences. A version lists its fragments by id, so rewritten rows move behind those that stay; inside the
groups and among them the order of rows is kept.

Indices (Lance table format, rewrite and index maintenance):
    named in `rewritten_indices`   have other files under another uuid; cover the new fragments, not the old
    others, without stable row ids stay as they are: the old ids name nothing any more, so the rewritten rows
                                   are not covered. With a fragment-reuse entry, which tells where rows went,
                                   they cover the new fragments
    others, with stable row ids    cover the new fragments if they consist of row ids; those of row addresses
                                   lose the rewritten fragments
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, RetryableConflictError, UnsupportedFormatError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.index_kinds import kind_of
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE
from spark_lance.table.format.rowids import count_row_ids
from spark_lance.table.operations.mem_wal_marks import without_catchup
from spark_lance.table.operations.next_version import (
    MAX_FRAGMENT_ID,
    ReuseEntry,
    Stamp,
    finish_version,
    keep_marks,
    start_version,
)

Group = tuple[frozenset[int], frozenset[int]]


def rewrite(base: Manifest, operation: transaction_pb2.Transaction.Rewrite, stamp: Stamp) -> Manifest:
    """Return the version after `base` with the new fragments of every group in place of the old ones.

    Raises:
        RetryableConflictError: an old fragment is gone or is not what was rewritten, or another writer has
            extended the fragment-reuse entry or replaced an index that was rewritten.
        FormatError: fragment ids collide or run out, a new fragment lacks row ids, or a rewritten index
            covers part of a group.
        UnsupportedFormatError: the operation is in the form that earlier writers used.
    """
    if operation.old_fragments or operation.new_fragments:
        raise UnsupportedFormatError("a rewrite in its older form")
    _check_sources(base, operation)
    message = start_version(base, stamp)
    keep_marks(message)
    gone = {fragment.id for group in operation.groups for fragment in group.old_fragments}
    message.ClearField("fragments")
    message.fragments.extend(fragment for fragment in base.fragments if fragment.id not in gone)
    groups = [_number(message, group, base.uses_stable_row_ids) for group in operation.groups]
    section = _index_section(base, operation, groups, stamp)
    section = without_catchup(section, message.fragments, message.version, stamp)
    return finish_version(message, section, base.naming, stamp)


def _check_sources(base: Manifest, operation: transaction_pb2.Transaction.Rewrite) -> None:
    """Refuse to drop a fragment that is not as it was when its rows were copied."""
    present = {fragment.id: fragment for fragment in base.fragments}
    for group in operation.groups:
        for fragment in group.old_fragments:
            if present.get(fragment.id) != fragment:
                raise RetryableConflictError(
                    f"fragment {fragment.id} has been changed or removed since its rows were rewritten: "
                    "run the operation again"
                )


def _number(
    message: table_pb2.Manifest, group: transaction_pb2.Transaction.Rewrite.RewriteGroup, stable: bool
) -> Group:
    """Add a group's new fragments to a manifest in the making; return its old and new ids."""
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
    stamp: Stamp,
) -> bytes:
    """Return the index section after the rewrite."""
    replaced = {entry.old_id.uuid: entry for entry in operation.rewritten_indices}
    if not replaced and not base.uses_stable_row_ids and stamp.reuse is None:
        return base.index_section
    try:
        section = table_pb2.IndexSection.FromString(base.index_section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}", path=base.path) from error
    if missing := replaced.keys() - {entry.uuid.uuid for entry in section.indices}:
        raise RetryableConflictError(
            f"another writer has changed {len(missing)} of the rewritten indices meanwhile: "
            "run the operation again"
        )
    for entry in section.indices:
        if (new := replaced.get(entry.uuid.uuid)) is not None:
            _move_coverage(entry, groups, follows=True, complete=True)
            _replace(entry, new)
        elif entry.fields and stamp.reuse is not None:
            _move_coverage(entry, groups, follows=True)
        elif entry.fields and base.uses_stable_row_ids:
            _move_coverage(entry, groups, follows=_holds_row_ids(entry))
    if stamp.reuse is not None:
        _replace_reuse_entry(section, stamp.reuse)
    return section.SerializeToString()


def _holds_row_ids(entry: table_pb2.IndexMetadata) -> bool:
    """Whether an index of a table with stable row ids consists of these."""
    kind = kind_of(entry)
    return kind is not None and entry.index_version <= kind.row_ids_until


def _move_coverage(
    entry: table_pb2.IndexMetadata, groups: Sequence[Group], *, follows: bool, complete: bool = False
) -> None:
    """Take the old ids out of an index's coverage and, if it follows its rows, put the new ones in.

    Args:
        entry: the index; one that does not tell its coverage is left alone.
        groups: old and new ids.
        follows: whether a wholly covered group's new fragments are covered.
        complete: refuse a group that is covered in part; otherwise such a group loses its coverage.
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
    """Put a fragment-reuse entry in place of the one that it was made from."""
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
