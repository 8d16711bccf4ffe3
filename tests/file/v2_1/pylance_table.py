"""Makes a table that pylance opens from data files that FileWriter wrote."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.writer import FileWriter, WrittenFile
from spark_lance.io.store import open_store

__all__ = ["fragment_json", "open_in_pylance", "write_file"]


def write_file(
    root: Path, table: pa.Table, version: str, batch_rows: int | None = None, **sizes: Any
) -> WrittenFile:
    """Write a table as a data file of the table at `root`, batch by batch."""
    store, path = open_store(str(root / "data" / f"{uuid.uuid4().hex}.lance"))
    writer = FileWriter(store, path, Schema.from_arrow(table.schema), FileVersion.parse(version), **sizes)
    for batch in table.to_batches(max_chunksize=batch_rows):
        writer.write(batch)
    return writer.finish()


def fragment_json(files: Sequence[WrittenFile], number: int) -> str:
    """Return the JSON by which pylance takes a fragment whose columns are in these files."""
    return json.dumps(
        {
            "id": number,
            "files": [
                {
                    "path": Path(file.path).name,
                    "fields": list(file.field_ids),
                    "column_indices": list(file.column_indices),
                    "file_major_version": file.version.manifest[0],
                    "file_minor_version": file.version.manifest[1],
                    "file_size_bytes": file.size,
                    "base_id": None,
                }
                for file in files
            ],
            "deletion_file": None,
            "row_id_meta": None,
            "physical_rows": files[0].num_rows,
        }
    )


def open_in_pylance(root: Path, schema: pa.Schema, files: Sequence[WrittenFile]) -> lance.LanceDataset:
    """Commit the files, one fragment each, as a new table at `root` and open it."""
    fragments = [
        lance.FragmentMetadata.from_json(fragment_json([file], number)) for number, file in enumerate(files)
    ]
    operation = lance.LanceOperation.Overwrite(schema, fragments)
    return lance.LanceDataset.commit(str(root), operation)
