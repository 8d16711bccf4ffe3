"""Arguments in snake_case and in camelCase mean the same, on both faces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import write_dataset
from spark_lance.datasets.spelling import both_spellings
from spark_lance.errors import OptionTypeError


def test_functions_take_either_spelling(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(1600, np.float32)), 16)
    rows = pa.table({"v": vectors, "n": range(100)})
    ds: Any = write_dataset(rows, tmp_path / "t", maxRowsPerFile=40, dataStorageVersion="2.1")  # type: ignore[call-arg]
    assert (len(ds.get_fragments()), ds.data_storage_version) == (3, "2.1")
    ds = ds.create_index("v", indexType="IVF_PQ", numPartitions=3, numSubVectors=4, numBits=8, maxIters=2)
    assert ds.index_statistics("v_idx")["indices"][0]["num_partitions"] == 3
    assert ds.to_table(withRowId=True, limit=1).column_names == ["v", "n", "_rowid"]
    assert ds.insert(rows.slice(0, 5), maxRowsPerFile=2).count_rows() == 105
    ds.checkout_latest().optimize.compact_files(target_rows_per_fragment=1000)
    ds.checkout_latest().optimize.optimize_indices(numIndicesToMerge=1)
    with pytest.raises(OptionTypeError, match="max_rows_per_file twice"):
        write_dataset(rows, tmp_path / "u", maxRowsPerFile=1, max_rows_per_file=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="maxRowsEver"):
        write_dataset(rows, tmp_path / "u", maxRowsEver=1)  # type: ignore[call-arg]


def test_tables_in_spark_take_either_spelling() -> None:
    pytest.importorskip("pyspark")
    taken: dict[str, Any] = {}

    class Table:
        @both_spellings
        def createIndex(self, column: str, *, numPartitions: int = 0, **options: Any) -> None:  # noqa: N802, N803
            taken.update(options, column=column, numPartitions=numPartitions)

    Table().createIndex("v", num_partitions=7, sampleRate=5)
    assert taken == {"column": "v", "numPartitions": 7, "sample_rate": 5}
    for name in ("createIndex", "merge", "searchBatch", "compact_files"):
        method = getattr(spark_lance.LanceTable, name)
        assert method.__name__ == name
        assert method.__doc__
    assert hasattr(spark_lance.LanceTable.createIndex, "__wrapped__")
