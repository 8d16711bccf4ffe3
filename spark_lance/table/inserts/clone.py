"""Create tables and branches from a version of another table.

A shallow clone has the source as a base path. Files under the source's own root get the id of that base path;
other files keep their base path. A branch is a shallow clone with the branch's name. A deep clone has copies
of all files and no base paths. (Lance table format, branches and shallow clones.)
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_lance.errors import OptionError, TableExistsError, UnsupportedFormatError
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import create_first_version
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import DATA_DIR, INDICES_DIR, ManifestNaming, deletion_path, is_detached
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.next_version import CommitContext, finish_version, start_version
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import find_version, load_version
from spark_lance.table.writing.targets import check_location

_CHUNK_BYTES = 8 << 20


def clone(source: Manifest, operation: transaction_pb2.Transaction.Clone, context: CommitContext) -> Manifest:
    """Return the first version of a clone of `source`, with the version number of `source`."""
    message = start_version(source, context)
    message.version = source.version
    message.ClearField("branch")
    if operation.branch_name:
        message.branch = operation.branch_name
    section = table_pb2.IndexSection.FromString(source.index_section)
    check_message(section, source.path)
    if operation.is_shallow:
        base_id = max((base.id for base in message.base_paths), default=-1) + 1
        message.base_paths.add(id=base_id, is_dataset_root=True, path=operation.ref_path)
        _set_bases(message, section, base_id)
    else:
        message.ClearField("base_paths")
        _set_bases(message, section, None)
    index_section = section.SerializeToString() if section.indices else b""
    return finish_version(message, index_section, ManifestNaming.V2, context)


def _set_bases(message: table_pb2.Manifest, section: table_pb2.IndexSection, base_id: int | None) -> None:
    """Set the base path of files that have none; if `base_id` is None, clear the base path of all files."""
    for fragment in message.fragments:
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            _set_base(file, base_id)
        if fragment.HasField("deletion_file"):
            _set_base(fragment.deletion_file, base_id)
    for index in section.indices:
        _set_base(index, base_id)


def _set_base(
    entry: table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexMetadata, base_id: int | None
) -> None:
    if base_id is None:
        entry.ClearField("base_id")
    elif not entry.HasField("base_id"):
        entry.base_id = base_id


def shallow_clone(source: Store, ref: VersionRef, target: TableRef) -> Manifest:
    """Create a table from a version of another table, sharing its files.

    The source must not be moved. Its clean-up ignores clones, so tag the version in the source.

    Args:
        source: the store of the source.
        ref: the version of the source.
        target: the new table.

    Returns:
        The first version of the clone.

    Raises:
        TableExistsError: the table exists.
        LocationInUseError: the folder contains other files.
        VersionNotFoundError: the version does not exist.
        CommitError: the commit failed; see its subclasses.
    """
    manifest = _load_cloneable_version(TableRef(source, ref.root), ref.version)
    check_location(target)
    return _commit_clone(source, ref, manifest, target, shallow=True)


def deep_clone(source: Store, ref: VersionRef, target: TableRef) -> Manifest:
    """Create a table with copies of all files of a version of another table.

    Arguments and the result are as in `shallow_clone`.

    Raises:
        TableExistsError: the table exists.
        LocationInUseError: the folder contains other files.
        VersionNotFoundError: the version does not exist.
        CommitError: the commit failed; see its subclasses. Copied files remain, but belong to no version.
    """
    manifest = _load_cloneable_version(TableRef(source, ref.root), ref.version)
    check_writable(manifest.message, manifest.path)
    check_location(target)
    for store, path, name in files_to_copy(Bases.of(TableRef(source, ref.root), manifest.message), manifest):
        copy_object(store, path, target.store, target.path(name))
    return _commit_clone(source, ref, manifest, target, shallow=False)


def create_branch(main: TableRef, branch: str, ref: VersionRef) -> Manifest:
    """Create a branch from a version of the table.

    Args:
        main: the table's main line.
        branch: the name of the new branch.
        ref: the version with which the branch begins.

    Returns:
        The branch's first version, with the same version number as `ref`.

    Raises:
        BranchExistsError: the branch exists.
        TableExistsError: an interrupted creation or deletion left files of the branch: delete the branch
            first.
        VersionNotFoundError: the version does not exist.
        OptionError: the name is not allowed.
        CommitError: the commit failed; see its subclasses.
    """
    branches = Branches(main)
    branches.check_new(branch)
    manifest = _load_cloneable_version(TableRef(main.store, ref.root), ref.version)
    line = branch_line(main, branch)
    try:
        first = _commit_clone(main.store, ref, manifest, line, shallow=True, branch=branch)
    except TableExistsError:
        branches.check_new(branch)
        raise TableExistsError(
            f"{line.root} holds files of a branch {branch!r} that is not known: delete that branch first"
        ) from None
    # Check again that the version exists: a clean-up that did not see the branch may have deleted it.
    source = find_version(TableRef(main.store, ref.root), ref.version)
    branches.record(branch, ref.branch, ref.version, main.store.size(source.path))
    return first


def replace_branch(main: TableRef, branch: str, ref: VersionRef) -> Manifest:
    """Replace a branch with a new one, and delete the versions of the old one.

    If the new branch cannot be created, the old one stays.

    Args:
        main: the table's main line.
        branch: the name of the branch.
        ref: the version with which the new branch begins. It cannot be a version of the old branch.

    Returns:
        The new branch's first version.

    Raises:
        BranchNotFoundError: the branch does not exist.
        BranchInUseError: tags or other branches refer to the branch.
        VersionNotFoundError: the version does not exist.
        OptionError: the version is one of the old branch.
        CommitError: the commit failed; see its subclasses.
    """
    if ref.branch == branch:
        raise OptionError(
            f"branch {branch!r} cannot be replaced by a version of its own, as its versions are deleted: "
            f"restore version {ref.version} of the branch instead"
        )
    manifest = _load_cloneable_version(TableRef(main.store, ref.root), ref.version)
    check_writable(manifest.message, manifest.path)
    return Branches(main).replace(branch, lambda: create_branch(main, branch, ref))


def _load_cloneable_version(table: TableRef, version: int) -> Manifest:
    if is_detached(version):
        raise UnsupportedFormatError(
            f"version {version} is detached, and no clone or branch begins with one: restore it first",
            table.root,
        )
    return load_version(table, version)


def _commit_clone(
    source: Store,
    ref: VersionRef,
    manifest: Manifest,
    target: TableRef,
    *,
    shallow: bool,
    branch: str | None = None,
) -> Manifest:
    check_writable(manifest.message, manifest.path)
    operation = transaction_pb2.Transaction.Clone(
        is_shallow=shallow, ref_version=ref.version, ref_path=source.uri(ref.root), branch_name=branch
    )
    return create_first_version(
        target,
        operation,
        lambda context: clone(manifest, operation, context),
        read_version=ref.version,
    )


def files_to_copy(bases: Bases, manifest: Manifest) -> Iterable[tuple[Store, str, str]]:
    """Yield (store, path, name in the clone) for every file of a version."""
    for fragment in manifest.fragments:
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            store, path = bases.data_file(file)
            yield store, path, join(DATA_DIR, file.path)
            # Large blobs are in sidecar files, in a folder named like the data file.
            sidecars = path.removesuffix(".lance")
            for sidecar in store.list_objects(sidecars, recursive=True):
                name = sidecar.path.removeprefix(sidecars)
                yield store, sidecar.path, join(DATA_DIR, file.path.removesuffix(".lance") + name)
        if fragment.HasField("deletion_file"):
            entry = fragment.deletion_file
            name = deletion_path("", fragment.id, entry).lstrip("/")
            yield *bases.deletion_file(fragment.id, entry), name
    for index in manifest.indices:
        store, directory = bases.index_dir(index)
        name = join(INDICES_DIR, directory.rpartition("/")[2])
        for sidecar in store.list_objects(directory, recursive=True):
            yield store, sidecar.path, name + sidecar.path.removeprefix(directory)


def copy_object(source: Store, path: str, target: Store, new_path: str) -> None:
    """Copy an object, inside the store if both stores are the same remote store, else in pieces."""
    if source == target and not source.is_local:
        source.copy(path, new_path)
        return
    output = target.create(new_path)
    try:
        size = source.size(path)
        for start in range(0, size, _CHUNK_BYTES):
            (piece,) = source.read_ranges(path, [(start, min(_CHUNK_BYTES, size - start))])
            output.write(piece)
    except BaseException:
        output.abort()
        raise
    output.close()
