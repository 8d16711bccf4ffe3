"""Tables with text that is not UTF-8, as writers make them that check nothing."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset

__all__ = ["WORDS", "text", "write_unchecked"]

WORDS = [b"good", None, "né".encode(), b"", b"caf\xe9", b"last"]


def text(words: list[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return text of these bytes, whatever they are."""
    raw = pa.array(words, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind or pa.string(), len(raw), raw.buffers())


def write_unchecked(
    path: Path, rows: pa.Table, version: str | None = None, mode: str = "create"
) -> LanceDataset:
    """Write rows without the check of text, and return the table."""
    with mock.patch("spark_lance.file.writer.check_texts"):
        write_dataset(rows, path, mode, data_storage_version=version)
    return dataset(path)
