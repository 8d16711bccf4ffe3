"""How a writer of a shard works, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import OptionError
from spark_lance.proto.index_pb2 import MemWalIndexDetails

__all__ = ["DURABILITIES", "WriterConfig", "WriterStats"]

DURABILITIES = ("written", "synced")
# The table may set these for its writers. Only the caller that opens a shard may allow that rows are lost.
_OF_TABLES = (
    "max_memtable_size",
    "max_memtable_rows",
    "max_memtable_batches",
    "max_unflushed_memtable_bytes",
)


@dataclass(frozen=True)
class WriterConfig:
    """How a writer works; the table's MemWAL has defaults for the numbers.

    Attributes:
        max_memtable_size: bytes of rows in memory that become an SSTable.
        max_memtable_rows, max_memtable_batches: the same, in rows and in writes.
        max_unflushed_memtable_bytes: bytes that may wait for the background; a put waits above that. 0: every
            SSTable is waited for.
        durability: "written": an entry was handed to the operating system when put returns, so a killed
            process loses nothing; "synced": it is on the disk. Object stores always store what they
            acknowledge.
        accept_loss: open a shard whose log lacks entries or has damaged ones, without their rows.
    """

    max_memtable_size: int = 256 << 20
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_unflushed_memtable_bytes: int = 1 << 30
    durability: str = "written"
    accept_loss: bool = False

    @classmethod
    def of(cls, details: MemWalIndexDetails, options: Mapping[str, Any]) -> WriterConfig:
        """Return the settings of a table, with those that are given in their place.

        Raises:
            OptionError: a setting is unknown or cannot be used.
        """
        names = set(cls.__dataclass_fields__)
        if unknown := sorted(set(options) - names):
            raise OptionError(
                f"a shard writer has no setting {', '.join(unknown)}; it has {', '.join(names)}"
            )
        stored = {
            name: int(text)
            for name, text in details.writer_config_defaults.items()
            if name in _OF_TABLES and text.isascii() and text.isdigit()
        }
        config = cls(**{**stored, **{name: value for name, value in options.items() if value is not None}})
        for name in ("max_memtable_size", "max_memtable_rows", "max_memtable_batches"):
            if getattr(config, name) < 1:
                raise OptionError(f"{name} must be 1 or more, not {getattr(config, name)}")
        if config.max_unflushed_memtable_bytes < 0:
            raise OptionError("max_unflushed_memtable_bytes must be 0 or more")
        if config.durability not in DURABILITIES:
            raise OptionError(f"durability is one of {', '.join(DURABILITIES)}, not {config.durability!r}")
        return config


@dataclass
class WriterStats:
    """Statistics of a writer: calls, rows, entries, bytes, SSTables, and seconds that puts waited."""

    put_count: int = 0
    put_rows: int = 0
    wal_entries: int = 0
    wal_bytes: int = 0
    sstables: int = 0
    sstable_rows: int = 0
    waited_seconds: float = 0.0
