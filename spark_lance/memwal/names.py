"""Names below `_mem_wal`, the directory of a table's shards.

    {root}/_mem_wal/{shard uuid}/manifest/{reversed version}.binpb
    {root}/_mem_wal/{shard uuid}/manifest/version_hint.json
    {root}/_mem_wal/{shard uuid}/wal/{reversed position}.arrow
    {root}/_mem_wal/{shard uuid}/{8 hex digits}_gen_{generation}/      an SSTable: a small Lance table
    .../wal/{reversed position}.arrow.tmp.{uuid}, .../wal/.tmp...      temporary files of writers

A reversed number is its 64 binary digits, least significant first, so that the names of consecutive numbers
have different prefixes: 1 is "1000...0", 2 is "0100...0". Versions and positions count from 1; 0 means none.
(MemWAL, directory layout.)
"""

from __future__ import annotations

import re
import secrets
import uuid
from dataclasses import dataclass
from datetime import timedelta

from spark_lance.errors import OptionError
from spark_lance.io.locations import join
from spark_lance.table.format.table_ref import TableRef, TableRefMixin

MEM_WAL_DIR = "_mem_wal"
# Longer than a reader takes to open the files that it has listed, and than a writer goes without checking its
# epoch.
GRACE = timedelta(hours=1)
_DIGITS = 64
_NAME = re.compile(r"([01]{64})\.(binpb|arrow)", re.ASCII)
_TEMPORARY = re.compile(r"\.tmp.+|.+\.tmp\.[0-9a-f-]{36}", re.ASCII)
_SSTABLE = re.compile(r"[0-9a-f]{8}_gen_([0-9]{1,19})", re.ASCII)


def _reverse_digits(number: int) -> str:
    return f"{number:0{_DIGITS}b}"[::-1]


def parse_numbers(names: list[str]) -> list[int]:
    """Return the numbers in the names of manifests or WAL entries, ascending; other names are ignored."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1][::-1], 2) for match in matches if match is not None)


def is_temporary(name: str) -> bool:
    """Return whether a file in the directory of manifests or entries is a writer's temporary file."""
    return _TEMPORARY.fullmatch(name) is not None


def parse_shard_id(text: str | uuid.UUID) -> uuid.UUID:
    """Return the id of a shard from text.

    Raises:
        OptionError: the text is not a UUID.
    """
    try:
        return text if isinstance(text, uuid.UUID) else uuid.UUID(text)
    except ValueError:
        raise OptionError(f"a shard id must be a UUID, not {text!r}") from None


@dataclass(frozen=True)
class ShardPaths(TableRefMixin):
    """A shard of a table, and the paths of its files.

    Attributes:
        table: the table.
        shard: the shard's id.
    """

    table: TableRef
    shard: uuid.UUID

    @property
    def directory(self) -> str:
        """The directory of the shard."""
        return self.table.path(MEM_WAL_DIR, str(self.shard))

    @property
    def manifests(self) -> str:
        """The directory of its manifests."""
        return join(self.directory, "manifest")

    @property
    def hint(self) -> str:
        """The file that shows other readers the newest manifest."""
        return join(self.manifests, "version_hint.json")

    @property
    def entries(self) -> str:
        """The directory of its WAL entries."""
        return join(self.directory, "wal")

    def manifest(self, version: int) -> str:
        """Return the path of a manifest."""
        return join(self.manifests, f"{_reverse_digits(version)}.binpb")

    def entry(self, position: int) -> str:
        """Return the path of a WAL entry."""
        return join(self.entries, f"{_reverse_digits(position)}.arrow")

    def sstable(self, name: str) -> str:
        """Return the root path of an SSTable; only the last part of `name` is used, so it is in the shard."""
        return join(self.directory, name.rpartition("/")[2])


def new_sstable_name(generation: int) -> str:
    """Return a new, unique name for the SSTable of a generation."""
    return f"{secrets.token_hex(4)}_gen_{generation}"


def sstable_generation(name: str) -> int | None:
    """Return the generation in the name of an SSTable; None for other names."""
    match = _SSTABLE.fullmatch(name)
    return None if match is None else int(match[1])


def list_shards(table: TableRef) -> list[uuid.UUID]:
    """Return the ids of a table's shards, ascending. The directory listing is their only list."""
    result = []
    for name in table.store.list_directories(table.path(MEM_WAL_DIR)):
        try:
            shard = uuid.UUID(name)
        except ValueError:
            continue
        if str(shard) == name:
            result.append(shard)
    return sorted(result)
