"""Small tables with a MemWAL, and what pylance and a plain loop see of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner, ShardSnapshot

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.memwal.names import ShardPaths, list_shards
from spark_lance.memwal.shard_manifest import load_shard

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("val", pa.string()),
        pa.field("x", pa.float64()),
    ]
)
SHARD = uuid.UUID("11111111-2222-4333-8444-555555555555")
OTHER = uuid.UUID("aaaaaaaa-2222-4333-8444-555555555555")

Rows = dict[int, str | None]


def rows(*pairs: tuple[int, str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows of the table: id, val, and x that follows from the id."""
    columns = {
        "id": [key for key, _ in pairs],
        "val": [value for _, value in pairs],
        "x": [key / 2 for key, _ in pairs],
    }
    return pa.table(columns, schema=schema)


def as_rows(table: pa.Table) -> Rows:
    """The rows of a table by id, each id once."""
    ids = table["id"].to_pylist()
    assert len(set(ids)) == len(ids), ids
    if "x" in table.column_names:
        assert table["x"].to_pylist() == [key / 2 for key in ids]
    return dict(zip(ids, table["val"].to_pylist(), strict=True))


def make(
    path: Path | str, *pairs: tuple[int, str | None], stable_row_ids: bool = False, **options: Any
) -> LanceDataset:
    """A table with a MemWAL whose shards are chosen by hand, if the options do not say otherwise."""
    dataset = spark_lance.write_dataset(rows(*pairs), path, enable_stable_row_ids=stable_row_ids)
    return dataset.initialize_mem_wal(**options)


def seen(path: Path | str) -> Rows:
    """What a fresh read sees."""
    return as_rows(spark_lance.dataset(path).fresh().to_table())


def plain(path: Path | str) -> Rows:
    """What a read of the table alone sees, which both implementations must agree on."""
    result = as_rows(spark_lance.dataset(path).to_table())
    assert as_rows(lance.dataset(str(path)).to_table()) == result
    return result


def by_pylance(path: Path | str) -> Rows:
    """What pylance's own scanner sees: the table and all SSTables that are listed."""
    ours = spark_lance.dataset(path)
    shots = []
    for shard in list_shards(ours.table):
        manifest = load_shard(ShardPaths(ours.table, shard))
        assert manifest is not None
        shot = ShardSnapshot(str(shard)).with_spec_id(manifest.shard_spec_id)
        shot = shot.with_current_generation(manifest.current_generation)
        for entry in manifest.sstables:
            shot = shot.with_sstable(entry.generation, entry.path)
        shots.append(shot)
    return as_rows(LsmScanner.from_snapshots(lance.dataset(str(path)), shots).to_table())


def files(path: Path | str) -> set[str]:
    """All files of the shards, by their paths below the table."""
    root = Path(path)
    return {str(file.relative_to(root)) for file in root.glob("_mem_wal/**/*") if file.is_file()}
