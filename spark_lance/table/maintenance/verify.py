"""Check that the files of a table exist, are readable and are consistent; and repair torn manifests.

The checks, in this order:

    versions     every manifest of the line can be read; the versions of tags and branches exist
    fragments    ids are unique and not above the maximum; data files have the size in the manifest
    rows         every page of every column decodes; the fragment's deletion file fits it; counts agree
    row ids      sequences fit their fragments; ids are unique and below the next id
    indexes      the fields of entries exist, and no fragment id is above the maximum; files exist;
                 no fragment is covered twice, and no column has two indexes of the same kind
    orphans      files that no version of any line refers to

A finding of level "damage" means that rows are lost, or that a guarantee of the format is broken. A "warning"
is a smaller loss, such as the record of a commit. A "note" is not a fault.

A repair fixes the damage of a power failure: it moves torn manifests aside. If the newest manifest is torn,
the newest complete version is restored first, with the next free version number. So the number of the torn
file is never used twice, and other engines find a complete newest version. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.io.locations import join
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.data_files import known_size
from spark_lance.table.format.deletion import keep_mask
from spark_lance.table.format.manifest import Manifest, read_manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.indices.describe import describe_indices
from spark_lance.table.reading.blobs import blob_values
from spark_lance.table.reading.lineage import fragment_lineage
from spark_lance.table.reading.row_lookup import split_by_blob_bytes
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.cleanup import CleanupPolicy, cleanup
from spark_lance.table.versions.ref_files import list_tags
from spark_lance.table.versions.versions import (
    find_version,
    latest_version,
    list_versions,
    load_newest,
    move_torn_manifests,
)


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    Attributes:
        manifest: the newest version.
        restored: the version that was restored; None if the newest manifest was complete.
        moved_paths: the new paths of the torn manifests.
    """

    manifest: Manifest
    restored: int | None
    moved_paths: Sequence[str]


def repair(table: TableRef) -> Repair:
    """Move torn manifests of a line aside; if the newest is torn, restore the newest complete version first.

    Raises:
        TornManifestError: no version is complete.
        CommitError: the restore failed; see its subclasses. Nothing was moved.
        OSError: the store failed; manifests that were moved are not moved back.
    """
    newest = load_newest(table)
    manifest, restored = newest.manifest, None
    if newest.highest_number > manifest.version:
        restored = manifest.version
        operation = transaction_pb2.Transaction.Restore(version=restored)
        manifest = commit_operation(table, operation, read_version=restored)
    return Repair(manifest, restored, move_torn_manifests(table))


_TABLE_BYTES = 32 << 20
_BLOB_BYTES = 16 << 20
# Retain all versions: an orphan is a file that no version refers to.
_ALL_VERSIONS = 1 << 62

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Finding:
    """A problem or a note.

    Attributes:
        level: "damage", "warning" or "note".
        where: the object of the finding: a file, a fragment, an index.
        message: the problem.
    """

    level: str
    where: str
    message: str


@dataclass(frozen=True)
class Verification:
    """The result of a check.

    Attributes:
        version: the version whose rows were read.
        versions, fragments, data_files, rows, bytes, indices: the amounts that were checked.
        findings: the problems and notes.
    """

    version: int
    versions: int
    fragments: int
    data_files: int
    rows: int
    bytes: int
    indices: int
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> bool:
        """Whether a finding has the level "damage"."""
        return any(finding.level == "damage" for finding in self.findings)


