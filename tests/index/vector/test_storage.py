"""Segments of vector indices, read partition by partition and as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_lance import write_dataset
from spark_lance.index.base.entries import find_segments
from spark_lance.index.vector import storage
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from tests.index.vectors import clustered, table_of


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_RQ", "IVF_FLAT"])
@pytest.mark.parametrize("run_bytes", [1, 3000, 1 << 20])
def test_partitions_are_read_together(
    kind: str, run_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_dataset(table_of(clustered(600, 16, clusters=3)), tmp_path / "t")
    table = table.create_index("v", kind, num_partitions=40, max_iters=2)
    (result,) = find_segments(table.snapshot, VECTOR_LABEL, VECTOR_NEWEST)
    segment = open_segment(result)
    monkeypatch.setattr(storage, "_RUN_BYTES", run_bytes)
    together = list(segment.partitions())
    assert len(together) == 40
    for number, partition in enumerate(together):
        alone = segment.partition(number)
        assert np.array_equal(partition.row_ids, alone.row_ids)
        assert partition.codes.keys() == alone.codes.keys()
        assert all(np.array_equal(partition.codes[name], alone.codes[name]) for name in alone.codes)
