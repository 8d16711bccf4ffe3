"""Common parts of all operations: start the next version, and assign fragment ids and row ids.

Fragment ids and row ids come from counters that never decrease, even after an overwrite or after the last
fragment was deleted. (Lance table format, fragments and stable row ids.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_lance.errors import FormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import file_pb2, table_pb2
from spark_lance.table.format.features import SPILLED_LINEAGE, STABLE_ROW_IDS, FragmentFacts, recompute
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.rowids import append_row_ids, count_row_ids, encode_row_versions, spilled_fields

WRITER_LIBRARY = "spark_lance"
# The package's version with 100 added to the major number. Lance before 0.39 ignores the library name. It
# treats a version below 0.8.15 as its own old release, and expects the errors of that release.
WRITER_VERSION = "100.1.0"
_MAJOR_OFFSET = 100
MAX_FRAGMENT_ID = 2**32 - 1
_NANOS = 1_000_000_000
# Up to this many fragments are deleted from a list one by one; each deletion moves the fragments after it.
_FEW_FRAGMENTS = 100


@dataclass(frozen=True, eq=False)
class ReuseEntry:
    """A fragment-reuse entry for the index section. It is not part of the transaction.

    Attributes:
        entry: the entry.
        replaces: uuid of the entry that it extends; empty if there was none.
    """

    entry: table_pb2.IndexMetadata
    replaces: bytes


@dataclass(frozen=True)
class CommitContext:
    """The values of a commit that go into every version it creates.

    Attributes:
        root: the table's root path.
        transaction_file: name of the transaction's file.
        time_ns: the time of the commit in nanoseconds since the epoch, UTC.
        restored: the older version that a Restore restores.
        reuse: the fragment-reuse entry of a Rewrite that does not change the indexes.
        config: settings to add to the version after the operation.
        number: the number of the version; by default the one after the version that it is built on.
    """

    root: str
    transaction_file: str
    time_ns: int
    restored: Manifest | None = None
    reuse: ReuseEntry | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    number: int | None = None

    def number_after(self, base: Manifest) -> int:
        """Return the number of the version that is built on `base`."""
        return base.version + 1 if self.number is None else self.number


def empty_manifest(file_version: FileVersion, *, stable_row_ids: bool) -> Manifest:
    """Return an empty version 0, the base of the first version of a table."""
    message = table_pb2.Manifest()
    message.data_format.file_format = "lance"
    message.data_format.version = file_version.text
    if stable_row_ids:
        message.reader_feature_flags = message.writer_feature_flags = STABLE_ROW_IDS
    return Manifest(message, b"", ManifestNaming.V2, "")


def start_version(base: Manifest, context: CommitContext) -> table_pb2.Manifest:
    """Return a copy of the base version's message with the number and the time of the next version.

    It keeps all fields, including unknown ones, except fields about the base's own file.
    """
    message = table_pb2.Manifest()
    message.CopyFrom(base.message)
    for name in ("index_section", "transaction_section", "transaction_section_deprecated", "tag"):
        message.ClearField(name)
    message.version = context.number_after(base)
    message.transaction_file = context.transaction_file
    message.timestamp.seconds, message.timestamp.nanos = divmod(context.time_ns, _NANOS)
    message.ClearField("writer_version")
    message.writer_version.library = WRITER_LIBRARY
    message.writer_version.version = WRITER_VERSION
    return message


def writer_name(message: table_pb2.Manifest) -> str | None:
    """Return the library and release that wrote a version, such as "lance 1.0.0"; None if unknown."""
    if not message.HasField("writer_version"):
        return None
    writer = message.writer_version
    major, _, rest = writer.version.partition(".")
    version = writer.version
    if writer.library == WRITER_LIBRARY and major.isdecimal() and int(major) >= _MAJOR_OFFSET:
        version = f"{int(major) - _MAJOR_OFFSET}.{rest}"
    ending = f"-{writer.prerelease}" if writer.prerelease else ""
    return f"{writer.library} {version}{ending}"


def keep_marks(message: table_pb2.Manifest) -> None:
    """Record the highest fragment id before the fragments that carry it are dropped."""
    highest = max((fragment.id for fragment in message.fragments), default=-1)
    if highest >= 0:
        message.max_fragment_id = max(highest, message.max_fragment_id)


def number_fragments(
    message: table_pb2.Manifest, added: Iterable[table_pb2.DataFragment], highest: int | None = None
) -> None:
    """Append new fragments to the message of a new manifest, and assign fragment ids and row ids.

    A fragment with id 0 gets the next id. Any other id was reserved and is kept.

    Args:
        highest: the highest id in the manifest, if known; -1 without fragments.

    Raises:
        FormatError: ids run out, or a fragment has more row ids than rows.
    """
    if highest is None:
        highest = max((fragment.id for fragment in message.fragments), default=-1)
    if message.HasField("max_fragment_id"):
        highest = max(highest, message.max_fragment_id)
    stable = message.reader_feature_flags & STABLE_ROW_IDS
    for source in added:
        fragment = message.fragments.add()
        fragment.CopyFrom(source)
        if not fragment.id:
            fragment.id = highest + 1
        highest = max(highest, fragment.id)
        if stable:
            _assign_row_ids(message, fragment)
    if highest > MAX_FRAGMENT_ID:
        raise FormatError(f"the table has used up its fragment ids: {highest} does not fit 32 bits")
    if highest >= 0:
        message.max_fragment_id = highest


def change_fragments(
    message: table_pb2.Manifest,
    updated: Iterable[table_pb2.DataFragment],
    removed: Iterable[int],
    operation: str,
) -> None:
    """Replace fragments with the same ids, and remove others.

    Only changed fragments are copied, because a table may have a million fragments.

    Raises:
        FormatError: a fragment id does not exist; the message names the operation.
    """
    changed = {fragment.id: fragment for fragment in updated}
    removed_ids = set(removed)
    affected = removed_ids | changed.keys()
    if not affected:
        return
    places = {
        number: place
        for place, number in enumerate(fragment.id for fragment in message.fragments)
        if number in affected
    }
    if missing := affected - places.keys():
        raise FormatError(f"{operation} names fragments that do not exist: {sorted(missing)}")
    for number, fragment in changed.items():
        message.fragments[places[number]].CopyFrom(fragment)
    if len(removed_ids) > _FEW_FRAGMENTS:
        remaining = [fragment for fragment in message.fragments if fragment.id not in removed_ids]
        copies = table_pb2.Manifest(fragments=remaining)
        message.ClearField("fragments")
        message.fragments.MergeFrom(copies.fragments)
        return
    for place in sorted((places[number] for number in removed_ids), reverse=True):
        del message.fragments[place]


def replace_schema(message: table_pb2.Manifest, fields: Iterable[file_pb2.Field]) -> None:
    """Replace the fields in the message of a new manifest, and raise the highest field id if recorded."""
    message.ClearField("fields")
    message.fields.extend(fields)
    if message.HasField("max_allocated_field_id"):
        highest = max((field.id for field in message.fields), default=-1)
        message.max_allocated_field_id = max(message.max_allocated_field_id, highest)


def mark_updated(message: table_pb2.Manifest, fragment: table_pb2.DataFragment) -> None:
    """Set the update version of all rows of a fragment to the new version, if row ids are stable."""
    if message.reader_feature_flags & STABLE_ROW_IDS:
        versions = encode_row_versions(message.version, fragment.physical_rows)
        fragment.inline_last_updated_at_versions = versions


def finish_version(
    message: table_pb2.Manifest,
    index_section: bytes,
    naming: ManifestNaming,
    context: CommitContext,
    facts: FragmentFacts | None = None,
) -> Manifest:
    """Return the new version: sort fragments by id, add the context's settings, compute the feature flags.

    Args:
        facts: the facts of the message's fragments, if known.

    Raises:
        FormatError: two fragments have the same id.
    """
    facts = facts or FragmentFacts.of(message.fragments)
    if not facts.is_rising:
        ids = [fragment.id for fragment in message.fragments]
        if len(set(ids)) != len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise FormatError(f"two fragments have the id {twice}")
        ordered = sorted(message.fragments, key=lambda fragment: fragment.id)
        copies = table_pb2.Manifest(fragments=ordered)
        message.ClearField("fragments")
        message.fragments.MergeFrom(copies.fragments)
        facts = FragmentFacts.of(message.fragments)
    message.config.update(context.config)
    recompute(message, index_section, facts)
    if message.reader_feature_flags & SPILLED_LINEAGE:
        _check_lineage(message)
    built = Manifest(message, index_section, naming, manifest_path(context.root, message.version, naming))
    return built.with_facts(facts)


def _check_lineage(message: table_pb2.Manifest) -> None:
    """Refuse a version with a fragment that lost the data file with its row lineage."""
    for fragment in message.fragments:
        field_ids = {number for file in fragment.files for number in file.fields}
        if not spilled_fields(fragment) <= field_ids:
            raise FormatError(f"fragment {fragment.id} would lose the file with its row lineage")


def _assign_row_ids(message: table_pb2.Manifest, fragment: table_pb2.DataFragment) -> None:
    """Complete a new fragment's row ids, and set the creation and update versions of its rows."""
    rows = fragment.physical_rows
    id_count = count_row_ids(fragment.inline_row_ids, rows)
    if id_count < rows or not fragment.HasField("inline_row_ids"):
        fresh = rows - id_count
        fragment.inline_row_ids = append_row_ids(fragment.inline_row_ids, message.next_row_id, fresh)
        message.next_row_id += fresh
    versions = encode_row_versions(message.version, rows)
    fragment.inline_last_updated_at_versions = versions
    fragment.inline_created_at_versions = versions