def verify(snapshot: Snapshot, progress: Progress | None = None) -> Verification:
    """Read a version completely and check the guarantees of the format.

    Args:
        snapshot: the version.
        progress: called with the bytes of the data files read so far, and of all data files.
    """
    fragments = list(snapshot.fragments)
    files = [file for fragment in fragments for file in fragment.files]
    total = sum(file.file_size_bytes for file in files)
    line = _LineCheck(snapshot)
    findings = list(line.versions())
    rows = byte_count = 0
    for fragment in fragments:
        fragment_findings, live = line.fragment(fragment)
        findings += fragment_findings
        rows += live
        byte_count += sum(file.file_size_bytes for file in fragment.files)
        if progress is not None:
            progress(byte_count, total)
    findings += [*line.numbers(), *line.indices(), *line.orphans()]
    return Verification(
        version=snapshot.version,
        versions=line.version_count,
        fragments=len(fragments),
        data_files=len(files),
        rows=rows,
        bytes=total,
        indices=len({entry.name for entry in snapshot.manifest.indices if entry.fields}),
        findings=tuple(findings),
    )


class _LineCheck:
    """Checks one version and its line (main or a branch)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._store, self._root = snapshot.store, snapshot.root
        self._manifest = snapshot.manifest
        self._ids = BitMap64()
        self.version_count = 0

    def versions(self) -> Iterator[Finding]:
        """Check the manifests of the line, the transaction of this version, and tags and branches."""
        for file in list_versions(TableRef(self._store, self._root)):
            self.version_count += 1
            try:
                manifest = read_manifest(self._store, file.path, file.naming)
                if manifest.version != file.version:
                    yield _damage(file.path, f"says that it is version {manifest.version}")
            except (LanceError, OSError) as error:
                yield _damage(file.path, error)
        try:
            read_transaction(TableRef(self._store, self._root), self._manifest)
        except (LanceError, OSError) as error:
            yield Finding("warning", "transaction", str(error))
        try:
            yield from self._check_refs()
        except (LanceError, OSError) as error:
            yield _damage("tags and branches", error)

    def _check_refs(self) -> Iterator[Finding]:
        """Check that the versions of tags and branches exist."""
        main = self._snapshot.main_line
        for name, tag in list_tags(main).items():
            line = branch_line(main, tag["branch"]) if tag["branch"] else main
            yield from _check_exists(f"tag {name}", partial(find_version, line, tag["version"]))
        for name, branch in Branches(main).list().items():
            where = f"branch {name}"
            yield from _check_exists(where, partial(latest_version, branch_line(main, name)))
            parent = branch["parent_branch"]
            above = branch_line(main, parent) if parent else main
            begin = partial(find_version, above, branch["parent_version"])
            for finding in _check_exists(where, begin):
                yield Finding("warning", where, f"the version that it begins with is gone: {finding.message}")

    def fragment(self, fragment: table_pb2.DataFragment) -> tuple[list[Finding], int]:
        """Read a fragment completely; return its findings and the number of its live rows."""
        where = f"fragment {fragment.id}"
        findings = [*self._check_sizes(fragment)]
        try:
            row_count = self._snapshot.physical_rows(fragment)
            deleted = self._snapshot.deletions(fragment)
        except (LanceError, OSError) as error:
            return [*findings, _damage(where, error)], 0
        live = row_count - len(deleted)
        try:
            read = self._read_rows(fragment, self._manifest.schema.fields)
            if read != live:
                findings.append(_damage(where, f"{read} rows were read, and {live} should be there"))
        except (LanceError, OSError, pa.ArrowInvalid):
            findings += self._check_columns(fragment)
        if self._manifest.uses_stable_row_ids:
            try:
                findings += self._check_lineage(fragment, keep_mask(deleted, 0, row_count))
            except (LanceError, OSError) as error:
                findings.append(_damage(where, error))
        return findings, live

    def _check_sizes(self, fragment: table_pb2.DataFragment) -> Iterator[Finding]:
        for file in fragment.files:
            try:
                store, path = self._snapshot.bases.data_file(file)
                size = store.size(path)
            except FileNotFoundError:
                yield _damage(f"data file {file.path}", "does not exist")
                continue
            except (LanceError, OSError) as error:
                yield _damage(f"data file {file.path}", error)
                continue
            if size != (known_size(file) or size):
                message = f"has {size} bytes, and {file.file_size_bytes} in the manifest"
                yield _damage(f"data file {file.path}", message)

    def _check_columns(self, fragment: table_pb2.DataFragment) -> Iterator[Finding]:
        """Read a fragment column by column to find the damaged columns."""
        field_ids = {field_id for file in fragment.files for field_id in file.fields}
        for top in self._manifest.schema.fields:
            where = f"fragment {fragment.id}, column {top.name}"
            # A column without a file is null: reading some of its rows is enough to find an error.
            parts = 1 if field_ids.isdisjoint(node.id for node in top.walk()) else None
            try:
                self._read_rows(fragment, [top], parts)
            except UnsupportedFormatError as error:
                yield Finding("warning", where, f"was not checked: {error}")
            except (LanceError, OSError, pa.ArrowInvalid) as error:
                yield _damage(where, error)

    def _read_rows(
        self, fragment: table_pb2.DataFragment, tops: Sequence[Field], parts: int | None = None
    ) -> int:
        """Decode columns of a fragment, at most `parts` tables of each task; return the number of rows."""
        names = [top.name for top in tops]
        scan = self._snapshot.scan(names, fragments=[fragment])
        blobs = [(place, top) for place, top in enumerate(tops) if top.is_blob]
        rows = 0
        for task in scan.tasks():
            for table in islice(task.tables(_TABLE_BYTES), parts):
                table.validate(full=True)
                rows += table.num_rows
                self._read_blobs(table, blobs, task)
        return rows

    def _read_blobs(self, table: pa.Table, blobs: Sequence[tuple[int, Field]], task: ScanTask) -> None:
        for part in split_by_blob_bytes(table, blobs, _BLOB_BYTES) if blobs else ():
            rows = table.slice(part.start, part.stop - part.start)
            for place, top in blobs:
                blob_values(self._snapshot.bases, top, rows.column(place), task.message)

    def _check_lineage(
        self, fragment: table_pb2.DataFragment, keep: npt.NDArray[np.bool_]
    ) -> Iterator[Finding]:
        where = f"fragment {fragment.id}"
        ids, created, updated = fragment_lineage(
            TableRef(self._store, self._root), fragment, self._snapshot.bases
        )
        assert ids is not None
        assert created is not None
        assert updated is not None
        live = BitMap64(ids[keep])
        if len(live) != int(keep.sum()) or not live.isdisjoint(self._ids):
            yield _damage(where, "two rows have the same row id")
        self._ids |= live
        if len(live) and live.max() >= self._manifest.message.next_row_id:
            mark = self._manifest.message.next_row_id
            yield _damage(where, f"has row id {live.max()}, and {mark} is the next to be given")
        if np.any(created[keep] > updated[keep]):
            yield _damage(where, "a row was updated in an earlier version than it was created in")
        if np.any(updated[keep] > self._manifest.version):
            yield _damage(where, "a row was updated in a version later than this one")

    def numbers(self) -> Iterator[Finding]:
        """Check the ids of fragments and fields."""
        message = self._manifest.message
        ids = [fragment.id for fragment in message.fragments]
        if len(set(ids)) != len(ids):
            yield _damage("manifest", "two fragments have the same id")
        if ids and message.HasField("max_fragment_id") and max(ids) > message.max_fragment_id:
            yield _damage("manifest", f"fragment {max(ids)} is above the mark {message.max_fragment_id}")
        fields = [field.id for field in message.fields]
        if len(set(fields)) != len(fields):
            yield _damage("manifest", "two fields have the same id")

    def indices(self) -> Iterator[Finding]:
        """Check the version's index entries, and that their files exist."""
        fields = {field.id for field in self._manifest.message.fields}
        for entry in self._manifest.indices:
            where = f"index {entry.name}"
            if missing := set(entry.fields) - fields:
                yield _damage(where, f"is of fields that do not exist: {sorted(missing)}")
            yield from self._check_coverage(entry, where)
            if entry.name not in (FRAGMENT_REUSE, MEM_WAL):
                yield from self._check_index_files(entry, where)
        yield from self._check_duplicates()

    def _check_duplicates(self) -> Iterator[Finding]:
        """Report several indexes of the same kind on one column (a search uses one), and double coverage."""
        try:
            indices = describe_indices(self._snapshot)
        except (LanceError, OSError) as error:
            yield _damage("indices", error)
            return
        alike: dict[tuple[tuple[int, ...], str], list[str]] = {}
        for index in indices:
            covered = [number for part in index.segments for number in part.fragment_ids or ()]
            if len(set(covered)) < len(covered):
                twice = sorted({number for number in covered if covered.count(number) > 1})
                yield Finding("warning", f"index {index.name}", f"several segments cover fragments {twice}")
            # Vector indexes are of the same kind if they have the same metric; unknown kinds are not
            # compared.
            kind = str(index.details.get("metric_type", index.index_type))
            if index.name not in (FRAGMENT_REUSE, MEM_WAL) and kind not in ("Unknown", "Vector"):
                alike.setdefault((index.fields, kind), []).append(index.name)
        for (fields, kind), names in alike.items():
            if len(names) > 1:
                column = ", ".join(self._manifest.schema.paths.get(number, str(number)) for number in fields)
                yield Finding(
                    "warning",
                    f"column {column}",
                    f"has several {kind} indexes, and a search uses one of them: drop all but one of "
                    f"{', '.join(names)}",
                )

    def _check_coverage(self, entry: table_pb2.IndexMetadata, where: str) -> Iterator[Finding]:
        try:
            covered = covered_fragments(entry)
        except FormatError as error:
            yield _damage(where, str(error))
            return
        if covered is None:
            return
        message = self._manifest.message
        if len(covered) and message.HasField("max_fragment_id") and covered.max() > message.max_fragment_id:
            yield _damage(where, f"covers fragment {covered.max()}, which does not exist yet")
        present = BitMap(fragment.id for fragment in self._manifest.fragments)
        if uncovered := len(present - covered):
            yield Finding("note", where, f"{uncovered} of {len(present)} fragments are not covered")

    def _check_index_files(self, entry: table_pb2.IndexMetadata, where: str) -> Iterator[Finding]:
        try:
            store, directory = self._snapshot.bases.index_dir(entry)
            prefix = directory + "/"
            size_by_name = {
                file.path.removeprefix(prefix): file.size
                for file in store.list_objects(directory, recursive=True)
            }
        except (LanceError, OSError) as error:
            yield _damage(where, error)
            return
        if not size_by_name:
            yield _damage(where, f"its files are gone: {directory}")
        for file in entry.files:
            if file.path not in size_by_name:
                yield _damage(where, f"its file {file.path} is gone")
            elif file.size_bytes and size_by_name[file.path] != file.size_bytes:
                sizes = f"{size_by_name[file.path]} bytes, and {file.size_bytes} in the manifest"
                yield _damage(where, f"its file {file.path} has {sizes}")

    def orphans(self) -> Iterator[Finding]:
        """Report files that no version of any line refers to."""
        policy = CleanupPolicy(retain_versions=_ALL_VERSIONS, delete_unverified=True, error_if_tagged=False)
        try:
            stats = cleanup(TableRef(self._store, self._root), self._manifest, policy, dry_run=True)
        except (LanceError, OSError) as error:
            yield Finding("note", "orphans", f"were not looked for: {error}")
            return
        base = join(self._root, "")
        for file in stats.files:
            yield Finding(
                "note", file.path.removeprefix(base), f"no version names it ({file.size_bytes} bytes)"
            )


def _check_exists(where: str, find: Callable[[], object]) -> Iterator[Finding]:
    try:
        find()
    except (LanceError, OSError) as error:
        yield _damage(where, error)


def _damage(where: str, what: object) -> Finding:
    text = what.message if isinstance(what, (FormatError, UnsupportedFormatError)) else str(what)
    place = getattr(what, "path", None)
    return Finding("damage", where, f"{text} ({place})" if place and place not in text else text)
