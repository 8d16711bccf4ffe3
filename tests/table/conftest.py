"""Fixtures of the table tests: tables written by pylance, fragments without a commit, forged manifests."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.proto import table_pb2

Edit = Callable[[table_pb2.Manifest], None]


def _newest(path: Path) -> Path:
    # Tables here have V2 names, which sort newest first.
    return min((path / "_versions").glob("*.manifest"))


@pytest.fixture
def forge() -> Callable[[Path, Edit], None]:
    """Return a function that rewrites the newest manifest of a table after an edit of its message."""

    def rewrite(path: Path, edit: Edit) -> None:
        file = _newest(path)
        data = file.read_bytes()
        (position,) = struct.unpack_from("<q", data, len(data) - 16)
        (length,) = struct.unpack_from("<I", data, position)
        message = table_pb2.Manifest.FromString(data[position + 4 : position + 4 + length])
        edit(message)
        body = message.SerializeToString()
        file.write_bytes(data[:position] + struct.pack("<I", len(body)) + body + data[-16:])

    return rewrite


@pytest.fixture
def loose() -> Callable[..., list[table_pb2.DataFragment]]:
    """Return a function that lets pylance write data files into a table without committing them."""

    def write(path: Path, data: pa.Table, **options: Any) -> list[table_pb2.DataFragment]:
        fragments = []
        for written in lance.fragment.write_fragments(data, str(path), **options):
            fragment = table_pb2.DataFragment(physical_rows=written.physical_rows)
            for file in written.files:
                fragment.files.add(
                    path=file.path,
                    fields=file.fields,
                    column_indices=file.column_indices,
                    file_major_version=file.file_major_version,
                    file_minor_version=file.file_minor_version,
                    file_size_bytes=file.file_size_bytes or 0,
                )
            fragments.append(fragment)
        return fragments

    return write
