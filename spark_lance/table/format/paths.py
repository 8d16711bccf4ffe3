"""Names of the directories and files of a Lance table.

    {root}/data/{24 binary digits}{26 hex digits}.lance         bounds of partitions may follow
    {root}/_versions/{version}.manifest                      V1 naming
    {root}/_versions/{2^64 - 1 - version, 20 digits}.manifest  V2 naming: newest first when listed by name
    {root}/_versions/latest_version_hint.json
    {root}/_transactions/{read_version}-{uuid}.txn
    {root}/_deletions/{fragment_id}-{read_version}-{id}.arrow | .bin
    {root}/_indices/{uuid}/
    {root}/_column_jobs/{job}/{fragment_id}-{data file}.json   ours: the progress of a running job

Other names occur in `_versions` and are not versions: `d{version}.manifest` (detached), `.tmpXXXXXX` and
`{name}.manifest#1` (being written), `{name}.manifest-{uuid}` (staged).
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Iterable

from spark_lance.io.locations import join
from spark_lance.proto import table_pb2

DATA_DIR = "data"
VERSIONS_DIR = "_versions"
TRANSACTIONS_DIR = "_transactions"
DELETIONS_DIR = "_deletions"
INDICES_DIR = "_indices"
COLUMN_JOBS_DIR = "_column_jobs"
HINT_NAME = "latest_version_hint.json"

_MAX_U64 = 2**64 - 1
_V2_DIGITS = 20
_MANIFEST_SUFFIX = ".manifest"
_MANIFEST_NAME = re.compile(r"([0-9]{1,20})\.manifest", re.ASCII)
_DELETION_SUFFIX = {table_pb2.DeletionFile.ARROW_ARRAY: "arrow", table_pb2.DeletionFile.BITMAP: "bin"}


class ManifestNaming(enum.Enum):
    """The naming scheme of a table's manifests. All manifests of one table have the same scheme."""

    V1 = "V1"
    V2 = "V2"

    def file_name(self, version: int) -> str:
        """Return the file name of a version's manifest."""
        if self is ManifestNaming.V1:
            return f"{version}.manifest"
        return f"{_MAX_U64 - version:0{_V2_DIGITS}d}.manifest"


def is_detached(version: int) -> bool:
    """Return whether a version number belongs to a detached version: its highest bit is set."""
    return bool(version >> 63)


def detached_path(root: str, version: int) -> str:
    """Return the path of a detached version's manifest."""
    return join(root, VERSIONS_DIR, f"d{version}{_MANIFEST_SUFFIX}")


def parse_manifest_name(name: str) -> tuple[int, ManifestNaming] | None:
    """Return (version, naming) of a file in `_versions`, or None if it is not a version of the history."""
    match = _MANIFEST_NAME.fullmatch(name)
    if match is None:
        return None
    number = int(match[1])
    if number > _MAX_U64:
        return None
    if len(match[1]) == _V2_DIGITS:
        return _MAX_U64 - number, ManifestNaming.V2
    return number, ManifestNaming.V1


def newest_manifest_name(names: Iterable[str]) -> str | None:
    """Return the name of the newest version among the files in `_versions`, without parsing each of them.

    None if there is no version, or if not all names are V2 names: then every name must be parsed.
    """
    manifests = [name for name in names if name.endswith(_MANIFEST_SUFFIX) and not name.startswith("d")]
    all_v2 = {_V2_DIGITS + len(_MANIFEST_SUFFIX)}.issuperset(map(len, manifests))
    return min(manifests) if manifests and all_v2 else None


def manifest_path(root: str, version: int, naming: ManifestNaming) -> str:
    """Return the path of a version's manifest."""
    return join(root, VERSIONS_DIR, naming.file_name(version))


def transaction_name(read_version: int, transaction_uuid: str) -> str:
    """Return the name, inside `_transactions`, of a transaction's file."""
    return f"{read_version}-{transaction_uuid}.txn"


def deletion_path(root: str, fragment_id: int, deletion: table_pb2.DeletionFile) -> str:
    """Return the path of a fragment's deletion file in the table at `root`."""
    suffix = _DELETION_SUFFIX.get(deletion.file_type, "bin")
    return join(root, DELETIONS_DIR, f"{fragment_id}-{deletion.read_version}-{deletion.id}.{suffix}")


def new_data_file_name(operation: str = "", ending: str = "") -> str:
    """Return a new unique name for a file in `data`.

    The leading binary digits distribute the names over the key ranges of an object store.

    Args:
        operation: 16 hexadecimal digits that the names of all files of one operation share.
        ending: the end of the name, see `partition_bounds`.
    """
    random_bytes = uuid.uuid4().bytes
    spread = "".join(f"{byte:08b}" for byte in random_bytes[:3])
    rest = random_bytes[3:].hex()
    return f"{spread}{operation}{rest[len(operation) :]}{ending}.lance"
